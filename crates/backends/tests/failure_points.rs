//! Every single failure and every pair of failures, for three and for five nodes: at each call of a lock's life, on each
//! node, the request is lost, the answer is lost, or the call is executed late. Virtual time; nothing here waits.
//!
//! The life of a lock: a first grant, so that there is a token to be above; the grant that meets the failures, with
//! counters that agree (one trip) or lie apart (two); a rival while it is held; an extension; a release; and when all is
//! quiet, another client's grant. A wire keeps what order it can: what is late holds up what comes after it on that node.

#![expect(clippy::print_stderr, reason = "a test that fails says what it met")]

#[allow(dead_code, reason = "what tests in virtual time share; not all of it is needed here")]
mod common;

use self::common::{in_virtual_time, ms, shared};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{AcquireError, FencingToken, Guard, KeyPrefix, LockNode as _, Redlock, Resource, TokioClock};
use std::sync::Arc;
use std::time::Duration;

const NODE_TIMEOUT: Duration = ms(50);
const TTL: Duration = ms(60_000);
/// Longer than the per-node deadline, so that nobody waits for it.
const LATE: Duration = ms(180);
/// Longer than anything takes to be undone on a node that can be reached, shorter than the ttl.
const UNDONE_WITHIN: Duration = ms(20_000);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    RequestLost,
    AnswerLost,
    Late,
}

/// The first call of a kind to a node fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Point {
    call: Question,
    node: usize,
    kind: Kind,
}

impl Point {
    fn all(nodes: usize) -> Vec<Self> {
        let calls = [Question::Acquire, Question::Raise, Question::Extend, Question::Release];
        let kinds = [Kind::RequestLost, Kind::AnswerLost, Kind::Late];
        let mut points = Vec::new();
        for call in calls {
            for node in 0..nodes {
                points.extend(kinds.map(|kind| Self { call, node, kind }));
            }
        }
        points
    }

    fn fault(self) -> Fault {
        match self.kind {
            Kind::RequestLost => Fault::lose_request(),
            Kind::AnswerLost => Fault::lose_reply(),
            Kind::Late => Fault::request_delay(LATE),
        }
    }
}

/// Whether the counters of the nodes agree when the grant is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counters {
    Agree,
    LieApart,
}

struct World {
    memory: Vec<Arc<MemoryNode>>,
    nodes: Vec<Arc<Faulty<MemoryNode>>>,
    clock: Arc<TokioClock>,
}

impl World {
    fn new(nodes: usize) -> Self {
        let clock = Arc::new(TokioClock::starting_now());
        let memory = (0..nodes).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone())));
        let memory: Vec<_> = memory.collect();
        let nodes = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        Self { memory, nodes, clock }
    }

    /// Another client of the same nodes, through the same network.
    fn client(&self) -> Redlock {
        let builder = Redlock::builder().nodes(shared(&self.nodes)).ttl(TTL).node_timeout(NODE_TIMEOUT);
        builder.without_clock_floor().clock(self.clock.clone()).build().unwrap()
    }

    fn counters_lie_apart(&self) {
        let resource = Resource::new("r").unwrap();
        for (n, node) in self.memory.iter().enumerate() {
            node.set_counter(&KeyPrefix::default(), &resource, 100 + 10 * u64::try_from(n).unwrap());
        }
    }

    /// The first call of each kind to each node meets its failure, if there is one for it.
    fn meets(&self, points: &[Point]) {
        for (n, node) in self.nodes.iter().enumerate() {
            let mut coming: Vec<_> = points.iter().filter(|point| point.node == n).copied().collect();
            node.always(move |question| match coming.iter().position(|point| point.call == question) {
                Some(position) => coming.swap_remove(position).fault(),
                None => Fault::none(),
            });
        }
    }

    /// On how many nodes the guard's owner holds the resource.
    fn held_for(&self, guard: &Guard) -> usize {
        let holds = |node: &&Arc<MemoryNode>| node.locks().iter().any(|(_, owner, _)| owner == guard.owner().expose());
        self.memory.iter().filter(holds).count()
    }

    fn quorum(&self) -> usize {
        self.memory.len() / 2 + 1
    }

    /// P5: nothing is left on any node, long before a ttl could have ended it.
    async fn assert_nothing_left(&self) {
        tokio::time::sleep(UNDONE_WITHIN).await;
        for node in &self.memory {
            assert!(node.locks().is_empty(), "{} still has {:?}", node.name(), node.locks());
        }
    }
}

