//! P6 on real servers: a node of three loses its memory while a lock is held, in each of the ways in which servers do.
//!
//! The holder has the votes of nodes one and two and does not reach node three; node two forgets; a rival that reaches all three
//! asks for the same lock. Without the crash-recovery guard the rival is granted at once, beside the holder, and the fence has to
//! refuse the holder's write. With the guard it is not granted before the holder's validity is over, and tokens keep their order
//! although no clock lifts them. `cargo xtask recovery --runs N` does each of them N times; here it is a few.

use fence_store::{FenceError, FenceStore, Row};
use redlock_backends::RedisNode;
use redlock_bench::proxy::Mode;
use redlock_bench::{Proxy, RedisOptions, RedisServer, Reply, eventually};
use redlock_core::{FencingToken, Guard, LockNode, Redlock, RedlockBuilder};
use sea_query::Query;
use sqlx::sqlite::SqlitePoolOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest lease of everybody here, which is how long a node that has lost its memory is in quarantine.
const TTL: Duration = Duration::from_millis(800);

/// Far longer than any of this takes.
const DEADLINE: Duration = Duration::from_secs(20);

const RESOURCE: &str = "accounts/7";

/// How often each scenario is run through.
fn runs() -> usize {
    std::env::var("REDLOCK_RECOVERY_RUNS").map_or(3, |runs| runs.parse().expect("a number of runs"))
}

/// How node two loses its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Loss {
    RestartEmpty,
    FlushAll,
    Eviction,
    TruncatedLog,
    FailOver,
}

/// Three nodes; the second one behind an address that can be led to another server.
struct World {
    loss: Loss,
    one: RedisServer,
    two: RedisServer,
    /// Who takes over from node two; only where something fails over.
    stand_in: Option<RedisServer>,
    three: RedisServer,
    to_two: Proxy,
    /// The holder's way to node three.
    to_three: Proxy,
}

impl World {
    async fn new(loss: Loss) -> Self {
        let plain = || RedisServer::start(RedisOptions::new());
        let options = RedisOptions::new().set("repl-diskless-sync-delay", ["0"]);
        let options = match loss {
            Loss::TruncatedLog => options.set("appendonly", ["yes"]).set("appendfsync", ["no"]),
            _ => options,
        };
        let two = RedisServer::start(options.clone()).await.unwrap();
        let stand_in = match loss {
            Loss::FailOver => Some(RedisServer::start(options.replica_of(&two)).await.unwrap()),
            _ => None,
        };
        let (one, three) = (plain().await.unwrap(), plain().await.unwrap());
        let to_two = Proxy::start(two.address()).await.unwrap();
        let to_three = Proxy::start(three.address()).await.unwrap();
        Self { loss, one, two, stand_in, three, to_two, to_three }
    }

    fn nodes(&self, three: String) -> Vec<Arc<dyn LockNode>> {
        let urls = [self.one.url(), self.to_two.url(), three];
        RedisNode::open_all(urls.iter().map(String::as_str)).unwrap()
    }

    fn rival(&self, guarded: bool) -> Redlock {
        client(self.nodes(self.three.url()), guarded)
    }

    fn holder(&self, guarded: bool) -> Redlock {
        client(self.nodes(self.to_three.url()), guarded)
    }

    /// Node two forgets what `granted` has taken there.
    async fn lose(&mut self, granted: impl Future<Output = Guard>) -> Guard {
        match self.loss {
            Loss::RestartEmpty => {
                let granted = granted.await;
                self.two.restart().await.unwrap();
                granted
            }
            Loss::FlushAll => {
                let granted = granted.await;
                self.two.command(&["FLUSHALL"]).await.unwrap();
                granted
            }
            Loss::Eviction => {
                let granted = granted.await;
                self.evict().await;
                granted
            }
            Loss::TruncatedLog => {
                let log = append_only_file(&self.two);
                let before = std::fs::metadata(&log).unwrap().len();
                let granted = granted.await;
                self.two.kill();
                let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
                assert!(before < file.metadata().unwrap().len(), "the grant is in the log");
                file.set_len(before).unwrap();
                self.two.restart_with_data().await.unwrap();
                granted
            }
            Loss::FailOver => {
                let stand_in = self.stand_in.take().unwrap();
                replica_is_in_step(&stand_in).await;
                // From here on it sees nothing any more.
                stand_in.command(&["REPLICAOF", "NO", "ONE"]).await.unwrap();
                let granted = granted.await;
                self.two.kill();
                self.to_two.lead_to(stand_in.address()).await.unwrap();
                let failed = std::mem::replace(&mut self.two, stand_in);
                failed.restart().await.unwrap();
                failed.command(&["REPLICAOF", "127.0.0.1", &self.two.port().to_string()]).await.unwrap();
                self.stand_in = Some(failed);
                granted
            }
        }
    }

    /// Fills node two's memory until the lock has been thrown away.
    async fn evict(&self) {
        let lock = format!("lock:{RESOURCE}");
        let filler = "x".repeat(16_384);
        for n in 0..100_000 {
            self.two.command(&["SET", &format!("filler:{n}"), &filler]).await.unwrap();
            if self.two.command(&["EXISTS", &lock]).await.unwrap() == Reply::Integer(0) {
                return;
            }
        }
        panic!("the lock was never thrown away");
    }
}

fn client(nodes: Vec<Arc<dyn LockNode>>, guarded: bool) -> Redlock {
    let builder: RedlockBuilder = Redlock::builder().nodes(nodes).ttl(TTL).node_timeout(Duration::from_millis(150));
    // With the guard the marks alone have to keep the order of tokens.
    let builder = if guarded { builder.crash_guard(TTL).without_clock_floor() } else { builder };
    builder.build().unwrap()
}

