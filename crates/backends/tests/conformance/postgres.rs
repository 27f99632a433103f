//! A node on a real Postgres keeps every promise that it offers.
//!
//! All promises are checked in one test: a server takes longer to start than they do.

use crate::fixtures::{not_offered, on_postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_an_order_and_a_line_are_offered() {
    let expected = [
        "the_first_in_line_is_called_when_the_lock_is_released",
        "whoever_is_called_is_granted_as_anybody",
        "whoever_yields_lets_the_first_in_line_go_first",
        "a_call_is_passed_on_by_leaving_the_line",
        "calls_keep_the_order_they_claim",
    ];
    assert_eq!(not_offered(&on_postgres().await).await, expected);
}
