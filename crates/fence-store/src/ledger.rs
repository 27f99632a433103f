//! Raises a resource's ledger row to a token, or finds that the token is stale.
//!
//! The row stays locked until the transaction ends, and that is the fence: who holds it may read and write anything, and
//! whoever comes with a lower token is turned away before it could run a statement. The raise is a statement of its own,
//! never part of the work's: one statement sees one snapshot, taken before the lock was won.

use redlock_core::{FencingToken, Resource, Resources};
use sea_query::{
    Alias, Expr, ExprTrait, InsertStatement, LockType, OnConflict, Query, SelectStatement, TableName, Value,
};

use crate::dialect::{Dialect, Flavor, Rendered};
use crate::error::{FenceError, StatementProblem};
use crate::lease::Lease;
use crate::schema::{LedgerTable, RAISED_AT, RESOURCE, TOKEN, TRANSACTION_ID};

/// A number by which a transaction finds its own mark in the ledger again.
pub(crate) fn new_transaction_id() -> i64 {
    let random = getrandom::u64().expect("the system has randomness");
    // One bit less, to stay within the positive numbers.
    i64::try_from(random >> 1).expect("63 bits fit")
}

/// What the ledger says about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: i64,
    pub(crate) transaction_id: i64,
}

/// Raises every resource to the token and keeps the rows locked; `Stale` if one of them is higher already.
///
/// Resources come sorted, so two grants that share some of them meet at the first and cannot dead-lock.
pub(crate) async fn raise<DB: Dialect>(
    lease: &mut Lease<DB>,
    ledger: &LedgerTable,
    resources: &Resources,
    token: FencingToken,
    transaction_id: i64,
) -> Result<(), FenceError> {
    for resource in resources {
        let statement = raise_statement(DB::FLAVOR, ledger, resource, token, transaction_id)?;
        let raised = if DB::FLAVOR == Flavor::MySql {
            // Its upsert has no condition and counts a refusal as a hit, so the row, which is locked now, is read back.
            lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)?;
            locked_entry(lease, ledger, resource).await?
        } else {
            let row = lease.fetch_optional(DB::query(statement)).await.map_err(FenceError::of_statement)?;
            match row {
                Some(_) => continue,
                // Not raised; locked all the same.
                None => locked_entry(lease, ledger, resource).await?,
            }
        };
        match raised {
            Some(entry) if entry.token == token.get() => {}
            Some(entry) => return Err(stale(token, entry.token, resource)),
            None => {
                return Err(FenceError::conflict("the ledger row was deleted while it was being raised"));
            }
        }
    }
    Ok(())
}

/// The highest token that the ledger knows for any of the resources, without waiting for anybody.
pub(crate) async fn highest<DB: Dialect>(
    lease: &mut Lease<DB>,
    ledger: &LedgerTable,
    resources: &Resources,
) -> Result<Option<(i64, Resource)>, FenceError> {
    let mut highest: Option<(i64, Resource)> = None;
    for resource in resources {
        let statement = read_statement(DB::FLAVOR, ledger, resource)?;
        let row =
            lease.fetch_optional(DB::query(DB::FLAVOR.render(&statement)?)).await.map_err(FenceError::of_statement)?;
        let token = row.map(|row| integer::<DB>(&row, 0)).transpose()?;
        if let Some(token) = token.filter(|token| highest.as_ref().is_none_or(|(known, _)| known < token)) {
            highest = Some((token, resource.clone()));
        }
    }
    Ok(highest)
}

/// Waits until no transaction that raised the resource is open any more, and reads what the last one left.
///
/// Writes a row of its own where there is none, for only that waits for an insertion which has not been committed; the
/// caller rolls back.
pub(crate) async fn entry_after_others<DB: Dialect>(
    lease: &mut Lease<DB>,
    ledger: &LedgerTable,
    resource: &Resource,
    own_transaction_id: i64,
) -> Result<Option<Entry>, FenceError> {
    let statement = wait_statement(DB::FLAVOR, ledger, resource, own_transaction_id)?;
    lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    let entry = locked_entry(lease, ledger, resource).await?;
    Ok(entry.filter(|entry| entry.transaction_id != own_transaction_id))
}

pub(crate) fn stale(presented: FencingToken, highest: i64, resource: &Resource) -> FenceError {
    FenceError::Stale { presented, highest, target: format!("the ledger of {:?}", resource.name()) }
}

