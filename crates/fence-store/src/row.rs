//! One statement, fenced by its own row: which row, what is written, and the SQL that comes of it.
//!
//! Pure. [`crate::write`] runs these statements; what a fence that was found means is decided here, by [`Row::judge`].
//!
//! sea-query's statements keep their parts to themselves, so the row that a statement is about is named apart from it:
//! without that, "no row was written" could not be looked into.

use std::fmt;

use redlock_core::FencingToken;
use sea_query::{
    Alias, CaseStatement, Cond, Condition, DeleteStatement, DynIden, Expr, ExprTrait, InsertStatement, IntoIden,
    LockType, OnConflict, Order, PostgresQueryBuilder, Query, ReturningClause, SelectStatement, TableName,
    UpdateStatement, Value,
};

use crate::dialect::{Flavor, LockWait};
use crate::error::{FenceError, StatementProblem};
use crate::schema::display;

/// The fence column's name unless said otherwise.
pub(crate) const FENCE_COLUMN: &str = "fence_token";

/// A row that is written under a fence: its table, its key, and the column that keeps the highest token.
///
/// The key is the primary key or another unique one, with a value of the column's own kind. A key that several rows share
/// is refused ([`StatementProblem::KeyOfSeveralRows`]), and nothing is written. Where the catalog does not prove that it
/// names one row at most (no unique index, a view, a text compared with a number), a write costs a transaction in place of
/// one statement, as that has to be seen under lock.
///
/// ```
/// use fence_store::Row;
/// let account = Row::new("accounts", "id", 42);
/// let line = Row::new(("shop", "order_lines"), "order_id", 42).and("line", 3).fence_column("fence");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Row {
    table: TableName,
    key: Vec<(DynIden, Value)>,
    fence: DynIden,
    may_rewrite: bool,
}

/// What a fence says to a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Passes,
    AlreadyWritten,
    Stale,
}

impl Row {
    /// The row of `table` (a name, or a schema and a name) whose `column` is `value`.
    pub fn new(table: impl Into<TableName>, column: impl IntoIden, value: impl Into<Value>) -> Self {
        Self {
            table: table.into(),
            key: vec![(column.into_iden(), value.into())],
            fence: Alias::new(FENCE_COLUMN).into_iden(),
            may_rewrite: false,
        }
    }

    /// Adds a column to the key, for keys of several columns.
    pub fn and(mut self, column: impl IntoIden, value: impl Into<Value>) -> Self {
        self.key.push((column.into_iden(), value.into()));
        self
    }

    /// Names the fence column, `fence_token` by default. It must be `BIGINT NOT NULL DEFAULT 0`.
    pub fn fence_column(mut self, column: impl IntoIden) -> Self {
        self.fence = column.into_iden();
        self
    }

    /// Lets one grant write the row several times: `fence_token <= t` in place of `fence_token < t`.
    ///
    /// The fence is not idempotency. A statement such as `n = n + 1` that is sent twice under this rule counts twice;
    /// under the strict one the second is told [`FenceError::AlreadyWritten`].
    pub fn may_rewrite(mut self) -> Self {
        self.may_rewrite = true;
        self
    }

    /// What a fence of this value says to a token.
    pub(crate) fn judge(&self, token: FencingToken, fence: i64) -> Judgement {
        if fence < token.get() || (self.may_rewrite && fence == token.get()) {
            Judgement::Passes
        } else if fence == token.get() {
            Judgement::AlreadyWritten
        } else {
            Judgement::Stale
        }
    }

    /// The caller's UPDATE, fenced.
    ///
    /// Atomic in all three: the row is locked before the condition is evaluated for good, on its newest version. The fence
    /// is assigned last, as MySQL assigns from left to right, and an earlier expression may read it.
    ///
    /// ```text
    /// UPDATE "accounts" SET "balance" = $1, "fence_token" = $2 WHERE "id" = $3 AND "fence_token" < $4
    /// ```
    pub(crate) fn update(
        &self,
        token: FencingToken,
        statement: &UpdateStatement,
    ) -> Result<UpdateStatement, FenceError> {
        self.can_be_fenced(statement)?;
        self.leaves_alone(statement.get_values().iter().map(|(column, _)| column))?;
        let mut statement = statement.clone();
        statement
            .table(self.table.clone())
            .value(self.fence.clone(), token.get())
            .cond_where(self.condition())
            .and_where(self.lets_pass(token));
        Ok(statement)
    }

