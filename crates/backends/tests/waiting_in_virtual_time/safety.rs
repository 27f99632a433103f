//! Waiting changes nothing about who holds what: tokens and validities of clients that stand in line on bad networks, where
//! requests and replies get lost, come late, and waiters leave at any moment. P1, P2, P5, and somebody is served.

use crate::common::{Random, in_virtual_time, ms, shared};
use crate::world::World;
use redlock_backends::faulty::Faulty;
use redlock_core::{Clock as _, Moment, Redlock, Retry, TokioClock};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const SEEDS: u64 = 10;
const CLIENTS: u64 = 4;
const TASKS: u64 = 3;
const ROUNDS: usize = 20;

/// One holder's time with the lock.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    token: i64,
    asked: Moment,
    granted: Moment,
    /// Until when it believed in it, or when it let go.
    ended: Moment,
}

#[test]
fn p1_tokens_grow_and_validities_do_not_overlap_among_waiters_on_bad_networks() {
    let mut served = 0;
    for seed in 0..SEEDS {
        let tenures = in_virtual_time(crowd(seed));
        served += tenures.len();
        assert!(!tenures.is_empty(), "seed {seed}: nobody was granted anything");
        for (n, a) in tenures.iter().enumerate() {
            for b in &tenures[n + 1..] {
                check_pair(seed, a, b);
                check_pair(seed, b, a);
            }
        }
    }
    let asked = usize::try_from(SEEDS * CLIENTS * TASKS).unwrap() * ROUNDS;
    assert!(asked / 4 < served, "{served} of {asked}");
}

fn check_pair(seed: u64, a: &Tenure, b: &Tenure) {
    assert_ne!(a.token, b.token, "seed {seed}: {a:?}, {b:?}");
    if a.granted < b.asked {
        assert!(a.token < b.token, "seed {seed}: {a:?}, then {b:?}");
    }
    if a.granted <= b.granted {
        assert!(a.ended <= b.granted, "seed {seed}: {a:?} overlaps {b:?}");
    }
}

async fn crowd(seed: u64) -> Vec<Tenure> {
    let world = World::new(3, seed);
    let tenures = Arc::new(Mutex::new(Vec::new()));
    let mut members = JoinSet::new();
    for client in 0..CLIENTS {
        // Each has a network of its own.
        let nodes: Vec<_> = world.memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        for (n, node) in (0..).zip(&nodes) {
            node.seeded(seed * 1_000 + client * 10 + n, 0.02, ms(10));
        }
        let builder = world.builder().nodes(shared(&nodes)).ttl(ms(2_000));
        // Tokens that follow the nodes' time hide a counter that falls.
        let builder = if seed.is_multiple_of(3) { builder } else { builder.without_clock_floor() };
        let redlock = builder.build().unwrap();
        for task in 0..TASKS {
            let random = Random(seed * 77 + client * TASKS + task);
            let (redlock, clock) = (redlock.clone(), Arc::clone(&world.clock));
            members.spawn(live(redlock, clock, random, Arc::clone(&tenures)));
        }
    }
    members.join_all().await;
    sleep(ms(20_000)).await;
    for node in &world.memory {
        // Places whose owners' farewell got lost may be left: nobody is kept by them.
        assert_eq!(node.locks(), [], "seed {seed}");
    }
    let tenures = tenures.lock().unwrap();
    tenures.clone()
}

/// Stands in line, gives up or is granted, lets go in one way or another; again and again.
async fn live(redlock: Redlock, clock: Arc<TokioClock>, mut random: Random, tenures: Arc<Mutex<Vec<Tenure>>>) {
    for _ in 0..ROUNDS {
        let asked = clock.now();
        let retry = Retry { wait: ms(3_000), delay: ms(5), jitter: ms(20), ..Retry::default() };
        let patience = ms(20 + random.below(6_000));
        let Ok(Ok(guard)) = timeout(patience, redlock.request("r").retry(retry).acquire()).await else { continue };
        let granted = clock.now();
        let believed_until = granted.after(guard.remaining());
        sleep(ms(random.below(100))).await;
        let ended = clock.now().min(believed_until);
        tenures.lock().unwrap().push(Tenure { token: guard.token().get(), asked, granted, ended });
        match random.below(3) {
            0 => drop(guard),
            1 => drop(guard.release().await),
            _ => drop(timeout(ms(random.below(30)), guard.release()).await),
        }
    }
}
