//! Where clients write, in whichever database: claim and read a number, then write the next one.
//!
//! Both forms of the fence that fence-store has for this: the ledger's row, and the row's own column. A trigger notes every
//! change of a number, with the token and the write it came from, in the same transaction; what the run is judged by is read
//! from there.
//!
//! Without the fence everything is the same, statements and transactions too, but each grant raises a ledger row of its own,
//! which refuses nobody: that is how a program writes that trusts its lock.

use anyhow::{Context, Result};
use fence_store::{Claim, Dialect, FenceError, FenceStore, Row};
use redlock_core::Grant;
use sea_query::{Expr, ExprTrait as _, Query};

use crate::fault::Database;
use crate::history::{Form, Order};

/// What the tables are called, in statements that sea-query builds.
const ACCOUNTS: &str = "accounts";

/// The tables and the trigger, statement by statement.
#[must_use]
pub fn schema(database: Database) -> &'static [&'static str] {
    const ACCOUNTS: &str = "CREATE TABLE accounts (id BIGINT NOT NULL PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, \
                            write_id BIGINT NOT NULL DEFAULT 0, fence_token BIGINT NOT NULL DEFAULT 0)";
    match database {
        Database::Postgres => &[
            ACCOUNTS,
            "CREATE TABLE kept (seq BIGSERIAL PRIMARY KEY, id BIGINT NOT NULL, token BIGINT NOT NULL, \
             write_id BIGINT NOT NULL, value BIGINT NOT NULL)",
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO kept (id, token, write_id, value) VALUES (NEW.id, NEW.fence_token, NEW.write_id, NEW.balance); \
             RETURN NULL; END $$",
            "CREATE TRIGGER keeps AFTER UPDATE ON accounts FOR EACH ROW WHEN (OLD.write_id <> NEW.write_id) \
             EXECUTE FUNCTION keep()",
        ],
        Database::MariaDb => &[
            ACCOUNTS,
            "CREATE TABLE kept (seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, id BIGINT NOT NULL, \
             token BIGINT NOT NULL, write_id BIGINT NOT NULL, value BIGINT NOT NULL)",
            "CREATE TRIGGER keeps AFTER UPDATE ON accounts FOR EACH ROW BEGIN IF OLD.write_id <> NEW.write_id THEN \
             INSERT INTO kept (id, token, write_id, value) VALUES (NEW.id, NEW.fence_token, NEW.write_id, NEW.balance); \
             END IF; END",
        ],
        Database::Sqlite => &[
            ACCOUNTS,
            "CREATE TABLE kept (seq INTEGER PRIMARY KEY AUTOINCREMENT, id BIGINT NOT NULL, token BIGINT NOT NULL, \
             write_id BIGINT NOT NULL, value BIGINT NOT NULL)",
            "CREATE TRIGGER keeps AFTER UPDATE ON accounts WHEN OLD.write_id <> NEW.write_id BEGIN \
             INSERT INTO kept (id, token, write_id, value) VALUES (NEW.id, NEW.fence_token, NEW.write_id, NEW.balance); \
             END",
        ],
    }
}

/// What a claim has read.
#[derive(Debug)]
pub(crate) struct Claimed<DB: Dialect> {
    /// The number that stood there when the fence had been raised.
    pub(crate) number: i64,
    claim: Option<Claim<DB>>,
}

/// Whom the fence knows the writer as: by the lock it holds or, without a fence, by a name that nobody else uses.
///
/// # Errors
/// If the name is none, which would be a mistake here.
pub(crate) fn presented(grant: &Grant, work: u64, fenced: bool) -> Result<Grant> {
    if fenced {
        return Ok(grant.clone());
    }
    Grant::assume_granted(format!("nobody else's/{work}"), grant.token().get()).context("no fence")
}

/// Raises the fence and reads the number.
///
/// # Errors
/// As fence-store has it.
///
/// # Cancel safety
/// The fence may or may not have been raised.
pub(crate) async fn claim<DB: Dialect>(
    store: &FenceStore<DB>,
    order: Order,
    grant: &Grant,
    fenced: bool,
) -> Result<Claimed<DB>, FenceError> {
    match order.form {
        Form::Row if fenced => {
            let claim = store.claim(grant, &Row::new(ACCOUNTS, "id", order.id), ["balance"]).await?;
            let number = DB::integer(claim.row(), 0)?.unwrap_or_default();
            Ok(Claimed { number, claim: Some(claim) })
        }
        _ => {
            let mut transaction = store.begin(grant).await?;
            let read = Query::select().column("balance").from(ACCOUNTS).and_where(Expr::col("id").eq(order.id)).take();
            let rows = transaction.read(&read).await?;
            let number = rows.first().map(|row| DB::integer(row, 0)).transpose()?.flatten().unwrap_or_default();
            transaction.commit().await?;
            Ok(Claimed { number, claim: None })
        }
    }
}

/// Writes the number that follows from the one that was read.
///
/// # Errors
/// As fence-store has it.
///
/// # Cancel safety
/// It may or may not have been written.
pub(crate) async fn write<DB: Dialect>(
    store: &FenceStore<DB>,
    order: Order,
    grant: &Grant,
    claimed: &Claimed<DB>,
    write: i64,
) -> Result<(), FenceError> {
    let mut update = Query::update();
    update.value("balance", claimed.number + 1).value("write_id", write);
    match &claimed.claim {
        Some(claim) => claim.update(&update).await.map(drop),
        None => {
            let mut transaction = store.begin(grant).await?;
            update.table(ACCOUNTS).value("fence_token", grant.token().get()).and_where(Expr::col("id").eq(order.id));
            transaction.run(&update).await?;
            transaction.commit().await
        }
    }
}
