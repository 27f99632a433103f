//! A client process: a few workers that lock, read, think and write, and write down what they do while they do it.
//!
//! It behaves as programs do and not as they should: after thinking it writes, without another look at its lock, so that the
//! fence has something to refuse. Each line is written to the file by one call before the next step is taken, so that a
//! client that is killed has said what it had begun.
//!
//! The process is this crate's program, started with its orders in the environment. It ends when its standard input does.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use fence_store::{Dialect, FenceError, FenceStore};
use futures_util::future::{Either, join_all, select};
use redlock_backends::RedisNode;
use redlock_core::{Guard, HoldState, KeepAlive, LossReason, NodeOutcome, Redlock};
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{MySql, Postgres, Sqlite};

use crate::clock::micros;
use crate::desk::{self, Claimed};
use crate::dice::Dice;
use crate::fault::Database;
use crate::history::{self, Granted, Line, Micros, ORDERS, Order, Outcome, PREFIX, Said, TTL, WriteKind, short};

/// The variable in which a client finds its orders; a program that has it is a client.
pub const VARIABLE: &str = "REDLOCK_CHAOS_CLIENT";

/// How many workers one process has.
pub const WORKERS: u32 = 3;

/// How long each node may take. Longer than usual for such a ttl, as the machine is busy with all of this.
const NODE_TIMEOUT: Duration = Duration::from_millis(150);

/// How long a worker waits for a lock.
const WAIT: Duration = Duration::from_secs(2);

/// How long a database's connection is waited for.
const CONNECTION_WAIT: Duration = Duration::from_secs(3);

/// How long the background may take to come to rest when everything can be reached.
const REST: Duration = Duration::from_secs(6);

/// `ttl × 0.01 + 2 ms`, the drift allowance as the documentation of the algorithm has it, and as much for reading clocks.
const WHOLE_VALIDITY_AT_MOST: Micros = 1_500_000 - 15_000 - 2_000 + READING;
const READING: Micros = 2_000;

/// What a client is to do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// Which process, over all that were started.
    pub process: u32,
    /// Which place among the clients.
    pub client: usize,
    /// What its workers' choices follow from.
    pub seed: u64,
    /// Whether the databases are to refuse stale writes.
    pub fenced: bool,
    /// Whether the crash-recovery guard is on.
    pub guarded: bool,
    /// The servers, through their proxies.
    pub nodes: Vec<String>,
    /// Postgres.
    pub postgres: String,
    /// MariaDB.
    pub mariadb: String,
    /// The file of SQLite.
    pub sqlite: PathBuf,
    /// Where to write lines.
    pub lines: PathBuf,
}

/// Runs a client until its standard input ends.
///
/// # Errors
/// If it cannot begin.
pub fn run(orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders).context("the orders of a client")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        let client = Client::open(orders).await?;
        client.work_until_told().await;
        anyhow::Ok(())
    });
    // What is left in the background was told about; nobody waits for it.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

struct Client {
    orders: Orders,
    redlock: Redlock,
    postgres: FenceStore<Postgres>,
    mariadb: FenceStore<MySql>,
    sqlite: FenceStore<Sqlite>,
    lines: Mutex<File>,
    numbers: AtomicU64,
    stop: Arc<AtomicBool>,
}

/// What a worker has set out to do with a lock.
#[derive(Debug, Clone, Copy)]
struct Intent {
    order: Order,
    /// How often it reads, thinks and writes.
    times: u64,
    /// How long it thinks each time, from and to.
    think: (u64, u64),
    /// Whether the lock is extended meanwhile.
    kept: bool,
    /// Whether it drops the lock instead of releasing it.
    drops: bool,
    /// After how long it loses patience and drops the request.
    patience: Option<Duration>,
}

impl Intent {
    fn draw(dice: &mut Dice) -> Self {
        let order = ORDERS[dice.position(ORDERS.len())];
        let (times, think, kept) = match dice.below(100) {
            0..76 => (1, (0, 25), false),
            76..85 => (1, (200, 900), false),
            // For longer than its lock lives.
            85..88 => (1, (1_200, 2_600), false),
            88..94 => (3 + dice.below(6), (50, 300), true),
            _ => (2, (0, 5), false),
        };
        let drops = dice.percent(20);
        let patience = dice.percent(6).then(|| dice.millis(0, 40));
        Self { order, times, think, kept, drops, patience }
    }
}

