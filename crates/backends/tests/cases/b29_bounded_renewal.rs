//! B29: nobody is kept alive by the watchdog who is dead, stuck, or has been forgotten.

use super::support::*;
use redlock_core::{Guard, KeepAlive, LossReason, Redlock};

async fn kept(redlock: &Redlock, max_hold: u64) -> Guard {
    let guard = redlock.request("r").ttl(ms(1_500)).try_acquire().await.unwrap();
    redlock.settled().await;
    guard.keep_alive(KeepAlive::default().max_hold(ms(max_hold)));
    guard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b29_a_worker_that_panics_or_is_aborted_gives_its_lock_back() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;

    let guard = kept(&redlock, 60_000).await;
    let mut work = tokio::task::JoinSet::new();
    work.spawn(async move {
        let _guard = guard;
        panic!("the work fails");
    });
    assert!(work.join_next().await.expect("one task").is_err());
    assert_no_keys(&servers, ms(1_000)).await;

    let guard = kept(&redlock, 60_000).await;
    let mut work = tokio::task::JoinSet::new();
    work.spawn(async move {
        let _guard = guard;
        std::future::pending::<()>().await;
    });
    work.shutdown().await;
    assert_no_keys(&servers, ms(1_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b29_a_forgotten_guard_ends_with_the_ceiling() -> TestResult {
    let servers = five().await;
    let (redlock, rival) = (client(&servers).await, client(&servers).await);
    std::mem::forget(kept(&redlock, 2_000).await);
    tokio::time::sleep(ms(1_700)).await;
    assert!(is_contended(&rival.try_acquire("r").await), "renewed beyond its first ttl");
    acquire_within(&rival, "r", ms(8_000)).await.release().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b29_a_worker_that_is_stuck_is_told_at_the_ceiling_and_others_get_in() -> TestResult {
    let servers = five().await;
    let (redlock, rival) = (client(&servers).await, client(&servers).await);
    let guard = kept(&redlock, 2_000).await;
    let lost = guard.lost_token();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    // Holds the guard and never looks at it until it is told to stop.
    let stuck = std::thread::spawn(move || {
        let _ = stopped.recv();
        guard
    });
    let (took, ()) = timed(lost.cancelled()).await;
    assert!(ms(1_500) < took && took < ms(10_000), "{took:?}");
    acquire_within(&rival, "r", ms(8_000)).await.release().await;
    drop(stop);
    let guard = stuck.join().expect("no panic");
    assert_eq!(guard.lost().await, LossReason::HeldTooLong { max_hold: ms(2_000) });
    Ok(())
}
