//! Puts a guard up, takes it away, and says what is wrong with one: runs the text of [`Guard`] and reads the catalog.

use std::collections::HashMap;
use std::fmt;

use sea_query::{Alias, TableName, Value};

use super::{Guard, VERSION, mysql, postgres, sqlite};
use crate::check::check_column;
use crate::dialect::{Dialect, Flavor, Isolation, Rendered};
use crate::error::{ColumnProblem, FenceError, StatementProblem};
use crate::lease::Lease;
use crate::schema::display;
use crate::store::FenceStore;

/// What the catalog shows of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardState {
    /// There is none.
    Missing,
    /// It is up, and just as this version of the crate would put it up.
    Current,
    /// An earlier version of this crate put it up.
    Older {
        /// Of the guard.
        version: u32,
    },
    /// A later version of this crate put it up.
    Newer {
        /// Of the guard.
        version: u32,
    },
    /// It is up by the other rule: strict where it was to allow rewriting, or the other way round.
    OtherRule,
    /// Some of its triggers are gone, switched off, or say something else, or its tombstones are gone.
    Altered {
        /// What is not as it should be.
        what: Vec<String>,
    },
}

/// Something that keeps a table from being guarded as it should be. Its text says how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The fence column cannot hold tokens, or the table cannot roll back.
    Column(ColumnProblem),
    /// Rows hold in the fence column what is no token: NULL, less than 0, or more than 2^53 - 1.
    Rows {
        /// The table.
        table: String,
        /// How many.
        rows: i64,
    },
    /// No unique key has exactly the columns of the guard's key.
    NotUnique {
        /// The table.
        table: String,
        /// The guard's key.
        key: String,
    },
    /// SQLite: a unique key that the guard does not know, so that REPLACE deletes by it.
    UnknownUnique {
        /// The table.
        table: String,
        /// The key's columns.
        key: String,
    },
    /// MySQL: a foreign key deletes or changes rows of the table without its triggers being fired.
    Cascade {
        /// The table.
        table: String,
        /// The foreign key's name.
        constraint: String,
    },
    /// The guard is not up, or not as it should be.
    Guard {
        /// The table.
        table: String,
        /// What the catalog shows.
        state: GuardState,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column(problem) => problem.fmt(f),
            Self::Rows { table, rows } => write!(
                f,
                "{rows} rows of {table} hold no token in the fence column: run backfill_fence, or set it to 0 or to the \
                 ledger's highest token"
            ),
            Self::NotUnique { table, key } => write!(
                f,
                "{table} has no unique key on exactly ({key}): give the guard the primary key (guard_of finds it), or \
                 create a unique index, neither partial nor deferrable, on NOT NULL columns of built-in types"
            ),
            Self::UnknownUnique { table, key } => write!(
                f,
                "{table} has another unique key ({key}), by which REPLACE deletes rows unseen: name it with \
                 Guard::unique, or let guard_of find it, and install the guard again"
            ),
            Self::Cascade { table, constraint } => write!(
                f,
                "the foreign key {constraint} changes or deletes rows of {table} unseen by its triggers: make it \
                 ON DELETE RESTRICT ON UPDATE RESTRICT"
            ),
            Self::Guard { table, state } => {
                write!(f, "the guard of {table} ")?;
                match state {
                    GuardState::Current => f.write_str("is up"),
                    GuardState::Missing => f.write_str("is missing: run install_guard"),
                    GuardState::Older { version } => {
                        write!(f, "is of version {version}, older than {VERSION}: run install_guard")
                    }
                    GuardState::Newer { version } => {
                        write!(f, "is of version {version}, newer than {VERSION}: update this program, not the guard")
                    }
                    GuardState::OtherRule => f.write_str(
                        "is up by the other rule (strict, may rewrite): run install_guard with the one you want",
                    ),
                    GuardState::Altered { what } => {
                        write!(f, "was altered ({}): run install_guard", what.join(", "))
                    }
                }
            }
        }
    }
}

