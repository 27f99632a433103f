//! Arbiters that are deaf, mute, slow, forgetful or stuck; nodes that keep no lines; clients that name nodes differently.

use crate::common::meddled::{Timed, meddled};
use crate::common::{in_virtual_time, ms, shared};
use crate::world::{Client, INTERVAL_MAX, NODE_TIMEOUT, Node, PAUSE_MAX, World, begin, lined_up, on_its_way, release};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{LockNode, NodeError, Redlock};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What is wrong with a node, for everybody, from the moment at which somebody stands in its line.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Condition {
    Well,
    /// Fails at once.
    Refuses,
    /// Answers late, but in time.
    Slow,
    /// Answers after the deadline.
    TooSlow,
    /// Never hears what it is asked.
    Deaf,
    /// Does what it is asked, and nobody hears of it.
    Mute,
    /// Does all it is asked but to listen.
    DoesNotListen,
    /// Does not allow it.
    MayNotListen,
    /// Does all it is asked but in line.
    KeepsNoLine,
}

const ALL: [Condition; 9] = [
    Condition::Well,
    Condition::Refuses,
    Condition::Slow,
    Condition::TooSlow,
    Condition::Deaf,
    Condition::Mute,
    Condition::DoesNotListen,
    Condition::MayNotListen,
    Condition::KeepsNoLine,
];

impl Condition {
    fn fault(self, question: Question) -> Fault {
        match (self, question) {
            (Self::Refuses, _) => Fault::error(NodeError::unreachable("connection refused")),
            (Self::Slow, _) => Fault::request_delay(ms(20)),
            (Self::TooSlow, _) => Fault::request_delay(ms(80)),
            (Self::Deaf, _) => Fault::lose_request(),
            (Self::Mute, _) => Fault::lose_reply(),
            (Self::DoesNotListen, Question::Listen) => Fault::error(NodeError::Unsupported),
            (Self::MayNotListen, Question::Listen) => {
                Fault::error(NodeError::refused(redlock_core::Refusal::Permission, "NOPERM"))
            }
            (Self::KeepsNoLine, Question::AcquireInLine) => Fault::error(NodeError::unreachable("broken")),
            _ => on_its_way(),
        }
    }

    fn meets(self, node: &Node) {
        node.always(move |question| self.fault(question));
    }
}

/// One hand-over from one client to another, which waits already.
async fn hand_over(world: &World, before: impl FnOnce(&[&Client])) -> Duration {
    let (holder, waiter) = (world.client(), world.client());
    let guard = holder.redlock.acquire("r").await.unwrap();
    let waiting = waiter.clone();
    let waits = begin(async move {
        let guard = waiting.redlock.acquire("r").await.unwrap();
        (Instant::now(), guard)
    });
    lined_up().await;
    before(&[&holder, &waiter]);
    // Several intervals, so that what has become of the arbiter is noticed.
    sleep(ms(1_500)).await;
    let released = release(guard).await;
    let (granted, guard) = waits.await.unwrap();
    drop(guard);
    sleep(ms(20_000)).await;
    granted.saturating_duration_since(released)
}

/// A node that falls ill costs order and speed, never the lock: the wait is that of whoever asks by itself.
#[test]
fn a_node_that_falls_ill_while_somebody_stands_in_line_costs_an_interval() {
    for condition in ALL {
        for node in 0..3 {
            for seed in 0..5 {
                let delay = in_virtual_time(async {
                    let world = World::new(3, seed);
                    hand_over(&world, |clients| clients.iter().for_each(|client| condition.meets(&client.nodes[node])))
                        .await
                });
                let bound = INTERVAL_MAX + 4 * NODE_TIMEOUT;
                assert!(delay <= bound, "node {node} {condition:?}, seed {seed}: {delay:?}");
            }
        }
    }
}

