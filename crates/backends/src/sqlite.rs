//! An SQLite file as a node: one row per resource, one statement per call, time from the machine that asks.
//!
//! For programs of one machine, or as the one node of a lock that needs no server. Each call is one statement of
//! `sqlite/statements.rs`, which argues why it is atomic. Calls promise no order; a release that may have come too early is
//! repeated by the client. What was answered is on the disk: the file is opened with `synchronous = FULL`.

mod statements;

use self::statements::{ACQUIRE, EXTEND, FILE, IDENTITY, IN_THE_WAY, INSPECT, OTHERS, RAISE, RELEASE, SCHEMA};
use crate::sql::{self, CALL_LIMIT, Greeting, counter, held_by, hexadecimal, json_keys, resource_at, signed};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Extension, Health, HeldBy, Holder, Inspection, KeyPrefix, LockNode, NodeError, Ownership, Raising,
    Refusal, Releasing, Remaining, Resources, Ttl,
};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// For an error without a class of its own: a table that has gone, or an SQLite that does not know all functions.
const STRANGE: &str = "the file has lost the node's tables, or SQLite is older than 3.42; open the file anew";

/// An SQLite file.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_backends::SqliteNode;
/// use redlock_core::Redlock;
///
/// # let folder = std::env::temp_dir().join(format!("redlock-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let url = format!("sqlite:{}?mode=rwc", folder.join("locks.db").display());
/// let node = SqliteNode::open(&url).await?; // "sqlite:locks.db?mode=rwc", say
/// let redlock = Redlock::builder().node(node).build()?;
/// let guard = redlock.acquire("jobs/backup").await?;
/// guard.release().await;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
pub struct SqliteNode {
    name: String,
    pool: SqlitePool,
    greeting: Greeting,
}

impl SqliteNode {
    /// Opens a file, and makes its tables unless they are there. `?mode=rwc` in the URL makes the file as well.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the URL is none, names no file but a database in memory, or the file may not be written;
    /// [`NodeError::Unreachable`] if it cannot be opened; that or [`NodeError::Timeout`] if it stays locked for five seconds.
    ///
    /// # Cancel safety
    /// Tables may have been made or not; it can be done again.
    pub async fn open(url: &str) -> Result<Self, NodeError> {
        let options: SqliteConnectOptions = url
            .parse()
            .map_err(|_| NodeError::refused(Refusal::Configuration, "not an SQLite URL; write sqlite:file?mode=rwc"))?;
        let options =
            options.busy_timeout(CALL_LIMIT).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
        let name = options.get_filename().display().to_string();
        // The file takes one writer at a time, so more connections would only get in each other's way.
        let pool = SqlitePoolOptions::new().max_connections(1).acquire_timeout(CALL_LIMIT).connect_lazy_with(options);
        let file = sql::limited(file_of(&pool), classify).await?;
        if file.is_empty() {
            let advice = "a database in memory forgets when its connection is replaced; name a file, as in sqlite:locks.db?mode=rwc";
            return Err(NodeError::refused(Refusal::Configuration, advice));
        }
        sql::limited(sqlx::raw_sql(SCHEMA).execute(&pool), classify).await?;
        let (identity, millis): (String, i64) =
            sql::limited(sqlx::query_as(IDENTITY).fetch_one(&pool), classify).await?;
        let greeting = Greeting::new(identity, Duration::from_millis(millis.try_into().unwrap_or(0)));
        Ok(Self { name, pool, greeting })
    }

    /// Runs a statement to its end, and gives the number in the first column of each row.
    async fn rows(
        &self,
        statement: &'static str,
        ownership: &Ownership,
        numbers: &[u64],
    ) -> Result<Vec<i64>, NodeError> {
        let mut query = sqlx::query_scalar(statement).bind(json_keys(ownership)).bind(ownership.owner().expose());
        for number in numbers {
            query = query.bind(signed(*number));
        }
        sql::limited(query.fetch_all(&self.pool), classify).await
    }

    /// Whether any of the resources is somebody else's: why the owner does not hold all of them.
    async fn others_hold_some(&self, ownership: &Ownership) -> Result<bool, NodeError> {
        Ok(self.rows(OTHERS, ownership, &[]).await? == [1])
    }
}

/// The pause before a file is looked at again that another program is making.
const MAKING_PAUSE: Duration = Duration::from_millis(10);

