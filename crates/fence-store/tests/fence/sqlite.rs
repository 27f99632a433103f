//! What only SQLite does: one file, one writer at a time.

use std::process::{Command, Stdio};

use fence_store::{Dialect, FenceError, FenceStore, Upsert};
use futures_util::future::join_all;
use sea_query::{Expr, ExprTrait, Query};
use sqlx::Sqlite;
use tokio::task::JoinSet;

use crate::forms::{Form, Target, Told, forms};
use crate::support::{Bench, TestDb, account, execute, grant, number, pool, run};

const TASKS: i64 = 8;
const WRITES: i64 = 500;

/// Names the file to a second process, which runs `writes_in_a_second_process` only.
const FILE_VARIABLE: &str = "FENCE_TEST_SECOND_PROCESS";

fn count_up() -> sea_query::UpdateStatement {
    Query::update().value("n", Expr::col("n").add(1)).to_owned()
}

async fn write_often<DB: TestDb>(store: FenceStore<DB>, id: i64) {
    for token in 1..=WRITES {
        store.update(&grant(token), &account(id), &count_up()).await.unwrap();
        if token % 50 == 0 {
            store.claim_resources(&crate::support::grant_of(&id.to_string(), token)).await.unwrap();
        }
    }
}

#[test]
fn b63_nobody_is_told_busy_while_there_is_time_to_wait_sqlite() {
    run(async {
        let bench = Bench::<Sqlite>::new(8).await;
        for id in 0..=TASKS {
            bench.insert_account(id, 0).await;
        }
        // A reader with a snapshot of its own, all the time.
        let reading = pool::<Sqlite>(&bench.url, 1, None).await;
        let mut reader = reading.acquire().await.unwrap();
        Sqlite::execute(&mut reader, "BEGIN").await.unwrap();
        Sqlite::fetch_all(&mut reader, "SELECT * FROM accounts").await.unwrap();

        let mut second = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::writes_in_a_second_process"])
            .env(FILE_VARIABLE, &bench.url)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut tasks = JoinSet::new();
        for id in 1..=TASKS {
            tasks.spawn(write_often(bench.store.clone(), id));
        }
        tasks.join_all().await;
        let ended = tokio::task::spawn_blocking(move || second.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "the second process");

        let done = format!("SELECT COUNT(*) FROM accounts WHERE n = {WRITES} AND fence_token = {WRITES}");
        assert_eq!(bench.number(done).await, Some(TASKS + 1));
        Sqlite::execute(&mut reader, "COMMIT").await.unwrap();
    });
}

/// The second process of the test above; on its own it has nothing to do.
#[test]
fn writes_in_a_second_process() {
    if let Ok(url) = std::env::var(FILE_VARIABLE) {
        run(async move { write_often(FenceStore::new(pool::<Sqlite>(&url, 1, None).await), 0).await });
    }
}

/// Of each writer, the second process among them.
const ROUNDS: i64 = 5;

/// What a writer writes, each once.
fn targets_of(writer: i64) -> Vec<(Form, Target)> {
    let rounds = (0..ROUNDS).map(move |round| 100 * (writer * ROUNDS + round));
    rounds.flat_map(|first| forms::<Sqlite>().map(move |(form, number)| (form, Target::new(first + number)))).collect()
}

#[expect(clippy::future_not_send, reason = "writers take turns on one thread of each process")]
async fn write_in_every_form(store: &FenceStore<Sqlite>, writer: i64) {
    for (form, target) in targets_of(writer) {
        assert_eq!(form.write(store, &target.grant(1), &target).await, Told::Applied, "{form:?}");
    }
}

