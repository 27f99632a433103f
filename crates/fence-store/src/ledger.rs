//! Raises a resource's ledger row to a token, or finds that the token is stale.
//!
//! The row stays locked until the transaction ends, and that is the fence: who holds it may read and write anything, and
//! whoever comes with a lower token is turned away before it could run a statement. The raise is a statement of its own,
//! never part of the work's: one statement sees one snapshot, taken before the lock was won.

use redlock_core::{FencingToken, Resource, Resources};
use sea_query::{
    Alias, Expr, ExprTrait, InsertStatement, LockType, OnConflict, Order, Query, SelectStatement, TableName, Value,
};

use crate::dialect::{Dialect, Flavor, Rendered};
use crate::error::{FenceError, StatementProblem};
use crate::lease::Lease;
use crate::schema::{LedgerTable, RAISED_AT, RESOURCE, TOKEN, TRANSACTION_ID};

/// Marks are counted round this, 2^62: two of them can be added without leaving the signed 64-bit integers.
const MARKS: i64 = 1 << 62;

/// A random number by which a transaction finds its own mark in the ledger again; never 0, the mark of a row without one.
pub(crate) fn new_transaction_id() -> i64 {
    let random = getrandom::u64().expect("the system has randomness");
    i64::try_from(random >> 2 | 1).expect("62 bits fit")
}

/// What the ledger says about a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) token: i64,
    pub(crate) mark: i64,
}

/// The marks in a resource's ledger row before a transaction raised it and after.
///
/// The raise adds the transaction's random number to the mark that it finds, so that one statement both leaves a new mark
/// and tells the old one, which no database returns on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) before: i64,
    pub(crate) own: i64,
}

impl Marks {
    /// From the mark that was left, and what was added to it.
    fn new(own: i64, added: i64) -> Self {
        let own = own.rem_euclid(MARKS);
        Self { before: (own - added).rem_euclid(MARKS), own }
    }
}

/// Raises every resource to the token and keeps the rows locked; `Stale` if one of them is higher already. The marks are
/// those of the first resource.
///
/// One statement for all. Resources come sorted, and the database takes the rows one after the other, so two grants that
/// share some of them meet at the first and cannot dead-lock.
pub(crate) async fn raise<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    resources: &Resources,
    token: FencingToken,
    transaction_id: i64,
) -> Result<Marks, FenceError> {
    let statement = raise_statement(DB::FLAVOR, ledger, resources, token, transaction_id)?;
    let read = read_all_statement(DB::FLAVOR, ledger, resources)?;
    let entries = if DB::FLAVOR == Flavor::MySql {
        // Its upsert has no condition and counts a refusal as a hit, so the rows, which are locked now, are read back: by a
        // second statement in the same text. Its values are numbers and bytes, which sea-query writes as such.
        let both = [DB::FLAVOR.text(&statement), DB::FLAVOR.text(&read)].join("; ");
        lease.fetch_all(sqlx::AssertSqlSafe(both)).await
    } else {
        let raised = lease.fetch_all(DB::query(DB::FLAVOR.render(&statement)?)).await;
        let raised = raised.map_err(FenceError::of_statement)?;
        if raised.len() == resources.len() {
            for row in &raised {
                let name = DB::text(row, 0).map_err(|source| FenceError::Database { source })?;
                if name.as_deref() == Some(first(resources).name()) {
                    return Ok(Marks::new(integer::<DB>(row, 1)?, transaction_id));
                }
            }
        }
        // Not all were raised; all are locked.
        lease.fetch_all(DB::query(DB::FLAVOR.render(&read)?)).await
    };
    let entries = entries.map_err(FenceError::of_statement)?;
    if entries.len() != resources.len() {
        return Err(FenceError::conflict("a ledger row was deleted while it was being raised"));
    }
    let mut marks = None;
    for (row, resource) in entries.iter().zip(resources) {
        match integer::<DB>(row, 0)? {
            highest if highest == token.get() || mutant!("a stale token passes the ledger") => {
                marks.get_or_insert(Marks::new(integer::<DB>(row, 1)?, transaction_id));
            }
            highest => return Err(stale(token, highest, resource)),
        }
    }
    Ok(marks.expect("a grant has at least one resource"))
}

