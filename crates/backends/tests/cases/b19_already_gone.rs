//! B19: releasing a lock that has expired is neither an error nor a reason to retry.

use super::support::*;
use redlock_core::{NodeRelease, ReleaseOutcome};

async fn script_calls(server: &RedisServer) -> u64 {
    let mut probe = server.probe();
    let mut calls = 0;
    for command in ["evalsha", "eval"] {
        calls += probe.command_calls(command).await.expect("the server counts its commands");
    }
    calls
}

#[tokio::test]
async fn b19_an_expired_lock_is_already_gone() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.request("r").ttl(ms(200)).try_acquire().await?;
    assert_no_keys(&servers, ms(2_000)).await;
    let mut before = Vec::new();
    for server in servers.iter() {
        before.push(script_calls(server).await);
    }
    let (took, release) = timed(guard.release()).await;
    assert_eq!(release.outcome, ReleaseOutcome::AlreadyGone, "{release:?}");
    assert!(took < ms(500), "{took:?}");
    redlock.settled().await;
    for (server, before) in servers.iter().zip(before) {
        assert!(script_calls(server).await <= before + 1, "one call per node and no retry");
    }
    Ok(())
}

#[tokio::test]
async fn b19_with_three_nodes_dead_release_is_bounded_and_says_so() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire("r").await?;
    for dead in 0..3 {
        servers[dead].kill();
    }
    let (took, release) = timed(guard.release()).await;
    assert_eq!(release.outcome, ReleaseOutcome::Partly);
    assert!(took < ms(1_000), "{took:?}");
    let failed = release.nodes.iter().filter(|(_, node)| matches!(node, NodeRelease::Failed(_))).count();
    assert_eq!(failed, 3, "{release:?}");
    assert_no_keys_on(&[&servers[3], &servers[4]], ms(1_000)).await;
    Ok(())
}
