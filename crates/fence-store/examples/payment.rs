//! A payment that is charged once, although the worker that began it was frozen and woke up believing.
//!
//! Two things are needed, and neither does the work of the other. The *fence* keeps the late worker from writing into the
//! database. The *idempotency key* keeps the payment provider, which knows no fence, from charging twice: the late worker
//! may well reach it before it hears that it is late.
//!
//! ```sh
//! cargo run -p fence-store --example payment
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fence_store::{FenceError, FenceStore, Row};
use redlock_backends::MemoryNode;
use redlock_core::{Guard, LockNode, Redlock};
use sea_query::Query;
use sqlx::{Sqlite, SqlitePool};

/// What a payment provider does with an idempotency key: the second charge under it is the first one's receipt.
#[derive(Default)]
struct Provider {
    charges: Mutex<BTreeMap<String, i64>>,
}

impl Provider {
    fn charge(&self, key: &str, amount: i64) -> String {
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        charges.entry(key.to_owned()).or_insert(amount);
        ["receipt for ", key].concat()
    }
}

/// What a worker did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// It charged the payment, and wrote down the receipt.
    Charged,
    /// Somebody had done so before.
    HadBeenCharged,
    /// A newer holder has the payment: it stopped without a word in the database.
    WasLate,
}

/// A worker: claim, look, charge, write. `pause` is where this example freezes one.
async fn work(
    store: &FenceStore<Sqlite>,
    provider: &Provider,
    guard: &Guard,
    pause: impl Future<Output = ()>,
) -> Result<Done, FenceError> {
    let payment = store.claim(guard, &Row::new("payments", "id", 42), ["amount", "state"]).await?;
    if payment.get::<String>("state")? == "charged" {
        return Ok(Done::HadBeenCharged);
    }
    let amount: i64 = payment.get("amount")?;

    pause.await;

    // The key is the payment's, not the attempt's, and so is the same for all who try.
    let receipt = provider.charge("payment-42", amount);
    match payment.update(Query::update().value("state", "charged").value("receipt", receipt)).await {
        Ok(_) => Ok(Done::Charged),
        Err(FenceError::Stale { .. }) => Ok(Done::WasLate),
        Err(error) => Err(error),
    }
}

/// What came of it: what each of three workers did, and what was charged.
pub(crate) async fn run() -> Result<([Done; 3], Vec<i64>), Box<dyn Error>> {
    let pool = SqlitePool::connect("sqlite::memory:").await?;
    sqlx::query(
        "CREATE TABLE payments (id INTEGER PRIMARY KEY, amount BIGINT NOT NULL, state TEXT NOT NULL DEFAULT 'due', \
         receipt TEXT, fence_token BIGINT NOT NULL DEFAULT 0)",
    )
    .execute(&pool)
    .await?;
    sqlx::query("INSERT INTO payments (id, amount) VALUES (42, 500)").execute(&pool).await?;
    let store = FenceStore::new(pool);
    store.install_schema().await?;
    let provider = Provider::default();

    // One node in memory stands for the five servers of a deployment; its clock is ours to turn.
    let node = Arc::new(MemoryNode::new("memory"));
    let nodes: [Arc<dyn LockNode>; 1] = [node.clone()];
    let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(10)).build()?;

    let first = redlock.try_acquire("payments/42").await?;
    let mut second_did = None;
    let frozen = async {
        // It stands still for longer than its lock lasts. Another worker gets the lock, and does the work.
        node.clock().advance(Duration::from_secs(11));
        let second = redlock.try_acquire("payments/42").await.expect("the first lock has run out");
        second_did = Some(work(&store, &provider, &second, async {}).await.expect("nothing is in its way"));
        second.release().await;
    };
    let first_did = work(&store, &provider, &first, frozen).await?;

    // Whoever comes later finds it done.
    let third = redlock.try_acquire("payments/42").await?;
    let third_did = work(&store, &provider, &third, async {}).await?;

    let charges = provider.charges.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect();
    Ok(([first_did, second_did.expect("it ran while the first was frozen"), third_did], charges))
}

#[allow(dead_code, reason = "the test runs `run`")]
#[allow(clippy::print_stdout, reason = "a program for the terminal")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let ([first, second, third], charges) = run().await?;
    println!("the frozen worker: {first:?}\nits successor:     {second:?}\na third:           {third:?}");
    println!("charged:           {charges:?}");
    Ok(())
}