#[test]
fn b63_every_form_of_write_waits_for_a_second_process_sqlite() {
    run(async {
        let bench = crate::every_form::bench::<Sqlite>(4).await;
        let all: Vec<(Form, Target)> = (0..4).flat_map(targets_of).collect();
        for (form, target) in &all {
            target.prepare(&bench, *form, 0).await;
        }
        let mut second = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sqlite::writes_in_every_form_in_a_second_process"])
            .env(FILE_VARIABLE, &bench.url)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        join_all((1..4).map(|writer| write_in_every_form(&bench.store, writer))).await;
        let ended = tokio::task::spawn_blocking(move || second.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "the second process");
        for (form, target) in &all {
            let is_written = match form {
                _ if form.deletes() => target.none(&bench, *form).await,
                _ if form.counts() => target.all(&bench, *form, "n = 1 AND balance = 1").await,
                _ => target.ledger(&bench).await == Some(1),
            };
            assert!(is_written, "{form:?}: {target:?}");
        }
    });
}

/// The second process of the test above; on its own it has nothing to do.
#[test]
fn writes_in_every_form_in_a_second_process() {
    if let Ok(url) = std::env::var(FILE_VARIABLE) {
        run(async move { write_in_every_form(&FenceStore::new(pool::<Sqlite>(&url, 1, None).await), 0).await });
    }
}

#[test]
fn b63_a_file_that_stays_busy_is_a_conflict_and_not_stale_sqlite() {
    run(async {
        let bench = Bench::<Sqlite>::new(2).await;
        bench.insert_account(1, 0).await;
        let impatient = bench.another(1, Some("PRAGMA busy_timeout = 50")).await;
        let mut sitting = bench.store.pool().acquire().await.unwrap();
        Sqlite::execute(&mut sitting, "BEGIN IMMEDIATE").await.unwrap();

        let busy = impatient.update(&grant(1), &account(1), &count_up()).await;
        assert!(busy.as_ref().is_err_and(FenceError::is_conflict), "{busy:?}");
        let busy = impatient.begin(&grant(1)).await;
        assert!(busy.as_ref().is_err_and(FenceError::is_conflict), "{busy:?}");
        let busy = impatient.delete(&grant(1), &account(1)).await;
        assert!(busy.as_ref().is_err_and(FenceError::is_conflict), "{busy:?}");

        Sqlite::execute(&mut sitting, "COMMIT").await.unwrap();
        impatient.update(&grant(1), &account(1), &count_up()).await.unwrap();
    });
}

/// A transaction that reads first and writes later would be refused at once, whatever the time-out is.
#[test]
fn b63_a_transaction_that_reads_first_can_write_later_sqlite() {
    run(async {
        let bench = Bench::<Sqlite>::new(3).await;
        bench.insert_account(1, 0).await;
        let mut tasks = JoinSet::new();
        for token in [7, 7, 7] {
            let store = bench.store.clone();
            tasks.spawn(async move {
                let mut transaction = store.begin(&grant(token)).await.unwrap();
                transaction.fetch_all("SELECT n FROM accounts").await.unwrap();
                // A query that borrows from its task: the future must be one that can be spawned nevertheless.
                let more = String::from("1");
                let update = sqlx::query("UPDATE accounts SET n = n + CAST(? AS INTEGER)").bind(more.as_str());
                transaction.execute(update).await.unwrap();
                transaction.commit().await.unwrap();
            });
        }
        tasks.join_all().await;
        assert_eq!(number(bench.store.pool(), "SELECT n FROM accounts").await, Some(3));
    });
}

/// An interrupted connection is closed elsewhere; closing it here would lose the database.
#[test]
fn a_dropped_future_does_not_lose_a_database_in_memory() {
    run(async {
        let store = FenceStore::new(pool::<Sqlite>("sqlite::memory:", 1, None).await);
        store.install_schema().await.unwrap();
        for polls in 1..40 {
            let work = async {
                let mut transaction = store.begin(&grant(polls)).await.unwrap();
                transaction.execute("CREATE TABLE t (id INTEGER)").await.unwrap();
                transaction.rollback().await;
            };
            crate::support::polled(usize::try_from(polls).unwrap(), work).await;
        }
        store.claim_resources(&grant(100)).await.unwrap();
    });
}

