//! Promises P4 and P5, exhaustively on three nodes: each node in one of seven conditions, and each operation cancelled at
//! every one of its awaits. Virtual time; nothing here waits.

#[allow(dead_code, reason = "what tests in virtual time share; not all of it is needed here")]
mod common;

use self::common::meddled::{Meddled, Panicking, Timed, meddled};
use self::common::{in_virtual_time, ms, shared};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{
    AcquireError, Acquisition, Election, Guard, IntoResources as _, KeepAlive, KeyPrefix, LockNode, NodeError, Owner,
    Ownership, Redlock, Retry, TokioClock, Ttl,
};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

const NODE_TIMEOUT: Duration = ms(50);
const TTL: Duration = ms(60_000);
/// Longer than anything takes to be undone on a node that can be reached, shorter than the ttl.
const UNDONE_WITHIN: Duration = ms(20_000);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Condition {
    Well,
    /// A rival holds the resource there.
    Held,
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
}

const ALL: [Condition; 7] = [
    Condition::Well,
    Condition::Held,
    Condition::Refuses,
    Condition::Slow,
    Condition::TooSlow,
    Condition::Deaf,
    Condition::Mute,
];

impl Condition {
    fn fault(self) -> Fault {
        match self {
            Self::Well | Self::Held => Fault::none(),
            Self::Refuses => Fault::error(NodeError::unreachable("connection refused")),
            Self::Slow => Fault::request_delay(ms(10)),
            Self::TooSlow => Fault::request_delay(ms(80)),
            Self::Deaf => Fault::lose_request(),
            Self::Mute => Fault::lose_reply(),
        }
    }

    fn grants_in_time(self) -> bool {
        matches!(self, Self::Well | Self::Slow)
    }
}

struct World {
    memory: Vec<Arc<MemoryNode>>,
    nodes: Vec<Arc<Faulty<MemoryNode>>>,
    redlock: Redlock,
    rival: Owner,
}

impl World {
    async fn new(conditions: [Condition; 3]) -> Self {
        let clock = Arc::new(TokioClock::starting_now());
        let memory: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
        let nodes: Vec<_> = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        let rival = Owner::from_random_bytes([9; 16]);
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(TTL).node_timeout(NODE_TIMEOUT).clock(clock);
        let world = Self { redlock: builder.build().unwrap(), memory, nodes, rival };
        for (node, condition) in conditions.iter().enumerate() {
            if *condition == Condition::Held {
                let resources = "r".into_resources().unwrap();
                let ownership = Ownership::new(KeyPrefix::default(), resources, world.rival.clone());
                let held = world.memory[node].acquire(&ownership, Ttl::new(TTL).unwrap(), 0).await.unwrap();
                assert!(matches!(held, Acquisition::Granted { .. }));
            }
        }
        world
    }

    fn meets(&self, conditions: [Condition; 3]) {
        for (node, condition) in self.nodes.iter().zip(conditions) {
            node.always(move |_| condition.fault());
        }
    }

    /// P5: nothing of ours is left on a node that can be reached. Deaf and refusing ones cannot be told.
    async fn assert_nothing_left(&self, conditions: [Condition; 3], story: &str) {
        tokio::time::sleep(UNDONE_WITHIN).await;
        for (node, condition) in self.memory.iter().zip(conditions) {
            if matches!(condition, Condition::Refuses | Condition::Deaf) {
                continue;
            }
            let ours: Vec<_> = node.locks().into_iter().filter(|(_, owner, _)| owner != self.rival.expose()).collect();
            assert!(ours.is_empty(), "{story}, {conditions:?}: {} still has {ours:?}", node.name());
        }
    }
}

/// Polls a future at most `polls` times, then drops it; `None` if it was dropped.
async fn cancelled_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        let poll = future.as_mut().poll(cx).map(Some);
        if poll.is_pending() && left == 0 {
            // Let everybody else come to rest first, as a caller that gives up does.
            cx.waker().wake_by_ref();
        }
        poll
    })
    .await
}

fn for_all_conditions(test: impl AsyncFn([Condition; 3])) {
    for first in ALL {
        for second in ALL {
            for third in ALL {
                in_virtual_time(test([first, second, third]));
            }
        }
    }
}

const NEVER: usize = usize::MAX;

