//! Connections that break, that are being made where nobody drives them, and that are waited for together.

use crate::support::*;
use redlock_backends::RedisNode;
use redlock_bench::Servers;
use redlock_bench::proxy::{Lane, Mode};
use redlock_core::{Redlock, ReleaseOutcome, Retry};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The servers were gone and are back while nobody asked; the connections' ends have been seen meanwhile.
#[tokio::test]
async fn the_first_attempt_after_a_quiet_restart_is_granted() -> TestResult {
    let servers = Servers::start(3).await?;
    let redlock = Redlock::builder().nodes(connect(&servers.urls()).await).node_timeout(ms(500)).build()?;
    redlock.try_acquire("r").await?.release().await;
    redlock.settled().await;
    for server in servers.iter() {
        server.kill();
    }
    for server in servers.iter() {
        server.restart().await?;
    }
    drop(redlock.try_acquire("r").await.map_err(|error| chain(&error))?);
    Ok(())
}

fn driven() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A runtime for one thread stands still outside of its `block_on`, and with it whatever connection was being made there.
#[test]
fn a_connection_begun_on_a_runtime_that_stands_still_is_made_on_another() -> TestResult {
    let (driven, stands_still) = (driven(), Builder::new_current_thread().enable_all().build()?);
    let server = driven.block_on(RedisServer::start(RedisOptions::new()))?;
    let proxy = driven.block_on(Proxy::start(server.address()))?;
    driven.block_on(proxy.set(Mode::requests(Lane::Delay(ms(100)))))?;
    let redlock = Redlock::builder().node(RedisNode::open(&proxy.url())?).ttl(ms(20_000)).node_timeout(ms(1_000));
    let redlock = redlock.build()?;
    let given_up = stands_still.block_on(async { timeout(ms(20), redlock.try_acquire("r")).await });
    assert!(given_up.is_err(), "{given_up:?}");

    let retry = Retry { wait: ms(10_000), ..Retry::default() };
    let granted = driven.block_on(redlock.request("r").retry(retry).acquire());

    let guard = granted.map_err(|error| chain(&error))?;
    driven.block_on(guard.release());
    drop(stands_still);
    Ok(())
}

/// Attempts are given up and granted, locks dropped and released, while the servers forget all scripts all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_all_the_time_leave_nothing() -> TestResult {
    const TASKS: u64 = 8;
    const ROUNDS: u64 = 400;
    let servers = Arc::new(Servers::start(3).await?);
    let nodes = connect(&servers.urls()).await;
    let redlock = Redlock::builder().nodes(nodes).ttl(ms(60_000)).node_timeout(ms(200)).build()?;
    let mut flusher = JoinSet::new();
    let flushed = Arc::clone(&servers);
    flusher.spawn(async move {
        loop {
            for server in flushed.iter() {
                server.command(&["SCRIPT", "FLUSH"]).await.expect("the server answers");
            }
        }
    });
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let redlock = redlock.clone();
        tasks.spawn(async move {
            let mut granted = 0;
            for round in 0..ROUNDS {
                let name = format!("{task}.{round}");
                let patience = Duration::from_micros(100 + (round * 37) % 3_000);
                let Ok(Ok(guard)) = timeout(patience, redlock.try_acquire(&name)).await else { continue };
                granted += 1;
                if round % 3 == 0 {
                    drop(guard);
                } else {
                    guard.release().await;
                }
            }
            granted
        });
    }
    let granted: Vec<u64> = tasks.join_all().await;
    flusher.shutdown().await;
    redlock.settled().await;
    assert!(granted.iter().any(|granted| 0 < *granted), "nobody was granted anything: {granted:?}");
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// Node 3 is being connected to when the acquire and, soon after, the release ask for it; node 2 hangs by then, so that the
/// releaser's own task waits for node 3. In which order the two get through does not matter in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_and_its_release_that_wait_for_one_connection_leave_nothing() -> TestResult {
    const ROUNDS: usize = 40;
    let servers = Servers::start(3).await?;
    for _ in 0..ROUNDS {
        let hangs = Proxy::start(servers[1].address()).await?;
        let far = Proxy::start(servers[2].address()).await?;
        far.set(Mode::requests(Lane::Delay(ms(8)))).await?;
        let urls = [servers[0].url(), hangs.url(), far.url()];
        let nodes = RedisNode::open_all(urls.iter().map(String::as_str))?;
        for node in &nodes[..2] {
            node.health().await?;
        }
        let redlock = Redlock::builder().nodes(nodes).ttl(ms(60_000)).node_timeout(ms(300)).build()?;
        let guard = redlock.try_acquire("r").await.map_err(|error| chain(&error))?;
        hangs.set(Mode::requests(Lane::Hold)).await?;
        let release = guard.release().await;
        assert_ne!(release.outcome, ReleaseOutcome::AlreadyGone, "{release:?}");
        hangs.pass().await?;
        redlock.settled().await;
        assert_no_keys(&servers, ms(2_000)).await;
    }
    Ok(())
}
