//! When all is done there is no line on any node, and nobody listens any more.

use crate::support::*;
use crate::waiter::{RETRY, stand_in_line, waits};
use redlock_bench::{Servers, eventually};
use redlock_core::{Redlock, Retry};
use std::time::Duration;

/// Longer than a subscription that nobody needs is kept.
const KEPT_AT_MOST: Duration = ms(12_000);

async fn subscriptions(servers: &Servers) -> usize {
    let mut count = 0;
    for server in servers.iter() {
        let answer = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).await.expect("the server answers");
        count += answer.into_text("CLIENT LIST").expect("a list").lines().count();
    }
    count
}

async fn assert_no_subscriptions(servers: &Servers, within: Duration) {
    eventually(within, || async {
        let count = subscriptions(servers).await;
        if count == 0 { Ok(()) } else { Err(format!("{count} subscriptions")) }
    })
    .await
    .unwrap();
}

async fn assert_no_lines(servers: &Servers) {
    eventually(ms(5_000), || async {
        let mut keys = Vec::new();
        for server in servers.iter() {
            keys.extend(server.probe().keys("*~line:*").await.map_err(|error| error.to_string())?);
        }
        if keys.is_empty() { Ok(()) } else { Err(format!("{keys:?}")) }
    })
    .await
    .unwrap();
}

/// Two clients of whose waiters some were served, some cancelled, and some gave up.
async fn used(servers: &Servers) -> Result<[Redlock; 2], Box<dyn std::error::Error>> {
    let clients = [client(servers).await, client(servers).await];
    let guard = clients[0].try_acquire(["x", "y"]).await?;
    let served = [waits(&clients[1], "x"), waits(&clients[1], "y")];
    let cancelled = waits(&clients[0], "x");
    let out_of_time = clients[1].request(["x", "y"]).retry(Retry { wait: ms(500), ..RETRY }).acquire().await;
    assert!(out_of_time.is_err());
    stand_in_line(servers, "x", 2).await;
    assert_ne!(subscriptions(servers).await, 0, "whoever waits listens");
    cancelled.abort();
    guard.release().await;
    for waiter in served {
        waiter.await?.1.release().await;
    }
    assert_no_lines(servers).await;
    Ok(clients)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens_once_nobody_waits() -> TestResult {
    let servers = five().await;
    let clients = used(&servers).await?;
    assert_no_subscriptions(&servers, KEPT_AT_MOST).await;
    // And waiting works again afterwards.
    let guard = clients[0].try_acquire("x").await?;
    let next = waits(&clients[1], "x");
    stand_in_line(&servers, "x", 1).await;
    guard.release().await;
    next.await?.1.release().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_listens_once_the_clients_are_gone() -> TestResult {
    let servers = five().await;
    drop(used(&servers).await?);
    assert_no_subscriptions(&servers, ms(5_000)).await;
    Ok(())
}

/// Also when the runtime in which somebody waited is gone, and another one goes on.
#[test]
fn a_runtime_that_ends_with_waiters_leaves_nothing_and_the_client_waits_again() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let outer = runtime();
    let servers = outer.block_on(five());
    let redlock = outer.block_on(client(&servers));
    let holder = outer.block_on(client(&servers));
    let guard = outer.block_on(holder.try_acquire("x")).unwrap();
    let inner = runtime();
    let waiting = {
        let _inside = inner.enter();
        waits(&redlock, "x")
    };
    outer.block_on(stand_in_line(&servers, "x", 1));
    inner.shutdown_timeout(ms(1_000));
    drop(waiting);
    outer.block_on(async {
        let next = waits(&redlock, "x");
        tokio::time::sleep(ms(500)).await;
        let released = tokio::time::Instant::now();
        guard.release().await;
        let (granted, guard) = next.await.unwrap();
        assert!(granted - released < ms(2_000), "{:?}", granted - released);
        guard.release().await;
        assert_no_lines(&servers).await;
    });
}
