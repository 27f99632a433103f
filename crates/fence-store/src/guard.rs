//! A guard: triggers with which the database itself refuses what would pass the fence by, from any program.
//!
//! Pure: [`Guard`] says which table, and gives the SQL that puts the guard up, takes it away, and what the catalog shows
//! while it is up. `install` runs that text and compares. The text of each database is in one file of its own, as
//! templates; what is filled in is an identifier or a literal that was quoted by [`Sql`]'s constructors, and nothing else.
//!
//! What passes, whoever writes:
//!
//! ```text
//! INSERT   a token above the row's tombstone, or any if there is none
//! UPDATE   a token above the row's (strict), or not below it (may rewrite); the key stays
//! DELETE   of a row that was condemned: its fence set to minus the token, by an UPDATE under the same rule
//! ```
//!
//! DELETE has no place for a token, and SQLite has no session to keep one in. So a row is condemned first, which any program
//! can do by an UPDATE, and the trigger that sees it deleted makes its tombstone of that.

pub(crate) mod install;
pub(crate) mod migrate;
mod mysql;
mod postgres;
mod sql;
mod sqlite;

use redlock_core::FencingToken;
use sea_query::{Alias, DynIden, IntoIden, Query, TableName, UpdateStatement};

use crate::dialect::Flavor;
use crate::error::StatementProblem;
use crate::row::{FENCE_COLUMN, Row};

pub(crate) use sql::Sql;

/// The version of the triggers. It is written into each of them, so that an older guard is told from an altered one.
pub(crate) const VERSION: u32 = 1;

/// What every refusal of a guard begins with, followed by one of the next two.
pub(crate) const STALE: &str = "fence: stale: ";
/// A statement that presents no token, or none that could pass.
pub(crate) const REFUSED: &str = "fence: refused: ";

/// SQLSTATE of a refusal because of a newer holder, on Postgres and MySQL. Its class is one that the standard leaves to
/// implementations.
pub(crate) const STALE_STATE: &str = "RF001";
/// SQLSTATE of every other refusal.
pub(crate) const REFUSED_STATE: &str = "RF002";

/// When the tombstone was made, so that old ones can be removed.
const BURIED_AT: &str = "buried_at";

/// The longest name that all three databases keep whole (Postgres, in bytes).
const NAME_LEN_MAX: usize = 63;

/// A guard for one table: the triggers that refuse unfenced and stale writes from any program.
///
/// The key is the table's primary key, or another unique key that is NOT NULL; it is by this key that deleted rows are
/// remembered. Where the database is at hand, [`FenceStore::guard_of`](crate::FenceStore::guard_of) finds it.
///
/// ```
/// use fence_store::{Flavor, Guard};
/// let guard = Guard::new("orders", "id");
/// let lines = Guard::new(("shop", "order_lines"), "order_id").and("line").fence_column("fence").may_rewrite();
/// // For a migration, or for `psql`:
/// let script = guard.script(Flavor::Postgres)?;
/// assert!(script.contains(r#"AFTER UPDATE ON "public"."orders""#));
/// # Ok::<(), fence_store::StatementProblem>(())
/// ```
///
/// # Strict, or may rewrite
/// The strict guard wants a greater token with every UPDATE, so a statement that says nothing of the fence is refused. A
/// guard that [may rewrite](Self::may_rewrite) lets the token stay as it is, which [`claim`](crate::FenceStore::claim)
/// and [`Row::may_rewrite`](crate::Row::may_rewrite) need; so an UPDATE that does not mention the fence passes it as well.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Guard {
    table: TableName,
    key: Vec<DynIden>,
    fence: DynIden,
    may_rewrite: bool,
    /// Further unique keys, which matter on SQLite only.
    unique: Vec<Vec<DynIden>>,
}

