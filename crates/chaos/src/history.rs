//! What happened, as it was written down while it happened: by clients, by who did the harm, by the observer, by databases.
//!
//! Plain data that goes into a JSON file. Times are microseconds since the run began. Nothing is concluded here; [`crate::life`]
//! puts a client's lines together, and [`crate::check`] judges.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::fault::{Database, Kind, Memory, Target};

/// A time, in microseconds since the run began; while a client writes, since the machine was started.
pub type Micros = u64;

/// All of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct History {
    /// What to run it again with.
    pub setup: Setup,
    /// When it was over.
    pub end: Micros,
    /// From when on nothing was done any more and all was mended.
    pub calm_from: Micros,
    /// What clients wrote, in the order of time.
    pub lines: Vec<Line>,
    /// What was done, in the order of the beginnings.
    pub faults: Vec<Fault>,
    /// Whose value stood on a majority of the servers and when, as the observer saw it.
    pub holdings: Vec<Holding>,
    /// Lock keys without an end, as the observer saw them.
    pub without_expiry: Vec<String>,
    /// How many answers of servers all that rests on.
    pub looks: u64,
    /// What the databases say was written, in the order of the writes to each resource.
    pub rows: Vec<Row>,
    /// What the databases say each resource's number is in the end.
    pub balances: BTreeMap<String, i64>,
    /// Lock keys that were there when all clients had ended.
    pub left: Vec<Left>,
    /// What the harness itself failed to do.
    pub trouble: Vec<String>,
}

/// How a run was set up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Setup {
    /// Decides the plan of faults, and what clients are up to.
    pub seed: u64,
    /// How long faults and calm were to take together.
    pub seconds: u64,
    /// Whether the databases refuse stale writes.
    pub fenced: bool,
    /// Whether the crash-recovery guard is on.
    #[serde(default)]
    pub guarded: bool,
    /// How long a lock lives.
    pub ttl: Micros,
    /// The kinds that were planned.
    pub kinds: Vec<Kind>,
    /// How often each of them was planned.
    pub planned: BTreeMap<Kind, usize>,
}

/// One line of a client's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// When.
    pub at: Micros,
    /// Which process, counted over all that were ever started.
    pub process: u32,
    /// Which place it has among the clients.
    pub client: usize,
    /// Which of its workers.
    pub worker: u32,
    /// Which attempt to get something done, unique in the run.
    pub work: u64,
    /// What.
    pub said: Said,
}

/// What clients say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Said {
    /// It asks for a lock.
    Asks {
        /// Of which resource.
        resource: String,
    },
    /// The lock was not granted, or not waited for.
    Refused {
        /// The class of the error, or `cancelled`.
        why: String,
    },
    /// It has the lock, since the time of the line.
    Granted(Granted),
    /// It looked at its lock at the time of the line.
    Looked {
        /// What the lock said.
        held: bool,
        /// The end of the validity as of then; zero if it is not held.
        valid_until: Micros,
    },
    /// The signal that the lock is lost has arrived.
    Lost {
        /// Why.
        why: String,
        /// Whether the end of the validity was the reason.
        expired: bool,
    },
    /// A write, or a claim, is being sent.
    Writes {
        /// Unique in the run.
        write: u64,
        /// What kind of write.
        kind: WriteKind,
    },
    /// The answer to it.
    Wrote {
        /// Which.
        write: u64,
        /// The answer.
        outcome: Outcome,
    },
    /// It gives the lock back from now on, by a release or by dropping it.
    Releases,
    /// A release was answered.
    Released {
        /// With what.
        outcome: String,
    },
    /// The process is about to end, with nothing going on in the background.
    Ended {
        /// Whether the background had come to rest by itself.
        settled: bool,
    },
}

/// A grant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// The fencing token.
    pub token: i64,
    /// The first characters of the value under the lock keys.
    pub owner: String,
    /// When the attempt that won began; earlier ones had no effect.
    pub attempt_began: Micros,
    /// The end of the validity.
    pub valid_until: Micros,
    /// The nodes that had granted when the attempt was decided.
    pub nodes: Vec<usize>,
    /// Whether the lock is extended in the background.
    pub kept: bool,
}

/// What a write does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteKind {
    /// Raises the fence, before reading.
    Claim,
    /// Writes what follows from what was read.
    Write,
}

/// What a database says to a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Done.
    Applied,
    /// Refused for a newer holder's sake.
    Stale {
        /// The token that stands there.
        highest: i64,
    },
    /// Nothing was written.
    Failed {
        /// Why.
        why: String,
    },
    /// Nobody knows.
    Unknown {
        /// Why.
        why: String,
    },
}

