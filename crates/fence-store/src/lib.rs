//! Fenced writes: the database refuses whoever no longer holds the lock.
//!
//! A lock reduces duplicate work; it cannot stop a holder that was paused past its time to live and wakes up believing.
//! The fencing token can: it grows with every grant, the database remembers the highest, and a write under a lower one is
//! refused. This crate does that for Postgres, MySQL or MariaDB, and SQLite, over sqlx pools and with sea-query statements.
//! It needs one durable primary: an asynchronous failover rewinds the fence along with the data.
//!
//! # Claim, read, write
//!
//! ```
//! # use redlock_core::Grant;
//! # #[cfg(feature = "sqlite")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use fence_store::{FenceError, FenceStore, Row};
//! use sea_query::{Expr, Query};
//!
//! # let (old_guard, new_guard) = (Grant::assume_granted("accounts/42", 33)?, Grant::assume_granted("accounts/42", 34)?);
//! let pool = sqlx::SqlitePool::connect("sqlite::memory:").await?;
//! sqlx::query("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER, fence_token BIGINT NOT NULL DEFAULT 0)")
//!     .execute(&pool)
//!     .await?;
//! sqlx::query("INSERT INTO accounts (id, balance) VALUES (42, 100)").execute(&pool).await?;
//!
//! let store = FenceStore::new(pool);
//! store.install_schema().await?;
//!
//! // The holder's guard lends its grant. The fence is raised before the balance is read.
//! let account = Row::new("accounts", "id", 42);
//! let claimed = store.claim(&new_guard, &account, ["balance"]).await?;
//! let balance: i64 = claimed.get("balance")?;
//! claimed.update(Query::update().value("balance", balance + 10)).await?;
//!
//! // An older holder wakes up.
//! let late = store.update(&old_guard, &account, Query::update().value("balance", 101)).await;
//! assert!(matches!(late, Err(FenceError::Stale { highest: 34, .. })));
//! # Ok(()) }
//! # #[cfg(feature = "sqlite")]
//! # tokio::runtime::Runtime::new().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Which form
//!
//! | what is written | form | protects |
//! |---|---|---|
//! | one row, from what was read in it | [`FenceStore::claim`], then [`Claim::update`] | that row, read to write |
//! | several rows or tables | [`FenceStore::run`], or [`begin`](FenceStore::begin), any statements, [`Transaction::commit`] | all that is read and written this way under the resource |
//! | the same, in a transaction of your own | [`FenceStore::join`] | the same |
//! | one row, whatever it holds | [`FenceStore::update`], [`upsert`](FenceStore::upsert), [`delete`](FenceStore::delete) | that row |
//! | many rows, whatever they hold | [`FenceStore::update_rows`], [`upsert_rows`](FenceStore::upsert_rows), [`delete_rows`](FenceStore::delete_rows), [`insert_select`](FenceStore::insert_select) | each of them |
//!
//! A row's fence knows nothing of the ledger and the other way round: protect a row in one of the two ways, always the same
//! one. And a fence compares numbers, not names: write a row always under the same resource, for a token of another one is
//! accepted if it is greater, and then shuts the rightful holder out. Statements of programs that do not use the fence are not
//! stopped by either, but by a [`Guard`]: triggers with which the database itself refuses them
//! ([`FenceStore::install_guard`]).
//!
//! The fence is not idempotency. Where a row may be rewritten, `n = n + 1` sent twice by the same holder counts twice.
//!
//! # A write without a token does not compile
//!
//! ```compile_fail,E0061
//! # async fn example(store: fence_store::FenceStore<sqlx::Sqlite>) -> Result<(), fence_store::FenceError> {
//! # use fence_store::Row;
//! # use sea_query::Query;
//! store.update(&Row::new("accounts", "id", 42), Query::update().value("balance", 0)).await?;
//! # Ok(()) }
//! ```
//!
//! Nor does one with a number that happens to be at hand:
//!
//! ```compile_fail,E0277
//! # async fn example(store: fence_store::FenceStore<sqlx::Sqlite>) -> Result<(), fence_store::FenceError> {
//! # use fence_store::Row;
//! # use sea_query::Query;
//! store.update(&34_i64, &Row::new("accounts", "id", 42), Query::update().value("balance", 0)).await?;
//! # Ok(()) }
//! ```
//!
//! A token that came over a wire becomes one by [`redlock_core::Grant::assume_granted`].
//!
//! The book, in the repository's `docs/`, says what a table needs and what each verdict asks for (`docs/fencing.md`).

#[macro_use]
mod mutants;
mod check;
#[cfg(feature = "conformance")]
pub mod conformance;
mod dialect;
mod error;
mod guard;
mod insert_select;
mod joined;
mod key;
mod ledger;
mod lease;
mod many;
mod row;
mod run;
mod schema;
mod statement;
mod store;
mod telemetry;
mod transaction;
mod write;

pub use dialect::{Dialect, Flavor, Isolation, Rendered, Returning};
pub use error::{ColumnProblem, FenceError, StatementProblem};
pub use guard::Guard;
pub use guard::install::{Finding, GuardState};
pub use guard::migrate::fence_column_sql;
pub use insert_select::InsertSelect;
pub use joined::Joined;
pub use many::Verdict;
pub use row::{Row, Upsert};
pub use run::{Attempt, Lent, Running, Validity};
pub use schema::{InvalidTableName, LedgerTable};
pub use store::{Claim, FenceStore};
pub use telemetry::OPERATIONS;
pub use transaction::{Settled, Ticket, Transaction};
pub use write::Applied;

/// The example in the readme, so that it keeps compiling.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
