//! A node on a real MariaDB keeps every promise that it offers.
//!
//! All promises are checked in one test: a server takes longer to start than they do.

use crate::fixtures::{not_offered, on_mysql};
use redlock_backends::MySqlNode;
use redlock_bench::sql::MariaDb;
use redlock_core::{NodeError, Refusal};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_but_an_order_and_a_line_are_offered() {
    let expected = [
        "the_first_in_line_is_called_when_the_lock_is_released",
        "whoever_is_called_is_granted_as_anybody",
        "whoever_yields_lets_the_first_in_line_go_first",
        "a_call_is_passed_on_by_leaving_the_line",
        "calls_keep_the_order_they_claim",
    ];
    assert_eq!(not_offered(&on_mysql().await).await, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_without_the_tables_is_a_matter_of_the_set_up() {
    let server = MariaDb::start().unwrap();
    let refused = MySqlNode::connect(server.url()).await;
    assert!(matches!(refused, Err(NodeError::Refused { reason: Refusal::Configuration, .. })), "{refused:?}");
    let stranger = server.url().replace("root@", "nobody:secret@");
    let refused = MySqlNode::connect(&stranger).await;
    assert!(matches!(refused, Err(NodeError::Refused { reason: Refusal::Authentication, .. })), "{refused:?}");
    assert!(!format!("{refused:?}").contains("secret"));
}
