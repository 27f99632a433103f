//! Work that is run again while it loses to others, and only then; and how long anybody waits.

#![expect(clippy::future_not_send, reason = "a test polls its own futures, and counts in cells")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fence_store::{Attempt, FenceError, Flavor, Lent, StatementProblem, Upsert, Validity};
use redlock_backends::MemoryNode;
use redlock_core::Redlock;
use sea_query::Query;
use tokio::sync::Notify;

use crate::support::{Bench, TestDb, account, assert_stale, grant, on_every_database};

on_every_database! {
    work_is_run_again_after_a_conflict_and_committed_once_postgres
    work_is_run_again_after_a_conflict_and_committed_once_mariadb
    work_is_run_again_after_a_conflict_and_committed_once_sqlite
        => run_again;
    work_is_not_run_again_when_it_is_stale_or_fails_postgres
    work_is_not_run_again_when_it_is_stale_or_fails_mariadb
    work_is_not_run_again_when_it_is_stale_or_fails_sqlite
        => not_run_again;
    work_is_not_begun_when_its_lock_is_over_postgres
    work_is_not_begun_when_its_lock_is_over_mariadb
    work_is_not_begun_when_its_lock_is_over_sqlite
        => lock_over;
    work_that_keeps_its_transaction_is_not_committed_postgres
    work_that_keeps_its_transaction_is_not_committed_mariadb
    work_that_keeps_its_transaction_is_not_committed_sqlite
        => kept_elsewhere;
    b65_work_that_waits_for_a_lock_is_run_again_as_a_whole_postgres
    b65_work_that_waits_for_a_lock_is_run_again_as_a_whole_mariadb
    b65_work_that_waits_for_a_lock_is_run_again_as_a_whole_sqlite
        => waits_and_runs_again;
    b65_many_rows_that_wait_for_one_are_rolled_back_together_postgres
    b65_many_rows_that_wait_for_one_are_rolled_back_together_mariadb
    b65_many_rows_that_wait_for_one_are_rolled_back_together_sqlite
        => many_rows_wait_for_one;
    every_write_waits_no_longer_than_it_is_told_postgres
    every_write_waits_no_longer_than_it_is_told_mariadb
    every_write_waits_no_longer_than_it_is_told_sqlite
        => waits_within_a_limit;
}

/// A holder whose lock lasts, and that may be borrowed for as long as a test likes.
fn held(token: i64) -> &'static (impl Validity + Sync) {
    Box::leak(Box::new(Lent::new(grant(token), || Duration::from_secs(60))))
}

fn conflict() -> FenceError {
    FenceError::Conflict { source: sqlx::Error::Protocol("made up".into()) }
}

async fn run_again<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    // A real guard, and a future that can be spawned.
    let redlock = Redlock::builder().node(MemoryNode::new("memory")).ttl(Duration::from_secs(60)).build().unwrap();
    let guard = redlock.try_acquire("accounts").await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let (store, counted) = (bench.store.clone(), Arc::clone(&runs));
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move {
        let work = |mut transaction: Attempt<DB>| {
            let run = counted.fetch_add(1, Ordering::Relaxed) + 1;
            async move {
                transaction.execute("UPDATE accounts SET balance = balance + 1").await?;
                if run < 3 { Err(conflict()) } else { Ok(run) }
            }
        };
        store.run(&guard, work).await
    });
    assert_eq!(tasks.join_next().await.unwrap().unwrap().unwrap(), 3);
    assert_eq!(bench.balance(1).await, Some(1));

    // Not for ever.
    let runs = Cell::new(0);
    let always = |_: Attempt<DB>| {
        runs.set(runs.get() + 1);
        async { Err::<(), _>(conflict()) }
    };
    let given_up = bench.store.running().attempts_max(4).run(held(1 << 52), always).await;
    assert!(given_up.as_ref().is_err_and(FenceError::is_conflict), "{given_up:?}");
    assert_eq!(runs.get(), 4);
}