/// The resource by whose row a transaction is found again.
pub(crate) fn first(resources: &Resources) -> &Resource {
    resources.iter().next().expect("a grant has at least one resource")
}

/// The highest token that the ledger knows for any of the resources, without waiting for anybody.
pub(crate) async fn highest<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
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
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    resource: &Resource,
    own_transaction_id: i64,
) -> Result<Option<Entry>, FenceError> {
    let statement = wait_statement(DB::FLAVOR, ledger, resource, own_transaction_id)?;
    lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    let entry = locked_entry(lease, ledger, resource).await?;
    Ok(entry.filter(|entry| entry.mark != own_transaction_id))
}

pub(crate) fn stale(presented: FencingToken, highest: i64, resource: &Resource) -> FenceError {
    FenceError::Stale { presented, highest, target: format!("the ledger of {:?}", resource.name()) }
}

async fn locked_entry<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    resource: &Resource,
) -> Result<Option<Entry>, FenceError> {
    let mut statement = read_statement(DB::FLAVOR, ledger, resource)?;
    statement.lock(LockType::Update);
    let row =
        lease.fetch_optional(DB::query(DB::FLAVOR.render(&statement)?)).await.map_err(FenceError::of_statement)?;
    row.map(|row| Ok(Entry { token: integer::<DB>(&row, 0)?, mark: integer::<DB>(&row, 1)?.rem_euclid(MARKS) }))
        .transpose()
}

fn integer<DB: Dialect>(row: &DB::Row, index: usize) -> Result<i64, FenceError> {
    let value = DB::integer(row, index).map_err(|source| FenceError::Database { source })?;
    value.ok_or_else(|| FenceError::conflict("the ledger holds NULL in place of a number"))
}

/// One statement that inserts each row or raises it, and locks it either way.
///
/// Postgres: `ON CONFLICT` waits for a concurrent insertion instead of failing, so there is no window between "is there a
/// row?" and "insert it"; it locks the row before it evaluates `WHERE`, on the row's newest version. SQLite: the write
/// lock is held since `BEGIN IMMEDIATE`. Both answer with those rows only whose token was not higher.
///
/// MySQL: `ON DUPLICATE KEY UPDATE` takes an exclusive lock on the row it finds, on its newest version whatever the
/// transaction's snapshot is. It assigns from left to right, so the token, which the others look at, comes last.
fn raise_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resources: &Resources,
    token: FencingToken,
    transaction_id: i64,
) -> Result<InsertStatement, FenceError> {
    let mut statement = insert_statement(flavor, ledger, resources, token.get(), transaction_id)?;
    if flavor == Flavor::MySql {
        let unless_stale = |text: &'static str| Expr::cust(text);
        statement.on_conflict(
            OnConflict::new()
                .values([
                    (
                        TRANSACTION_ID,
                        unless_stale(
                            "IF(`token` <= VALUES(`token`), (`transaction_id` % 4611686018427387904 \
                             + VALUES(`transaction_id`)) % 4611686018427387904, `transaction_id`)",
                        ),
                    ),
                    (RAISED_AT, unless_stale("IF(`token` <= VALUES(`token`), VALUES(`raised_at`), `raised_at`)")),
                    (TOKEN, unless_stale("GREATEST(`token`, VALUES(`token`))")),
                ])
                .to_owned(),
        );
    } else {
        let TableName(_, table) = ledger.table_name();
        let old = |column: &'static str| Expr::col((table.clone(), column));
        let new = |column: &'static str| Expr::col((Alias::new("excluded"), Alias::new(column)));
        let round = || Expr::cust("4611686018427387904");
        let mark = old(TRANSACTION_ID).modulo(round()).add(new(TRANSACTION_ID)).modulo(round());
        statement
            .on_conflict(
                OnConflict::column(RESOURCE)
                    .update_columns([TOKEN, RAISED_AT])
                    .value(TRANSACTION_ID, mark)
                    .action_and_where(old(TOKEN).lte(new(TOKEN)))
                    .to_owned(),
            )
            .returning(Query::returning().columns([RESOURCE, TRANSACTION_ID]));
    }
    Ok(statement)
}

