//! What is done to servers, clients and databases, and which promise each of it may cost.
//!
//! A fault *forgets* if a node may lose a live lock by it, or its clock may leave the drift allowance: then overlaps that
//! rest on this node are no violation of P2, whose assumptions say so. All others must cost nothing but votes and time.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A server is stopped (SIGSTOP) and goes on later, carrying out what was sent to it meanwhile.
    FreezeServer,
    /// A server is killed (SIGKILL) and started again with its append-only file.
    RestartWithData,
    /// A server is killed and started again with nothing.
    RestartEmpty,
    /// A server is killed, the end of its append-only file is cut off as a power loss may do, and it is started again.
    CutTail,
    /// `FLUSHALL`.
    FlushAll,
    /// `SCRIPT FLUSH`.
    ScriptFlush,
    /// `CLIENT KILL` of all connections.
    ClientKill,
    /// `maxmemory` with `allkeys-random`: keys are evicted, whatever they are.
    Evict,
    /// `maxmemory` with `noeviction`: writes are refused.
    MemoryLimit,
    /// A server's calendar jumps forward, and back later.
    ClockForward,
    /// A server's calendar jumps back, and forward later.
    ClockBack,
    /// Requests or replies arrive later.
    Delay,
    /// What is sent in one direction is lost, and the connection with it.
    Loss,
    /// What is sent in one direction waits until the cut heals.
    OneWayCut,
    /// Connections are refused.
    Refuse,
    /// A client process is stopped, and goes on later.
    FreezeClient,
    /// A client process is killed, and another one started.
    KillClient,
    /// All sessions in Postgres are ended (`pg_terminate_backend`).
    KillPostgres,
    /// All connections to MariaDB are ended (`KILL`).
    KillMariaDb,
    /// Somebody else holds SQLite's write lock.
    BusySqlite,
}

/// Whom a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A server, by position.
    Node(usize),
    /// A client process, by position.
    Client(usize),
    /// One of the databases, by its short name.
    Database(Database),
}

/// A database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Database {
    /// Postgres.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// SQLite.
    Sqlite,
}

impl Database {
    /// All three.
    pub const ALL: [Self; 3] = [Self::Postgres, Self::MariaDb, Self::Sqlite];
}

impl Kind {
    /// Every kind there is.
    pub const ALL: [Self; 20] = [
        Self::FreezeServer,
        Self::RestartWithData,
        Self::RestartEmpty,
        Self::CutTail,
        Self::FlushAll,
        Self::ScriptFlush,
        Self::ClientKill,
        Self::Evict,
        Self::MemoryLimit,
        Self::ClockForward,
        Self::ClockBack,
        Self::Delay,
        Self::Loss,
        Self::OneWayCut,
        Self::Refuse,
        Self::FreezeClient,
        Self::KillClient,
        Self::KillPostgres,
        Self::KillMariaDb,
        Self::BusySqlite,
    ];

    /// What it does to what a node remembers.
    #[must_use]
    pub fn memory(self) -> Memory {
        match self {
            Self::RestartEmpty | Self::CutTail | Self::FlushAll | Self::Evict => Memory::Lost,
            // A jump back is followed by a jump forward when it is healed, so both are.
            Self::ClockForward | Self::ClockBack => Memory::Hurried,
            _ => Memory::Kept,
        }
    }

    /// How often it comes about against the others. Freezes are what the fence is for, and what a quorum has to bear.
    #[must_use]
    pub(crate) fn cards(self) -> usize {
        match self {
            Self::FreezeClient => 3,
            Self::FreezeServer => 2,
            _ => 1,
        }
    }

    /// How long it lasts, in milliseconds from and to. Freezes may outlast a ttl, of servers and of clients.
    #[must_use]
    pub(crate) fn lasts(self) -> (u64, u64) {
        match self {
            Self::FreezeServer => (50, 2_500),
            Self::FreezeClient => (200, 4_000),
            Self::Delay => (500, 2_500),
            Self::Loss | Self::OneWayCut | Self::Refuse | Self::MemoryLimit => (200, 1_500),
            Self::ClockForward | Self::ClockBack => (300, 2_000),
            Self::BusySqlite => (50, 800),
            // Down for so long; what happens in a moment has no length.
            Self::RestartWithData | Self::RestartEmpty | Self::CutTail => (0, 600),
            Self::FlushAll
            | Self::ScriptFlush
            | Self::ClientKill
            | Self::Evict
            | Self::KillClient
            | Self::KillPostgres
            | Self::KillMariaDb => (0, 1),
        }
    }
}

/// What becomes of the locks that a node has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// They last as long as they should, and so do counters.
    Kept,
    /// Locks may end early; counters stay.
    Hurried,
    /// Locks and counters may be gone.
    Lost,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FreezeServer => "freeze a server",
            Self::RestartWithData => "kill a server, restart with its data",
            Self::RestartEmpty => "kill a server, restart empty",
            Self::CutTail => "kill a server, cut the end of its file",
            Self::FlushAll => "FLUSHALL",
            Self::ScriptFlush => "SCRIPT FLUSH",
            Self::ClientKill => "CLIENT KILL",
            Self::Evict => "evict keys",
            Self::MemoryLimit => "memory limit reached",
            Self::ClockForward => "calendar forward",
            Self::ClockBack => "calendar back",
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::OneWayCut => "one-way cut",
            Self::Refuse => "connections refused",
            Self::FreezeClient => "freeze a client",
            Self::KillClient => "kill a client",
            Self::KillPostgres => "end Postgres sessions",
            Self::KillMariaDb => "end MariaDB connections",
            Self::BusySqlite => "SQLite kept busy",
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Client(client) => write!(f, "client {client}"),
            Self::Database(database) => database.fmt(f),
        }
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
            Self::Sqlite => "sqlite",
        })
    }
}

/// How far a server's calendar jumps: further than a lock lives, so that locks do end by it.
pub(crate) const JUMP: Duration = Duration::from_millis(2_500);
