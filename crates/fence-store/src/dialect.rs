//! What differs between the databases: how a statement is rendered and run, and how a transaction begins.
//!
//! [`Flavor`] is the database as a value: pure code asks it and is tested in all three without a server. [`Dialect`] is
//! the database as a sqlx type; it knows how to do things, and decides nothing.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use sea_query::{
    Expr, MysqlQueryBuilder, PostgresQueryBuilder, QueryStatementWriter, SqliteQueryBuilder, Value, Values,
};
use sqlx::{Database, Execute};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use sqlx_core::transaction::TransactionManager;

use crate::error::{FenceError, StatementProblem};

/// Which SQL is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Flavor {
    /// Postgres.
    Postgres,
    /// MySQL and MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// Postgres waits for a lock without end unless told otherwise, so a holder that is frozen in a transaction would keep the
/// next one waiting for as long. Ten seconds, for this transaction or statement alone, where the session or the role has no
/// limit of its own.
macro_rules! postgres_lock_timeout {
    () => {
        "SELECT set_config('lock_timeout', '10s', true) WHERE current_setting('lock_timeout') = '0'"
    };
}

/// The same within a condition that every row meets. It holds from the moment the row is looked at, before it is waited for.
const POSTGRES_LOCK_TIMEOUT: &str =
    "CASE current_setting('lock_timeout') WHEN '0' THEN set_config('lock_timeout', '10s', true) <> '' ELSE true END";

/// How long the store waits for a lock that somebody else holds, where its user has said so. Whole milliseconds, at least
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockWait {
    millis: u32,
}

impl LockWait {
    pub(crate) fn new(wait: Duration) -> Self {
        // The greatest that all three take: Postgres and SQLite count in 31 bits.
        let greatest = u128::from(i32::MAX.unsigned_abs());
        Self { millis: u32::try_from(wait.as_millis().clamp(1, greatest)).expect("31 bits fit") }
    }

    /// What sets it for a session, where there is no way to set it for less. InnoDB counts in seconds, from one.
    pub(crate) fn for_session(self, flavor: Flavor) -> Option<String> {
        match flavor {
            Flavor::Postgres => None,
            Flavor::MySql => {
                Some(["SET SESSION innodb_lock_wait_timeout = ", &self.millis.div_ceil(1_000).to_string()].concat())
            }
            Flavor::Sqlite => Some(["PRAGMA busy_timeout = ", &self.millis.to_string()].concat()),
        }
    }

    /// As Postgres writes it.
    fn setting(self) -> String {
        [&self.millis.to_string(), "ms"].concat()
    }
}

impl Flavor {
    /// Renders a statement with its values apart, ready to be run.
    ///
    /// Refuses a `u64` that the database's signed integers cannot hold: `sea-query-sqlx` 0.9 panics on one.
    pub(crate) fn render(self, statement: &impl QueryStatementWriter) -> Result<Rendered, FenceError> {
        let (mut sql, values) = match self {
            Self::Postgres => statement.build(PostgresQueryBuilder),
            Self::MySql => statement.build(MysqlQueryBuilder),
            Self::Sqlite => statement.build(SqliteQueryBuilder),
        };
        let too_large =
            |value: &&Value| matches!(value, Value::BigUnsigned(Some(number)) if i64::try_from(*number).is_err());
        if self != Self::MySql
            && let Some(Value::BigUnsigned(Some(value))) = values.iter().find(too_large)
        {
            return Err(StatementProblem::UnsignedTooLarge { value: *value }.into());
        }
        if self == Self::Postgres {
            name_the_types(&mut sql, &values);
        }
        Ok(Rendered { sql, values })
    }

    /// Renders a statement with its values in it, for where several travel in one text. For values that nobody can choose
    /// the quotes of: numbers and bytes.
    pub(crate) fn text(self, statement: &impl QueryStatementWriter) -> String {
        match self {
            Self::Postgres => statement.to_string(PostgresQueryBuilder),
            Self::MySql => statement.to_string(MysqlQueryBuilder),
            Self::Sqlite => statement.to_string(SqliteQueryBuilder),
        }
    }

    /// A statement whose text is fixed, with values to bind.
    pub(crate) fn fixed(sql: &'static str, values: impl IntoIterator<Item = Value>) -> Rendered {
        Rendered { sql: sql.to_owned(), values: Values(values.into_iter().collect()) }
    }