/// Locks the row as [`raise_statement`] does, and changes nothing in a row that is there.
fn wait_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resource: &Resource,
    own_transaction_id: i64,
) -> Result<Rendered, FenceError> {
    let resources = resource.clone().into();
    let mut statement = insert_statement(flavor, ledger, &resources, FencingToken::MIN.get(), own_transaction_id)?;
    statement.on_conflict(OnConflict::column(RESOURCE).update_column(RESOURCE).to_owned());
    flavor.render(&statement)
}

fn insert_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resources: &Resources,
    token: i64,
    transaction_id: i64,
) -> Result<InsertStatement, FenceError> {
    let now = match flavor {
        Flavor::MySql => Expr::cust("CURRENT_TIMESTAMP(6)"),
        Flavor::Postgres | Flavor::Sqlite => Expr::current_timestamp(),
    };
    let mut statement = Query::insert();
    statement.into_table(ledger.table_name()).columns([RESOURCE, TOKEN, TRANSACTION_ID, RAISED_AT]);
    for resource in resources {
        let name = Expr::value(resource_value(flavor, resource)?);
        statement.values_panic([name, token.into(), transaction_id.into(), now.clone()]);
    }
    Ok(statement)
}

/// Reads the rows of all resources under lock, in the resources' own order, which is that of their bytes.
fn read_all_statement(
    flavor: Flavor,
    ledger: &LedgerTable,
    resources: &Resources,
) -> Result<SelectStatement, FenceError> {
    let names: Result<Vec<Value>, _> = resources.iter().map(|resource| resource_value(flavor, resource)).collect();
    Ok(Query::select()
        .columns([TOKEN, TRANSACTION_ID])
        .from(ledger.table_name())
        .and_where(Expr::col(RESOURCE).is_in(names?))
        .order_by(RESOURCE, Order::Asc)
        .lock(LockType::Update)
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
        let raise = |flavor: Flavor| {
            flavor.render(&raise_statement(flavor, &ledger, &resource.clone().into(), FencingToken::MAX, 5).unwrap())
        };
        check(
            raise(Flavor::Postgres),
            r#"INSERT INTO "fence_ledger" ("resource", "token", "transaction_id", "raised_at") VALUES ($1, $2, $3, CURRENT_TIMESTAMP) ON CONFLICT ("resource") DO UPDATE SET "token" = "excluded"."token", "raised_at" = "excluded"."raised_at", "transaction_id" = (("fence_ledger"."transaction_id" % (4611686018427387904)) + "excluded"."transaction_id") % (4611686018427387904) WHERE "fence_ledger"."token" <= "excluded"."token" RETURNING "resource", "transaction_id""#,
        );
        check(
            raise(Flavor::MySql),
            "INSERT INTO `fence_ledger` (`resource`, `token`, `transaction_id`, `raised_at`) VALUES (?, ?, ?, CURRENT_TIMESTAMP(6)) ON DUPLICATE KEY UPDATE `transaction_id` = IF(`token` <= VALUES(`token`), (`transaction_id` % 4611686018427387904 + VALUES(`transaction_id`)) % 4611686018427387904, `transaction_id`), `raised_at` = IF(`token` <= VALUES(`token`), VALUES(`raised_at`), `raised_at`), `token` = GREATEST(`token`, VALUES(`token`))",
        );
        check(
            raise(Flavor::Sqlite),
            r#"INSERT INTO "fence_ledger" ("resource", "token", "transaction_id", "raised_at") VALUES (?, ?, ?, CURRENT_TIMESTAMP) ON CONFLICT ("resource") DO UPDATE SET "token" = "excluded"."token", "raised_at" = "excluded"."raised_at", "transaction_id" = (("fence_ledger"."transaction_id" % (4611686018427387904)) + "excluded"."transaction_id") % (4611686018427387904) WHERE "fence_ledger"."token" <= "excluded"."token" RETURNING "resource", "transaction_id""#,
        );
    }

    #[test]
    fn golden_sql_of_raising_several() {
        let resources = Resources::new(["b", "a"].map(|name| Resource::new(name).unwrap())).unwrap();
        for (flavor, expected) in [
            (Flavor::Postgres, "VALUES ($1, $2, $3, CURRENT_TIMESTAMP), ($4, $5, $6, CURRENT_TIMESTAMP) ON"),
            (Flavor::MySql, "VALUES (?, ?, ?, CURRENT_TIMESTAMP(6)), (?, ?, ?, CURRENT_TIMESTAMP(6)) ON"),
            (Flavor::Sqlite, "VALUES (?, ?, ?, CURRENT_TIMESTAMP), (?, ?, ?, CURRENT_TIMESTAMP) ON"),
        ] {
            let raise = raise_statement(flavor, &LedgerTable::default(), &resources, FencingToken::MIN, 5).unwrap();
            let raise = flavor.render(&raise).unwrap();
            assert!(raise.sql.contains(expected), "{}", raise.sql);
            // In one order, whatever the order was in which they were asked for.
            let first = resource_value(flavor, &Resource::new("a").unwrap()).unwrap();
            assert_eq!(raise.values.0[0], first);
        }
    }

    /// The one text that is not sent with its values apart: they are numbers and bytes, and nothing ends one but its quote.
    #[test]
    fn golden_sql_of_reading_back_what_was_raised() {
        let ledger = LedgerTable::default();
        let resources = Resources::new(["b'; --", "a"].map(|name| Resource::new(name).unwrap())).unwrap();
        let read = |flavor: Flavor| flavor.render(&read_all_statement(flavor, &ledger, &resources).unwrap());
        check(
            read(Flavor::Postgres),
            r#"SELECT "token", "transaction_id" FROM "fence_ledger" WHERE "resource" IN ($1, $2) ORDER BY "resource" ASC FOR UPDATE"#,
        );
        check(
            read(Flavor::Sqlite),
            r#"SELECT "token", "transaction_id" FROM "fence_ledger" WHERE "resource" IN (?, ?) ORDER BY "resource" ASC"#,
        );
        assert_eq!(
            Flavor::MySql.text(&read_all_statement(Flavor::MySql, &ledger, &resources).unwrap()),
            "SELECT `token`, `transaction_id` FROM `fence_ledger` WHERE `resource` IN (x'61', x'62273B202D2D') ORDER BY `resource` ASC FOR UPDATE"
        );
        let raise = raise_statement(Flavor::MySql, &ledger, &resources, FencingToken::MIN, 5).unwrap();
        let raise = Flavor::MySql.text(&raise);
        let values = "VALUES (x'61', 1, 5, CURRENT_TIMESTAMP(6)), (x'62273B202D2D', 1, 5, CURRENT_TIMESTAMP(6)) ON";
        assert!(raise.contains(values), "{raise}");
    }

    #[test]
    fn a_mark_tells_the_one_before_it() {
        for (before, added) in [(0, 1), (5, 7), (MARKS - 1, 1), (MARKS - 1, MARKS - 1), (1, MARKS - 1)] {
            let own = (before + added) % MARKS;
            assert_eq!(Marks::new(own, added), Marks { before, own }, "{before} + {added}");
        }
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
