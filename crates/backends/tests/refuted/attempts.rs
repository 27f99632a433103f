//! No attempt is lost to the client's own doing, and what it is lost to is told rightly.

use crate::common::meddled::{Timed, Twice, meddled};
use crate::common::{in_virtual_time, ms, shared};
use futures_util::future::join_all;
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{
    AcquireError, FencingToken, Guard, KeyPrefix, NodeError, Redlock, Refusal, Resource, Retry, TokioClock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn memory(nodes: usize) -> Vec<Arc<MemoryNode>> {
    let clock = Arc::new(TokioClock::starting_now());
    (0..nodes).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect()
}

fn faulty(nodes: usize, fault: fn() -> Fault) -> Vec<Arc<Faulty<MemoryNode>>> {
    let nodes: Vec<_> = memory(nodes).into_iter().map(|node| Arc::new(Faulty::new(node))).collect();
    for node in &nodes {
        node.always(move |_| fault());
    }
    nodes
}

fn client(nodes: &[Arc<Faulty<MemoryNode>>]) -> Redlock {
    Redlock::builder().nodes(shared(nodes)).clock(Arc::new(TokioClock::starting_now())).build().unwrap()
}

fn down() -> Fault {
    Fault::error(NodeError::unreachable("down"))
}

/// Nodes that were wiped, and whose calendars nobody believes: the databases know the greatest token.
#[test]
fn tokens_go_on_above_what_the_databases_have_accepted() {
    in_virtual_time(async {
        let nodes = memory(3);
        let highest = FencingToken::assume_granted(7_000_000).unwrap();
        let clock = Arc::new(TokioClock::starting_now());
        let builder = Redlock::builder().nodes(shared(&nodes)).clock(clock).without_clock_floor();
        let wiped = builder.clone().build().unwrap();
        assert_eq!(wiped.try_acquire("a").await.unwrap().token().get(), 1);
        let told = builder.tokens_above(highest).build().unwrap();
        assert_eq!(told.try_acquire("b").await.unwrap().token().get(), 7_000_001);
    });
}

#[test]
fn a_burst_of_first_attempts_is_no_outage() {
    in_virtual_time(async {
        let redlock = client(&faulty(5, || Fault::request_delay(ms(1))));
        let attempts = (0..600).map(|n| redlock.try_acquire(n.to_string()));
        let results = join_all(attempts).await;
        let failed: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} failed, such as: {}", failed.len(), failed[0]);
    });
}

#[test]
fn guards_that_are_extended_and_dropped_in_step_are_no_outage() {
    in_virtual_time(async {
        let redlock = client(&faulty(5, || Fault::request_delay(ms(1))));
        let mut guards = Vec::new();
        for n in 0..600 {
            guards.push(redlock.try_acquire(n.to_string()).await.unwrap());
        }
        redlock.settled().await;

        let extended = join_all(guards.iter().map(Guard::extend)).await;
        let failed: Vec<_> = extended.iter().filter_map(|result| result.as_ref().err()).collect();
        assert!(failed.is_empty(), "{} failed, such as: {}", failed.len(), failed[0]);

        redlock.settled().await;
        drop(guards);
        // The client's task gets hold of the releases before the next attempt is made.
        tokio::task::yield_now().await;
        drop(redlock.try_acquire("next").await.unwrap());
    });
}

/// Nodes that failed are left alone for a while, but not where nobody could then be granted anything.
#[test]
fn the_first_attempt_after_an_outage_is_granted() {
    in_virtual_time(async {
        let nodes = faulty(3, Fault::none);
        let redlock = client(&nodes);
        for node in &nodes[..2] {
            node.always(|_| down());
        }
        for _ in 0..3 {
            let error = redlock.try_acquire("r").await.unwrap_err();
            assert!(matches!(error, AcquireError::Unavailable(_)), "{error}");
        }
        redlock.settled().await;
        for node in &nodes[..2] {
            node.always(|_| Fault::none());
        }
        drop(redlock.try_acquire("r").await.unwrap());
    });
}

