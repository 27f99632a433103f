//! Keeping a lock, where every moment counts: releases that cross a renewal, renewals that fail, ceilings, and a clock
//! that goes on while timers stand still. Virtual time; nothing here waits.

#[allow(dead_code, reason = "what tests in virtual time share; not all of it is needed here")]
mod common;

use self::common::{Random, SuspendableClock, ms, shared, whole_validity};
use redlock_backends::MemoryNode;
use redlock_backends::faulty::{Fault, Faulty, Question};
use redlock_core::{
    ExtendError, Guard, HoldState, IntoResources as _, KeepAlive, KeyPrefix, LockNode, LossReason, NodeError, OnLoss,
    Ownership, Redlock, RedlockBuilder, ReleaseOutcome, WorkError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Tokio's timers end at whole milliseconds, so a wait may last this much longer than asked for.
const TICK: Duration = ms(1);

struct World {
    clock: Arc<SuspendableClock>,
    memory: Vec<Arc<MemoryNode>>,
    nodes: Vec<Arc<Faulty<MemoryNode>>>,
    redlock: Redlock,
    calls: Arc<AtomicUsize>,
}

impl World {
    fn new(nodes: usize, configure: impl FnOnce(RedlockBuilder) -> RedlockBuilder) -> Self {
        let clock = SuspendableClock::starting_now();
        let memory: Vec<_> =
            (0..nodes).map(|n| Arc::new(MemoryNode::with_clock(format!("n{n}"), clock.clone()))).collect();
        let nodes: Vec<_> = memory.iter().map(|node| Arc::new(Faulty::new(Arc::clone(node)))).collect();
        let builder = Redlock::builder().nodes(shared(&nodes)).clock(clock.clone());
        let world = Self { clock, memory, nodes, redlock: configure(builder).build().unwrap(), calls: Arc::default() };
        world.meets(|_, _| Fault::none());
        world
    }

    /// From now on every call meets what `fault` says for its node and question; and is counted.
    fn meets(&self, fault: impl Fn(usize, Question) -> Fault + Clone + Send + 'static) {
        for (n, node) in self.nodes.iter().enumerate() {
            let (fault, calls) = (fault.clone(), Arc::clone(&self.calls));
            node.always(move |question| {
                calls.fetch_add(1, Ordering::Relaxed);
                fault(n, question)
            });
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// How many nodes hold something.
    fn holding(&self) -> usize {
        self.memory.iter().filter(|node| !node.locks().is_empty()).count()
    }

    /// Takes a key away from its holder, as somebody with a shell would.
    async fn delete(&self, node: usize, resource: &str, guard: &Guard) {
        let ownership = Ownership::new(KeyPrefix::default(), resource.into_resources().unwrap(), guard.owner().clone());
        self.memory[node].release(&ownership).await.unwrap();
    }
}

async fn kept(world: &World) -> Guard {
    let guard = world.redlock.try_acquire("r").await.unwrap();
    world.redlock.settled().await;
    guard.keep_alive(KeepAlive::default());
    guard
}

#[tokio::test(start_paused = true)]
async fn a_release_that_crosses_a_renewal_is_no_loss_and_leaves_nothing() {
    const SEED: u64 = 300;
    const ROUNDS: u64 = 2_000;
    let world = World::new(5, |builder| builder.ttl(ms(300)));
    let extends = Arc::new(AtomicUsize::new(0));
    for (n, node) in (0..).zip(&world.nodes) {
        let (mut random, extends) = (Random(SEED + n), Arc::clone(&extends));
        node.always(move |question| {
            if question == Question::Extend {
                extends.fetch_add(1, Ordering::Relaxed);
            }
            let mut fault = Fault::request_delay(Duration::from_micros(random.below(10_000)));
            fault.reply_delay = Duration::from_micros(random.below(10_000));
            fault
        });
    }
    let mut random = Random(SEED);
    let mut crossed = 0;
    for round in 0..ROUNDS {
        let story = format!("seed {SEED}, round {round}");
        let guard = world.redlock.try_acquire("r").await.unwrap_or_else(|error| panic!("{story}: {error}"));
        guard.keep_alive(KeepAlive::default());
        let (lost, held) = (guard.lost_token(), guard.held());
        let before = extends.load(Ordering::Relaxed);
        // The first renewal is due after 100 ms and in flight for up to 20.
        sleep(ms(99) + Duration::from_micros(random.below(21_000))).await;
        crossed += usize::from(before < extends.load(Ordering::Relaxed));
        assert!(guard.is_held(), "{story}: {:?}", guard.state());
        let dropped = random.below(4) == 0;
        if dropped {
            drop(guard);
        } else {
            let release = guard.release().await;
            let given_back = matches!(release.outcome, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum);
            assert!(given_back, "{story}: {release:?}");
        }
        world.redlock.settled().await;
        assert_eq!(world.holding(), 0, "{story}, dropped: {dropped}");
        // Until long after the end of the validity, for news that come late.
        sleep(ms(400)).await;
        assert!(!lost.is_cancelled(), "{story}, dropped: {dropped}: a false lost signal");
        assert!(!held.is_held(), "{story}");
        assert_eq!(world.holding(), 0, "{story}, dropped: {dropped}: something came back");
    }
    assert!(1_000 < crossed, "only {crossed} of {ROUNDS} releases crossed a renewal");
}

/// A handle may outlive the guard, in work that was spawned and forgotten.
#[tokio::test(start_paused = true)]
async fn a_handle_says_that_a_lock_was_given_back() {
    for dropped in [false, true] {
        let world = World::new(3, |builder| builder.ttl(ms(10_000)));
        let guard = kept(&world).await;
        let (held, lost) = (guard.held(), guard.lost_token());
        assert!(held.is_held());
        if dropped {
            drop(guard);
        } else {
            guard.release().await;
        }
        assert!(!held.is_held(), "dropped: {dropped}: {:?}", held.state());
        assert_eq!(held.remaining(), Duration::ZERO);
        assert!(held.require(ms(1)).is_err());
        sleep(ms(20_000)).await;
        assert!(!held.is_held());
        assert!(!lost.is_cancelled(), "what was given back was not lost");
    }
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_ends_the_renewal_and_tells() {
    let world = World::new(5, |builder| builder.ttl(ms(3_000)));
    let guard = world.redlock.try_acquire("r").await.unwrap();
    let began = Instant::now();
    guard.keep_alive(KeepAlive::default().max_hold(ms(10_500)));
    let lost = guard.lost_token();
    let reason = guard.lost().await;
    assert_eq!(reason, LossReason::HeldTooLong { max_hold: ms(10_500) });
    assert!(lost.is_cancelled());
    let held_for = began.elapsed();
    assert!(ms(10_500) <= held_for && held_for <= ms(10_500) + TICK, "{held_for:?}");
    assert_eq!(guard.remaining(), Duration::ZERO);
    // No later than one ttl after the ceiling others get in, although the guard is still there.
    let calls = world.calls();
    sleep(ms(3_000)).await;
    assert_eq!(world.calls(), calls, "nothing is asked for a lock beyond its ceiling");
    assert_eq!(world.holding(), 0);
    assert!(matches!(guard.extend().await, Err(ExtendError::Lost { reason: LossReason::HeldTooLong { .. } })));
    assert_eq!(world.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn keeping_alive_again_replaces_what_was_asked_for_before() {
    let world = World::new(5, |builder| builder.ttl(ms(3_000)));
    let guard = world.redlock.try_acquire("r").await.unwrap();
    guard.keep_alive(KeepAlive::default().max_hold(ms(5_000)));
    sleep(ms(4_000)).await;
    guard.keep_alive(KeepAlive::default().max_hold(ms(60_000)));
    sleep(ms(20_000)).await;
    assert!(guard.is_held(), "{:?}", guard.state());

    // One renewal per node and period, not two.
    let calls = world.calls();
    sleep(ms(10_000)).await;
    let renewals = (world.calls() - calls) / 5;
    assert!((9..=11).contains(&renewals), "{renewals} renewals in ten periods");
}

#[tokio::test(start_paused = true)]
async fn keeping_alive_twice_still_tries_again_soon_after_a_failure() {
    let world = World::new(5, |builder| builder.ttl(ms(3_000)));
    let guard = kept(&world).await;
    guard.keep_alive(KeepAlive::default());
    world.meets(|_, _| Fault::error(NodeError::unreachable("connection refused")));
    sleep(ms(1_200)).await;
    assert!(matches!(guard.state(), HoldState::Uncertain { .. }), "{:?}", guard.state());
    world.meets(|_, _| Fault::none());
    sleep(ms(500)).await;
    assert!(matches!(guard.state(), HoldState::Held { .. }), "{:?}", guard.state());
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_shows_and_is_tried_again_inside_the_validity() {
    let failures = [
        Fault::error(NodeError::unreachable("connection refused")),
        Fault::lose_request(),
        Fault::lose_reply(),
        Fault::request_delay(ms(400)),
    ];
    for failure in failures {
        let world = World::new(5, |builder| builder.ttl(ms(6_000)));
        let guard = kept(&world).await;
        let lost = guard.lost_token();
        // The majority fails from before the first renewal, at 2 s, until 4 s.
        let fault = failure.clone();
        world.meets(move |node, _| if node < 3 { fault.clone() } else { Fault::none() });
        sleep(ms(1_900)).await;
        assert!(matches!(guard.state(), HoldState::Held { .. }), "{failure:?}: {:?}", guard.state());
        sleep(ms(200)).await;
        let state = guard.state();
        assert!(matches!(state, HoldState::Uncertain { remaining } if ms(3_000) < remaining), "{failure:?}: {state:?}");
        assert!(guard.is_held());
        let by_hand = guard.extend().await;
        assert!(matches!(by_hand, Err(ExtendError::Unconfirmed { .. })), "{failure:?}: {by_hand:?}");
        sleep(ms(1_900)).await;
        assert!(guard.is_held(), "{failure:?}");
        world.meets(|_, _| Fault::none());
        // Calls that were lost end in an error after `GIVES_UP_AFTER`; until then the node counts as silent.
        let lost_for_long = matches!(failure.failure, Some(redlock_backends::faulty::Failure::LoseRequest))
            || matches!(failure.failure, Some(redlock_backends::faulty::Failure::LoseReply));
        if lost_for_long {
            continue;
        }
        sleep(ms(800)).await;
        let state = guard.state();
        assert!(matches!(state, HoldState::Held { remaining } if ms(3_000) < remaining), "{failure:?}: {state:?}");
        assert!(!lost.is_cancelled());
        guard.release().await;
    }
}

/// A renewal is valid as soon as a quorum has confirmed it; it does not hang on the slowest node.
#[tokio::test(start_paused = true)]
async fn a_slow_minority_does_not_delay_what_the_quorum_confirmed() {
    let world = World::new(5, |builder| builder.ttl(ms(10_000)).node_timeout(ms(4_500)));
    let guard = kept(&world).await;
    let lost = guard.lost_token();
    world.meets(|node, _| if node < 2 { Fault::request_delay(ms(4_000)) } else { Fault::none() });
    for _ in 0..600 {
        sleep(ms(100)).await;
        let state = guard.state();
        // The next renewal begins when the slow ones of this one have answered, after 4 s: 5.9 s are left at least.
        assert!(matches!(state, HoldState::Held { remaining } if ms(5_000) < remaining), "{state:?}");
    }
    assert!(!lost.is_cancelled());
}

/// Neither does the loss.
#[tokio::test(start_paused = true)]
async fn a_slow_minority_does_not_delay_the_news_of_a_loss() {
    let world = World::new(5, |builder| builder.ttl(ms(10_000)).node_timeout(ms(4_500)));
    let guard = kept(&world).await;
    world.meets(|node, _| if node < 2 { Fault::request_delay(ms(4_000)) } else { Fault::none() });
    for node in 2..5 {
        world.delete(node, "r", &guard).await;
    }
    let began = Instant::now();
    let reason = guard.lost().await;
    assert_eq!(reason, LossReason::NotOwner { gone: 3, nodes: 5 });
    let took = began.elapsed();
    assert!(took <= ms(3_400), "{took:?}, more than a renewal period");
}

/// P7, without any help from the nodes: silence is no refusal, and the end of validity comes all the same.
#[tokio::test(start_paused = true)]
async fn the_lost_signal_comes_no_later_than_the_validity_ends() {
    for keep_alive in [false, true] {
        let world = World::new(5, |builder| builder.ttl(ms(6_000)));
        let acquired = Instant::now();
        let guard = world.redlock.try_acquire("r").await.unwrap();
        if keep_alive {
            guard.keep_alive(KeepAlive::default());
        }
        let (lost, held) = (guard.lost_token(), guard.held());
        world.meets(|_, question| match question {
            Question::Extend => Fault::lose_request(),
            _ => Fault::none(),
        });
        let (reason, ()) = tokio::join!(held.lost(), async {
            lost.cancelled().await;
            let told = acquired.elapsed();
            let end = whole_validity(ms(6_000));
            assert!(told <= end + TICK, "kept: {keep_alive}: told after {told:?}, valid for {end:?}");
            assert!(ms(5_900) < told, "kept: {keep_alive}: told after {told:?}, too early");
        });
        assert_eq!(reason, LossReason::Expired);
        assert!(!guard.is_held());
    }
}

/// P7: the machine sleeps past the end of the validity; tokio's timers do not notice, the clock does.
#[tokio::test(start_paused = true)]
async fn after_a_suspend_the_first_look_says_lost_and_nothing_is_asked() {
    for keep_alive in [false, true] {
        let world = World::new(5, |builder| builder.ttl(ms(30_000)));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        world.redlock.settled().await;
        if keep_alive {
            guard.keep_alive(KeepAlive::default());
        }
        let (lost, held) = (guard.lost_token(), guard.held());
        sleep(ms(5_000)).await;
        assert!(guard.is_held());
        let calls = world.calls();
        world.clock.suspend(ms(29_000));

        // No await in between: this is the holder's own first look.
        assert_eq!(guard.state(), HoldState::Lost(LossReason::Expired));
        assert_eq!((guard.remaining(), held.is_held()), (Duration::ZERO, false));
        assert!(lost.is_cancelled());
        assert!(guard.require(ms(1)).is_err());
        assert!(matches!(guard.extend().await, Err(ExtendError::Lost { reason: LossReason::Expired })));
        sleep(ms(60_000)).await;
        assert_eq!(world.calls(), calls, "kept: {keep_alive}: asked for a lock that is lost");
        assert_eq!(world.holding(), 0);
    }
}

/// The same for those who only wait: timers that were to end later look at the clock now and then.
#[tokio::test(start_paused = true)]
async fn after_a_suspend_those_who_wait_are_told_soon() {
    for keep_alive in [false, true] {
        let world = World::new(5, |builder| builder.ttl(ms(30_000)));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        if keep_alive {
            guard.keep_alive(KeepAlive::default());
        }
        let (lost, held) = (guard.lost_token(), guard.held());
        sleep(ms(1_234)).await;
        world.clock.suspend(ms(40_000));
        let woken = Instant::now();
        tokio::join!(lost.cancelled(), held.lost());
        assert!(woken.elapsed() <= ms(250), "kept: {keep_alive}: {:?}", woken.elapsed());
        drop(guard);
        world.redlock.settled().await;
        assert_eq!(world.holding(), 0);
    }
}

/// A suspend that the lock survives is followed by a renewal soon, as its turn has come by the clock.
#[tokio::test(start_paused = true)]
async fn after_a_short_suspend_the_lock_is_renewed_at_once() {
    let world = World::new(5, |builder| builder.ttl(ms(30_000)));
    let guard = kept(&world).await;
    world.clock.suspend(ms(25_000));
    assert!(guard.remaining() < ms(5_000));
    sleep(ms(300)).await;
    assert!(ms(29_000) < guard.remaining(), "{:?}", guard.state());
}

#[tokio::test(start_paused = true)]
async fn keys_gone_from_a_majority_are_a_loss_and_are_not_taken_again() {
    for (gone, lost_expected) in [(1, false), (2, false), (3, true), (4, true), (5, true)] {
        let world = World::new(5, |builder| builder.ttl(ms(6_000)));
        let guard = kept(&world).await;
        for node in 0..gone {
            world.delete(node, "r", &guard).await;
        }
        sleep(ms(2_100)).await;
        world.redlock.settled().await;
        let lost = !guard.is_held();
        assert_eq!(lost, lost_expected, "{gone} gone: {:?}", guard.state());
        let holding = if lost_expected { 5 - gone } else { 5 };
        assert_eq!(world.holding(), holding, "{gone} gone");
        guard.release().await;
        world.redlock.settled().await;
        assert_eq!(world.holding(), 0, "{gone} gone");
    }
}

/// Of several resources one may vanish on a node: what is left there is still ours to give back.
#[tokio::test(start_paused = true)]
async fn one_resource_of_two_gone_from_a_node_leaves_nothing_behind() {
    for gone in ["a", "b"] {
        let world = World::new(5, |builder| builder.ttl(ms(60_000)));
        let guard = world.redlock.try_acquire(["a", "b"]).await.unwrap();
        world.redlock.settled().await;
        world.delete(0, gone, &guard).await;
        guard.extend().await.unwrap();
        world.redlock.settled().await;
        assert!(guard.is_held());
        guard.release().await;
        world.redlock.settled().await;
        let left: Vec<_> = world.memory.iter().flat_map(|node| node.locks()).collect();
        assert!(left.is_empty(), "{gone} was gone: {left:?}");
    }
}

/// Each node taken again once more, in the middle of a release.
#[tokio::test(start_paused = true)]
async fn a_release_while_a_node_is_being_taken_again_leaves_nothing() {
    for delay in (0..40).map(|n| ms(5 * n)) {
        let world = World::new(5, |builder| builder.ttl(ms(6_000)));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        world.redlock.settled().await;
        for node in 0..2 {
            world.delete(node, "r", &guard).await;
        }
        world.meets(|_, question| match question {
            Question::Acquire => Fault::request_delay(ms(100)),
            _ => Fault::request_delay(ms(10)),
        });
        guard.keep_alive(KeepAlive::default());
        sleep(ms(1_950) + delay).await;
        let lost = guard.lost_token();
        drop(guard);
        world.redlock.settled().await;
        assert_eq!(world.holding(), 0, "dropped {delay:?} after 1.95 s");
        assert!(!lost.is_cancelled());
    }
}

#[tokio::test(start_paused = true)]
async fn lost_work_is_dropped_or_told_and_its_result_is_an_error() {
    for on_loss in [OnLoss::Drop, OnLoss::Tell] {
        let world = World::new(5, |builder| builder.ttl(ms(6_000)));
        let ended = Arc::new(AtomicUsize::new(0));
        let work = world.redlock.request("r").work().on_loss(on_loss).run(|held| {
            let ended = Arc::clone(&ended);
            async move {
                held.lost().await;
                sleep(ms(10_000)).await;
                ended.fetch_add(1, Ordering::Relaxed);
                42
            }
        });
        let flushed = async {
            sleep(ms(1_000)).await;
            world.memory.iter().for_each(|node| node.forget());
        };
        let (result, ()) = tokio::join!(work, flushed);
        let told = matches!(result, Err(WorkError::Lost { reason: LossReason::NotOwner { .. } }));
        assert!(told, "{on_loss:?}: {result:?}");
        let expected = usize::from(on_loss == OnLoss::Tell);
        assert_eq!(ended.load(Ordering::Relaxed), expected, "{on_loss:?}");
    }
}

/// Work that never yields cannot be dropped, and gets no `Ok` for what it did after the end.
#[tokio::test(start_paused = true)]
async fn work_that_outlived_its_lock_without_a_look_is_an_error() {
    let world = World::new(5, |builder| builder.ttl(ms(6_000)));
    let result = world
        .redlock
        .with_lock("r", async |_held| {
            world.clock.suspend(ms(7_000));
            42
        })
        .await;
    assert!(matches!(result, Err(WorkError::Lost { reason: LossReason::Expired })), "{result:?}");
}

/// The holder asks from a thread that belongs to no runtime: the runtime of the acquire serves.
#[test]
fn keeping_alive_and_the_signal_work_from_any_thread() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let nodes = (0..3).map(|n| Arc::new(MemoryNode::new(format!("n{n}"))) as Arc<dyn LockNode>);
    let redlock = Redlock::builder().nodes(nodes).ttl(ms(900)).node_timeout(ms(200)).build().unwrap();
    let (kept, unkept) = runtime
        .block_on(async { (redlock.try_acquire("kept").await.unwrap(), redlock.try_acquire("unkept").await.unwrap()) });
    kept.keep_alive(KeepAlive::default());
    let lost = unkept.lost_token();
    runtime.block_on(async {
        tokio::time::timeout(ms(20_000), lost.cancelled()).await.expect("the end of the validity is announced");
        sleep(ms(2_000)).await;
    });
    assert!(kept.is_held(), "{:?}", kept.state());
}

/// Two runtimes share a client, and the one whose thread happens to look after all locks ends.
#[test]
fn the_end_of_one_runtime_does_not_end_the_keeping_of_another() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (first, second) = (runtime(), runtime());
    let nodes = (0..3).map(|n| Arc::new(MemoryNode::new(format!("n{n}"))) as Arc<dyn LockNode>);
    let redlock = Redlock::builder().nodes(nodes).ttl(ms(900)).node_timeout(ms(200)).build().unwrap();
    let early = first.block_on(async {
        let guard = redlock.try_acquire("early").await.unwrap();
        guard.keep_alive(KeepAlive::default());
        guard
    });
    let (kept, lost) = second.block_on(async {
        let kept = redlock.try_acquire("kept").await.unwrap();
        kept.keep_alive(KeepAlive::default());
        (kept, redlock.try_acquire("unkept").await.map(|guard| (guard.lost_token(), guard)).unwrap())
    });
    drop(first);
    second.block_on(async {
        tokio::time::timeout(ms(20_000), lost.0.cancelled()).await.expect("the end of the validity is announced");
        sleep(ms(2_000)).await;
    });
    assert!(kept.is_held(), "{:?}", kept.state());
    drop(early);
}

/// An extension to a shorter ttl shrinks the validity at once, and those who wait for its end hear of that.
#[tokio::test(start_paused = true)]
async fn a_validity_that_was_shortened_ends_on_time() {
    for confirmed in [true, false] {
        let world = World::new(5, |builder| builder.ttl(ms(30_000)));
        let guard = world.redlock.try_acquire("r").await.unwrap();
        let (lost, held) = (guard.lost_token(), guard.held());
        if !confirmed {
            world.meets(|_, _| Fault::error(NodeError::unreachable("connection refused")));
        }
        let waiting = async { tokio::join!(lost.cancelled(), held.lost()) };
        let shortening = async {
            // Just after those who wait have looked.
            sleep(ms(1_003)).await;
            let began = Instant::now();
            assert_eq!(guard.extend_to(ms(100)).await.is_ok(), confirmed);
            began
        };
        let (_, began) = tokio::join!(waiting, shortening);
        assert!(began.elapsed() <= whole_validity(ms(100)) + TICK, "confirmed: {confirmed}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_comes_on_time_while_a_renewal_is_under_way() {
    let world = World::new(5, |builder| builder.ttl(ms(10_000)).node_timeout(ms(4_500)));
    let guard = world.redlock.try_acquire("r").await.unwrap();
    world.meets(|node, _| if node < 2 { Fault::request_delay(ms(4_000)) } else { Fault::none() });
    let began = Instant::now();
    guard.keep_alive(KeepAlive::default().max_hold(ms(5_050)));
    guard.lost_token().cancelled().await;
    assert!(began.elapsed() <= ms(5_050) + TICK, "{:?}", began.elapsed());
}
