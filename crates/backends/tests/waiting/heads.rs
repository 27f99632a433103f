//! Whoever stands in front and is killed, frozen or out of time does not delay those behind by more than a second.

use crate::support::*;
use crate::waiter::{Elsewhere, RETRY, begin, client_elsewhere, stand_in_line, waits};
use redlock_core::Retry;
use std::time::Duration;

const WAITER: &str = "REDLOCK_TEST_WAITER";

/// What is promised is a second, which the tests in virtual time check; this machine may have other things to do.
const A_SECOND: Duration = ms(2_000);

/// Waits for the lock in a process of its own, which is killed or frozen while it does.
async fn wait_elsewhere(urls: &str) -> TestResult {
    let redlock = client_elsewhere(urls).await;
    redlock.request("r").retry(Retry { wait: ms(600_000), ..RETRY }).acquire().await?.release().await;
    redlock.settled().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_killed_in_front_of_another_delay_it_by_less_than_a_second() -> TestResult {
    if let Ok(urls) = std::env::var(WAITER) {
        return wait_elsewhere(&urls).await;
    }
    let test = "heads::waiters_that_are_killed_in_front_of_another_delay_it_by_less_than_a_second";
    let servers = five().await;
    let (holder, next) = (client(&servers).await, client(&servers).await);
    let guard = holder.try_acquire("r").await?;
    let mut waiters = Vec::new();
    for position in 1..=3 {
        waiters.push(Elsewhere::start(&servers, test, WAITER));
        stand_in_line(&servers, "r", position).await;
    }
    let next = waits(&next, "r");
    stand_in_line(&servers, "r", 4).await;
    for waiter in &waiters {
        waiter.process.kill();
    }
    let released = tokio::time::Instant::now();
    guard.release().await;
    let (granted, guard) = next.await?;
    assert!(granted - released < A_SECOND, "{:?}", granted - released);
    guard.release().await;
    stand_in_line(&servers, "r", 0).await;
    Ok(())
}

/// They are subscribed, so the server takes them for listeners; they never come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_are_frozen_in_front_of_another_delay_it_by_less_than_a_second() -> TestResult {
    if let Ok(urls) = std::env::var(WAITER) {
        return wait_elsewhere(&urls).await;
    }
    let test = "heads::waiters_that_are_frozen_in_front_of_another_delay_it_by_less_than_a_second";
    let servers = five().await;
    let (holder, next) = (client(&servers).await, client(&servers).await);
    let guard = holder.try_acquire("r").await?;
    let mut waiters = Vec::new();
    for position in 1..=3 {
        waiters.push(Elsewhere::start(&servers, test, WAITER));
        stand_in_line(&servers, "r", position).await;
    }
    let next = waits(&next, "r");
    stand_in_line(&servers, "r", 4).await;
    for waiter in &waiters {
        waiter.process.freeze()?;
    }
    let released = tokio::time::Instant::now();
    guard.release().await;
    let (granted, guard) = next.await?;
    assert!(granted - released < A_SECOND, "{:?}", granted - released);

    // What the frozen ones ask for when they go on is undone: each is granted the lock and ends.
    guard.release().await;
    for waiter in &waiters {
        waiter.process.thaw()?;
    }
    stand_in_line(&servers, "r", 0).await;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_whose_time_is_over_in_front_of_another_do_not_delay_it() -> TestResult {
    let servers = five().await;
    let (holder, next) = (client(&servers).await, client(&servers).await);
    let guard = holder.try_acquire("r").await?;
    let mut impatient = Vec::new();
    for position in 1..=3 {
        let redlock = client(&servers).await;
        impatient.push(begin(async move {
            let result = redlock.request("r").retry(Retry { wait: ms(1_500), ..RETRY }).acquire().await;
            assert!(matches!(result, Err(redlock_core::AcquireError::TimedOut { .. })), "{result:?}");
        }));
        stand_in_line(&servers, "r", position).await;
    }
    let next = waits(&next, "r");
    stand_in_line(&servers, "r", 4).await;
    for waiter in impatient {
        waiter.await?;
    }
    stand_in_line(&servers, "r", 1).await;
    let released = tokio::time::Instant::now();
    guard.release().await;
    let (granted, guard) = next.await?;
    assert!(granted - released < A_SECOND, "{:?}", granted - released);
    guard.release().await;
    Ok(())
}
