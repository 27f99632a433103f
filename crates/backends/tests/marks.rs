//! The namespace record: counters may expire, and no resource's counter ever starts below where it was.

use redlock_backends::RedisNode;
use redlock_bench::{RedisOptions, RedisServer};
use redlock_core::{Acquisition, IntoResources as _, KeyPrefix, LockNode as _, Owner, Ownership, Raising, Ttl};
use std::time::Duration;

const RECORD: &str = "lock:~namespace";
const COUNTER: &str = "lock:~fence:{lock:r}";
const STEP: u64 = 1 << 32;
const DAY_MILLIS: u64 = 24 * 60 * 60 * 1_000;

struct Bench {
    server: RedisServer,
    node: RedisNode,
}

impl Bench {
    async fn new() -> Self {
        let server = RedisServer::start(RedisOptions::new()).await.unwrap();
        let node = RedisNode::connect(&server.url()).await.unwrap();
        Self { server, node }
    }

    async fn grant(&self, resources: &[&str], floor: u64) -> u64 {
        let ownership = ownership(resources);
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        match self.node.acquire(&ownership, ttl, floor).await.unwrap() {
            Acquisition::Granted { counter } => {
                self.node.release(&ownership).await.unwrap();
                counter
            }
            Acquisition::Held(held) => panic!("{held}"),
        }
    }

    async fn mark(&self, field: &str) -> u64 {
        let reply = self.server.command(&["HGET", RECORD, field]).await.unwrap();
        reply.into_text("HGET").unwrap().parse().unwrap()
    }

    async fn command(&self, words: &[&str]) {
        let reply = self.server.command(words).await.unwrap();
        assert!(!reply.is_error(), "{words:?}: {reply:?}");
    }

    /// Lets so much time pass for the record: its last roll lies that much further back.
    async fn days_pass(&self, days: u64) {
        let rolled = self.mark("rolled").await - days * DAY_MILLIS;
        self.command(&["HSET", RECORD, "rolled", &rolled.to_string()]).await;
    }

    async fn counter_expires(&self) {
        self.command(&["DEL", COUNTER]).await;
    }
}

fn ownership(resources: &[&str]) -> Ownership {
    Ownership::new(KeyPrefix::default(), resources.into_resources().unwrap(), Owner::from_random_bytes([1; 16]))
}

#[tokio::test]
async fn high_stays_ahead_of_every_counter_and_is_seldom_written() {
    let bench = Bench::new().await;
    let counter = bench.grant(&["r"], 5 * STEP).await;
    assert_eq!(counter, 5 * STEP + 1);
    assert_eq!(bench.mark("high").await, 6 * STEP);
    let writes = bench.server.probe().command_calls("hset").await.unwrap();
    for _ in 0..100 {
        bench.grant(&["r"], 5 * STEP).await;
    }
    assert_eq!(bench.server.probe().command_calls("hset").await.unwrap(), writes, "no write per grant");
    bench.grant(&["r"], 6 * STEP).await;
    assert_eq!(bench.mark("high").await, 7 * STEP);

    let held = ownership(&["r"]);
    bench.node.acquire(&held, Ttl::new(Duration::from_secs(60)).unwrap(), 0).await.unwrap();
    assert_eq!(bench.node.raise(&held, 9 * STEP).await.unwrap(), Raising::At(9 * STEP));
    assert!(9 * STEP < bench.mark("high").await, "a raise moves the mark as well");
}

#[tokio::test]
async fn a_grant_of_a_resource_with_a_counter_does_not_look_at_the_record() {
    let bench = Bench::new().await;
    bench.grant(&["r"], 0).await;
    let reads = bench.server.probe().command_calls("hmget").await.unwrap();
    for _ in 0..100 {
        bench.grant(&["r"], 0).await;
    }
    assert_eq!(bench.server.probe().command_calls("hmget").await.unwrap(), reads);
}