async fn not_run_again<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    bench.store.claim_resources(&grant(5)).await.unwrap();
    bench.store.claim(&grant(9), &account(1), ["n"]).await.unwrap();
    let runs = Cell::new(0);
    let count = || runs.set(runs.get() + 1);

    let late = bench.store.run(held(4), |_| {
        count();
        async { Ok::<_, FenceError>(()) }
    });
    assert_stale(late.await, 4, 5);
    assert_eq!(runs.get(), 0);

    let late = bench.store.run(held(6), |mut transaction| {
        count();
        async move { transaction.update(&account(1), Query::update().value("balance", 1)).await }
    });
    assert_stale(late.await, 6, 9);
    assert_eq!(runs.get(), 1);

    /// A program's own error, which knows nothing of databases.
    #[derive(Debug, PartialEq)]
    enum Failed {
        NotEnoughMoney,
        Fenced(String),
    }
    impl From<FenceError> for Failed {
        fn from(error: FenceError) -> Self {
            Self::Fenced(error.to_string())
        }
    }
    let broke = bench.store.run(held(6), |mut transaction| {
        count();
        async move {
            transaction.execute("UPDATE accounts SET balance = 9").await?;
            Err::<(), _>(Failed::NotEnoughMoney)
        }
    });
    assert_eq!(broke.await, Err(Failed::NotEnoughMoney));
    assert_eq!((runs.get(), bench.balance(1).await), (2, Some(0)));
}

async fn lock_over<DB: TestDb>() {
    let bench = Bench::<DB>::new(2).await;
    let left = AtomicU32::new(60);
    let runs = Cell::new(0);
    let holder = Lent::new(grant(5), || Duration::from_secs(left.load(Ordering::Relaxed).into()));
    let over = bench.store.run(&holder, |_: Attempt<DB>| {
        runs.set(runs.get() + 1);
        left.store(0, Ordering::Relaxed);
        async { Err::<(), _>(conflict()) }
    });
    let over = over.await;
    assert!(matches!(over, Err(FenceError::LockOver { runs: 1, .. })), "{over:?}");
    assert_eq!(runs.get(), 1);

    let short = Lent::new(grant(5), || Duration::from_secs(2));
    let running = bench.store.running().validity_min(Duration::from_secs(3));
    let over = running.run(&short, |_: Attempt<DB>| async { Ok::<_, FenceError>(()) }).await;
    assert!(matches!(over, Err(FenceError::LockOver { runs: 0, .. })), "{over:?}");
    assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
}

async fn kept_elsewhere<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    let kept = std::cell::RefCell::new(None);
    let refused = bench.store.run(held(1), |mut transaction| {
        let kept = &kept;
        async move {
            transaction.execute("UPDATE accounts SET balance = 9").await?;
            *kept.borrow_mut() = Some(transaction);
            Ok::<_, FenceError>(())
        }
    });
    let refused = refused.await;
    assert!(matches!(refused, Err(FenceError::Statement(StatementProblem::TransactionKept))), "{refused:?}");
    kept.take();
    assert_eq!(bench.balance(1).await, Some(0));
    bench.store.claim_resources(&grant(1)).await.unwrap();
}

/// One connection of the pool sits on the row (on the file, on SQLite) until the work has been in conflict over it.
async fn waits_and_runs_again<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    for id in [1, 2] {
        bench.insert_account(id, 0).await;
    }
    let impatient = bench.another(2, None).await.lock_wait(Duration::from_millis(50));
    let mut sitting = bench.store.pool().acquire().await.unwrap();
    DB::execute(&mut sitting, if DB::FLAVOR == Flavor::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await.unwrap();
    DB::execute(&mut sitting, "UPDATE accounts SET n = 7 WHERE id = 2").await.unwrap();

    let (looks, again) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let (looked, notified) = (Arc::clone(&looks), Arc::clone(&again));
    let holder = Lent::new(grant(1), move || {
        if looked.fetch_add(1, Ordering::Relaxed) == 1 {
            notified.notify_one();
        }
        Duration::from_secs(60)
    });
    let work = impatient.run(&holder, |mut transaction| async move {
        for id in [1, 2] {
            let add = format!("UPDATE accounts SET balance = balance + 1 WHERE id = {id}");
            transaction.execute(sqlx::AssertSqlSafe(add)).await?;
        }
        Ok::<_, FenceError>(())
    });
    let leave = async {
        again.notified().await;
        DB::execute(&mut sitting, "COMMIT").await.unwrap();
    };
    let (done, ()) = tokio::join!(work, leave);
    done.unwrap();
    assert!(1 < looks.load(Ordering::Relaxed));
    assert_eq!((bench.balance(1).await, bench.balance(2).await), (Some(1), Some(1)));
    assert_eq!(bench.number("SELECT n FROM accounts WHERE id = 2").await, Some(7));
}

