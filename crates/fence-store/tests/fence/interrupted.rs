//! Futures that are dropped, and answers that are lost: nothing stays open, and everybody can find out.

use std::pin::pin;
use std::time::Duration;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use fence_store::{FenceError, FenceStore};
use fence_store::{Row, Settled};
use redlock_bench::eventually;
use sea_query::Query;

use crate::forms::{Place, Target, Told, Writes, forms};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::support::account;
use crate::support::{Bench, DEADLINE, TestDb, execute, grant, grant_of, number, on_every_database, polled, pool};

on_every_database! {
    a_future_dropped_at_any_await_leaves_nothing_open_postgres
    a_future_dropped_at_any_await_leaves_nothing_open_mariadb
    a_future_dropped_at_any_await_leaves_nothing_open_sqlite
        => dropped_futures;
    a_dropped_commit_can_be_settled_postgres
    a_dropped_commit_can_be_settled_mariadb
    a_dropped_commit_can_be_settled_sqlite
        => dropped_commits;
    a_settled_transaction_is_told_from_others_postgres
    a_settled_transaction_is_told_from_others_mariadb
    a_settled_transaction_is_told_from_others_sqlite
        => settling;
    a_transaction_can_be_dropped_where_there_is_no_runtime_postgres
    a_transaction_can_be_dropped_where_there_is_no_runtime_mariadb
    a_transaction_can_be_dropped_where_there_is_no_runtime_sqlite
        => dropped_without_a_runtime;
}

/// More polls than any operation here needs.
const POLLS_MAX: usize = 400;

/// More commits than it takes until some of them have been dropped.
const ROUNDS_MAX: i64 = 500;

#[expect(clippy::future_not_send, reason = "one thread drops them, one after the other")]
async fn dropped_futures<DB: Writes>() {
    let bench = crate::every_form::bench::<DB>(2).await;
    let observer = pool::<DB>(&bench.url, 1, None).await;
    bench.sql("CREATE TABLE acknowledged (id BIGINT)").await;
    let mut places = 1..;
    let mut acknowledged = 0;
    // Not in the caller's own transaction: that is sqlx's, and dropping the future of its BEGIN leaves it open.
    let forms = forms::<DB>().map(|(form, _)| form).filter(|form| form.place != Place::Joined);
    let there = forms.clone().map(|form| (form, true));
    let absent = forms.filter(|form| form.inserts() && form.finds_a_row()).map(|form| (form, false));
    for (form, is_there) in there.chain(absent) {
        for polls in 1..POLLS_MAX {
            let target = Target::new(places.next().unwrap());
            if is_there {
                target.prepare(&bench, form, 0).await;
            }
            let told = polled(polls, form.write(&bench.store, &target.grant(1), &target)).await;
            assert!(told.as_ref().is_none_or(|told| *told == Told::Applied), "{form:?}: {told:?}");

            // Whatever connection comes next from the pool, what it acknowledges is there: it was not written into a
            // transaction that somebody left open.
            for _ in 0..2 {
                execute(bench.store.pool(), "INSERT INTO acknowledged VALUES (1)").await.unwrap();
                acknowledged += 1;
                let seen = number(&observer, "SELECT COUNT(*) FROM acknowledged").await;
                assert_eq!(seen, Some(acknowledged), "{form:?} dropped after {polls} polls");
            }
            let open = || async {
                match DB::open_transactions(&observer).await {
                    0 => Ok(()),
                    open => Err(format!("{open} open after {form:?} was dropped after {polls} polls")),
                }
            };
            eventually(DEADLINE, open).await.unwrap();
            if told.is_some() {
                break;
            }
            assert!(polls + 1 < POLLS_MAX, "{form:?} does not end");
        }
    }
    // No connection was lost from the pool; they go back in the background.
    let idle = || async {
        let pool = bench.store.pool();
        let used = usize::try_from(pool.size()).unwrap() - pool.num_idle();
        if used == 0 { Ok(()) } else { Err(format!("{used} connections in use")) }
    };
    eventually(DEADLINE, idle).await.unwrap();
}