/// Ill for one of the two only, so that they disagree on who the arbiter is: it stays locked, or does not call. The waiter
/// looks around now and then.
#[test]
fn a_node_that_is_ill_for_one_of_two_clients_costs_a_few_intervals() {
    for condition in ALL {
        for (who, node) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            let delay = in_virtual_time(async {
                let world = World::new(3, 1);
                hand_over(&world, |clients| condition.meets(&clients[who].nodes[node])).await
            });
            let bound = 6 * INTERVAL_MAX + 4 * NODE_TIMEOUT;
            assert!(delay <= bound, "node {node} {condition:?} for client {who}: {delay:?}");
        }
    }
}

/// An arbiter that comes back keeps the line again, and the one that stood in for it keeps none.
#[test]
fn whoever_returns_to_the_arbiter_leaves_the_line_of_the_one_that_stood_in() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let _guard = world.client().redlock.acquire("r").await.unwrap();
        let waiter = world.client();
        let redlock = waiter.redlock.clone();
        let waits = begin(async move { redlock.acquire("r").await.map(drop) });
        lined_up().await;
        let arbiter = world.arbiter();
        Condition::Refuses.meets(&waiter.nodes[arbiter]);
        sleep(ms(2_000)).await;
        assert_eq!(world.in_line(), 2, "one where it cannot leave now, one where it waits");
        Condition::Well.meets(&waiter.nodes[arbiter]);
        sleep(ms(2_000)).await;
        assert_eq!(world.in_line(), 1);
        assert_eq!(world.arbiter(), arbiter);
        waits.abort();
    });
}

#[test]
fn an_arbiter_that_forgets_everything_costs_its_order_and_no_waiter() {
    for seed in 0..10 {
        in_virtual_time(async {
            let world = World::new(5, seed);
            let guard = world.client().redlock.acquire("r").await.unwrap();
            let mut waiters = tokio::task::JoinSet::new();
            for _ in 0..5 {
                let client = world.client();
                waiters.spawn(async move {
                    let guard = client.redlock.acquire("r").await.unwrap();
                    sleep(ms(5)).await;
                    guard.release().await;
                });
            }
            lined_up().await;
            world.memory[world.arbiter()].forget();
            sleep(ms(1_000)).await;
            let released = release(guard).await;
            waiters.join_all().await;
            let took = released.elapsed();
            assert!(took <= 5 * (INTERVAL_MAX + PAUSE_MAX), "seed {seed}: {took:?} for five");
            sleep(ms(2_000)).await;
            world.assert_nothing_left("all have been served");
        });
    }
}

/// One node that stays locked when the lock is free everywhere else, because a release or a crash left it so, is a missing
/// vote like any other, even where it keeps the line.
#[test]
fn an_arbiter_that_stays_locked_when_the_others_are_free_does_not_keep_the_lock() {
    for seed in 0..20 {
        let delay = in_virtual_time(async {
            let world = World::new(5, seed);
            let (holder, waiter) = (world.client(), world.client());
            let guard = holder.redlock.acquire("r").await.unwrap();
            let waits = begin(async move {
                let guard = waiter.redlock.acquire("r").await.unwrap();
                let at = Instant::now();
                drop(guard);
                at
            });
            lined_up().await;
            // The holder's last word does not reach the arbiter.
            holder.nodes[world.arbiter()].always(|_| Fault::lose_request());
            let released = release(guard).await;
            drop(holder);
            waits.await.unwrap() - released
        });
        assert!(delay < ms(2_000), "seed {seed}: {delay:?}, the ttl is a minute");
    }
}

/// Clients that name the nodes in another order meet in one line.
#[test]
fn clients_with_nodes_in_another_order_stand_in_one_line() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let guard = world.client().redlock.acquire("r").await.unwrap();
        let mut waiters = tokio::task::JoinSet::new();
        for turned in 0..5 {
            let mut nodes: Vec<Node> =
                world.memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
            nodes.rotate_left(turned);
            let redlock = world.builder().nodes(shared(&nodes)).build().unwrap();
            waiters.spawn(async move { redlock.acquire("r").await.map(drop) });
        }
        lined_up().await;
        let lines: Vec<_> = world.memory.iter().flat_map(|node| node.lines()).collect();
        assert_eq!(lines, [("lock:r".to_owned(), 5)]);
        guard.release().await;
        for result in waiters.join_all().await {
            result.unwrap();
        }
    });
}