/// InnoDB undoes one statement after a lock wait; what was written before it must not be kept.
async fn many_rows_wait_for_one<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    for id in 1..=250 {
        bench.insert_account(id, 0).await;
    }
    let impatient = bench.another(1, None).await.lock_wait(Duration::from_millis(50));
    let mut sitting = bench.store.pool().acquire().await.unwrap();
    DB::execute(&mut sitting, if DB::FLAVOR == Flavor::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await.unwrap();
    // In the order of their keys as texts it comes last, among those of the second statement.
    DB::execute(&mut sitting, "UPDATE accounts SET n = 7 WHERE id = 99").await.unwrap();

    let rows: Vec<_> = (1..=250).map(account).collect();
    let upserts: Vec<_> = rows.iter().map(|row| (row.clone(), Upsert::new().value("balance", 1))).collect();
    let write = Query::update().value("balance", 1).to_owned();
    let busy = |result: Result<Vec<fence_store::Verdict>, FenceError>| {
        assert!(result.as_ref().is_err_and(FenceError::is_conflict), "{result:?}");
    };
    busy(impatient.update_rows(&grant(1), &rows, &write).await);
    busy(impatient.upsert_rows(&grant(1), &upserts).await);
    busy(impatient.delete_rows(&grant(1), &rows).await);
    DB::execute(&mut sitting, "COMMIT").await.unwrap();

    assert_eq!(bench.number("SELECT COUNT(*) FROM accounts WHERE balance = 0 AND fence_token = 0").await, Some(250));
    assert_eq!(bench.number("SELECT COUNT(*) FROM fence_ledger").await, Some(0));
    let told = impatient.update_rows(&grant(1), &rows, &write).await.unwrap();
    assert!(told.into_iter().all(fence_store::Verdict::is_applied));
}

async fn waits_within_a_limit<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    bench.store.claim_resources(&grant(1)).await.unwrap();
    let impatient = bench.another(1, None).await.lock_wait(Duration::from_millis(50));
    let mut sitting = bench.store.pool().acquire().await.unwrap();
    DB::execute(&mut sitting, if DB::FLAVOR == Flavor::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await.unwrap();
    DB::execute(&mut sitting, "UPDATE accounts SET n = 7").await.unwrap();
    DB::execute(&mut sitting, "UPDATE fence_ledger SET token = token + 1").await.unwrap();

    let write = Query::update().value("balance", 1).to_owned();
    let busy = |result: Result<(), FenceError>| {
        assert!(result.as_ref().is_err_and(FenceError::is_conflict), "{result:?}");
    };
    let began = started();
    busy(impatient.update(&grant(5), &account(1), &write).await.map(|_| ()));
    busy(impatient.claim(&grant(5), &account(1), ["n"]).await.map(|_| ()));
    busy(impatient.delete(&grant(5), &account(1)).await.map(|_| ()));
    busy(impatient.upsert(&grant(5), &account(2), &Upsert::new()).await.map(|_| ()));
    busy(impatient.begin(&grant(5)).await.map(|_| ()));
    // Each database would wait for five seconds or more by itself.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    DB::execute(&mut sitting, "ROLLBACK").await.unwrap();
    impatient.update(&grant(5), &account(1), &write).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(1));
}

#[expect(clippy::disallowed_methods, reason = "how long a database waits is what is asked here")]
fn started() -> Instant {
    Instant::now()
}

/// Nobody has said how long to wait, neither here nor to the session.
#[cfg(feature = "postgres")]
#[test]
fn a_statement_on_its_own_does_not_wait_for_ever_postgres() {
    crate::support::run(async {
        let bench = Bench::<sqlx::Postgres>::new(2).await;
        bench.insert_account(1, 0).await;
        let mut frozen = bench.store.begin(&crate::support::grant_of("elsewhere", 1)).await.unwrap();
        frozen.execute("UPDATE accounts SET n = 7").await.unwrap();
        let write = Query::update().value("balance", 1).to_owned();
        let (grant, row) = (grant(1), account(1));
        let waiting = bench.store.update(&grant, &row, &write);
        let waited = tokio::time::timeout(Duration::from_secs(100), waiting).await.expect("it has a limit");
        assert!(waited.as_ref().is_err_and(FenceError::is_conflict), "{waited:?}");
        frozen.rollback().await;
        // For the statement only.
        let kept = "SELECT CASE current_setting('lock_timeout') WHEN '0' THEN 0::bigint ELSE 1 END";
        assert_eq!(bench.number(kept).await, Some(0));
    });
}

