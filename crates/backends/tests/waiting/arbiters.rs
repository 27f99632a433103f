//! The node that keeps the line is frozen, killed, restarted empty, or known by two names: order may be lost, nobody is.

use crate::support::*;
use crate::waiter::{lines, stand_in_line, waits};
use redlock_bench::Servers;
use redlock_core::Redlock;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Order, and an interval or so: a second on a machine that has other things to do.
const SOON: Duration = ms(2_000);

/// A holder, three waiters of three clients, and the node whose line they stand in.
async fn prepared(
    servers: &Servers,
) -> Result<(redlock_core::Guard, Vec<JoinHandle<(Instant, redlock_core::Guard)>>, usize), Box<dyn std::error::Error>> {
    let guard = client(servers).await.request("r").ttl(ms(60_000)).try_acquire().await?;
    let mut waiters = Vec::new();
    let mut arbiter = 0;
    for position in 1..=3 {
        waiters.push(waits(&client(servers).await, "r"));
        arbiter = stand_in_line(servers, "r", position).await;
    }
    Ok((guard, waiters, arbiter))
}

/// All three are served, each within bounds.
async fn served(guard: redlock_core::Guard, waiters: Vec<JoinHandle<(Instant, redlock_core::Guard)>>) -> TestResult {
    let began = Instant::now();
    guard.release().await;
    let mut waiting = tokio::task::JoinSet::new();
    for waiter in waiters {
        waiting.spawn(async move {
            let (granted, guard) = waiter.await.unwrap();
            guard.release().await;
            granted
        });
    }
    let last = waiting.join_all().await.into_iter().max().expect("there are three");
    assert!(last - began < 3 * SOON, "{:?} for three", last - began);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_arbiter_keeps_nobody_waiting() -> TestResult {
    let servers = five().await;
    let (guard, waiters, arbiter) = prepared(&servers).await?;
    servers[arbiter].freeze()?;
    served(guard, waiters).await?;
    servers[arbiter].thaw()?;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// The waiters have found a new one by the time the lock becomes free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_arbiter_is_replaced_by_the_next_node() -> TestResult {
    let servers = five().await;
    let (guard, waiters, arbiter) = prepared(&servers).await?;
    servers[arbiter].kill();
    let again = redlock_bench::eventually(ms(5_000), || async {
        let lines = lines(&servers, "r").await;
        if lines.iter().max() == Some(&3) { Ok(lines) } else { Err(format!("in line: {lines:?}")) }
    })
    .await?;
    assert_eq!(again.len(), 4, "the line is on a server that lives");
    served(guard, waiters).await?;
    assert_no_keys_on(&servers.iter().filter(|server| server.is_running()).collect::<Vec<_>>(), ms(5_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_arbiter_that_restarts_empty_loses_the_order_and_nobody() -> TestResult {
    let servers = five().await;
    let (guard, waiters, arbiter) = prepared(&servers).await?;
    servers[arbiter].kill();
    servers[arbiter].restart().await?;
    served(guard, waiters).await?;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// One client has the nodes in another order and by other names; both stand in one line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_know_the_nodes_by_other_names_stand_in_one_line() -> TestResult {
    let servers = five().await;
    let guard = client(&servers).await.try_acquire("r").await?;
    let mut urls: Vec<String> = servers.urls().iter().map(|url| url.replace("127.0.0.1", "localhost")).collect();
    urls.reverse();
    let elsewhere = builder(connect(&urls).await).build()?;
    let (one, two) = (waits(&client(&servers).await, "r"), waits(&elsewhere, "r"));
    // One that could not subscribe at once stands on the next node for a moment.
    redlock_bench::eventually(ms(10_000), || async {
        let lines = lines(&servers, "r").await;
        if lines.iter().max() == Some(&2) { Ok(()) } else { Err(format!("in line: {lines:?}")) }
    })
    .await?;
    served(guard, vec![one, two]).await
}

/// So many hand-overs between two clients that wait for each other; the longest of them.
async fn hand_overs(clients: &[Redlock; 2], count: usize) -> Duration {
    let mut guard = acquire_within(&clients[0], "r", ms(10_000)).await;
    let mut longest = Duration::ZERO;
    for number in 0..count {
        let next = waits(&clients[(number + 1) % 2], "r");
        tokio::time::sleep(ms(20)).await;
        let released = Instant::now();
        guard.release().await;
        let (granted, next) = next.await.unwrap();
        longest = longest.max(granted.saturating_duration_since(released));
        guard = next;
    }
    guard.release().await;
    longest
}

/// B09 for waiters: two nodes that accept and never answer, whichever they are, stall no hand-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b09_hand_overs_go_on_while_two_nodes_are_frozen() -> TestResult {
    let servers = five().await;
    let clients = [client(&servers).await, client(&servers).await];
    for frozen in [[0, 1], [2, 3], [4, 0]] {
        for server in frozen {
            servers[server].freeze()?;
        }
        let longest = hand_overs(&clients, 20).await;
        assert!(longest < SOON, "{frozen:?} frozen: {longest:?}");
        for server in frozen {
            servers[server].thaw()?;
        }
    }
    assert_no_keys(&servers, ms(10_000)).await;
    Ok(())
}

/// B39 for waiters: where the arbiter may be behind a port that does not speak, or to which nobody can connect, waiting costs
/// no more than asking does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b39_hand_overs_go_on_with_ports_that_do_not_speak() -> TestResult {
    let servers = five().await;
    for mute in [[0, 1], [2, 3]] {
        let silent = Proxy::start(servers[mute[0]].address()).await?;
        silent.set(redlock_bench::proxy::Mode::Silent).await?;
        let deaf = redlock_bench::DeafPort::open().await?;
        let mut urls = servers.urls();
        urls[mute[0]] = silent.url();
        urls[mute[1]] = format!("redis://{}", deaf.address());
        let open = || redlock_backends::RedisNode::open_all(urls.iter().map(String::as_str));
        let clients = [builder(open()?).build()?, builder(open()?).build()?];
        let longest = hand_overs(&clients, 20).await;
        assert!(longest < SOON, "{mute:?} do not speak: {longest:?}");
        let opened = silent.connections();
        assert!(opened < 200, "{opened} connections to a port that does not speak");
    }
    Ok(())
}
