//! The crash-recovery guard, step by step, on real servers and on the in-memory reference alike.
//!
//! What becomes of grants when a node forgets in the middle of a lock is shown in `crates/chaos/tests/crash_recovery.rs`.

use redlock_backends::{MemoryNode, RedisNode};
use redlock_bench::{RedisOptions, RedisServer, Reply, Servers, eventually};
use redlock_core::{
    AcquireError, Acquisition, EnrollError, Enrolment, FencingToken, IntoResources as _, KeyPrefix, LockNode,
    NodeError, NodeOutcome, Owner, Ownership, Raising, Redlock, Refusal, Report, Service, SettingsError, Ttl,
};
use std::sync::Arc;
use std::time::Duration;

/// The longest ttl of the clients here.
const LONGEST: Duration = Duration::from_millis(600);

/// What that and the drift allowance make of it.
const QUARANTINE: Duration = Duration::from_millis(608);

const PATIENCE: Duration = Duration::from_secs(20);

const RECORD: &str = "lock:~namespace";

/// Nodes that can be made to forget.
enum World {
    Memory(Vec<Arc<MemoryNode>>),
    Redis(Servers),
}

impl World {
    async fn redis(n: usize) -> Self {
        Self::Redis(Servers::start(n).await.unwrap())
    }

    fn memory(n: usize) -> Self {
        Self::Memory((0..n).map(|n| Arc::new(MemoryNode::new(format!("memory-{n}")))).collect())
    }

    /// A client of all nodes with connections of its own.
    fn client(&self) -> Redlock {
        let nodes: Vec<Arc<dyn LockNode>> = match self {
            Self::Memory(nodes) => nodes.iter().map(|node| Arc::clone(node) as Arc<dyn LockNode>).collect(),
            Self::Redis(servers) => RedisNode::open_all(servers.urls().iter().map(String::as_str)).unwrap(),
        };
        let builder = Redlock::builder().nodes(nodes).ttl(LONGEST).node_timeout(Duration::from_millis(150));
        // The marks alone have to keep tokens in order.
        builder.crash_guard(LONGEST).without_clock_floor().build().unwrap()
    }

    async fn forget(&self, node: usize) {
        match self {
            Self::Memory(nodes) => nodes[node].forget(),
            Self::Redis(servers) => servers[node].restart().await.unwrap(),
        }
    }
}

/// The token of one grant, as soon as there is one.
async fn token(redlock: &Redlock) -> FencingToken {
    let granted = eventually(PATIENCE, || async {
        let guard = redlock.try_acquire("r").await.map_err(|error| error.to_string())?;
        let token = guard.token();
        guard.release().await;
        Ok::<_, String>(token)
    });
    granted.await.unwrap()
}

async fn enrolled(redlock: &Redlock) -> usize {
    redlock.standings().await.unwrap().iter().filter(|found| found.is_enrolled()).count()
}

fn quarantined(report: Option<&Report>) -> usize {
    let outcomes = report.into_iter().flat_map(|report| &report.nodes);
    let is = |outcome: &NodeOutcome| matches!(outcome, NodeOutcome::Failed(NodeError::Quarantined { .. }));
    outcomes.filter(|node| is(&node.outcome)).count()
}

async fn a_deployment_serves_once_it_is_enrolled(world: World) {
    let redlock = world.client();
    let error = redlock.try_acquire("r").await.unwrap_err();
    assert!(matches!(error, AcquireError::Unavailable(_)), "not contention: {error}");
    assert!(2 <= quarantined(error.report()), "{error}");
    assert!(error.to_string().contains("quarantined for"), "{error}");

    // Somebody who does not know that it is fresh cannot say so by accident.
    let error = redlock.enroll().await.unwrap_err();
    assert!(matches!(error, EnrollError::TooFewEnrolled { enrolled: 0, needed: 2 }), "{error}");

    let standings = redlock.enroll_fresh().await.unwrap();
    assert!(standings.iter().all(|found| found.is_enrolled()), "{standings:?}");
    token(&redlock).await;
    let error = redlock.enroll_fresh().await.unwrap_err();
    assert!(matches!(error, EnrollError::EnrolledAlready { enrolled: 3 }), "{error}");
}