impl<DB: Dialect> FenceStore<DB> {
    /// The guard that fits a table: strict, for its primary key, and on SQLite with its other unique keys.
    ///
    /// # Errors
    /// [`FenceError::SchemaMissing`] if there is no such table, [`FenceError::Column`] if it has no primary key.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn guard_of(&self, table: impl Into<TableName>) -> Result<Guard, FenceError> {
        let table = table.into();
        let mut lease = self.lease().await?;
        let schema = schema_of(&mut lease, &table).await?;
        let keys = unique_keys(&mut lease, &table).await?;
        let name = display(&table);
        let Some(primary) = keys.iter().find(|key| key.is_primary) else {
            return Err(ColumnProblem::NotUnique { table: name, column: "(the primary key)".to_owned() }.into());
        };
        let columns = |key: &UniqueKey| key.columns.iter().map(Alias::new).collect::<Vec<_>>();
        let mut key = columns(primary).into_iter();
        let first = key.next().unwrap_or_else(|| Alias::new(""));
        let mut guard = key.fold(Guard::new(table, first), Guard::and);
        if DB::FLAVOR == Flavor::Sqlite {
            for other in keys.iter().filter(|key| !key.is_primary) {
                guard = guard.unique(columns(other));
            }
        }
        Ok(match schema {
            Some(schema) => guard.in_schema(Alias::new(schema)),
            None => guard,
        })
    }

    /// Puts a guard up: from then on the database itself refuses writes that pass the fence by, from any program. Does
    /// nothing where it is up already, and replaces one that is older, altered, or of the other rule.
    ///
    /// Writers are kept waiting meanwhile; none finds the table without a guard that had one. Rows that were deleted
    /// before are not remembered. [`Guard::install_sql`] is the same as text.
    ///
    /// # Errors
    /// [`FenceError::Column`] and [`FenceError::SchemaMissing`] say what the table needs, [`FenceError::Statement`] what is
    /// wrong with the guard's key or its names, [`FenceError::Conflict`] that writers kept the table for longer than the
    /// database waits, [`FenceError::Database`] that a right is missing.
    ///
    /// # Cancel safety
    /// If the future is dropped the guard may or may not be up; installing again is right. On MySQL, which cannot do it in
    /// one transaction, triggers may be missing then.
    pub async fn install_guard(&self, guard: &Guard) -> Result<(), FenceError> {
        let mut lease = self.lease().await?;
        let guard = resolved(&mut lease, guard).await?;
        check_column(&mut lease, guard.table(), &guard.fence().to_string()).await?;
        let findings = key_findings(&mut lease, &guard).await?;
        if let Some(Finding::NotUnique { table, key }) = findings.into_iter().next() {
            return Err(ColumnProblem::NotUnique { table, column: key }.into());
        }
        // Needs no rights, and makes nobody wait.
        if state(&mut lease, &guard).await? == GuardState::Current {
            return Ok(());
        }
        let plan = guard.plan(DB::FLAVOR)?;
        run(&mut lease, &[plan.prepare, plan.install].concat()).await?;
        // Before others are let in again: on MySQL they see the triggers of the next installer come one by one.
        let state = state(&mut lease, &guard).await;
        if !plan.finish.is_empty() {
            run(&mut lease, &plan.finish).await?;
        }
        match state? {
            GuardState::Current => Ok(()),
            // Something else has the tombstones' name, or somebody alters it while it is put up.
            state => Err(StatementProblem::NotUp(Finding::Guard { table: display(guard.table()), state }).into()),
        }
    }

    /// Takes a guard away. Does nothing where there is none. Its tombstones stay, for a guard that is put up later.
    ///
    /// # Errors
    /// As [`install_guard`](Self::install_guard).
    ///
    /// # Cancel safety
    /// If the future is dropped the guard may be up, gone, or on MySQL in part; removing again is right.
    pub async fn remove_guard(&self, guard: &Guard) -> Result<(), FenceError> {
        let mut lease = self.lease().await?;
        let guard = resolved(&mut lease, guard).await?;
        run(&mut lease, &guard.remove_sql(DB::FLAVOR)?).await
    }

    /// Whether a guard is up, and as it should be.
    ///
    /// # Errors
    /// [`FenceError::SchemaMissing`] if there is no such table, and other database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn guard_state(&self, guard: &Guard) -> Result<GuardState, FenceError> {
        let mut lease = self.lease().await?;
        let guard = resolved(&mut lease, guard).await?;
        state(&mut lease, &guard).await
    }

    /// Everything that keeps a table from being guarded as it should be: its column, its rows, its keys, and the guard.
    /// Nothing if all is well. Reads the whole table once, for values that are no tokens.
    ///
    /// # Errors
    /// [`FenceError::SchemaMissing`] if there is no such table, and other database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_guarded(&self, guard: &Guard) -> Result<Vec<Finding>, FenceError> {
        let mut lease = self.lease().await?;
        let guard = resolved(&mut lease, guard).await?;
        let table = display(guard.table());
        let mut findings = Vec::new();
        let column = check_column(&mut lease, guard.table(), &guard.fence().to_string()).await;
        let has_column = !matches!(column, Err(FenceError::Column(ColumnProblem::Missing { .. })));
        match column {
            Ok(()) => {}
            Err(FenceError::Column(problem)) => findings.push(Finding::Column(problem)),
            Err(other) => return Err(other),
        }
        if has_column {
            let rows = super::migrate::unfit_rows(&mut lease, &guard).await?;
            if 0 < rows {
                findings.push(Finding::Rows { table: table.clone(), rows });
            }
        }
        findings.extend(key_findings(&mut lease, &guard).await?);
        if DB::FLAVOR == Flavor::MySql {
            let cascades = Flavor::fixed(mysql::CASCADES, bound(guard.table()));
            for row in fetch_all(&mut lease, cascades).await? {
                let constraint = text::<DB>(&row, 0)?;
                findings.push(Finding::Cascade { table: table.clone(), constraint });
            }
        }
        match state(&mut lease, &guard).await? {
            GuardState::Current => {}
            state => findings.push(Finding::Guard { table, state }),
        }
        Ok(findings)
    }
}

