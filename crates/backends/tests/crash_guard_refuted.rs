//! What a hostile review of the crash-recovery guard refuted stays mended.

use redlock_backends::faulty::{Fault, Question};
use redlock_backends::{Faulty, MemoryNode, RedisNode};
use redlock_bench::{RedisOptions, Servers, eventually};
use redlock_core::{
    Acquisition, FencingToken, KeyPrefix, LockNode, NodeError, Ownership, Redlock, RedlockBuilder, Resource, Service,
    SettingsError, Standing, TokioClock, Ttl,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Faults = Vec<fn(Question) -> Fault>;

fn guarded(nodes: Vec<Arc<dyn LockNode>>, ttl: Duration) -> RedlockBuilder {
    Redlock::builder().nodes(nodes).ttl(ttl).crash_guard(ttl).without_clock_floor()
}

fn none(_: Question) -> Fault {
    Fault::none()
}

fn lost(_: Question) -> Fault {
    Fault::lose_request()
}

fn built(inner: &[Arc<MemoryNode>], faults: Faults, ttl: Duration, clock: &Arc<TokioClock>) -> RedlockBuilder {
    let nodes = inner.iter().zip(faults).map(|(node, fault)| {
        let faulty = Faulty::new(Arc::clone(node));
        faulty.always(fault);
        Arc::new(faulty) as Arc<dyn LockNode>
    });
    guarded(nodes.collect(), ttl).clock(clock.clone())
}

fn memory(n: usize) -> (Arc<TokioClock>, Vec<Arc<MemoryNode>>) {
    let clock = Arc::new(TokioClock::starting_now());
    let nodes = (0..n).map(|n| Arc::new(MemoryNode::with_clock(format!("m{n}"), clock.clone()))).collect();
    (clock, nodes)
}

fn late(question: Question, which: Question, millis: u64) -> Fault {
    if question == which { Fault::reply_delay(ms(millis)) } else { Fault::none() }
}

/// What was said once on a connection is not all that there is to say.
#[tokio::test]
async fn clients_that_share_connections_tell_their_longest_ttl_all_the_same() {
    let servers = Servers::start(3).await.unwrap();
    let nodes = RedisNode::open_all(servers.urls().iter().map(String::as_str)).unwrap();
    let short = guarded(nodes.clone(), ms(600)).node_timeout(ms(150)).build().unwrap();
    let long = guarded(nodes.clone(), ms(60_000)).node_timeout(ms(150)).build().unwrap();
    short.enroll_fresh().await.unwrap();
    short.try_acquire("s").await.unwrap().release().await;
    let held = long.acquire("r").await.unwrap();
    servers[0].restart().await.unwrap();
    // The others have been told, so the one that forgot waits for the longest.
    let waits = eventually(Duration::from_secs(30), || async {
        match short.enroll().await.unwrap().remove(0).standing {
            Ok(Standing { service: Service::Quarantined { remaining }, .. }) if ms(10_000) < remaining => Ok(remaining),
            other => Err(format!("{other:?}")),
        }
    });
    assert!(held.remaining() < waits.await.unwrap());
    held.release().await;
}

/// Whenever its answer is heard, a node that waits is enrolled.
#[tokio::test(start_paused = true)]
async fn a_node_that_answers_after_the_decision_is_taken_back_too() {
    let clock = Arc::new(TokioClock::starting_now());
    let inner: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("m{n}"), clock.clone()))).collect();
    let nodes: Vec<Arc<dyn LockNode>> = inner
        .iter()
        .enumerate()
        .map(|(n, node)| {
            let faulty = Faulty::new(Arc::clone(node));
            let delay = if n == 2 { ms(2) } else { ms(1) };
            faulty.always(move |_| Fault::reply_delay(delay));
            Arc::new(faulty) as Arc<dyn LockNode>
        })
        .collect();
    let redlock = guarded(nodes, ms(600)).clock(clock.clone()).build().unwrap();
    redlock.enroll_fresh().await.unwrap();
    inner[2].forget();
    for _ in 0..3_000 {
        redlock.try_acquire("r").await.unwrap().release().await;
        tokio::time::sleep(ms(20)).await;
    }
    redlock.settled().await;
    let standing = inner[2].standing(&KeyPrefix::default(), ms(608)).await.unwrap();
    assert_eq!(standing.service, Service::Enrolled, "after a minute of grants");
}