/// Nobody has to do anything: whoever asks for a lock has the node taken back, above all tokens that were issued.
async fn a_node_that_forgot_is_taken_back_by_whoever_asks(world: World) {
    let redlock = world.client();
    redlock.enroll_fresh().await.unwrap();
    let mut latest = token(&redlock).await;
    for node in [0, 1, 2, 0] {
        world.forget(node).await;
        eventually(PATIENCE, || async {
            let token = token(&redlock).await;
            match enrolled(&redlock).await {
                3 => Ok(token),
                n => Err(format!("{n} nodes are enrolled")),
            }
        })
        .await
        .map(|token| {
            assert!(latest < token, "{token} after {latest}");
            latest = token;
        })
        .unwrap();
    }
}

async fn a_quorum_that_forgot_fails_closed_until_it_is_reseeded(world: World) {
    let redlock = world.client();
    redlock.enroll_fresh().await.unwrap();
    let before = token(&redlock).await;
    let highest = FencingToken::assume_granted(before.get() + 1_000_000).unwrap();
    let error = redlock.reseed(highest).await.unwrap_err();
    assert!(matches!(error, EnrollError::EnrolledAlready { enrolled: 3 }), "history is there: {error}");

    world.forget(0).await;
    world.forget(2).await;
    let early = redlock.reseed(highest).await.unwrap();
    assert_eq!(early.iter().filter(|found| found.is_enrolled()).count(), 1, "locks may be out there: {early:?}");

    // However long it takes: nobody knows where the counters stood.
    eventually(PATIENCE, || async {
        let error = redlock.try_acquire("r").await.expect_err("a quorum has forgotten");
        assert!(matches!(error, AcquireError::Unavailable(_)), "{error}");
        match error.to_string() {
            told if told.contains("reseed") => Ok(()),
            told => Err(told),
        }
    })
    .await
    .unwrap();
    redlock.settled().await;
    assert_eq!(enrolled(&redlock).await, 1, "and nobody was enrolled from a single other node");

    // Their quarantines need not end at the same moment.
    eventually(PATIENCE, || async {
        let (reseeded, rest) = (redlock.reseed(highest).await, redlock.enroll().await);
        match enrolled(&redlock).await {
            3 => Ok(()),
            n => Err(format!("{n} nodes are enrolled: {reseeded:?} {rest:?}")),
        }
    })
    .await
    .unwrap();
    assert!(highest < token(&redlock).await);
}

/// A node that is in quarantine confirms nothing either: not a lock that it may have taken back from a log, and not a counter.
async fn what_is_held_elsewhere_is_extended_without_the_node_that_forgot(world: World) {
    let redlock = world.client();
    redlock.enroll_fresh().await.unwrap();
    let guard = redlock.acquire("r").await.unwrap();
    world.forget(1).await;
    guard.extend().await.unwrap();
    world.forget(2).await;
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, redlock_core::ExtendError::Unconfirmed { .. }), "two nodes do not say: {error}");
    guard.release().await;
}

macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod memory {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                super::$name(World::memory(3)).await;
            })+
        }

        mod redis {
            use super::*;
            $(#[tokio::test]
            async fn $name() {
                super::$name(World::redis(3).await).await;
            })+
        }
    };
}

on_both! {
    a_deployment_serves_once_it_is_enrolled,
    a_node_that_forgot_is_taken_back_by_whoever_asks,
    a_quorum_that_forgot_fails_closed_until_it_is_reseeded,
    what_is_held_elsewhere_is_extended_without_the_node_that_forgot,
}

async fn enroll_at_once(node: &RedisNode) {
    let loss = node.standing(&KeyPrefix::default(), QUARANTINE).await.unwrap().loss;
    let enrolment = Enrolment { base: 0, quarantine: QUARANTINE, at_once: true, loss };
    let standing = node.enroll(&KeyPrefix::default(), &enrolment).await.unwrap();
    assert_eq!(standing.service, Service::Enrolled);
}

struct Single {
    server: RedisServer,
    node: RedisNode,
}

impl Single {
    async fn new() -> Self {
        Self::with(RedisOptions::new()).await
    }

    async fn with(options: RedisOptions) -> Self {
        let server = RedisServer::start(options).await.unwrap();
        let node = RedisNode::connect(&server.url()).await.unwrap();
        Self { server, node }
    }

    async fn enroll_at_once(&self) {
        enroll_at_once(&self.node).await;
    }

    async fn acquire(&self, ownership: &Ownership) -> Result<Acquisition, NodeError> {
        self.node.acquire(ownership, Ttl::new(LONGEST).unwrap(), 0).await
    }

    async fn counter(&self, names: &[&str]) -> u64 {
        let ownership = ownership(names);
        let Ok(Acquisition::Granted { counter }) = self.acquire(&ownership).await else { panic!("not granted") };
        self.node.release(&ownership).await.unwrap();
        counter
    }

