//! A Postgres server as a node: one row per resource, one statement per call, time from the server's clock.
//!
//! Each call is one function of `postgres/schema.sql`, which argues why it is atomic. Calls share a small pool, so they
//! promise no order, and a release that may have come too early is repeated by the client. What the server commits it
//! remembers over a restart, as far as its settings say so (`synchronous_commit`, `fsync`).

use crate::sql::{self, Greeting, counter, held_by, one, resource_at, signed};
use async_trait::async_trait;
use redlock_core::{
    Acquisition, Extension, Health, Inspection, KeyPrefix, LockNode, NodeError, Ownership, Raising, Refusal, Releasing,
    Resource, Resources, Ttl,
};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPool, PgRow};
use sqlx::query::QueryAs;
use sqlx::{Executor as _, FromRow, Postgres};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const SCHEMA: &str = include_str!("postgres/schema.sql");

const NOT_INSTALLED: &str =
    "the node is not installed in this database, or in another schema; call PostgresNode::install once";

/// Connections at most. A call takes one for a round trip.
const CONNECTIONS_MAX: u32 = 8;

/// What a connection begins with: the isolation that the functions need, whatever the role or the database has by default, and
/// a wait for locks that is over when nobody waits for the call any more (`CALL_LIMIT`, in milliseconds).
const SETTINGS: &str = "SET default_transaction_isolation = 'read committed'; SET lock_timeout = 5000";

/// A Postgres primary.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use redlock_backends::PostgresNode;
///
/// let node = PostgresNode::connect("postgres://locker:secret@10.0.0.4/locks").await?;
/// node.install().await?; // Once per database, by a user who may create tables and functions.
/// # Ok(())
/// # }
/// ```
///
/// After that, the rights to select, insert and update in the table `redlock_node` are enough.
pub struct PostgresNode {
    name: String,
    pool: PgPool,
    greeting: Greeting,
}

impl PostgresNode {
    /// Connects to a server.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the URL is none, or the server does not accept it; [`NodeError::Unreachable`] if it cannot be
    /// reached within five seconds.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, NodeError> {
        // The cause may show parts of the URL, such as the password, and is left out.
        let options: PgConnectOptions = url.parse().map_err(|_| {
            NodeError::refused(
                Refusal::Configuration,
                "not a Postgres URL; write postgres://user:password@host/database",
            )
        })?;
        let name =
            format!("{}:{}/{}", options.get_host(), options.get_port(), options.get_database().unwrap_or_default());
        let pool = sql::pool_options::<Postgres>(CONNECTIONS_MAX);
        let pool =
            pool.after_connect(|connection, _| Box::pin(async { connection.execute(SETTINGS).await.map(|_| ()) }));
        let pool = pool.connect_lazy_with(options);
        let asked = "SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || current_database(), \
                     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let (identity, micros): (String, i64) = one(sql::rows(&pool, sqlx::query_as(asked), classify).await?)?;
        let greeting = Greeting::new(identity, Duration::from_micros(micros.try_into().unwrap_or(0)));
        Ok(Self { name, pool, greeting })
    }

    /// Brings the table and the functions, or their present version. Touches no lock and no counter.
    ///
    /// # Errors
    /// [`NodeError::Refused`] if the user may not create them.
    ///
    /// # Cancel safety
    /// It may have happened or not; it can be done again.
    pub async fn install(&self) -> Result<(), NodeError> {
        // One message of several statements is one transaction, which an error ends; with a BEGIN it would stay open. Two
        // programs that bring the same at once get in each other's way without the lock.
        let one_at_a_time = "SELECT pg_advisory_xact_lock(hashtext('redlock_node'));";
        let text = sqlx::AssertSqlSafe([one_at_a_time, SCHEMA].concat());
        sql::execute(&self.pool, text, classify).await
    }

    async fn rows<T>(&self, query: QueryAs<'_, Postgres, T, PgArguments>) -> Result<Vec<T>, NodeError>
    where
        T: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        sql::rows(&self.pool, query, classify).await
    }
}

/// Sorts an error by what can be done about it (appendix A of the Postgres manual, *error codes*).
fn classify(error: sqlx::Error) -> NodeError {
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
    let refusal = match (code.get(..2).unwrap_or_default(), code.as_str()) {
        ("28", _) => Refusal::Authentication,
        (_, "42501") => Refusal::Permission,
        (_, "25006") => Refusal::Replica,
        // Too many connections, shutting down, a circle of locks, a lock that was waited for: nothing of it was kept.
        ("53", "53300") | ("57" | "40" | "08", _) | (_, "55P03") => return NodeError::unreachable(error),
        ("53" | "58", _) => Refusal::CannotWrite,
        (_, "22003") => Refusal::CounterBeyondTokens,
        (_, "42883" | "42P01") => return sql::refused(Refusal::Configuration, NOT_INSTALLED, error),
        ("25" | "3D" | "3F" | "42", _) => Refusal::Configuration,
        ("", _) => return sql::unanswered(error),
        _ => return NodeError::protocol(error),
    };
    NodeError::refused(refusal, error)
}

