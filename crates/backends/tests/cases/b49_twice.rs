//! B49: ownership is per attempt; the same process asking again is contended, at once.

use super::support::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b49_the_same_process_excludes_itself() -> TestResult {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire("r").await?;

    let (took, again) = timed(redlock.try_acquire("r")).await;
    assert!(is_contended(&again), "{again:?}");
    assert!(took < ms(300), "{took:?}");

    let clone = redlock.clone();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(async move { clone.try_acquire("r").await });
    let from_another_task = tasks.join_next().await.expect("one task")?;
    assert!(is_contended(&from_another_task));

    let another_client = client(&servers).await;
    assert!(is_contended(&another_client.try_acquire("r").await));

    guard.release().await;
    let next = acquire_within(&another_client, "r", ms(1_000)).await;
    assert!(is_contended(&redlock.try_acquire("r").await));
    next.release().await;
    Ok(())
}