    /// The same statement for outside a transaction, where it must commit by itself and wait within a limit. Where it would
    /// not commit (`autocommit = 0` on MySQL) it matches nothing, and the look under lock that follows is a transaction with
    /// a COMMIT of its own.
    pub(crate) fn alone(flavor: Flavor, wait: Option<LockWait>, mut statement: UpdateStatement) -> UpdateStatement {
        if let Some(condition) = flavor.alone(wait) {
            statement.and_where(condition);
        }
        statement
    }

    /// Raises the fence to the token, as the holder's claim before it reads, and returns `columns` where the database can.
    /// Always `<=`: a claim may be repeated.
    pub(crate) fn claim(&self, flavor: Flavor, token: FencingToken, columns: &ReturningClause) -> UpdateStatement {
        let mut statement = Query::update();
        statement
            .table(self.table.clone())
            .value(self.fence.clone(), token.get())
            .cond_where(self.condition())
            .and_where(Expr::col(self.fence.clone()).lte(mutant!("a claim takes a newer row", token.get(), i64::MAX)));
        if flavor != Flavor::MySql {
            statement.returning(columns.clone());
        }
        statement
    }

    /// Reads a row that was claimed, where the claim could not return it; no row if a newer token has passed since.
    pub(crate) fn select_claimed(&self, token: FencingToken, columns: &ReturningClause) -> SelectStatement {
        let mut statement = Query::select();
        match columns {
            ReturningClause::All => statement.column(sea_query::Asterisk),
            ReturningClause::Columns(columns) => statement.columns(columns.iter().cloned()),
            ReturningClause::Exprs(exprs) => statement.exprs(exprs.iter().cloned()),
        };
        statement
            .from(self.table.clone())
            .cond_where(self.condition())
            .and_where(Expr::col(self.fence.clone()).eq(token.get()))
            .to_owned()
    }

    /// Reads the fence and locks the row (SQLite: the transaction holds the write lock already).
    pub(crate) fn lock(&self) -> SelectStatement {
        self.read().lock(LockType::Update).to_owned()
    }

    /// Reads the fence.
    pub(crate) fn read(&self) -> SelectStatement {
        Query::select().column(self.fence.clone()).from(self.table.clone()).cond_where(self.condition()).to_owned()
    }

    /// Inserts the row, or does nothing if somebody else has in the meantime, and returns the fence if it did insert.
    ///
    /// Run under the ledger's lock, after the row was seen to be absent. MySQL has no form that does nothing and says so,
    /// and reports a duplicate key instead; it alone returns nothing.
    pub(crate) fn insert(
        &self,
        flavor: Flavor,
        token: FencingToken,
        upsert: &Upsert,
    ) -> Result<InsertStatement, FenceError> {
        Self::insert_all(flavor, token, &[(self, upsert)])
    }

    /// The same for several rows of one kind, whose upserts insert the same columns.
    pub(crate) fn insert_all(
        flavor: Flavor,
        token: FencingToken,
        values: &[(&Self, &Upsert)],
    ) -> Result<InsertStatement, FenceError> {
        let mut statement = Query::insert();
        for (row, upsert) in values {
            row.accepts(upsert)?;
            let key = || row.key.iter().map(|(column, _)| column.clone());
            let columns = key().chain(upsert.insert.iter().map(|(column, _)| column.clone()));
            statement.into_table(row.table.clone()).columns(columns.chain([row.fence.clone()]));
            if flavor != Flavor::MySql {
                statement.on_conflict(OnConflict::columns(key()).do_nothing().to_owned());
                statement.returning_col(row.fence.clone());
            }
        }
        for (row, upsert) in values {
            let key = row.key.iter().map(|(_, value)| Expr::value(value.clone()));
            let values = key.chain(upsert.insert.iter().map(|(_, value)| value.clone()));
            statement.values_panic(values.chain([token.get().into()]));
        }
        Ok(statement)
    }

