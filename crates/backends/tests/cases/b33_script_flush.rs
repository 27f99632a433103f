//! B33: a server that forgets its scripts costs one more round trip, not a lock.

use super::support::*;
use redlock_core::ReleaseOutcome;

async fn flush(servers: &redlock_bench::Servers) {
    for server in servers.iter() {
        server.command(&["SCRIPT", "FLUSH"]).await.expect("the server flushes its scripts");
    }
}

#[tokio::test]
async fn b33_scripts_are_taught_again_after_a_flush() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    redlock.try_acquire("r").await?.release().await;
    redlock.settled().await;

    flush(&servers).await;
    let guard = redlock.try_acquire("r").await?;
    flush(&servers).await;
    guard.extend().await?;
    flush(&servers).await;
    let release = guard.release().await;
    assert!(matches!(release.outcome, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum), "{release:?}");
    redlock.settled().await;
    assert_no_keys(&servers, ms(500)).await;

    for server in servers.iter() {
        let calls = server.probe().command_calls("eval").await?;
        assert!(calls <= 3, "one text per flush and node, not {calls}");
    }
    Ok(())
}

#[tokio::test]
async fn b33_no_vote_is_lost_to_a_restart() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    redlock.try_acquire("r").await?.release().await;
    for restarted in [1, 3] {
        servers[restarted].restart().await?;
    }
    redlock_bench::eventually(ms(2_000), || async {
        let guard = redlock.try_acquire("r").await.map_err(|error| chain(&error))?;
        let failed = guard.report().failed().count();
        guard.release().await;
        if failed == 0 { Ok(()) } else { Err(format!("{failed} nodes did not vote")) }
    })
    .await?;
    Ok(())
}
