//! Random histories: eight holders write a few rows in every form of fenced write, under tokens that come out of order,
//! at mixed isolation levels, with and without a guard, while futures are dropped and connections are killed and cut.
//!
//! ```text
//!   seed ──▶ plan ──▶ holders ──▶ database ──▶ journal     what was committed, in order, written by triggers
//!                        │                        │
//!                        └── told ──▶ oracle ◀────┘        every verdict, every line and the table have to agree
//! ```
//!
//! A failure names its seed, which brings the same plan back: `FENCE_HISTORY_SEED=… cargo nextest run … histories`. The
//! order in which the database carries it out is its own, so one seed is worth several tries.

#![expect(
    clippy::future_not_send,
    reason = "holders are tasks of one thread; it is the database that runs them at once"
)]

mod holder;
mod journal;
mod oracle;
mod plan;
#[cfg(feature = "sqlite")]
mod second_process;
mod told;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fence_store::{FenceStore, Flavor, Guard, Isolation};
use redlock_bench::proxy::{Lane, Mode};
use redlock_bench::{Proxy, eventually};
use redlock_core::Resource;
use tokio::task::{JoinSet, LocalSet};

use self::holder::kill;
use self::journal::Line;
use self::oracle::{History, Key, Model};
use self::plan::{Fault, Form, Guarded, KEYS, TOKEN_MAX, Work, plan};
use self::told::{Deed, Effect, Log, Told};
use crate::support::{Bench, DEADLINE, TestDb, on_every_database, pool};

/// Repeats the plans of a failure.
const SEED_VARIABLE: &str = "FENCE_HISTORY_SEED";

const HOLDERS: usize = 8;
const WORKS_EACH: usize = 16;

/// How long answers are on their way.
const ANSWER_DELAY: Duration = Duration::from_millis(2);

on_every_database! {
    random_histories_agree_with_a_serial_replay_postgres
    random_histories_agree_with_a_serial_replay_mariadb
    random_histories_agree_with_a_serial_replay_sqlite
        => histories;
    a_write_past_the_fence_is_found_in_a_history_postgres
    a_write_past_the_fence_is_found_in_a_history_mariadb
    a_write_past_the_fence_is_found_in_a_history_sqlite
        => writes_past_the_fence;
    a_wrong_verdict_is_found_in_a_history_postgres
    a_wrong_verdict_is_found_in_a_history_mariadb
    a_wrong_verdict_is_found_in_a_history_sqlite
        => wrong_verdicts;
}

#[cfg(feature = "mysql")]
#[test]
fn random_histories_agree_with_a_serial_replay_under_snapshot_isolation_mariadb() {
    crate::support::run(histories_with::<sqlx::MySql>(Some("SET SESSION innodb_snapshot_isolation = ON")));
}

async fn histories<DB: TestDb>() {
    let off = (DB::FLAVOR == Flavor::MySql).then_some("SET SESSION innodb_snapshot_isolation = OFF");
    histories_with::<DB>(off).await;
}

async fn histories_with<DB: TestDb>(first: Option<&'static str>) {
    let seed = seed();
    let mut told = Vec::new();
    for (round, guarded) in [Guarded::No, Guarded::Strictly, Guarded::MayRewrite].into_iter().enumerate() {
        let seed = seed + u64::try_from(round).unwrap();
        let plan = plan(seed, guarded, HOLDERS, WORKS_EACH);
        let stage = Stage::<DB>::open(guarded, first).await;
        let deeds = stage.play(&plan).await;
        let played = stage.close(&plan, deeds).await;
        played.must_be_right(seed);
        told.extend(played.deeds.into_iter().map(|deed| deed.told));
    }
    must_be_lively(seed, &told);
}

/// The seed that was asked for, or a new one; printed, for the case that the test does not end.
#[expect(clippy::print_stderr, reason = "a test that hangs has no other way to name its seed")]
fn seed() -> u64 {
    let seed = match std::env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse().unwrap_or_else(|_| panic!("{SEED_VARIABLE} is not a number: {seed}")),
        Err(_) => RandomState::new().hash_one(0) >> 32,
    };
    eprintln!("{SEED_VARIABLE}={seed}");
    seed
}

/// What came of a plan.
#[derive(Clone)]
struct Played {
    plan: Vec<Work>,
    deeds: Vec<Deed>,
    journal: Vec<Line>,
    table: Model,
}

