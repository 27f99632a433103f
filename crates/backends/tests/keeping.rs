//! Keeping a lock on real servers: keys that vanish, nodes that do, long jobs, holders that are killed or frozen, and what
//! it all costs.
//!
//! Holders that are killed or frozen are processes of their own: this test's program, run once more with the environment
//! saying so.

#[path = "cases/support.rs"]
#[allow(dead_code, unused_imports, reason = "what the cases share; not all of it is needed here")]
mod support;

use self::support::*;
use futures_util::StreamExt as _;
use redlock_bench::proxy::Mode;
use redlock_bench::{Observer, Process, Servers, eventually, observer};
use redlock_core::{Clock as _, Guard, HoldState, KeepAlive, LossReason, Redlock, SystemClock};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// A client that a busy machine does not disturb: nodes have a good part of the ttl to answer in.
async fn patient(servers: &Servers, ttl: Duration) -> Redlock {
    builder(connect(&servers.urls()).await).ttl(ttl).node_timeout(ttl / 10).build().expect("the settings are right")
}

/// A kept lock that stands on all five nodes.
async fn kept(servers: &Servers, redlock: &Redlock) -> Guard {
    let guard = acquire_within(redlock, "r", ms(20_000)).await;
    guard.keep_alive(KeepAlive::default());
    redlock.settled().await;
    on_all_five(servers, &guard, ms(10_000)).await;
    guard
}