    /// Deletes the row. Run under the ledger's lock and the row's, after the fence was found to let the token pass.
    pub(crate) fn delete(&self) -> DeleteStatement {
        Query::delete().from_table(self.table.clone()).cond_where(self.condition()).to_owned()
    }

    /// The caller's UPDATE of several rows of one kind, fenced. Run while they are locked.
    pub(crate) fn update_all(
        rows: &[&Self],
        token: FencingToken,
        statement: &UpdateStatement,
    ) -> Result<UpdateStatement, FenceError> {
        let first = rows[0];
        first.can_be_fenced(statement)?;
        first.leaves_alone(statement.get_values().iter().map(|(column, _)| column))?;
        let mut statement = statement.clone();
        statement
            .table(first.table.clone())
            .value(first.fence.clone(), token.get())
            .cond_where(Self::any_of(rows))
            .and_where(Expr::col(first.fence.clone()).lt(token.get()));
        Ok(statement)
    }

    /// Condemns several rows of one kind, as a guard wants it before they are deleted: see [`crate::guard`].
    pub(crate) fn condemn_all(rows: &[&Self], token: FencingToken) -> UpdateStatement {
        let first = rows[0];
        Query::update()
            .table(first.table.clone())
            .value(first.fence.clone(), -token.get())
            .cond_where(Self::any_of(rows))
            .to_owned()
    }

    /// Deletes several rows of one kind. Run while they are locked.
    pub(crate) fn delete_all(rows: &[&Self]) -> DeleteStatement {
        Query::delete().from_table(rows[0].table.clone()).cond_where(Self::any_of(rows)).to_owned()
    }

    /// Locks several rows of one kind, in the order of their keys, and reads for each its place among `rows` and its fence.
    pub(crate) fn lock_all(rows: &[&Self]) -> SelectStatement {
        let mut place = CaseStatement::new();
        for (index, row) in rows.iter().enumerate() {
            place = place.case(row.condition(), i64::try_from(index).expect("fits"));
        }
        let first = rows[0];
        let mut statement = Query::select();
        statement
            .expr(place)
            .column(first.fence.clone())
            .from(first.table.clone())
            .cond_where(Self::any_of(rows))
            .order_by_columns(first.key.iter().map(|(column, _)| (column.clone(), Order::Asc)))
            .lock(LockType::Update);
        statement
    }

    fn any_of(rows: &[&Self]) -> Condition {
        match rows[0].key.as_slice() {
            [(column, _)] => {
                let values = rows.iter().map(|row| row.key[0].1.clone());
                Cond::all().add(Expr::col(column.clone()).is_in(values))
            }
            _ => rows.iter().fold(Cond::any(), |any, row| any.add(row.condition())),
        }
    }

