//! A program that ends with a guard in hand, by an error on its way out of `main` say, leaves no lock.

use crate::support::*;
use redlock_bench::eventually;
use tokio::runtime::{Builder, Runtime};

/// The runtime ends with the last word of its only task: nothing runs in the background any more.
fn a_guard_is_dropped_and_then_the_runtime(runtime: Runtime) -> TestResult {
    let looks = Builder::new_current_thread().enable_all().build()?;
    let servers = looks.block_on(five());
    let ended: TestResult = runtime.block_on(async {
        let nodes = connect(&servers.urls()).await;
        let redlock = builder(nodes).ttl(ms(3_600_000)).node_timeout(ms(2_000)).build()?;
        let _guard = acquire_within(&redlock, "r", ms(20_000)).await;
        // All five have said so, and nothing else is under way.
        redlock.settled().await;
        Err("something else went wrong".into())
    });
    runtime.shutdown_background();
    assert!(ended.is_err());
    looks.block_on(eventually(ms(10_000), || async {
        let held = holders(&servers, "r").await.into_iter().flatten().count();
        if held == 0 { Ok(()) } else { Err(format!("{held} nodes hold it")) }
    }))?;
    Ok(())
}

#[test]
fn with_a_single_thread() -> TestResult {
    a_guard_is_dropped_and_then_the_runtime(Builder::new_current_thread().enable_all().build()?)
}

#[test]
fn with_many_threads() -> TestResult {
    a_guard_is_dropped_and_then_the_runtime(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}
