//! P8: many who start at one instant do not split the vote for ever, nor for long.

use crate::common::{Random, in_virtual_time, ms};
use crate::world::{World, lined_up};
use redlock_backends::faulty::Fault;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

const CLIENTS: u64 = 10;
const ROUNDS: u64 = 300;
const SOON: Duration = ms(500);

/// Each of the ten reaches each node by a way of its own length, which is what splits votes.
#[test]
fn p8_of_ten_clients_that_start_at_one_instant_somebody_wins_within_half_a_second() {
    for way_ms_max in [1, 10, 30] {
        let won_soon: u64 = in_virtual_time(async {
            let world = World::new(5, way_ms_max);
            let clients: Vec<_> = (0..CLIENTS).map(|_| world.client()).collect();
            for (number, client) in (0..).zip(&clients) {
                for (n, node) in (0..).zip(&client.nodes) {
                    let mut random = Random(way_ms_max * 10_000 + number * 100 + n);
                    node.always(move |_| {
                        let mut way = || Duration::from_micros(random.below(way_ms_max * 1_000));
                        let mut fault = Fault::request_delay(way());
                        fault.reply_delay = way();
                        fault
                    });
                }
            }
            let mut won_soon = 0;
            for round in 0..ROUNDS {
                let resource = format!("r{round}");
                let mut attempts = JoinSet::new();
                for client in &clients {
                    let (client, resource) = (client.clone(), resource.clone());
                    attempts.spawn(async move { client.redlock.acquire(resource).await.unwrap() });
                }
                let first = timeout(SOON, attempts.join_next()).await;
                won_soon += u64::from(first.is_ok());
                // Whoever did not win leaves.
                drop(first);
                drop(attempts);
                lined_up().await;
            }
            won_soon
        });
        assert!(ROUNDS * 99 <= won_soon * 100, "ways up to {way_ms_max} ms: {won_soon} of {ROUNDS}");
    }
}

/// And all of them are served soon.
#[test]
fn p8_all_of_a_herd_are_served() {
    for seed in 0..20 {
        in_virtual_time(async {
            let world = World::new(5, seed);
            let mut attempts = JoinSet::new();
            let began = Instant::now();
            for _ in 0..CLIENTS {
                let client = world.client();
                attempts.spawn(async move {
                    let guard = client.redlock.acquire("r").await.unwrap();
                    guard.release().await;
                });
            }
            attempts.join_all().await;
            assert!(began.elapsed() < ms(3_000), "seed {seed}: {:?} for all", began.elapsed());
            tokio::time::sleep(ms(2_000)).await;
            world.assert_nothing_left("all have been served");
        });
    }
}
