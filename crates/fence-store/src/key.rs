//! Whether a key names one row at most: what has to be known before a statement runs on its own.
//!
//! A statement that is its own transaction cannot be taken back, so it may write a row only where no second one can match
//! its key. The catalog can prove that: a unique index on columns of the key, compared by the very equality that the
//! statement uses. Where it proves nothing (no such index, a view, a value of another kind than its column, which the
//! database would convert on one side or the other), the write goes the longer way, under lock, where several rows are seen
//! and refused. The proof is asked for once per table; what it means for a row is decided here, without the database.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sea_query::{TableName, Value};

use crate::dialect::{Dialect, Flavor, Rendered};
use crate::error::FenceError;
use crate::lease::Lease;
use crate::row::Row;

/// A unique index: its columns, and their types as the catalog names them. A part that is no plain column has no name, and
/// so is part of nobody's key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UniqueKey {
    columns: Vec<(String, String)>,
}

/// The unique keys of a table.
pub(crate) type UniqueKeys = Arc<[UniqueKey]>;

/// The unique keys of the tables that were asked about, by schema and name. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct KnownKeys(Arc<Mutex<HashMap<(String, String), UniqueKeys>>>);

impl KnownKeys {
    /// Whether the row's key names one row at most.
    pub(crate) async fn name_one_row<DB: Dialect>(
        &self,
        lease: &mut Lease<'_, DB>,
        row: &Row,
    ) -> Result<bool, FenceError> {
        let TableName(schema, table) = row.table();
        let name = (schema.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default(), table.to_string());
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        let keys = match known {
            Some(keys) => keys,
            None => {
                let keys = unique_keys(lease, row.table()).await?;
                self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, keys.clone());
                keys
            }
        };
        Ok(keys.iter().any(|key| key.is_within(DB::FLAVOR, row)))
    }
}

impl UniqueKey {
    /// Whether each of its columns is one of the row's key, and compared as the index compares.
    fn is_within(&self, flavor: Flavor, row: &Row) -> bool {
        self.columns.iter().all(|(column, found)| {
            row.key().iter().any(|(key, value)| {
                let key = key.to_string();
                let is_named = match flavor {
                    Flavor::Postgres => *column == key,
                    Flavor::MySql | Flavor::Sqlite => column.eq_ignore_ascii_case(&key),
                };
                is_named && compares_alike(flavor, found, value)
            })
        })
    }
}

async fn unique_keys<DB: Dialect>(lease: &mut Lease<'_, DB>, table: &TableName) -> Result<UniqueKeys, FenceError> {
    let query = DB::query(find_unique_keys(DB::FLAVOR, table));
    let parts = lease.fetch_all(query).await.map_err(FenceError::of_statement)?;
    let text = |row, index| DB::text(row, index).map_err(|source| FenceError::Database { source });
    let mut keys: HashMap<Option<String>, UniqueKey> = HashMap::new();
    for part in &parts {
        let column = (text(part, 1)?.unwrap_or_default(), text(part, 2)?.unwrap_or_default());
        keys.entry(text(part, 0)?).or_default().columns.push(column);
    }
    Ok(keys.into_values().collect())
}

/// Asks for the parts of all unique indexes: index, column, type. The column is empty for what is no plain column compared
/// in the column's own way.
fn find_unique_keys(flavor: Flavor, table: &TableName) -> Rendered {
    let schema: Value = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default().into();
    let table: Value = table.1.to_string().into();
    match flavor {
        // Not of a table with heirs, whose rows are seen through it and are not in its indexes.
        Flavor::Postgres => Flavor::fixed(
            "SELECT i.indexrelid::text, CASE WHEN o.opcdefault AND i.indcollation[k.n - 1] = a.attcollation \
             THEN a.attname::text END, format_type(a.atttypid, NULL) FROM pg_catalog.pg_index i \
             JOIN pg_catalog.pg_class c ON c.oid = i.indrelid \
             CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, n) \
             LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum \
             LEFT JOIN pg_catalog.pg_opclass o ON o.oid = i.indclass[k.n - 1] \
             WHERE i.indrelid = \
             to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2)) \
             AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND k.n <= i.indnkeyatts \
             AND (c.relkind = 'p' OR NOT c.relhassubclass)",
            [schema, table],
        ),
        Flavor::MySql => Flavor::fixed(
            "SELECT CAST(s.index_name AS CHAR), CAST(IF(s.sub_part IS NULL, s.column_name, NULL) AS CHAR), \
             CAST(CONCAT_WS(' ', c.data_type, c.character_set_name) AS CHAR) FROM information_schema.statistics s \
             LEFT JOIN information_schema.columns c ON c.table_schema = s.table_schema AND c.table_name = s.table_name \
             AND c.column_name = s.column_name \
             WHERE s.table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND s.table_name = ? AND s.non_unique = 0",
            [schema, table],
        ),
        // A column's collation is not in the catalog, so it must be the one that it has where nobody speaks of collations.
        // The first half is the rowid under its own name, which has no index.
        Flavor::Sqlite => Flavor::fixed(
            "SELECT '', MIN(name), 'rowid' FROM pragma_table_info(?1, NULLIF(?2, '')) WHERE 0 < pk \
             HAVING COUNT(*) = 1 AND upper(MIN(type)) = 'INTEGER' \
             UNION ALL SELECT l.name, CASE WHEN i.coll = 'BINARY' AND \
             (SELECT instr(upper(sql), 'COLLATE') FROM sqlite_schema WHERE type = 'table' AND name = ?1 AND ?2 = '') = 0 \
             THEN i.name END, 'plain' FROM pragma_index_list(?1, NULLIF(?2, '')) l \
             JOIN pragma_index_xinfo(l.name, NULLIF(?2, '')) i WHERE l.\"unique\" = 1 AND l.partial = 0 AND i.key = 1",
            [table, schema],
        ),
    }
}

