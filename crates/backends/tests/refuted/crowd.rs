//! Many clients on bad networks: tokens are distinct and in order, validities do not overlap, something is granted, and
//! nothing is left.

use crate::common::{Random, in_virtual_time, ms, shared};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::Faulty;
use redlock_core::{Clock as _, Guard, KeyPrefix, Moment, Redlock, Resource, Retry, TokioClock};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const SEEDS: u64 = 20;
const CLIENTS: u64 = 4;
const ROUNDS: usize = 40;

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
fn tokens_grow_and_validities_do_not_overlap_in_a_crowd_on_bad_networks() {
    for seed in 0..SEEDS {
        let tenures = in_virtual_time(crowd(seed));
        assert!(!tenures.is_empty(), "seed {seed}: nobody was granted anything");
        for (n, a) in tenures.iter().enumerate() {
            for b in &tenures[n + 1..] {
                check_pair(seed, a, b);
                check_pair(seed, b, a);
            }
        }
    }
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
    let clock = Arc::new(TokioClock::starting_now());
    let mut random = Random(seed);
    let memory = nodes(&clock, &mut random);
    let tenures = Arc::new(Mutex::new(Vec::new()));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        // Each has a network of its own.
        let nodes: Vec<_> = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        for (n, node) in (0..).zip(&nodes) {
            node.seeded(seed * 1_000 + client * 10 + n, 0.04, ms(20));
        }
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(ms(600)).node_timeout(ms(50)).clock(clock.clone());
        // Tokens that follow the nodes' time hide a counter that falls.
        let builder = if seed.is_multiple_of(3) { builder } else { builder.without_clock_floor() };
        let member =
            Member { redlock: builder.build().unwrap(), clock: Arc::clone(&clock), random: Random(seed * 77 + client) };
        clients.spawn(member.live(Arc::clone(&tenures)));
    }
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    sleep(ms(20_000)).await;
    for node in &memory {
        assert_eq!(node.locks(), [], "seed {seed}");
    }
    let tenures = tenures.lock().unwrap();
    tenures.clone()
}

/// Three or five nodes whose counters have drifted apart, and whose clocks run ahead by up to what is allowed for.
fn nodes(clock: &Arc<TokioClock>, random: &mut Random) -> Vec<Arc<MemoryNode>> {
    let resource = Resource::new("r").unwrap();
    let count = 3 + 2 * random.below(2);
    let nodes = (0..count).map(|n| {
        let node = MemoryNode::with_clock(format!("n{n}"), Arc::clone(clock) as _);
        node.set_counter(&KeyPrefix::default(), &resource, random.below(50));
        let per_mille = u32::try_from(random.below(10)).unwrap();
        node.clock().set_rate(1.0 + f64::from(per_mille) / 1_000.0);
        Arc::new(node)
    });
    nodes.collect()
}

struct Member {
    redlock: Redlock,
    clock: Arc<TokioClock>,
    random: Random,
}

impl Member {
    /// Asks, gives up or is granted, extends now and then, lets go in one way or another; again and again.
    async fn live(mut self, tenures: Arc<Mutex<Vec<Tenure>>>) {
        let retry = Retry { wait: ms(300), delay: ms(5), jitter: ms(20), ..Retry::default() };
        for _ in 0..ROUNDS {
            let asked = self.clock.now();
            let patience = ms(20 + self.random.below(400));
            let acquire = self.redlock.request("r").retry(retry).acquire();
            let Ok(Ok(guard)) = timeout(patience, acquire).await else { continue };
            let granted = self.clock.now();
            let believed_until = self.hold(&guard).await;
            let now = self.clock.now();
            let ended = now.min(believed_until);
            let token = guard.token().get();
            tenures.lock().unwrap().push(Tenure { token, asked, granted, ended });
            match self.random.below(3) {
                0 => drop(guard),
                1 => drop(guard.release().await),
                _ => drop(timeout(ms(self.random.below(30)), guard.release()).await),
            }
        }
    }

    /// Until when the holder believed in the lock.
    async fn hold(&mut self, guard: &Guard) -> Moment {
        let believed_until = |clock: &TokioClock| clock.now().after(guard.remaining());
        let mut until = believed_until(&self.clock);
        for _ in 0..self.random.below(4) {
            sleep(ms(self.random.below(200))).await;
            if guard.remaining().is_zero() {
                return until;
            }
            // Some of these are given up half way.
            let _ = timeout(ms(self.random.below(120)), guard.extend()).await;
            if !guard.remaining().is_zero() {
                until = believed_until(&self.clock);
            }
        }
        if self.random.below(2) == 0 {
            sleep(guard.remaining().saturating_sub(ms(1))).await;
        }
        until
    }
}
