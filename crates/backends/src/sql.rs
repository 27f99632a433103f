//! What nodes on SQL databases share: the limit of a call, numbers as SQL has them, and how keys are written.

#[cfg(any(feature = "mysql", feature = "sqlite"))]
use redlock_core::Ttl;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use redlock_core::{Extension, Releasing};
use redlock_core::{Fingerprint, HeldBy, Holder, Inspection, NodeError, Ownership, Refusal, Remaining, Resource};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use sqlx::{
    Connection as _, Database, Executor, FromRow, IntoArguments, Pool, SqlSafeStr,
    pool::{PoolConnection, PoolOptions},
    query::QueryAs,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest that a call may take: a free connection and a reconnect included, and the wait for the disk.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(5);

/// The longest that a connection may take to show that it still works, before another one is made.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const PING_LIMIT: Duration = Duration::from_secs(1);

/// How nodes on servers use a pool. A connection behind which nobody answers any more costs a part of a call, and not all of it:
/// there may be as many as the pool holds, and the next call would meet the next one.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn pool_options<DB: Database>(connections_max: u32) -> PoolOptions<DB> {
    let options = PoolOptions::<DB>::new().max_connections(connections_max).acquire_timeout(CALL_LIMIT);
    options.test_before_acquire(false).before_acquire(|connection: &mut DB::Connection, _| {
        Box::pin(async {
            let pong = tokio::time::timeout(PING_LIMIT, connection.ping()).await;
            pong.unwrap_or_else(|late| Err(std::io::Error::from(late).into())).map(|()| true)
        })
    })
}

/// Runs a statement within the limit; `classify` says what an error means.
pub(crate) async fn limited<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
    classify: impl FnOnce(sqlx::Error) -> NodeError,
) -> Result<T, NodeError> {
    match tokio::time::timeout(CALL_LIMIT, statement).await {
        Ok(answer) => answer.map_err(classify),
        Err(_) => Err(NodeError::Timeout { after: CALL_LIMIT }),
    }
}

/// A connection out of a pool, which goes back there when what was asked on it has been answered.
///
/// One that nobody waits for any more is closed. sqlx would wait for its answer before it goes back, without a limit and in
/// the place of a free one: a handful of calls that wait for a locked row, or for a server that has gone without a word, would
/// take the node away from all others. And a call that was dropped while MySQL prepared its statement leaves the connection
/// out of step.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) struct Lent<DB: Database> {
    connection: Option<PoolConnection<DB>>,
    answered: bool,
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl<DB: Database> Lent<DB> {
    pub(crate) async fn by(pool: &Pool<DB>) -> sqlx::Result<Self> {
        Ok(Self { connection: Some(pool.acquire().await?), answered: true })
    }

    /// To ask on; what comes of it has to be told.
    pub(crate) fn connection(&mut self) -> &mut DB::Connection {
        self.answered = false;
        self.connection.as_mut().expect("there until it is dropped")
    }

    /// Only an answer, or an error that the server reported, leaves both sides in step.
    pub(crate) fn answered<T>(mut self, result: sqlx::Result<T>) -> sqlx::Result<T> {
        self.answered = result.as_ref().err().is_none_or(|error| error.as_database_error().is_some());
        result
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl<DB: Database> Drop for Lent<DB> {
    fn drop(&mut self) {
        let Some(mut connection) = self.connection.take() else { return };
        if tokio::runtime::Handle::try_current().is_err() {
            // The way back to the pool needs a runtime, and a farewell to the server does; sqlx panics without one. Closing the
            // socket does not.
            drop(connection.detach());
        } else if !self.answered {
            connection.close_on_drop();
        }
    }
}

/// Runs a query within the limit, to its end: on MySQL that of a call comes behind the row.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) async fn rows<DB, T, A>(
    pool: &Pool<DB>,
    query: QueryAs<'_, DB, T, A>,
    classify: impl FnOnce(sqlx::Error) -> NodeError,
) -> Result<Vec<T>, NodeError>
where
    DB: Database,
    T: for<'r> FromRow<'r, DB::Row> + Send + Unpin,
    A: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let asking = async {
        let mut lent = Lent::by(pool).await?;
        let rows = query.fetch_all(lent.connection()).await;
        lent.answered(rows)
    };
    limited(asking, classify).await
}

/// Runs statements that answer nothing, within the limit.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) async fn execute<DB>(
    pool: &Pool<DB>,
    text: impl SqlSafeStr,
    classify: impl FnOnce(sqlx::Error) -> NodeError,
) -> Result<(), NodeError>
where
    DB: Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let executing = async {
        let mut lent = Lent::by(pool).await?;
        let executed = sqlx::raw_sql(text).execute(lent.connection()).await;
        lent.answered(executed)
    };
    limited(executing, classify).await.map(|_| ())
}

/// The row of a statement that has to answer one.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn one<T>(rows: Vec<T>) -> Result<T, NodeError> {
    rows.into_iter().next().ok_or_else(|| NodeError::protocol("a statement answered nothing"))
}