fn append_only_file(server: &RedisServer) -> PathBuf {
    let folder = server.data_directory().join("appendonlydir");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|file| file.to_string_lossy().contains(".incr.")).max().expect("there is a log")
}

async fn replica_is_in_step(replica: &RedisServer) {
    eventually(DEADLINE, || async {
        let Reply::Bulk(info) = replica.command(&["INFO", "replication"]).await.unwrap() else { panic!("no text") };
        let info = String::from_utf8(info).unwrap();
        if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
    })
    .await
    .unwrap();
}

async fn all_enrolled(redlock: &Redlock) {
    eventually(DEADLINE, || async {
        let standings = redlock.enroll().await.map_err(|error| error.to_string())?;
        match standings.iter().find(|found| !found.is_enrolled()) {
            None => Ok(()),
            Some(found) => Err(found.to_string()),
        }
    })
    .await
    .unwrap();
}

/// Tries until it is granted.
async fn eventually_granted(redlock: &Redlock) -> Guard {
    let begun = Instant::now();
    loop {
        match redlock.try_acquire(RESOURCE).await {
            Ok(guard) => return guard,
            Err(error) if DEADLINE < begun.elapsed() => panic!("nobody is granted: {error}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// With the guard on: nobody is granted while the holder's validity lasts, and tokens rise over all runs.
async fn guarded(loss: Loss) {
    let mut world = World::new(loss).await;
    world.rival(true).enroll_fresh().await.unwrap();
    if loss == Loss::Eviction {
        world.two.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]).await.unwrap();
        world.two.command(&["CONFIG", "SET", "maxmemory", "3mb"]).await.unwrap();
    }
    let (mut latest, mut overlaps) = (None::<FencingToken>, 0);
    for run in 0..runs() {
        // A rival that was there before, and one that has just been started and knows nothing.
        let early = if run % 2 == 0 { Some(world.rival(true)) } else { None };
        if let Some(early) = &early {
            early.standings().await.unwrap();
        }
        // A node that may throw anything away does not vote, so that the holder needs the third one.
        world.to_three.set(if loss == Loss::Eviction { Mode::PASS } else { Mode::Refuse }).await.unwrap();
        let holder = world.holder(true);
        holder.standings().await.unwrap();
        let granting = {
            let holder = holder.clone();
            async move { eventually_granted(&holder).await }
        };
        let held = if loss == Loss::Eviction { granting.await } else { world.lose(granting).await };
        let rival = early.unwrap_or_else(|| world.rival(true));
        let granted = eventually_granted(&rival).await;
        if !held.remaining().is_zero() {
            overlaps += 1;
        }
        for token in [held.token(), granted.token()] {
            assert!(latest < Some(token), "run {run}: {token} after {latest:?}");
            latest = Some(token);
        }
        granted.release().await;
        if loss != Loss::Eviction {
            all_enrolled(&rival).await;
        }
        held.release().await;
    }
    assert_eq!(overlaps, 0, "of {} runs", runs());
}

/// With the guard off the same thing goes wrong, or none of this would show anything; and the fence is what is left.
async fn unguarded(loss: Loss) {
    let mut world = World::new(loss).await;
    if loss == Loss::Eviction {
        world.two.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]).await.unwrap();
        world.two.command(&["CONFIG", "SET", "maxmemory", "3mb"]).await.unwrap();
    }
    let (rival, holder) = (world.rival(false), world.holder(false));
    world.to_three.set(Mode::Refuse).await.unwrap();
    let mut overlaps = 0;
    // A machine that is busy may let the lock run out before the rival has asked.
    for _ in 0..20 {
        let granting = {
            let holder = holder.clone();
            async move { eventually_granted(&holder).await }
        };
        let held = world.lose(granting).await;
        let granted = eventually_granted(&rival).await;
        overlaps += usize::from(!held.remaining().is_zero());
        assert!(held.token() < granted.token());
        the_fence_refuses(&held, &granted).await;
        granted.release().await;
        held.release().await;
        if 0 < overlaps {
            return;
        }
    }
    panic!("two holders at once never came about");
}

/// The later holder has written; the earlier one, which is still valid by its own clock, must not any more.
async fn the_fence_refuses(held: &Guard, granted: &Guard) {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    let schema =
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, fence_token BIGINT NOT NULL DEFAULT 0)";
    sqlx::query(schema).execute(&pool).await.unwrap();
    sqlx::query("INSERT INTO accounts (id, balance) VALUES (7, 100)").execute(&pool).await.unwrap();
    let (store, account) = (FenceStore::new(pool), Row::new("accounts", "id", 7));
    store.update(granted, &account, Query::update().value("balance", 110)).await.unwrap();
    let late = store.update(held, &account, Query::update().value("balance", 101)).await;
    assert!(matches!(late, Err(FenceError::Stale { .. })), "{late:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b15_a_node_that_restarts_empty_does_not_vote() {
    unguarded(Loss::RestartEmpty).await;
    guarded(Loss::RestartEmpty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_flushed_does_not_vote() {
    unguarded(Loss::FlushAll).await;
    guarded(Loss::FlushAll).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_may_throw_keys_away_does_not_vote() {
    unguarded(Loss::Eviction).await;
    guarded(Loss::Eviction).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_log_is_cut_off_does_not_vote() {
    unguarded(Loss::TruncatedLog).await;
    guarded(Loss::TruncatedLog).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b73_a_node_that_fails_over_does_not_vote() {
    unguarded(Loss::FailOver).await;
    guarded(Loss::FailOver).await;
}
