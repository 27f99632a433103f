//! What became of a fenced write, told by what one does next.
//!
//! "Applied" is the `Ok` side of every method. All else is a [`FenceError`], so that `?` cannot step over a refusal. What
//! a database's code means is decided here and nowhere else.

use redlock_core::FencingToken;

use crate::guard::install::Finding;
use crate::guard::{REFUSED, REFUSED_STATE, STALE, STALE_STATE};

/// A fenced write did not happen, or nobody can say whether it did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer holder has been here. Stop working: whatever was read under this grant is out of date. Nothing was written.
    #[error("stale: token {presented} was presented, but {target} has accepted {highest}")]
    Stale {
        /// The token of the grant that was refused.
        presented: FencingToken,
        /// The highest token that the storage has accepted, as it is stored.
        highest: i64,
        /// The row or the resource that refused.
        target: String,
    },

    /// The row carries this very token: this grant has written it before. After an unknown outcome this is good news;
    /// otherwise let the row be rewritten ([`Row::may_rewrite`](crate::Row::may_rewrite)). Nothing was written now.
    #[error(
        "{target} was already written under token {token}: after an unknown outcome, all is well; if this is a second, \
         intended write, go through the claim, or use Row::may_rewrite"
    )]
    AlreadyWritten {
        /// The token of the grant.
        token: FencingToken,
        /// The row.
        target: String,
    },

    /// The row is not there, or the statement's own condition does not hold for it. Nothing was written.
    #[error("no such row in {table}, or a condition of the statement does not hold for it")]
    NoSuchRow {
        /// The table that was looked into.
        table: String,
    },

    /// Others were in the way (serialization failure, deadlock, lock wait, busy). The whole transaction was rolled back;
    /// run it again while the lock is held.
    #[error("in conflict with another transaction, and rolled back: run it again")]
    Conflict {
        /// What the database said.
        source: sqlx::Error,
    },

    /// Nothing, or too little, is left of the lock for another run. Nothing was written. Acquire it again, and begin anew.
    #[error("the lock has {left:?} left, too little for another run, after {runs} in conflict: acquire it again")]
    LockOver {
        /// What is left of the lock.
        left: std::time::Duration,
        /// How often the work was run before.
        runs: u32,
    },

    /// The answer was lost after the write or the commit was sent: it may have taken effect. Settle it with
    /// [`FenceStore::settle`](crate::FenceStore::settle), or for a single row by writing again under the strict rule.
    #[error("the answer to a write or a commit was lost; it may have taken effect")]
    Unknown {
        /// What happened in place of an answer.
        source: sqlx::Error,
    },

    /// The ledger table, or a table of the statement, is not there. Run
    /// [`FenceStore::install_schema`](crate::FenceStore::install_schema) or your migrations.
    #[error(
        "there is no table {table}: if it is the ledger, run install_schema; if not, create it or correct its name"
    )]
    SchemaMissing {
        /// The table, where it is known.
        table: String,
        /// What the database said.
        source: Option<sqlx::Error>,
    },

    /// The fence column cannot hold tokens. Change the table as the message says.
    #[error(transparent)]
    Column(#[from] ColumnProblem),

    /// The statement cannot be fenced. Change the program as the message says.
    #[error(transparent)]
    Statement(#[from] StatementProblem),

    /// Anything else that the database or the connection to it reported. Nothing was written; an open transaction was
    /// rolled back.
    #[error("the database reported an error: {source}")]
    Database {
        /// What it reported.
        source: sqlx::Error,
    },
}

/// What is wrong with a column that should hold tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnProblem {
    /// The table's engine knows neither transactions nor row locks, so a rollback keeps what was written.
    #[error("{table} is kept by {found}, which cannot roll back: ALTER TABLE ... ENGINE=InnoDB")]
    Engine {
        /// The table.
        table: String,
        /// The engine.
        found: String,
    },
    /// No unique key holds this column alone and in full, so that each token would get a row of its own.
    #[error("{table}.{column} has no unique key of its own: make it the primary key")]
    NotUnique {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// There is no such column.
    #[error("{table} has no column {column}: add it as BIGINT NOT NULL DEFAULT 0")]
    Missing {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// Another type than a signed 64-bit integer: tokens would overflow, be rounded, or be compared as text.
    #[error("{table}.{column} is {found}: change its type to BIGINT, signed 64-bit, for tokens go up to 2^53 - 1")]
    Type {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The type as the database names it.
        found: String,
    },
    /// NULL is allowed; it is neither less nor greater than any token, so such a row would refuse everybody.
    #[error("{table}.{column} may be NULL, which no token is greater than: make it NOT NULL DEFAULT 0")]
    Nullable {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// The default is not 0, below which no token lies.
    #[error("{table}.{column} has default {found}: make it DEFAULT 0, below every token")]
    Default {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// The default as the database writes it, or `none`.
        found: String,
    },
}

/// What is wrong with a statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatementProblem {
    /// It assigns the fence column, which is the store's business.
    #[error("the statement sets the fence column {column} itself: leave it out, the store adds it")]
    SetsTheFence {
        /// The column.
        column: String,
    },
    /// It assigns a column of the row's key: the fence would go along with the row, and the old key have none.
    #[error(
        "the statement sets the key column {column}: leave it out; to move a row, delete it and upsert the other one \
         in one transaction (begin)"
    )]
    SetsTheKey {
        /// The column.
        column: String,
    },
    /// A key column is NULL, which is equal to nothing, itself included: no row would be found, and many could be inserted.
    #[error("the key column {column} is NULL, which names no row: use a key that is NOT NULL")]
    NullInKey {
        /// The column.
        column: String,
    },
    /// It names a table of its own, which is not the row's.
    #[error("the statement names another table than {table}: leave it out, the row says where to write")]
    AnotherTable {
        /// The row's table.
        table: String,
    },
    /// It begins with a WITH clause, which Postgres carries out whether the fence lets the row be written or not.
    #[error("the statement has a WITH clause, which runs even if the row is refused: use a ledger transaction (begin)")]
    With,
    /// It asks for what it writes, which an answer of counts has no room for, and MySQL no word.
    #[error("the statement has a RETURNING clause: leave it out, and use update_returning (Postgres, SQLite) or claim")]
    Returning,
    /// The query gives more or fewer columns than are named.
    #[error("the query does not give one column for each that is named of {table}: name as many as it selects")]
    ColumnsMismatch {
        /// The table.
        table: String,
    },
    /// Its condition was built with `and_or_where`, to which sea-query can add nothing.
    #[error("the statement's condition comes from and_or_where, which cannot be fenced: use cond_where or and_where")]
    ChainedCondition,
    /// The key names several rows, so that one fence would speak for others.
    #[error("the key names several rows of {table}: use a unique key, with values of the columns' own types")]
    KeyOfSeveralRows {
        /// The table.
        table: String,
    },
    /// Rows that are written together differ in more than their keys' values.
    #[error(
        "the rows differ in table, key columns, fence column or rule from the first, of {table}: write each kind apart"
    )]
    RowsOfSeveralKinds {
        /// The table of the first.
        table: String,
    },
    /// The same row is named twice among those that are written together, so that one verdict would stand for two writes.
    #[error("a row of {table} is named twice: name each row once, or write one after the other")]
    RowTwice {
        /// The table.
        table: String,
    },
    /// A trigger of the table took the statement and did something else.
    #[error("a trigger of {table} kept the row from being written: fence the table that it writes to")]
    Suppressed {
        /// The table.
        table: String,
    },
    /// An unsigned value that the database's signed 64-bit integers cannot hold.
    #[error("the value {value} does not fit a signed 64-bit integer: bind it as text, bytes or a decimal")]
    UnsignedTooLarge {
        /// The value.
        value: u64,
    },
    /// It would end the transaction that holds the ledger's row, or begin another; what follows would not be fenced.
    #[error(
        "{keyword} would end the fenced transaction: leave it out, and call commit or rollback on the transaction \
         (statements that change a schema belong in a migration)"
    )]
    EndsTheTransaction {
        /// The statement's first word.
        keyword: String,
    },
    /// A guard refused it, because it presents no token that could pass: it leaves the fence as it is, changes the key,
    /// deletes a row that was not condemned, or does what a guard cannot let pass. The message is the guard's.
    #[error("{message}{}", .hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Unfenced {
        /// What was refused, in the guard's words.
        message: String,
        /// What to do, where the database has a place for it.
        hint: Option<String>,
    },
    /// A guard was put up and is not as it should be: see what has the name of its tombstones.
    #[error("installed, and yet {0}")]
    NotUp(Finding),
    /// A name that a guard cannot use.
    #[error("{name:?} cannot be used by a guard: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// sqlx has no transaction open on the connection, so that the fence would end with the statement that raises it.
    #[error("no transaction is open on the connection: begin one with sqlx (pool.begin()), then join it")]
    NoTransaction,
    /// The work of a run ended and had put its transaction elsewhere, so that it could not be committed.
    #[error("the work kept its transaction beyond its end: let the future that is returned own it")]
    TransactionKept,
    /// The resource's name has a NUL character, which Postgres' text cannot hold.
    #[error("the resource {resource:?} has a NUL character, which Postgres cannot store: choose another name")]
    NulInResource {
        /// The name.
        resource: String,
    },
}

