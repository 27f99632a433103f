//! The database that has the last word: account 42 in a table of the demo's own, behind a fence.
//!
//! The story uses [`Accounts`] and does not know which of the three databases it is on. What is fenced goes through
//! `fence-store`; the few statements around it (make the tables, look, remove them) are plain.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use fence_store::{Claim, Dialect, FenceError, FenceStore, Flavor, LedgerTable, Row};
use redlock_core::Grant;
use sea_query::{
    ColumnDef, Expr, ExprTrait, MysqlQueryBuilder, PostgresQueryBuilder, Query, SqliteQueryBuilder, Table,
};
use serde::{Deserialize, Serialize};
use sqlx::pool::PoolOptions;
use sqlx::{Executor, Pool};

use crate::address::shown;

/// The account that everybody writes to.
pub(crate) const ACCOUNT: i64 = 42;

/// What is on it at first.
pub(crate) const OPENING_BALANCE: i64 = 100;

/// The longest wait for a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// Where the account is, as it travels to the other process; the URL may hold a password, so it has no `Debug`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) accounts: String,
    pub(crate) ledger: String,
}

impl Place {
    /// Tables with names of this run, in the database that was given or in a file.
    pub(crate) fn new(given: Option<&str>, folder: &Path, run: &str) -> Result<Self> {
        let url = match given {
            Some(url) => made_if_missing(url),
            None => made_if_missing(&format!("sqlite:{}", folder.join("accounts.db").display())),
        };
        let in_memory = url.contains(":memory:") || url.contains("mode=memory");
        ensure!(!in_memory, "two processes cannot share a database in memory; give a file to sqlite:");
        Ok(Self { url, accounts: format!("redlock_demo_accounts_{run}"), ledger: format!("redlock_demo_ledger_{run}") })
    }

    pub(crate) async fn connect(&self) -> Result<Box<dyn Accounts>> {
        let scheme = self.url.split(':').next().unwrap_or_default();
        let accounts: Result<Box<dyn Accounts>> = match scheme {
            "postgres" | "postgresql" => Table42::<sqlx::Postgres>::connect(self).await,
            "mysql" | "mariadb" => Table42::<sqlx::MySql>::connect(self).await,
            "sqlite" => Table42::<sqlx::Sqlite>::connect(self).await,
            _ => bail!("the database must be postgres://…, mysql://… (also MariaDB) or sqlite:<file>"),
        };
        accounts.with_context(|| format!("the database at {}", shown(&self.url)))
    }
}

/// Lets SQLite make a file that is not there, unless the URL says how it is to be opened.
fn made_if_missing(url: &str) -> String {
    if !url.starts_with("sqlite:") || url.contains("mode=") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}mode=rwc")
}

/// A table of accounts, on any of the databases.
#[async_trait]
pub(crate) trait Accounts: Send + Sync {
    fn flavor(&self) -> Flavor;

    /// Makes the tables and opens the account.
    async fn open(&self) -> Result<()>;

    /// Makes sure that the table is there and fit, so that the first claim need not.
    async fn warm_up(&self) -> Result<()>;

    /// Raises the account's fence to the grant's token and reads its balance.
    async fn claim(&self, grant: &Grant) -> Result<Box<dyn Claimed>, FenceError>;

    /// The balance now, without any fence.
    async fn balance(&self) -> Result<i64>;

    /// The highest token that the account has accepted.
    async fn fence(&self) -> Result<i64>;

    /// Removes the tables.
    async fn remove(&self) -> Result<()>;
}

/// An account that was claimed.
#[async_trait]
pub(crate) trait Claimed: Send + Sync {
    /// What was on it then.
    fn balance(&self) -> i64;

    /// Writes a new balance, unless a newer holder was there.
    async fn write(&self, balance: i64) -> Result<(), FenceError>;
}

struct Table42<DB: Plain> {
    store: FenceStore<DB>,
    table: String,
    ledger: String,
}

impl<DB: Plain> Table42<DB> {
    async fn connect(place: &Place) -> Result<Box<dyn Accounts>> {
        let options = PoolOptions::new().max_connections(2).acquire_timeout(CONNECT_PATIENCE);
        let pool = options.connect(&place.url).await?;
        let store = FenceStore::with_ledger(pool, LedgerTable::new(&place.ledger)?);
        Ok(Box::new(Self { store, table: place.accounts.clone(), ledger: place.ledger.clone() }))
    }

    fn row(&self) -> Row {
        Row::new(self.table.clone(), "id", ACCOUNT)
    }