#[test]
fn p4_an_attempt_is_decided_by_the_nodes_that_answer_in_time() {
    for_all_conditions(async |conditions| {
        let world = World::new(conditions).await;
        world.meets(conditions);
        let began = tokio::time::Instant::now();
        let result = world.redlock.try_acquire("r").await;
        let took = began.elapsed();
        let in_time = conditions.iter().filter(|condition| condition.grants_in_time()).count();
        assert_eq!(result.is_ok(), 2 <= in_time, "{conditions:?}: {result:?}");
        let slowest_allowed = if conditions.iter().filter(|condition| **condition == Condition::Well).count() >= 2 {
            ms(0)
        } else {
            NODE_TIMEOUT + ms(1)
        };
        assert!(took <= slowest_allowed, "{conditions:?}: {took:?}");
        if let Err(error) = &result {
            let held = conditions.iter().filter(|condition| **condition == Condition::Held).count();
            let contended = 2 <= in_time + held;
            assert_eq!(matches!(error, AcquireError::Contended(_)), contended, "{conditions:?}: {error}");
            assert_eq!(matches!(error, AcquireError::Unavailable(_)), !contended, "{conditions:?}: {error}");
        }
        drop(result);
        world.assert_nothing_left(conditions, "an attempt").await;
    });
}

#[test]
fn p5_an_acquire_cancelled_at_any_await_leaves_nothing_behind() {
    for_all_conditions(async |conditions| {
        for polls in 0.. {
            let world = World::new(conditions).await;
            world.meets(conditions);
            let result = cancelled_after(polls, world.redlock.try_acquire("r")).await;
            let ended = result.is_some();
            drop(result);
            world.assert_nothing_left(conditions, &format!("acquire cancelled after {polls} polls")).await;
            if ended {
                break;
            }
        }
    });
}

/// With counters apart, so that the attempt makes its second trip.
#[test]
fn p5_a_raise_cancelled_at_any_await_leaves_nothing_behind() {
    for_all_conditions(async |conditions| {
        for polls in 0.. {
            let world = World::new(conditions).await;
            let resource = redlock_core::Resource::new("r").unwrap();
            for (node, counter) in world.memory.iter().zip([1 << 52, 1 << 51, 7]) {
                node.set_counter(&KeyPrefix::default(), &resource, counter);
            }
            world.meets(conditions);
            let result = cancelled_after(polls, world.redlock.try_acquire("r")).await;
            let ended = result.is_some();
            drop(result);
            world.assert_nothing_left(conditions, &format!("raise cancelled after {polls} polls")).await;
            if ended {
                break;
            }
        }
    });
}

async fn granted(world: &World) -> Guard {
    world.redlock.try_acquire("r").await.unwrap()
}

/// The grant is made on healthy nodes; then they fall into their conditions.
#[test]
fn p5_a_release_or_an_extension_cancelled_at_any_await_leaves_nothing_behind() {
    for_all_conditions(async |conditions| {
        if conditions.contains(&Condition::Held) {
            return;
        }
        for extend in [false, true] {
            for polls in (0..).chain([NEVER]) {
                let world = World::new(conditions).await;
                let guard = granted(&world).await;
                world.meets(conditions);
                let ended = if extend {
                    let result = cancelled_after(polls, guard.extend()).await;
                    drop(guard);
                    result.is_some()
                } else {
                    cancelled_after(polls, guard.release()).await.is_some()
                };
                let story = format!("{} cancelled after {polls} polls", if extend { "extend" } else { "release" });
                world.assert_nothing_left(conditions, &story).await;
                if ended {
                    break;
                }
            }
        }
    });
}

/// What is cancelled: work under a lock, or an election, with the lock kept alive meanwhile.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kept {
    WithLock,
    Campaign,
    Serve,
}