impl FenceError {
    /// Whether the same write can succeed when it is simply run again: true for [`FenceError::Conflict`].
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    /// Whether a newer holder was the reason: true for [`FenceError::Stale`].
    #[must_use]
    pub fn is_stale(&self) -> bool {
        matches!(self, Self::Stale { .. })
    }

    /// Whether running the transaction again *at once* helps: somebody else won, and is done. Not so for a lock wait or a
    /// busy file, where the other one is still there and the time to wait has been used up.
    pub(crate) fn is_lost_race(&self) -> bool {
        matches!(self, Self::Conflict { source } if fault(source) == Fault::LostRace)
    }

    /// What an error of a statement means that did not commit anything.
    pub(crate) fn of_statement(source: sqlx::Error) -> Self {
        match fault(&source) {
            Fault::LostRace | Fault::Waited => Self::Conflict { source },
            Fault::MissingTable => Self::SchemaMissing { table: source.to_string(), source: Some(source) },
            Fault::Guarded => refusal(source),
            Fault::NoAnswer | Fault::Other => Self::Database { source },
        }
    }

    /// What an error means when the database may have committed before it: at COMMIT, and in autocommit.
    pub(crate) fn of_commit(source: sqlx::Error) -> Self {
        match fault(&source) {
            Fault::NoAnswer => Self::Unknown { source },
            _ => Self::of_statement(source),
        }
    }

