//! B55: a holder finds its own token, never its successor's.

use super::support::*;
use redlock_core::ExtendError;

#[tokio::test]
async fn b55_a_late_holder_has_its_old_token() -> TestResult {
    let servers = five().await;
    let (a, b) = (client(&servers).await, client(&servers).await);
    let old = a.request("r").ttl(ms(300)).try_acquire().await?;
    let token = old.token();
    assert_no_keys(&servers, ms(2_000)).await;
    let new = acquire_within(&b, "r", ms(1_000)).await;
    assert!(token < new.token());
    assert_eq!(old.token(), token);
    assert!(matches!(old.extend().await, Err(ExtendError::Lost { .. })));
    assert_eq!(old.token(), token, "a failed extension does not change it");
    new.release().await;
    let newest = acquire_within(&a, "r", ms(1_000)).await;
    assert!(token < newest.token());
    assert_eq!(old.token(), token, "nor does a later grant of the same client");
    Ok(())
}

#[tokio::test]
async fn b55_extending_keeps_the_token_and_a_new_grant_does_not() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire("r").await?;
    let token = guard.token();
    for _ in 0..5 {
        guard.extend().await?;
        assert_eq!(guard.token(), token);
    }
    guard.release().await;
    assert!(token < acquire_within(&redlock, "r", ms(1_000)).await.token());
    Ok(())
}
