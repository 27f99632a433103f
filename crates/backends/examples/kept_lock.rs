//! Rebuilds a report that takes longer than any sensible ttl, under a lock that is kept for as long as it takes.
//!
//! ```text
//! cargo run -p redlock-backends --example kept_lock [redis://… redis://… redis://…]
//! ```
//!
//! Start it in two terminals at once: the second one waits until the first is done. Kill the first one in the middle:
//! after one ttl, a second here, the other one goes on.

#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use redlock_backends::RedisNode;
use redlock_core::{FencingToken, Redlock, WorkError};
use std::time::Duration;

/// What is locked. Every program that rebuilds the report has to use the same name.
const REPORT: &str = "reports/daily";

/// How long the lock outlives a program that is killed. The work may take much longer than that: the lock is extended at
/// every third of it.
const TTL: Duration = Duration::from_secs(1);

const PAGE_TIME: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (7601..7606).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    // One client for the whole program: it is cheap to clone, and clones share its connections.
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = Redlock::builder().nodes(nodes).wait(Duration::from_secs(60)).build()?;
    match rebuild(&redlock, 20).await {
        Ok(token) => println!("the report is complete, under token {token}"),
        // Somebody else may be rebuilding the report by now, so this one stops, and says so.
        Err(WorkError::Lost { reason }) => println!("stopped, the lock is lost: {reason}"),
        Err(WorkError::Acquire(error)) => println!("did not begin, somebody else is at it, or nodes are down: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Rebuilds so many pages under the lock; the token says which rebuild it was.
pub(crate) async fn rebuild(redlock: &Redlock, pages: u32) -> Result<FencingToken, WorkError> {
    let work = redlock.request(REPORT).ttl(TTL).work();
    // If the lock is lost, the future in here is dropped at whichever await it is. `on_loss` can ask to be told instead.
    work.run(async |held| {
        for page in 1..=pages {
            println!("page {page} of {pages}, token {}, lock good for {:?}", held.token(), held.remaining());
            // The real work goes here. Whatever it writes carries the token: a rebuild that was paused for too long, and
            // does not know it, is refused by the storage as soon as a newer one has written. That is what fence-store
            // does for SQL databases.
            tokio::time::sleep(PAGE_TIME).await;
        }
        held.token()
    })
    .await
}