/// P1, of a grant and the one before it.
fn assert_above(token: FencingToken, before: FencingToken) {
    assert!(before < token, "{token} comes after {before}");
}

/// One life of a lock, with these failures in it.
async fn live(nodes: usize, counters: Counters, points: &[Point]) {
    let world = World::new(nodes);
    let first = world.client().try_acquire("r").await.unwrap();
    let mut token = first.token();
    first.release().await;
    if counters == Counters::LieApart {
        world.counters_lie_apart();
    }
    world.meets(points);

    // Both live on: a client sees its releases through for as long as it is there, and only a moment longer.
    let (holder, other) = (world.client(), world.client());
    match holder.try_acquire("r").await {
        Ok(guard) => {
            assert!(world.quorum() <= world.held_for(&guard), "no grant without a quorum: {:?}", world.memory);
            assert!(guard.remaining() < TTL, "the drift is taken off");
            assert_above(guard.token(), token);
            token = guard.token();
            let rival = other.try_acquire("r").await;
            assert!(matches!(rival, Err(AcquireError::Contended(_) | AcquireError::Unavailable(_))), "{rival:?}");
            let before = guard.remaining();
            match guard.extend().await {
                // Virtual time stands still for whoever does not wait, so a good extension gives back what was gone.
                Ok(_) => assert!(before <= guard.remaining(), "{before:?}, then {:?}", guard.remaining()),
                Err(error) => {
                    let extends = points.iter().filter(|point| point.call != Question::Release).count();
                    assert!(world.memory.len() - world.quorum() < extends, "an extension outlives a minority: {error}");
                }
            }
            assert!(guard.is_held(), "a failed extension takes nothing away");
            assert!(world.quorum() <= world.held_for(&guard), "held as long as it is told to be: {:?}", world.memory);
            let release = guard.release().await;
            assert_eq!(release.nodes.len(), nodes, "every node is told: {release:?}");
        }
        Err(error) => {
            let acquires = points.iter().filter(|point| matches!(point.call, Question::Acquire | Question::Raise));
            assert!(
                world.memory.len() - world.quorum() < acquires.count(),
                "a minority costs nobody the lock: {error}"
            );
            assert!(matches!(error, AcquireError::Unavailable(_)), "nobody else asks: {error}");
        }
    }
    world.assert_nothing_left().await;

    let next = other.try_acquire("r").await.unwrap();
    assert_above(next.token(), token);
    assert!(world.quorum() <= world.held_for(&next));
    next.release().await;
    world.assert_nothing_left().await;
}

/// What was met, in case it is not survived.
struct Meeting<'a>(usize, Counters, &'a [Point]);

impl Drop for Meeting<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self(nodes, counters, points) = self;
            eprintln!("with {nodes} nodes, whose counters {counters:?}, and these failures: {points:#?}");
        }
    }
}

/// Gives how many lives there were.
fn survives(nodes: usize, failures: usize) -> usize {
    let all = Point::all(nodes);
    let mut lives = 0;
    for counters in [Counters::Agree, Counters::LieApart] {
        for (n, one) in all.iter().enumerate() {
            let others = all[n + 1..].iter().filter(|other| (other.call, other.node) != (one.call, one.node));
            let met: Vec<Vec<Point>> = match failures {
                1 => vec![vec![*one]],
                _ => others.map(|other| vec![*one, *other]).collect(),
            };
            for points in met {
                let _told = Meeting(nodes, counters, &points);
                in_virtual_time(live(nodes, counters, &points));
                lives += 1;
            }
        }
    }
    lives
}

#[test]
fn a_lock_survives_every_single_failure_of_three_nodes() {
    assert_eq!(survives(3, 1), 2 * 4 * 3 * 3);
}

#[test]
fn a_lock_survives_every_single_failure_of_five_nodes() {
    assert_eq!(survives(5, 1), 2 * 4 * 5 * 3);
}

/// Two of three may cost the grant; never a token, a key or the next grant.
#[test]
fn every_pair_of_failures_of_three_nodes_leaves_tokens_and_nodes_in_order() {
    assert_eq!(survives(3, 2), 2 * pairs(4 * 3));
}

#[test]
fn a_lock_survives_every_pair_of_failures_of_five_nodes() {
    assert_eq!(survives(5, 2), 2 * pairs(4 * 5));
}

/// Two of so many calls, each with one of three failures.
fn pairs(calls: usize) -> usize {
    calls * (calls - 1) / 2 * 9
}
