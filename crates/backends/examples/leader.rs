//! Several instances of a service, one of which sends out the newsletter: leader election.
//!
//! ```text
//! cargo run -p redlock-backends --example leader [redis://… redis://… redis://…]
//! ```
//!
//! Start it in several terminals. One of them leads, and the others say who does. End the leader with Ctrl-C, and another
//! one leads within one ttl, in a term with a greater number.

#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use redlock_backends::RedisNode;
use redlock_core::{AcquireError, Election, FencingToken, Redlock};
use std::time::Duration;

/// What the instances compete for.
const OFFICE: &str = "offices/newsletter";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut urls: Vec<String> = std::env::args().skip(1).collect();
    if urls.is_empty() {
        urls = (7601..7606).map(|port| format!("redis://127.0.0.1:{port}")).collect();
    }
    let nodes = RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    // The ttl is how long nobody leads after a leader has died.
    let redlock = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(3)).build()?;
    let name = format!("instance {}", std::process::id());
    tokio::select! {
        term = lead(&redlock, &name, 30) => println!("{name}: done, and out of office; the term was {}", term?),
        never = watch(&redlock, &name) => never?,
    }
    // An office that was given up in the background is given back before the program ends.
    let _ = tokio::time::timeout(Duration::from_secs(2), redlock.settled()).await;
    Ok(())
}

/// Waits until elected, sends so many letters, and resigns. A leader that is replaced before the end stops sending, and
/// campaigns again.
pub(crate) async fn lead(redlock: &Redlock, name: &str, letters: u32) -> Result<FencingToken, AcquireError> {
    let election = Election::new(redlock, OFFICE)?;
    election
        .serve(async |held| {
            for letter in 1..=letters {
                // The term is a fencing token: a storage that checks it refuses a former leader that does not know yet.
                println!("{name}: letter {letter} of {letters}, in term {}", held.token());
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            held.token()
        })
        .await
}

/// Says every second who is in office. Looking is for people: to decide something by it would be too late already.
async fn watch(redlock: &Redlock, name: &str) -> Result<(), AcquireError> {
    let election = Election::new(redlock, OFFICE)?;
    loop {
        match election.leader().await {
            Ok(Some(leader)) => println!("{name}: {} leads, in term {:?}", leader.owner, leader.term),
            Ok(None) => println!("{name}: nobody leads"),
            Err(error) => println!("{name}: {error}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