async fn locked_entry<DB: Dialect>(
    lease: &mut Lease<DB>,
    ledger: &LedgerTable,
    resource: &Resource,
) -> Result<Option<Entry>, FenceError> {
    let mut statement = read_statement(DB::FLAVOR, ledger, resource)?;
    statement.lock(LockType::Update);
    let row =
        lease.fetch_optional(DB::query(DB::FLAVOR.render(&statement)?)).await.map_err(FenceError::of_statement)?;
    row.map(|row| Ok(Entry { token: integer::<DB>(&row, 0)?, transaction_id: integer::<DB>(&row, 1)? })).transpose()
}

fn integer<DB: Dialect>(row: &DB::Row, index: usize) -> Result<i64, FenceError> {
    let value = DB::integer(row, index).map_err(|source| FenceError::Database { source })?;
    value.ok_or_else(|| FenceError::conflict("the ledger holds NULL in place of a number"))
}

/// One statement that inserts the row or raises it, and locks it either way.
///
/// Postgres: `ON CONFLICT` waits for a concurrent insertion instead of failing, so there is no window between "is there a
/// row?" and "insert it"; it locks the row before it evaluates `WHERE`, on the row's newest version. SQLite: the write
/// lock is held since `BEGIN IMMEDIATE`. Both answer with a row only if the token was not lower.
///
/// MySQL: `ON DUPLICATE KEY UPDATE` takes an exclusive lock on the row it finds, on its newest version whatever the
/// transaction's snapshot is. It assigns from left to right, so the token, which the others look at, comes last.
fn raise_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resource: &Resource,
    token: FencingToken,
    transaction_id: i64,
) -> Result<Rendered, FenceError> {
    let mut statement = insert_statement(flavor, ledger, resource, token.get(), transaction_id)?;
    if flavor == Flavor::MySql {
        let unless_stale = |text: &'static str| Expr::cust(text);
        statement.on_conflict(
            OnConflict::new()
                .values([
                    (
                        TRANSACTION_ID,
                        unless_stale("IF(`token` <= VALUES(`token`), VALUES(`transaction_id`), `transaction_id`)"),
                    ),
                    (RAISED_AT, unless_stale("IF(`token` <= VALUES(`token`), VALUES(`raised_at`), `raised_at`)")),
                    (TOKEN, unless_stale("GREATEST(`token`, VALUES(`token`))")),
                ])
                .to_owned(),
        );
    } else {
        let TableName(_, table) = ledger.table_name();
        statement
            .on_conflict(
                OnConflict::column(RESOURCE)
                    .update_columns([TOKEN, TRANSACTION_ID, RAISED_AT])
                    .action_and_where(
                        Expr::col((table, TOKEN)).lte(Expr::col((Alias::new("excluded"), Alias::new(TOKEN)))),
                    )
                    .to_owned(),
            )
            .returning_col(TOKEN);
    }
    flavor.render(&statement)
}

/// Locks the row as [`raise_statement`] does, and changes nothing in a row that is there.
fn wait_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resource: &Resource,
    own_transaction_id: i64,
) -> Result<Rendered, FenceError> {
    let mut statement = insert_statement(flavor, ledger, resource, FencingToken::MIN.get(), own_transaction_id)?;
    statement.on_conflict(OnConflict::column(RESOURCE).update_column(RESOURCE).to_owned());
    flavor.render(&statement)
}

fn insert_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resource: &Resource,
    token: i64,
    transaction_id: i64,
) -> Result<InsertStatement, FenceError> {
    let now = match flavor {
        Flavor::MySql => Expr::cust("CURRENT_TIMESTAMP(6)"),
        Flavor::Postgres | Flavor::Sqlite => Expr::current_timestamp(),
    };
    let values = [Expr::value(resource_value(flavor, resource)?), token.into(), transaction_id.into(), now];
    Ok(Query::insert()
        .into_table(ledger.table_name())
        .columns([RESOURCE, TOKEN, TRANSACTION_ID, RAISED_AT])
        .values_panic(values)
        .to_owned())
}

fn read_statement(flavor: Flavor, ledger: &LedgerTable, resource: &Resource) -> Result<SelectStatement, FenceError> {
    Ok(Query::select()
        .columns([TOKEN, TRANSACTION_ID])
        .from(ledger.table_name())
        .and_where(Expr::col(RESOURCE).eq(resource_value(flavor, resource)?))
        .to_owned())
}