impl Played {
    /// Everything that does not agree.
    fn wrong(&self) -> Vec<String> {
        let (mut wrong, model) = History::new(&self.plan, self.deeds.clone(), self.journal.clone()).judge();
        if model != self.table {
            wrong.push(format!("the replay ends in {model:?}, the table in {:?}", self.table));
        }
        wrong
    }

    #[track_caller]
    fn must_be_right(&self, seed: u64) {
        let wrong = self.wrong();
        let journal = self.journal.iter().map(|line| format!("{line:?}\n")).collect::<String>();
        assert!(wrong.is_empty(), "{SEED_VARIABLE}={seed}: {wrong:#?}\n{journal}");
    }
}

/// A history in which nothing happens would agree with anything.
#[track_caller]
fn must_be_lively(seed: u64, told: &[Told]) {
    let count = |wanted: fn(&Told) -> bool| told.iter().filter(|told| wanted(told)).count();
    let counts = [
        ("applied", count(|told| *told == Told::Applied)),
        ("read", count(|told| matches!(told, Told::Read(_)))),
        ("stale", count(|told| matches!(told, Told::Stale(_)))),
        ("no such row", count(|told| *told == Told::NoSuchRow)),
        ("nothing", count(|told| *told == Told::Nothing)),
        ("unknown", count(|told| *told == Told::Unknown)),
    ];
    for (what, count) in counts {
        assert!(0 < count, "{SEED_VARIABLE}={seed}: nobody was told {what}: {counts:?}");
    }
}

/// A database with a journal, and a pool for the holders.
struct Stage<DB: TestDb> {
    /// One connection that looks on and kills. All other sessions in the database are the holders'.
    bench: Bench<DB>,
    store: FenceStore<DB>,
    /// SQLite has none.
    network: Option<Arc<Network<DB>>>,
    guarded: Guarded,
}

impl<DB: TestDb> Stage<DB> {
    async fn open(guarded: Guarded, first: Option<&'static str>) -> Self {
        let bench = Bench::<DB>::new(1).await;
        journal::open(&bench, KEYS).await;
        let guard = Guard::new("accounts", "id");
        match guarded {
            Guarded::No => {}
            Guarded::Strictly => bench.store.install_guard(&guard).await.unwrap(),
            Guarded::MayRewrite => bench.store.install_guard(&guard.may_rewrite()).await.unwrap(),
        }
        let (url, network) = Network::before(&bench).await.unzip();
        let url = url.unwrap_or_else(|| bench.url.clone());
        let pool = pool::<DB>(&url, HOLDERS.try_into().unwrap(), first).await;
        let store = FenceStore::new(pool).lock_wait(Duration::from_secs(5));
        Self { bench, store, network, guarded }
    }

    /// Lets holders carry out a plan, all at once.
    async fn play(&self, plan: &[Vec<Work>]) -> Vec<Deed> {
        carry_out(&self.store, self.network.as_ref(), self.guarded, plan, |_| {}).await
    }

    /// Waits until nothing of the holders is left, and reads what there is.
    async fn close(self, plan: &[Vec<Work>], deeds: Vec<Deed>) -> Played {
        self.nothing_is_left().await;
        let store = &self.bench.store;
        let mut table = Model::default();
        for key in 1..=KEYS {
            let resource = Resource::new(format!("accounts/{key}")).unwrap();
            let tombstone = store.highest_token(&resource).await.unwrap().unwrap_or(0);
            table.0.insert(key, Key { tombstone, ..Key::default() });
        }
        for row in journal::rows(&self.bench, "SELECT id, fence_token, n, balance FROM accounts").await {
            let key = table.0.get_mut(&row[0]).expect("holders write no others");
            *key = Key { present: true, fence: row[1], n: row[2], value: row[3], ..*key };
        }
        for row in journal::rows(&self.bench, "SELECT id, writer, n FROM vault").await {
            table.0.get_mut(&row[0]).expect("holders write no others").vault = (row[1], row[2]);
        }
        Played { plan: plan.concat(), deeds, journal: journal::read(&self.bench).await, table }
    }