/// The model's `Rule::MarksFromBefore`: a raise that is under way at the end of the quarantine has to be in the marks.
#[tokio::test(start_paused = true)]
async fn marks_are_not_fetched_before_the_quarantine_is_over() {
    let clock = Arc::new(TokioClock::starting_now());
    let inner: Vec<_> = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("m{n}"), clock.clone()))).collect();
    let build = |faults: [fn(Question) -> Fault; 3], timeout| {
        let nodes: Vec<Arc<dyn LockNode>> = inner
            .iter()
            .zip(faults)
            .map(|(node, fault)| {
                let faulty = Faulty::new(Arc::clone(node));
                faulty.always(fault);
                Arc::new(faulty) as Arc<dyn LockNode>
            })
            .collect();
        guarded(nodes, ms(3_000)).clock(clock.clone()).node_timeout(timeout).build().unwrap()
    };
    let none: fn(Question) -> Fault = |_| Fault::none();
    let operator = build([none, |q| late(q, Question::Standing, 600), |q| late(q, Question::Standing, 600)], ms(1_400));
    operator.enroll_fresh().await.unwrap();
    inner[0].set_counter(&KeyPrefix::default(), &Resource::new("r").unwrap(), 9);
    // A slow client: node 0 grants at 10, node 1 at 1, node 2 is out of reach; its raise of node 1 is under way for long.
    let slow = build(
        [
            none,
            |q| if q == Question::Raise { Fault::request_delay(ms(1_350)) } else { late(q, Question::Acquire, 1_300) },
            |_| Fault::lose_request(),
        ],
        ms(1_400),
    );
    let mut granting = JoinSet::new();
    granting.spawn({
        let slow = slow.clone();
        async move { slow.try_acquire("r").await }
    });
    tokio::time::sleep(ms(20)).await;
    inner[0].forget();
    let noticed = inner[0].standing(&KeyPrefix::default(), ms(3_032)).await.unwrap();
    assert!(matches!(noticed.service, Service::Quarantined { .. }));
    tokio::time::sleep(ms(1_980)).await;
    operator.enroll().await.unwrap();
    let first = granting.join_next().await.unwrap().unwrap().expect("granted within its validity");
    let first_token = first.token();
    first.release().await;
    slow.settled().await;
    let next = build([none, |_| Fault::lose_request(), none], ms(100));
    let second = next.try_acquire("r").await;
    // Node 0 may still be in quarantine.
    assert!(second.is_err() || first_token < second.unwrap().token(), "after {first_token}");
    let standings = operator.enroll().await.unwrap();
    assert!(standings.iter().all(|found| found.is_enrolled()), "{standings:?}");
    let third = next.try_acquire("r").await.expect("nodes 0 and 2 are well").token();
    assert!(first_token < third, "{third} after {first_token}");
}

/// Whoever may not see who a server is cannot say that it is another one.
#[tokio::test]
async fn a_client_without_info_costs_the_others_nothing() {
    let options = |_| RedisOptions::new().set("user", ["few", "on", ">secret", "~lock:*", "&lock:*", "+@all", "-info"]);
    let servers = Servers::start_with(3, options).await.unwrap();
    let nodes = || RedisNode::open_all(servers.urls().iter().map(String::as_str)).unwrap();
    let all = guarded(nodes(), ms(600)).node_timeout(ms(150)).build().unwrap();
    all.enroll_fresh().await.unwrap();
    all.try_acquire("r").await.unwrap().release().await;
    let few: Vec<String> = servers.urls().iter().map(|u| u.replace("redis://", "redis://few:secret@")).collect();
    let few = guarded(RedisNode::open_all(few.iter().map(String::as_str)).unwrap(), ms(600)).node_timeout(ms(150));
    few.build().unwrap().try_acquire("r").await.unwrap().release().await;
    let later = all.try_acquire("another").await.map(drop).map_err(|error| error.to_string());
    assert!(later.is_ok(), "nothing was lost: {later:?}");
}

/// One quarantine is the same for those who know the server's name and those who do not.
#[tokio::test]
async fn clients_with_and_without_info_do_not_keep_each_other_out() {
    let options = |_| RedisOptions::new().set("user", ["few", "on", ">secret", "~lock:*", "&lock:*", "+@all", "-info"]);
    let servers = Servers::start_with(3, options).await.unwrap();
    let urls = servers.urls();
    let few: Vec<String> = urls.iter().map(|u| u.replace("redis://", "redis://few:secret@")).collect();
    let client = |urls: &[String]| {
        let nodes = RedisNode::open_all(urls.iter().map(String::as_str)).unwrap();
        guarded(nodes, ms(600)).node_timeout(ms(150)).build().unwrap()
    };
    let (all, few) = (client(&urls), client(&few));
    all.enroll_fresh().await.unwrap();
    few.try_acquire("a").await.unwrap().release().await;
    all.try_acquire("b").await.unwrap().release().await;

    servers[0].restart().await.unwrap();
    servers[1].restart().await.unwrap();
    for server in &servers[..2] {
        let user = ["ACL", "SETUSER", "few", "on", ">secret", "~lock:*", "&lock:*", "+@all", "-info"];
        server.command(&user).await.unwrap();
    }
    eventually(Duration::from_secs(30), || async {
        let _ = few.try_acquire("a").await;
        // Once a quorum is back, the rest is enrolled by whoever asks.
        let _ = all.reseed(FencingToken::assume_granted(7).unwrap()).await;
        let standings = all.standings().await.unwrap();
        match standings.iter().all(|found| found.is_enrolled()) {
            true => Ok(()),
            false => Err(format!("{standings:?}")),
        }
    })
    .await
    .unwrap();
    few.try_acquire("a").await.unwrap().release().await;
    all.try_acquire("b").await.unwrap().release().await;
}

