//! A MySQL or MariaDB server as a node: one row per resource, one procedure per call, time from the server's clock.
//!
//! Each call is one procedure of `mysql/schema.sql`, which argues why it is atomic. Calls share a small pool, so they promise
//! no order, and a release that may have come too early is repeated by the client. What the server commits it remembers over
//! a restart, as far as its settings say so (`innodb_flush_log_at_trx_commit`, `sync_binlog`).

use crate::sql::{self, Greeting, counter, held_by, hexadecimal, json_keys, one, resource_at, signed};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Extension, Health, Inspection, KeyPrefix, LockNode, NodeError, Ownership, Raising, Refusal, Releasing,
    Resources, Ttl,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlPool, MySqlRow};
use sqlx::{Executor as _, FromRow, MySql};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const SCHEMA: &str = include_str!("mysql/schema.sql");

/// What stands between two statements of the schema.
const NEXT: &str = "-- next\n";

/// Connections at most. A call takes one for a round trip.
const CONNECTIONS_MAX: u32 = 8;

/// What a connection begins with, whatever the server or the URL has by default: transactions that begin and end where the
/// procedures say so, a calendar in which no hour comes twice, the language in which the procedures are written, and a wait
/// for locks that is over when nobody waits for the call any more (`CALL_LIMIT`, in seconds).
const SETTINGS: &str = "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', time_zone = '+00:00', \
                        sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 5";

const NOT_INSTALLED: &str = "the node is not installed in this database; call MySqlNode::install once";

/// A MySQL or MariaDB primary.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_backends::MySqlNode;
///
/// let node = MySqlNode::connect("mysql://locker:secret@10.0.0.5/locks").await?;
/// # Ok(())
/// # }
/// ```
///
/// Once per database, [`MySqlNode::install`] brings the tables and the procedures, by a user who may create them; after that
/// the right to execute them (`GRANT EXECUTE`) and to read the tables is enough.
///
/// MySQL takes passwords over TLS or encrypted with RSA only, unless the user has `mysql_native_password`: switch on `tls-rustls` or
/// `mysql-rsa` of sqlx in your program.
pub struct MySqlNode {
    name: String,
    pool: MySqlPool,
    greeting: Greeting,
}

impl MySqlNode {
    /// Connects to a server in whose database the node was installed.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the URL is none, the server does not accept it, or nothing is installed there;
    /// [`NodeError::Unreachable`] if it cannot be reached within five seconds.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, NodeError> {
        let (name, pool) = pool(url)?;
        // A database whose character set is `binary` has no text of its own.
        let asked = "SELECT CONVERT(identity USING utf8mb4), CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) \
                     FROM redlock_node_identity";
        let (identity, millis): (String, i64) = one(sql::rows(&pool, sqlx::query_as(asked), classify).await?)?;
        let greeting = Greeting::new(identity, Duration::from_millis(millis.try_into().unwrap_or(0)));
        Ok(Self { name, pool, greeting })
    }

    /// Brings the tables and the procedures to a database, unless they are there. Touches no lock and no counter.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the URL is none, or the user may not create them.
    ///
    /// # Cancel safety
    /// It may have happened or not, or in part; it can be done again.
    pub async fn install(url: &str) -> Result<(), NodeError> {
        let (_, pool) = pool(url)?;
        // What comes before the first is for readers.
        for statement in SCHEMA.split(NEXT).skip(1) {
            sql::execute(&pool, statement, classify).await?;
        }
        pool.close().await;
        Ok(())
    }

    /// Calls a procedure, and gives the one row that it answers.
    async fn call<T>(&self, call: &'static str, ownership: &Ownership, numbers: &[u64]) -> Result<T, NodeError>
    where
        T: for<'r> FromRow<'r, MySqlRow> + Send + Unpin,
    {
        // In ascending order, as the names are, and all have one prefix.
        let mut query = sqlx::query_as::<MySql, T>(call).bind(json_keys(ownership));
        query = query.bind(ownership.owner().expose().as_bytes());
        for number in numbers {
            query = query.bind(signed(*number));
        }
        one(sql::rows(&self.pool, query, classify).await?)
    }
}

fn pool(url: &str) -> Result<(String, MySqlPool), NodeError> {
    // The cause may show parts of the URL, such as the password, and is left out.
    let options: MySqlConnectOptions = url.parse().map_err(|_| {
        NodeError::refused(Refusal::Configuration, "not a MySQL URL; write mysql://user:password@host/database")
    })?;
    let name = format!("{}:{}/{}", options.get_host(), options.get_port(), options.get_database().unwrap_or_default());
    let pool = sql::pool_options::<MySql>(CONNECTIONS_MAX);
    let pool = pool.after_connect(|connection, _| Box::pin(async { connection.execute(SETTINGS).await.map(|_| ()) }));
    Ok((name, pool.connect_lazy_with(options)))
}

