//! The database that refuses late writers: its ledger, its fenced tables, and whether it keeps what it has promised.
//!
//! Reads only. What fence-store itself checks is checked by it; here it becomes findings.

use super::finding::{Finding, Severity};
use crate::exit::with_causes;
use crate::fence::table_name;
use crate::settings::{DatabaseSettings, TableSettings};
use crate::table::time;
use fence_store::{Dialect, FenceError, FenceStore, LedgerTable};
use sea_query::Alias;
use sqlx::{Executor, MySql, Pool, Postgres, Sqlite};
use std::time::Duration;

/// How long a database may take to answer all questions.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a database is called in findings.
const SUBJECT: &str = "database";

/// Looks at a database.
pub(super) async fn look(database: &DatabaseSettings, nodes_time: Option<i64>) -> Vec<Finding> {
    match tokio::time::timeout(PATIENCE, look_unbounded(database, nodes_time)).await {
        Ok(findings) => findings,
        Err(_) => vec![not_reached(&format!("no answer within {}", time(PATIENCE)))],
    }
}

async fn look_unbounded(database: &DatabaseSettings, nodes_time: Option<i64>) -> Vec<Finding> {
    let url = database.url.expose();
    let ledger = match database.ledger.as_deref().map_or_else(|| Ok(LedgerTable::default()), LedgerTable::new) {
        Ok(ledger) => ledger,
        Err(error) => {
            return vec![
                Finding::new(Severity::Error, SUBJECT, "ledger", error.to_string())
                    .harm("there is no such ledger")
                    .mend("change `ledger` in the file"),
            ];
        }
    };
    let mut findings = Vec::new();
    macro_rules! look_at {
        ($database:ty, $settings:path) => {
            match FenceStore::<$database>::connect(url).await {
                Ok(store) => {
                    let store = FenceStore::with_ledger(store.pool().clone(), ledger.clone());
                    findings.extend($settings(store.pool()).await);
                    findings.extend(fence(&store, &ledger, &database.tables, nodes_time).await);
                }
                Err(error) => findings.push(not_reached(&with_causes(&error))),
            }
        };
    }
    match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("postgres" | "postgresql") => look_at!(Postgres, postgres),
        Some("mysql" | "mariadb") => look_at!(MySql, mysql),
        Some("sqlite") => look_at!(Sqlite, sqlite),
        _ => findings.push(not_reached("its URL begins with none of postgres:, mysql:, mariadb: and sqlite:")),
    }
    findings
}

fn not_reached(why: &str) -> Finding {
    Finding::new(Severity::Error, SUBJECT, "database", format!("it cannot be asked: {why}"))
        .harm("nothing is written, or nobody knows whether late writers are refused")
        .mend("check its URL, user and password, and whether it runs")
}

/// The ledger, and each table that is to be fenced.
async fn fence<DB: Dialect>(
    store: &FenceStore<DB>,
    ledger: &LedgerTable,
    tables: &[TableSettings],
    nodes_time: Option<i64>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    match store.check_table(table_name(&ledger.to_string()), Alias::new("token")).await {
        Ok(()) => findings.extend(highest(store, nodes_time).await),
        Err(FenceError::SchemaMissing { .. }) => findings.push(
            Finding::new(Severity::Error, SUBJECT, "no-ledger", format!("there is no ledger {ledger}"))
                .harm("transactions under a lock cannot be fenced")
                .mend("run install_schema, or `redlock fence sql --only ledger`"),
        ),
        Err(error) => findings.push(column(&ledger.to_string(), &error)),
    }
    for table in tables {
        match store.check_table(table_name(&table.name), Alias::new(&table.column)).await {
            Ok(()) if table.guard => findings.extend(guard(store, table).await),
            Ok(()) => {}
            Err(FenceError::SchemaMissing { .. }) => findings.push(
                Finding::new(Severity::Error, SUBJECT, "no-table", format!("there is no table {}", table.name))
                    .harm("nothing of it can be fenced")
                    .mend("check its name, and the schema before it"),
            ),
            Err(error) => findings.push(column(&table.name, &error)),
        }
    }
    findings
}

fn column(table: &str, error: &FenceError) -> Finding {
    match error {
        FenceError::Column(problem) => Finding::new(Severity::Error, SUBJECT, "fence-column", problem.to_string())
            .harm("tokens overflow, are rounded, or refuse everybody, so that the fence does not hold")
            .mend("change the column as it says"),
        error => Finding::new(Severity::Unread, SUBJECT, "table-unread", format!("{table}: {}", with_causes(error)))
            .harm("whatever is wrong with it stays unnoticed")
            .mend("allow the user to read the catalog and the table"),
    }
}

async fn guard<DB: Dialect>(store: &FenceStore<DB>, table: &TableSettings) -> Vec<Finding> {
    let checked = match store.guard_of(table_name(&table.name)).await {
        Ok(guard) => {
            let guard = guard.fence_column(Alias::new(&table.column));
            store.check_guarded(&if table.may_rewrite { guard.may_rewrite() } else { guard }).await
        }
        Err(error) => Err(error),
    };
    match checked {
        Ok(problems) => {
            let found = |problem: &fence_store::Finding| {
                Finding::new(Severity::Error, SUBJECT, "guard", problem.to_string())
                    .harm("programs that do not use the fence write past it")
                    .mend("as it says; `redlock fence sql` prints the guard")
            };
            problems.iter().map(found).collect()
        }
        Err(error) => vec![column(&table.name, &error)],
    }
}

