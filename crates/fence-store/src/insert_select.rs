//! Rows that come from a query: INSERT … SELECT, each new row under the fence.
//!
//! Pure. Run under the ledger's lock, as every insertion is: it remembers who deleted a row that would come back.

use redlock_core::FencingToken;
use sea_query::{DynIden, Expr, InsertStatement, IntoIden, Query, SelectStatement, TableName};

use crate::error::{FenceError, StatementProblem};
use crate::row::FENCE_COLUMN;
use crate::schema::display;

/// Which columns of which table are filled by which query.
///
/// The fence column is added to both. The query's rows must not be a UNION's; make a subquery of one.
///
/// ```
/// use fence_store::InsertSelect;
/// use sea_query::Query;
/// let query = Query::select().columns(["id", "total"]).from("carts").to_owned();
/// let orders = InsertSelect::new("orders", ["id", "total"], query);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct InsertSelect {
    table: TableName,
    columns: Vec<DynIden>,
    query: SelectStatement,
    fence: DynIden,
}

impl InsertSelect {
    /// The query's columns go into `columns` of `table`, one by one.
    pub fn new<C: IntoIden>(
        table: impl Into<TableName>,
        columns: impl IntoIterator<Item = C>,
        query: SelectStatement,
    ) -> Self {
        let columns = columns.into_iter().map(IntoIden::into_iden).collect();
        Self { table: table.into(), columns, query, fence: FENCE_COLUMN.into_iden() }
    }

    /// Names the fence column, `fence_token` by default.
    pub fn fence_column(mut self, column: impl IntoIden) -> Self {
        self.fence = column.into_iden();
        self
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.table
    }

    pub(crate) fn fence(&self) -> &DynIden {
        &self.fence
    }

    pub(crate) fn statement(&self, token: FencingToken) -> Result<InsertStatement, FenceError> {
        let fence = self.fence.to_string();
        if self.columns.iter().any(|column| column.to_string().eq_ignore_ascii_case(&fence)) {
            return Err(StatementProblem::SetsTheFence { column: fence }.into());
        }
        let query = self.query.clone().expr(Expr::value(token.get())).to_owned();
        let mut statement = Query::insert();
        statement.into_table(self.table.clone()).columns(self.columns.iter().chain([&self.fence]).cloned());
        match statement.select_from(query) {
            Ok(statement) => Ok(statement.to_owned()),
            Err(_) => Err(StatementProblem::ColumnsMismatch { table: display(&self.table) }.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use sea_query::ExprTrait;

    use super::*;
    use crate::dialect::Flavor;

    fn carts() -> SelectStatement {
        Query::select().columns(["id", "total"]).from("carts").and_where(Expr::col("paid").eq(true)).to_owned()
    }

    #[test]
    fn golden_sql_of_an_insertion_from_a_query() {
        let insert = InsertSelect::new("orders", ["id", "total"], carts());
        for (flavor, expected) in [
            (
                Flavor::Postgres,
                r#"INSERT INTO "orders" ("id", "total", "fence_token") SELECT "id", "total", $1 FROM "carts" WHERE "paid" = $2 /* BigInt Bool */"#,
            ),
            (
                Flavor::MySql,
                "INSERT INTO `orders` (`id`, `total`, `fence_token`) SELECT `id`, `total`, ? FROM `carts` WHERE `paid` = ?",
            ),
            (
                Flavor::Sqlite,
                r#"INSERT INTO "orders" ("id", "total", "fence_token") SELECT "id", "total", ? FROM "carts" WHERE "paid" = ?"#,
            ),
        ] {
            assert_eq!(flavor.render(&insert.statement(FencingToken::MIN).unwrap()).unwrap().sql, expected);
        }
    }

    #[test]
    fn what_would_fill_the_fence_or_miss_a_column_is_refused() {
        let refused = |insert: InsertSelect| match insert.statement(FencingToken::MIN) {
            Err(FenceError::Statement(problem)) => problem,
            other => panic!("{other:?}"),
        };
        let fence = refused(InsertSelect::new("orders", ["id", "Fence_Token"], carts()));
        assert!(matches!(fence, StatementProblem::SetsTheFence { .. }), "{fence:?}");
        let missing = refused(InsertSelect::new("orders", ["id"], carts()));
        assert!(matches!(missing, StatementProblem::ColumnsMismatch { .. }), "{missing:?}");
    }
}