async fn dropped_commits<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    let (mut dropped, mut ended) = (0, 0);
    // Whether a commit is answered within so many polls is the machine's business, so as many are tried as it takes.
    let mut token = 0;
    while dropped < 5 || ended < 5 {
        token += 1;
        assert!(token < ROUNDS_MAX, "{dropped} dropped, {ended} ended");
        let before = bench.balance(1).await.unwrap();
        let mut transaction = bench.store.begin(&grant(token)).await.unwrap();
        let write = Query::update().table("accounts").value("balance", token).to_owned();
        transaction.run(&write).await.unwrap();
        let ticket = transaction.ticket();
        let polls = if ended < 5 && token % 2 == 0 { POLLS_MAX } else { 1 };
        let done = polled(polls, transaction.commit()).await.is_some();

        let settled = bench.store.settle(&ticket).await.unwrap();
        let expected = match settled {
            Settled::Committed => token,
            Settled::NotCommitted => before,
            Settled::Undecided | Settled::Superseded { .. } => panic!("nobody else was there"),
        };
        assert_eq!(bench.balance(1).await, Some(expected), "{settled:?} after {polls} polls");
        if done {
            ended += 1;
            assert_eq!(settled, Settled::Committed);
        } else {
            dropped += 1;
        }
    }
}

async fn settling<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    let store = &bench.store;

    // The very first transaction of a resource is still open while it is asked about: the answer waits for its end, though
    // its row is nothing that others could see.
    for (resource, expected) in [("a", Settled::Committed), ("b", Settled::NotCommitted)] {
        let transaction = store.begin(&grant_of(resource, 1)).await.unwrap();
        let ticket = transaction.ticket();
        let mut asking = pin!(store.settle(&ticket));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut asking).await;
        assert!(early.is_err(), "{early:?} while it was open");
        if expected == Settled::Committed {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await;
        }
        assert_eq!(asking.await.unwrap(), expected);
        assert_eq!(store.settle(&ticket).await.unwrap(), expected);
    }

    let transaction = store.begin(&grant(1)).await.unwrap();
    let ticket = transaction.ticket();
    transaction.commit().await.unwrap();
    // Another transaction of the same grant leaves its own mark; a newer holder covers everything.
    let other = store.begin(&grant(1)).await.unwrap();
    let other_ticket = other.ticket();
    assert_ne!(ticket, other_ticket);
    other.rollback().await;
    assert_eq!(store.settle(&ticket).await.unwrap(), Settled::Committed);
    // The mark that it found when it began is there still.
    assert_eq!(store.settle(&other_ticket).await.unwrap(), Settled::NotCommitted);
    // So is that of an older holder, whose token is lower.
    let newer = store.begin(&grant(2)).await.unwrap();
    let newer_ticket = newer.ticket();
    newer.rollback().await;
    assert_eq!(store.settle(&newer_ticket).await.unwrap(), Settled::NotCommitted);
    // Nothing tells whether the mark of a third one covers theirs.
    store.claim_resources(&grant(1)).await.unwrap();
    assert_eq!(store.settle(&ticket).await.unwrap(), Settled::Undecided);
    assert_eq!(store.settle(&other_ticket).await.unwrap(), Settled::Undecided);
    store.claim_resources(&grant(3)).await.unwrap();
    assert_eq!(store.settle(&ticket).await.unwrap(), Settled::Superseded { highest: 3 });
}

async fn dropped_without_a_runtime<DB: TestDb>() {
    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    let mut transaction = bench.store.begin(&grant(1)).await.unwrap();
    transaction.execute("UPDATE accounts SET balance = 5").await.unwrap();
    std::thread::spawn(move || drop(transaction)).join().unwrap();
    bench.store.claim_resources(&grant(2)).await.unwrap();
    assert_eq!(bench.balance(1).await, Some(0));

    // With something under way, wherever it stands.
    let (row, grant) = (Row::new("accounts", "id", 1), grant(3));
    let statement = Query::update().value("balance", 7).to_owned();
    for polls in 1..POLLS_MAX {
        let mut write = Box::pin(bench.store.update(&grant, &row, &statement));
        let is_done = polled(polls, write.as_mut()).await.is_some();
        std::thread::scope(|scope| scope.spawn(move || drop(write)).join()).unwrap();
        if is_done {
            break;
        }
        assert!(polls + 1 < POLLS_MAX, "it does not end");
    }
    assert_eq!(bench.balance(1).await, Some(7));
}

