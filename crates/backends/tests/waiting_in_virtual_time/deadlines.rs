//! B45 where waiters stand in line: a wait ends when it should, says how it ended, and leaves no place behind.

use crate::common::{in_virtual_time, ms};
use crate::world::{Client, NODE_TIMEOUT, RETRY, World, begin, lined_up, on_its_way};
use redlock_backends::faulty::{Fault, Question};
use redlock_core::{AcquireError, Guard, NodeError, NodeOutcome, Retry};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Where a waiter waits.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Where {
    /// Alone in its client, in the arbiter's line.
    InLine,
    /// The same, behind another client.
    BehindAnotherClient,
    /// Behind a task of its own client that stands in line.
    BehindATask,
    /// Behind a task of its own client that holds the lock.
    BehindTheHolder,
}

const ALL: [Where; 4] = [Where::InLine, Where::BehindAnotherClient, Where::BehindATask, Where::BehindTheHolder];

/// The holder, and the client whose next task waits there.
async fn prepared(world: &World, place: Where) -> (Guard, Client) {
    let client = world.client();
    if place == Where::BehindTheHolder {
        return (client.redlock.acquire("r").await.unwrap(), client);
    }
    let guard = world.client().redlock.acquire("r").await.unwrap();
    let before = match place {
        Where::BehindAnotherClient => Some(world.client()),
        Where::BehindATask => Some(client.clone()),
        Where::InLine | Where::BehindTheHolder => None,
    };
    if let Some(before) = before {
        begin(async move {
            let guard = before.redlock.request("r").wait(ms(100_000)).acquire().await.unwrap();
            guard.release().await;
        });
    }
    lined_up().await;
    (guard, client)
}

#[test]
fn b45_a_deadline_is_kept_everywhere_in_line_and_no_place_is_left() {
    for place in ALL {
        for retry in [RETRY, Retry { delay: ms(2_000), jitter: ms(0), ..RETRY }] {
            in_virtual_time(async {
                let world = World::new(5, 1);
                let (guard, client) = prepared(&world, place).await;
                let before = world.in_line();
                let began = Instant::now();
                let result = client.redlock.request("r").retry(Retry { wait: ms(300), ..retry }).acquire().await;
                let took = began.elapsed();
                let Err(AcquireError::TimedOut { last, waited, .. }) = &result else { panic!("{place:?}: {result:?}") };
                assert!(ms(300) <= took && took <= ms(300) + NODE_TIMEOUT, "{place:?}: {took:?}");
                assert!(ms(300) <= *waited && *waited <= took, "{place:?}: {waited:?}");
                let AcquireError::Contended(report) = &**last else { panic!("{place:?}: {last:?}") };
                let held = report.held().count();
                assert!(3 <= held, "{place:?}: the last word is a whole one, {report}");
                lined_up().await;
                assert_eq!(world.in_line(), before, "{place:?}");
                guard.release().await;
                sleep(ms(2_000)).await;
                world.assert_nothing_left(&format!("{place:?}"));
            });
        }
    }
}

#[test]
fn b45_a_wait_is_cancelled_everywhere_in_line_and_says_so() {
    for place in ALL {
        in_virtual_time(async {
            let world = World::new(5, 1);
            let (guard, client) = prepared(&world, place).await;
            let before = world.in_line();
            let began = Instant::now();
            let result = client.redlock.request("r").retry(RETRY).acquire_unless(sleep(ms(100))).await;
            assert!(matches!(result, Err(AcquireError::Cancelled { .. })), "{place:?}: {result:?}");
            assert_eq!(began.elapsed(), ms(100), "{place:?}");
            lined_up().await;
            assert_eq!(world.in_line(), before, "{place:?}");
            guard.release().await;
            sleep(ms(2_000)).await;
            world.assert_nothing_left(&format!("{place:?}"));
        });
    }
}

