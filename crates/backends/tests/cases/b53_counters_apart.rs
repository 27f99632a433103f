//! B53: counters that have drifted apart do not let a token fall.

use super::support::*;
use redlock_core::{AcquireError, FencingToken, Redlock};

async fn set_counters(servers: &redlock_bench::Servers, counters: [u64; 5]) {
    for (server, counter) in servers.iter().zip(counters) {
        server.command(&["SET", "lock:~fence:{lock:r}", &counter.to_string()]).await.expect("the server answers");
    }
}

async fn without_clock_floor(servers: &redlock_bench::Servers) -> Redlock {
    builder(connect(&servers.urls()).await).without_clock_floor().build().unwrap()
}

#[tokio::test]
async fn b53_the_next_majority_knows_the_token_of_the_last() -> TestResult {
    let servers = five().await;
    set_counters(&servers, [100, 1, 1, 1, 1]).await;
    // Two clients, so that neither remembers the other's token.
    let (first, second) = (without_clock_floor(&servers).await, without_clock_floor(&servers).await);

    for held in [3, 4] {
        servers[held].command(&["SET", "lock:r", "in the way", "PX", "60000"]).await?;
    }
    let guard = first.try_acquire("r").await?;
    let first_token = guard.token();
    assert!(guard.report().raised, "the counters disagreed");
    guard.release().await;
    first.settled().await;
    for held in [3, 4] {
        servers[held].command(&["DEL", "lock:r"]).await?;
    }

    for held in [0, 1] {
        servers[held].command(&["SET", "lock:r", "in the way", "PX", "60000"]).await?;
    }
    let second_token = second.try_acquire("r").await?.token();
    assert!(first_token < second_token, "{first_token} < {second_token}");
    assert_eq!(first_token.get(), 101);
    Ok(())
}

/// If the write-back does not reach a majority, there is no grant.
#[tokio::test]
async fn b53_without_a_majority_for_the_token_there_is_no_grant() -> TestResult {
    let servers = redlock_bench::Servers::start(3).await?;
    let mut urls = servers.urls();
    let proxy = Proxy::start(servers[1].address()).await?;
    urls[1] = proxy.url();
    set_counters_of_three(&servers, [100, 1, 1]).await;
    servers[2].kill();
    let nodes = redlock_backends::RedisNode::connect_all(urls.iter().map(String::as_str)).await?;
    let redlock = builder(nodes).without_clock_floor().build()?;
    // The acquire is answered, the raise is not.
    servers[1].command(&["CONFIG", "SET", "maxmemory", "1"]).await?;
    let result = redlock.try_acquire("r").await;
    assert!(result.is_err(), "{result:?}");
    assert!(!matches!(result, Err(AcquireError::Contended(_))), "{result:?}");
    Ok(())
}

async fn set_counters_of_three(servers: &redlock_bench::Servers, counters: [u64; 3]) {
    for (server, counter) in servers.iter().zip(counters) {
        server.command(&["SET", "lock:~fence:{lock:r}", &counter.to_string()]).await.expect("the server answers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b53_tokens_rise_while_a_minority_comes_and_goes() -> TestResult {
    let servers = five().await;
    let clients = [without_clock_floor(&servers).await, client(&servers).await];
    let mut highest: Option<FencingToken> = None;
    let mut seed = 53_u64;
    for round in 0..2_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let picks = [(seed >> 33) as usize % 5, (seed >> 40) as usize % 5];
        if round % 10 == 0 {
            for server in servers.iter() {
                server.thaw()?;
            }
            for pick in picks {
                servers[pick].freeze()?;
            }
        }
        let guard = acquire_within(&clients[round % 2], "r", ms(10_000)).await;
        let token = guard.token();
        assert!(highest.is_none_or(|highest| highest < token), "round {round}: {highest:?} < {token:?}");
        highest = Some(token);
        guard.release().await;
    }
    for server in servers.iter() {
        server.thaw()?;
    }
    Ok(())
}