impl Client {
    async fn open(orders: Orders) -> Result<Self> {
        let nodes = RedisNode::open_all(orders.nodes.iter().map(String::as_str))?;
        let redlock = Redlock::builder().nodes(nodes).key_prefix(PREFIX).ttl(TTL).node_timeout(NODE_TIMEOUT).wait(WAIT);
        let redlock = if orders.guarded { redlock.crash_guard(TTL) } else { redlock };
        let redlock = redlock.build()?;
        let postgres = FenceStore::new(pool().connect_lazy(&orders.postgres)?);
        let mariadb = FenceStore::new(pool().connect_lazy(&orders.mariadb)?);
        let sqlite = FenceStore::new(pool().connect_lazy_with(sqlite_options(&orders.sqlite)));
        let lines = Mutex::new(File::options().create(true).append(true).open(&orders.lines)?);
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        // Ends with the process at the latest.
        std::thread::Builder::new().spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            told.store(true, Ordering::Relaxed);
        })?;
        Ok(Self { orders, redlock, postgres, mariadb, sqlite, lines, numbers: AtomicU64::new(0), stop })
    }

    async fn work_until_told(&self) {
        join_all((0..WORKERS).map(|worker| self.worker(worker))).await;
        let settled = tokio::time::timeout(REST, self.redlock.settled()).await.is_ok();
        self.say(micros(), WORKERS, 0, Said::Ended { settled });
    }

    async fn worker(&self, worker: u32) {
        let mut dice = Dice::new(self.orders.seed ^ (u64::from(self.orders.process) << 16) ^ u64::from(worker));
        while !self.stop.load(Ordering::Relaxed) {
            let work = self.number();
            let intent = Intent::draw(&mut dice);
            let resource = intent.order.resource;
            let asked = micros();
            self.say(asked, worker, work, Said::Asks { resource: resource.to_owned() });
            let request = self.redlock.request(resource).acquire();
            let acquired = match intent.patience {
                None => Some(request.await),
                Some(patience) => tokio::time::timeout(patience, request).await.ok(),
            };
            match acquired {
                Some(Ok(guard)) => {
                    let at = micros();
                    self.hold(worker, work, intent, &mut dice, asked, at, guard).await;
                }
                Some(Err(error)) => {
                    self.say(micros(), worker, work, Said::Refused { why: error.class().to_owned() });
                    tokio::time::sleep(dice.millis(1, 30)).await;
                }
                None => self.say(micros(), worker, work, Said::Refused { why: "cancelled".to_owned() }),
            }
        }
    }

    /// From the grant to its end.
    #[expect(clippy::too_many_arguments, reason = "all of it is about one hold, in one place")]
    async fn hold(
        &self,
        worker: u32,
        work: u64,
        intent: Intent,
        dice: &mut Dice,
        asked: Micros,
        at: Micros,
        guard: Guard,
    ) {
        let (began, valid_until) = match look(&guard) {
            // Counted back from its end, which is fixed before the first request of the attempt that won is sent.
            (_, Some(until)) => (until.saturating_sub(WHOLE_VALIDITY_AT_MOST).max(asked), until),
            // Over before it could be looked at: there is nothing to count back from.
            (_, None) => (asked, at),
        };
        let granted = Granted {
            token: guard.token().get(),
            owner: short(guard.owner().expose()),
            attempt_began: began,
            valid_until,
            nodes: granting(&guard),
            kept: intent.kept,
        };
        self.say(at, worker, work, Said::Granted(granted));
        if intent.kept {
            guard.keep_alive(KeepAlive::default().max_hold(Duration::from_secs(4)));
        }

        {
            let lost = pin!(guard.lost());
            let writes = pin!(self.write_often(worker, work, intent, dice, &guard));
            // It is told of the loss, notes that, and goes on all the same.
            if let Either::Right((reason, writes)) = select(writes, lost).await {
                let expired = reason == LossReason::Expired;
                self.say(micros(), worker, work, Said::Lost { why: reason.to_string(), expired });
                writes.await;
            }
        }

        self.say(micros(), worker, work, Said::Releases);
        if intent.drops {
            drop(guard);
        } else {
            let released = guard.release().await;
            self.say(micros(), worker, work, Said::Released { outcome: format!("{:?}", released.outcome) });
        }
    }

    async fn write_often(&self, worker: u32, work: u64, intent: Intent, dice: &mut Dice, guard: &Guard) {
        for _ in 0..intent.times {
            let think = dice.millis(intent.think.0, intent.think.1);
            let step = (worker, work, intent.order, think);
            match intent.order.database {
                Database::Postgres => self.write(&self.postgres, step, guard).await,
                Database::MariaDb => self.write(&self.mariadb, step, guard).await,
                Database::Sqlite => self.write(&self.sqlite, step, guard).await,
            }
        }
    }

    /// Reads, thinks, writes.
    async fn write<DB: Dialect>(
        &self,
        store: &FenceStore<DB>,
        (worker, work, order, think): (u32, u64, Order, Duration),
        guard: &Guard,
    ) {
        let fenced = self.orders.fenced;
        let Ok(grant) = desk::presented(guard.grant(), work, fenced) else { return };
        let claim = self.number();
        self.say(micros(), worker, work, Said::Writes { write: claim, kind: WriteKind::Claim });
        let claimed: Result<Claimed<DB>, _> = desk::claim(store, order, &grant, fenced).await;
        self.say(micros(), worker, work, Said::Wrote { write: claim, outcome: outcome(&claimed) });
        let Ok(claimed) = claimed else { return };

        tokio::time::sleep(think).await;
        let (looked, until) = look(guard);
        let said = Said::Looked { held: until.is_some(), valid_until: until.unwrap_or(0) };
        self.say(looked, worker, work, said);

        let write = self.number();
        self.say(micros(), worker, work, Said::Writes { write, kind: WriteKind::Write });
        let id = i64::try_from(write).expect("it has as many bits as it needs");
        let written = desk::write(store, order, &grant, &claimed, id).await;
        self.say(micros(), worker, work, Said::Wrote { write, outcome: outcome(&written) });
    }

    /// A number that no other process and no other worker has.
    fn number(&self) -> u64 {
        (u64::from(self.orders.process) << 32) | self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn say(&self, at: Micros, worker: u32, work: u64, said: Said) {
        let line = Line { at, process: self.orders.process, client: self.orders.client, worker, work, said };
        let mut text = serde_json::to_vec(&line).expect("a line is plain data");
        text.push(b'\n');
        // A disk that is full shows in what is missing: the run is judged by what the databases say, too.
        let _ = self.lines.lock().unwrap_or_else(PoisonError::into_inner).write_all(&text);
    }
}

