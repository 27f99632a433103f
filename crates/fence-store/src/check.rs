//! Looks into the catalog, once per table and column, whether a fence can be kept there.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sea_query::TableName;

use crate::dialect::Dialect;
use crate::error::{ColumnProblem, FenceError};
use crate::lease::Lease;
use crate::schema::{describe_column, describe_table, display, judge_column, judge_engine};

/// Schema, table and column, each by its name: a dot in a name does not pass for the one between two.
type Key = (String, String, String);

/// The columns that were found fit. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Checked(Arc<Mutex<HashSet<Key>>>);

impl Checked {
    /// Checks a fence column, unless it was found fit before.
    pub(crate) async fn fence<DB: Dialect>(
        &self,
        lease: &mut Lease<'_, DB>,
        table: &TableName,
        column: &str,
    ) -> Result<(), FenceError> {
        if !self.contains(table, column) {
            check_column(lease, table, column).await?;
            self.keys().insert(key(table, column));
        }
        Ok(())
    }

    pub(crate) fn contains(&self, table: &TableName, column: &str) -> bool {
        self.keys().contains(&key(table, column))
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(table: &TableName, column: &str) -> Key {
    let schema = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default();
    (schema, table.1.to_string(), column.to_owned())
}

pub(crate) async fn check_column<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    table: &TableName,
    column: &str,
) -> Result<(), FenceError> {
    let query = DB::query(describe_table(DB::FLAVOR, table));
    let found = lease.fetch_optional(query).await.map_err(FenceError::of_statement)?;
    let Some(found) = found else {
        return Err(FenceError::SchemaMissing { table: display(table), source: None });
    };
    let engine = DB::text(&found, 0).map_err(|source| FenceError::Database { source })?;
    judge_engine(DB::FLAVOR, &display(table), engine.as_deref())?;
    let query = DB::query(describe_column(DB::FLAVOR, table, column));
    let found = lease.fetch_optional(query).await.map_err(FenceError::of_statement)?;
    let Some(found) = found else {
        return Err(ColumnProblem::Missing { table: display(table), column: column.to_owned() }.into());
    };
    let text = |index| DB::text(&found, index).map_err(|source| FenceError::Database { source });
    let (name, nullable, default) = (text(0)?.unwrap_or_default(), text(1)?, text(2)?);
    let nullable = nullable.as_deref() != Some("NO");
    judge_column(DB::FLAVOR, &display(table), column, &name, nullable, default.as_deref())?;
    Ok(())
}
