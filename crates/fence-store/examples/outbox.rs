//! A transactional outbox: what is told to others is written down together with what happened, in one fenced transaction.
//!
//! The order and its message are committed together or not at all, so nobody hears of what did not happen, and nothing that
//! happened goes untold. One relay at a time carries the messages out, under a lock of its own. A relay that was frozen may
//! carry one out a second time; it tells its token with it, so the receiver, who remembers the highest, drops that.
//!
//! ```sh
//! cargo run -p fence-store --example outbox
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fence_store::{FenceError, FenceStore};
use redlock_backends::MemoryNode;
use redlock_core::{Guard, LockNode, Redlock};
use sqlx::{Row, Sqlite, SqlitePool};

/// Who is told. It has no database in common with us, only the number that came with the last message.
#[derive(Default)]
struct Receiver {
    highest: i64,
    taken: Vec<String>,
    dropped: Vec<String>,
}

impl Receiver {
    fn take(&mut self, token: i64, message: &str) {
        if token < self.highest {
            self.dropped.push(message.to_owned());
            return;
        }
        self.highest = token;
        self.taken.push(message.to_owned());
    }
}

/// Takes an order and writes down that it was taken.
async fn order(store: &FenceStore<Sqlite>, guard: &Guard, id: i64) -> Result<(), FenceError> {
    store
        .run(guard, |mut transaction| async move {
            let order = sqlx::query("INSERT INTO orders (id) VALUES (?)").bind(id);
            transaction.execute(order).await?;
            let message = sqlx::query("INSERT INTO outbox (message) VALUES ('order ' || ? || ' was taken')").bind(id);
            transaction.execute(message).await?;
            Ok(())
        })
        .await
}

/// Carries out what has not been yet, in order. `pause` is where this example freezes one, between telling and noting it.
async fn relay(
    store: &FenceStore<Sqlite>,
    guard: &Guard,
    receiver: &tokio::sync::Mutex<Receiver>,
    pause: impl Future<Output = ()>,
) -> Result<u64, FenceError> {
    // Claimed when it begins: no older relay can note anything from here on.
    let mut transaction = store.begin(guard).await?;
    let unsent = transaction.fetch_all("SELECT id, message FROM outbox WHERE sent = 0 ORDER BY id").await?;
    transaction.commit().await?;

    pause.await;
    let mut last = 0;
    for row in &unsent {
        let message: String = row.try_get("message")?;
        receiver.lock().await.take(guard.token().get(), &message);
        last = row.try_get("id")?;
    }
    store
        .run(guard, |mut transaction| async move {
            let sent = sqlx::query("UPDATE outbox SET sent = 1 WHERE sent = 0 AND id <= ?").bind(last);
            Ok(transaction.execute(sent).await?.rows_affected())
        })
        .await
}

/// What the receiver took and what it dropped, and whether the frozen relay was told that it is late.
pub(crate) async fn run() -> Result<(Vec<String>, Vec<String>, bool), Box<dyn Error>> {
    let pool = SqlitePool::connect("sqlite::memory:").await?;
    sqlx::query("CREATE TABLE orders (id INTEGER PRIMARY KEY)").execute(&pool).await?;
    sqlx::query("CREATE TABLE outbox (id INTEGER PRIMARY KEY, message TEXT NOT NULL, sent INTEGER NOT NULL DEFAULT 0)")
        .execute(&pool)
        .await?;
    let store = FenceStore::new(pool);
    store.install_schema().await?;
    let receiver = tokio::sync::Mutex::new(Receiver::default());

    // One node in memory stands for the five servers of a deployment; its clock is ours to turn.
    let node = Arc::new(MemoryNode::new("memory"));
    let nodes: [Arc<dyn LockNode>; 1] = [node.clone()];
    let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(10)).build()?;

    for id in [1, 2] {
        let guard = redlock.try_acquire(["orders/", &id.to_string()].concat().as_str()).await?;
        order(&store, &guard, id).await?;
        // The same order a second time is an error, and leaves no second message.
        assert!(order(&store, &guard, id).await.is_err());
        guard.release().await;
    }

    let first = redlock.try_acquire("outbox").await?;
    let frozen = async {
        // It stands still for longer than its lock lasts, and another relay does the work.
        node.clock().advance(Duration::from_secs(11));
        let second = redlock.try_acquire("outbox").await.expect("the first lock has run out");
        relay(&store, &second, &receiver, async {}).await.expect("nothing is in its way");
        second.release().await;
    };
    let late = relay(&store, &first, &receiver, frozen).await;
    // Its own clock did not stand still here, so it is the database that says so.
    let was_late = matches!(late, Err(FenceError::Stale { .. }));

    let receiver = receiver.into_inner();
    Ok((receiver.taken, receiver.dropped, was_late))
}

#[allow(dead_code, reason = "the test runs `run`")]
#[allow(clippy::print_stdout, reason = "a program for the terminal")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (taken, dropped, was_late) = run().await?;
    println!("taken:   {taken:?}\ndropped: {dropped:?}\nthe frozen relay was refused: {was_late}");
    Ok(())
}