    /// Whether both are rows of one table, named by the same columns and fenced by the same one, under the same rule.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let columns = |row: &Self| row.key.iter().map(|(column, _)| column.clone()).collect::<Vec<_>>();
        self.table == other.table
            && self.fence == other.fence
            && self.may_rewrite == other.may_rewrite
            && columns(self) == columns(other)
    }

    pub(crate) fn table(&self) -> &TableName {
        &self.table
    }

    pub(crate) fn key(&self) -> &[(DynIden, Value)] {
        &self.key
    }

    pub(crate) fn fence(&self) -> &DynIden {
        &self.fence
    }

    pub(crate) fn condition(&self) -> Condition {
        self.key
            .iter()
            .fold(Cond::all(), |condition, (column, value)| condition.add(Expr::col(column.clone()).eq(value.clone())))
    }

    fn lets_pass(&self, token: FencingToken) -> Expr {
        let fence = Expr::col(self.fence.clone());
        let may_rewrite = mutant!("a strict fence admits its own token", self.may_rewrite, true);
        if may_rewrite { fence.lte(token.get()) } else { fence.lt(token.get()) }
    }

    /// Refuses an upsert either half of which assigns what is the store's business.
    pub(crate) fn accepts(&self, upsert: &Upsert) -> Result<(), FenceError> {
        self.leaves_alone(upsert.insert.iter().chain(&upsert.update).map(|(column, _)| column))
    }

    /// Refuses columns whose assignment would take the fence away from the row, and a key that names no row.
    fn leaves_alone<'a>(&self, columns: impl Iterator<Item = &'a DynIden>) -> Result<(), FenceError> {
        self.has_a_key()?;
        let is = |column: &DynIden, other: &DynIden| column.to_string().eq_ignore_ascii_case(&other.to_string());
        for column in columns {
            if is(column, &self.fence) {
                return Err(StatementProblem::SetsTheFence { column: self.fence.to_string() }.into());
            }
            if self.key.iter().any(|(key, _)| is(column, key)) {
                return Err(StatementProblem::SetsTheKey { column: column.to_string() }.into());
            }
        }
        Ok(())
    }

    /// Refuses NULL in the key.
    pub(crate) fn has_a_key(&self) -> Result<(), FenceError> {
        match self.key.iter().find(|(_, value)| *value == value.as_null()) {
            Some((column, _)) => Err(StatementProblem::NullInKey { column: column.to_string() }.into()),
            None => Ok(()),
        }
    }

    /// Refuses what would run, or be passed over, whatever the fence says. sea-query's statements keep their parts to
    /// themselves, so it is told from how they begin when written, and how their condition shows itself.
    ///
    /// On the way of every write, so what takes long is looked at only where a word of it is in the text.
    fn can_be_fenced(&self, statement: &UpdateStatement) -> Result<(), FenceError> {
        let write = |statement: &UpdateStatement| statement.build(PostgresQueryBuilder).0;
        let written = write(statement);
        if written.contains("RETURNING") {
            let returning = write(statement.clone().returning_all());
            if returning != [written.as_str(), " RETURNING *"].concat() {
                return Err(StatementProblem::Returning.into());
            }
        }
        if !written.starts_with("UPDATE ") {
            return Err(StatementProblem::With.into());
        }
        let begins = |written: &str| written.split(" SET ").next().map(str::trim_end).map(str::to_owned);
        let found = begins(&written);
        // Without a table of its own there is nothing between the two words.
        if found.as_deref() != Some("UPDATE") && found != begins(&write(Query::update().table(self.table.clone()))) {
            return Err(StatementProblem::AnotherTable { table: display(&self.table) }.into());
        }
        if written.contains(" WHERE ") && has_a_chained_condition(statement) {
            return Err(StatementProblem::ChainedCondition.into());
        }
        Ok(())
    }
}

/// Whether sea-query would panic if a condition were added: it keeps a chain of ANDs and ORs apart from a tree of them.
fn has_a_chained_condition(statement: &UpdateStatement) -> bool {
    /// Looks for the name where a field's value begins, and keeps no text, for values may be long.
    #[derive(Default)]
    struct Finder {
        begins: bool,
        found: bool,
    }
    impl fmt::Write for Finder {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            self.found |= self.begins && part == "Chain";
            self.begins = part == ": ";
            Ok(())
        }
    }
    let mut finder = Finder::default();
    let written = fmt::Write::write_fmt(&mut finder, format_args!("{statement:?}"));
    written.is_ok() && finder.found
}

/// Names the table only: key values may be nobody's business, and messages travel.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the row of {}", display(&self.table))
    }
}

/// What INSERT-or-update writes: values for a row that is not there, and for one that is.
///
/// There is no way to say `REPLACE`: it deletes the row that carries the fence, and so walks around it.
///
/// ```
/// use fence_store::Upsert;
/// use sea_query::{Expr, ExprTrait};
/// let deposit = Upsert::new()
///     .value("owner", "ann")
///     .on_insert("balance", 5)
///     .on_update("balance", Expr::col("balance").add(5));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Upsert {
    insert: Vec<(DynIden, Expr)>,
    update: Vec<(DynIden, Expr)>,
}