    async fn keys(&self) -> Vec<String> {
        let mut keys = self.server.probe().keys("*").await.unwrap();
        keys.retain(|key| key != RECORD);
        keys
    }

    async fn command(&self, words: &[&str]) -> Reply {
        let reply = self.server.command(words).await.unwrap();
        assert!(!reply.is_error(), "{words:?}: {reply:?}");
        reply
    }
}

fn ownership(names: &[&str]) -> Ownership {
    let owner = Owner::from_random_bytes([1; 16]);
    Ownership::new(KeyPrefix::default(), names.into_resources().unwrap(), owner).guarded(QUARANTINE)
}

fn is_quarantined<T: std::fmt::Debug>(answer: &Result<T, NodeError>) -> bool {
    matches!(answer, Err(NodeError::Quarantined { .. }))
}

/// The connection stands, so nobody compares identities again: the scripts have to see that the record is gone.
#[tokio::test]
async fn a_node_that_was_emptied_takes_nothing() {
    let single = Single::new().await;
    single.enroll_at_once().await;
    single.counter(&["a"]).await;
    single.command(&["FLUSHALL"]).await;
    for names in [&["a"][..], &["a", "b"]] {
        let answer = single.acquire(&ownership(names)).await;
        assert!(is_quarantined(&answer), "{answer:?}");
        assert_eq!(single.keys().await, [""; 0], "neither a lock nor a counter");
    }
    let Err(NodeError::Quarantined { remaining }) = single.acquire(&ownership(&["a"])).await else { panic!("serves") };
    assert!(Duration::ZERO < remaining && remaining <= QUARANTINE, "{remaining:?}");
    // Without the guard the node is what it always was.
    let unguarded =
        Ownership::new(KeyPrefix::default(), ["a"].into_resources().unwrap(), ownership(&["a"]).owner().clone());
    assert!(matches!(single.acquire(&unguarded).await, Ok(Acquisition::Granted { counter: 1 })));
}

/// Only a part may be gone, as when somebody deletes a key by hand.
#[tokio::test]
async fn a_record_that_is_gone_is_noticed_where_a_counter_is_new_or_beyond_its_mark() {
    let single = Single::new().await;
    single.enroll_at_once().await;
    let counter = single.counter(&["a"]).await;
    single.command(&["DEL", RECORD]).await;
    assert!(is_quarantined(&single.acquire(&ownership(&["b"])).await));
    let beyond = single.node.acquire(&ownership(&["a"]), Ttl::new(LONGEST).unwrap(), counter + (1 << 40)).await;
    assert!(is_quarantined(&beyond), "{beyond:?}");
    assert!(!single.keys().await.contains(&"lock:a".to_owned()));
}

/// What the base is for besides counters that are gone: those that come back from a log that was cut off.
#[tokio::test]
async fn counters_that_came_back_too_low_do_not_count() {
    let single = Single::new().await;
    single.enroll_at_once().await;
    single.counter(&["a"]).await;
    // As if by another server, whose connections are new ones.
    single.command(&["HSET", RECORD, "identity", "another"]).await;
    let node = RedisNode::connect(&single.server.url()).await.unwrap();
    let again = Single { server: single.server, node };
    assert!(is_quarantined(&again.acquire(&ownership(&["a"])).await));
    let loss = again.node.standing(&KeyPrefix::default(), QUARANTINE).await.unwrap().loss;
    let enrolment = Enrolment { base: 7_000_000_000, quarantine: QUARANTINE, at_once: false, loss };
    eventually(PATIENCE, || async {
        let standing = again.node.enroll(&KeyPrefix::default(), &enrolment).await.unwrap();
        assert!(standing.high == 0 || 7_000_000_000 < standing.high || standing.service != Service::Enrolled);
        if standing.service == Service::Enrolled { Ok(()) } else { Err(format!("{standing:?}")) }
    })
    .await
    .unwrap();
    assert_eq!(again.counter(&["a"]).await, 7_000_000_001, "although its counter stood at 1");
    let held = ownership(&["a"]);
    again.acquire(&held).await.unwrap();
    again.command(&["SET", "lock:~fence:{lock:a}", "5"]).await;
    assert_eq!(again.node.raise(&held, 6).await.unwrap(), Raising::At(7_000_000_000));
}