    /// What opens a transaction, in one text.
    ///
    /// MySQL: with `completion_type = CHAIN` our COMMIT would open another transaction, in which the next borrower's
    /// acknowledged write vanishes. With `autocommit = 0` whatever was read before on this connection has opened one, in
    /// which no isolation level can be set; nobody asked to keep anything of it. The level holds for the next transaction
    /// only, which is why a connection on which this failed must not be lent again.
    pub(crate) fn begin(self, isolation: Isolation, wait: Option<LockWait>) -> Cow<'static, str> {
        let level = match isolation {
            Isolation::ReadCommitted => "READ COMMITTED",
            Isolation::RepeatableRead => "REPEATABLE READ",
            Isolation::Serializable => "SERIALIZABLE",
        };
        match self {
            Self::Postgres => {
                let limit = match wait {
                    None => Cow::Borrowed(postgres_lock_timeout!()),
                    // A number, and nothing that a caller has written.
                    Some(wait) => ["SELECT set_config('lock_timeout', '", &wait.setting(), "', true)"].concat().into(),
                };
                ["BEGIN ISOLATION LEVEL ", level, "; ", &limit].concat().into()
            }
            Self::MySql => {
                ["SET completion_type = 'NO_CHAIN'; ROLLBACK; SET TRANSACTION ISOLATION LEVEL ", level, "; BEGIN"]
                    .concat()
                    .into()
            }
            // Takes the write lock now: a transaction that read first and asks for it later is refused at once, without
            // the busy timeout being consulted (seen on SQLite 3.40).
            Self::Sqlite => "BEGIN IMMEDIATE".into(),
        }
    }

    /// What a statement that is a transaction of its own needs in its condition: that it is one (with `autocommit = 0` on
    /// MySQL it would not be kept, so it matches nothing), and on Postgres a limit for its wait.
    pub(crate) fn alone(self, wait: Option<LockWait>) -> Option<Expr> {
        match (self, wait) {
            (Self::Postgres, None) => Some(Expr::cust(POSTGRES_LOCK_TIMEOUT)),
            (Self::Postgres, Some(wait)) => {
                Some(Expr::cust_with_values("set_config('lock_timeout', $1, true) <> ''", [wait.setting()]))
            }
            (Self::MySql, _) => Some(Expr::cust("@@autocommit")),
            (Self::Sqlite, _) => None,
        }
    }
}

/// Makes the text of a statement differ when its values have other types.
///
/// sqlx keeps prepared statements by their text, and Postgres takes the types of the first run for all others. A float
/// bound where an integer was before has as many bytes and would be stored as a wrong number without a word (seen on
/// sqlx 0.9.0). The words come from sea-query's names of its types, never from a value.
fn name_the_types(sql: &mut String, values: &Values) {
    if values.0.is_empty() {
        return;
    }
    sql.push_str(" /*");
    for value in &values.0 {
        sql.push(' ');
        // Ends with an error as soon as the name is there, before anything is written of what may be a long value.
        let _ = fmt::Write::write_fmt(&mut TypeName { sql, ends: 0 }, format_args!("{value:?}"));
    }
    sql.push_str(" */");
}

/// Takes the name of a value's type from how it shows itself: the first word, and of an array the next one too.
struct TypeName<'s> {
    sql: &'s mut String,
    /// How many words have ended.
    ends: usize,
}

impl fmt::Write for TypeName<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        for character in part.chars() {
            if character.is_ascii_alphanumeric() {
                self.sql.push(character);
            } else {
                self.ends += 1;
                if self.ends > 1 || !self.sql.ends_with(" Array") {
                    return Err(fmt::Error);
                }
            }
        }
        Ok(())
    }
}

/// How much a transaction sees of others that commit while it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Each statement sees what was committed before it began. The fence needs no more, and everybody queues up on the
    /// ledger row without conflicts.
    #[default]
    ReadCommitted,
    /// All reads see one moment. Expect [`FenceError::Conflict`] when several holders meet.
    RepeatableRead,
    /// As if transactions ran one after the other. Expect [`FenceError::Conflict`] when several holders meet.
    ///
    /// SQLite knows only this level, whichever is asked for.
    Serializable,
}

/// A statement's text and the values to bind to it.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub struct Rendered {
    pub(crate) sql: String,
    pub(crate) values: Values,
}

/// A future whose insides callers need not know: what rustc infers of them would keep callers from spawning theirs
/// (rust-lang/rust#100013). sqlx boxes these futures in any case.
pub(crate) type BoxFuture<'e, T> = Pin<Box<dyn Future<Output = T> + Send + 'e>>;

/// A database that fence-store works with: `sqlx::Postgres`, `sqlx::MySql`, `sqlx::Sqlite`.
///
/// Sealed: what makes each statement atomic was thought through for these three.
pub trait Dialect: Database + sealed::Sealed {
    /// The database as a value.
    const FLAVOR: Flavor;