impl Upsert {
    /// Nothing but the key and the fence.
    pub fn new() -> Self {
        Self::default()
    }

    /// A column's value, whether the row is there or not.
    pub fn value(self, column: impl IntoIden, value: impl Into<Expr>) -> Self {
        let (column, value) = (column.into_iden(), value.into());
        self.on_insert(column.clone(), value.clone()).on_update(column, value)
    }

    /// A column's value in a new row only.
    pub fn on_insert(mut self, column: impl IntoIden, value: impl Into<Expr>) -> Self {
        self.insert.push((column.into_iden(), value.into()));
        self
    }

    /// A column's value in a row that is there only; the expression sees the old row.
    pub fn on_update(mut self, column: impl IntoIden, value: impl Into<Expr>) -> Self {
        self.update.push((column.into_iden(), value.into()));
        self
    }

    /// Whether both give a new row values for the same columns.
    pub(crate) fn inserts_like(&self, other: &Self) -> bool {
        self.insert.iter().map(|(column, _)| column).eq(other.insert.iter().map(|(column, _)| column))
    }

    pub(crate) fn as_update(&self) -> UpdateStatement {
        Query::update().values(self.update.iter().cloned()).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use sea_query::{CommonTableExpression, IntoColumnRef, LogicalChainOper, QueryStatementWriter, WithClause};

    use super::*;

    const TOKEN: i64 = 34;

    fn token() -> FencingToken {
        FencingToken::assume_granted(TOKEN).unwrap()
    }

    fn account() -> Row {
        Row::new("accounts", "id", 42)
    }

    fn check(statement: impl Fn(Flavor) -> String, postgres: &str, mysql: &str, sqlite: &str) {
        assert_eq!(statement(Flavor::Postgres), postgres);
        assert_eq!(statement(Flavor::MySql), mysql);
        assert_eq!(statement(Flavor::Sqlite), sqlite);
    }

    fn sql(flavor: Flavor, statement: &impl QueryStatementWriter) -> String {
        // Without the names of the types, and the space that sea-query leaves where SQLite has no lock clause.
        let sql = flavor.render(statement).unwrap().sql;
        sql.split(" /*").next().unwrap().trim_end().to_owned()
    }

    #[test]
    fn golden_sql_of_a_fenced_update() {
        let update = Query::update().value("balance", 101).to_owned();
        check(
            |flavor| sql(flavor, &account().update(token(), &update).unwrap()),
            r#"UPDATE "accounts" SET "balance" = $1, "fence_token" = $2 WHERE "id" = $3 AND "fence_token" < $4"#,
            "UPDATE `accounts` SET `balance` = ?, `fence_token` = ? WHERE `id` = ? AND `fence_token` < ?",
            r#"UPDATE "accounts" SET "balance" = ?, "fence_token" = ? WHERE "id" = ? AND "fence_token" < ?"#,
        );
    }

    #[test]
    fn golden_sql_of_a_fenced_update_outside_a_transaction() {
        let update = Query::update().value("balance", 101).to_owned();
        check(
            |flavor| sql(flavor, &Row::alone(flavor, None, account().update(token(), &update).unwrap())),
            r#"UPDATE "accounts" SET "balance" = $1, "fence_token" = $2 WHERE "id" = $3 AND "fence_token" < $4 AND (CASE current_setting('lock_timeout') WHEN '0' THEN set_config('lock_timeout', '10s', true) <> '' ELSE true END)"#,
            "UPDATE `accounts` SET `balance` = ?, `fence_token` = ? WHERE `id` = ? AND `fence_token` < ? AND (@@autocommit)",
            r#"UPDATE "accounts" SET "balance" = ?, "fence_token" = ? WHERE "id" = ? AND "fence_token" < ?"#,
        );
    }

    #[test]
    fn golden_sql_of_a_fenced_update_that_waits_as_long_as_it_is_told() {
        let update = Query::update().value("balance", 101).to_owned();
        let wait = Some(LockWait::new(std::time::Duration::from_millis(250)));
        check(
            |flavor| sql(flavor, &Row::alone(flavor, wait, account().update(token(), &update).unwrap())),
            r#"UPDATE "accounts" SET "balance" = $1, "fence_token" = $2 WHERE "id" = $3 AND "fence_token" < $4 AND (set_config('lock_timeout', $5, true) <> '')"#,
            "UPDATE `accounts` SET `balance` = ?, `fence_token` = ? WHERE `id` = ? AND `fence_token` < ? AND (@@autocommit)",
            r#"UPDATE "accounts" SET "balance" = ?, "fence_token" = ? WHERE "id" = ? AND "fence_token" < ?"#,
        );
    }

    #[test]
    fn golden_sql_of_a_rewriting_update_with_a_condition_of_its_own() {
        let row = Row::new(("shop", "lines"), "order", 42).and("line", 3).fence_column("fence").may_rewrite();
        let any = Cond::any().add(Expr::col("a").eq(1)).add(Expr::col("b").eq(2));
        let update = Query::update().value("n", 1).cond_where(any).to_owned();
        check(
            |flavor| sql(flavor, &row.update(token(), &update).unwrap()),
            r#"UPDATE "shop"."lines" SET "n" = $1, "fence" = $2 WHERE ("a" = $3 OR "b" = $4) AND ("order" = $5 AND "line" = $6) AND "fence" <= $7"#,
            "UPDATE `shop`.`lines` SET `n` = ?, `fence` = ? WHERE (`a` = ? OR `b` = ?) AND (`order` = ? AND `line` = ?) AND `fence` <= ?",
            r#"UPDATE "shop"."lines" SET "n" = ?, "fence" = ? WHERE ("a" = ? OR "b" = ?) AND ("order" = ? AND "line" = ?) AND "fence" <= ?"#,
        );
    }

    #[test]
    fn golden_sql_of_a_claim() {
        let columns = ReturningClause::Columns(vec!["balance".into_column_ref()]);
        check(
            |flavor| sql(flavor, &account().claim(flavor, token(), &columns)),
            r#"UPDATE "accounts" SET "fence_token" = $1 WHERE "id" = $2 AND "fence_token" <= $3 RETURNING "balance""#,
            "UPDATE `accounts` SET `fence_token` = ? WHERE `id` = ? AND `fence_token` <= ?",
            r#"UPDATE "accounts" SET "fence_token" = ? WHERE "id" = ? AND "fence_token" <= ? RETURNING "balance""#,
        );
        assert_eq!(
            sql(Flavor::MySql, &account().select_claimed(token(), &columns)),
            "SELECT `balance` FROM `accounts` WHERE `id` = ? AND `fence_token` = ?"
        );
    }

    #[test]
    fn golden_sql_of_an_insert() {
        let upsert = Upsert::new().value("owner", "ann").on_update("n", 2);
        check(
            |flavor| sql(flavor, &account().insert(flavor, token(), &upsert).unwrap()),
            r#"INSERT INTO "accounts" ("id", "owner", "fence_token") VALUES ($1, $2, $3) ON CONFLICT ("id") DO NOTHING RETURNING "fence_token""#,
            "INSERT INTO `accounts` (`id`, `owner`, `fence_token`) VALUES (?, ?, ?)",
            r#"INSERT INTO "accounts" ("id", "owner", "fence_token") VALUES (?, ?, ?) ON CONFLICT ("id") DO NOTHING RETURNING "fence_token""#,
        );
    }

    #[test]
    fn golden_sql_of_looking_and_deleting() {
        check(
            |flavor| sql(flavor, &account().lock()),
            r#"SELECT "fence_token" FROM "accounts" WHERE "id" = $1 FOR UPDATE"#,
            "SELECT `fence_token` FROM `accounts` WHERE `id` = ? FOR UPDATE",
            r#"SELECT "fence_token" FROM "accounts" WHERE "id" = ?"#,
        );
        check(
            |flavor| sql(flavor, &account().delete()),
            r#"DELETE FROM "accounts" WHERE "id" = $1"#,
            "DELETE FROM `accounts` WHERE `id` = ?",
            r#"DELETE FROM "accounts" WHERE "id" = ?"#,
        );
    }

    #[test]
    fn golden_sql_of_several_rows() {
        let rows = [account(), Row::new("accounts", "id", 43)];
        let rows: Vec<&Row> = rows.iter().collect();
        let update = Query::update().value("n", 1).to_owned();
        check(
            |flavor| sql(flavor, &Row::update_all(&rows, token(), &update).unwrap()),
            r#"UPDATE "accounts" SET "n" = $1, "fence_token" = $2 WHERE "id" IN ($3, $4) AND "fence_token" < $5"#,
            "UPDATE `accounts` SET `n` = ?, `fence_token` = ? WHERE `id` IN (?, ?) AND `fence_token` < ?",
            r#"UPDATE "accounts" SET "n" = ?, "fence_token" = ? WHERE "id" IN (?, ?) AND "fence_token" < ?"#,
        );
        check(
            |flavor| sql(flavor, &Row::delete_all(&rows)),
            r#"DELETE FROM "accounts" WHERE "id" IN ($1, $2)"#,
            "DELETE FROM `accounts` WHERE `id` IN (?, ?)",
            r#"DELETE FROM "accounts" WHERE "id" IN (?, ?)"#,
        );
        check(
            |flavor| sql(flavor, &Row::condemn_all(&rows, token())),
            r#"UPDATE "accounts" SET "fence_token" = $1 WHERE "id" IN ($2, $3)"#,
            "UPDATE `accounts` SET `fence_token` = ? WHERE `id` IN (?, ?)",
            r#"UPDATE "accounts" SET "fence_token" = ? WHERE "id" IN (?, ?)"#,
        );
        check(
            |flavor| sql(flavor, &Row::lock_all(&rows)),
            r#"SELECT (CASE WHEN ("id" = $1) THEN $2 WHEN ("id" = $3) THEN $4 END), "fence_token" FROM "accounts" WHERE "id" IN ($5, $6) ORDER BY "id" ASC FOR UPDATE"#,
            "SELECT (CASE WHEN (`id` = ?) THEN ? WHEN (`id` = ?) THEN ? END), `fence_token` FROM `accounts` WHERE `id` IN (?, ?) ORDER BY `id` ASC FOR UPDATE",
            r#"SELECT (CASE WHEN ("id" = ?) THEN ? WHEN ("id" = ?) THEN ? END), "fence_token" FROM "accounts" WHERE "id" IN (?, ?) ORDER BY "id" ASC"#,
        );
        let upsert = Upsert::new().value("owner", "ann");
        check(
            |flavor| sql(flavor, &Row::insert_all(flavor, token(), &[(rows[0], &upsert), (rows[1], &upsert)]).unwrap()),
            r#"INSERT INTO "accounts" ("id", "owner", "fence_token") VALUES ($1, $2, $3), ($4, $5, $6) ON CONFLICT ("id") DO NOTHING RETURNING "fence_token""#,
            "INSERT INTO `accounts` (`id`, `owner`, `fence_token`) VALUES (?, ?, ?), (?, ?, ?)",
            r#"INSERT INTO "accounts" ("id", "owner", "fence_token") VALUES (?, ?, ?), (?, ?, ?) ON CONFLICT ("id") DO NOTHING RETURNING "fence_token""#,
        );
        let lines = [account().and("line", 1), account().and("line", 2)];
        let lines: Vec<&Row> = lines.iter().collect();
        check(
            |flavor| sql(flavor, &Row::delete_all(&lines)),
            r#"DELETE FROM "accounts" WHERE ("id" = $1 AND "line" = $2) OR ("id" = $3 AND "line" = $4)"#,
            "DELETE FROM `accounts` WHERE (`id` = ? AND `line` = ?) OR (`id` = ? AND `line` = ?)",
            r#"DELETE FROM "accounts" WHERE ("id" = ? AND "line" = ?) OR ("id" = ? AND "line" = ?)"#,
        );
    }

    #[test]
    fn the_fence_decides_by_the_number_alone() {
        let check = |row: &Row, fence, expected| assert_eq!(row.judge(token(), fence), expected, "{fence}");
        let strict = account();
        check(&strict, 0, Judgement::Passes);
        check(&strict, TOKEN - 1, Judgement::Passes);
        check(&strict, TOKEN, Judgement::AlreadyWritten);
        check(&strict, TOKEN + 1, Judgement::Stale);
        let rewriting = account().may_rewrite();
        check(&rewriting, TOKEN - 1, Judgement::Passes);
        check(&rewriting, TOKEN, Judgement::Passes);
        check(&rewriting, TOKEN + 1, Judgement::Stale);
    }

    #[test]
    fn a_statement_that_sets_the_fence_itself_is_refused() {
        let update = Query::update().value("Fence_Token", 99).to_owned();
        let refused = account().update(token(), &update);
        assert!(matches!(refused, Err(FenceError::Statement(StatementProblem::SetsTheFence { .. }))));
        let upsert = Upsert::new().on_insert("fence_token", 99);
        assert!(account().insert(Flavor::Postgres, token(), &upsert).is_err());
    }

    #[test]
    fn a_statement_that_would_walk_around_the_fence_is_refused() {
        let problem = |statement: &mut UpdateStatement| match account().update(token(), statement) {
            Err(FenceError::Statement(problem)) => problem,
            other => panic!("{other:?}"),
        };
        let update = || Query::update().value("n", 1).to_owned();
        let column = || "Id".to_owned();
        assert_eq!(problem(update().value("Id", 2)), StatementProblem::SetsTheKey { column: column() });
        let table = || "accounts".to_owned();
        assert_eq!(problem(update().table("other")), StatementProblem::AnotherTable { table: table() });
        assert_eq!(problem(update().table(("s", "accounts"))), StatementProblem::AnotherTable { table: table() });
        let with = CommonTableExpression::new().query(Query::select().expr(1).take()).table_name("w").to_owned();
        assert_eq!(problem(update().with_cte(WithClause::new().cte(with).to_owned())), StatementProblem::With);
        let chained = LogicalChainOper::Or(Expr::col("n").eq(0));
        assert_eq!(problem(update().and_or_where(chained)), StatementProblem::ChainedCondition);

        for mut returning in [update().returning_all().take(), update().returning_col("n").take()] {
            assert_eq!(problem(&mut returning), StatementProblem::Returning);
        }

        assert!(account().update(token(), update().table("accounts")).is_ok());
        assert!(account().update(token(), update().value("note", "Chain").and_where(Expr::col("n").eq(0))).is_ok());
        for upsert in [Upsert::new().value("id", 2), Upsert::new().on_insert("id", 2), Upsert::new().on_update("id", 2)]
        {
            assert!(account().insert(Flavor::Postgres, token(), &upsert).is_err(), "{upsert:?}");
        }
        for row in [Row::new("accounts", "id", None::<i64>), account().and("line", None::<String>)] {
            assert!(matches!(
                row.update(token(), &update()),
                Err(FenceError::Statement(StatementProblem::NullInKey { .. }))
            ));
        }
    }

    #[test]
    fn b57_an_unsigned_value_that_does_not_fit_is_refused_where_it_would_panic() {
        let update = Query::update().value("n", u64::MAX).to_owned();
        for flavor in [Flavor::Postgres, Flavor::Sqlite] {
            assert!(matches!(
                flavor.render(&update),
                Err(FenceError::Statement(StatementProblem::UnsignedTooLarge { value: u64::MAX }))
            ));
        }
        assert!(Flavor::MySql.render(&update).is_ok());
    }
}
