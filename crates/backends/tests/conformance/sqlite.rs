//! A node on an SQLite file keeps every promise that it offers.

use crate::fixtures::{OnSqlite, not_offered};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_connections_an_order_and_a_line_are_offered() {
    let expected = [
        "the_first_in_line_is_called_when_the_lock_is_released",
        "whoever_is_called_is_granted_as_anybody",
        "whoever_yields_lets_the_first_in_line_go_first",
        "a_call_is_passed_on_by_leaving_the_line",
        "calls_keep_the_order_they_claim",
        "the_node_comes_back_after_its_connections_broke",
        "a_call_is_made_once",
        "a_call_ends_though_nobody_answers",
    ];
    assert_eq!(not_offered(&OnSqlite::start().await).await, expected);
}
