//! The ledger's table, and the check that a column can hold tokens.
//!
//! Installing is idempotent and may be done by several processes at once. People with migrations of their own take the
//! text from [`LedgerTable::sql`] instead.

use std::fmt;

use sea_query::{
    Alias, ColumnDef, Expr, IntoIden, MysqlQueryBuilder, PostgresQueryBuilder, SqliteQueryBuilder, Table,
    TableCreateStatement, TableName, Value,
};

use crate::dialect::{Flavor, Rendered};
use crate::error::ColumnProblem;

/// The longest identifier: what Postgres keeps of one (MySQL keeps 64 characters).
const IDENTIFIER_LEN_MAX: usize = 63;

/// Where the ledger is unless said otherwise.
const LEDGER_TABLE: &str = "fence_ledger";

/// The columns of the ledger.
pub(crate) const RESOURCE: &str = "resource";
pub(crate) const TOKEN: &str = "token";
pub(crate) const TRANSACTION_ID: &str = "transaction_id";
pub(crate) const RAISED_AT: &str = "raised_at";

/// The name of the table that remembers the highest token per resource: `fence_ledger` by default.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LedgerTable {
    schema: Option<String>,
    table: String,
}

impl LedgerTable {
    /// Checks a name, `table` or `schema.table`.
    ///
    /// # Errors
    /// [`InvalidTableName`] unless each part is 1 to 63 ASCII letters, digits or underscores and does not begin with a
    /// digit.
    pub fn new(name: &str) -> Result<Self, InvalidTableName> {
        let (schema, table) = match name.split_once('.') {
            Some((schema, table)) => (Some(schema), table),
            None => (None, name),
        };
        let is_identifier = |part: &str| {
            part.len() <= IDENTIFIER_LEN_MAX
                && part.chars().next().is_some_and(|first| !first.is_ascii_digit())
                && part.chars().all(|character| character == '_' || character.is_ascii_alphanumeric())
        };
        if is_identifier(table) && schema.is_none_or(is_identifier) {
            Ok(Self { schema: schema.map(str::to_owned), table: table.to_owned() })
        } else {
            Err(InvalidTableName { name: name.to_owned() })
        }
    }

    /// The SQL that creates the table, for migrations of one's own. Does nothing where the table exists.
    ///
    /// ```
    /// use fence_store::{Flavor, LedgerTable};
    /// let ledger = LedgerTable::default();
    /// assert_eq!(
    ///     ledger.sql(Flavor::Postgres),
    ///     r#"CREATE TABLE IF NOT EXISTS "fence_ledger" ( "resource" text NOT NULL PRIMARY KEY COLLATE "C", "token" bigint NOT NULL DEFAULT 0, "transaction_id" bigint NOT NULL DEFAULT 0, "raised_at" timestamp with time zone NOT NULL DEFAULT CURRENT_TIMESTAMP )"#
    /// );
    /// assert_eq!(
    ///     ledger.sql(Flavor::MySql),
    ///     "CREATE TABLE IF NOT EXISTS `fence_ledger` ( `resource` varbinary(1024) NOT NULL PRIMARY KEY, `token` bigint NOT NULL DEFAULT 0, `transaction_id` bigint NOT NULL DEFAULT 0, `raised_at` datetime(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ) ENGINE=InnoDB"
    /// );
    /// assert_eq!(
    ///     ledger.sql(Flavor::Sqlite),
    ///     r#"CREATE TABLE IF NOT EXISTS "fence_ledger" ( "resource" text NOT NULL PRIMARY KEY, "token" integer NOT NULL DEFAULT 0, "transaction_id" integer NOT NULL DEFAULT 0, "raised_at" text NOT NULL DEFAULT CURRENT_TIMESTAMP )"#
    /// );
    /// ```
    #[must_use]
    pub fn sql(&self, flavor: Flavor) -> String {
        let statement = self.create(flavor);
        match flavor {
            Flavor::Postgres => statement.to_string(PostgresQueryBuilder),
            Flavor::MySql => statement.to_string(MysqlQueryBuilder),
            Flavor::Sqlite => statement.to_string(SqliteQueryBuilder),
        }
    }