#[tokio::test]
async fn counters_expire_and_lock_keys_do_too() {
    let bench = Bench::new().await;
    bench.grant(&["r"], 0).await;
    let left = bench.server.probe().pttl(COUNTER).await.unwrap();
    assert!(29 * i64::try_from(DAY_MILLIS).unwrap() < left, "{left}");
    assert_eq!(bench.server.probe().pttl(RECORD).await.unwrap(), -1, "the record never expires");
}

/// Thirty days after it was last set a counter goes; the grant after that starts above it, without any floor.
#[tokio::test]
async fn a_counter_that_expired_is_covered_by_the_base() {
    // The record is looked at between the counter's last grant and its end, on this day and that, or never.
    for looks in [vec![], vec![10], vec![10, 10], vec![1, 9, 11], vec![10, 10, 10], vec![19], vec![29]] {
        let bench = Bench::new().await;
        bench.grant(&["other"], 0).await;
        let last = bench.grant(&["r"], 3 * STEP).await;
        let mut passed = 0;
        for (n, days) in looks.iter().enumerate() {
            bench.days_pass(*days).await;
            passed += days;
            bench.grant(&[&format!("look {n}")], 0).await;
        }
        bench.days_pass(30 - passed).await;
        bench.counter_expires().await;
        let next = bench.grant(&["r"], 0).await;
        assert!(last < next, "{looks:?}: {last} < {next}");
    }
}

/// A new resource does not lift the numbers of all others with it.
#[tokio::test]
async fn new_resources_do_not_race_the_marks_away() {
    let bench = Bench::new().await;
    for n in 0..1_000 {
        assert_eq!(bench.grant(&[&format!("r{n}")], 0).await, 1);
    }
    assert_eq!(bench.mark("high").await, STEP);
}

#[tokio::test]
async fn an_error_half_way_never_lowers_a_counter() {
    let bench = Bench::new().await;
    let before = bench.grant(&["r"], 1_000).await;
    bench.command(&["SET", "lock:~fence:{lock:s}", "5"]).await;
    bench.command(&["DEL", "lock:~fence:{lock:t}"]).await;
    bench.command(&["RPUSH", "lock:~fence:{lock:t}", "not a counter"]).await;
    let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
    let failed = bench.node.acquire(&ownership(&["r", "s", "t"]), ttl, 0).await;
    assert!(failed.is_err(), "{failed:?}");
    bench.node.release(&ownership(&["r", "s", "t"])).await.unwrap();
    assert!(before < bench.grant(&["r"], 0).await);
    assert!(5 < bench.grant(&["s"], 0).await);
}

#[tokio::test]
async fn numbers_are_exact_up_to_the_last_token() {
    let bench = Bench::new().await;
    let last = redlock_core::FencingToken::MAX.as_counter();
    assert_eq!(bench.grant(&["r"], last - 3).await, last - 2);
    assert_eq!(bench.grant(&["r"], 0).await, last - 1);
    assert_eq!(bench.grant(&["r"], 0).await, last);
    assert_eq!(bench.server.probe().get(COUNTER).await.unwrap().as_deref(), Some("9007199254740991"));
}

/// A client that connects with its first call: the nodes' time is known only by their answers, and lifts the token all the
/// same, so that a database which remembers tokens from before the nodes were wiped does not refuse it.
#[tokio::test]
async fn the_first_grant_of_a_client_that_connects_with_it_is_lifted_to_the_nodes_time() {
    let servers = redlock_bench::Servers::start(3).await.unwrap();
    let urls = servers.urls();
    for clock_floor in [true, false] {
        let nodes = RedisNode::open_all(urls.iter().map(String::as_str)).unwrap();
        let mut builder = redlock_core::Redlock::builder().nodes(nodes).node_timeout(Duration::from_secs(1));
        if !clock_floor {
            builder = builder.without_clock_floor();
        }
        let guard = builder.build().unwrap().try_acquire(format!("first {clock_floor}")).await.unwrap();
        let year_2020 = 1_577_836_800_000_000;
        assert_eq!(year_2020 < guard.token().get(), clock_floor, "{:?}", guard.token());
    }
}