/// The answer to a commit is lost on the way, after it was carried out and before it arrived.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn lost_answers<DB: TestDb>() {
    use redlock_bench::Proxy;
    use redlock_bench::proxy::{Lane, Mode};

    let bench = Bench::<DB>::new(3).await;
    bench.insert_account(1, 0).await;
    let address = bench.url.split('@').nth(1).unwrap().split('/').next().unwrap();
    for (token, requests, expected) in [(1, Lane::Pass, Settled::Committed), (2, Lane::Swallow, Settled::NotCommitted)]
    {
        let proxy = Proxy::start(address.parse().unwrap()).await.unwrap();
        let url = bench.url.replace(address, &proxy.address().to_string());
        let far = FenceStore::new(pool::<DB>(&url, 1, None).await);

        let before = bench.balance(1).await.unwrap();
        let mut transaction = far.begin(&grant(token)).await.unwrap();
        let write = Query::update().table("accounts").value("balance", token).to_owned();
        transaction.run(&write).await.unwrap();
        let ticket = transaction.ticket();
        let replies = Lane::Swallow;
        proxy.set(Mode::Relay { requests, replies }).await.unwrap();
        let cut = async {
            if expected == Settled::Committed {
                // Its effect is there; its answer never will be.
                let arrived = || async {
                    match bench.balance(1).await {
                        Some(balance) if balance == token => Ok(()),
                        other => Err(format!("balance {other:?}")),
                    }
                };
                eventually(DEADLINE, arrived).await.unwrap();
            }
            proxy.set(Mode::Refuse).await.unwrap();
        };
        let (committed, ()) = tokio::join!(transaction.commit(), cut);
        assert!(matches!(committed, Err(FenceError::Unknown { .. })), "{committed:?}");

        assert_eq!(bench.store.settle(&ticket).await.unwrap(), expected);
        let settled = if expected == Settled::Committed { token } else { before };
        assert_eq!(bench.balance(1).await, Some(settled));
    }

    // A row's own fence settles the fate of a single statement: written again, it says that it was written before.
    let proxy = Proxy::start(address.parse().unwrap()).await.unwrap();
    let url = bench.url.replace(address, &proxy.address().to_string());
    let far = FenceStore::new(pool::<DB>(&url, 1, None).await);
    assert!(far.fence_of(&account(1)).await.is_ok());
    let write = Query::update().value("balance", 33).to_owned();
    let (requests, replies) = (Lane::Pass, Lane::Swallow);
    let (grant, row) = (grant(33), account(1));
    far.update(&crate::support::grant(32), &row, &write).await.unwrap();
    // Connections go back to the pool in the background, with a ping.
    let idle = || async { if far.pool().num_idle() == 1 { Ok(()) } else { Err("in use") } };
    eventually(DEADLINE, idle).await.unwrap();
    proxy.set(Mode::Relay { requests, replies }).await.unwrap();
    let cut = async {
        let arrived = || async {
            match bench.store.fence_of(&row).await.unwrap() {
                Some(33) => Ok(()),
                other => Err(format!("fence {other:?}")),
            }
        };
        eventually(DEADLINE, arrived).await.unwrap();
        proxy.set(Mode::Refuse).await.unwrap();
    };
    let (written, ()) = tokio::join!(far.update(&grant, &row, &write), cut);
    assert!(matches!(written, Err(FenceError::Unknown { .. })), "{written:?}");
    let again = bench.store.update(&grant, &row, &write).await;
    assert!(matches!(again, Err(FenceError::AlreadyWritten { .. })), "{again:?}");

    // A claim raises the fence, so its answer is as unknown as that of a write; claiming again is right.
    let proxy = Proxy::start(address.parse().unwrap()).await.unwrap();
    let url = bench.url.replace(address, &proxy.address().to_string());
    let far = FenceStore::new(pool::<DB>(&url, 1, None).await);
    far.claim(&grant, &row, ["n"]).await.unwrap();
    let idle = || async { if far.pool().num_idle() == 1 { Ok(()) } else { Err("in use") } };
    eventually(DEADLINE, idle).await.unwrap();
    proxy.set(Mode::Relay { requests, replies }).await.unwrap();
    let cut = async {
        let arrived = || async {
            match bench.store.fence_of(&row).await.unwrap() {
                Some(34) => Ok(()),
                other => Err(format!("fence {other:?}")),
            }
        };
        eventually(DEADLINE, arrived).await.unwrap();
        proxy.set(Mode::Refuse).await.unwrap();
    };
    let newer = crate::support::grant(34);
    let (claimed, ()) = tokio::join!(far.claim(&newer, &row, ["n"]), cut);
    assert!(matches!(claimed, Err(FenceError::Unknown { .. })), "{claimed:?}");
    bench.store.claim(&newer, &row, ["n"]).await.unwrap();
}

#[cfg(feature = "postgres")]
#[test]
fn a_lost_answer_to_a_commit_is_unknown_and_can_be_settled_postgres() {
    crate::support::run(lost_answers::<sqlx::Postgres>());
}

#[cfg(feature = "mysql")]
#[test]
fn a_lost_answer_to_a_commit_is_unknown_and_can_be_settled_mariadb() {
    crate::support::run(lost_answers::<sqlx::MySql>());
}