/// A file in SQLite's default journal mode, where a reader keeps the writer from committing; and that reader, reading.
async fn file_with_a_reader() -> (tempfile::TempDir, FenceStore<Sqlite>, sqlx::pool::PoolConnection<Sqlite>) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("test.db").display());
    let store = FenceStore::new(pool::<Sqlite>(&url, 2, Some("PRAGMA busy_timeout = 100")).await);
    store.install_schema().await.unwrap();
    execute(store.pool(), crate::support::ACCOUNTS).await.unwrap();
    execute(store.pool(), "INSERT INTO accounts (id, balance) VALUES (1, 100)").await.unwrap();
    let mut reader = pool::<Sqlite>(&url, 1, None).await.acquire().await.unwrap();
    Sqlite::execute(&mut reader, "BEGIN").await.unwrap();
    Sqlite::fetch_all(&mut reader, "SELECT * FROM accounts").await.unwrap();
    (folder, store, reader)
}

/// The lost update that this led to: the claim was told a success and had not been kept, so an older holder wrote after it.
#[test]
fn a_claim_that_could_not_be_committed_is_a_conflict_sqlite() {
    run(async {
        let (_folder, store, mut reader) = file_with_a_reader().await;
        let refused = store.claim(&grant(2), &account(1), ["balance"]).await;
        assert!(refused.as_ref().is_err_and(FenceError::is_conflict), "{refused:?}");
        Sqlite::execute(&mut reader, "COMMIT").await.unwrap();
        assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(0));

        let claimed = store.claim(&grant(2), &account(1), ["balance"]).await.unwrap();
        assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(2));
        crate::support::assert_stale(store.update(&grant(1), &account(1), &count_up()).await, 1, 2);
        claimed.update(&count_up()).await.unwrap();
    });
}

#[test]
fn every_write_that_a_reader_keeps_from_committing_is_a_conflict_sqlite() {
    run(async {
        let (_folder, store, mut reader) = file_with_a_reader().await;
        let busy =
            |result: Result<(), FenceError>| assert!(result.as_ref().is_err_and(FenceError::is_conflict), "{result:?}");
        let deposit = Upsert::new().value("balance", 5);
        busy(store.update(&grant(1), &account(1), &count_up()).await.map(|_| ()));
        busy(store.upsert(&grant(1), &account(1), &deposit).await.map(|_| ()));
        busy(store.upsert(&grant(1), &account(2), &deposit).await.map(|_| ()));
        busy(store.delete(&grant(1), &account(1)).await.map(|_| ()));
        busy(store.claim_resources(&grant(1)).await);
        Sqlite::execute(&mut reader, "COMMIT").await.unwrap();
        assert_eq!(store.fence_of(&account(1)).await.unwrap(), Some(0));
        assert_eq!(number(store.pool(), "SELECT COUNT(*) FROM fence_ledger").await, Some(0));

        // Nothing stayed open on the way, and the same writes go through now.
        store.update(&grant(1), &account(1), &count_up()).await.unwrap();
        store.upsert(&grant(2), &account(1), &deposit).await.unwrap();
        store.upsert(&grant(2), &account(2), &deposit).await.unwrap();
        store.delete(&grant(3), &account(1)).await.unwrap();
        store.claim_resources(&grant(3)).await.unwrap();
    });
}

/// SQLite ends a transaction by itself then; the connection is as good as before.
#[test]
fn a_transaction_that_sqlite_rolled_back_does_not_lose_a_database_in_memory() {
    run(async {
        let store = FenceStore::new(pool::<Sqlite>("sqlite::memory:", 1, None).await);
        store.install_schema().await.unwrap();
        execute(store.pool(), "CREATE TABLE t (id INTEGER PRIMARY KEY)").await.unwrap();
        let mut transaction = store.begin(&grant(1)).await.unwrap();
        transaction.execute("INSERT INTO t VALUES (1)").await.unwrap();
        assert!(transaction.execute("INSERT OR ROLLBACK INTO t VALUES (1)").await.is_err());
        assert!(transaction.commit().await.is_err());
        store.claim_resources(&grant(2)).await.unwrap();
        assert_eq!(number(store.pool(), "SELECT COUNT(*) FROM t").await, Some(0));
    });
}