/// Two serializable transactions that read what the other one writes: the second is told at its commit.
#[cfg(feature = "postgres")]
#[test]
fn work_that_fails_at_its_commit_is_run_again_postgres() {
    crate::support::run(async {
        let bench = Bench::<sqlx::Postgres>::new(3).await;
        let store = &bench.store;
        let runs = Cell::new(0);
        let insert = async |transaction: &mut fence_store::Transaction<sqlx::Postgres>, id: i64| {
            transaction.fetch_all("SELECT * FROM accounts").await?;
            let insert = Query::insert().into_table("accounts").columns(["id"]).values_panic([id.into()]).to_owned();
            transaction.run(&insert).await
        };
        let running = store.running().isolation(fence_store::Isolation::Serializable);
        let done = running.run(held(1), |mut transaction| {
            runs.set(runs.get() + 1);
            let (first, insert) = (runs.get() == 1, &insert);
            async move {
                insert(&mut transaction, 1).await?;
                if first {
                    let other = crate::support::grant_of("elsewhere", 1);
                    let mut other = store.begin_with(&other, fence_store::Isolation::Serializable).await?;
                    insert(&mut other, 2).await?;
                    other.commit().await?;
                }
                Ok::<_, FenceError>(())
            }
        });
        done.await.unwrap();
        assert_eq!(runs.get(), 2);
        assert_eq!(bench.number("SELECT COUNT(*) FROM accounts").await, Some(2));
    });
}

/// The commit is carried out and its answer lost: the ledger tells, and nothing is done twice.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn lost_commit<DB: TestDb>() {
    use redlock_bench::proxy::{Lane, Mode};
    use redlock_bench::{Proxy, eventually};

    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    let address = bench.url.split('@').nth(1).unwrap().split('/').next().unwrap();
    for (requests, runs_expected) in [(Lane::Pass, 1), (Lane::Swallow, 2)] {
        let proxy = Proxy::start(address.parse().unwrap()).await.unwrap();
        let url = bench.url.replace(address, &proxy.address().to_string());
        let far = fence_store::FenceStore::new(crate::support::pool::<DB>(&url, 1, None).await);
        let before = bench.balance(1).await.unwrap();
        let (runs, proxy, deaf) = (Cell::new(0), &proxy, &Notify::new());
        let done = far.run(held(1 + before), |mut transaction| {
            runs.set(runs.get() + 1);
            let first = runs.get() == 1;
            async move {
                // Without text of the caller's there is nothing to look after at the end but the commit.
                let add = sea_query::ExprTrait::add(sea_query::Expr::col("balance"), 1);
                transaction.run(&Query::update().table("accounts").value("balance", add).to_owned()).await?;
                if first {
                    proxy.set(Mode::Relay { requests, replies: Lane::Swallow }).await.unwrap();
                    deaf.notify_one();
                }
                Ok::<_, FenceError>(())
            }
        });
        let cut = async {
            deaf.notified().await;
            if requests == Lane::Pass {
                let arrived = || async {
                    match bench.balance(1).await {
                        Some(balance) if before < balance => Ok(()),
                        other => Err(format!("balance {other:?}")),
                    }
                };
                eventually(crate::support::DEADLINE, arrived).await.unwrap();
            }
            proxy.set(Mode::Refuse).await.unwrap();
            proxy.pass().await.unwrap();
        };
        let (done, ()) = tokio::join!(done, cut);
        done.unwrap();
        assert_eq!(runs.get(), runs_expected, "{requests:?}");
        assert_eq!(bench.balance(1).await, Some(before + 1), "{requests:?}");
    }
}

#[cfg(feature = "postgres")]
#[test]
fn a_commit_whose_answer_is_lost_is_settled_before_the_next_run_postgres() {
    crate::support::run(lost_commit::<sqlx::Postgres>());
}

#[cfg(feature = "mysql")]
#[test]
fn a_commit_whose_answer_is_lost_is_settled_before_the_next_run_mariadb() {
    crate::support::run(lost_commit::<sqlx::MySql>());
}