/// What other clients wrote may be any bytes.
fn text(owner: Vec<u8>) -> String {
    String::from_utf8_lossy(&owner).into_owned()
}

/// Sorts an error by what can be done about it (*Server Error Message Reference* of MySQL).
fn classify(error: sqlx::Error) -> NodeError {
    let number = match &error {
        sqlx::Error::Database(cause) => {
            cause.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>().map(|cause| cause.number())
        }
        _ => None,
    };
    let refusal = match number {
        Some(1045 | 1130 | 1698) => Refusal::Authentication,
        Some(1044 | 1142 | 1143 | 1227 | 1370) => Refusal::Permission,
        Some(1290 | 1792 | 1836) => Refusal::Replica,
        Some(1021 | 1114) => Refusal::CannotWrite,
        Some(1264 | 1690) => Refusal::CounterBeyondTokens,
        // A table or a procedure is not there.
        Some(1146 | 1305) => return sql::refused(Refusal::Configuration, NOT_INSTALLED, error),
        // No such database; rows that are too short for the key; who installed it is no user any more; a log of statements.
        Some(1049 | 1071 | 1449 | 1665) => Refusal::Configuration,
        // Too many connections, shutting down, not in its cluster, a lock that was waited for, a circle of them, interrupted:
        // nothing of it was kept.
        Some(1040 | 1047 | 1053 | 1203 | 1205 | 1213 | 1226 | 1317 | 1969) => return NodeError::unreachable(error),
        None => return sql::unanswered(error),
        Some(_) => return NodeError::protocol(error),
    };
    NodeError::refused(refusal, error)
}

#[async_trait]
impl LockNode for MySqlNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let call = "CALL redlock_acquire_2(?, ?, ?, ?)";
        let answer: (Option<i64>, Option<i64>, Option<Vec<u8>>, Option<i64>) =
            self.call(call, ownership, &[sql::shown_millis(ttl), floor]).await?;
        match answer {
            (Some(granted), ..) => Ok(Acquisition::Granted { counter: counter(granted)? }),
            (None, Some(place), Some(owner), Some(millis)) => {
                let resource = resource_at(ownership, usize::try_from(place).ok())?;
                Ok(Acquisition::Held(held_by(resource, &text(owner), millis)))
            }
            _ => Err(NodeError::protocol("neither granted nor held")),
        }
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let (raised,): (Option<i64>,) = self.call("CALL redlock_raise_2(?, ?, ?)", ownership, &[to]).await?;
        raised.map_or(Ok(Raising::NotOwner), |at| Ok(Raising::At(counter(at)?)))
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let (standing,): (i64,) =
            self.call("CALL redlock_extend_2(?, ?, ?)", ownership, &[sql::shown_millis(ttl)]).await?;
        Ok(sql::extension(standing))
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        let (standing,): (i64,) = self.call("CALL redlock_release_2(?, ?)", ownership, &[]).await?;
        Ok(sql::releasing(standing))
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let asked = "SELECT counter, CASE WHEN moment < expires_at THEN owner END, expires_at - moment FROM redlock_node, \
                     (SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED) AS moment) AS clock WHERE id = UNHEX(?)";
        let mut inspections = Vec::with_capacity(resources.len());
        for resource in resources {
            let query = sqlx::query_as(asked).bind(hexadecimal(prefix, resource));
            let seen: Vec<(i64, Option<Vec<u8>>, i64)> = sql::rows(&self.pool, query, classify).await?;
            let seen = seen.into_iter().next().map(|(value, owner, millis)| (value, owner.map(text), millis));
            inspections.push(sql::inspection(resource, seen)?);
        }
        Ok(inspections)
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let asked = "SELECT CAST(@@read_only AS SIGNED), VERSION(), \
                     CONCAT('innodb_flush_log_at_trx_commit ', @@innodb_flush_log_at_trx_commit), \
                     CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)";
        let (read_only, version, persistence, millis): (i64, String, String, i64) =
            one(sql::rows(&self.pool, sqlx::query_as(asked), classify).await?)?;
        let mut health = Health::default();
        health.identity = Some(self.greeting.identity().to_string());
        health.primary = Some(read_only == 0);
        health.version = Some(version);
        health.persistence = Some(persistence);
        health.eviction_policy = Some("none".to_owned());
        health.unix_time = millis.try_into().ok().map(Duration::from_millis);
        health.unread.push("replicas: their number is not asked for".to_owned());
        Ok(health)
    }

    fn identity(&self) -> Option<Arc<str>> {
        Some(Arc::clone(self.greeting.identity()))
    }

    fn unix_time(&self) -> Option<Duration> {
        Some(self.greeting.unix_time())
    }
}

impl fmt::Debug for MySqlNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlNode").field("name", &self.name).finish_non_exhaustive()
    }
}