    /// A conflict that was noticed here, not by the database.
    pub(crate) fn conflict(what: &str) -> Self {
        Self::Conflict { source: sqlx::Error::Protocol(what.to_owned()) }
    }
}

/// Sorts an error of a statement that was run on [`Transaction::connection`](crate::Transaction::connection).
impl From<sqlx::Error> for FenceError {
    fn from(source: sqlx::Error) -> Self {
        Self::of_statement(source)
    }
}

/// What a database's error means to a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "the table is complete in every set of features")
)]
enum Fault {
    /// Somebody else won and is done: serialization failure, deadlock, changed record.
    LostRace,
    /// Somebody else is still there, and the time to wait is over: lock wait, busy.
    Waited,
    MissingTable,
    /// A guard's trigger refused the statement.
    Guarded,
    /// No answer, or one that does not say what became of the transaction.
    NoAnswer,
    Other,
}

fn fault(error: &sqlx::Error) -> Fault {
    let Some(reported) = error.as_database_error() else {
        return match error {
            // Nothing was sent.
            sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::RowNotFound
            | sqlx::Error::Encode(_)
            | sqlx::Error::Configuration(_)
            | sqlx::Error::BeginFailed => Fault::Other,
            _ => Fault::NoAnswer,
        };
    };
    #[cfg(feature = "postgres")]
    if let Some(postgres) = reported.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        use sqlx::postgres::PgSeverity;
        // A session that is being ended says so in place of an answer, also while it waits for a standby's
        // confirmation of a commit that is durable already.
        if matches!(postgres.severity(), PgSeverity::Fatal | PgSeverity::Panic) {
            return Fault::NoAnswer;
        }
        return sqlstate(postgres.code());
    }
    #[cfg(feature = "mysql")]
    if let Some(mysql) = reported.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return match mysql.code() {
            Some(STALE_STATE | REFUSED_STATE) => Fault::Guarded,
            _ => mysql_number(mysql.number()),
        };
    }
    match reported.code().and_then(|code| code.parse().ok()) {
        Some(code) => sqlite_code(code, reported.message()),
        None => Fault::Other,
    }
}

