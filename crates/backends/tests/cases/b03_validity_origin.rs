//! B03: validity is counted from the attempt that won, not from the first of many.

use super::support::*;
use redlock_bench::proxy::{Lane, Mode};
use redlock_core::Retry;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b03_a_grant_after_a_wait_has_nearly_its_whole_validity() -> TestResult {
    let servers = five().await;
    let (a, b) = (client(&servers).await, client(&servers).await);
    for round in 0..50 {
        // Long enough for several attempts of B's to fail.
        let held = ms(if round == 0 { 1_500 } else { 60 });
        let guard = a.try_acquire("r").await?;
        let retry = Retry { wait: ms(5_000), delay: ms(20), jitter: ms(5), ..Retry::default() };
        let waiting = b.request("r").ttl(ms(1_000)).retry(retry).acquire();
        let release = async {
            tokio::time::sleep(held).await;
            guard.release().await
        };
        let (granted, _) = tokio::join!(waiting, release);
        let granted = granted?;
        assert!(ms(900) <= granted.remaining(), "round {round}: {:?}", granted.remaining());
        assert!(granted.remaining() < ms(1_000));
        granted.release().await;
    }
    Ok(())
}

#[tokio::test]
async fn b03_the_time_an_attempt_takes_shortens_its_validity() -> TestResult {
    let servers = five().await;
    let mut proxies = Vec::new();
    for server in servers.iter() {
        proxies.push(Proxy::start(server.address()).await?);
    }
    let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let redlock = builder(connect(&urls).await).node_timeout(ms(2_000)).build()?;
    for proxy in &proxies {
        proxy.set(Mode::Relay { requests: Lane::Pass, replies: Lane::Delay(ms(300)) }).await?;
    }
    let (took, guard) = timed(redlock.try_acquire("r")).await;
    let guard = guard?;
    assert!(ms(300) <= took);
    assert!(guard.remaining() <= ms(10_000 - 300), "{:?}", guard.remaining());
    assert!(ms(300) <= guard.report().elapsed);
    guard.release().await;
    Ok(())
}