    /// Names must be compared byte by byte: `a`, `A` and `a ` are three resources. Postgres' `"C"` and SQLite's default
    /// collation do; MySQL's collations do not (case, accents, trailing spaces), so there the name is kept as bytes. Its
    /// 1024 bytes fit an InnoDB index (3072) and a Postgres one (2704).
    fn create(&self, flavor: Flavor) -> TableCreateStatement {
        let mut resource = ColumnDef::new(RESOURCE);
        let mut raised_at = ColumnDef::new(RAISED_AT);
        match flavor {
            Flavor::Postgres => {
                resource.text().extra("COLLATE \"C\"");
                raised_at.timestamp_with_time_zone().default(Expr::current_timestamp());
            }
            Flavor::MySql => {
                resource.var_binary(1024);
                raised_at.custom("datetime(6)").extra("DEFAULT CURRENT_TIMESTAMP(6)");
            }
            Flavor::Sqlite => {
                resource.text();
                raised_at.text().default(Expr::current_timestamp());
            }
        }
        let number = |name: &'static str| ColumnDef::new(name).big_integer().not_null().default(0).take();
        let mut statement = Table::create();
        statement
            .table(self.table_name())
            .if_not_exists()
            .col(resource.not_null().primary_key())
            .col(number(TOKEN))
            .col(number(TRANSACTION_ID))
            .col(raised_at.not_null());
        if flavor == Flavor::MySql {
            statement.engine("InnoDB");
        }
        statement
    }

    pub(crate) fn table_name(&self) -> TableName {
        match &self.schema {
            Some(schema) => (Alias::new(schema), Alias::new(&self.table)).into(),
            None => Alias::new(&self.table).into_iden().into(),
        }
    }
}

impl Default for LedgerTable {
    fn default() -> Self {
        Self { schema: None, table: LEDGER_TABLE.to_owned() }
    }
}

impl fmt::Display for LedgerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.table),
            None => f.write_str(&self.table),
        }
    }
}

impl fmt::Debug for LedgerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LedgerTable({self})")
    }
}

/// A name that the ledger's table cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot name the ledger's table: use letters, digits and underscores, at most 63, as in app.fence_ledger"
)]
pub struct InvalidTableName {
    name: String,
}

/// Processes that install at once queue up on this number: `IF NOT EXISTS` alone lets two of them collide in the catalog.
pub(crate) const POSTGRES_INSTALL_LOCK: &str = "SELECT pg_advisory_xact_lock(5207287213456011)";

/// A table as the catalog knows it.
pub(crate) fn display(table: &TableName) -> String {
    match table {
        TableName(Some(schema), table) => format!("{}.{table}", schema.1),
        TableName(None, table) => table.to_string(),
    }
}

/// Asks the catalog whether there is such a table, and for its storage engine, where there is a choice.
pub(crate) fn describe_table(flavor: Flavor, table: &TableName) -> Rendered {
    let schema: Value = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default().into();
    let table: Value = table.1.to_string().into();
    match flavor {
        Flavor::Postgres => Flavor::fixed(
            "SELECT NULL::text FROM pg_catalog.pg_class WHERE oid = \
             to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2))",
            [schema, table],
        ),
        Flavor::MySql => Flavor::fixed(
            "SELECT CAST(engine AS CHAR) FROM information_schema.tables \
             WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ?",
            [schema, table],
        ),
        Flavor::Sqlite => {
            Flavor::fixed("SELECT NULL FROM pragma_table_info(?, NULLIF(?, '')) LIMIT 1", [table, schema])
        }
    }
}

/// Asks MySQL's catalog for a unique key of this column alone, and of the whole of it.
pub(crate) fn find_unique_key(table: &TableName, column: &str) -> Rendered {
    let schema: Value = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default().into();
    Flavor::fixed(
        "SELECT MIN(index_name) FROM information_schema.statistics \
         WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND non_unique = 0 \
         GROUP BY index_name HAVING COUNT(*) = 1 AND MIN(column_name) = ? AND MIN(sub_part) IS NULL",
        [schema, table.1.to_string().into(), column.into()],
    )
}

/// Whether a table's storage engine has transactions and row locks. A view has none of its own.
pub(crate) fn judge_engine(flavor: Flavor, table: &str, engine: Option<&str>) -> Result<(), ColumnProblem> {
    match engine {
        Some(found) if flavor == Flavor::MySql && !found.eq_ignore_ascii_case("InnoDB") => {
            Err(ColumnProblem::Engine { table: table.to_owned(), found: found.to_owned() })
        }
        _ => Ok(()),
    }
}

