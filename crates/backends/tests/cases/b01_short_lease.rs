//! B01: a short lease gives a grant whose validity is sound, or a typed error; never a panic or a huge number.

use super::support::*;
use redlock_bench::proxy::{Lane, Mode};
use redlock_core::{AcquireError, Guard, SettingsError};

async fn check(redlock: &redlock_core::Redlock, ttl: u64) -> Option<Guard> {
    let guard = match redlock.request("r").ttl(ms(ttl)).try_acquire().await {
        Ok(guard) => guard,
        Err(AcquireError::Invalid(SettingsError::Ttl(_) | SettingsError::TtlTooShort { .. })) => {
            assert!(ttl <= 10, "a ttl of {ttl} ms is long enough");
            return None;
        }
        // A busy machine may take longer than a lease of a few milliseconds.
        Err(AcquireError::TooSlow { .. } | AcquireError::Unavailable(_) | AcquireError::Contended(_)) => return None,
        Err(other) => panic!("ttl {ttl}: {}", chain(&other)),
    };
    assert!(guard.remaining() < ms(ttl), "a validity never reaches the ttl");
    Some(guard)
}

#[tokio::test]
async fn b01_a_short_lease_is_granted_soundly_or_refused_with_a_type() -> TestResult {
    let servers = five().await;
    // Its per-node deadline follows the ttl.
    let redlock = redlock_core::Redlock::builder().nodes(connect(&servers.urls()).await).build()?;
    let mut granted = 0;
    for ttl in [0, 1, 2, 3, 5, 10, 50, 50, 50] {
        if let Some(guard) = check(&redlock, ttl).await {
            granted += 1;
            guard.release().await;
        }
        redlock.settled().await;
    }
    assert!(0 < granted, "a lease of 50 ms can be had on loopback");
    assert_no_keys(&servers, ms(200)).await;
    Ok(())
}

#[tokio::test]
async fn b01_a_short_lease_with_a_slow_node_too() -> TestResult {
    let servers = five().await;
    let proxy = Proxy::start(servers[4].address()).await?;
    proxy.set(Mode::Relay { requests: Lane::Delay(ms(20)), replies: Lane::Pass }).await?;
    let mut urls = servers.urls();
    urls[4] = proxy.url();
    let redlock = redlock_core::Redlock::builder().nodes(connect(&urls).await).build()?;
    for ttl in [0, 1, 2, 3, 5, 10, 50, 50, 50] {
        drop(check(&redlock, ttl).await);
        redlock.settled().await;
    }
    assert_no_keys(&servers, ms(200)).await;
    Ok(())
}