/// The SQL of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Makes the table of tombstones; changes nothing where it is.
    pub(crate) prepare: Vec<String>,
    /// Puts up the triggers, whatever was there.
    pub(crate) install: Vec<String>,
    /// Gives back what putting up has locked.
    pub(crate) finish: Vec<String>,
    pub(crate) remove: Vec<String>,
    /// Each trigger with its definition, as the catalog shows them while the guard is up.
    pub(crate) shown: Vec<(String, String)>,
    /// Triggers that a guard of other settings has, and this one must not have.
    pub(crate) absent: Vec<String>,
    /// The tombstones' table.
    pub(crate) tombstones: TableName,
}

impl Guard {
    /// A strict guard for `table` (a name, or a schema and a name), whose key is the column `key`.
    ///
    /// On Postgres a table without a schema is looked for in `public`, so that the text means the same whatever the search
    /// path is.
    pub fn new(table: impl Into<TableName>, key: impl IntoIden) -> Self {
        Self {
            table: table.into(),
            key: vec![key.into_iden()],
            fence: Alias::new(FENCE_COLUMN).into_iden(),
            may_rewrite: false,
            unique: Vec::new(),
        }
    }

    /// Adds a column to the key, for keys of several columns.
    pub fn and(mut self, column: impl IntoIden) -> Self {
        self.key.push(column.into_iden());
        self
    }

    /// Names the fence column, `fence_token` by default.
    pub fn fence_column(mut self, column: impl IntoIden) -> Self {
        self.fence = column.into_iden();
        self
    }

    /// Lets a token write a row several times: an UPDATE must not lower the fence, but may leave it.
    pub fn may_rewrite(mut self) -> Self {
        self.may_rewrite = true;
        self
    }

    /// Names a further unique key of the table, for SQLite: its `REPLACE` deletes whatever row is in the way, by any
    /// unique key, and fires no trigger for it. Without this such a row is deleted past the guard.
    pub fn unique<C: IntoIden>(mut self, columns: impl IntoIterator<Item = C>) -> Self {
        self.unique.push(columns.into_iter().map(IntoIden::into_iden).collect());
        self
    }

    /// The statements that put the guard up, in order, whether there is none, an older or an altered one.
    ///
    /// Run them in one transaction on Postgres and SQLite, as [`script`](Self::script) does. On MySQL they lock the tables
    /// and release them.
    ///
    /// # Errors
    /// [`StatementProblem::Name`] if a name cannot be used.
    pub fn install_sql(&self, flavor: Flavor) -> Result<Vec<String>, StatementProblem> {
        let plan = self.plan(flavor)?;
        Ok([plan.prepare, plan.install, plan.finish].concat())
    }

    /// The statements that take the guard away. The tombstones stay; drop their table when nobody needs them.
    ///
    /// # Errors
    /// As [`install_sql`](Self::install_sql).
    pub fn remove_sql(&self, flavor: Flavor) -> Result<Vec<String>, StatementProblem> {
        Ok(self.plan(flavor)?.remove)
    }

    /// [`install_sql`](Self::install_sql) as one text for `psql`, `mariadb` or `mysql`, `sqlite3`.
    ///
    /// # Errors
    /// As [`install_sql`](Self::install_sql).
    pub fn script(&self, flavor: Flavor) -> Result<String, StatementProblem> {
        Ok(script(flavor, &self.install_sql(flavor)?))
    }

    /// [`remove_sql`](Self::remove_sql) as one text for a command line client.
    ///
    /// # Errors
    /// As [`install_sql`](Self::install_sql).
    pub fn remove_script(&self, flavor: Flavor) -> Result<String, StatementProblem> {
        Ok(script(flavor, &self.remove_sql(flavor)?))
    }

    /// The table in which the guard remembers deleted rows: `<table>_fence_tombstones`, next to the table, with the key's
    /// columns, the fence column, and `buried_at`.
    #[must_use]
    pub fn tombstones(&self) -> TableName {
        let name = Alias::new(self.derived("_fence_tombstones")).into_iden();
        TableName(self.table.0.clone(), name)
    }

    pub(crate) fn plan(&self, flavor: Flavor) -> Result<Plan, StatementProblem> {
        self.names_are_usable()?;
        Ok(match flavor {
            Flavor::Postgres => postgres::plan(self),
            Flavor::MySql => mysql::plan(self),
            Flavor::Sqlite => sqlite::plan(self),
        })
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.table
    }