/// Connects, and tells the file's name. Whoever chooses the journal of a new file is sent away at once, and not made to wait, while
/// others do the same. It ends with the caller's limit.
async fn file_of(pool: &SqlitePool) -> sqlx::Result<String> {
    loop {
        match sqlx::query_scalar(FILE).fetch_one(pool).await {
            Err(error) if class_of(&error) == Some(BUSY) => tokio::time::sleep(MAKING_PAUSE).await,
            answer => return answer,
        }
    }
}

const BUSY: u32 = 5;

/// The lower eight bits of what SQLite answered.
fn class_of(error: &sqlx::Error) -> Option<u32> {
    let code = error.as_database_error()?.code()?.parse::<u32>().ok()?;
    Some(code & 0xff)
}

/// Sorts an error by what can be done about it (*Result and Error Codes* of SQLite).
fn classify(error: sqlx::Error) -> NodeError {
    let refusal = match class_of(&error) {
        // PERM, AUTH
        Some(3 | 23) => Refusal::Permission,
        // READONLY, CORRUPT, FULL
        Some(8 | 11 | 13) => Refusal::CannotWrite,
        Some(1) => return sql::refused(Refusal::Configuration, STRANGE, error),
        // NOTADB
        Some(26) => Refusal::NotAServer,
        _ => return NodeError::unreachable(error),
    };
    NodeError::refused(refusal, error)
}

#[async_trait]
impl LockNode for SqliteNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        if let [granted, ..] = self.rows(ACQUIRE, ownership, &[sql::shown_millis(ttl), floor]).await?.as_slice() {
            return Ok(Acquisition::Granted { counter: counter(*granted)? });
        }
        // Looked at afterwards, for people: what was in the way may have gone since.
        let query = sqlx::query_as(IN_THE_WAY).bind(json_keys(ownership));
        let seen: Option<(i64, String, i64)> = sql::limited(query.fetch_optional(&self.pool), classify).await?;
        let held = match seen {
            Some((position, owner, millis)) => {
                held_by(resource_at(ownership, position.try_into().ok())?, &owner, millis)
            }
            None => HeldBy {
                resource: resource_at(ownership, Some(0))?.clone(),
                holder: Holder::Unknown,
                remaining: Remaining::Unknown,
            },
        };
        Ok(Acquisition::Held(held))
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let counters = self.rows(RAISE, ownership, &[to]).await?;
        counters.into_iter().max().map_or(Ok(Raising::NotOwner), |greatest| Ok(Raising::At(counter(greatest)?)))
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        if !self.rows(EXTEND, ownership, &[sql::shown_millis(ttl)]).await?.is_empty() {
            return Ok(Extension::Extended);
        }
        Ok(if self.others_hold_some(ownership).await? { Extension::NotOwner } else { Extension::Gone })
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        if self.rows(RELEASE, ownership, &[]).await?.len() == ownership.resources().len() {
            return Ok(Releasing::Released);
        }
        Ok(if self.others_hold_some(ownership).await? { Releasing::NotOwner } else { Releasing::Gone })
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let mut inspections = Vec::with_capacity(resources.len());
        for resource in resources {
            let query = sqlx::query_as(INSPECT).bind(hexadecimal(prefix, resource));
            let seen: Option<(i64, Option<String>, i64)> =
                sql::limited(query.fetch_optional(&self.pool), classify).await?;
            inspections.push(sql::inspection(resource, seen)?);
        }
        Ok(inspections)
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let asked = "SELECT sqlite_version(), CAST(unixepoch('subsec') * 1000 AS INTEGER)";
        let (version, millis): (String, i64) =
            sql::limited(sqlx::query_as(asked).fetch_one(&self.pool), classify).await?;
        let mut health = Health::default();
        health.identity = Some(self.greeting.identity().to_string());
        health.primary = Some(true);
        health.replicas = Some(0);
        health.version = Some(version);
        health.persistence = Some("journal_mode wal, synchronous full".to_owned());
        health.eviction_policy = Some("none".to_owned());
        health.unix_time = millis.try_into().ok().map(Duration::from_millis);
        Ok(health)
    }

    fn identity(&self) -> Option<Arc<str>> {
        Some(Arc::clone(self.greeting.identity()))
    }

    fn unix_time(&self) -> Option<Duration> {
        Some(self.greeting.unix_time())
    }
}

impl fmt::Debug for SqliteNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteNode").field("name", &self.name).finish_non_exhaustive()
    }
}
