//! What a holder believes ends before what a quorum of nodes holds.

use crate::common::meddled::{Meddled, Timed, meddled};
use crate::common::{SuspendableClock, in_virtual_time, ms, shared, whole_validity};
use futures_util::future::join;
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{
    AcquireError, Clock, ExtendError, Guard, HoldState, KeyPrefix, Moment, Redlock, Resource, TokioClock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;

/// A clock that stands at zero until the machine is suspended, which happens between two looks at it.
#[derive(Debug)]
struct Jumping {
    looks: AtomicUsize,
    jumps_at: usize,
    suspended: Duration,
}

impl Clock for Jumping {
    fn now(&self) -> Moment {
        let look = self.looks.fetch_add(1, Ordering::SeqCst);
        Moment::from_origin(if look < self.jumps_at { Duration::ZERO } else { self.suspended })
    }
}

/// For how long a quorum of the nodes holds the lock.
fn held_by_a_quorum_for<'a>(memory: impl Iterator<Item = &'a MemoryNode>) -> Duration {
    let mut leases: Vec<_> =
        memory.map(|node| node.locks().first().map_or(Duration::ZERO, |(_, _, left)| *left)).collect();
    leases.sort_unstable();
    leases[leases.len() - (leases.len() / 2 + 1)]
}

/// The process may be paused between any two of its lines, which it could notice only by looking at the clock.
#[test]
fn a_pause_between_two_lines_does_not_lengthen_the_validity() {
    let mut jumps_at = 0;
    loop {
        let looks_before_the_grant = in_virtual_time(async {
            let clock = Arc::new(Jumping { looks: AtomicUsize::new(0), jumps_at, suspended: ms(5_000) });
            let memory: Vec<_> =
                (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
            let redlock = Redlock::builder().nodes(shared(&memory)).ttl(ms(10_000)).clock(clock.clone());
            let guard = redlock.build().unwrap().try_acquire("r").await.unwrap();
            let looks = clock.looks.load(Ordering::SeqCst);
            // The belief is looked at last: a pause before that shortens it.
            let held = held_by_a_quorum_for(memory.iter().map(Arc::as_ref));
            let believed = guard.remaining();
            assert!(believed < held, "paused at look {jumps_at}: valid for {believed:?}, held for {held:?}");
            looks
        });
        if looks_before_the_grant < jumps_at {
            break;
        }
        jumps_at += 1;
    }
    assert!(10 < jumps_at, "an attempt looks at the clock more than {jumps_at} times");
}

struct World {
    nodes: Vec<Arc<Meddled<Timed>>>,
    redlock: Redlock,
}

impl World {
    fn new(ttl: Duration, node_timeout: Duration) -> Self {
        let clock = Arc::new(TokioClock::starting_now());
        let nodes = meddled(3, &clock, Timed::default);
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(ttl).node_timeout(node_timeout).clock(clock);
        Self { redlock: builder.build().unwrap(), nodes }
    }

    /// The next extension takes so long to arrive, and its answer so long to come back.
    fn next_extension(&self, there: Duration, back: Duration) {
        for node in &self.nodes {
            node.by.next(Question::Extend, there, back);
        }
    }

    fn held_for(&self) -> Duration {
        held_by_a_quorum_for(self.nodes.iter().map(|node| &node.memory))
    }

    /// At every moment of a while, whoever believes in the lock is backed by a quorum.
    async fn assert_backed(&self, guard: &Guard, for_a_while: Duration) {
        const PERIOD: Duration = ms(25);
        let mut passed = Duration::ZERO;
        while passed < for_a_while {
            let (believed, held) = (guard.remaining(), self.held_for());
            assert!(
                believed.is_zero() || !held.is_zero(),
                "{passed:?} later: valid for {believed:?}, and no quorum holds it"
            );
            sleep(PERIOD).await;
            passed += PERIOD;
        }
    }
}

#[test]
fn a_shorter_extension_that_takes_effect_late_does_not_end_the_lease_before_the_validity() {
    in_virtual_time(async {
        let world = World::new(ms(10_000), ms(50));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        world.next_extension(ms(500), ms(0));

        let shorter = guard.extend_to(ms(1_000)).await;
        assert!(matches!(shorter, Err(ExtendError::Unconfirmed { .. })), "{shorter:?}");
        let longer = guard.extend_to(ms(10_000)).await;
        assert!(matches!(longer, Err(ExtendError::Unconfirmed { .. })), "the shorter one may still come: {longer:?}");

        assert!(ms(900) < guard.remaining(), "{guard:?}");
        world.assert_backed(&guard, ms(12_000)).await;
        assert!(guard.remaining().is_zero());
    });
}

#[test]
fn a_longer_extension_counts_once_the_shorter_one_is_answered() {
    in_virtual_time(async {
        let world = World::new(ms(10_000), ms(50));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        world.next_extension(ms(500), ms(0));
        guard.extend_to(ms(1_000)).await.unwrap_err();

        // Late, but an answer: now nothing shorter can come.
        sleep(ms(600)).await;
        let validity = guard.extend_to(ms(10_000)).await.unwrap();
        assert_eq!(validity, whole_validity(ms(10_000)));
        world.assert_backed(&guard, ms(12_000)).await;
    });
}

#[test]
fn an_extension_to_less_shortens_the_validity_at_once_whoever_hears_of_it() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let memory: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
        let nodes: Vec<_> = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        let redlock = Redlock::builder().nodes(shared(&nodes)).ttl(ms(10_000)).clock(clock).build().unwrap();
        let guard = redlock.try_acquire("r").await.unwrap();
        for node in &nodes {
            node.always(|_| Fault::lose_reply());
        }

        let shorter = guard.extend_to(ms(1_000)).await;

        assert!(matches!(shorter, Err(ExtendError::Unconfirmed { .. })), "{shorter:?}");
        let held = held_by_a_quorum_for(memory.iter().map(Arc::as_ref));
        assert!(guard.remaining() < held && held < ms(1_000), "valid for {:?}, held for {held:?}", guard.remaining());
    });
}

