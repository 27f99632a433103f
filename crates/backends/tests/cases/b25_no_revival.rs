//! B25: an extension never brings a lost lock back.

use super::support::*;
use redlock_core::{ExtendError, HoldState, KeepAlive, LossReason};

#[tokio::test]
async fn b25_an_expired_lock_stays_lost_and_nothing_is_sent() -> TestResult {
    let servers = five().await;
    let (a, b) = (client(&servers).await, client(&servers).await);
    let late = a.request("r").ttl(ms(300)).try_acquire().await?;
    assert_no_keys(&servers, ms(2_000)).await;
    // Somebody else is in and out in the gap.
    let between = acquire_within(&b, "r", ms(1_000)).await;
    let newer = between.token();
    between.release().await;
    b.settled().await;

    let before = servers[0].probe().command_calls("evalsha").await?;
    let result = late.extend().await;
    assert!(matches!(result, Err(ExtendError::Lost { reason: LossReason::Expired })), "{result:?}");
    assert_eq!(servers[0].probe().command_calls("evalsha").await?, before, "nothing is asked");
    assert_eq!(late.lost().await, LossReason::Expired);
    assert!(late.lost_token().is_cancelled());
    assert!(late.token() < newer);
    assert_no_keys(&servers, ms(100)).await;
    Ok(())
}

#[tokio::test]
async fn b25_keys_deleted_on_a_majority_are_a_loss_and_on_a_minority_are_not() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire("r").await?;
    redlock.settled().await;
    for server in servers.iter().take(2) {
        server.command(&["DEL", "lock:r"]).await?;
    }
    guard.extend().await?;
    assert!(matches!(guard.state(), HoldState::Held { .. }));
    redlock.settled().await;

    for server in servers.iter().skip(2) {
        server.command(&["DEL", "lock:r"]).await?;
    }
    // At most the two that were taken again hold it now.
    let result = guard.extend().await;
    assert!(matches!(result, Err(ExtendError::Lost { .. })), "{result:?}");
    redlock.settled().await;
    let left = holders(&servers, "r").await.into_iter().flatten().count();
    assert!(left <= 2, "a lost lock is not brought back: {left}");
    guard.release().await;
    assert_no_keys(&servers, ms(1_000)).await;
    Ok(())
}

/// The same with the watchdog running: it tells, and takes nothing back.
#[tokio::test]
async fn b25_the_watchdog_revives_nothing() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.request("r").ttl(ms(1_500)).try_acquire().await?;
    redlock.settled().await;
    guard.keep_alive(KeepAlive::default());
    for server in servers.iter() {
        server.command(&["DEL", "lock:r"]).await?;
    }
    let reason = tokio::time::timeout(ms(5_000), guard.lost()).await?;
    assert!(matches!(reason, LossReason::NotOwner { .. } | LossReason::Expired), "{reason}");
    redlock.settled().await;
    assert_no_keys(&servers, ms(100)).await;
    Ok(())
}