    /// No transaction is open, no lock is held, no connection is lost from the pool; and when the pool is closed, no
    /// session is there that could still carry out something.
    async fn nothing_is_left(&self) {
        let observer = self.bench.store.pool();
        none_of("transactions", async || DB::open_transactions(observer).await).await;
        none_of("locks", async || DB::locks(observer).await).await;
        let pool = self.store.pool();
        let idle = || async {
            let used = usize::try_from(pool.size()).unwrap() - pool.num_idle();
            if used == 0 { Ok(()) } else { Err(format!("{used} connections in use")) }
        };
        eventually(DEADLINE, idle).await.unwrap();
        // All of them can be had at once.
        let mut all = Vec::new();
        for _ in 0..HOLDERS {
            let one = tokio::time::timeout(DEADLINE, pool.acquire()).await;
            all.push(one.expect("a connection was lost from the pool").unwrap());
        }
        drop(all);
        pool.close().await;
        none_of("sessions", async || DB::other_sessions(observer).await).await;
    }
}

/// Without this, "nothing is left" says nothing.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn what_is_left_is_seen<DB: TestDb>() {
    let bench = Bench::<DB>::new(1).await;
    let store = bench.another(1, None).await;
    let transaction = store.begin(&crate::support::grant(1)).await.unwrap();
    let observer = bench.store.pool();
    assert_eq!(DB::open_transactions(observer).await, 1);
    assert!(0 < DB::locks(observer).await);
    assert_eq!(DB::other_sessions(observer).await, 1);
    transaction.rollback().await;
    none_of("transactions", async || DB::open_transactions(observer).await).await;
    none_of("locks", async || DB::locks(observer).await).await;
}

#[cfg(feature = "postgres")]
#[test]
fn what_a_history_leaves_behind_is_seen_postgres() {
    crate::support::run(what_is_left_is_seen::<sqlx::Postgres>());
}

#[cfg(feature = "mysql")]
#[test]
fn what_a_history_leaves_behind_is_seen_mariadb() {
    crate::support::run(what_is_left_is_seen::<sqlx::MySql>());
}

/// Waits until there are none.
async fn none_of(what: &str, count: impl AsyncFn() -> i64) {
    let none = || async {
        match count().await {
            0 => Ok(()),
            left => Err(format!("{left} {what} are left")),
        }
    };
    eventually(DEADLINE, none).await.unwrap();
}

/// What lies between the holders and the database, and can be made to fail: a proxy, and a look at the sessions.
struct Network<DB: TestDb> {
    proxy: Proxy,
    server: SocketAddr,
    observer: FenceStore<DB>,
}

impl<DB: TestDb> Network<DB> {
    /// Puts a proxy before a database, if it has an address, and tells the URL to connect to. Answers take a while to come
    /// through, so that a cut meets some on their way.
    async fn before(bench: &Bench<DB>) -> Option<(String, Arc<Self>)> {
        let server: SocketAddr = bench.url.split(['@', '/']).find_map(|part| part.parse().ok())?;
        let proxy = Proxy::start(server).await.unwrap();
        proxy.set(Mode::replies(Lane::Delay(ANSWER_DELAY))).await.unwrap();
        let url = bench.url.replace(&server.to_string(), &proxy.address().to_string());
        Some((url, Arc::new(Self { proxy, server, observer: bench.store.clone() })))
    }

    async fn strike(&self, fault: Fault) {
        match fault {
            Fault::Kill(place) => kill(&self.observer, place).await,
            // To the same server, over new connections.
            Fault::Cut => self.proxy.lead_to(self.server).await.unwrap(),
        }
    }
}

/// Lets holders carry out a plan, all at once, and tells of each work when it is done.
async fn carry_out<DB: TestDb>(
    store: &FenceStore<DB>,
    network: Option<&Arc<Network<DB>>>,
    guarded: Guarded,
    plan: &[Vec<Work>],
    tell: impl Fn(&[Deed]) + Clone + 'static,
) -> Vec<Deed> {
    let tasks = LocalSet::new();
    let mut holders = JoinSet::new();
    for works in plan.iter().cloned() {
        let (store, network, tell) = (store.clone(), network.cloned(), tell.clone());
        let works = async move {
            let mut deeds = Vec::new();
            for work in works {
                let log = Log::default();
                tokio::join!(holder::work(&store, guarded, &work, &log), async {
                    if let (Some(fault), Some(network)) = (work.fault, &network) {
                        // Somewhere in the middle, for whoever is hit.
                        for _ in 0..work.token % 8 {
                            tokio::task::yield_now().await;
                        }
                        network.strike(fault).await;
                    }
                });
                tell(&log.deeds());
                deeds.extend(log.deeds());
            }
            deeds
        };
        holders.spawn_local_on(works, &tasks);
    }
    tasks.run_until(holders.join_all()).await.concat()
}

