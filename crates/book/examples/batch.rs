//! A batch of many items under one lock that is kept alive, and that another worker goes on with where the first one stopped.
//!
//! ```sh
//! cargo run -p redlock-book --example batch
//! ```
//!
//! Each item is worked on and ticked off in one fenced transaction. So a worker that lost its lock can neither do an item a
//! second time nor tick one off that its successor has in hand: its token is too old.

use std::error::Error;
use std::time::Duration;

use fence_store::{FenceError, FenceStore};
use redlock_backends::MemoryNode;
use redlock_core::{FencingToken, Held, Redlock, WorkError};
use sqlx::{Row, Sqlite, SqlitePool};

/// What is locked: one batch at a time, whichever machine works on it.
const BATCH: &str = "batches/2026-11";

/// A worker that dies keeps others out for so long. The batch may take hours.
const TTL: Duration = Duration::from_secs(3);

/// Makes a batch of so many items.
pub(crate) async fn prepare(store: &FenceStore<Sqlite>, items: i64) -> Result<(), Box<dyn Error>> {
    sqlx::query("CREATE TABLE items (id INTEGER PRIMARY KEY, times INTEGER NOT NULL DEFAULT 0, done_under BIGINT)")
        .execute(store.pool())
        .await?;
    for id in 1..=items {
        sqlx::query("INSERT INTO items (id) VALUES (?)").bind(id).execute(store.pool()).await?;
    }
    store.install_schema().await?;
    Ok(())
}

/// Works until nothing is left; `each` is called after every item. Says how many were done here, and under which token.
pub(crate) async fn work(
    redlock: &Redlock,
    store: &FenceStore<Sqlite>,
    each: impl AsyncFn(i64) + Sync,
) -> Result<(u64, FencingToken), Box<dyn Error>> {
    let batch = redlock.request(BATCH).ttl(TTL).work();
    // The lock is renewed every second for as long as this goes on; if it is lost, this is dropped where it stands.
    let done = batch.run(async |held| {
        let mut done = 0;
        while let Some(item) = next(store, &held).await? {
            done += 1;
            each(item).await;
        }
        Ok::<_, FenceError>((done, held.token()))
    });
    match done.await {
        Ok(done) => Ok(done?),
        Err(error @ WorkError::Lost { .. }) => Err(format!("stopped in the middle, somebody goes on: {error}").into()),
        Err(error) => Err(error.into()),
    }
}

/// Does the first item that is not done.
async fn next(store: &FenceStore<Sqlite>, held: &Held) -> Result<Option<i64>, FenceError> {
    let token = held.token().get();
    store
        .run(held, |mut transaction| async move {
            let open = "SELECT id FROM items WHERE done_under IS NULL ORDER BY id LIMIT 1";
            let Some(row) = transaction.fetch_optional(open).await? else { return Ok(None) };
            let id: i64 = row.try_get("id")?;
            // The real work goes here. What it writes belongs to this transaction, too.
            let tick =
                sqlx::query("UPDATE items SET times = times + 1, done_under = ? WHERE id = ?").bind(token).bind(id);
            transaction.execute(tick).await?;
            Ok(Some(id))
        })
        .await
}

#[allow(dead_code, reason = "the test calls the functions")]
#[allow(clippy::print_stdout, reason = "a program for the terminal")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One node in memory and a database in memory, so that this runs anywhere; a service names its five servers.
    let redlock = Redlock::builder().node(MemoryNode::new("memory")).build()?;
    let store = FenceStore::new(SqlitePool::connect("sqlite::memory:").await?);
    prepare(&store, 20).await?;

    let dies = work(&redlock, &store, async |item| match item {
        7 => std::future::pending().await,
        item => println!("the first worker did item {item}"),
    });
    if tokio::time::timeout(Duration::from_secs(2), dies).await.is_err() {
        println!("the first worker died");
    }
    let (done, token) = work(&redlock, &store, async |_| {}).await?;
    println!("the second worker did the other {done}, under token {token}");
    Ok(())
}