    #[doc(hidden)]
    fn query(statement: Rendered) -> impl Execute<'static, Self> + 'static;

    #[doc(hidden)]
    fn execute<'e, 'q: 'e, E>(
        connection: &'e mut Self::Connection,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Self::QueryResult>>
    where
        E: Execute<'q, Self> + 'q;

    #[doc(hidden)]
    fn fetch_optional<'e, 'q: 'e, E>(
        connection: &'e mut Self::Connection,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Option<Self::Row>>>
    where
        E: Execute<'q, Self> + 'q;

    #[doc(hidden)]
    fn fetch_all<'e, 'q: 'e, E>(
        connection: &'e mut Self::Connection,
        query: E,
    ) -> BoxFuture<'e, sqlx::Result<Vec<Self::Row>>>
    where
        E: Execute<'q, Self> + 'q;

    #[doc(hidden)]
    fn begin<'e>(connection: &'e mut Self::Connection, statement: Cow<'static, str>)
    -> BoxFuture<'e, sqlx::Result<()>>;

    #[doc(hidden)]
    fn commit(connection: &mut Self::Connection) -> BoxFuture<'_, sqlx::Result<()>>;

    #[doc(hidden)]
    fn rollback(connection: &mut Self::Connection) -> BoxFuture<'_, sqlx::Result<()>>;

    #[doc(hidden)]
    fn integer(row: &Self::Row, index: usize) -> sqlx::Result<Option<i64>>;

    #[doc(hidden)]
    fn text(row: &Self::Row, index: usize) -> sqlx::Result<Option<String>>;

    #[doc(hidden)]
    fn rows_affected(result: &Self::QueryResult) -> u64;
}

/// A database that returns what it has updated: Postgres and SQLite.
///
/// MySQL has no RETURNING, and MariaDB has it for INSERT and DELETE alone; both are `sqlx::MySql`. There a claim reads first,
/// or a [`Transaction`](crate::Transaction) reads afterwards.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not return what it has written",
    note = "MySQL has no RETURNING: claim the row and read it, or write and read in one transaction"
)]
pub trait Returning: Dialect {}

#[cfg(feature = "postgres")]
impl Returning for sqlx::Postgres {}
#[cfg(feature = "sqlite")]
impl Returning for sqlx::Sqlite {}

mod sealed {
    pub trait Sealed {}
}

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
macro_rules! dialect {
    ($database:ty, $flavor:expr) => {
        impl sealed::Sealed for $database {}

        impl Dialect for $database {
            const FLAVOR: Flavor = $flavor;

            fn query(statement: Rendered) -> impl Execute<'static, Self> + 'static {
                // Rendered by sea-query with the values apart, or fixed text: see `Flavor`, which alone makes them.
                sqlx::query_with::<Self, _>(
                    sqlx::AssertSqlSafe(statement.sql),
                    sea_query_sqlx::SqlxValues(statement.values),
                )
            }

            fn execute<'e, 'q: 'e, E>(
                connection: &'e mut Self::Connection,
                query: E,
            ) -> BoxFuture<'e, sqlx::Result<Self::QueryResult>>
            where
                E: Execute<'q, Self> + 'q,
            {
                sqlx::Executor::execute(connection, query)
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                connection: &'e mut Self::Connection,
                query: E,
            ) -> BoxFuture<'e, sqlx::Result<Option<Self::Row>>>
            where
                E: Execute<'q, Self> + 'q,
            {
                if <$database as Dialect>::FLAVOR == Flavor::Sqlite {
                    // To the last step. SQLite commits an autocommit statement when it is done; sqlx lets go of it after
                    // its first row, and the reset that commits then keeps a BUSY to itself: the row was returned, and
                    // its UPDATE undone (seen on sqlx 0.9.0 in journal mode DELETE, with a reader in the way).
                    return Box::pin(async move {
                        let rows = sqlx::Executor::fetch_all(connection, query).await?;
                        Ok(rows.into_iter().next())
                    });
                }
                sqlx::Executor::fetch_optional(connection, query)
            }

            fn fetch_all<'e, 'q: 'e, E>(
                connection: &'e mut Self::Connection,
                query: E,
            ) -> BoxFuture<'e, sqlx::Result<Vec<Self::Row>>>
            where
                E: Execute<'q, Self> + 'q,
            {
                sqlx::Executor::fetch_all(connection, query)
            }

            fn begin<'e>(
                connection: &'e mut Self::Connection,
                statement: Cow<'static, str>,
            ) -> BoxFuture<'e, sqlx::Result<()>> {
                // From `Flavor::begin`.
                let statement = sqlx::SqlSafeStr::into_sql_str(sqlx::AssertSqlSafe(statement.into_owned()));
                Box::pin(<Self as Database>::TransactionManager::begin(connection, Some(statement)))
            }

            fn commit(connection: &mut Self::Connection) -> BoxFuture<'_, sqlx::Result<()>> {
                Box::pin(<Self as Database>::TransactionManager::commit(connection))
            }

            fn rollback(connection: &mut Self::Connection) -> BoxFuture<'_, sqlx::Result<()>> {
                Box::pin(<Self as Database>::TransactionManager::rollback(connection))
            }

            fn integer(row: &Self::Row, index: usize) -> sqlx::Result<Option<i64>> {
                sqlx::Row::try_get(row, index)
            }

            fn text(row: &Self::Row, index: usize) -> sqlx::Result<Option<String>> {
                sqlx::Row::try_get(row, index)
            }

            fn rows_affected(result: &Self::QueryResult) -> u64 {
                result.rows_affected()
            }
        }
    };
}