/// Nodes of another kind keep no lines: whoever waits asks them at intervals, and is granted the lock within a pause.
#[test]
fn nodes_without_lines_are_asked_at_intervals() {
    for with_lines in [0, 1, 2] {
        for seed in 0..10 {
            in_virtual_time(async {
                let world = World::new(with_lines, seed);
                // Names differ, so that they are other nodes than those with lines.
                let without: Vec<_> = meddled(3, &world.clock, Timed::default).split_off(with_lines);
                let client = || -> Redlock {
                    let memory = world.memory.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>);
                    world.builder().nodes(memory.chain(shared(&without))).build().unwrap()
                };
                let guard = client().acquire("r").await.unwrap();
                let waiter = client();
                let waits = begin(async move {
                    let guard = waiter.acquire("r").await.unwrap();
                    let at = Instant::now();
                    guard.release().await;
                    at
                });
                sleep(ms(1_000)).await;
                let released = release(guard).await;
                let delay = waits.await.unwrap() - released;
                assert!(delay <= PAUSE_MAX, "{with_lines} of 3 keep lines, seed {seed}: {delay:?}");
                sleep(ms(2_000)).await;
                world.assert_nothing_left("all have been served");
                assert!(without.iter().all(|node| node.memory.locks().is_empty()));
            });
        }
    }
}

/// Two clients in one process that share the very nodes are two clients.
#[test]
fn clients_that_share_their_nodes_wake_each_other() {
    in_virtual_time(async {
        let world = World::new(3, 1);
        let nodes: Vec<Arc<MemoryNode>> = world.memory.clone();
        let [one, two] = [(), ()].map(|()| world.builder().nodes(shared(&nodes)).build().unwrap());
        let mut guard = one.acquire("r").await.unwrap();
        for round in 0..20 {
            let next = if round % 2 == 0 { two.clone() } else { one.clone() };
            let waits = begin(async move { next.acquire("r").await.unwrap() });
            sleep(ms(500)).await;
            let released = release(guard).await;
            guard = waits.await.unwrap();
            assert!(released.elapsed() < ms(10), "{:?}", released.elapsed());
        }
        guard.release().await;
        sleep(ms(1_000)).await;
        world.assert_nothing_left("all have been served");
    });
}

/// Whoever waits with long pauses gives a sign of itself often enough that no node forgets its place, and is called at once.
#[test]
fn whoever_pauses_long_asks_often_enough_to_keep_its_place() {
    in_virtual_time(async {
        let world = World::new(3, 1);
        let guard = world.client().redlock.request("r").ttl(ms(3_600_000)).acquire().await.unwrap();
        let waiter = world.client();
        let asked = Arc::new(std::sync::Mutex::new(Vec::new()));
        for node in &waiter.nodes {
            let asked = Arc::clone(&asked);
            node.always(move |question| {
                if question == Question::AcquireInLine {
                    asked.lock().unwrap().push(Instant::now());
                }
                on_its_way()
            });
        }
        let retry = redlock_core::Retry { wait: ms(3_600_000), delay: ms(100_000), jitter: ms(0), attempts: u32::MAX };
        let waits = begin(async move { waiter.redlock.request("r").retry(retry).acquire().await.map(drop) });
        sleep(ms(600_000)).await;
        // As long as a Redis node keeps the line of somebody who does not ask.
        let forgets_after = ms(60_000);
        let asked = asked.lock().unwrap().clone();
        let longest = asked.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest <= forgets_after / 2, "{longest:?}");
        guard.release().await;
        waits.await.unwrap().unwrap();
    });
}
