//! What a caller's own statement would do to the transaction that it is run in, told by its first word.
//!
//! Pure. A transaction that its caller ends by a statement gives the ledger's row away, and the statements after it would
//! run outside the fence, so such a statement is not sent. Words cannot tell everything (a procedure may commit, a text may
//! hold several statements): what hides from them is noticed at the end, by the savepoint that [`crate::transaction`] sets.

use sqlx::{Database, Execute, SqlStr};

use crate::dialect::{Dialect, Flavor};
use crate::error::StatementProblem;

/// First words that begin or end a transaction, in every dialect.
const ENDINGS: &[&str] = &["ABORT", "BEGIN", "COMMIT", "END", "ROLLBACK", "START"];

/// First words before which MySQL commits by itself, from its manual: "Statements That Cause an Implicit Commit".
const MYSQL_ENDINGS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "CACHE",
    "CHANGE",
    "CHECK",
    "CREATE",
    "DROP",
    "FLUSH",
    "GRANT",
    "IMPORT",
    "INSTALL",
    "LOCK",
    "OPTIMIZE",
    "PURGE",
    "RENAME",
    "REPAIR",
    "RESET",
    "REVOKE",
    "STOP",
    "TRUNCATE",
    "UNINSTALL",
    "UNLOCK",
    "XA",
];

/// A caller's query, opened so that its text can be read before it is sent.
pub(crate) struct Opened<DB: Database> {
    sql: SqlStr,
    arguments: Option<DB::Arguments>,
    persistent: bool,
}

impl<DB: Dialect> Opened<DB> {
    /// Opens a query; `Err` if its arguments could not be encoded.
    pub(crate) fn new<'q>(mut query: impl Execute<'q, DB>) -> sqlx::Result<Self> {
        let arguments = query.take_arguments().map_err(sqlx::Error::Encode)?;
        let persistent = query.persistent();
        Ok(Self { sql: query.sql(), arguments, persistent })
    }

    /// Refuses a statement that would end the transaction.
    pub(crate) fn keeps_the_transaction(&self) -> Result<(), StatementProblem> {
        keeps_the_transaction(DB::FLAVOR, self.sql.as_str())
    }
}

impl<DB: Dialect> Execute<'static, DB> for Opened<DB> {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&DB::Statement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<DB::Arguments>, sqlx::error::BoxDynError> {
        Ok(self.arguments.take())
    }

    fn persistent(&self) -> bool {
        self.persistent
    }
}

fn keeps_the_transaction(flavor: Flavor, sql: &str) -> Result<(), StatementProblem> {
    let mut words = words(sql);
    let first = words.next().unwrap_or_default();
    let second = words.next().unwrap_or_default();
    let third = words.next().unwrap_or_default();
    let ends = match first.as_str() {
        // ROLLBACK TO, and with the noise word that each dialect has of its own.
        "ROLLBACK" => second != "TO" && third != "TO",
        "PREPARE" => second == "TRANSACTION",
        "CREATE" | "DROP" if flavor == Flavor::MySql => second != "TEMPORARY",
        "LOAD" if flavor == Flavor::MySql => second == "INDEX",
        "SET" if flavor == Flavor::MySql => {
            [second, third].iter().any(|word| word == "AUTOCOMMIT" || word == "PASSWORD")
        }
        word => ENDINGS.contains(&word) || (flavor == Flavor::MySql && MYSQL_ENDINGS.contains(&word)),
    };
    if ends { Err(StatementProblem::EndsTheTransaction { keyword: first }) } else { Ok(()) }
}

/// The words of a statement in capitals, without comments and punctuation.
fn words(mut sql: &str) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        loop {
            sql = sql.trim_start_matches(|character: char| !character.is_alphanumeric() && !"-/#".contains(character));
            let comment_end = if sql.starts_with("--") || sql.starts_with('#') {
                sql.find('\n')
            } else if sql.starts_with("/*") {
                sql.find("*/").map(|start| start + 1)
            } else if sql.starts_with(['-', '/']) {
                Some(0)
            } else {
                break;
            };
            sql = comment_end.and_then(|end| sql.get(end + 1..)).unwrap_or_default();
        }
        let end = sql.find(|character: char| character != '_' && !character.is_alphanumeric()).unwrap_or(sql.len());
        let (word, rest) = sql.split_at(end);
        sql = rest;
        (!word.is_empty()).then(|| word.to_ascii_uppercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Flavor; 3] = [Flavor::Postgres, Flavor::MySql, Flavor::Sqlite];

    fn check(flavors: &[Flavor], sql: &str, keeps: bool) {
        for flavor in flavors {
            assert_eq!(keeps_the_transaction(*flavor, sql).is_ok(), keeps, "{flavor:?}: {sql}");
        }
    }

    #[test]
    fn the_first_word_tells_what_ends_a_transaction() {
        for sql in
            ["COMMIT", "commit;", "  Rollback", "/* a */ -- b\n COMMIT", "START TRANSACTION", "(COMMIT)", "ABORT"]
        {
            check(&ALL, sql, false);
        }
        for sql in
            ["", "SELECT 1", "UPDATE commit SET a = 1", "ROLLBACK TO x", "ROLLBACK WORK TO x", "SAVEPOINT commit"]
        {
            check(&ALL, sql, true);
        }
        for sql in ["/* COMMIT */ SELECT 1", "-- COMMIT", "SELECT 'COMMIT'", "/* open", "-", "é", "COMMITS"] {
            check(&ALL, sql, true);
        }
    }

    #[test]
    fn only_mysql_commits_by_itself() {
        for sql in
            ["TRUNCATE t", "CREATE TABLE t (a INT)", "drop table t", "SET autocommit=1", "SET @@session.autocommit=1"]
        {
            check(&[Flavor::MySql], sql, false);
            check(&[Flavor::Postgres, Flavor::Sqlite], sql, true);
        }
        check(&ALL, "CREATE TEMPORARY TABLE t (a INT)", true);
        check(&ALL, "SET LOCAL lock_timeout = 5", true);
    }
}