/// Postgres, appendix A of its manual.
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "the table is complete in every set of features")
)]
fn sqlstate(code: &str) -> Fault {
    match code {
        // serialization_failure, deadlock_detected, and a rollback that names neither.
        "40001" | "40P01" | "40000" => Fault::LostRace,
        // statement_completion_unknown.
        "40003" => Fault::NoAnswer,
        // lock_not_available (lock_timeout), query_canceled (statement_timeout).
        "55P03" | "57014" => Fault::Waited,
        "42P01" => Fault::MissingTable,
        STALE_STATE | REFUSED_STATE => Fault::Guarded,
        _ => Fault::Other,
    }
}

/// MySQL and MariaDB.
#[cfg_attr(
    not(all(feature = "mysql", feature = "postgres", feature = "sqlite")),
    allow(dead_code, reason = "the table is complete in every set of features")
)]
fn mysql_number(number: u16) -> Fault {
    match number {
        // ER_LOCK_DEADLOCK rolls back the whole transaction; ER_CHECKREAD, "record has changed since last read", comes
        // from MariaDB under innodb_snapshot_isolation.
        1213 | 1020 => Fault::LostRace,
        // ER_LOCK_WAIT_TIMEOUT undoes the statement only; ER_LOCK_NOWAIT, ER_STATEMENT_TIMEOUT and MySQL's own.
        1205 | 3572 | 1969 | 3024 => Fault::Waited,
        1146 => Fault::MissingTable,
        // ER_SERVER_SHUTDOWN, ER_QUERY_INTERRUPTED, ER_ERROR_DURING_COMMIT, ER_CONNECTION_KILLED, CR_SERVER_LOST.
        1053 | 1317 | 1180 | 1927 | 2013 => Fault::NoAnswer,
        _ => Fault::Other,
    }
}

/// SQLite; extended codes carry the primary one in their low byte.
fn sqlite_code(code: i32, message: &str) -> Fault {
    match code & 0xff {
        // SQLITE_BUSY and SQLITE_LOCKED, with BUSY_SNAPSHOT and BUSY_RECOVERY among them.
        5 | 6 => Fault::Waited,
        // SQLITE_IOERR: the commit record may or may not have reached the disk.
        10 => Fault::NoAnswer,
        // SQLITE_ERROR and SQLITE_CONSTRAINT: a guard's errors have a text of their own, but no code.
        1 | 19 if guards_words(message).is_some() => Fault::Guarded,
        // Nor is there a finer code for this.
        1 if message.starts_with("no such table") => Fault::MissingTable,
        _ => Fault::Other,
    }
}

