//! The conformance kit for databases: Postgres, MariaDB and SQLite keep every promise, and a table whose triggers undo a
//! fence breaks the promise that names it.

#![cfg(all(feature = "conformance", feature = "mysql", feature = "postgres", feature = "sqlite"))]

#[path = "fence/support.rs"]
#[allow(dead_code, unused_macros, unused_imports, reason = "shared with the other test program, which uses all of it")]
mod support;

use fence_store::conformance::{TABLE, check_all};
use redlock_core::conformance::Conformance;
use sqlx::{MySql, Postgres, Sqlite};

use crate::support::{Bench, TestDb};

const CONNECTIONS: u32 = 6;

/// Checks a fresh database in which these statements were run.
async fn conformance<DB: TestDb>(and: &[&str]) -> Conformance {
    let bench = Bench::<DB>::new(CONNECTIONS).await;
    bench.sql(TABLE).await;
    for statement in and {
        bench.sql(*statement).await;
    }
    check_all(&bench.store, "fence_conformance").await
}

async fn all_is_kept<DB: TestDb>() {
    let conformance = conformance::<DB>(&[]).await;
    conformance.assert_kept();
    assert_eq!((conformance.kept().count(), conformance.not_offered().count()), (12, 0));
}

#[tokio::test]
async fn postgres_keeps_every_promise() {
    all_is_kept::<Postgres>().await;
}

#[tokio::test]
async fn mariadb_keeps_every_promise() {
    all_is_kept::<MySql>().await;
}

#[tokio::test]
async fn sqlite_keeps_every_promise() {
    all_is_kept::<Sqlite>().await;
}

/// A database that does this to its tables breaks this promise.
async fn breaks(trigger: &str, expected: &str) {
    is_broken_by::<Sqlite>(trigger, expected).await;
}

async fn is_broken_by<DB: TestDb>(statement: &str, expected: &str) {
    let conformance = conformance::<DB>(&[statement]).await;
    let broken: Vec<_> = conformance.broken().map(|broken| broken.promise).collect();
    assert!(broken.contains(&expected), "broken: {broken:?}");
}

#[tokio::test]
async fn a_fence_that_is_taken_down_lets_older_tokens_write() {
    let trigger = "CREATE TRIGGER t AFTER UPDATE ON fence_conformance BEGIN \
                   UPDATE fence_conformance SET fence_token = 0 WHERE id = NEW.id; END";
    breaks(trigger, "an_older_token_writes_nothing").await;
}

#[tokio::test]
async fn a_fence_that_is_rounded_does_not_tell_neighbours_apart() {
    let trigger = "CREATE TRIGGER t AFTER UPDATE ON fence_conformance BEGIN \
                   UPDATE fence_conformance SET fence_token = NEW.fence_token & ~1 WHERE id = NEW.id; END";
    breaks(trigger, "tokens_are_exact").await;
}

#[tokio::test]
async fn a_write_that_is_swallowed_is_found() {
    let trigger = "CREATE TRIGGER t BEFORE UPDATE OF n ON fence_conformance BEGIN SELECT RAISE(IGNORE); END";
    breaks(trigger, "a_newer_token_writes").await;
}

#[tokio::test]
async fn a_value_that_is_kept_under_a_raised_fence_is_found() {
    let trigger = "CREATE TRIGGER t AFTER UPDATE OF n ON fence_conformance WHEN NEW.n <> OLD.n BEGIN \
                   UPDATE fence_conformance SET n = OLD.n WHERE id = NEW.id; END";
    breaks(trigger, "the_highest_of_a_crowd_remains").await;
    breaks(trigger, "an_equal_token_writes_once").await;
    breaks(trigger, "a_claim_shuts_older_holders_out").await;
    breaks(trigger, "a_newer_transaction_waits_for_the_older").await;
}

#[tokio::test]
async fn a_delete_that_is_undone_is_found() {
    let trigger = "CREATE TRIGGER t AFTER DELETE ON fence_conformance BEGIN \
                   INSERT INTO fence_conformance VALUES (OLD.id, OLD.n, OLD.fence_token); END";
    breaks(trigger, "a_deleted_row_stays_deleted").await;
}

#[tokio::test]
async fn a_ledger_that_falls_is_found() {
    let trigger = "CREATE TRIGGER t AFTER UPDATE ON fence_ledger BEGIN \
                   UPDATE fence_ledger SET token = 0 WHERE resource = NEW.resource; END";
    breaks(trigger, "the_ledger_only_rises").await;
    breaks(trigger, "resources_are_fenced_together").await;
}

#[tokio::test]
async fn a_table_without_transactions_is_found() {
    let statement = "ALTER TABLE fence_conformance ENGINE = MyISAM";
    is_broken_by::<MySql>(statement, "what_is_rolled_back_was_never_there").await;
}

#[tokio::test]
async fn a_column_too_small_for_tokens_is_found() {
    let statement = "ALTER TABLE fence_conformance ALTER COLUMN fence_token TYPE integer";
    is_broken_by::<Postgres>(statement, "the_columns_can_hold_tokens").await;
}