impl Kept {
    /// Three awaits of work in the middle, so that it can be cancelled there as well.
    async fn run(self, redlock: &Redlock) {
        let work = async |_held| {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        let single = Retry { wait: Duration::ZERO, ..Retry::default() };
        let election = Election::new(redlock, "r").unwrap().retry(single);
        match self {
            Self::WithLock => drop(redlock.request("r").wait(Duration::ZERO).work().run(work).await),
            Self::Campaign => drop(election.campaign().await),
            // Campaigns for ever while it cannot win; the first two stand for all of them.
            Self::Serve => drop(tokio::time::timeout(ms(110), election.serve(work)).await),
        }
    }
}

#[test]
fn p5_work_under_a_lock_and_elections_cancelled_at_any_await_leave_nothing_behind() {
    for_all_conditions(async |conditions| {
        for kept in [Kept::WithLock, Kept::Campaign, Kept::Serve] {
            for polls in 0.. {
                let world = World::new(conditions).await;
                world.meets(conditions);
                let ended = cancelled_after(polls, kept.run(&world.redlock)).await.is_some();
                world.assert_nothing_left(conditions, &format!("{kept:?} cancelled after {polls} polls")).await;
                if ended {
                    break;
                }
            }
        }
    });
}

/// The lock is granted by healthy nodes, which fall into their conditions while the work runs. It is cancelled before, in
/// and after renewals, every half second, that go well or fail; the ttl is too long to help.
#[test]
fn p5_work_cancelled_while_its_lock_is_renewed_leaves_nothing_behind() {
    for_all_conditions(async |conditions| {
        if conditions.contains(&Condition::Held) {
            return;
        }
        for cancelled_after in [0, 499, 501, 511, 551, 581, 700, 1_005].map(ms) {
            let world = World::new(conditions).await;
            let twice_a_second = KeepAlive::default().every_fraction(120);
            let work = world.redlock.request("r").work().keep_alive(twice_a_second).run(async |_held| {
                world.meets(conditions);
                std::future::pending::<()>().await;
            });
            let result = tokio::time::timeout(cancelled_after, work).await;
            assert!(result.is_err(), "{conditions:?}: the validity is not over: {result:?}");
            world.assert_nothing_left(conditions, &format!("work cancelled after {cancelled_after:?}")).await;
        }
    });
}

#[test]
fn p5_the_client_may_be_dropped_with_work_in_the_background() {
    for_all_conditions(async |conditions| {
        let world = World::new(conditions).await;
        world.meets(conditions);
        let result = world.redlock.try_acquire("r").await;
        let World { memory, nodes, redlock, rival } = world;
        drop(result);
        drop(redlock);
        tokio::time::sleep(UNDONE_WITHIN).await;
        for (node, condition) in memory.iter().zip(conditions) {
            // A mute node has executed the release, a deaf one was never told of anything.
            let ours = node.locks().into_iter().filter(|(_, owner, _)| owner != rival.expose()).count();
            assert_eq!(ours, 0, "{conditions:?}: {condition:?}");
        }
        drop(nodes);
    });
}

/// The release comes first, finds nothing, and the acquire takes effect after it: it is released once more.
#[test]
fn p5_a_release_that_overtakes_its_acquire_is_repeated() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let nodes = meddled(1, &clock, Timed::default);
        let node = &nodes[0];
        node.by.always(Question::Acquire, ms(200), ms(0));
        let builder = Redlock::builder().nodes(shared(&nodes)).ttl(TTL).node_timeout(NODE_TIMEOUT);
        let redlock = builder.clock(clock).build().unwrap();
        let result = redlock.try_acquire("r").await;
        assert!(matches!(result, Err(AcquireError::Unavailable(_))), "{result:?}");
        tokio::time::sleep(ms(100)).await;
        assert!(node.memory.locks().is_empty(), "not yet");
        tokio::time::sleep(ms(1_000)).await;
        assert!(node.memory.locks().is_empty(), "{:?}", node.memory.locks());
        redlock.settled().await;
    });
}

#[test]
fn p5_a_node_that_panics_keeps_nothing_locked_on_the_others() {
    in_virtual_time(async {
        let clock = Arc::new(TokioClock::starting_now());
        let memory: Vec<_> = (0..2).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
        let slow = Arc::new(Faulty::new(Arc::clone(&memory[1])));
        slow.always(|_| Fault::request_delay(ms(10)));
        let broken = Meddled { memory: MemoryNode::new("broken"), by: Panicking::default() };
        broken.by.when_asked([Question::Acquire, Question::Extend, Question::Release]);
        let nodes: [Arc<dyn LockNode>; 3] = [Arc::clone(&memory[0]) as _, Arc::new(broken), slow];
        let redlock = Redlock::builder().nodes(nodes).ttl(TTL).node_timeout(NODE_TIMEOUT).clock(clock).build().unwrap();
        // Its bug is its own failure: one missing vote.
        let guard = redlock.try_acquire("r").await.unwrap();
        assert_eq!(guard.report().failed().count(), 1, "{}", guard.report());
        guard.extend().await.unwrap();
        drop(guard);
        tokio::time::sleep(ms(1_000)).await;
        assert!(memory.iter().all(|node| node.locks().is_empty()), "{memory:?}");
    });
}