/// Awaits that every node holds the lock for this guard.
async fn on_all_five(servers: &Servers, guard: &Guard, within: Duration) {
    eventually(within, || async {
        let holders = holders(servers, "r").await;
        let ours = holders.iter().filter(|holder| holder.as_deref() == Some(guard.owner().expose())).count();
        if ours == 5 { Ok(()) } else { Err(format!("{ours} of 5 nodes hold it, {:?}: {holders:?}", guard.state())) }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_deleted_on_three_nodes_are_a_loss_within_a_renewal_period() -> TestResult {
    let servers = five().await;
    let redlock = patient(&servers, ms(9_000)).await;
    let guard = kept(&servers, &redlock).await;
    let lost = guard.lost_token();
    for server in servers.iter().take(3) {
        server.command(&["DEL", "lock:r"]).await?;
    }
    let (took, reason) = timed(tokio::time::timeout(ms(20_000), guard.lost())).await;
    assert_eq!(reason?, LossReason::NotOwner { gone: 3, nodes: 5 });
    // A renewal period is three seconds; without renewal it would be told after six at the earliest.
    assert!(took < ms(5_500), "{took:?}");
    assert!(lost.is_cancelled());
    assert!(!guard.is_held());

    // Lost is lost: nothing is taken again, and what is left elsewhere goes with the guard.
    redlock.settled().await;
    assert!(holders(&servers, "r").await[..3].iter().all(Option::is_none), "a lost lock was brought back");
    drop(guard);
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_deleted_on_two_nodes_are_back_after_the_next_renewal() -> TestResult {
    let servers = five().await;
    let redlock = patient(&servers, ms(6_000)).await;
    let guard = kept(&servers, &redlock).await;
    let lost = guard.lost_token();
    for pair in [[0, 1], [3, 4], [1, 3]] {
        for node in pair {
            servers[node].command(&["DEL", "lock:r"]).await?;
        }
        // The next renewal comes within two seconds.
        on_all_five(&servers, &guard, ms(8_000)).await;
        assert!(matches!(guard.state(), HoldState::Held { .. }), "{:?}", guard.state());
    }
    assert!(!lost.is_cancelled());
    guard.release().await;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// Three of five nodes cannot be reached for a third of the ttl, five times, at various phases of the renewal.
async fn held_through_outages(outage: Mode) -> TestResult {
    const TTL: u64 = 6_000;
    let servers = five().await;
    let mut proxies = Vec::new();
    let mut urls = servers.urls();
    for node in 0..3 {
        let proxy = Proxy::start(servers[node].address()).await?;
        urls[node] = proxy.url();
        proxies.push(proxy);
    }
    let redlock = builder(connect(&urls).await).ttl(ms(TTL)).build()?;
    let guard = kept(&servers, &redlock).await;
    let lost = guard.lost_token();
    for pause in [0, 400, 900, 1_400, 1_800] {
        sleep(ms(pause)).await;
        for proxy in &proxies {
            proxy.set(outage).await?;
        }
        sleep(ms(TTL / 3)).await;
        for proxy in &proxies {
            proxy.pass().await?;
        }
        eventually(ms(TTL), || async {
            let state = guard.state();
            // More than is left from before the outage: renewed since.
            let renewed = matches!(state, HoldState::Held { remaining } if ms(TTL / 3 * 2) < remaining);
            if renewed { Ok(()) } else { Err(format!("{state:?}")) }
        })
        .await?;
        assert!(!lost.is_cancelled());
    }
    on_all_five(&servers, &guard, ms(10_000)).await;
    guard.release().await;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_refuses_for_a_third_of_the_ttl_costs_nothing() -> TestResult {
    held_through_outages(Mode::Refuse).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_majority_that_is_silent_for_a_third_of_the_ttl_costs_nothing() -> TestResult {
    held_through_outages(Mode::Silent).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_ten_times_as_long_as_its_ttl_keeps_its_lock() -> TestResult {
    const TTL: Duration = ms(3_000);
    let servers = five().await;
    let (redlock, rival) = (patient(&servers, TTL).await, patient(&servers, TTL).await);
    let observer = Observer::start(servers.iter().map(redlock_bench::RedisServer::probe), ["lock:r"], observer::PERIOD);
    let observer = observer.await?;
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    let refused = AtomicUsize::new(0);

    let job = async {
        let result = redlock
            .with_lock("r", async |held| {
                begun.store(true, Ordering::SeqCst);
                sleep(TTL * 2).await;
                servers[0].freeze().unwrap();
                sleep(TTL * 2).await;
                servers[1].restart().await.unwrap();
                sleep(TTL * 3).await;
                servers[0].thaw().unwrap();
                sleep(TTL * 3).await;
                done.store(true, Ordering::SeqCst);
                held.token()
            })
            .await;
        done.store(true, Ordering::SeqCst);
        result
    };
    // Asks all the time, and is granted only when the job is done.
    let rival = async {
        loop {
            match rival.try_acquire("r").await {
                Ok(guard) if done.load(Ordering::SeqCst) => return guard,
                Ok(guard) if begun.load(Ordering::SeqCst) => panic!("granted to a rival in the middle: {guard:?}"),
                // Before the job has begun, it is the rival's good right.
                Ok(guard) => drop(guard.release().await),
                Err(_) => drop(refused.fetch_add(usize::from(begun.load(Ordering::SeqCst)), Ordering::SeqCst)),
            }
            sleep(ms(20)).await;
        }
    };
    let (result, next) = tokio::time::timeout(TTL * 20, async { tokio::join!(job, rival) }).await?;
    let token = result.map_err(|error| chain(&error))?;
    assert!(token < next.token());
    assert!(100 < refused.into_inner(), "the rival hardly asked");
    next.release().await;
    let report = observer.stop();
    report.assert_safe();
    Ok(())
}

const HOLDER: &str = "REDLOCK_TEST_HOLDER";
const HOLDER_TTL: Duration = ms(3_000);

/// Holds a lock, keeps it alive, and says every now and then what it sees: `at` by the clock of the machine, and whether
/// the lock is held. Runs until it is killed.
#[expect(clippy::print_stdout, reason = "it talks to the test that started it")]
async fn hold_in_a_process(urls: &str) -> TestResult {
    let urls: Vec<String> = urls.split(',').map(str::to_owned).collect();
    let redlock = builder(connect(&urls).await).ttl(HOLDER_TTL).node_timeout(HOLDER_TTL / 10).build()?;
    let guard = Arc::new(acquire_within(&redlock, "r", ms(20_000)).await);
    guard.keep_alive(KeepAlive::default());
    // Looks from a thread of its own, so that nothing else need have run when it looks.
    let looks = Arc::clone(&guard);
    let looking = tokio::task::spawn_blocking(move || {
        loop {
            let at = SystemClock.now().since_origin().as_millis();
            let state = if looks.is_held() { "held" } else { "lost" };
            println!("\nlook {at} {state} {}", looks.token());
            #[expect(clippy::disallowed_methods, reason = "a holder that works and looks, without a runtime's help")]
            std::thread::sleep(ms(10));
        }
    });
    Ok(looking.await?)
}

/// A holder in a process of its own, and what it says.
struct Holder {
    process: Process,
    looks: tokio::sync::mpsc::UnboundedReceiver<(u128, bool)>,
}

impl Holder {
    /// Starts this program again, at the test that is named, which then finds that it is the holder.
    async fn start(servers: &Servers, test: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (output, input) = std::io::pipe()?;
        let process = Process::spawn(std::env::current_exe()?, |command| {
            command.args(["--exact", test, "--nocapture"]).env(HOLDER, servers.urls().join(","));
            command.stdin(Stdio::null()).stdout(input);
        })?;
        let (say, looks) = tokio::sync::mpsc::unbounded_channel();
        // Ends with the process, whose end of the pipe closes then.
        std::thread::Builder::new().name("holder-looks".into()).spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split(' ').collect();
                if let ["look", at, state, _] = words[..]
                    && let Ok(at) = at.parse()
                    && say.send((at, state == "held")).is_err()
                {
                    return;
                }
            }
        })?;
        let mut holder = Self { process, looks };
        let (_, held) = holder.look_after(0).await;
        assert!(held, "the holder has just acquired");
        Ok(holder)
    }

    /// The first look that was taken at this time or later.
    async fn look_after(&mut self, time: u128) -> (u128, bool) {
        loop {
            let look = tokio::time::timeout(ms(30_000), self.looks.recv()).await.expect("the holder looks");
            let look = look.expect("the holder lives");
            if time <= look.0 {
                return look;
            }
        }
    }
}

fn now() -> u128 {
    SystemClock.now().since_origin().as_millis()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_killed_leaves_its_lock_for_one_ttl_at_most() -> TestResult {
    if let Ok(urls) = std::env::var(HOLDER) {
        return hold_in_a_process(&urls).await;
    }
    let servers = five().await;
    let rival = patient(&servers, ms(10_000)).await;
    let mut holder = Holder::start(&servers, "a_holder_that_is_killed_leaves_its_lock_for_one_ttl_at_most").await?;
    // Kept alive beyond its ttl.
    sleep(HOLDER_TTL + ms(1_000)).await;
    assert!(is_contended(&rival.try_acquire("r").await));
    assert!(holder.look_after(now()).await.1);

    holder.process.kill();
    let (took, next) = timed(acquire_within(&rival, "r", ms(30_000))).await;
    assert!(took < HOLDER_TTL + ms(3_000), "{took:?}");
    next.release().await;
    assert_no_keys(&servers, ms(5_000)).await;
    Ok(())
}

/// P7, on a real machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_was_frozen_past_its_ttl_says_lost_at_the_first_look() -> TestResult {
    if let Ok(urls) = std::env::var(HOLDER) {
        return hold_in_a_process(&urls).await;
    }
    let servers = five().await;
    let rival = patient(&servers, ms(30_000)).await;
    let mut holder =
        Holder::start(&servers, "a_holder_that_was_frozen_past_its_ttl_says_lost_at_the_first_look").await?;
    sleep(ms(1_500)).await;
    assert!(holder.look_after(now()).await.1);

    holder.process.freeze()?;
    let frozen = now();
    let next = acquire_within(&rival, "r", ms(30_000)).await;
    rival.settled().await;
    let rivals = vec![Some(next.owner().expose().to_owned()); 5];
    assert_eq!(holders(&servers, "r").await, rivals);
    // Longer than the ttl, whenever the last renewal was.
    sleep(HOLDER_TTL).await;
    let extensions = extensions(&servers).await;
    holder.process.thaw()?;
    let (at, held) = holder.look_after(frozen).await;
    assert!(!held, "held at {at}, frozen at {frozen}");

    // A few renewal periods later the rival's lock still stands as it was, and nothing has been extended.
    sleep(HOLDER_TTL).await;
    assert!(!holder.look_after(now()).await.1, "a lost lock came back");
    assert_eq!(holders(&servers, "r").await, rivals);
    assert_eq!(self::extensions(&servers).await, extensions);
    next.release().await;
    rival.settled().await;
    sleep(HOLDER_TTL / 2).await;
    assert_no_keys(&servers, ms(1_000)).await;
    Ok(())
}

/// How many leases each server has extended so far: each costs one PEXPIRE, which nothing else uses.
async fn extensions(servers: &Servers) -> Vec<u64> {
    let mut extensions = Vec::new();
    for server in servers.iter() {
        extensions.push(server.probe().command_calls("pexpire").await.expect("the server answers"));
    }
    extensions
}

/// How many scripts each server has been asked to run so far.
async fn script_calls(servers: &Servers) -> Vec<u64> {
    let mut calls = Vec::new();
    for server in servers.iter() {
        let mut probe = server.probe();
        let mut sum = 0;
        for command in ["eval", "evalsha"] {
            sum += probe.command_calls(command).await.expect("the server answers");
        }
        calls.push(sum);
    }
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_extension_costs_one_call_per_node() -> TestResult {
    let servers = five().await;
    let redlock = patient(&servers, ms(30_000)).await;
    let guard = acquire_within(&redlock, "r", ms(20_000)).await;
    // The servers learn the script.
    guard.extend().await?;
    redlock.settled().await;
    let before = script_calls(&servers).await;
    guard.extend().await?;
    redlock.settled().await;
    let cost: Vec<u64> =
        script_calls(&servers).await.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(cost, [1; 5]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_kept_locks_cost_five_calls_per_node_and_renewal_at_most() -> TestResult {
    const GUARDS: u64 = 1_000;
    const ROUNDS: u64 = 3;
    let servers = five().await;
    let redlock = patient(&servers, ms(12_000)).await;
    let guards: Vec<Guard> = futures_util::stream::iter(0..GUARDS)
        .map(|n| {
            let redlock = &redlock;
            async move {
                let guard = acquire_within(redlock, &format!("r{n}"), ms(30_000)).await;
                guard.keep_alive(KeepAlive::default());
                guard
            }
        })
        .buffer_unordered(50)
        .collect()
        .await;
    redlock.settled().await;
    // They were acquired one after the other, and come together at their first renewal, after four seconds.
    sleep(ms(6_000)).await;

    let (calls, extended) = (script_calls(&servers).await, extensions(&servers).await);
    sleep(ms(4_000 * ROUNDS)).await;
    redlock.settled().await;
    let (calls_after, extended_after) = (script_calls(&servers).await, extensions(&servers).await);
    for node in 0..5 {
        let calls = calls_after[node] - calls[node];
        let extended = extended_after[node] - extended[node];
        assert!(GUARDS * (ROUNDS - 1) <= extended, "node {node}: only {extended} extensions");
        // Calls per round, where a round is a thousand extensions; in whole numbers.
        assert!(calls * GUARDS <= 5 * extended, "node {node}: {calls} calls for {extended} extensions");
    }
    assert!(guards.iter().all(Guard::is_held));
    drop(guards);
    redlock.settled().await;
    assert_no_keys(&servers, ms(20_000)).await;
    Ok(())
}