/// A refusal with a word on what to do next, before what the server said.
pub(crate) fn refused(reason: Refusal, advice: &'static str, cause: sqlx::Error) -> NodeError {
    NodeError::refused(reason, Advice { advice, cause })
}

/// An error that no server reported: what the URL asks for and sqlx was built without, or an end of the connection.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn unanswered(error: sqlx::Error) -> NodeError {
    match error {
        sqlx::Error::Configuration(_) | sqlx::Error::Tls(_) => NodeError::refused(Refusal::Configuration, error),
        _ => NodeError::unreachable(error),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{advice}")]
struct Advice {
    advice: &'static str,
    #[source]
    cause: sqlx::Error,
}

/// A number as SQL takes it. One that does not fit is above all tokens, and the highest that fits is so, too.
pub(crate) fn signed(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// For how many of the milliseconds that a calendar shows a lock is held, so that it is held for its whole ttl: of the one that
/// is shown now a part has gone.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn shown_millis(ttl: Ttl) -> u64 {
    ttl.as_millis() + 1
}

pub(crate) fn counter(number: i64) -> Result<u64, NodeError> {
    number.try_into().map_err(|_| NodeError::protocol("a counter is negative"))
}

pub(crate) fn held_by(resource: &Resource, owner: &str, millis: i64) -> HeldBy {
    let remaining = Remaining::For(Duration::from_millis(millis.try_into().unwrap_or(0)));
    HeldBy { resource: resource.clone(), holder: Holder::Owner(Fingerprint::of(owner)), remaining }
}

/// A resource as its row has it: the counter, the owner if there is one now, and for how many milliseconds.
pub(crate) fn inspection(
    resource: &Resource,
    seen: Option<(i64, Option<String>, i64)>,
) -> Result<Inspection, NodeError> {
    let (value, owner, millis) = seen.unwrap_or_default();
    Ok(Inspection {
        resource: resource.clone(),
        held: owner.map(|owner| held_by(resource, &owner, millis)),
        // A row without a grant has the counter zero, which is none.
        counter: (0 < value).then(|| counter(value)).transpose()?,
    })
}

/// How an owner stood: 1 it held all, 0 some were gone, otherwise some were another's.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn extension(standing: i64) -> Extension {
    match standing {
        1 => Extension::Extended,
        0 => Extension::Gone,
        _ => Extension::NotOwner,
    }
}

/// The same of a release.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn releasing(standing: i64) -> Releasing {
    match standing {
        1 => Releasing::Released,
        0 => Releasing::Gone,
        _ => Releasing::NotOwner,
    }
}

/// What a server said of itself when it was connected to.
pub(crate) struct Greeting {
    identity: Arc<str>,
    /// What its calendar showed, and when.
    shown: Duration,
    at: Instant,
}

impl Greeting {
    /// Heard just now.
    pub(crate) fn new(identity: String, shown: Duration) -> Self {
        Self { identity: identity.into(), shown, at: Instant::now() }
    }

    pub(crate) fn identity(&self) -> &Arc<str> {
        &self.identity
    }

    /// What its calendar shows by now.
    pub(crate) fn unix_time(&self) -> Duration {
        self.shown.saturating_add(self.at.elapsed())
    }
}

/// The key of a resource in letters that no database understands in a way of its own, and so as distinct as the names are.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn hexadecimal(prefix: &redlock_core::KeyPrefix, resource: &Resource) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = prefix.as_str().bytes().chain(resource.name().bytes());
    bytes.flat_map(|byte| [byte >> 4, byte & 15]).map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// All keys of an ownership, in its order, as a JSON array: one parameter, however many there are.
#[cfg(any(feature = "mysql", feature = "sqlite"))]
pub(crate) fn json_keys(ownership: &Ownership) -> String {
    let keys = ownership.resources().iter().map(|resource| hexadecimal(ownership.prefix(), resource));
    let quoted: Vec<String> = keys.map(|key| ["\"", &key, "\""].concat()).collect();
    ["[", &quoted.join(","), "]"].concat()
}

/// The resource that stands at a position, counted from 0.
pub(crate) fn resource_at(ownership: &Ownership, position: Option<usize>) -> Result<&Resource, NodeError> {
    let resource = position.and_then(|position| ownership.resources().iter().nth(position));
    resource.ok_or_else(|| NodeError::protocol("no such resource was asked for"))
}

#[cfg(all(test, any(feature = "mysql", feature = "sqlite")))]
mod tests {
    use super::*;
    use redlock_core::{KeyPrefix, Owner, Resources};

    #[test]
    fn keys_are_an_array_of_digits() {
        let resources = Resources::new(["a\"", "\u{1F512}"].map(|name| Resource::new(name).unwrap())).unwrap();
        let ownership = Ownership::new(KeyPrefix::new("l:").unwrap(), resources, Owner::assume("o"));
        assert_eq!(json_keys(&ownership), "[\"6c3a6122\",\"6c3af09f9492\"]");
    }
}
