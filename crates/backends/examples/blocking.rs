//! A program without async: a job that is started on several machines at the same minute, and that one of them does.
//!
//! ```text
//! cargo run -p redlock-backends --example blocking [redis://… redis://… redis://…]
//! ```
//!
//! Start it twice within a few seconds: the second one finds that the job is being done, and ends.

#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use redlock_backends::RedisNode;
use redlock_core::blocking::Redlock;
use redlock_core::{AcquireError, FencingToken, Held, WorkError};
use std::time::Duration;

/// The job, by the name under which all machines know it.
const JOB: &str = "jobs/backup";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (7601..7606).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    let redlock = client(&urls)?;
    match once(&redlock, back_up)? {
        Some(token) => println!("done, under token {token}"),
        None => println!("another machine is at it"),
    }
    Ok(())
}

/// A client that does not wait for a lock that others hold.
pub(crate) fn client(urls: &[String]) -> Result<Redlock, Box<dyn std::error::Error>> {
    // Opened, not connected: the first call connects, on the client's own background runtime.
    let nodes = RedisNode::open_all(urls.iter().map(String::as_str))?;
    let settings = redlock_core::Redlock::builder().nodes(nodes).ttl(Duration::from_secs(10)).wait(Duration::ZERO);
    Ok(Redlock::start(settings)?)
}

/// Does the job unless another machine is at it; the token says which run it was.
pub(crate) fn once(redlock: &Redlock, job: impl FnOnce(&Held)) -> Result<Option<FencingToken>, WorkError> {
    // While the job runs on this thread, the lock is kept alive in the background, however long it takes.
    let done = redlock.with_lock(JOB, |held| {
        job(&held);
        held.token()
    });
    match done {
        Ok(token) => Ok(Some(token)),
        Err(WorkError::Acquire(AcquireError::Contended(_))) => Ok(None),
        // Nodes that are down, or a lock that was lost on the way, are worth somebody's attention.
        Err(error) => Err(error),
    }
}

fn back_up(held: &Held) {
    for part in 1..=10 {
        // Nobody can drop work on a thread, so work that goes on for long looks for itself.
        if !held.is_held() {
            println!("stopped: {:?}", held.state());
            return;
        }
        println!("part {part}, token {}, lock good for {:?}", held.token(), held.remaining());
        #[expect(clippy::disallowed_methods, reason = "stands for the real work")]
        std::thread::sleep(Duration::from_millis(500));
    }
}