/// Also when time runs out while the arbiter alone is being asked; and where too few nodes answer, that is what is said.
#[test]
fn b45_the_last_word_is_that_of_all_nodes_whenever_the_time_is_over() {
    for outage in [false, true] {
        for quarter in 0..400 {
            in_virtual_time(async {
                let world = World::new(5, 1);
                let (_guard, client) = prepared(&world, Where::InLine).await;
                let wait = ms(250) + Duration::from_micros(250 * quarter);
                let waits = client.redlock.request("r").wait(wait).acquire();
                let result = async {
                    lined_up().await;
                    if outage {
                        let arbiter = world.arbiter();
                        let others = client.nodes.iter().enumerate().filter(|(number, _)| *number != arbiter);
                        others.for_each(|(_, node)| node.always(|_| Fault::error(NodeError::unreachable("down"))));
                    }
                };
                let (result, ()) = tokio::join!(waits, result);
                let Err(AcquireError::TimedOut { last, .. }) = &result else { panic!("{wait:?}: {result:?}") };
                match &**last {
                    AcquireError::Contended(report) if !outage => assert!(3 <= report.held().count(), "{report}"),
                    AcquireError::Unavailable(report) if outage => assert_eq!(report.failed().count(), 4, "{report}"),
                    other => panic!("{wait:?}: {other}"),
                }
            });
        }
    }
}

/// Whoever wants one attempt gets one, whoever else waits, and it asks all nodes.
#[test]
fn b45_no_wait_is_one_attempt_that_asks_all_nodes() {
    for place in ALL {
        for retry in [Retry { wait: Duration::ZERO, ..RETRY }, Retry { attempts: 1, ..RETRY }] {
            in_virtual_time(async {
                let world = World::new(5, 1);
                let (_guard, client) = prepared(&world, place).await;
                let (before, began) = (world.in_line(), Instant::now());
                let result = client.redlock.request("r").retry(retry).acquire().await;
                let Err(AcquireError::Contended(report)) = &result else { panic!("{place:?}: {result:?}") };
                assert!(began.elapsed() <= NODE_TIMEOUT, "{place:?}: {:?}", began.elapsed());
                assert!(report.nodes.iter().all(|node| !matches!(node.outcome, NodeOutcome::Failed(_))), "{report}");
                assert!(3 <= report.held().count(), "{report}");
                assert_eq!(world.in_line(), before, "{place:?}");
            });
        }
    }
}

/// An arbiter that falls silent is replaced, and the attempts are counted as they are asked for.
#[test]
fn b45_an_arbiter_that_fails_costs_no_attempt() {
    in_virtual_time(async {
        let world = World::new(5, 1);
        let (_guard, client) = prepared(&world, Where::BehindAnotherClient).await;
        // It still seems to listen.
        client.nodes[world.arbiter()].always(|question| match question {
            Question::Listen => on_its_way(),
            _ => Fault::lose_request(),
        });
        let retry = Retry { wait: ms(300), delay: ms(2_000), jitter: ms(0), ..RETRY };
        let result = client.redlock.request("r").retry(retry).acquire().await;
        let Err(AcquireError::TimedOut { attempts, .. }) = &result else { panic!("{result:?}") };
        assert_eq!(*attempts, 2, "one at once, and one when the time was over");
    });
}

/// A deadline that passes in the very moment in which the lock becomes free ends in a grant or in nothing.
#[test]
fn a_deadline_that_meets_the_release_leaves_nothing_behind() {
    for place in ALL {
        for offset in 0..20 {
            in_virtual_time(async {
                let world = World::new(5, offset);
                let (guard, client) = prepared(&world, place).await;
                let request = client.redlock.request("r").wait(ms(300)).acquire();
                let release = async {
                    sleep(ms(290 + offset)).await;
                    guard.release().await
                };
                let (result, _) = tokio::join!(request, release);
                drop(result);
                sleep(ms(2_000)).await;
                world.assert_nothing_left(&format!("{place:?}, {offset}"));
            });
        }
    }
}

/// No pause at all was asked for. Nodes are not asked without one: in virtual time that would never end.
#[test]
fn a_wait_without_pauses_ends_with_its_deadline() {
    in_virtual_time(async {
        let world = World::new(3, 1);
        let _guard = world.client().redlock.acquire("r").await.unwrap();
        let retry = Retry { wait: ms(50), attempts: u32::MAX, delay: ms(0), jitter: ms(0) };
        let result = world.client().redlock.request("r").retry(retry).acquire().await;
        let Err(AcquireError::TimedOut { attempts, .. }) = result else { panic!("{result:?}") };
        assert!(attempts < 60, "{attempts} attempts in 50 ms");
    });
}
