//! The observer on real servers: it must see what a test does by hand.

use std::error::Error;
use std::time::Duration;

use redlock_bench::observer::{Observer, PERIOD};
use redlock_bench::{RedisServer, Servers, eventually};

type Outcome = Result<(), Box<dyn Error>>;

async fn vote(servers: &Servers, nodes: impl IntoIterator<Item = usize>, owner: &str) -> Outcome {
    for node in nodes {
        servers[node].command(&["SET", "r", owner, "NX", "PX", "10000"]).await?;
    }
    Ok(())
}

/// Waits until the observer has seen as many majorities as that.
async fn seen(observer: &Observer, majorities: usize) -> Outcome {
    eventually(Duration::from_secs(5), async || match observer.report() {
        report if report.holdings.len() == majorities => Ok(()),
        report => Err(report.to_string()),
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_handover_is_seen_in_order() -> Outcome {
    let servers = Servers::start(5).await?;
    let observer = Observer::start(servers.iter().map(RedisServer::probe), ["r"], PERIOD).await?;
    vote(&servers, 0..2, "too few").await?;
    for server in servers.iter() {
        server.command(&["DEL", "r"]).await?;
    }
    vote(&servers, 0..3, "first").await?;
    seen(&observer, 1).await?;
    for server in servers.iter() {
        server.command(&["DEL", "r"]).await?;
    }
    vote(&servers, 0..5, "second").await?;
    seen(&observer, 2).await?;

    let report = observer.stop();
    assert_eq!(report.owners_of("r"), ["first", "second"]);
    report.assert_safe();
    Ok(())
}

#[tokio::test]
async fn a_node_that_came_back_empty_and_votes_again_is_an_overlap() -> Outcome {
    let servers = Servers::start(5).await?;
    let observer = Observer::start(servers.iter().map(RedisServer::probe), ["r"], PERIOD).await?;
    vote(&servers, 0..3, "first").await?;
    seen(&observer, 1).await?;
    servers[2].restart().await?;
    vote(&servers, 2..5, "second").await?;
    eventually(Duration::from_secs(5), async || match observer.report() {
        report if report.overlaps.is_empty() => Err(report.to_string()),
        _ => Ok(()),
    })
    .await?;
    assert_eq!(observer.stop().overlaps[0].owners, ["first", "second"]);
    Ok(())
}

#[tokio::test]
async fn frozen_and_killed_nodes_neither_stop_the_observer_nor_lose_their_votes() -> Outcome {
    let servers = Servers::start(5).await?;
    let observer = Observer::start(servers.iter().map(RedisServer::probe), ["r"], PERIOD).await?;
    vote(&servers, 0..3, "first").await?;
    seen(&observer, 1).await?;
    servers[0].freeze()?;
    servers[1].kill();
    let before = observer.report().looks;
    eventually(Duration::from_secs(5), async || match observer.report().looks {
        looks if before + 60 <= looks => Ok(()),
        looks => Err(looks),
    })
    .await?;
    let report = observer.stop();
    assert_eq!(report.owners_of("r"), ["first"]);
    assert!(3 * PERIOD < report.holdings[0].until - report.holdings[0].from);
    report.assert_safe();
    Ok(())
}

#[tokio::test]
async fn a_lock_key_without_expiry_is_reported() -> Outcome {
    let servers = Servers::start(3).await?;
    servers[1].command(&["SET", "r", "for ever"]).await?;
    let observer = Observer::start(servers.iter().map(RedisServer::probe), ["r"], PERIOD).await?;
    let report = observer.stop();
    assert_eq!(report.without_expiry[0].node, 1);
    assert_eq!(report.looks, 3);
    Ok(())
}
