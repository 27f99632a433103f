//! Nodes of different kinds make one quorum, whichever of them is silent.

use crate::fixtures::{OnEtcd, OnRedis, OnSqlite, on_mysql, on_postgres};
use redlock_core::conformance::Fixture;
use redlock_core::{AcquireError, Redlock, ReleaseOutcome};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// One client's locks over all of them, while those at these places are silent, one set after the other.
async fn is_a_quorum_while_silent(fixtures: &[Box<dyn Fixture>], silent: impl IntoIterator<Item = Vec<usize>>) {
    let mut nodes = Vec::new();
    for fixture in fixtures {
        nodes.push(fixture.connect().await);
    }
    let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(30)).wait(Duration::from_secs(20));
    let redlock = builder.node_timeout(Duration::from_secs(1)).build().unwrap();
    let mut last = 0;
    for silent in silent {
        for node in &silent {
            assert!(fixtures[*node].silence(true).await);
        }
        for _ in 0..3 {
            let guard = redlock.acquire(["r", "s"]).await.unwrap();
            assert!(last < guard.token().get(), "{} after {last}", guard.token());
            last = guard.token().get();
            assert!(matches!(redlock.try_acquire("s").await, Err(AcquireError::Contended(_))));
            let released = guard.release().await.outcome;
            assert!(matches!(released, ReleaseOutcome::Everywhere | ReleaseOutcome::Quorum), "{released:?}");
        }
        for node in &silent {
            fixtures[*node].silence(false).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_redis_an_etcd_and_a_postgres_are_a_quorum_while_two_neighbours_are_silent() {
    let fixtures: [Box<dyn Fixture>; 5] = [
        Box::new(OnRedis::start().await),
        Box::new(OnRedis::start().await),
        Box::new(OnRedis::start().await),
        Box::new(OnEtcd::start().await),
        Box::new(on_postgres().await),
    ];
    // Two neighbours at a time, and nobody in the end.
    let pairs = (0..fixtures.len()).map(|first| vec![first, (first + 1) % fixtures.len()]);
    is_a_quorum_while_silent(&fixtures, pairs.chain([Vec::new()])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_a_mariadb_and_a_file_are_a_quorum_while_one_server_is_silent() {
    let fixtures: [Box<dyn Fixture>; 3] =
        [Box::new(on_postgres().await), Box::new(on_mysql().await), Box::new(OnSqlite::start().await)];
    is_a_quorum_while_silent(&fixtures, [vec![0], vec![1], Vec::new()]).await;
}

/// A grant, for as long as its holder relied on it.
#[derive(Debug)]
struct Reliance {
    from: Instant,
    to: Instant,
    token: i64,
}

/// Numbers that look random, by seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Locks and lets go, again and again, until it is told that it is enough.
async fn contend(redlock: Redlock, seed: u64, enough: Arc<AtomicBool>, relied: Arc<Mutex<Vec<Reliance>>>) {
    let mut dice = Dice(seed);
    while !enough.load(Ordering::Relaxed) {
        // An attempt that met too many silent nodes is another attempt's turn; what is granted is what is judged.
        let Ok(guard) = redlock.acquire("r").await else { continue };
        let from = Instant::now();
        let until = from + guard.remaining();
        tokio::time::sleep(Duration::from_millis(dice.below(30))).await;
        let to = Instant::now().min(until);
        relied.lock().unwrap().push(Reliance { from, to, token: guard.token().get() });
        guard.release().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_rely_on_a_mixed_quorum_at_a_time_while_nodes_fall_silent_and_break_off() {
    const SEED: u64 = 8;
    const STORM: Duration = Duration::from_secs(20);
    let fixtures: [Box<dyn Fixture>; 5] = [
        Box::new(OnRedis::start().await),
        Box::new(OnEtcd::start().await),
        Box::new(on_postgres().await),
        Box::new(on_mysql().await),
        Box::new(OnRedis::start().await),
    ];
    let (enough, relied) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
    let mut tasks = JoinSet::new();
    let mut clients = Vec::new();
    for client in 0..3 {
        let mut nodes = Vec::new();
        for fixture in &fixtures {
            nodes.push(fixture.connect().await);
        }
        let builder = Redlock::builder().nodes(nodes).ttl(Duration::from_secs(5)).wait(Duration::from_secs(30));
        let redlock = builder.node_timeout(Duration::from_millis(700)).build().unwrap();
        for task in 0..2 {
            let seed = SEED * 100 + client * 10 + task;
            tasks.spawn(contend(redlock.clone(), seed, Arc::clone(&enough), Arc::clone(&relied)));
        }
        clients.push(redlock);
    }

    let (mut dice, mut faults, end) = (Dice(SEED), 0, Instant::now() + STORM);
    while Instant::now() < end {
        // One or two of five at a time: a majority is always there, and always another one.
        let first = usize::try_from(dice.below(5)).unwrap();
        let second = usize::try_from(dice.below(5)).unwrap();
        if dice.below(3) == 0 {
            faults += usize::from(fixtures[first].disconnect().await);
        }
        assert!(fixtures[first].silence(true).await && fixtures[second].silence(true).await);
        tokio::time::sleep(Duration::from_millis(100 + dice.below(900))).await;
        assert!(fixtures[first].silence(false).await && fixtures[second].silence(false).await);
        faults += 1;
        tokio::time::sleep(Duration::from_millis(dice.below(500))).await;
    }
    enough.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }

    let mut relied = std::mem::take(&mut *relied.lock().unwrap());
    relied.sort_by_key(|reliance| reliance.from);
    for pair in relied.windows(2) {
        assert!(pair[0].to <= pair[1].from, "two holders at a time, seed {SEED}: {pair:?}");
        assert!(pair[0].token < pair[1].token, "tokens out of order, seed {SEED}: {pair:?}");
    }
    // Nodes were in trouble, and somebody was granted the lock all the same; in the calm everybody is.
    assert!(5 < faults, "{faults} faults");
    assert!(10 < relied.len(), "{} grants", relied.len());
    for redlock in &clients {
        redlock.acquire("r").await.unwrap().release().await;
    }
}
