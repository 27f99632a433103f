//! B21: dropping a guard works from every context, and never blocks, panics or aborts.

use super::support::*;
use redlock_core::{Guard, Redlock};
use tokio::runtime::{Builder, Runtime};

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Drops the guard and says whether that was quick.
fn drop_quickly(guard: Guard) {
    #[expect(clippy::disallowed_methods, reason = "the drop is measured outside any runtime too")]
    let began = std::time::Instant::now();
    drop(guard);
    assert!(began.elapsed() < ms(100), "{:?}", began.elapsed());
}

async fn held() -> (redlock_bench::Servers, Redlock, Guard) {
    let servers = five().await;
    let redlock = client(&servers).await;
    let guard = redlock.try_acquire("r").await.unwrap();
    (servers, redlock, guard)
}

#[test]
fn b21_in_a_multi_thread_runtime() {
    multi_thread().block_on(async {
        let (servers, _redlock, guard) = held().await;
        drop_quickly(guard);
        assert_no_keys(&servers, ms(500)).await;
    });
}

#[test]
fn b21_in_a_current_thread_runtime() {
    current_thread().block_on(async {
        let (servers, _redlock, guard) = held().await;
        drop_quickly(guard);
        assert_no_keys(&servers, ms(500)).await;
    });
}

#[test]
fn b21_on_a_plain_thread_while_the_runtime_runs() {
    let runtime = multi_thread();
    let (servers, _redlock, guard) = runtime.block_on(held());
    std::thread::spawn(move || drop_quickly(guard)).join().expect("no panic");
    runtime.block_on(assert_no_keys(&servers, ms(500)));
}

/// Nothing can be sent any more; the lock is left to its ttl, as documented.
#[test]
fn b21_on_a_plain_thread_after_the_runtime_was_shut_down() {
    let runtime = multi_thread();
    let (servers, redlock, guard) = runtime.block_on(held());
    runtime.shutdown_timeout(ms(1_000));
    std::thread::spawn(move || drop_quickly(guard)).join().expect("no panic");
    // Unless somebody uses the client on another runtime: then what was left to do is done.
    current_thread().block_on(async {
        redlock.settled().await;
        assert_no_keys(&servers, ms(1_000)).await;
    });
}

#[test]
fn b21_while_unwinding_from_a_panic() {
    let runtime = multi_thread();
    let (servers, _redlock, guard) = runtime.block_on(held());
    let work = runtime.spawn(async move {
        let _guard = guard;
        panic!("the work fails");
    });
    assert!(runtime.block_on(work).is_err());
    runtime.block_on(assert_no_keys(&servers, ms(500)));
}

#[test]
fn b21_inside_block_on_of_another_runtime() {
    let runtime = multi_thread();
    let (servers, _redlock, guard) = runtime.block_on(held());
    std::thread::spawn(move || current_thread().block_on(async { drop_quickly(guard) })).join().expect("no panic");
    runtime.block_on(assert_no_keys(&servers, ms(500)));
}

/// What `main` does when it ends: guard, then client, then runtime.
#[test]
fn b21_at_the_very_end_of_main() {
    let servers = {
        let runtime = multi_thread();
        let (servers, redlock, guard) = runtime.block_on(held());
        drop_quickly(guard);
        drop(redlock);
        drop(runtime);
        servers
    };
    // Gone or left to its ttl: both are right, an error or a key without expiry is not.
    current_thread().block_on(async {
        for server in servers.iter() {
            assert_ne!(server.probe().pttl("lock:r").await.unwrap(), -1);
        }
    });
}

#[tokio::test]
async fn b21_the_client_may_go_before_its_guard() -> TestResult {
    let (servers, redlock, guard) = held().await;
    drop(redlock);
    drop_quickly(guard);
    assert_no_keys(&servers, ms(500)).await;
    Ok(())
}