/// The quarantine counts from when somebody noticed, for everybody; and anew after another restart.
#[tokio::test]
async fn a_quarantine_is_one_for_all_and_begins_again_with_each_restart() {
    let single = Single::with(RedisOptions::new().set("appendonly", ["yes"]).set("appendfsync", ["always"])).await;
    let standing = |node: RedisNode| async move {
        match node.standing(&KeyPrefix::default(), QUARANTINE).await.unwrap().service {
            Service::Quarantined { remaining } => remaining,
            Service::Enrolled => panic!("it was never enrolled"),
        }
    };
    let fresh = || RedisNode::open(&single.server.url()).unwrap();
    standing(fresh()).await;
    eventually(PATIENCE, || async {
        let remaining = standing(fresh()).await;
        if remaining.is_zero() { Ok(()) } else { Err(format!("{remaining:?}")) }
    })
    .await
    .unwrap();
    single.server.kill();
    single.server.restart_with_data().await.unwrap();
    assert!(Duration::ZERO < standing(fresh()).await);
    // Who has longer leases makes it longer, for everybody.
    let longer = fresh().standing(&KeyPrefix::default(), 100 * QUARANTINE).await.unwrap();
    assert_eq!(longer.quarantine, 100 * QUARANTINE);
    assert!(QUARANTINE < standing(fresh()).await);
}

/// A server with durable writes goes on after a restart; one that only seems so does not, and neither does one that is flushed.
#[tokio::test]
async fn a_trusted_server_serves_at_once_after_a_restart() {
    let durable = |truncated| {
        let options = RedisOptions::new().set("appendonly", ["yes"]).set("appendfsync", ["always"]);
        options.set("aof-load-truncated", [truncated])
    };
    for (truncated, trusted, serves) in [("no", true, true), ("no", false, false), ("yes", true, false)] {
        let server = RedisServer::start(durable(truncated)).await.unwrap();
        let open = || {
            let node = RedisNode::open(&server.url()).unwrap();
            if trusted { node.trusted() } else { node }
        };
        let node = open();
        enroll_at_once(&node).await;
        let held = ownership(&["a"]);
        node.acquire(&held, Ttl::new(Duration::from_secs(60)).unwrap(), 0).await.unwrap();
        server.kill();
        server.restart_with_data().await.unwrap();

        // Somebody who does not trust it may have noticed first.
        let _ = RedisNode::open(&server.url()).unwrap().standing(&KeyPrefix::default(), QUARANTINE).await.unwrap();
        let again = open();
        let raised = again.raise(&held, 1).await;
        assert_eq!(matches!(raised, Ok(Raising::At(1))), serves, "{truncated} {trusted}: {raised:?}");
        assert_eq!(is_quarantined(&raised), !serves, "{truncated} {trusted}: {raised:?}");
        server.command(&["FLUSHALL"]).await.unwrap();
        assert!(is_quarantined(&again.acquire(&ownership(&["b"]), Ttl::new(LONGEST).unwrap(), 0).await));
    }
}