/// Asks the catalog for a column's type, whether it may be NULL ("YES" or "NO"), and its default, all as text.
pub(crate) fn describe_column(flavor: Flavor, table: &TableName, column: &str) -> Rendered {
    let schema: Value = table.0.as_ref().map(|schema| schema.1.to_string()).unwrap_or_default().into();
    let table: Value = table.1.to_string().into();
    let column: Value = column.to_owned().into();
    match flavor {
        // `to_regclass` follows the search path, as the statement itself will.
        Flavor::Postgres => Flavor::fixed(
            "SELECT format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END, \
             pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attribute a \
             LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum \
             WHERE a.attrelid = to_regclass(CASE WHEN $1 = '' THEN '' ELSE quote_ident($1) || '.' END || quote_ident($2)) \
             AND a.attname = $3 AND 0 < a.attnum AND NOT a.attisdropped",
            [schema, table, column],
        ),
        Flavor::MySql => Flavor::fixed(
            "SELECT CAST(column_type AS CHAR), CAST(is_nullable AS CHAR), CAST(column_default AS CHAR) \
             FROM information_schema.columns \
             WHERE table_schema = COALESCE(NULLIF(?, ''), DATABASE()) AND table_name = ? AND column_name = ?",
            [schema, table, column],
        ),
        Flavor::Sqlite => Flavor::fixed(
            "SELECT type, CASE \"notnull\" WHEN 1 THEN 'NO' ELSE 'YES' END, dflt_value \
             FROM pragma_table_info(?, NULLIF(?, '')) WHERE name = ? COLLATE NOCASE",
            [table, schema, column],
        ),
    }
}

/// Whether a column, as the catalog describes it, can hold tokens.
pub(crate) fn judge_column(
    flavor: Flavor,
    table: &str,
    column: &str,
    found: &str,
    nullable: bool,
    default: Option<&str>,
) -> Result<(), ColumnProblem> {
    let (table, column) = (table.to_owned(), column.to_owned());
    let name = found.to_ascii_lowercase();
    let is_signed_64_bit = match flavor {
        Flavor::Postgres => name == "bigint",
        // "bigint(20)" before MySQL 8.0.19 and on MariaDB.
        Flavor::MySql => name.starts_with("bigint") && !name.contains("unsigned"),
        // The rule of SQLite's manual for INTEGER affinity; such a column holds signed 64-bit integers as they are.
        Flavor::Sqlite => name.contains("int"),
    };
    if !is_signed_64_bit {
        let found = found.to_owned();
        return Err(ColumnProblem::Type { table, column, found });
    }
    if nullable {
        return Err(ColumnProblem::Nullable { table, column });
    }
    // Written 0, (0), '0' or '0'::bigint, as the database and the migration like it.
    let bare = default.map(|text| text.trim_end_matches("::bigint").trim_matches(['(', ')', '\'']));
    if bare != Some("0") {
        let found = default.unwrap_or("none").to_owned();
        return Err(ColumnProblem::Default { table, column, found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_names_are_checked_once() {
        for good in ["fence_ledger", "_", "app.Ledger2"] {
            assert_eq!(LedgerTable::new(good).unwrap().to_string(), good);
        }
        for bad in ["", "2nd", "a-b", "a.b.c", ".a", "a.", "a\"; DROP TABLE b", "é", &"x".repeat(64)] {
            assert!(LedgerTable::new(bad).is_err(), "{bad}");
        }
    }

    fn check(flavor: Flavor, found: &str, nullable: bool, default: Option<&str>, expected: Option<&str>) {
        let result = judge_column(flavor, "t", "fence_token", found, nullable, default);
        let message = result.map_err(|problem| problem.to_string());
        match expected {
            None => assert_eq!(message, Ok(())),
            Some(part) => assert!(message.as_ref().is_err_and(|message| message.contains(part)), "{message:?}"),
        }
    }

    #[test]
    fn b57_only_a_signed_64_bit_column_is_accepted() {
        check(Flavor::Postgres, "bigint", false, Some("0"), None);
        check(Flavor::Postgres, "bigint", false, Some("'0'::bigint"), None);
        for other in ["integer", "numeric", "numeric(20,0)", "text", "character varying(20)", "double precision"] {
            check(Flavor::Postgres, other, false, Some("0"), Some("change its type to BIGINT"));
        }
        check(Flavor::MySql, "bigint(20)", false, Some("0"), None);
        check(Flavor::MySql, "bigint", false, Some("0"), None);
        for other in ["int(11)", "bigint(20) unsigned", "varchar(20)", "text", "decimal(20,0)"] {
            check(Flavor::MySql, other, false, Some("0"), Some("change its type to BIGINT"));
        }
        for integer in ["INTEGER", "BIGINT", "int"] {
            check(Flavor::Sqlite, integer, false, Some("0"), None);
        }
        for other in ["TEXT", "NUMERIC", "REAL", "BLOB", ""] {
            check(Flavor::Sqlite, other, false, Some("0"), Some("change its type to BIGINT"));
        }
    }

    #[test]
    fn a_column_without_a_floor_is_refused() {
        check(Flavor::Postgres, "bigint", true, Some("0"), Some("make it NOT NULL"));
        check(Flavor::Postgres, "bigint", false, None, Some("has default none"));
        check(Flavor::Postgres, "bigint", false, Some("1"), Some("has default 1"));
        check(Flavor::Sqlite, "BIGINT", false, Some("-1"), Some("has default -1"));
    }
}