#[test]
fn the_validity_of_an_extension_counts_from_before_it_was_sent() {
    in_virtual_time(async {
        let world = World::new(ms(10_000), ms(50));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        sleep(ms(3_000)).await;
        world.next_extension(ms(0), ms(40));

        let validity = guard.extend().await.unwrap();

        assert!(validity <= whole_validity(ms(10_000)) - ms(40), "{validity:?}");
        assert!(validity < world.held_for(), "valid for {validity:?}, held for {:?}", world.held_for());
    });
}

#[test]
fn a_validity_that_was_over_does_not_come_back() {
    in_virtual_time(async {
        let world = World::new(ms(1_000), ms(200));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        sleep(ms(950)).await;
        // In time for the nodes, too late for the holder.
        world.next_extension(ms(10), ms(100));

        let (extended, seen) = join(guard.extend(), async {
            sleep(ms(60)).await;
            guard.remaining()
        })
        .await;

        assert_eq!(seen, Duration::ZERO);
        assert!(matches!(extended, Err(ExtendError::Lost { .. })), "{extended:?}");
        assert_eq!(guard.remaining(), Duration::ZERO);
    });
}

/// Two of five have lost the lock and say so first; a quorum still holds it.
#[test]
fn a_minority_that_is_gone_is_no_loss_whoever_answers_first() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let nodes = meddled(5, &clock, Timed::default);
        let redlock = Redlock::builder().nodes(shared(&nodes)).clock(clock).build().unwrap();
        let guard = redlock.try_acquire("r").await.unwrap();
        redlock.settled().await;
        for node in &nodes[..2] {
            node.memory.forget();
        }
        for node in &nodes[2..] {
            node.by.next(Question::Extend, ms(0), ms(20));
        }

        let extended = guard.extend().await;

        assert!(extended.is_ok(), "{extended:?}");
        assert!(matches!(guard.state(), HoldState::Held { .. }), "{guard:?}");
    });
}

/// Three nodes, and a machine that is suspended for longer than the ttl as soon as a quorum has granted, before the answers
/// are read; and how often the nodes are asked to raise.
fn suspended_with_the_answers_unread(counters: [u64; 3]) -> (Result<Guard, AcquireError>, usize) {
    in_virtual_time(async {
        let clock = SuspendableClock::starting_now();
        let memory: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
        for (node, counter) in memory.iter().zip(counters) {
            node.set_counter(&KeyPrefix::default(), &Resource::new("r").unwrap(), counter);
        }
        let nodes: Vec<_> = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        let raises = Arc::new(AtomicUsize::new(0));
        for node in &nodes {
            let raises = Arc::clone(&raises);
            node.always(move |question| {
                raises.fetch_add(usize::from(question == Question::Raise), Ordering::Relaxed);
                Fault::reply_delay(ms(10))
            });
        }
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(ms(10_000)).without_clock_floor();
        let redlock = builder.clock(clock.clone()).build().unwrap();
        let (result, ()) = join(redlock.try_acquire("r"), async {
            sleep(ms(5)).await;
            clock.suspend(ms(10_000));
        })
        .await;
        (result, raises.load(Ordering::Relaxed))
    })
}

#[test]
fn a_grant_that_is_heard_after_its_validity_is_too_slow() {
    let (result, _) = suspended_with_the_answers_unread([7, 7, 7]);
    assert!(matches!(result, Err(AcquireError::TooSlow { .. })), "{result:?}");
}

#[test]
fn counters_are_not_raised_for_a_validity_that_is_over() {
    let (result, raises) = suspended_with_the_answers_unread([9, 8, 7]);
    assert!(matches!(result, Err(AcquireError::TooSlow { .. })), "{result:?}");
    assert_eq!(raises, 0, "nobody has use for the token");
}
