//! A scheduler of which several instances run and one leads: it writes down which job is due, and a leader of an earlier term
//! that does not know yet that it was replaced is refused.
//!
//! ```sh
//! cargo run -p redlock-book --example scheduler
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fence_store::{FenceError, FenceStore};
use redlock_backends::MemoryNode;
use redlock_core::{Election, Held, LockNode, Redlock};
use sqlx::{Row, Sqlite, SqlitePool};

/// What the instances compete for.
const OFFICE: &str = "offices/scheduler";

/// Makes the table of what was scheduled, with the term in which it was.
pub(crate) async fn prepare(store: &FenceStore<Sqlite>) -> Result<(), Box<dyn Error>> {
    let table = "CREATE TABLE runs (minute INTEGER PRIMARY KEY, term BIGINT NOT NULL, instance TEXT NOT NULL)";
    sqlx::query(table).execute(store.pool()).await?;
    store.install_schema().await?;
    Ok(())
}

/// Leads until minute `last` is scheduled. Campaigns again whenever the office is lost.
pub(crate) async fn instance(
    redlock: &Redlock,
    store: &FenceStore<Sqlite>,
    name: &str,
    last: i64,
    pause: impl AsyncFn(i64) + Sync,
) -> Result<(), Box<dyn Error>> {
    let election = Election::new(redlock, OFFICE)?;
    let schedule = async |held: Held| {
        while let Some(minute) = schedule_next(store, &held, name, last).await? {
            pause(minute).await;
        }
        Ok::<_, FenceError>(())
    };
    election.serve(schedule).await??;
    Ok(())
}

/// Schedules the minute after the last one, under the term of whoever calls.
pub(crate) async fn schedule_next(
    store: &FenceStore<Sqlite>,
    held: &Held,
    name: &str,
    last: i64,
) -> Result<Option<i64>, FenceError> {
    let (term, name) = (held.token().get(), name.to_owned());
    store
        .run(held, |mut transaction| {
            let name = name.clone();
            async move {
                // In here nobody older writes, and nobody newer has: what is read is true until the commit.
                let known = transaction.fetch_all("SELECT coalesce(max(minute), 0) AS minute FROM runs").await?;
                let minute = 1 + known.first().map_or(Ok(0), |row| row.try_get::<i64, _>("minute"))?;
                if last < minute {
                    return Ok(None);
                }
                let run = sqlx::query("INSERT INTO runs (minute, term, instance) VALUES (?, ?, ?)");
                transaction.execute(run.bind(minute).bind(term).bind(name)).await?;
                Ok(Some(minute))
            }
        })
        .await
}

/// What was scheduled: minute, term, instance.
pub(crate) async fn runs(store: &FenceStore<Sqlite>) -> Result<Vec<(i64, i64, String)>, Box<dyn Error>> {
    Ok(sqlx::query_as("SELECT minute, term, instance FROM runs ORDER BY minute").fetch_all(store.pool()).await?)
}

#[allow(dead_code, reason = "the test calls the functions")]
#[allow(clippy::print_stdout, reason = "a program for the terminal")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One node in memory stands for five servers; each instance has a client of its own, as each machine would.
    let node: Arc<dyn LockNode> = Arc::new(MemoryNode::new("memory"));
    let client = || Redlock::builder().nodes([Arc::clone(&node)]).ttl(Duration::from_secs(2)).build();
    let store = FenceStore::new(SqlitePool::connect("sqlite::memory:").await?);
    prepare(&store).await?;
    let (one, two) = (client()?, client()?);

    // The first instance dies in the middle; its office is given back as its future is dropped.
    let first = instance(&one, &store, "first", 6, async |minute| {
        if minute == 3 {
            std::future::pending::<()>().await;
        }
    });
    let _ = tokio::time::timeout(Duration::from_secs(1), first).await;
    instance(&two, &store, "second", 6, async |_| {}).await?;
    for (minute, term, instance) in runs(&store).await? {
        println!("minute {minute}: by the {instance} instance, term {term}");
    }
    Ok(())
}
