//! B13: replicas, and one server named twice, are not independent votes.

use super::support::*;
use redlock_backends::RedisNode;
use redlock_core::{AcquireError, NodeError, Refusal};

async fn refusal(urls: &[String]) -> Refusal {
    match RedisNode::connect_all(urls.iter().map(String::as_str)).await {
        Err(redlock_backends::redis::ConnectError::Node { source: NodeError::Refused { reason, .. }, .. }) => reason,
        Err(other) => panic!("{}", chain(&other)),
        Ok(_) => panic!("the nodes were accepted"),
    }
}

#[tokio::test]
async fn b13_a_replica_is_refused_at_connect() -> TestResult {
    let primary = RedisServer::start(RedisOptions::new()).await?;
    let replica = RedisServer::start(RedisOptions::new().replica_of(&primary)).await?;
    assert_eq!(refusal(&[primary.url(), replica.url()]).await, Refusal::Replica);
    Ok(())
}

/// A primary that becomes a replica while it is connected to is a fault of that node, never contention.
#[tokio::test]
async fn b13_a_node_that_becomes_a_replica_stops_voting() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    for demoted in [3, 4] {
        let port = servers[0].port().to_string();
        servers[demoted].command(&["REPLICAOF", "127.0.0.1", &port]).await?;
    }
    let guard = redlock.try_acquire("r").await?;
    guard.release().await;
    servers[2].kill();
    redlock_bench::eventually(ms(2_000), || async {
        match redlock.try_acquire("r").await {
            Err(AcquireError::Unavailable(report) | AcquireError::Misconfigured(report)) => {
                let replica = |error: &NodeError| matches!(error, NodeError::Refused { reason: Refusal::Replica, .. });
                let replicas = report.failed().filter(|(_, error)| replica(error)).count();
                if 1 <= replicas { Ok(()) } else { Err(report.to_string()) }
            }
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn b13_one_server_under_several_names_is_refused() -> TestResult {
    let server = RedisServer::start(RedisOptions::new().set("bind", ["127.0.0.1", "::1"])).await?;
    let port = server.port();
    for twin in
        [format!("redis://localhost:{port}"), format!("redis://[::1]:{port}"), format!("redis://127.0.0.1:{port}/1")]
    {
        assert_eq!(refusal(&[server.url(), twin.clone()]).await, Refusal::SameServer, "{twin}");
    }
    let same = redlock_core::Redlock::builder().nodes(RedisNode::open_all([server.url().as_str(); 3])?).build();
    assert!(matches!(same, Err(redlock_core::SettingsError::SameNode { .. })), "{same:?}");
    Ok(())
}

/// Three names of one server are no quorum even if the client was never given the chance to compare them up front.
#[tokio::test]
async fn b13_a_quorum_is_not_reached_with_two_distinct_servers() -> TestResult {
    let one = RedisServer::start(RedisOptions::new().set("bind", ["127.0.0.1", "::1"])).await?;
    let other = RedisServer::start(RedisOptions::new()).await?;
    let port = one.port();
    let urls = [
        one.url(),
        format!("redis://localhost:{port}"),
        format!("redis://[::1]:{port}"),
        format!("redis://127.0.0.1:{port}/1"),
        other.url(),
    ];
    let nodes = RedisNode::open_all(urls.iter().map(String::as_str))?;
    assert_misconfigured(&builder(nodes).build()?).await;
    Ok(())
}