    pub(crate) fn key(&self) -> &[DynIden] {
        &self.key
    }

    pub(crate) fn fence(&self) -> &DynIden {
        &self.fence
    }

    pub(crate) fn unique_keys(&self) -> &[Vec<DynIden>] {
        &self.unique
    }

    pub(crate) fn is_strict(&self) -> bool {
        !self.may_rewrite
    }

    /// The same guard by the other rule.
    pub(crate) fn other_rule(&self) -> Self {
        Self { may_rewrite: !self.may_rewrite, ..self.clone() }
    }

    pub(crate) fn in_schema(mut self, schema: impl IntoIden) -> Self {
        self.table = TableName(Some(sea_query::SchemaName(None, schema.into_iden())), self.table.1);
        self
    }

    pub(crate) fn has_schema(&self) -> bool {
        self.table.0.is_some()
    }

    fn schema_name(&self) -> Option<String> {
        self.table.0.as_ref().map(|schema| schema.1.to_string())
    }

    /// The table's name with a suffix, and where it would be too long, with a fingerprint in place of its end: databases
    /// cut long names silently, and two tables must not share a trigger.
    fn derived(&self, suffix: &str) -> String {
        let table = self.table.1.to_string();
        if table.len() + suffix.len() <= NAME_LEN_MAX {
            return [table.as_str(), suffix].concat();
        }
        // FNV-1a, which is the same everywhere and for ever.
        let fingerprint = table
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let fingerprint = format!("_{fingerprint:016x}");
        let mut kept = NAME_LEN_MAX - suffix.len() - fingerprint.len();
        while !table.is_char_boundary(kept) {
            kept -= 1;
        }
        [&table[..kept], fingerprint.as_str(), suffix].concat()
    }

    /// Refuses names that no database could take, or that would fall together in the tombstones' table.
    fn names_are_usable(&self) -> Result<(), StatementProblem> {
        let schema = self.schema_name().map(|schema| vec![schema]).unwrap_or_default();
        let columns: Vec<String> = self.key.iter().chain([&self.fence]).map(ToString::to_string).collect();
        let unique = self.unique.iter().flatten().map(ToString::to_string);
        let refuse = |name: &str, why| Err(StatementProblem::Name { name: name.to_owned(), why });
        for name in schema.into_iter().chain([self.table.1.to_string()]).chain(columns.clone()).chain(unique) {
            if name.is_empty() || name.contains('\0') {
                return refuse(&name, "a name has at least one character, and no NUL");
            }
        }
        for (index, column) in columns.iter().enumerate() {
            let is = |other: &String| column.eq_ignore_ascii_case(other);
            if column.eq_ignore_ascii_case(BURIED_AT) {
                return refuse(column, "the tombstones have a column of that name");
            }
            if columns[..index].iter().any(is) {
                return refuse(column, "it is named twice, in the key or as the fence");
            }
        }
        Ok(())
    }
}

/// Condemns a row, so that a guard lets it be deleted and remembers the token. To be run under the row's lock, when the
/// fence was found to let the token pass. Where there is no guard it does no harm: the row is deleted next.
pub(crate) fn condemn(row: &Row, token: FencingToken) -> UpdateStatement {
    Query::update()
        .table(row.table().clone())
        .value(row.fence().clone(), -token.get())
        .cond_where(row.condition())
        .to_owned()
}

/// Statements as a text for a command line client.
fn script(flavor: Flavor, statements: &[String]) -> String {
    let (begin, end, commit) = match flavor {
        Flavor::Postgres => ("BEGIN;\n", ";\n", "COMMIT;\n"),
        // The bodies hold semicolons of their own.
        Flavor::MySql => ("DELIMITER //\n", "//\n", "DELIMITER ;\n"),
        Flavor::Sqlite => ("BEGIN IMMEDIATE;\n", ";\n", "COMMIT;\n"),
    };
    let mut script = begin.to_owned();
    for statement in statements {
        script.push_str(statement);
        script.push_str(end);
    }
    script.push_str(commit);
    script
}