/// It remembers what it was sent, not what its primary has answered.
#[tokio::test]
async fn a_replica_that_was_promoted_is_not_trusted() {
    let options = || {
        let options = RedisOptions::new().set("appendonly", ["yes"]).set("appendfsync", ["always"]);
        options.set("aof-load-truncated", ["no"])
    };
    let primary = RedisServer::start(options()).await.unwrap();
    let node = RedisNode::open(&primary.url()).unwrap().trusted();
    enroll_at_once(&node).await;
    let replica = RedisServer::start(options().replica_of(&primary)).await.unwrap();
    eventually(PATIENCE, || async {
        match replica.command(&["EXISTS", RECORD]).await.unwrap() {
            Reply::Integer(1) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    primary.kill();
    replica.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
    let promoted = RedisNode::open(&replica.url()).unwrap().trusted();
    let answer = promoted.acquire(&ownership(&["a"]), Ttl::new(LONGEST).unwrap(), 0).await;
    assert!(is_quarantined(&answer), "{answer:?}");
}

#[tokio::test]
async fn a_server_that_may_throw_keys_away_is_refused() {
    let single =
        Single::with(RedisOptions::new().set("maxmemory", ["5mb"]).set("maxmemory-policy", ["volatile-ttl"])).await;
    let Err(NodeError::Refused { reason: Refusal::Configuration, source }) = single.acquire(&ownership(&["a"])).await
    else {
        panic!("it votes")
    };
    assert!(source.to_string().contains("volatile-ttl"), "{source}");
    // A policy without a limit throws nothing away, and a limit without a policy refuses writes instead.
    for (limit, policy) in [("0", "allkeys-lru"), ("5mb", "noeviction")] {
        let single =
            Single::with(RedisOptions::new().set("maxmemory", [limit]).set("maxmemory-policy", [policy])).await;
        single.enroll_at_once().await;
        assert_eq!(single.counter(&["a"]).await, 1);
    }
}

/// Managed services forbid it: the guard does with less, and says so.
#[tokio::test]
async fn a_user_who_may_not_read_info_still_notices_an_empty_node() {
    let single =
        Single::with(RedisOptions::new().set("user", ["few", "on", ">secret", "~lock:*", "&lock:*", "+@all", "-info"]))
            .await;
    let url = single.server.url().replace("redis://", "redis://few:secret@");
    let single = Single { node: RedisNode::connect(&url).await.unwrap(), server: single.server };
    assert!(is_quarantined(&single.acquire(&ownership(&["a"])).await));
    single.enroll_at_once().await;
    assert_eq!(single.counter(&["a"]).await, 1);
    single.server.restart().await.unwrap();
    let user = ["ACL", "SETUSER", "few", "on", ">secret", "~lock:*", "&lock:*", "+@all", "-info"];
    single.command(&user).await;
    eventually(PATIENCE, || async {
        let answer = single.acquire(&ownership(&["a"])).await;
        if is_quarantined(&answer) { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await
    .unwrap();
}

/// Where a counter exists, the guard asks the server nothing more.
#[tokio::test]
async fn the_guard_costs_no_command_on_the_way() {
    let single = Single::new().await;
    single.enroll_at_once().await;
    single.counter(&["a"]).await;
    single.command(&["CONFIG", "RESETSTAT"]).await;
    for _ in 0..100 {
        single.counter(&["a"]).await;
    }
    let stats = single.command(&["INFO", "commandstats"]).await.into_text("INFO").unwrap();
    let called: Vec<&str> = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next()).collect();
    assert!(called.contains(&"evalsha") && called.contains(&"set"), "{stats}");
    assert!(!called.contains(&"hmget") && !called.contains(&"time"), "{stats}");
    let asked = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    assert!(asked.contains("calls=200,"), "an acquire and a release each: {asked}");
}

#[tokio::test]
async fn no_lock_lives_longer_than_the_guard_was_told() {
    let World::Memory(nodes) = World::memory(3) else { unreachable!("made in memory") };
    let nodes = nodes.into_iter().map(|node| node as Arc<dyn LockNode>);
    let builder = Redlock::builder().nodes(nodes).crash_guard(LONGEST);
    let error = builder.clone().ttl(2 * LONGEST).build().unwrap_err();
    assert!(matches!(error, SettingsError::TtlBeyondGuard { .. }), "{error}");
    let redlock = builder.ttl(LONGEST).build().unwrap();
    redlock.enroll_fresh().await.unwrap();
    let guard = redlock.acquire("r").await.unwrap();
    let error = guard.extend_to(2 * LONGEST).await.unwrap_err();
    assert!(error.to_string().contains("crash-recovery guard"), "{error}");
    guard.release().await;
}

#[tokio::test]
async fn without_the_guard_there_is_nothing_to_enroll() {
    let World::Memory(nodes) = World::memory(3) else { unreachable!("made in memory") };
    let nodes = nodes.into_iter().map(|node| node as Arc<dyn LockNode>);
    let redlock = Redlock::builder().nodes(nodes).build().unwrap();
    assert!(matches!(redlock.standings().await, Err(EnrollError::GuardIsOff)));
    assert!(matches!(redlock.enroll().await, Err(EnrollError::GuardIsOff)));
    assert!(matches!(redlock.enroll_fresh().await, Err(EnrollError::GuardIsOff)));
}

/// The lock of a holder that was lost stays for the delay; one that was released does not.
#[tokio::test]
async fn a_lock_delay_holds_back_the_next_one_only_when_a_holder_was_lost() {
    let World::Memory(nodes) = World::memory(3) else { unreachable!("made in memory") };
    let nodes = nodes.into_iter().map(|node| node as Arc<dyn LockNode>);
    let (ttl, delay) = (Duration::from_millis(500), Duration::from_secs(10));
    let redlock = Redlock::builder().nodes(nodes).ttl(ttl).lock_delay(delay).build().unwrap();
    redlock.acquire("released").await.unwrap().release().await;
    assert!(redlock.try_acquire("released").await.is_ok());

    let lost = redlock.acquire("lost").await.unwrap();
    assert!(lost.remaining() <= ttl, "its holder relies on the ttl alone");
    lost.held().lost().await;
    let error = redlock.try_acquire("lost").await.unwrap_err();
    assert!(matches!(error, AcquireError::Contended(_)), "{error}");
    lost.release().await;
}
