//! Counters that holders read, add one to, and write back; some of them are frozen in between until their lock is over.
//!
//! Under a claim nothing that was acknowledged is lost. Without a fence it is, by the same holders: that is the test of the
//! test.

#![expect(
    clippy::future_not_send,
    reason = "holders take turns on one thread, so that a freeze has no races of its own"
)]

use std::cell::{Cell, RefCell};

use fence_store::{FenceError, FenceStore};
use futures_util::future::join_all;
use sea_query::{Expr, ExprTrait, Query};
use sqlx::AssertSqlSafe;
use tokio::sync::Notify;

use crate::support::{Bench, TestDb, account, grant, number, on_every_database};

on_every_database! {
    counters_under_frozen_holders_lose_nothing_when_claimed_postgres
    counters_under_frozen_holders_lose_nothing_when_claimed_mariadb
    counters_under_frozen_holders_lose_nothing_when_claimed_sqlite
        => claimed;
    counters_under_frozen_holders_lose_updates_without_a_fence_postgres
    counters_under_frozen_holders_lose_updates_without_a_fence_mariadb
    counters_under_frozen_holders_lose_updates_without_a_fence_sqlite
        => without_a_fence;
}

const HOLDERS: usize = 8;
const INCREMENTS: i64 = 10;

/// One in so many reads is followed by a freeze.
const FREEZES: i64 = 3;

/// How a holder counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `claim` of the row, then the claim's `update`.
    Row,
    /// `claim_resources`, a plain read, then a ledger transaction.
    Resource,
    /// A plain read, then a plain write.
    Unfenced,
}

/// The lock service, as far as it matters here: it grants to whoever asks, and a frozen holder's lock is over.
#[derive(Default)]
struct Locks {
    granted: Cell<i64>,
    running: Cell<usize>,
    frozen: Cell<usize>,
    thaw: Notify,
    acknowledged: Cell<i64>,
    refused: Cell<i64>,
    /// Who froze under which token, for the message of a failure.
    freezes: RefCell<Vec<i64>>,
}

impl Locks {
    fn acquire(&self) -> i64 {
        self.granted.set(self.granted.get() + 1);
        self.granted.get()
    }

    /// Every few holders are stopped here until a newer one has written, unless all others are stopped already.
    async fn freeze(&self, token: i64) {
        if token % FREEZES != 1 || self.running.get() <= self.frozen.get() + 1 {
            return;
        }
        self.frozen.set(self.frozen.get() + 1);
        self.freezes.borrow_mut().push(token);
        self.thaw.notified().await;
        self.frozen.set(self.frozen.get() - 1);
    }
}

async fn claimed<DB: TestDb>() {
    for way in [Way::Row, Way::Resource] {
        let (locks, balance) = count::<DB>(way).await;
        let (freezes, refused) = (locks.freezes.borrow().len(), locks.refused.get());
        assert_eq!(locks.acknowledged.get(), balance, "{way:?}, with {freezes} freezes");
        assert_eq!(balance, i64::try_from(HOLDERS).unwrap() * INCREMENTS, "{way:?}");
        // They did meet: who was frozen was refused, and counted again under a new lock.
        assert!(0 < freezes && 0 < refused, "{way:?}: {freezes} freezes, {refused} refused");
    }
}

async fn without_a_fence<DB: TestDb>() {
    let (locks, balance) = count::<DB>(Way::Unfenced).await;
    let acknowledged = locks.acknowledged.get();
    assert!(balance < acknowledged, "{balance} of {acknowledged} were kept, with {:?} frozen", locks.freezes);
}

/// Lets all holders count, and reads what the counter has come to.
async fn count<DB: TestDb>(way: Way) -> (Locks, i64) {
    let bench = Bench::<DB>::new(u32::try_from(HOLDERS).unwrap()).await;
    bench.insert_account(1, 0).await;
    let locks = Locks::default();
    locks.running.set(HOLDERS);
    join_all((0..HOLDERS).map(|_| hold(&bench.store, &locks, way))).await;
    let balance = bench.balance(1).await.unwrap();
    (locks, balance)
}

async fn hold<DB: TestDb>(store: &FenceStore<DB>, locks: &Locks, way: Way) {
    let mut left = INCREMENTS;
    while 0 < left {
        match add_one(store, locks, way, locks.acquire()).await {
            Ok(()) => {
                left -= 1;
                locks.acknowledged.set(locks.acknowledged.get() + 1);
                locks.thaw.notify_waiters();
            }
            Err(error) => {
                assert!(error.is_stale() || error.is_conflict(), "{way:?}: {error:?}");
                locks.refused.set(locks.refused.get() + 1);
            }
        }
    }
    // Nobody may be left waiting for the last one.
    locks.running.set(locks.running.get() - 1);
    locks.thaw.notify_waiters();
}

async fn add_one<DB: TestDb>(store: &FenceStore<DB>, locks: &Locks, way: Way, token: i64) -> Result<(), FenceError> {
    match way {
        Way::Row => {
            let claim = store.claim(&grant(token), &account(1), ["balance"]).await?;
            let balance = DB::integer(claim.row(), 0).unwrap().unwrap();
            locks.freeze(token).await;
            claim.update(Query::update().value("balance", balance + 1)).await.map(|_| ())
        }
        Way::Resource => {
            store.claim_resources(&grant(token)).await?;
            let balance = number(store.pool(), "SELECT balance FROM accounts WHERE id = 1").await.unwrap();
            locks.freeze(token).await;
            let mut transaction = store.begin(&grant(token)).await?;
            let write = Query::update().table("accounts").value("balance", balance + 1).to_owned();
            transaction.run(write.clone().and_where(Expr::col("id").eq(1))).await?;
            transaction.commit().await
        }
        Way::Unfenced => {
            let balance = number(store.pool(), "SELECT balance FROM accounts WHERE id = 1").await.unwrap();
            locks.freeze(token).await;
            let write = format!("UPDATE accounts SET balance = {} WHERE id = 1", balance + 1);
            let mut connection = store.pool().acquire().await?;
            DB::execute(&mut connection, AssertSqlSafe(write)).await?;
            Ok(())
        }
    }
}
