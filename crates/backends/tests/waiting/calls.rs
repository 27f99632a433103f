//! The connections on which calls are heard.

use crate::support::*;
use crate::waiter::{stand_in_line, waits};
use tokio::time::{Instant, sleep};

/// A server, or something before it, that ends each subscription as soon as it stands is not asked for the next one in a busy
/// loop; and the waiter gets the lock all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_end_at_once_are_not_renewed_in_a_busy_loop() -> TestResult {
    let servers = five().await;
    let guard = client(&servers).await.request("r").ttl(ms(60_000)).try_acquire().await?;
    let waiter = waits(&client(&servers).await, "r");
    let arbiter = &servers[stand_in_line(&servers, "r", 1).await];
    let connections =
        async || -> u64 { arbiter.probe().info_field("total_connections_received").await.unwrap().parse().unwrap() };
    let (before, began) = (connections().await, Instant::now());
    let mut killer = arbiter.probe();
    while began.elapsed() < ms(2_000) {
        let killed = killer.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await?;
        assert!(!killed.is_error(), "{killed:?}");
        sleep(ms(1)).await;
    }
    let made = connections().await - before;
    let seconds = began.elapsed().as_secs_f64();
    // One in twenty milliseconds, and the two of this test.
    assert!(f64::from(u32::try_from(made)?) <= 60.0 * seconds, "{made} connections in {seconds} s");
    let released = Instant::now();
    guard.release().await;
    let (granted, guard) = waiter.await?;
    assert!(granted - released < ms(2_000), "{:?}", granted - released);
    guard.release().await;
    Ok(())
}
