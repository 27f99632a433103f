//! B17: what a cancelled caller had begun is undone by somebody who is not cancelled.

use super::support::*;
use redlock_bench::proxy::{Lane, Mode};
use redlock_core::Redlock;

struct Slow {
    servers: redlock_bench::Servers,
    _proxies: Vec<Proxy>,
    redlock: Redlock,
}

async fn slowed_by(delay: u64) -> Slow {
    let servers = five().await;
    let mut proxies = Vec::new();
    for server in servers.iter() {
        let proxy = Proxy::start(server.address()).await.unwrap();
        proxies.push(proxy);
    }
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let redlock = builder(connect(&urls).await).ttl(ms(30_000)).build().unwrap();
    for proxy in &proxies {
        proxy.set(Mode::Relay { requests: Lane::Delay(ms(delay)), replies: Lane::Pass }).await.unwrap();
    }
    Slow { servers, _proxies: proxies, redlock }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b17_a_dropped_acquire_leaves_no_key() -> TestResult {
    let slow = slowed_by(2).await;
    for round in 0..500_u64 {
        let resource = format!("r{}", round % 7);
        let patience = std::time::Duration::from_micros(round * 12);
        if let Ok(Ok(guard)) = tokio::time::timeout(patience, slow.redlock.try_acquire(&resource)).await {
            drop(guard);
        }
        if round % 50 == 49 {
            assert_no_keys(&slow.servers, ms(1_000)).await;
            let guard = slow.redlock.try_acquire(&resource).await.map_err(|error| chain(&error))?;
            guard.release().await;
        }
    }
    slow.redlock.settled().await;
    assert_no_keys(&slow.servers, ms(1_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b17_a_dropped_release_is_carried_out() -> TestResult {
    let slow = slowed_by(2).await;
    for round in 0..100_u64 {
        let guard = slow.redlock.try_acquire("r").await.map_err(|error| chain(&error))?;
        let patience = std::time::Duration::from_micros(round * 60);
        let _ = tokio::time::timeout(patience, guard.release()).await;
        assert_no_keys(&slow.servers, ms(1_000)).await;
    }
    Ok(())
}

/// Aborting the task that holds the guard is dropping it too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b17_an_aborted_holder_leaves_no_key() -> TestResult {
    let slow = slowed_by(1).await;
    for _ in 0..20 {
        let guard = slow.redlock.try_acquire("r").await.map_err(|error| chain(&error))?;
        let mut work = tokio::task::JoinSet::new();
        work.spawn(async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        });
        work.shutdown().await;
        assert_no_keys(&slow.servers, ms(1_000)).await;
    }
    Ok(())
}
