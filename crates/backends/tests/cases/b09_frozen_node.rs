//! B09: a server that accepts and never answers costs its vote and nothing else.

use super::support::*;
use redlock_core::{AcquireError, Redlock};
use std::time::Duration;

async fn rounds(redlock: &Redlock) -> Result<(Duration, Duration), Box<dyn std::error::Error>> {
    let (mut acquires, mut releases) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let (took, guard) = timed(redlock.request("r").ttl(ms(2_000)).try_acquire()).await;
        acquires.push(took);
        let guard = guard.map_err(|error| chain(&error))?;
        let (took, _) = timed(guard.release()).await;
        releases.push(took);
    }
    Ok((p99(&mut acquires), p99(&mut releases)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b09_frozen_nodes_stall_nobody_and_leave_nothing_behind() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    for frozen in [2, 3] {
        servers[frozen].freeze()?;
        let (acquire, release) = rounds(&redlock).await?;
        assert!(acquire < ms(300), "p99 of acquire {acquire:?}");
        assert!(release < ms(300), "p99 of release {release:?}");
    }

    servers[4].freeze()?;
    let (took, result) = timed(redlock.request("r").ttl(ms(2_000)).try_acquire()).await;
    assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
    assert!(took < ms(500), "its own deadline, not TCP's: {took:?}");

    for frozen in [2, 3, 4] {
        servers[frozen].thaw()?;
    }
    redlock_bench::eventually(ms(2_000), || async {
        let guard = redlock.try_acquire("r").await.map_err(|error| chain(&error))?;
        let failed: Vec<String> = guard.report().failed().map(|(name, error)| format!("{name} {error}")).collect();
        guard.release().await;
        if failed.is_empty() { Ok(()) } else { Err(failed.join(", ")) }
    })
    .await?;
    assert_no_keys(&servers, ms(2_000)).await;
    Ok(())
}

/// A freeze longer than the client keeps a connection that does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b09_what_was_asked_before_a_long_freeze_is_undone_after_it() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    servers[2].freeze()?;
    for _ in 0..20 {
        redlock.request("r").ttl(ms(60_000)).try_acquire().await?.release().await;
    }
    tokio::time::sleep(ms(3_000)).await;
    servers[2].thaw()?;
    assert_no_keys(&servers, ms(3_000)).await;
    Ok(())
}