#[cfg(feature = "postgres")]
dialect!(sqlx::Postgres, Flavor::Postgres);
#[cfg(feature = "mysql")]
dialect!(sqlx::MySql, Flavor::MySql);
#[cfg(feature = "sqlite")]
dialect!(sqlx::Sqlite, Flavor::Sqlite);

#[cfg(test)]
mod tests {
    use sea_query::Query;

    use super::*;

    #[test]
    fn golden_sql_of_beginning() {
        use Isolation::{ReadCommitted, RepeatableRead, Serializable};
        for (isolation, name) in
            [(ReadCommitted, "READ COMMITTED"), (RepeatableRead, "REPEATABLE READ"), (Serializable, "SERIALIZABLE")]
        {
            let level = ["ISOLATION LEVEL", name].join(" ");
            let begins = |flavor: Flavor, wait| flavor.begin(isolation, wait);
            assert_eq!(begins(Flavor::Postgres, None), ["BEGIN ", &level, "; ", postgres_lock_timeout!()].concat());
            let wait = Some(LockWait::new(Duration::from_millis(1_500)));
            assert_eq!(
                begins(Flavor::Postgres, wait),
                ["BEGIN ", &level, "; SELECT set_config('lock_timeout', '1500ms', true)"].concat()
            );
            let set = ["SET completion_type = 'NO_CHAIN'; ROLLBACK; SET TRANSACTION", &level].join(" ");
            for wait in [None, wait] {
                assert_eq!(begins(Flavor::MySql, wait), [&set, "; BEGIN"].concat());
                // Never a plain BEGIN: some transactions of ours look first and write later.
                assert_eq!(begins(Flavor::Sqlite, wait), "BEGIN IMMEDIATE");
            }
        }
    }

    #[test]
    fn golden_sql_of_a_limit_to_waiting() {
        let check = |wait, mysql: &str, sqlite: &str| {
            let wait = LockWait::new(wait);
            assert_eq!(wait.for_session(Flavor::Postgres), None);
            assert_eq!(wait.for_session(Flavor::MySql).unwrap(), mysql);
            assert_eq!(wait.for_session(Flavor::Sqlite).unwrap(), sqlite);
        };
        let mysql = ["SET SESSION innodb_lock_wait_timeout = 2", "SET SESSION innodb_lock_wait_timeout = 1"];
        check(Duration::from_millis(1_001), mysql[0], "PRAGMA busy_timeout = 1001");
        check(Duration::ZERO, mysql[1], "PRAGMA busy_timeout = 1");
        check(Duration::MAX, "SET SESSION innodb_lock_wait_timeout = 2147484", "PRAGMA busy_timeout = 2147483647");
    }

    #[test]
    fn other_types_make_another_text_on_postgres() {
        let sql = |value: Value| {
            let update = Query::update().table("t").value("a", value).value("b", "*/ DROP").to_owned();
            Flavor::Postgres.render(&update).unwrap().sql
        };
        assert_eq!(sql(1_i64.into()), r#"UPDATE "t" SET "a" = $1, "b" = $2 /* BigInt String */"#);
        assert_eq!(sql(1_i32.into()), r#"UPDATE "t" SET "a" = $1, "b" = $2 /* Int String */"#);
        assert_eq!(sql(1.5_f64.into()), r#"UPDATE "t" SET "a" = $1, "b" = $2 /* Double String */"#);
        assert_eq!(sql(None::<f64>.into()), r#"UPDATE "t" SET "a" = $1, "b" = $2 /* Double String */"#);
    }
}