/// A statement without the condition on the fence, after a history that was right: the replay does not follow.
async fn writes_past_the_fence<DB: TestDb>() {
    let seed = seed();
    let stage = Stage::<DB>::open(Guarded::No, None).await;
    let mut plan = plan(seed, Guarded::No, HOLDERS, 4);
    // The writes below need connections that live.
    plan.iter_mut().flatten().for_each(|work| work.fault = None);
    let mut deeds = stage.play(&plan).await;
    // One holder writes each row under a token above all others, and one below all others writes it again.
    let calm = |token, form, key| Work {
        token,
        form,
        keys: vec![key],
        isolation: Isolation::default(),
        drop_after: None,
        fault: None,
    };
    let last = (1..=KEYS).map(|key| calm(TOKEN_MAX - key, Form::Upsert, key)).collect();
    let past = (1..=KEYS).map(|key| calm(key, Form::Unfenced, key)).collect();
    for works in [last, past] {
        deeds.extend(stage.play(std::slice::from_ref(&works)).await);
        plan.push(works);
    }

    let played = stage.close(&plan, deeds).await;
    let found = played.wrong().into_iter().filter(|what| what.contains("does not follow")).count();
    assert_eq!(i64::try_from(found).unwrap(), KEYS, "{SEED_VARIABLE}={seed}: {:#?}", played.wrong());
}

/// Verdicts, lines of the journal and rows that are tampered with, one at a time, after a history that was right.
async fn wrong_verdicts<DB: TestDb>() {
    let seed = seed();
    let stage = Stage::<DB>::open(Guarded::No, None).await;
    let plan = plan(seed, Guarded::No, HOLDERS, 6);
    let deeds = stage.play(&plan).await;
    let mut played = stage.close(&plan, deeds).await;
    played.must_be_right(seed);

    let lost: Vec<i64> = played.deeds.iter().filter(|deed| deed.told == Told::Unknown).map(|deed| deed.token).collect();
    let mut found = [0; 5];
    for place in 0..played.deeds.len() {
        let right = played.deeds[place].clone();
        // What was lost once and written again leaves it open which of the two was applied.
        if lost.contains(&right.token) {
            continue;
        }
        let (kind, wrong) = match right.told {
            Told::Applied => (0, Told::Nothing),
            Told::Read(n) => (1, Told::Read(n + 1)),
            Told::Stale(highest) => (2, Told::Stale(highest + TOKEN_MAX)),
            Told::NoSuchRow => (3, Told::Applied),
            _ => continue,
        };
        // A claim in two statements may have raised the fence before it was overtaken and refused.
        let is_claim = right.effects.iter().any(|(effect, _)| *effect == Effect::Claim);
        let wrongs = if kind == 2 && !is_claim { vec![wrong, Told::Applied] } else { vec![wrong] };
        for wrong in wrongs {
            played.deeds[place].told = wrong;
            assert!(!played.wrong().is_empty(), "{SEED_VARIABLE}={seed}: not found: {:?}", played.deeds[place]);
            found[kind] += 1;
        }
        played.deeds[place] = right;
    }
    for place in 0..played.journal.len() {
        let mut tampered = Played { journal: played.journal.clone(), ..played.clone() };
        let line = tampered.journal.remove(place);
        if line.fence.0 == line.fence.1 && line.n.0 == line.n.1 {
            // A claim or a raise that was repeated: nothing had changed.
            continue;
        }
        assert!(!tampered.wrong().is_empty(), "{SEED_VARIABLE}={seed}: not missed: {line:?}");
        found[4] += 1;
    }
    for (key, held) in played.table.0.clone() {
        played.table.0.insert(key, Key { n: held.n + 1, ..held });
        assert!(!played.wrong().is_empty(), "{SEED_VARIABLE}={seed}: row {key} was changed");
        played.table.0.insert(key, held);
    }
    // Claims and missing rows are too few to be sure of any in so short a history.
    assert!([0, 2, 4].iter().all(|kind| 0 < found[*kind]), "{SEED_VARIABLE}={seed}: {found:?}");
}
