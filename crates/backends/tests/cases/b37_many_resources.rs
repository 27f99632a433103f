//! B37: several resources in any order, with duplicates, all or none.

use super::support::*;
use redlock_core::{AcquireError, Redlock, Retry};
use std::time::Duration;

async fn contend(redlock: Redlock, resources: [&str; 2], rounds: usize) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..rounds {
        let retry = Retry { wait: ms(10_000), delay: ms(1), jitter: ms(3), ..Retry::default() };
        let (took, guard) = timed(redlock.request(resources).ttl(ms(2_000)).retry(retry).acquire()).await;
        let guard = guard.unwrap_or_else(|error| panic!("{}", chain(&error)));
        longest = longest.max(took);
        tokio::time::sleep(ms(1)).await;
        guard.release().await;
        // The other one's turn: fairness is not what this case is about.
        tokio::time::sleep(ms(2)).await;
    }
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b37_opposite_orders_do_not_dead_lock() -> TestResult {
    let servers = five().await;
    let (a, b) = (client(&servers).await, client(&servers).await);
    let (there, back) = tokio::join!(contend(a, ["x", "y"], 300), contend(b, ["y", "x"], 300));
    assert!(there.max(back) < ms(1_500), "nobody waits for a ttl of 2 s to pass: {there:?}, {back:?}");
    Ok(())
}

#[tokio::test]
async fn b37_a_name_given_twice_does_not_wait_for_itself() -> TestResult {
    let servers = five().await;
    let guard = client(&servers).await.try_acquire(["x", "x"]).await?;
    assert_eq!(guard.resources().len(), 1);
    Ok(())
}

#[tokio::test]
async fn b37_a_set_is_taken_as_a_whole_or_not_at_all() -> TestResult {
    let servers = five().await;
    let (rival, redlock) = (client(&servers).await, client(&servers).await);
    let z = rival.try_acquire("z").await?;
    let result = redlock.request(["x", "y", "z"]).wait(ms(200)).acquire().await;
    assert!(matches!(result, Err(AcquireError::TimedOut { .. })), "{result:?}");
    for free in ["lock:x", "lock:y"] {
        for server in servers.iter() {
            assert_eq!(server.probe().get(free).await?, None, "{free}");
        }
    }
    z.release().await;
    // One token for all of them, above each one's earlier ones.
    let earlier = [redlock.try_acquire("x").await?.token(), acquire_within(&redlock, "y", ms(500)).await.token()];
    let guard = {
        redlock.settled().await;
        acquire_within_all(&redlock, ["x", "y", "z"]).await
    };
    assert!(earlier.iter().all(|token| *token < guard.token()));
    Ok(())
}

async fn acquire_within_all(redlock: &Redlock, resources: [&str; 3]) -> redlock_core::Guard {
    redlock.request(resources).wait(ms(1_000)).acquire().await.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// The loss of any one member is the loss of the whole.
#[tokio::test]
async fn b37_losing_one_member_loses_the_set() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire(["x", "y", "z"]).await?;
    // On all five, lest a late acquire brings back what is deleted here.
    redlock.settled().await;
    for server in servers.iter().take(3) {
        server.command(&["DEL", "lock:y"]).await?;
    }
    let result = guard.extend().await;
    assert!(matches!(result, Err(redlock_core::ExtendError::Lost { .. })), "{result:?}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    drop(guard);
    assert_no_keys(&servers, ms(500)).await;
    Ok(())
}
