//! The namespace record covers counters that are gone, whatever the server's calendar showed.

use crate::support::*;
use redlock_backends::RedisNode;
use redlock_core::{
    Acquisition, IntoResources as _, KeyPrefix, LockNode as _, Owner, Ownership, Raising, Redlock, Ttl,
};

const RECORD: &str = "lock:~namespace";
const COUNTER: &str = "lock:~fence:{lock:r}";
const DAY_MILLIS: u64 = 24 * 60 * 60 * 1_000;

async fn client_of(server: &RedisServer) -> Result<Redlock, Box<dyn std::error::Error>> {
    let node = RedisNode::connect(&server.url()).await?;
    Ok(Redlock::builder().node(node).without_clock_floor().build()?)
}

async fn grant(redlock: &Redlock, resource: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let guard = redlock.try_acquire(resource).await?;
    let token = guard.token().as_counter();
    guard.release().await;
    Ok(token)
}

async fn field(server: &RedisServer, name: &str) -> Result<u64, Box<dyn std::error::Error>> {
    Ok(server.command(&["HGET", RECORD, name]).await?.into_text(name)?.parse()?)
}

async fn set_rolled(server: &RedisServer, rolled: u64) -> TestResult {
    server.command(&["HSET", RECORD, "rolled", &rolled.to_string()]).await?;
    Ok(())
}

/// The record was made while the server's calendar was a year ahead, which was put right since.
#[tokio::test]
async fn a_record_from_the_future_covers_counters_that_expire() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let redlock = client_of(&server).await?;
    grant(&redlock, "other").await?;
    let rolled = field(&server, "rolled").await?;
    set_rolled(&server, rolled + 365 * DAY_MILLIS).await?;
    let mut last = 0;
    for _ in 0..10 {
        last = grant(&redlock, "r").await?;
    }

    // Sixty days pass in which nobody uses it: the record's future comes nearer, and the counter expires.
    set_rolled(&server, rolled + 305 * DAY_MILLIS).await?;
    grant(&redlock, "look").await?;
    server.command(&["DEL", COUNTER]).await?;

    let next = grant(&client_of(&server).await?, "r").await?;
    assert!(last < next, "{last} < {next}");
    Ok(())
}

/// Nobody knows how long ago it was made, so everything that it may cover is covered at once.
#[tokio::test]
async fn a_record_from_the_future_covers_all_counters_at_once() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let redlock = client_of(&server).await?;
    grant(&redlock, "r").await?;
    let high = field(&server, "high").await?;
    let rolled = field(&server, "rolled").await?;
    set_rolled(&server, rolled + DAY_MILLIS).await?;

    let next = grant(&redlock, "new").await?;

    assert_eq!(next, high + 1);
    assert!(field(&server, "rolled").await? < rolled + DAY_MILLIS, "the record is of today again");
    Ok(())
}

#[tokio::test]
async fn a_raise_without_a_counter_starts_from_the_base() -> TestResult {
    let server = RedisServer::start(RedisOptions::new()).await?;
    let node = RedisNode::connect(&server.url()).await?;
    let mut time = server.command(&["TIME"]).await?.into_array("TIME")?.into_iter();
    let seconds: u64 = time.next().expect("seconds").into_text("TIME")?.parse()?;
    let now = (seconds * 1_000).to_string();
    let marks = ["base", "1000", "high", "4294967296", "previous", "1000", "rolled", &now];
    server.command(&[&["HSET", RECORD][..], &marks].concat()).await?;
    let ownership = Ownership::new(KeyPrefix::default(), "r".into_resources()?, Owner::from_random_bytes([1; 16]));
    let granted = node.acquire(&ownership, Ttl::new(ms(60_000))?, 0).await?;
    assert_eq!(granted, Acquisition::Granted { counter: 1_001 });

    server.command(&["DEL", COUNTER]).await?;

    assert_eq!(node.raise(&ownership, 5).await?, Raising::At(1_000));
    Ok(())
}