/// Whether `column = value` is the equality under which the column's index is unique, so that no conversion makes two of
/// its values equal to one.
fn compares_alike(flavor: Flavor, found: &str, value: &Value) -> bool {
    let (name, character_set) = found.split_once(' ').unwrap_or((found, ""));
    match value {
        // It converts the value to the column's own type, or not at all.
        _ if flavor == Flavor::Sqlite => true,
        Value::TinyInt(_)
        | Value::SmallInt(_)
        | Value::Int(_)
        | Value::BigInt(_)
        | Value::TinyUnsigned(_)
        | Value::SmallUnsigned(_)
        | Value::Unsigned(_)
        | Value::BigUnsigned(_) => {
            matches!(name, "smallint" | "integer" | "bigint" | "tinyint" | "mediumint" | "int")
        }
        Value::String(Some(text)) if flavor == Flavor::MySql => {
            // A character that the column's set does not have makes MySQL convert the column instead.
            let is_kept = character_set.starts_with("utf8mb4") || text.is_ascii();
            matches!(name, "char" | "varchar") && is_kept
        }
        Value::String(_) => matches!(found, "text" | "character varying" | "character"),
        Value::Bytes(_) => matches!(name, "bytea" | "binary" | "varbinary"),
        // Of a feature that this crate does not ask for, and another one may have switched on.
        other => name == "uuid" && format!("{other:?}").starts_with("Uuid("),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(flavor: Flavor, found: &str, value: impl Into<Value>, expected: bool) {
        let value = value.into();
        assert_eq!(compares_alike(flavor, found, &value), expected, "{flavor:?}: {found} = {value:?}");
    }

    #[test]
    fn only_values_of_the_columns_own_kind_are_compared_as_its_index_does() {
        for flavor in [Flavor::Postgres, Flavor::MySql] {
            check(flavor, "bigint", 1, true);
            check(flavor, "bigint", 1_u64, true);
            // Both sides become floats, and neighbours are equal beyond 2^53.
            check(flavor, "bigint", 1.0, false);
            check(flavor, "bigint", "1", false);
        }
        // 0 is equal to every text that does not begin with a number.
        check(Flavor::MySql, "varchar utf8mb4", 0, false);
        check(Flavor::MySql, "varchar utf8mb4", "é", true);
        check(Flavor::MySql, "varchar latin1", "e", true);
        check(Flavor::MySql, "varchar latin1", "ẹ", false);
        check(Flavor::MySql, "varbinary", b"e".to_vec(), true);
        check(Flavor::Postgres, "text", "e", true);
        check(Flavor::Postgres, "character varying", "e", true);
        check(Flavor::Postgres, "numeric", 1, false);
        check(Flavor::Sqlite, "plain", 0, true);
    }

    #[test]
    fn a_key_names_one_row_if_all_columns_of_a_unique_index_are_among_its_own() {
        let unique = |columns: &[&str]| {
            let columns = columns.iter().map(|name| ((*name).to_owned(), "bigint".to_owned())).collect();
            UniqueKey { columns }
        };
        let row = Row::new("t", "id", 1).and("line", 2);
        for (columns, expected) in [
            (&["id"] as &[_], true),
            (&["line", "id"], true),
            (&["id", "line", "part"], false),
            (&["part"], false),
            // A part of an index that is an expression, or a prefix.
            (&["id", ""], false),
        ] {
            assert_eq!(unique(columns).is_within(Flavor::Postgres, &row), expected, "{columns:?}");
        }
        assert!(!unique(&["ID"]).is_within(Flavor::Postgres, &row));
        assert!(unique(&["ID"]).is_within(Flavor::MySql, &row));
    }
}