    async fn run(&self, sql: String) -> Result<()> {
        Ok(DB::run(self.store.pool(), sql).await?)
    }
}

/// A sea-query statement as text of the database at hand; all values are constants of this file.
macro_rules! text {
    ($statement:expr) => {
        match DB::FLAVOR {
            Flavor::Postgres => $statement.to_string(PostgresQueryBuilder),
            Flavor::MySql => $statement.to_string(MysqlQueryBuilder),
            _ => $statement.to_string(SqliteQueryBuilder),
        }
    };
}

#[async_trait]
impl<DB: Plain> Accounts for Table42<DB> {
    fn flavor(&self) -> Flavor {
        DB::FLAVOR
    }

    async fn open(&self) -> Result<()> {
        let create = Table::create()
            .table(self.table.clone())
            .col(ColumnDef::new("id").big_integer().not_null().primary_key())
            .col(ColumnDef::new("balance").big_integer().not_null())
            .col(ColumnDef::new("fence_token").big_integer().not_null().default(0))
            .to_owned();
        self.run(text!(create)).await?;
        self.store.install_schema().await?;
        let insert = Query::insert()
            .into_table(self.table.clone())
            .columns(["id", "balance"])
            .values_panic([ACCOUNT.into(), OPENING_BALANCE.into()])
            .to_owned();
        self.run(text!(insert)).await
    }

    async fn warm_up(&self) -> Result<()> {
        self.fence().await.map(drop)
    }

    async fn claim(&self, grant: &Grant) -> Result<Box<dyn Claimed>, FenceError> {
        let claim = self.store.claim(grant, &self.row(), ["balance"]).await?;
        let balance = DB::balance(&claim)?;
        Ok(Box::new(ClaimedRow { claim, balance }))
    }

    async fn balance(&self) -> Result<i64> {
        let account = Expr::col("id").eq(ACCOUNT);
        let select = Query::select().column("balance").from(self.table.clone()).and_where(account).to_owned();
        Ok(DB::number(self.store.pool(), text!(select)).await?)
    }

    async fn fence(&self) -> Result<i64> {
        self.store.fence_of(&self.row()).await?.context("the account is not there")
    }

    async fn remove(&self) -> Result<()> {
        for table in [&self.table, &self.ledger] {
            let drop = Table::drop().table(table.clone()).if_exists().to_owned();
            self.run(text!(drop)).await?;
        }
        self.store.pool().close().await;
        Ok(())
    }
}

struct ClaimedRow<DB: Plain> {
    claim: Claim<DB>,
    balance: i64,
}

#[async_trait]
impl<DB: Plain> Claimed for ClaimedRow<DB> {
    fn balance(&self) -> i64 {
        self.balance
    }

    async fn write(&self, balance: i64) -> Result<(), FenceError> {
        self.claim.update(Query::update().value("balance", balance)).await.map(drop)
    }
}

/// Statements without a fence, as sqlx runs them on each database.
trait Plain: Dialect {
    fn run(pool: &Pool<Self>, sql: String) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn number(pool: &Pool<Self>, sql: String) -> impl Future<Output = sqlx::Result<i64>> + Send;
    fn balance(claim: &Claim<Self>) -> Result<i64, FenceError>;
}

macro_rules! plain {
    ($($database:ty),*) => {$(
        impl Plain for $database {
            async fn run(pool: &Pool<Self>, sql: String) -> sqlx::Result<()> {
                // Made by sea-query, of constants and of table names of this file.
                pool.execute(sqlx::AssertSqlSafe(sql)).await.map(drop)
            }

            async fn number(pool: &Pool<Self>, sql: String) -> sqlx::Result<i64> {
                sqlx::Row::try_get(&pool.fetch_one(sqlx::AssertSqlSafe(sql)).await?, 0)
            }

            fn balance(claim: &Claim<Self>) -> Result<i64, FenceError> {
                claim.get("balance")
            }
        }
    )*};
}

plain!(sqlx::Postgres, sqlx::MySql, sqlx::Sqlite);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_made_unless_the_url_says_otherwise() {
        assert_eq!(made_if_missing("sqlite:new.db"), "sqlite:new.db?mode=rwc");
        assert_eq!(made_if_missing("sqlite:///new.db?cache=private"), "sqlite:///new.db?cache=private&mode=rwc");
        assert_eq!(made_if_missing("sqlite:old.db?mode=rw"), "sqlite:old.db?mode=rw");
        assert_eq!(made_if_missing("postgres://shop@db/shop"), "postgres://shop@db/shop");
    }
}
