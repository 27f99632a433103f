//! Many who start at one instant, and many who wait: who wins, and what it costs.

#![expect(clippy::print_stdout, reason = "the process tells its parent")]

use crate::support::*;
use crate::waiter::{Elsewhere, RETRY, client_elsewhere, stand_in_line};
use redlock_bench::Servers;
use redlock_core::Retry;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const CLIENTS: usize = 10;
const ROUNDS: usize = 300;
const SOON: Duration = ms(500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_of_ten_clients_that_start_at_one_instant_somebody_wins_within_half_a_second() -> TestResult {
    let servers = five().await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let redlock = client(&servers).await;
        acquire_within(&redlock, "warm", ms(5_000)).await.release().await;
        clients.push(redlock);
    }
    let mut won_soon = 0;
    for round in 0..ROUNDS {
        let resource = format!("r{round}");
        let start = std::sync::Arc::new(tokio::sync::Barrier::new(CLIENTS));
        let mut attempts = JoinSet::new();
        for redlock in &clients {
            let (redlock, resource, start) = (redlock.clone(), resource.clone(), start.clone());
            attempts.spawn(async move {
                start.wait().await;
                redlock.request(resource).retry(RETRY).acquire().await
            });
        }
        won_soon += usize::from(timeout(SOON, attempts.join_next()).await.is_ok());
    }
    assert!(ROUNDS * 99 <= won_soon * 100, "{won_soon} of {ROUNDS}");
    for redlock in &clients {
        redlock.settled().await;
    }
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

const CROWD: &str = "REDLOCK_TEST_CROWD";
const WAITERS: u32 = 20;
/// How long they are watched. The lock is held for longer, and what they do in one second they do in any.
const WATCHED: Duration = ms(5_000);

/// One core's twentieth. Code that is not optimised takes several times as long for the same.
const SPENT_AT_MOST: Duration = Duration::from_millis(5_000 / if cfg!(debug_assertions) { 5 } else { 20 });

/// The processor time that this process has used so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

/// Waits twenty times in a process that does nothing else, and says what that cost.
async fn wait_in_a_crowd(urls: &str, clients: u32) -> TestResult {
    let mut waiters = JoinSet::new();
    for _ in 0..clients {
        let redlock = client_elsewhere(urls).await;
        for _ in 0..WAITERS / clients {
            let redlock = redlock.clone();
            waiters.spawn(async move { redlock.request("r").retry(RETRY).acquire().await });
        }
    }
    // Let them come to stand in line first.
    sleep(ms(2_000)).await;
    println!("\nwaiting");
    let before = processor_time();
    sleep(WATCHED).await;
    println!("\nspent {}", (processor_time() - before).as_micros());
    std::future::pending().await
}

/// Processor time and script calls per second, for twenty waiters of so many clients.
async fn cost(test: &str, clients: u32) -> Result<(Duration, f64), Box<dyn std::error::Error>> {
    let servers = five().await;
    let guard = client(&servers).await.request("r").ttl(ms(60_000)).try_acquire().await?;
    let (waiting, _) = Elsewhere::start(&servers, test, CROWD).says("waiting").await;
    stand_in_line(&servers, "r", clients.into()).await;
    let before = scripts(&servers).await;
    let began = tokio::time::Instant::now();
    let (_waiting, spent) = waiting.says("spent").await;
    let calls = scripts(&servers).await - before;
    let per_second = f64::from(u32::try_from(calls)?) / began.elapsed().as_secs_f64();
    drop(guard);
    Ok((Duration::from_micros(spent.parse()?), per_second))
}

async fn scripts(servers: &Servers) -> u64 {
    let mut calls = 0;
    for server in servers.iter() {
        calls += server.probe().command_calls("evalsha").await.expect("the server answers");
    }
    calls
}

/// Each client in line asks the arbiter by itself after four pauses of 50 ms on average, and so five times a second. Each sixth
/// time, or less often, it asks the other four nodes as well, and takes back what it may have asked of two too many: as much
/// again, at most.
const CALLS_PER_CLIENT: f64 = 10.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_clients_that_wait_cost_little() -> TestResult {
    if let Ok(urls) = std::env::var(CROWD) {
        return wait_in_a_crowd(&urls, WAITERS).await;
    }
    let (spent, calls) = cost("crowds::twenty_clients_that_wait_cost_little", WAITERS).await?;
    let documented = CALLS_PER_CLIENT * f64::from(WAITERS);
    assert!(calls <= 1.2 * documented, "{calls} script calls per second, documented {documented}");
    assert!(spent <= SPENT_AT_MOST, "{spent:?} of processor time in {WATCHED:?}; {calls} calls per second");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_tasks_of_one_client_that_wait_cost_as_much_as_one() -> TestResult {
    if let Ok(urls) = std::env::var(CROWD) {
        return wait_in_a_crowd(&urls, 1).await;
    }
    let (spent, calls) = cost("crowds::twenty_tasks_of_one_client_that_wait_cost_as_much_as_one", 1).await?;
    assert!(calls <= 1.5 * CALLS_PER_CLIENT, "{calls} script calls per second, documented {CALLS_PER_CLIENT}");
    assert!(spent <= SPENT_AT_MOST, "{spent:?} of processor time in {WATCHED:?}; {calls} calls per second");
    Ok(())
}

/// Twenty clients are served one after the other, and nobody waits for the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_is_served_one_after_the_other() -> TestResult {
    let servers = five().await;
    let holder = client(&servers).await;
    let guard = holder.request("r").ttl(ms(60_000)).try_acquire().await?;
    let mut waiters = JoinSet::new();
    for _ in 0..WAITERS {
        let redlock = client(&servers).await;
        waiters.spawn(async move {
            let retry = Retry { wait: ms(60_000), ..RETRY };
            let guard = redlock.request("r").ttl(ms(60_000)).retry(retry).acquire().await.unwrap();
            guard.release().await;
            redlock.settled().await;
        });
    }
    stand_in_line(&servers, "r", WAITERS.into()).await;
    guard.release().await;
    let (took, _) = timed(waiters.join_all()).await;
    assert!(took < ms(5_000), "{took:?} for {WAITERS}");
    stand_in_line(&servers, "r", 0).await;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// A holder that lets go in the same breath calls the next one, not its own place in a line that it has yet to leave. Ten
/// intervals, of a tenth of a second at least, would pass otherwise.
#[tokio::test]
async fn holders_that_let_go_at_once_do_not_cost_those_behind_an_interval() -> TestResult {
    let servers = five().await;
    let guard = client(&servers).await.request("r").ttl(ms(60_000)).try_acquire().await?;
    let mut waiters = tokio::task::JoinSet::new();
    for position in 1..=10 {
        let waiter = client(&servers).await;
        waiters.spawn(async move {
            waiter.acquire("r").await.unwrap().release().await;
            waiter.settled().await;
        });
        stand_in_line(&servers, "r", position).await;
    }
    let began = tokio::time::Instant::now();
    guard.release().await;
    waiters.join_all().await;
    assert!(began.elapsed() < ms(700), "{:?} for ten hand-overs", began.elapsed());
    Ok(())
}
