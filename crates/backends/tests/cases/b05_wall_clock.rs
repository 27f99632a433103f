//! B05: the calendar never enters validity, neither the holder's nor, beyond its own vote, a node's.

use super::support::{TestResult, builder, connect, is_contended, ms};
use redlock_backends::MemoryNode;
use redlock_bench::{Calendar, RedisOptions, RedisServer, eventually};
use redlock_core::{KeepAlive, LockNode, Redlock, TokioClock};
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn five() -> (Vec<Arc<MemoryNode>>, Redlock) {
    let clock = Arc::new(TokioClock::starting_now());
    let nodes: Vec<_> = (0..5).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
    let redlock = Redlock::builder()
        .nodes(nodes.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>))
        .ttl(ms(5_000))
        .clock(clock)
        .build()
        .unwrap();
    (nodes, redlock)
}

/// The calendars of all nodes jump, which moves the floor of new tokens; what a holder may rely on does not change.
#[tokio::test(start_paused = true)]
async fn b05_a_jump_of_the_calendars_does_not_change_validity_or_cadence() {
    let (nodes, redlock) = five();
    for node in &nodes {
        node.clock().set(100 * HOUR);
    }
    let guard = redlock.try_acquire("r").await.unwrap();
    let before = guard.remaining();
    assert!(before < ms(5_000), "counted on the holder's own clock: {before:?}");
    for node in &nodes {
        node.clock().set(99 * HOUR);
    }
    assert_eq!(guard.remaining(), before);
    guard.keep_alive(KeepAlive::default());
    tokio::time::sleep(ms(20_000)).await;
    assert!(guard.is_held(), "renewals went on: {:?}", guard.state());
    assert!(ms(5_000) / 2 < guard.remaining());
}

/// One node's clock jumps forward, its lock is gone; the lock survives on four, and the node is taken again.
#[tokio::test(start_paused = true)]
async fn b05_a_jump_of_one_nodes_clock_costs_its_vote_only() {
    let (nodes, redlock) = five();
    let guard = redlock.try_acquire("r").await.unwrap();
    guard.keep_alive(KeepAlive::default());
    nodes[2].clock().advance(HOUR);
    assert!(nodes[2].locks().is_empty());
    tokio::time::sleep(ms(20_000)).await;
    assert!(guard.is_held());
    assert!(nodes.iter().all(|node| node.locks().len() == 1), "the node has been taken again");
    guard.release().await;
    redlock.settled().await;
    assert!(nodes.iter().all(|node| node.locks().is_empty()));
}

/// The same on real servers: one server's calendar is set forward by an hour, its key vanishes, and the lock survives on
/// four; then back by two, which makes its key outlive its ttl and nothing worse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b05_a_jump_of_one_servers_calendar_costs_its_vote_only() -> TestResult {
    let mut calendar = Calendar::new()?;
    let mut servers = vec![RedisServer::start(calendar.of(RedisOptions::new())).await?];
    for _ in 1..5 {
        servers.push(RedisServer::start(RedisOptions::new()).await?);
    }
    let urls: Vec<String> = servers.iter().map(RedisServer::url).collect();
    let (redlock, rival) = (builder(connect(&urls).await).build()?, builder(connect(&urls).await).build()?);
    let guard = redlock.request("r").ttl(ms(3_000)).try_acquire().await?;
    redlock.settled().await;
    assert_eq!(servers[0].probe().get("lock:r").await?.as_deref(), Some(guard.owner().expose()));

    calendar.set_forward(HOUR)?;
    assert_eq!(servers[0].probe().get("lock:r").await?, None, "an hour later the key has expired");
    assert!(is_contended(&rival.try_acquire("r").await), "four nodes hold it");
    rival.settled().await;
    let before = guard.remaining();
    guard.keep_alive(KeepAlive::default());
    eventually(ms(10_000), || async {
        let holder = servers[0].probe().get("lock:r").await.map_err(|error| error.to_string())?;
        if holder.as_deref() == Some(guard.owner().expose()) { Ok(()) } else { Err(format!("held by {holder:?}")) }
    })
    .await?;
    assert!(guard.is_held() && before < ms(3_000));

    calendar.set_back(HOUR)?;
    tokio::time::sleep(ms(4_000)).await;
    assert!(guard.is_held(), "{:?}", guard.state());
    assert!(is_contended(&rival.try_acquire("r").await));
    guard.release().await;
    Ok(())
}