/// Runs statements that belong together: in a transaction, where schema changes can be undone.
pub(super) async fn run<DB: Dialect>(lease: &mut Lease<'_, DB>, statements: &[String]) -> Result<(), FenceError> {
    let in_transaction = DB::FLAVOR != Flavor::MySql;
    if in_transaction {
        lease.begin(Isolation::default()).await.map_err(FenceError::of_statement)?;
    }
    for statement in statements {
        // As text: MySQL does not prepare a CREATE TRIGGER. Made of quoted names and fixed text: see `Sql`.
        let done = lease.execute(sqlx::AssertSqlSafe(statement.clone())).await;
        if let Err(error) = done {
            lease.rollback().await;
            if DB::FLAVOR == Flavor::MySql {
                // Tables may be locked, so the connection is not for the pool.
                lease.unwatched();
            }
            return Err(FenceError::of_statement(error));
        }
    }
    if in_transaction {
        let committed = lease.commit().await;
        lease.rollback().await;
        committed.map_err(FenceError::of_commit)?;
    }
    Ok(())
}

/// The guard with the schema in which the search path finds its table: on Postgres its text names one in any case.
pub(super) async fn resolved<DB: Dialect>(lease: &mut Lease<'_, DB>, guard: &Guard) -> Result<Guard, FenceError> {
    let schema = schema_of(lease, guard.table()).await?;
    Ok(match schema {
        Some(schema) if !guard.has_schema() => guard.clone().in_schema(Alias::new(schema)),
        _ => guard.clone(),
    })
}

/// The schema in which a table is, where the search path decides that; an error if there is no such table.
async fn schema_of<DB: Dialect>(lease: &mut Lease<'_, DB>, table: &TableName) -> Result<Option<String>, FenceError> {
    let query = match DB::FLAVOR {
        Flavor::Postgres => Flavor::fixed(postgres::SCHEMA, bound(table)),
        flavor => crate::schema::describe_table(flavor, table),
    };
    let found = fetch_all(lease, query).await?;
    let Some(found) = found.first() else {
        return Err(FenceError::SchemaMissing { table: display(table), source: None });
    };
    match DB::FLAVOR {
        Flavor::Postgres => Ok(Some(text::<DB>(found, 0)?)),
        Flavor::MySql | Flavor::Sqlite => Ok(None),
    }
}

/// A unique key of a table, whole and unconditional.
#[derive(Debug)]
struct UniqueKey {
    is_primary: bool,
    columns: Vec<String>,
}

/// The unique keys of a table that a guard can use or must know.
async fn unique_keys<DB: Dialect>(lease: &mut Lease<'_, DB>, table: &TableName) -> Result<Vec<UniqueKey>, FenceError> {
    let query = match DB::FLAVOR {
        Flavor::Postgres => Flavor::fixed(postgres::UNIQUE_KEYS, bound(table)),
        Flavor::MySql => Flavor::fixed(mysql::UNIQUE_KEYS, bound(table)),
        Flavor::Sqlite => {
            let [schema, table] = bound(table);
            Flavor::fixed(sqlite::UNIQUE_KEYS, [table.clone(), schema.clone(), table, schema])
        }
    };
    let mut keys: Vec<(String, UniqueKey)> = Vec::new();
    for row in fetch_all(lease, query).await? {
        let (index, primary, column) = (text::<DB>(&row, 0)?, text::<DB>(&row, 1)?, text::<DB>(&row, 2)?);
        match keys.last_mut() {
            Some((last, key)) if *last == index => key.columns.push(column),
            _ => keys.push((index, UniqueKey { is_primary: primary == "t", columns: vec![column] })),
        }
    }
    Ok(keys.into_iter().map(|(_, key)| key).collect())
}

