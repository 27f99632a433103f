//! Whoever stands in front and does not come costs those behind less than a second.

use crate::common::{in_virtual_time, ms};
use crate::world::{Client, World, begin, lined_up, release};
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

const LESS_THAN: Duration = ms(1_000);

type Waiter = Pin<Box<dyn Future<Output = ()> + Send>>;

fn waiter(client: &Client) -> Waiter {
    let client = client.clone();
    Box::pin(async move { drop(client.redlock.acquire("r").await) })
}

/// Lets a waiter come to stand in line; from then on nobody polls it. It is called, and does not come.
async fn falls_asleep(mut waiter: Waiter) -> Waiter {
    tokio::select! {
        () = &mut waiter => panic!("the lock is held"),
        () = lined_up() => {}
    }
    waiter
}

/// From the release to the grant of somebody who lined up behind all of them.
async fn delay_behind(world: &World, asleep: &[&Client], behind: &Client) -> Duration {
    let guard = world.client().redlock.acquire("r").await.unwrap();
    let mut sleepers = Vec::new();
    for client in asleep {
        sleepers.push(falls_asleep(waiter(client)).await);
    }
    let next = begin({
        let client = behind.clone();
        async move {
            let guard = client.redlock.acquire("r").await.unwrap();
            let at = Instant::now();
            guard.release().await;
            at
        }
    });
    lined_up().await;
    let released = release(guard).await;
    let granted = next.await.unwrap();
    drop(sleepers);
    tokio::time::sleep(ms(2_000)).await;
    world.assert_nothing_left("all have gone");
    granted - released
}

#[test]
fn a_client_that_is_called_and_does_not_come_delays_the_next_by_less_than_a_second() {
    for seed in 0..50 {
        for asleep in 1..=5 {
            let delay = in_virtual_time(async {
                let world = World::new(5, seed);
                let sleepers: Vec<_> = (0..asleep).map(|_| world.client()).collect();
                delay_behind(&world, &sleepers.iter().collect::<Vec<_>>(), &world.client()).await
            });
            assert!(delay < LESS_THAN, "seed {seed}: {delay:?} behind {asleep} that sleep");
        }
    }
}

#[test]
fn a_task_that_is_called_and_does_not_come_delays_the_next_of_its_client_by_less_than_a_second() {
    for seed in 0..50 {
        let delay = in_virtual_time(async {
            let world = World::new(5, seed);
            let client = world.client();
            delay_behind(&world, &[&client], &client).await
        });
        assert!(delay < LESS_THAN, "seed {seed}: {delay:?}");
    }
}

/// The same for tasks of the holder's own client, which wait for their turn.
#[test]
fn a_task_that_leaves_in_front_costs_nothing() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let client = world.client();
        let guard = client.redlock.acquire("r").await.unwrap();
        let sleeper = falls_asleep(waiter(&client)).await;
        let next = begin({
            let client = client.clone();
            async move {
                let guard = client.redlock.acquire("r").await.unwrap();
                (Instant::now(), guard)
            }
        });
        lined_up().await;
        guard.release().await;
        // Its turn has come by now.
        lined_up().await;
        let left = Instant::now();
        drop(sleeper);
        let (granted, guard) = next.await.unwrap();
        assert!(granted - left <= ms(10), "{:?}", granted - left);
        drop(guard);
    });
}

/// The call goes to the next when the one who is called leaves: no interval has to pass.
#[test]
fn a_client_that_leaves_in_front_costs_nothing() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let (first, second) = (world.client(), world.client());
        let guard = world.client().redlock.acquire("r").await.unwrap();
        let sleeper = falls_asleep(waiter(&first)).await;
        let next = begin(async move {
            let guard = second.redlock.acquire("r").await.unwrap();
            (Instant::now(), guard)
        });
        lined_up().await;
        guard.release().await;
        // It has been called by now.
        lined_up().await;
        let left = Instant::now();
        drop(sleeper);
        let (granted, guard) = next.await.unwrap();
        assert!(granted - left <= ms(10), "{:?}", granted - left);
        drop(guard);
    });
}