/// A resource's name as the ledger keeps it: see [`LedgerTable::sql`] for why MySQL gets bytes.
fn resource_value(flavor: Flavor, resource: &Resource) -> Result<Value, FenceError> {
    let name = resource.name();
    match flavor {
        Flavor::MySql => Ok(name.as_bytes().to_vec().into()),
        Flavor::Postgres if name.contains('\0') => {
            Err(StatementProblem::NulInResource { resource: name.to_owned() }.into())
        }
        Flavor::Postgres | Flavor::Sqlite => Ok(name.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rendered: Result<Rendered, FenceError>, expected: &str) {
        // Without the names of the types, and the space that sea-query leaves where SQLite has no lock clause.
        let sql = rendered.unwrap().sql;
        assert_eq!(sql.split(" /*").next().unwrap().trim_end(), expected);
    }

    #[test]
    fn golden_sql_of_the_raise() {
        let (ledger, resource) = (LedgerTable::default(), Resource::new("orders/42").unwrap());
        let raise = |flavor| raise_statement(flavor, &ledger, &resource, FencingToken::MAX, 5);
        check(
            raise(Flavor::Postgres),
            r#"INSERT INTO "fence_ledger" ("resource", "token", "transaction_id", "raised_at") VALUES ($1, $2, $3, CURRENT_TIMESTAMP) ON CONFLICT ("resource") DO UPDATE SET "token" = "excluded"."token", "transaction_id" = "excluded"."transaction_id", "raised_at" = "excluded"."raised_at" WHERE "fence_ledger"."token" <= "excluded"."token" RETURNING "token""#,
        );
        check(
            raise(Flavor::MySql),
            "INSERT INTO `fence_ledger` (`resource`, `token`, `transaction_id`, `raised_at`) VALUES (?, ?, ?, CURRENT_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE `transaction_id` = IF(`token` <= VALUES(`token`), VALUES(`transaction_id`), `transaction_id`), `raised_at` = IF(`token` <= VALUES(`token`), VALUES(`raised_at`), `raised_at`), `token` = GREATEST(`token`, VALUES(`token`))",
        );
        check(
            raise(Flavor::Sqlite),
            r#"INSERT INTO "fence_ledger" ("resource", "token", "transaction_id", "raised_at") VALUES (?, ?, ?, CURRENT_TIMESTAMP) ON CONFLICT ("resource") DO UPDATE SET "token" = "excluded"."token", "transaction_id" = "excluded"."transaction_id", "raised_at" = "excluded"."raised_at" WHERE "fence_ledger"."token" <= "excluded"."token" RETURNING "token""#,
        );
    }

    #[test]
    fn golden_sql_of_waiting_and_reading() {
        let (ledger, resource) = (LedgerTable::new("app.ledger").unwrap(), Resource::new("a").unwrap());
        let wait = |flavor| wait_statement(flavor, &ledger, &resource, 5);
        check(
            wait(Flavor::Postgres),
            r#"INSERT INTO "app"."ledger" ("resource", "token", "transaction_id", "raised_at") VALUES ($1, $2, $3, CURRENT_TIMESTAMP) ON CONFLICT ("resource") DO UPDATE SET "resource" = "excluded"."resource""#,
        );
        check(
            wait(Flavor::MySql),
            "INSERT INTO `app`.`ledger` (`resource`, `token`, `transaction_id`, `raised_at`) VALUES (?, ?, ?, CURRENT_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE `resource` = VALUES(`resource`)",
        );
        let mut read = read_statement(Flavor::Postgres, &ledger, &resource).unwrap();
        read.lock(LockType::Update);
        check(
            Flavor::Postgres.render(&read),
            r#"SELECT "token", "transaction_id" FROM "app"."ledger" WHERE "resource" = $1 FOR UPDATE"#,
        );
        check(
            Flavor::Sqlite.render(&read),
            r#"SELECT "token", "transaction_id" FROM "app"."ledger" WHERE "resource" = ?"#,
        );
    }

    #[test]
    fn a_name_that_postgres_cannot_hold_is_refused_with_a_type() {
        let resource = Resource::new("a\0b").unwrap();
        assert!(matches!(
            resource_value(Flavor::Postgres, &resource),
            Err(FenceError::Statement(StatementProblem::NulInResource { .. }))
        ));
        assert!(resource_value(Flavor::MySql, &resource).is_ok());
        assert!(resource_value(Flavor::Sqlite, &resource).is_ok());
    }
}