/// A look at a lock: when, and until when it is valid; nothing if it is not held.
///
/// The end is what is left, counted from before the question. Should the process be stopped between the two, the end would be
/// taken for earlier than it is; so it asks again.
fn look(guard: &Guard) -> (Micros, Option<Micros>) {
    let mut seen = (micros(), None);
    for _ in 0..5 {
        let before = micros();
        let state = guard.state();
        let after = micros();
        let until = match state {
            HoldState::Held { remaining } | HoldState::Uncertain { remaining } => {
                Some(before + history::micros(remaining))
            }
            _ => None,
        };
        seen = (before, until);
        if after - before < READING / 2 {
            break;
        }
    }
    seen
}

fn granting(guard: &Guard) -> Vec<usize> {
    let nodes = guard.report().nodes.iter().enumerate();
    nodes
        .filter(|(_, node)| matches!(node.outcome, NodeOutcome::Granted { .. }))
        .map(|(position, _)| position)
        .collect()
}

fn outcome<T>(result: &Result<T, FenceError>) -> Outcome {
    match result {
        Ok(_) => Outcome::Applied,
        Err(FenceError::Stale { highest, .. }) => Outcome::Stale { highest: *highest },
        Err(error @ FenceError::Unknown { .. }) => Outcome::Unknown { why: error.to_string() },
        Err(error) => Outcome::Failed { why: error.to_string() },
    }
}

fn pool<DB: sqlx::Database>() -> PoolOptions<DB> {
    PoolOptions::new().max_connections(WORKERS + 1).acquire_timeout(CONNECTION_WAIT)
}

/// How everybody opens the file.
pub(crate) fn sqlite_options(file: &std::path::Path) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    options.journal_mode(SqliteJournalMode::Wal).busy_timeout(Duration::from_secs(2))
}
