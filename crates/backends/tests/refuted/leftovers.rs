//! Nothing stays on a node, and a release tells what came of it.

use crate::common::meddled::{LosesFirstReleaseReply, Timed, meddled};
use crate::common::{in_virtual_time, ms, shared};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{Acquisition, KeyPrefix, LockNode as _, NodeError, Owner, Ownership, Redlock, ReleaseOutcome};
use redlock_core::{IntoResources as _, TokioClock, Ttl};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// The node takes the release first and the acquire after it, and answers them the other way round.
#[test]
fn a_release_that_took_effect_first_and_was_answered_last_is_repeated() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let nodes = meddled(1, &clock, Timed::default);
        nodes[0].by.next(Question::Acquire, ms(100), ms(10));
        nodes[0].by.next(Question::Release, ms(0), ms(200));
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(ms(60_000)).node_timeout(ms(50)).clock(clock);
        let redlock = builder.build().unwrap();

        redlock.try_acquire("r").await.unwrap_err();

        sleep(ms(55)).await;
        assert_eq!(nodes[0].memory.locks().len(), 1, "the acquire has taken effect after its release");
        sleep(ms(1_000)).await;
        redlock.settled().await;
        assert_eq!(nodes[0].memory.locks(), []);
    });
}

/// The second try finds nothing, which is the first one's doing and no loss.
#[test]
fn a_release_whose_answer_was_lost_is_not_already_gone() {
    in_virtual_time(async {
        let nodes = meddled(3, &Arc::new(TokioClock::starting_now()), LosesFirstReleaseReply::default);
        let redlock = Redlock::builder().nodes(shared(&nodes)).build().unwrap();
        let release = redlock.try_acquire("r").await.unwrap().release().await;
        let given_back = matches!(release.outcome, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum);
        assert!(given_back, "{release:?}");
    });
}

/// A lock that was extended beyond its first ttl lives that long, so its release is tried that long.
#[test]
fn the_release_of_an_extended_lock_is_tried_for_as_long_as_it_lives() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let node = Arc::new(Faulty::new(Arc::new(MemoryNode::with_clock("n", clock.clone()))));
        let builder = Redlock::builder().nodes(shared(&[Arc::clone(&node)])).ttl(ms(1_000)).clock(clock);
        let redlock = builder.build().unwrap();
        let guard = redlock.try_acquire("r").await.unwrap();
        guard.extend_to(ms(60_000)).await.unwrap();

        node.always(|_| Fault::error(NodeError::unreachable("down")));
        drop(guard);
        sleep(ms(30_000)).await;
        assert_eq!(node.inner().locks().len(), 1, "the node could not be told");
        node.always(|_| Fault::none());
        sleep(ms(1_000)).await;

        assert_eq!(node.inner().locks(), []);
    });
}

/// A counter that was dropped for its age lives on in the floor of all new ones.
#[test]
fn a_memory_node_remembers_what_it_sweeps_out() {
    const MONTH: Duration = Duration::from_secs(31 * 24 * 60 * 60);
    in_virtual_time(async {
        let node = MemoryNode::new("n");
        let grant = async |name: &str, floor| {
            let owner = Owner::from_random_bytes([1; 16]);
            let ownership = Ownership::new(KeyPrefix::default(), name.into_resources().unwrap(), owner);
            match node.acquire(&ownership, Ttl::new(ms(1_000)).unwrap(), floor).await.unwrap() {
                Acquisition::Granted { counter } => counter,
                Acquisition::Held(held) => panic!("{held}"),
            }
        };
        let before = grant("r", 1_000).await;
        node.clock().advance(MONTH);
        // Enough of others that it sweeps.
        for n in 0..1_000 {
            grant(&n.to_string(), 0).await;
        }
        let after = grant("r", 0).await;
        assert!(before < after, "{before} < {after}");
    });
}
