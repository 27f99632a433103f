//! The node that the book builds keeps the contract, and three of them make a quorum.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::conformance::{Fixture, check_all};
use redlock_core::{AcquireError, LockNode, Redlock};
use tempfile::TempDir;

#[path = "../../backends/examples/file_node.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod file_node;

/// How the kit reaches the node: each connection is another program's, as it were, on the same file.
struct OneFile(TempDir);

#[async_trait::async_trait]
impl Fixture for OneFile {
    async fn connect(&self) -> Arc<dyn LockNode> {
        Arc::new(file_node::FileNode::new(self.0.path().join("node")))
    }

    /// Whoever waits for a turn looks every millisecond, and the disk is shared with other tests.
    fn lateness(&self) -> Duration {
        Duration::from_secs(2)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_made_of_a_file_keeps_every_promise_that_it_offers() {
    let conformance = check_all(&OneFile(tempfile::tempdir().unwrap())).await;
    conformance.assert_kept();
    let not_offered: Vec<_> = conformance.not_offered().map(|(name, _)| name).collect();
    // No connections to cut, no line of waiters, and of what a node may offer besides, only the time.
    let expected = [
        "the_node_comes_back_after_its_connections_broke",
        "a_call_is_made_once",
        "a_call_ends_though_nobody_answers",
        "the_first_in_line_is_called_when_the_lock_is_released",
        "whoever_is_called_is_granted_as_anybody",
        "whoever_yields_lets_the_first_in_line_go_first",
        "a_call_is_passed_on_by_leaving_the_line",
        "calls_keep_the_order_they_claim",
        "inspection_tells_what_is_there",
        "health_is_that_of_a_node_that_decides",
        "the_identity_stays_the_same",
    ];
    assert_eq!(not_offered, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_files_are_a_quorum_and_one_may_be_broken() {
    let folder = tempfile::tempdir().unwrap();
    let client = || {
        let builder = Redlock::builder().nodes(file_node::nodes(folder.path())).ttl(Duration::from_secs(30));
        builder.node_timeout(Duration::from_secs(5)).build().unwrap()
    };
    let (one, two) = (client(), client());
    let first = one.try_acquire("jobs/backup").await.unwrap();
    assert!(matches!(two.try_acquire("jobs/backup").await, Err(AcquireError::Contended(_))));
    let token = first.token();
    first.release().await;

    // A file that cannot be understood is a node that does not vote, and not an empty one.
    spoil(&folder.path().join("two"));
    let second = two.acquire("jobs/backup").await.unwrap();
    assert!(token < second.token());
    second.release().await;

    spoil(&folder.path().join("three"));
    let refused = one.try_acquire("jobs/backup").await;
    assert!(matches!(refused, Err(AcquireError::Unavailable(_))), "{refused:?}");
}

/// Waits for a turn like everybody: a call that has read the file already, for a release that was decided without it, would
/// write it anew.
fn spoil(path: &Path) {
    let _turn = file_node::turn(path).unwrap();
    fs::write(path, "nonsense\n").unwrap();
}
