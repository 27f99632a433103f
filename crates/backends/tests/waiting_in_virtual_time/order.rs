//! Who comes first is served first, and nobody is served for ever.

use crate::common::{in_virtual_time, ms};
use crate::world::{RETRY, World, begin, lined_up, release};
use redlock_backends::faulty::Fault;
use redlock_core::Retry;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

#[test]
fn clients_are_served_in_the_order_in_which_they_lined_up() {
    for seed in 0..20 {
        in_virtual_time(async {
            let world = World::new(5, seed);
            let guard = world.client().redlock.acquire("r").await.unwrap();
            let served = Arc::new(Mutex::new(Vec::new()));
            let mut waiters = JoinSet::new();
            for number in 0..8 {
                let (client, served) = (world.client(), Arc::clone(&served));
                waiters.spawn(async move {
                    let guard = client.redlock.acquire("r").await.unwrap();
                    served.lock().unwrap().push(number);
                    sleep(ms(10)).await;
                    guard.release().await;
                    client.redlock.settled().await;
                });
                lined_up().await;
            }
            assert_eq!(world.in_line(), 8);
            guard.release().await;
            waiters.join_all().await;
            assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>(), "seed {seed}");
            world.assert_nothing_left("all have been served");
        });
    }
}

/// The one who lets go at once calls the next one, not its own place in a line that it is about to leave.
#[test]
fn holders_that_let_go_at_once_do_not_cost_those_behind_an_interval() {
    in_virtual_time(async {
        let world = World::new(5, 3);
        let guard = world.client().redlock.acquire("r").await.unwrap();
        let mut waiters = JoinSet::new();
        for _ in 0..10 {
            let client = world.client();
            waiters.spawn(async move {
                let guard = client.redlock.acquire("r").await.unwrap();
                guard.release().await;
                client.redlock.settled().await;
            });
            lined_up().await;
        }
        let began = Instant::now();
        guard.release().await;
        waiters.join_all().await;
        assert!(began.elapsed() < ms(100), "{:?} for ten hand-overs", began.elapsed());
    });
}

#[test]
fn tasks_of_one_client_are_served_in_the_order_in_which_they_came() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let client = world.client();
        let guard = client.redlock.acquire("r").await.unwrap();
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiters = JoinSet::new();
        for number in 0..20 {
            let (client, served) = (client.clone(), Arc::clone(&served));
            waiters.spawn(async move {
                let guard = client.redlock.acquire("r").await.unwrap();
                served.lock().unwrap().push(number);
                guard.release().await;
            });
            tokio::task::yield_now().await;
        }
        sleep(ms(1_000)).await;
        assert_eq!(world.in_line(), 0, "the holder is among them, so nobody asks nodes");
        guard.release().await;
        waiters.join_all().await;
        assert_eq!(*served.lock().unwrap(), (0..20).collect::<Vec<_>>());
        client.redlock.settled().await;
        world.assert_nothing_left("all have been served");
    });
}

/// However long the lock is held each time.
#[test]
fn a_client_whose_tasks_ask_again_at_once_does_not_starve_another() {
    for hold in [0, 1, 10, 100, 300, 1_000].map(ms) {
        let between = in_virtual_time(grants_before_the_other_client(hold));
        assert!(between <= 4, "held for {hold:?} each time: the other client came after {between} grants");
    }
}

/// How many times the greedy client is granted the lock from when another one stands in line to when that one has it.
async fn grants_before_the_other_client(hold: Duration) -> usize {
    let world = World::new(5, 1);
    let greedy = world.client();
    let grants = Arc::new(Mutex::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let (greedy, grants) = (greedy.clone(), Arc::clone(&grants));
        tasks.spawn(async move {
            loop {
                let guard = greedy.redlock.acquire("r").await.unwrap();
                *grants.lock().unwrap() += 1;
                sleep(hold).await;
                guard.release().await;
            }
        });
    }
    let other = world.client();
    sleep(ms(2_000)).await;
    let mut most = 0;
    for _ in 0..10 {
        let before = *grants.lock().unwrap();
        let guard = other.redlock.request("r").wait(ms(100_000)).acquire().await.unwrap();
        most = most.max(*grants.lock().unwrap() - before);
        guard.release().await;
        sleep(ms(7)).await;
    }
    most
}

/// The call travels faster than the release does to the other nodes: whoever was called finds them held, and asks again as
/// soon as the release can have arrived, not after a pause.
#[test]
fn a_call_that_overtakes_the_release_is_followed_up_soon() {
    for seed in 0..10 {
        in_virtual_time(async {
            let world = World::new(5, seed);
            let (holder, waiter) = (world.client(), world.client());
            let guard = holder.redlock.acquire("r").await.unwrap();
            let retry = Retry { delay: ms(5_000), jitter: ms(0), ..RETRY };
            let waits = begin(async move {
                let guard = waiter.redlock.request("r").retry(retry).acquire().await.unwrap();
                let at = Instant::now();
                drop(guard);
                at
            });
            lined_up().await;
            let slow = ms(30);
            for (number, node) in holder.nodes.iter().enumerate() {
                if number != world.arbiter() {
                    node.always(move |_| Fault::request_delay(slow));
                }
            }
            let released = release(guard).await;
            let delay = waits.await.unwrap() - released;
            assert!(delay <= slow + ms(100), "seed {seed}: {delay:?}");
        });
    }
}

/// Nodes that are late once, in the very attempt for which somebody was called, cost that attempt and no pause.
#[test]
fn whoever_was_called_and_met_late_nodes_asks_again_soon() {
    for seed in 0..10 {
        in_virtual_time(async {
            let world = World::new(5, seed);
            let (holder, waiter) = (world.client(), world.client());
            let guard = holder.redlock.acquire("r").await.unwrap();
            let (retry, redlock) = (Retry { delay: ms(5_000), jitter: ms(0), ..RETRY }, waiter.redlock.clone());
            let waits = begin(async move {
                let guard = redlock.request("r").retry(retry).acquire().await.unwrap();
                let at = Instant::now();
                drop(guard);
                at
            });
            lined_up().await;
            for (number, node) in waiter.nodes.iter().enumerate() {
                if number != world.arbiter() {
                    node.script([Fault::request_delay(ms(70))]);
                }
            }
            let released = release(guard).await;
            let delay = waits.await.unwrap() - released;
            assert!(delay <= ms(500), "seed {seed}: {delay:?}");
        });
    }
}

/// The longest wait over the mean one, in a crowd of eight clients with four tasks each that ask again at once.
#[test]
fn waits_in_a_crowd_are_alike() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let waits = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let until = Instant::now() + ms(20_000);
        for _ in 0..8 {
            let client = world.client();
            for _ in 0..4 {
                let (client, waits) = (client.clone(), Arc::clone(&waits));
                tasks.spawn(async move {
                    while Instant::now() < until {
                        let asked = Instant::now();
                        let guard = client.redlock.acquire("r").await.unwrap();
                        waits.lock().unwrap().push(asked.elapsed());
                        sleep(ms(5)).await;
                        guard.release().await;
                    }
                });
            }
        }
        tasks.join_all().await;
        let waits = waits.lock().unwrap();
        let count = u32::try_from(waits.len()).unwrap();
        let (mean, longest) = (waits.iter().sum::<Duration>() / count, *waits.iter().max().unwrap());
        assert!(1_000 < count, "{count} grants in 20 s");
        assert!(longest < 3 * mean, "longest {longest:?}, mean {mean:?} of {count}");
    });
}
