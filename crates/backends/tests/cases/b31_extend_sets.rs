//! B31: an extension sets the remaining time, it does not add to it.

use super::support::*;

#[tokio::test]
async fn b31_many_extensions_do_not_grow_the_lease() -> TestResult {
    let servers = five().await;
    let (redlock, rival) = (client(&servers).await, client(&servers).await);
    let guard = redlock.request("r").ttl(ms(1_000)).try_acquire().await?;
    for _ in 0..50 {
        assert!(guard.extend().await? < ms(1_000));
        for server in servers.iter() {
            assert!(server.probe().pttl("lock:r").await? <= 1_000);
        }
    }
    // As a holder that is killed: nobody releases.
    std::mem::forget(guard);
    let (took, next) = timed(acquire_within(&rival, "r", ms(10_000))).await;
    assert!(took < ms(5_000), "{took:?}");
    next.release().await;
    Ok(())
}
