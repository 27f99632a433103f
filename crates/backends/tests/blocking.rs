//! The façade for programs without async, from everywhere a program may call it: outside of any runtime, inside one with
//! many threads, and inside one with a single thread, which the call then blocks.

#[path = "cases/support.rs"]
#[allow(dead_code, unused_imports, reason = "what the cases share; not all of it is needed here")]
mod support;

use self::support::*;
use redlock_backends::RedisNode;
use redlock_bench::Servers;
use redlock_core::blocking::Redlock;
use redlock_core::{AcquireError, HoldState, KeepAlive, LossReason, ReleaseOutcome, WorkError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = ms(3_000);

/// Opened, not connected: connections belong to the runtime on which they are made, here the façade's own.
fn client(urls: &[String]) -> Redlock {
    let nodes = RedisNode::open_all(urls.iter().map(String::as_str)).expect("the URLs are right");
    Redlock::start(builder(nodes).ttl(TTL).node_timeout(TTL / 10)).expect("the settings are right")
}

#[expect(clippy::disallowed_methods, reason = "a program that blocks its thread is what this is about")]
fn block(duration: Duration) {
    std::thread::sleep(duration);
}

/// The servers, and the runtime that started them and that looks at them.
fn servers() -> (Runtime, Servers) {
    let bench = Runtime::new().unwrap();
    let servers = bench.block_on(five());
    (bench, servers)
}

/// Everything that the façade can do, on whichever thread this is called.
fn everything(urls: &[String]) {
    let (redlock, rival) = (client(urls), client(urls));
    let guard = redlock.acquire("r").unwrap();
    assert!(rival.request("other").wait(ms(20_000)).acquire().is_ok(), "the rival is connected");
    assert!(guard.is_held() && guard.remaining() < TTL);
    assert!(matches!(rival.try_acquire("r"), Err(AcquireError::Contended(_))));
    assert!(guard.extend().unwrap() < TTL);

    // The signal is asked for in whatever context this is, and must not hang on it.
    let lost = guard.held().lost_token();
    guard.keep_alive(KeepAlive::default());
    block(TTL + ms(1_000));
    assert!(matches!(guard.state(), HoldState::Held { .. }), "kept alive while this thread is blocked: {guard:?}");
    assert!(!lost.is_cancelled());
    assert!(matches!(rival.try_acquire("r"), Err(AcquireError::Contended(_))));
    let token = guard.token();
    assert!(matches!(guard.release().outcome, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum));

    let next = rival.with_lock("r", |held| held.token()).unwrap();
    assert!(token < next);

    // A signal without keeping alive.
    let guard = redlock.acquire("r").unwrap();
    let lost = guard.held().lost_token();
    for _ in 0..600 {
        if lost.is_cancelled() {
            break;
        }
        block(ms(20));
    }
    assert!(lost.is_cancelled(), "the end of the validity is not announced");
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Expired));
    drop(guard);
    assert!(redlock.settled(ms(10_000)));
    assert!(rival.settled(ms(10_000)));
}

#[test]
fn outside_of_any_runtime() {
    let (bench, servers) = servers();
    everything(&servers.urls());
    bench.block_on(assert_no_keys(&servers, ms(5_000)));
}

#[test]
fn inside_a_runtime_with_many_threads() {
    let (bench, servers) = servers();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let urls = servers.urls();
    runtime.block_on(async { everything(&urls) });
    // And on one of its own threads, as code in a task is.
    let urls = servers.urls();
    runtime.block_on(async { runtime.spawn(async move { everything(&urls) }).await }).unwrap();
    bench.block_on(assert_no_keys(&servers, ms(5_000)));
}

#[test]
fn inside_a_runtime_with_a_single_thread() {
    let (bench, servers) = servers();
    let urls = servers.urls();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { everything(&urls) });
    bench.block_on(assert_no_keys(&servers, ms(5_000)));
}

/// The program is about to end: nobody waits, and the lock is given back all the same.
#[test]
fn a_guard_that_is_dropped_last_gives_its_lock_back() {
    let (bench, servers) = servers();
    let redlock = client(&servers.urls());
    let guard = redlock.request("r").ttl(ms(60_000)).acquire().unwrap();
    drop(redlock);
    // The client is gone, and lives on in the guard.
    assert!(guard.extend().is_ok());
    assert!(nodes_that_hold(&bench, &servers) >= 3);
    drop(guard);
    // Far less than the ttl: the background runtime lingers for two seconds.
    bench.block_on(assert_no_keys(&servers, ms(10_000)));
}

fn nodes_that_hold(bench: &Runtime, servers: &Servers) -> usize {
    bench.block_on(holders(servers, "r")).into_iter().flatten().count()
}

#[test]
fn a_client_may_be_made_and_dropped_in_any_context() {
    let (bench, servers) = servers();
    let urls = servers.urls();
    let single = Builder::new_current_thread().enable_all().build().unwrap();
    for runtime in [&bench, &single] {
        runtime.block_on(async {
            let unused = client(&urls);
            drop(unused);
            let redlock = client(&urls);
            let guard = redlock.request("r").ttl(ms(60_000)).acquire().unwrap();
            drop(redlock.clone());
            drop(redlock);
            drop(guard);
        });
        bench.block_on(assert_no_keys(&servers, ms(10_000)));
    }
    // While a task is cancelled together with its runtime.
    let doomed = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let redlock = client(&urls);
    let guard = redlock.request("r").ttl(ms(60_000)).acquire().unwrap();
    doomed.spawn(async move {
        let _both = (redlock, guard);
        std::future::pending::<()>().await;
    });
    drop(doomed);
    bench.block_on(assert_no_keys(&servers, ms(10_000)));
}

#[test]
fn work_that_panics_gives_its_lock_back_and_the_client_goes_on() {
    let (bench, servers) = servers();
    let redlock = client(&servers.urls());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        redlock.with_lock("r", |_held| panic!("the work fails"))
    }));
    assert!(panicked.is_err());
    bench.block_on(assert_no_keys(&servers, ms(2_500)));
    assert_eq!(redlock.with_lock("r", |_held| 42).unwrap(), 42);
}

#[test]
fn work_that_lost_its_lock_is_told_and_gets_an_error() {
    let (bench, servers) = servers();
    let redlock = client(&servers.urls());
    let result = redlock.with_lock("r", |held| {
        bench.block_on(async {
            for server in servers.iter() {
                server.command(&["DEL", "lock:r"]).await.unwrap();
            }
            tokio::time::timeout(ms(20_000), held.lost()).await.expect("told");
        });
        assert!(!held.is_held());
        42
    });
    assert!(matches!(result, Err(WorkError::Lost { .. })), "{result:?}");
    // So does work that looked away.
    let result = redlock.with_lock("r", |_held| {
        bench.block_on(async {
            for server in servers.iter() {
                server.command(&["DEL", "lock:r"]).await.unwrap();
            }
        });
        42
    });
    assert!(matches!(result, Err(WorkError::Lost { .. })), "{result:?}");
}

/// Many threads, one client: one at a time.
#[test]
fn threads_exclude_each_other() {
    let (bench, servers) = servers();
    let redlock = client(&servers.urls());
    let inside = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    let guard = redlock.request("r").wait(ms(60_000)).acquire().unwrap();
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    block(ms(2));
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    guard.release();
                }
            });
        }
    });
    bench.block_on(assert_no_keys(&servers, ms(5_000)));
}