/// A guard's own words in a database's message: SQLite puts the name of a function before them, and quotes them.
fn guards_words(message: &str) -> Option<&str> {
    let start = [STALE, REFUSED].iter().filter_map(|prefix| message.find(prefix)).min()?;
    let words = message.get(start..)?;
    Some(if start == 0 { words } else { words.trim_end_matches('\'') })
}

/// What a guard's refusal means.
fn refusal(source: sqlx::Error) -> FenceError {
    let Some(reported) = source.as_database_error() else {
        return FenceError::Database { source };
    };
    let message = guards_words(reported.message()).unwrap_or(reported.message());
    stale_numbers(message).unwrap_or_else(|| {
        let hint = hint(reported);
        StatementProblem::Unfenced { message: message.to_owned(), hint }.into()
    })
}

/// Only Postgres has a place for it.
fn hint(reported: &dyn sqlx::error::DatabaseError) -> Option<String> {
    #[cfg(feature = "postgres")]
    if let Some(postgres) = reported.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return postgres.hint().map(str::to_owned);
    }
    let _ = reported;
    None
}

/// Reads `fence: stale: presented 33, highest 34: INSERT into orders refused`.
fn stale_numbers(message: &str) -> Option<FenceError> {
    let (numbers, what) = message.strip_prefix(STALE)?.split_once(": ")?;
    let (presented, highest) = numbers.strip_prefix("presented ")?.split_once(", highest ")?;
    let presented = FencingToken::assume_granted(presented.parse::<i64>().ok()?).ok()?;
    Some(FenceError::Stale { presented, highest: highest.parse().ok()?, target: ["the guard (", what, ")"].concat() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guards_refusal_is_read_whatever_the_database_puts_around_it() {
        for message in [
            "fence: stale: presented 33, highest 34: UPDATE of orders refused",
            "JSON path error near 'fence: stale: presented 33, highest 34: UPDATE of orders refused'",
            "bad JSON path: 'fence: stale: presented 33, highest 34: UPDATE of orders refused'",
        ] {
            let stale = stale_numbers(guards_words(message).unwrap()).unwrap();
            assert_eq!(
                stale.to_string(),
                "stale: token 33 was presented, but the guard (UPDATE of orders refused) has accepted 34"
            );
            assert_eq!(sqlite_code(1, message), Fault::Guarded);
        }
        for message in ["fence: refused: no token", "fence: stale: presented 0, highest 34: x", "fence: stale: what?"] {
            assert!(stale_numbers(message).is_none(), "{message}");
        }
        assert_eq!(guards_words("no such table: fence"), None);
        assert_eq!(sqlite_code(1811, "fence: refused: no token"), Fault::Guarded);
    }

    #[test]
    fn codes_are_sorted_by_what_to_do_next() {
        for (code, expected) in [
            ("40001", Fault::LostRace),
            ("40P01", Fault::LostRace),
            ("40003", Fault::NoAnswer),
            ("55P03", Fault::Waited),
            ("42P01", Fault::MissingTable),
            ("RF001", Fault::Guarded),
            ("RF002", Fault::Guarded),
            ("23505", Fault::Other),
        ] {
            assert_eq!(sqlstate(code), expected, "{code}");
        }
        for (number, expected) in [
            (1213, Fault::LostRace),
            (1020, Fault::LostRace),
            (1205, Fault::Waited),
            (1146, Fault::MissingTable),
            (1927, Fault::NoAnswer),
            (1062, Fault::Other),
        ] {
            assert_eq!(mysql_number(number), expected, "{number}");
        }
        for (code, message, expected) in [
            (5, "database is locked", Fault::Waited),
            (517, "database is locked", Fault::Waited),
            (262, "database table is locked", Fault::Waited),
            (778, "disk I/O error", Fault::NoAnswer),
            (1, "no such table: t", Fault::MissingTable),
            (1, "near \"x\": syntax error", Fault::Other),
            (2067, "UNIQUE constraint failed", Fault::Other),
        ] {
            assert_eq!(sqlite_code(code, message), expected, "{code}");
        }
    }
}