/// What is wrong with the guard's idea of the table's keys.
async fn key_findings<DB: Dialect>(lease: &mut Lease<'_, DB>, guard: &Guard) -> Result<Vec<Finding>, FenceError> {
    let keys = unique_keys(lease, guard.table()).await?;
    let sorted = |names: &mut dyn Iterator<Item = String>| {
        let mut names: Vec<String> = names.map(|name| name.to_lowercase()).collect();
        names.sort();
        names
    };
    let own = sorted(&mut guard.key().iter().map(ToString::to_string));
    let known: Vec<_> =
        guard.unique_keys().iter().map(|key| sorted(&mut key.iter().map(ToString::to_string))).collect();
    let mut findings = Vec::new();
    let table = || display(guard.table());
    let is_own = |key: &UniqueKey| sorted(&mut key.columns.iter().cloned()) == own;
    if !keys.iter().any(is_own) {
        let key = guard.key().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        findings.push(Finding::NotUnique { table: table(), key });
    }
    if DB::FLAVOR == Flavor::Sqlite {
        let is_known = |key: &UniqueKey| known.contains(&sorted(&mut key.columns.iter().cloned()));
        for key in keys.iter().filter(|key| !is_own(key) && !is_known(key)) {
            findings.push(Finding::UnknownUnique { table: table(), key: key.columns.join(", ") });
        }
    }
    Ok(findings)
}

async fn state<DB: Dialect>(lease: &mut Lease<'_, DB>, guard: &Guard) -> Result<GuardState, FenceError> {
    let plan = guard.plan(DB::FLAVOR)?;
    let query = match DB::FLAVOR {
        Flavor::Postgres => Flavor::fixed(postgres::FIND, bound(guard.table())),
        Flavor::MySql => Flavor::fixed(mysql::FIND, bound(guard.table())),
        Flavor::Sqlite => {
            Rendered { sql: sqlite::find(guard), values: sea_query::Values(vec![guard.table().1.to_string().into()]) }
        }
    };
    let mut found = HashMap::new();
    for row in fetch_all(lease, query).await? {
        found.insert(text::<DB>(&row, 0)?, text::<DB>(&row, 1)?);
    }
    let other = guard.other_rule().plan(DB::FLAVOR)?;
    let verdict = judge(&plan.shown, &other.shown, &found);
    if verdict != GuardState::Current {
        return Ok(verdict);
    }
    let mut what: Vec<String> = plan.absent.into_iter().filter(|name| found.contains_key(name)).collect();
    for column in guard.key().iter().chain([guard.fence()]) {
        let column = column.to_string();
        let kind = column_type(lease, guard.table(), &column).await?;
        if kind != column_type(lease, &plan.tombstones, &column).await? {
            what.push(format!("{}.{column} has another type or is not there", display(&plan.tombstones)));
        }
    }
    Ok(if what.is_empty() { GuardState::Current } else { GuardState::Altered { what } })
}

/// What the triggers that were found say about a guard whose triggers should be these.
fn judge(
    expected: &[(String, String)],
    other_rule: &[(String, String)],
    found: &HashMap<String, String>,
) -> GuardState {
    let same =
        |expected: &[(String, String)]| expected.iter().all(|(name, definition)| found.get(name) == Some(definition));
    if same(expected) {
        return GuardState::Current;
    }
    if expected.iter().all(|(name, _)| !found.contains_key(name)) {
        return GuardState::Missing;
    }
    if same(other_rule) {
        return GuardState::OtherRule;
    }
    let versions = expected.iter().filter_map(|(name, _)| found.get(name)).filter_map(|text| version(text));
    match versions.min() {
        Some(version) if version < VERSION => GuardState::Older { version },
        Some(version) if VERSION < version => GuardState::Newer { version },
        _ => {
            let altered = expected.iter().filter(|(name, definition)| found.get(name) != Some(definition));
            GuardState::Altered { what: altered.map(|(name, _)| name.clone()).collect() }
        }
    }
}

/// The version in a trigger's text: `fence guard 1`, or the label `fence_guard_1`.
fn version(text: &str) -> Option<u32> {
    let after = ["fence guard ", "fence_guard_"].iter().find_map(|mark| text.split_once(mark))?.1;
    let end = after.find(|character: char| !character.is_ascii_digit()).unwrap_or(after.len());
    after[..end].parse().ok()
}

async fn column_type<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    table: &TableName,
    column: &str,
) -> Result<Option<String>, FenceError> {
    let query = crate::schema::describe_column(DB::FLAVOR, table, column);
    let found = fetch_all(lease, query).await?;
    let Some(row) = found.first() else { return Ok(None) };
    let kind = text::<DB>(row, 0)?;
    // A copy on SQLite keeps the affinity of a type, not its name.
    Ok(Some(if DB::FLAVOR == Flavor::Sqlite { String::new() } else { kind }))
}

/// Schema and table, as catalog queries bind them.
pub(super) fn bound(table: &TableName) -> [Value; 2] {
    let schema = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default();
    [schema.into(), table.1.to_string().into()]
}

pub(super) async fn fetch_all<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    statement: Rendered,
) -> Result<Vec<DB::Row>, FenceError> {
    lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)
}

fn text<DB: Dialect>(row: &DB::Row, index: usize) -> Result<String, FenceError> {
    Ok(DB::text(row, index).map_err(|source| FenceError::Database { source })?.unwrap_or_default())
}