/// One fault as it was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// Whom.
    pub target: Target,
    /// When it began: no later than its first effect.
    pub at: Micros,
    /// When it was mended: no earlier than its last effect.
    pub until: Micros,
    /// Whether it was seen to have an effect.
    pub happened: bool,
    /// What was seen.
    pub note: String,
}

/// One owner's majority.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// Of which resource.
    pub resource: String,
    /// The first characters of the value.
    pub owner: String,
    /// First seen.
    pub from: Micros,
    /// First seen no more.
    pub until: Micros,
}

/// One write that a database has kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Of which resource.
    pub resource: String,
    /// Under which token.
    pub token: i64,
    /// Which write.
    pub write: u64,
    /// The number that was written.
    pub value: i64,
}

/// A lock key that is still there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Left {
    /// On which node.
    pub node: usize,
    /// Its name.
    pub key: String,
    /// The first characters of its value.
    pub owner: String,
    /// What is left of its life in milliseconds.
    pub left_ms: i64,
}

impl History {
    /// The faults on a node that may have cost it a lock at some moment between the two, or a counter too.
    pub fn forgetting(&self, node: usize, from: Micros, to: Micros, counters: bool) -> impl Iterator<Item = &Fault> {
        self.faults.iter().filter(move |fault| {
            let costs = match self.memory(fault) {
                Memory::Kept => false,
                Memory::Hurried => !counters,
                Memory::Lost => true,
            };
            costs && fault.target == Target::Node(node) && fault.at <= to && from <= fault.until
        })
    }

    /// What a fault did to what a node remembers, as far as its votes show it: with the crash-recovery guard on, a node that has
    /// lost everything does not vote. Keys that are evicted one by one it may not notice.
    #[must_use]
    pub fn memory(&self, fault: &Fault) -> Memory {
        match fault.kind {
            Kind::RestartEmpty | Kind::CutTail | Kind::FlushAll if self.setup.guarded => Memory::Kept,
            kind => kind.memory(),
        }
    }

    /// For how long a process's place was frozen between two moments.
    #[must_use]
    pub fn frozen(&self, client: usize, from: Micros, to: Micros) -> Micros {
        let freezes = self
            .faults
            .iter()
            .filter(|fault| fault.kind == Kind::FreezeClient && fault.target == Target::Client(client));
        freezes.map(|fault| fault.until.min(to).saturating_sub(fault.at.max(from))).sum()
    }

    /// How often each planned kind happened.
    #[must_use]
    pub fn happened(&self) -> BTreeMap<Kind, usize> {
        let mut counts: BTreeMap<Kind, usize> = self.setup.kinds.iter().map(|kind| (*kind, 0)).collect();
        for fault in self.faults.iter().filter(|fault| fault.happened) {
            *counts.entry(fault.kind).or_default() += 1;
        }
        counts
    }
}

/// The resources that are locked, each with the row that it protects: two in each database, one per form of the fence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// The resource's name.
    pub resource: &'static str,
    /// Where its row is.
    pub database: Database,
    /// How it is fenced.
    pub form: Form,
    /// The row's key.
    pub id: i64,
}

/// How a row is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By the resource's row in the ledger.
    Ledger,
    /// By a column of its own.
    Row,
}

/// All of them.
pub const ORDERS: [Order; 6] = [
    Order { resource: "postgres/ledger", database: Database::Postgres, form: Form::Ledger, id: 1 },
    Order { resource: "postgres/row", database: Database::Postgres, form: Form::Row, id: 2 },
    Order { resource: "mariadb/ledger", database: Database::MariaDb, form: Form::Ledger, id: 3 },
    Order { resource: "mariadb/row", database: Database::MariaDb, form: Form::Row, id: 4 },
    Order { resource: "sqlite/ledger", database: Database::Sqlite, form: Form::Ledger, id: 5 },
    Order { resource: "sqlite/row", database: Database::Sqlite, form: Form::Row, id: 6 },
];

/// What stands before every key.
pub const PREFIX: &str = "chaos:";

/// How long a lock lives: short against the freezes, so that holders do outlive their locks.
pub const TTL: Duration = Duration::from_millis(1_500);

/// The first characters of an owner, enough to know it by.
#[must_use]
pub fn short(owner: &str) -> String {
    owner.chars().take(8).collect()
}

/// A duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