/// A ledger that is ahead of all tokens to come refuses everybody.
async fn highest<DB: Dialect>(store: &FenceStore<DB>, nodes_time: Option<i64>) -> Option<Finding> {
    let (highest, nodes_time) = match (store.highest_token_of_all().await, nodes_time) {
        (Ok(Some(highest)), Some(nodes_time)) => (highest, nodes_time),
        (Err(error), _) => return Some(column("the ledger", &error)),
        _ => return None,
    };
    // Tokens are lifted to the nodes' time in microseconds.
    (nodes_time < highest).then(|| {
        let ahead = Duration::from_micros(highest.saturating_sub(nodes_time).unsigned_abs());
        let what = format!("it has accepted token {highest}, {} ahead of the nodes' time", time(ahead));
        Finding::new(Severity::Warning, SUBJECT, "ledger-ahead", what)
            .harm("if the nodes lose their counters, every write is refused as stale until tokens have caught up")
            .mend("set the nodes' calendars right; after a loss, go on above that token (tokens_above, reseed)")
    })
}

/// Asks one question whose answer is one word.
async fn word<DB>(pool: &Pool<DB>, question: &'static str) -> Option<String>
where
    DB: sqlx::Database,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> DB::Arguments: sqlx::IntoArguments<DB>,
    for<'r> String: sqlx::Decode<'r, DB> + sqlx::Type<DB>,
    usize: sqlx::ColumnIndex<DB::Row>,
{
    sqlx::query_scalar::<DB, String>(question).fetch_one(pool).await.ok()
}

fn told(answer: Option<String>, setting: &str, finding: impl FnOnce(&str) -> Option<Finding>) -> Option<Finding> {
    match answer {
        Some(value) => finding(&value),
        None => Some(
            Finding::new(Severity::Unread, SUBJECT, "database-unread", format!("{setting} cannot be read"))
                .harm("whatever is wrong with it stays unnoticed")
                .mend("allow the user to read it"),
        ),
    }
}

fn forgets(setting: &str, value: &str, mend: &str) -> Finding {
    Finding::new(Severity::Warning, SUBJECT, "not-durable", format!("{setting} is {value}"))
        .harm("a crash takes back commits that were acknowledged, and the fence with them: a late write may be applied")
        .mend(mend)
}

fn read_only(what: &str) -> Finding {
    Finding::new(Severity::Error, SUBJECT, "read-only", what)
        .harm("nothing can be written, or a standby is promoted later that lacks the latest tokens")
        .mend("name the one durable primary")
}

async fn postgres(pool: &Pool<Postgres>) -> Vec<Finding> {
    let standby = word(pool, "SELECT pg_is_in_recovery()::text").await;
    let isolation = word(pool, "SHOW default_transaction_isolation").await;
    let (fsync, synchronous) = (word(pool, "SHOW fsync").await, word(pool, "SHOW synchronous_commit").await);
    let idle = word(pool, "SHOW idle_in_transaction_session_timeout").await;
    let off = |setting: &'static str, mend: &'static str| {
        move |value: &str| (value == "off").then(|| forgets(setting, value, mend))
    };
    [
        told(standby, "whether it is a standby", |value| (value == "true").then(|| read_only("it is a standby"))),
        told(fsync, "fsync", off("fsync", "fsync = on")),
        told(
            synchronous,
            "synchronous_commit",
            off("synchronous_commit", "synchronous_commit = on, for the role at least"),
        ),
        told(isolation, "default_transaction_isolation", |value| {
            (value != "read committed").then(|| {
                Finding::new(
                    Severity::Note,
                    SUBJECT,
                    "isolation",
                    format!("transactions are {value} unless they say otherwise"),
                )
                .harm("the rightful newer holder meets conflicts too, and has to run its work again")
                .mend("read committed, unless the work needs more")
            })
        }),
        told(idle, "idle_in_transaction_session_timeout", |value| {
            (value == "0").then(|| {
                Finding::new(Severity::Note, SUBJECT, "idle-transactions", "idle transactions are never ended")
                    .harm("a holder that is frozen inside a fenced transaction keeps the next one waiting")
                    .mend("idle_in_transaction_session_timeout = 30s, for the role at least")
            })
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn mysql(pool: &Pool<MySql>) -> Vec<Finding> {
    let read_only_now = word(pool, "SELECT CAST(@@global.read_only AS CHAR)").await;
    let flush = word(pool, "SELECT CAST(@@global.innodb_flush_log_at_trx_commit AS CHAR)").await;
    let autocommit = word(pool, "SELECT CAST(@@global.autocommit AS CHAR)").await;
    // MySQL says 0 for off, MariaDB 0 or OFF, by setting and version.
    [
        told(read_only_now, "read_only", |value| {
            (!["0", "OFF"].contains(&value)).then(|| read_only("it is read-only"))
        }),
        told(flush, "innodb_flush_log_at_trx_commit", |value| {
            (value != "1")
                .then(|| forgets("innodb_flush_log_at_trx_commit", value, "innodb_flush_log_at_trx_commit = 1"))
        }),
        told(autocommit, "autocommit", |value| {
            ["0", "OFF"].contains(&value).then(|| {
                Finding::new(Severity::Note, SUBJECT, "autocommit", "autocommit is off")
                    .harm("every fenced write is a transaction, at several round trips instead of one")
                    .mend("autocommit = 1, unless programs rely on it being off")
            })
        }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn sqlite(pool: &Pool<Sqlite>) -> Vec<Finding> {
    let journal = word(pool, "SELECT journal_mode FROM pragma_journal_mode").await;
    told(journal, "journal_mode", |value| {
        ["off", "memory"].contains(&value).then(|| forgets("journal_mode", value, "journal_mode = WAL"))
    })
    .into_iter()
    .collect()
}