fn key(prefix: &KeyPrefix, resource: &Resource) -> Vec<u8> {
    [prefix.as_str(), resource.name()].concat().into_bytes()
}

fn keys(prefix: &KeyPrefix, resources: &Resources) -> Vec<Vec<u8>> {
    resources.iter().map(|resource| key(prefix, resource)).collect()
}

#[async_trait]
impl LockNode for PostgresNode {
    fn name(&self) -> &str {
        &self.name
    }

    async fn acquire(&self, ownership: &Ownership, ttl: Ttl, floor: u64) -> Result<Acquisition, NodeError> {
        let statement = sqlx::query_as("SELECT * FROM redlock_acquire($1, $2, $3, $4)")
            .bind(keys(ownership.prefix(), ownership.resources()))
            .bind(ownership.owner().expose())
            .bind(signed(ttl.as_millis()))
            .bind(signed(floor));
        let answer: (Option<i64>, Option<i64>, Option<String>, Option<i64>) = one(self.rows(statement).await?)?;
        match answer {
            (Some(granted), ..) => Ok(Acquisition::Granted { counter: counter(granted)? }),
            (None, Some(position), Some(owner), Some(millis)) => {
                let resource = resource_at(ownership, usize::try_from(position - 1).ok())?;
                Ok(Acquisition::Held(held_by(resource, &owner, millis)))
            }
            _ => Err(NodeError::protocol("neither granted nor held")),
        }
    }

    async fn raise(&self, ownership: &Ownership, to: u64) -> Result<Raising, NodeError> {
        let statement = sqlx::query_as("SELECT redlock_raise($1, $2, $3)")
            .bind(keys(ownership.prefix(), ownership.resources()))
            .bind(ownership.owner().expose())
            .bind(signed(to));
        let (raised,): (Option<i64>,) = one(self.rows(statement).await?)?;
        raised.map_or(Ok(Raising::NotOwner), |at| Ok(Raising::At(counter(at)?)))
    }

    async fn extend(&self, ownership: &Ownership, ttl: Ttl) -> Result<Extension, NodeError> {
        let statement = sqlx::query_as("SELECT redlock_extend($1, $2, $3)")
            .bind(keys(ownership.prefix(), ownership.resources()))
            .bind(ownership.owner().expose())
            .bind(signed(ttl.as_millis()));
        let (standing,): (i32,) = one(self.rows(statement).await?)?;
        Ok(sql::extension(standing.into()))
    }

    async fn release(&self, ownership: &Ownership) -> Result<Releasing, NodeError> {
        let statement = sqlx::query_as("SELECT redlock_release($1, $2)")
            .bind(keys(ownership.prefix(), ownership.resources()))
            .bind(ownership.owner().expose());
        let (standing,): (i32,) = one(self.rows(statement).await?)?;
        Ok(sql::releasing(standing.into()))
    }

    async fn inspect(&self, prefix: &KeyPrefix, resources: &Resources) -> Result<Vec<Inspection>, NodeError> {
        let asked = "SELECT counter, CASE WHEN clock_timestamp() < expires_at THEN owner END, \
             coalesce((extract(epoch FROM expires_at - clock_timestamp()) * 1000)::bigint, 0) \
             FROM redlock_node WHERE key = $1";
        let mut inspections = Vec::with_capacity(resources.len());
        for resource in resources {
            let statement = sqlx::query_as(asked).bind(key(prefix, resource));
            let seen: Vec<(i64, Option<String>, i64)> = self.rows(statement).await?;
            inspections.push(sql::inspection(resource, seen.into_iter().next())?);
        }
        Ok(inspections)
    }

    async fn health(&self) -> Result<Health, NodeError> {
        let asked = "SELECT pg_is_in_recovery(), current_setting('server_version'), \
                     'fsync ' || current_setting('fsync') || ', synchronous_commit ' || current_setting('synchronous_commit'), \
                     (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let (replica, version, persistence, micros): (bool, String, String, i64) =
            one(self.rows(sqlx::query_as(asked)).await?)?;
        let mut health = Health::default();
        health.identity = Some(self.greeting.identity().to_string());
        health.primary = Some(!replica);
        health.version = Some(version);
        health.persistence = Some(persistence);
        health.eviction_policy = Some("none".to_owned());
        health.unix_time = micros.try_into().ok().map(Duration::from_micros);
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

impl fmt::Debug for PostgresNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresNode").field("name", &self.name).finish_non_exhaustive()
    }
}