/// Whoever asks for no pause gets the shortest that a timer can make, about a millisecond; so in real time.
#[tokio::test]
async fn attempts_without_a_pause_are_no_storm() {
    let nodes = faulty(3, Fault::none);
    let redlock = client(&nodes);
    for node in &nodes[..2] {
        node.always(|_| down());
    }
    let asked = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&asked);
    nodes[2].always(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Fault::none()
    });

    let retry = Retry { wait: ms(300), delay: ms(0), jitter: ms(0), ..Retry::default() };
    let error = redlock.request("r").retry(retry).acquire().await.unwrap_err();

    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    // An acquire and a release each time; ten times as many would be another kind of thing.
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked <= 10 * 2 * 300, "the healthy node was asked {asked} times in 300 ms");
}

#[test]
fn counters_beyond_all_tokens_are_a_wrong_set_up_and_not_contention() {
    in_virtual_time(async {
        let memory = memory(3);
        let resource = Resource::new("r").unwrap();
        for node in &memory {
            node.set_counter(&KeyPrefix::default(), &resource, redlock_core::FencingToken::MAX.as_counter());
        }
        let redlock = Redlock::builder().nodes(shared(&memory)).build().unwrap();
        let error = redlock.try_acquire("r").await.unwrap_err();
        let AcquireError::Misconfigured(report) = &error else { panic!("{error}") };
        let beyond =
            |error: &NodeError| matches!(error, NodeError::Refused { reason: Refusal::CounterBeyondTokens, .. });
        assert!(report.failed().all(|(_, error)| beyond(error)), "{report}");
        assert!(2 <= report.failed().count(), "{report}");
    });
}

/// A node that took longer than half of its time for each of two trips has been in time for both.
#[test]
fn the_raise_has_a_deadline_of_its_own() {
    in_virtual_time(async {
        let nodes = meddled(3, &Arc::new(TokioClock::starting_now()), Timed::default);
        let resource = Resource::new("r").unwrap();
        for (node, counter) in nodes.iter().zip([9, 8, 7]) {
            node.memory.set_counter(&KeyPrefix::default(), &resource, counter);
            node.by.always(Question::Acquire, ms(15), ms(15));
            node.by.always(Question::Raise, ms(15), ms(15));
        }
        let builder = Redlock::builder().nodes(shared(&nodes)).node_timeout(ms(50)).without_clock_floor();
        let guard = builder.build().unwrap().try_acquire("r").await.unwrap();
        assert!(guard.report().raised, "{}", guard.report());
        assert_eq!(guard.token().get(), 10);
    });
}

/// What a client was granted before, it is never granted again, though all nodes were wiped.
#[test]
fn a_client_remembers_the_highest_token_that_it_was_granted() {
    in_virtual_time(async {
        let memory = memory(3);
        let resource = Resource::new("r").unwrap();
        for node in &memory {
            node.set_counter(&KeyPrefix::default(), &resource, 41);
        }
        let redlock = Redlock::builder().nodes(shared(&memory)).without_clock_floor().build().unwrap();
        let before = redlock.try_acquire("r").await.unwrap().token();
        assert_eq!(before.get(), 42);
        for node in &memory {
            node.forget();
        }
        let after = redlock.try_acquire("r").await.unwrap().token();
        assert!(before < after, "{before} < {after}");
    });
}

/// Our own lock in the way is nobody else's.
#[test]
fn a_request_that_was_delivered_twice_leaves_nothing_and_is_no_contention() {
    in_virtual_time(async {
        let nodes = meddled(1, &Arc::new(TokioClock::starting_now()), Twice::default);
        let redlock = Redlock::builder().nodes(shared(&nodes)).build().unwrap();
        let error = redlock.try_acquire("r").await.unwrap_err();
        redlock.settled().await;
        assert!(matches!(error, AcquireError::Unavailable(_)), "{error}");
        assert_eq!(nodes[0].memory.locks(), []);
    });
}