/// Two losses within one enrolment: the marks are those of the first.
#[tokio::test(start_paused = true)]
async fn marks_that_were_fetched_after_an_earlier_loss_do_not_count() {
    let (clock, inner) = memory(3);
    let ttl = ms(100);
    let all = built(&inner, vec![none, none, none], ttl, &clock).build().unwrap();
    all.enroll_fresh().await.unwrap();
    inner[0].forget();
    all.standings().await.unwrap();
    tokio::time::sleep(ms(200)).await;
    let slow = built(&inner, vec![none, none, |q| late(q, Question::Standing, 450)], ttl, &clock).build().unwrap();
    let mut enrolling = JoinSet::new();
    enrolling.spawn(async move { slow.enroll().await });
    tokio::time::sleep(ms(500)).await;
    // Its marks are fetched, and on their way. Somebody else is quicker.
    assert!(all.enroll().await.unwrap().iter().all(|f| f.is_enrolled()));
    inner[0].set_counter(&KeyPrefix::default(), &Resource::new("r").unwrap(), 50);
    let first = built(&inner, vec![none, none, lost], ttl, &clock).build().unwrap();
    let guard = first.try_acquire("r").await.unwrap();
    let first_token = guard.token();
    guard.release().await;
    inner[0].forget();
    all.standings().await.unwrap();
    let found = enrolling.join_next().await.unwrap().unwrap().unwrap().remove(0).standing.unwrap();
    assert_ne!(found.service, Service::Enrolled, "it has lost its memory once more");
    tokio::time::sleep(ms(200)).await;
    let next = built(&inner, vec![none, lost, none], ttl, &clock).build().unwrap().try_acquire("r").await;
    match next {
        Ok(next) => assert!(first_token < next.token(), "{} after {first_token}", next.token()),
        // It waits to be enrolled.
        Err(error) => assert!(error.to_string().contains("quarantined"), "{error}"),
    }
}

/// A base can never be taken back.
#[tokio::test]
async fn a_reseed_leaves_room_for_tokens() {
    let nodes: Vec<Arc<dyn LockNode>> =
        (0..3).map(|n| Arc::new(MemoryNode::new(format!("m{n}"))) as Arc<dyn LockNode>).collect();
    let redlock = guarded(nodes, ms(300)).build().unwrap();
    redlock.standings().await.unwrap();
    tokio::time::sleep(ms(400)).await;
    let reseeded = redlock.reseed(FencingToken::MAX).await;
    let answer = redlock.try_acquire("r").await;
    assert!(reseeded.is_err() || answer.is_ok());
}

/// Whoever stops because the lock is lost drops its guard: that is no release.
#[tokio::test(start_paused = true)]
async fn a_lost_guard_that_is_dropped_does_not_end_the_lock_delay() {
    let clock = Arc::new(TokioClock::starting_now());
    let nodes = (0..3).map(|n| Arc::new(MemoryNode::with_clock(format!("m{n}"), clock.clone())) as Arc<dyn LockNode>);
    let redlock =
        Redlock::builder().nodes(nodes).ttl(ms(500)).lock_delay(ms(10_000)).clock(clock.clone()).build().unwrap();
    let lost = redlock.acquire("r").await.unwrap();
    lost.held().lost().await;
    drop(lost);
    redlock.settled().await;
    let next = redlock.try_acquire("r").await;
    assert!(next.is_err(), "granted at once after a holder was lost");
}

/// A node with the four calls of the contract and nothing else.
struct Plain(MemoryNode);

#[async_trait::async_trait]
impl LockNode for Plain {
    fn name(&self) -> &str {
        self.0.name()
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        self.0.acquire(ownership, ttl, floor).await
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<redlock_core::Raising, NodeError> {
        self.0.raise(ownership, to).await
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<redlock_core::Extension, NodeError> {
        self.0.extend(ownership, ttl).await
    }

    async fn release(&self, ownership: &Ownership) -> Result<redlock_core::Releasing, NodeError> {
        self.0.release(ownership).await
    }
}

/// It cannot tell that it has lost its memory, so there is no client with the guard on over it.
#[test]
fn a_node_that_keeps_no_record_is_refused() {
    let nodes = (0..3).map(|n| Arc::new(Plain(MemoryNode::new(format!("m{n}")))) as Arc<dyn LockNode>);
    let error = guarded(nodes.collect(), ms(20_000)).build().unwrap_err();
    assert!(matches!(error, SettingsError::NodeWithoutRecord { ref node } if node == "m0"), "{error}");
}
