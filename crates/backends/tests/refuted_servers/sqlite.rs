//! A node on an SQLite file, whatever has become of the file.

use crate::support::{LONG, ownership, refusal, serves, takes, ttl};
use redlock_backends::SqliteNode;
use redlock_core::{Acquisition, LockNode as _, Raising, Refusal, Releasing};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, Executor as _};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::task::JoinSet;

fn file(folder: &TempDir) -> String {
    format!("sqlite:{}?mode=rwc", folder.path().join("locks.db").display())
}

#[tokio::test]
async fn a_database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite:locks?mode=memory", "sqlite://?mode=memory&cache=shared"] {
        let (reason, said) = refusal(SqliteNode::open(url).await);
        assert_eq!(reason, Refusal::Configuration);
        assert!(said.contains("name a file"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_make_a_file_at_one_moment_are_let_in() {
    // One in a few hundred was sent away, so it takes some files.
    for _ in 0..150 {
        let folder = tempfile::tempdir().unwrap();
        let mut opening = JoinSet::new();
        for _ in 0..12 {
            let url = file(&folder);
            opening.spawn(async move { SqliteNode::open(&url).await });
        }
        for opened in opening.join_all().await {
            opened.unwrap();
        }
    }
}

#[tokio::test]
async fn tables_that_have_gone_are_told_for_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let node = SqliteNode::open(&file(&folder)).await.unwrap();
    serves(&node).await;
    let mut somebody = SqliteConnection::connect(&file(&folder)).await.unwrap();
    somebody.execute("DROP TABLE redlock_node").await.unwrap();
    let (reason, said) = refusal(node.acquire(&ownership("o", "r"), ttl(LONG), 0).await);
    assert_eq!(reason, Refusal::Configuration);
    assert!(said.contains("open the file anew"), "{said}");
    serves(&SqliteNode::open(&file(&folder)).await.unwrap()).await;
}

#[tokio::test]
async fn the_greatest_counter_stays_a_number() {
    let folder = tempfile::tempdir().unwrap();
    let node = SqliteNode::open(&file(&folder)).await.unwrap();
    let greatest = i64::MAX.unsigned_abs();
    let who = ownership("o", ["a", "b"]);
    for floor in [u64::MAX, greatest, greatest - 1, 0] {
        // Far above all tokens, so nobody is granted it by a quorum; but no call may fail for that.
        assert_eq!(takes(&node, &who, floor).await, greatest);
        assert_eq!(node.raise(&who, u64::MAX).await.unwrap(), Raising::At(greatest));
        assert_eq!(node.release(&who).await.unwrap(), Releasing::Released);
    }
}

#[allow(clippy::disallowed_methods, reason = "the node takes its time from the machine's calendar")]
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

#[tokio::test]
async fn a_lock_lasts_for_its_whole_ttl() {
    const SHORT: Duration = Duration::from_millis(5);
    let folder = tempfile::tempdir().unwrap();
    let node = SqliteNode::open(&file(&folder)).await.unwrap();
    let mut observer = SqliteConnection::connect(&file(&folder)).await.unwrap();
    let who = ownership("o", "r");
    for _ in 0..50 {
        let before = now();
        match node.acquire(&who, ttl(SHORT), 0).await.unwrap() {
            Acquisition::Granted { .. } => {}
            Acquisition::Held(held) => panic!("{held}"),
        }
        let end: i64 =
            sqlx::query_scalar("SELECT expires_at FROM redlock_node").fetch_one(&mut observer).await.unwrap();
        let end = Duration::from_millis(end.unsigned_abs());
        assert!(before + SHORT <= end, "{:?} too short", before + SHORT - end);
        node.release(&who).await.unwrap();
    }
}
