//! Brings a table that has rows already behind a fence: adds the column, fills it, and finds values that are no tokens.

use redlock_core::FencingToken;
use sea_query::{DynIden, IntoIden, TableName, Value, Values};

use super::install::{fetch_all, run};
use super::{Guard, Sql};
use crate::check::check_column;
use crate::dialect::{Dialect, Flavor, Isolation, Rendered};
use crate::error::{ColumnProblem, FenceError};
use crate::lease::Lease;
use crate::store::FenceStore;

const ADD: &str = "ALTER TABLE {table} ADD COLUMN {fence} BIGINT NOT NULL DEFAULT 0";

/// Rows that one statement of a backfill writes, so that nobody waits long for its locks. SQLite has one writer in any
/// case, and not every table of its has something to count rows by.
const ROWS_MAX: u64 = 10_000;
const BACKFILL_POSTGRES: &str = "UPDATE {table} SET {fence} = $1 WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} \
     WHERE {fence} IS NULL OR (0 <= {fence} AND {fence} < $1) LIMIT 10000)) \
     AND ({fence} IS NULL OR (0 <= {fence} AND {fence} < $1))";
const BACKFILL_MYSQL: &str =
    "UPDATE {table} SET {fence} = ? WHERE {fence} IS NULL OR (0 <= {fence} AND {fence} < ?) LIMIT 10000";
const BACKFILL_SQLITE: &str = "UPDATE {table} SET {fence} = ? WHERE {fence} IS NULL OR (0 <= {fence} AND {fence} < ?)";

const UNFIT: &str =
    "SELECT COUNT(*) FROM {table} WHERE {fence} IS NULL OR {fence} < -9007199254740991 OR 9007199254740991 < {fence}";

/// The statement that adds a fence column to a table: `BIGINT NOT NULL DEFAULT 0`, for a migration. The rows that are
/// there get 0, below every token.
///
/// ```
/// use fence_store::{Flavor, fence_column_sql};
/// assert_eq!(
///     fence_column_sql(Flavor::Sqlite, "orders", "fence_token"),
///     r#"ALTER TABLE "orders" ADD COLUMN "fence_token" BIGINT NOT NULL DEFAULT 0"#
/// );
/// ```
#[must_use]
pub fn fence_column_sql(flavor: Flavor, table: impl Into<TableName>, column: impl IntoIden) -> String {
    fill(flavor, ADD, &table.into(), &column.into_iden())
}

impl<DB: Dialect> FenceStore<DB> {
    /// Adds the fence column to a table, unless it has a fit one. Postgres, MySQL and SQLite do it without writing the
    /// rows anew, and writers wait for a moment only.
    ///
    /// # Errors
    /// [`FenceError::Column`] if there is a column of that name that cannot hold tokens, [`FenceError::SchemaMissing`] if
    /// there is no such table, and database errors.
    ///
    /// # Cancel safety
    /// If the future is dropped the column may or may not have been added; adding again is right.
    pub async fn add_fence_column(&self, table: impl Into<TableName>, column: impl IntoIden) -> Result<(), FenceError> {
        let (table, column) = (table.into(), column.into_iden());
        let mut lease = self.lease().await?;
        match check_column(&mut lease, &table, &column.to_string()).await {
            Err(FenceError::Column(ColumnProblem::Missing { .. })) => {}
            result => return result,
        }
        let added = run(&mut lease, &[fill(DB::FLAVOR, ADD, &table, &column)]).await;
        // Another process may have been faster, which is told as an error.
        let mut lease = self.lease().await?;
        match check_column(&mut lease, &table, &column.to_string()).await {
            Err(FenceError::Column(ColumnProblem::Missing { .. })) => added,
            result => result,
        }
    }

    /// Raises the fence of every row that has none or a lower one: to a token, or to 0 where it is NULL. Returns how many
    /// rows it wrote.
    ///
    /// For a table whose rows were fenced in another way so far, as by the ledger: with the ledger's highest token
    /// ([`highest_token`](Self::highest_token)) no older holder can write them. Writes in steps of ten thousand rows,
    /// except on SQLite. Do it before the guard is put up.
    ///
    /// # Errors
    /// Database errors. What was written until then stays; run it again.
    ///
    /// # Cancel safety
    /// As with errors.
    pub async fn backfill_fence(
        &self,
        table: impl Into<TableName>,
        column: impl IntoIden,
        floor: Option<FencingToken>,
    ) -> Result<u64, FenceError> {
        let (table, column) = (table.into(), column.into_iden());
        let floor: Value = floor.map_or(0, FencingToken::get).into();
        let (template, values) = match DB::FLAVOR {
            Flavor::Postgres => (BACKFILL_POSTGRES, vec![floor]),
            Flavor::MySql => (BACKFILL_MYSQL, vec![floor.clone(), floor]),
            Flavor::Sqlite => (BACKFILL_SQLITE, vec![floor.clone(), floor]),
        };
        let sql = fill(DB::FLAVOR, template, &table, &column);
        let mut lease = self.lease().await?;
        let mut written = 0;
        // Each step leaves fewer rows to be written; it ends with the first that finds less than it could write.
        loop {
            let statement = Rendered { sql: sql.clone(), values: Values(values.clone()) };
            lease.begin(Isolation::default()).await.map_err(FenceError::of_statement)?;
            let result = lease.execute(DB::query(statement)).await;
            let rows = match result {
                Ok(result) => DB::rows_affected(&result),
                Err(error) => {
                    lease.rollback().await;
                    return Err(FenceError::of_statement(error));
                }
            };
            let committed = lease.commit().await;
            lease.rollback().await;
            committed.map_err(FenceError::of_commit)?;
            written += rows;
            if rows < ROWS_MAX || DB::FLAVOR == Flavor::Sqlite {
                return Ok(written);
            }
        }
    }
}

/// How many rows hold in the fence column what is no token and was never one.
pub(super) async fn unfit_rows<DB: Dialect>(lease: &mut Lease<'_, DB>, guard: &Guard) -> Result<i64, FenceError> {
    let sql = fill(DB::FLAVOR, UNFIT, guard.table(), guard.fence());
    let rows = fetch_all(lease, Rendered { sql, values: Values(Vec::new()) }).await?;
    let count = rows.first().map(|row| DB::integer(row, 0)).transpose();
    Ok(count.map_err(|source| FenceError::Database { source })?.flatten().unwrap_or_default())
}

fn fill(flavor: Flavor, template: &str, table: &TableName, column: &DynIden) -> String {
    let (table, fence) = (Sql::table(flavor, table), Sql::name(flavor, &column.to_string()));
    Sql::fill(template, &[("table", &table), ("fence", &fence)]).into_string()
}
