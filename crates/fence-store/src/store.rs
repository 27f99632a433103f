//! The door: a pool of connections, and the fenced operations on it.
//!
//! Each operation takes a grant. That is the point of the crate: a write without a token does not compile.

use std::fmt;
use std::time::Duration;

use redlock_core::{Grant, Resource};
use sea_query::{Expr, ExprTrait, IntoColumnRef, IntoIden, Query, TableName, UpdateStatement};
use sqlx::{ColumnIndex, Database, Decode, Pool, Type};
use sqlx_core::transaction::TransactionManager;

use crate::check::{Checked, check_column};
use crate::dialect::{Dialect, Flavor, Isolation, LockWait, Rendered, Returning};
use crate::error::{ColumnProblem, FenceError, StatementProblem};
use crate::insert_select::InsertSelect;
use crate::joined::Joined;
use crate::key::KnownKeys;
use crate::lease::Lease;
use crate::ledger;
use crate::many::{self, Batch, Verdict};
use crate::row::{Row, Upsert};
use crate::schema::{LedgerTable, POSTGRES_INSTALL_LOCK, RESOURCE, TOKEN, TRANSACTION_ID, display, find_unique_key};
use crate::telemetry::record;
use crate::transaction::{Settled, Ticket, Transaction};
use crate::write::{self, Applied, Claimed};

/// How often an operation that runs as a whole here is run again when it lost a race. Others made progress each time.
const RACES_MAX: usize = 10;

/// Runs an attempt again while it loses races, each time as a whole: nothing of a lost one was kept.
macro_rules! raced {
    ($attempt:expr) => {{
        let mut race = 1;
        loop {
            match $attempt.await {
                Err(error) if error.is_lost_race() && race < RACES_MAX => race += 1,
                result => break result,
            }
        }
    }};
}

/// A database whose writes are fenced: a sqlx pool, and the name of the ledger's table in it.
///
/// Cloning is cheap; clones share the pool.
///
/// Columns are checked once per table, before the first write to it (one query of the catalog), so that a column that
/// cannot hold tokens is an error and never a wrong comparison.
pub struct FenceStore<DB: Dialect> {
    pool: Pool<DB>,
    ledger: LedgerTable,
    /// Tables, with their fence columns, that were found fit.
    checked: Checked,
    keys: KnownKeys,
    /// How long to wait for locks, if its user has said so.
    lock_wait: Option<LockWait>,
}

impl<DB: Dialect> FenceStore<DB> {
    /// A store on this pool, with the ledger in `fence_ledger`. Opens no connection.
    #[must_use]
    pub fn new(pool: Pool<DB>) -> Self {
        Self::with_ledger(pool, LedgerTable::default())
    }

    /// The same with another ledger table.
    #[must_use]
    pub fn with_ledger(pool: Pool<DB>, ledger: LedgerTable) -> Self {
        Self { pool, ledger, checked: Checked::default(), keys: KnownKeys::default(), lock_wait: None }
    }

    /// Limits how long a write or a transaction of this store waits for a lock that somebody else holds; at the end of it
    /// stands [`FenceError::Conflict`].
    ///
    /// Without it: ten seconds on Postgres, unless the session or the role has a limit of its own; on MySQL what
    /// `innodb_lock_wait_timeout` says, 50 seconds by default; on SQLite the busy timeout, 5 seconds in sqlx.
    ///
    /// On Postgres it holds for the store's own statements and transactions. MySQL and SQLite know of no limit for less than
    /// a session, so there it stays on each connection of the pool that the store has used, and costs MySQL a round trip
    /// per write. MySQL counts in seconds, and rounds up.
    ///
    /// A lock on a whole table, such as a migration takes, is waited for without this limit by a single statement on
    /// Postgres (not in a transaction).
    #[must_use]
    pub fn lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = Some(LockWait::new(wait));
        self
    }

    /// Opens a pool of connections to a URL, with sqlx's defaults, and a store on it.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the URL cannot be understood or reached.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(url: &str) -> Result<Self, FenceError> {
        // One connection first: the pool would go on trying for 30 s and then tell of the time-out alone.
        let database = |source| FenceError::Database { source };
        let connection = <DB::Connection as sqlx::Connection>::connect(url).await.map_err(database)?;
        sqlx::Connection::close(connection).await.map_err(database)?;
        Ok(Self::new(Pool::connect(url).await.map_err(database)?))
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.pool
    }

    /// Creates the ledger's table unless it is there. Any number of processes may do so at once.
    ///
    /// [`LedgerTable::sql`] is the same as text.
    ///
    /// # Errors
    /// [`FenceError::Database`] if the database refuses, [`FenceError::Column`] if a table of that name is no ledger.
    ///
    /// # Cancel safety
    /// If the future is dropped the table may or may not have been created; installing again is right.
    pub async fn install_schema(&self) -> Result<(), FenceError> {
        let mut lease = self.lease().await?;
        match self.check_ledger(&mut lease).await {
            Err(FenceError::SchemaMissing { .. }) => {}
            // Nothing to do, which takes no right to create tables; or something that creating would not mend.
            result => return result,
        }
        // MySQL commits on its own around a CREATE TABLE, and takes a lock on the name.
        let in_transaction = DB::FLAVOR != Flavor::MySql;
        if in_transaction {
            begin(&mut lease, Isolation::default()).await?;
        }
        if DB::FLAVOR == Flavor::Postgres {
            execute(&mut lease, Flavor::fixed(POSTGRES_INSTALL_LOCK, [])).await?;
        }
        let create = Rendered { sql: self.ledger.sql(DB::FLAVOR), values: sea_query::Values(Vec::new()) };
        execute(&mut lease, create).await?;
        if in_transaction {
            lease.commit().await.map_err(FenceError::of_commit)?;
        }
        self.check_ledger(&mut lease).await
    }

    /// Checks that a table has a column that can hold tokens: signed 64-bit, NOT NULL, DEFAULT 0.
    ///
    /// # Errors
    /// [`FenceError::Column`] says what to change, [`FenceError::SchemaMissing`] that there is no such table.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn check_table(&self, table: impl Into<TableName>, column: impl IntoIden) -> Result<(), FenceError> {
        let mut lease = self.lease().await?;
        check_column(&mut lease, &table.into(), &column.into_iden().to_string()).await
    }

    /// Raises the row's fence to the grant's token, and returns what the row holds *then*: the way to begin a
    /// read-modify-write.
    ///
    /// A check at the write alone loses updates. The old holder reads 100, the new one reads 100, the old one writes 101,
    /// which is still allowed, and the new one writes 110. After a claim the old holder is refused, and its write that
    /// came before the claim was read.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(store: fence_store::FenceStore<sqlx::Postgres>, grant: redlock_core::Grant)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use fence_store::Row;
    /// use sea_query::Query;
    ///
    /// let account = store.claim(&grant, &Row::new("accounts", "id", 42), ["balance"]).await?;
    /// let balance: i64 = account.get("balance")?;
    /// account.update(Query::update().value("balance", balance + 1)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// One statement on Postgres and SQLite (`UPDATE … RETURNING`), an UPDATE and a SELECT on MySQL. A claim may be repeated
    /// under the same grant.
    ///
    /// # Errors
    /// [`FenceError::Stale`], [`FenceError::NoSuchRow`] (the row is not there: use [`upsert`](Self::upsert); the ledger has
    /// been raised, so that no older holder can insert it now), [`FenceError::Unknown`] if the answer was lost, or on
    /// MySQL the row could not be read after its fence had been raised (claiming again is right), and the errors of any
    /// write.
    ///
    /// # Cancel safety
    /// If the future is dropped the fence may or may not have been raised; claiming again is right.
    pub async fn claim<C: IntoColumnRef>(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        row: &Row,
        columns: impl IntoIterator<Item = C> + Send,
    ) -> Result<Claim<DB>, FenceError> {
        let grant = grant.as_ref();
        let claiming = write::Claiming::new(DB::FLAVOR, self.lock_wait, grant.token(), row, columns)?;
        let result = raced!(self.try_claim(grant, row, &claiming));
        record::<DB, _>("claim", &result);
        Ok(Claim { store: self.clone(), grant: grant.clone(), row: row.clone().may_rewrite(), read: result? })
    }

    /// Raises the ledger rows of the grant's resources, so that from now on older holders cannot open a transaction.
    ///
    /// What is read afterwards is out of every older holder's reach, if all writers use [`begin`](Self::begin).
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    ///
    /// # Cancel safety
    /// If the future is dropped the rows may or may not have been raised; claiming again is right.
    pub async fn claim_resources(&self, grant: &(impl AsRef<Grant> + Sync)) -> Result<(), FenceError> {
        self.begin(grant).await?.commit().await
    }

    /// Opens a transaction that holds the ledger rows of the grant's resources, at read committed.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(store: fence_store::FenceStore<sqlx::Postgres>, guard: redlock_core::Grant)
    /// # -> Result<(), fence_store::FenceError> {
    /// let mut transaction = store.begin(&guard).await?;
    /// transaction.execute(sqlx::query("UPDATE accounts SET balance = balance - 5 WHERE id = 1")).await?;
    /// transaction.execute(sqlx::query("UPDATE accounts SET balance = balance + 5 WHERE id = 2")).await?;
    /// transaction.commit().await
    /// # }
    /// ```
    ///
    /// When it returns, no transaction of an older holder is open or can be opened on these resources, and one of a newer
    /// holder has to wait. A grant may open several, one after the other.
    ///
    /// The wait has an end: see [`lock_wait`](Self::lock_wait).
    ///
    /// # Errors
    /// [`FenceError::Stale`]: nothing was run. [`FenceError::Conflict`] if another holder kept the rows for longer than the
    /// database waits. [`FenceError::SchemaMissing`] before [`install_schema`](Self::install_schema).
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing was written and no transaction stays open.
    pub async fn begin(&self, grant: &(impl AsRef<Grant> + Sync)) -> Result<Transaction<DB>, FenceError> {
        self.begin_with(grant, Isolation::default()).await
    }

    /// The same at another isolation level.
    ///
    /// # Errors
    /// As [`begin`](Self::begin). Above read committed the rightful newer holder may be told [`FenceError::Conflict`] as
    /// well: Postgres answers 40001 to whoever waited for a row that then changed. Such races are run again here a few
    /// times, as nothing of the caller's has been run.
    ///
    /// # Cancel safety
    /// As [`begin`](Self::begin).
    pub async fn begin_with(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        isolation: Isolation,
    ) -> Result<Transaction<DB>, FenceError> {
        let result = raced!(self.try_begin(grant.as_ref(), isolation));
        record::<DB, _>("begin", &result);
        result
    }

    /// Fences a transaction that the caller began: raises the ledger rows of the grant's resources in it, which keeps them
    /// until the caller commits or rolls back.
    ///
    /// Do it first. What was read in the transaction before is out of the fence's reach: with a snapshot (repeatable read,
    /// or any deferred transaction on SQLite) it may be what an older holder has changed since.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(pool: sqlx::PgPool, store: fence_store::FenceStore<sqlx::Postgres>, guard: redlock_core::Grant)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// let mut transaction = pool.begin().await?;
    /// store.join(&mut transaction, &guard).await?;
    /// sqlx::query("UPDATE accounts SET balance = 0").execute(&mut *transaction).await?;
    /// transaction.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The transaction stays the caller's: nothing is committed or rolled back here. **After any error roll it back**, by
    /// dropping it; the statements in it are not fenced then. It also keeps its own limit for waiting, if it has one.
    ///
    /// # Errors
    /// As [`begin`](Self::begin); and [`StatementProblem::NoTransaction`](crate::StatementProblem::NoTransaction) if sqlx has begun none on
    /// the connection, where the ledger's rows would be given up again at once.
    ///
    /// # Cancel safety
    /// If the future is dropped, drop the transaction too.
    pub async fn join<'c>(
        &self,
        connection: &'c mut DB::Connection,
        grant: &(impl AsRef<Grant> + Sync),
    ) -> Result<Joined<'c, DB>, FenceError> {
        let result = self.try_join(connection, grant.as_ref()).await;
        record::<DB, _>("join", &result);
        result
    }

    /// Updates a row, if its fence lets the grant's token pass, and raises the fence.
    ///
    /// The statement says what to write; `row` says where. It gains the fence:
    ///
    /// ```sql
    /// UPDATE "accounts" SET "balance" = $1, "fence_token" = $2 WHERE "id" = $3 AND "fence_token" < $4 AND (...) -- Postgres
    /// UPDATE `accounts` SET `balance` = ?, `fence_token` = ? WHERE `id` = ? AND `fence_token` < ? AND (@@autocommit) -- MySQL
    /// UPDATE "accounts" SET "balance" = ?, "fence_token" = ? WHERE "id" = ? AND "fence_token" < ? -- SQLite
    /// ```
    ///
    /// What stands for (...) on Postgres limits the wait for the row, and the names of the values' types follow as a comment.
    ///
    /// One statement and one round trip, if it is applied. It protects this row and no more. If the new value depends on
    /// what was read, begin with [`claim`](Self::claim).
    ///
    /// A condition of the statement's own is respected; add it with `and_where` or `cond_where`.
    ///
    /// # Errors
    /// [`FenceError::Stale`], [`FenceError::AlreadyWritten`] unless the row [may be rewritten](Row::may_rewrite),
    /// [`FenceError::NoSuchRow`], [`FenceError::Unknown`] if the connection was lost (under the strict rule, writing again
    /// settles it: applied, or already written), [`FenceError::Column`], [`FenceError::Conflict`].
    ///
    /// # Cancel safety
    /// If the future is dropped the write may or may not have been applied, as with an unknown outcome.
    pub async fn update(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        row: &Row,
        statement: &UpdateStatement,
    ) -> Result<Applied, FenceError> {
        let grant = grant.as_ref();
        let result = raced!(self.try_update(grant, row, statement));
        record::<DB, _>("update", &result);
        result
    }

    /// Inserts a row under the grant's token, or updates it as [`update`](Self::update) does.
    ///
    /// A row that is there costs one round trip. To insert one, the grant's ledger rows are raised first, in a transaction:
    /// they remember who deleted the row, and stop a stale holder from bringing it back. The key must be unique in the
    /// table. One row should always be written under the same resources.
    ///
    /// # Errors
    /// As [`update`](Self::update), and [`FenceError::SchemaMissing`].
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn upsert(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        row: &Row,
        upsert: &Upsert,
    ) -> Result<Applied, FenceError> {
        let grant = grant.as_ref();
        let result = raced!(self.try_upsert(grant, row, upsert));
        record::<DB, _>("upsert", &result);
        result
    }

    /// Deletes a row, if its fence lets the grant's token pass, and leaves the fence behind in the ledger: in one
    /// transaction, the grant's ledger rows are raised and the row is deleted.
    ///
    /// # Errors
    /// As [`update`](Self::update), and [`FenceError::SchemaMissing`]. After [`FenceError::NoSuchRow`] the ledger has been
    /// raised all the same: the caller wanted the row gone, and no older holder may insert it now.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn delete(&self, grant: &(impl AsRef<Grant> + Sync), row: &Row) -> Result<Applied, FenceError> {
        let grant = grant.as_ref();
        let result = raced!(self.try_delete(grant, row));
        record::<DB, _>("delete", &result);
        result
    }

    /// Updates a row as [`update`](Self::update) does, and returns columns of it as it is then. On Postgres and SQLite; on
    /// MySQL, which has no such statement, it does not compile:
    ///
    /// ```compile_fail,E0277
    /// # async fn example(store: fence_store::FenceStore<sqlx::MySql>, grant: redlock_core::Grant) {
    /// # let row = fence_store::Row::new("accounts", "id", 42);
    /// store.update_returning(&grant, &row, sea_query::Query::update().value("balance", 0), ["balance"]).await;
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`update`](Self::update).
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn update_returning<C: IntoColumnRef>(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        row: &Row,
        statement: &UpdateStatement,
        columns: impl IntoIterator<Item = C> + Send,
    ) -> Result<DB::Row, FenceError>
    where
        DB: Returning,
    {
        let grant = grant.as_ref();
        let mut statement = row.update(grant.token(), statement)?;
        statement.returning(Query::returning().columns(columns));
        let alone = DB::FLAVOR.render(&Row::alone(DB::FLAVOR, self.lock_wait, statement.clone()))?;
        let statement = DB::FLAVOR.render(&statement)?;
        let result = raced!(self.try_update_returning(grant, row, &alone, &statement));
        record::<DB, _>("update_returning", &result);
        result
    }

    /// Deletes a row as [`delete`](Self::delete) does, and returns columns of it as it was (but for the fence, which a delete
    /// lowers first). On Postgres and SQLite.
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn delete_returning<C: IntoColumnRef>(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        row: &Row,
        columns: impl IntoIterator<Item = C> + Send,
    ) -> Result<DB::Row, FenceError>
    where
        DB: Returning,
    {
        let statement = row.delete().returning(Query::returning().columns(columns)).to_owned();
        let statement = DB::FLAVOR.render(&statement)?;
        let result = raced!(self.try_delete_returning(grant.as_ref(), row, &statement));
        record::<DB, _>("delete_returning", &result);
        result
    }

    /// Inserts the rows that a query gives, each under the grant's token. In one transaction, which holds the grant's ledger
    /// rows: no row comes back that a newer holder has deleted. A row that is there already is an error of the database,
    /// and nothing was written then.
    ///
    /// # Errors
    /// [`FenceError::Stale`], and those of any write.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn insert_select(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        insert: &InsertSelect,
    ) -> Result<Applied, FenceError> {
        let grant = grant.as_ref();
        let statement = DB::FLAVOR.render(&insert.statement(grant.token())?)?;
        let result = raced!(self.try_insert_select(grant, insert, &statement));
        record::<DB, _>("insert_select", &result);
        result
    }

    /// Updates many rows of one table by one statement, each if its own fence lets the grant's token pass: a verdict for
    /// each, in the order of `rows`.
    ///
    /// In one transaction: what was applied is committed together, and what was refused was left alone. For all or nothing
    /// use [`Transaction::update_rows`], and roll back unless every verdict is [`Verdict::Applied`].
    ///
    /// Two statements for up to 200 rows (one that locks them, in the order of their keys, and one that writes), and one or
    /// two more for each row that is not there or is rewritten under the same token.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(store: fence_store::FenceStore<sqlx::Postgres>, guard: redlock_core::Grant)
    /// # -> Result<(), fence_store::FenceError> {
    /// use fence_store::{Row, Verdict};
    /// use sea_query::Query;
    ///
    /// let rows = [1, 2, 3].map(|id| Row::new("accounts", "id", id));
    /// for (row, verdict) in rows.iter().zip(store.update_rows(&guard, &rows, Query::update().value("open", false)).await?) {
    ///     if let Verdict::Stale { highest } = verdict {
    ///         println!("{row} has been written under {highest}");
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`update`](Self::update), but for what the verdicts say. Nothing was written then.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn update_rows(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        rows: &[Row],
        statement: &UpdateStatement,
    ) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let result = raced!(self.try_update_rows(grant.as_ref(), &batch, statement));
        record::<DB, _>("update_rows", &result);
        result
    }

    /// Inserts or updates many rows of one table, each as [`upsert`](Self::upsert) does: a verdict for each, in the order
    /// of `upserts`.
    ///
    /// In one transaction, which holds the grant's ledger rows. Rows that are not there are inserted by one statement for
    /// those that get the same columns, rows that are there are updated by one for those that are written alike.
    ///
    /// # Errors
    /// As [`upsert`](Self::upsert), but for what the verdicts say. Nothing was written then.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn upsert_rows(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        upserts: &[(Row, Upsert)],
    ) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::of_upserts(upserts)?;
        let result = raced!(self.try_upsert_rows(grant.as_ref(), &batch, upserts));
        record::<DB, _>("upsert_rows", &result);
        result
    }

    /// Deletes many rows of one table, each as [`delete`](Self::delete) does: a verdict for each, in the order of `rows`.
    /// The ledger remembers for all of them, also for those that were not there.
    ///
    /// # Errors
    /// As [`delete`](Self::delete), but for what the verdicts say. Nothing was written then.
    ///
    /// # Cancel safety
    /// As [`update`](Self::update).
    pub async fn delete_rows(
        &self,
        grant: &(impl AsRef<Grant> + Sync),
        rows: &[Row],
    ) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let result = raced!(self.try_delete_rows(grant.as_ref(), &batch));
        record::<DB, _>("delete_rows", &result);
        result
    }

    /// What became of a transaction whose commit got no answer.
    ///
    /// Waits until no transaction on the resource is open any more, so the answer is final. It is exact if no other
    /// transaction on the resource has been committed since; otherwise it may be [`Settled::Undecided`] or
    /// [`Settled::Superseded`].
    ///
    /// # Errors
    /// [`FenceError::Conflict`] if the transaction is open for longer than the database waits, and other database errors.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn settle(&self, ticket: &Ticket) -> Result<Settled, FenceError> {
        let mut lease = self.lease().await?;
        begin(&mut lease, Isolation::default()).await?;
        let own = ledger::new_transaction_id();
        let entry = ledger::entry_after_others(&mut lease, &self.ledger, &ticket.resource, own).await;
        lease.rollback().await;
        Ok(ticket.judge(entry?))
    }

    /// The highest token that the ledger knows for a resource; `None` if it was never written through the ledger.
    ///
    /// # Errors
    /// [`FenceError::SchemaMissing`] and other database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn highest_token(&self, resource: &Resource) -> Result<Option<i64>, FenceError> {
        let mut lease = self.lease().await?;
        self.check_ledger(&mut lease).await?;
        let highest = ledger::highest(&mut lease, &self.ledger, &resource.clone().into()).await?;
        Ok(highest.map(|(token, _)| token))
    }

    /// The highest token in the ledger, of all resources; `None` while it is empty.
    ///
    /// After Redis was wiped, new tokens must be minted above this and above [`highest_fence`](Self::highest_fence) of each
    /// table whose rows have fences of their own, which the ledger hears of only when rows are inserted or deleted. Below
    /// them every grant would be told *stale*.
    ///
    /// # Errors
    /// [`FenceError::SchemaMissing`] and other database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn highest_token_of_all(&self) -> Result<Option<i64>, FenceError> {
        let mut lease = self.lease().await?;
        self.check_ledger(&mut lease).await?;
        highest_of(&mut lease, &self.ledger.table_name(), TOKEN).await
    }

    /// The highest fence of a table's rows; `None` while it is empty. Reads the whole table, unless the column has an index.
    ///
    /// # Errors
    /// [`FenceError::Column`], [`FenceError::SchemaMissing`] and other database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn highest_fence(
        &self,
        table: impl Into<TableName>,
        column: impl IntoIden,
    ) -> Result<Option<i64>, FenceError> {
        let (table, column) = (table.into(), column.into_iden());
        let mut lease = self.lease().await?;
        self.checked.fence(&mut lease, &table, &column.to_string()).await?;
        highest_of(&mut lease, &table, column).await
    }

    /// The fence of a row: the token under which it was last written or claimed, 0 if never; `None` without such a row.
    ///
    /// # Errors
    /// Database errors.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn fence_of(&self, row: &Row) -> Result<Option<i64>, FenceError> {
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        let query = DB::query(DB::FLAVOR.render(&row.read())?);
        let found = lease.fetch_all(query).await.map_err(FenceError::of_statement)?;
        write::one_fence::<DB>(row, &found)
    }

    async fn try_begin(&self, grant: &Grant, isolation: Isolation) -> Result<Transaction<DB>, FenceError> {
        let mut lease = self.lease().await?;
        self.check_ledger(&mut lease).await?;
        begin(&mut lease, isolation).await?;
        let transaction_id = ledger::new_transaction_id();
        let raised = ledger::raise(&mut lease, &self.ledger, grant.resources(), grant.token(), transaction_id).await;
        match raised {
            Ok(marks) => Ok(Transaction::new(lease, self.ledger.clone(), grant.clone(), marks, self.checked.clone())),
            Err(error) => {
                lease.rollback().await;
                Err(error)
            }
        }
    }

    async fn try_join<'c>(
        &self,
        connection: &'c mut DB::Connection,
        grant: &Grant,
    ) -> Result<Joined<'c, DB>, FenceError> {
        if <DB as Database>::TransactionManager::get_transaction_depth(connection) == 0 {
            return Err(StatementProblem::NoTransaction.into());
        }
        let mut lease = Lease::lent(connection);
        self.check_ledger(&mut lease).await?;
        let id = ledger::new_transaction_id();
        let marks = ledger::raise(&mut lease, &self.ledger, grant.resources(), grant.token(), id).await?;
        Ok(Joined::new(lease, self.ledger.clone(), grant.clone(), marks, self.checked.clone()))
    }

    async fn try_update(&self, grant: &Grant, row: &Row, statement: &UpdateStatement) -> Result<Applied, FenceError> {
        let alone = Row::alone(DB::FLAVOR, self.lock_wait, row.update(grant.token(), statement)?);
        let alone = DB::FLAVOR.render(&alone)?;
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        if self.keys.name_one_row(&mut lease, row).await? {
            let first = write::update_alone(&mut lease, alone).await;
            if let Some(applied) = first.map_err(FenceError::of_commit)? {
                return Ok(applied);
            }
        }
        let within = DB::FLAVOR.render(&row.update(grant.token(), statement)?)?;
        begin(&mut lease, Isolation::default()).await?;
        let result = write::update_under_lock(&mut lease, &self.ledger, grant, row, within).await;
        end(lease, result).await
    }

    async fn try_upsert(&self, grant: &Grant, row: &Row, upsert: &Upsert) -> Result<Applied, FenceError> {
        row.accepts(upsert)?;
        let update = row.update(grant.token(), &upsert.as_update())?;
        let update = DB::FLAVOR.render(&Row::alone(DB::FLAVOR, self.lock_wait, update))?;
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        if self.keys.name_one_row(&mut lease, row).await? {
            let first = write::update_alone(&mut lease, update).await;
            if let Some(applied) = first.map_err(FenceError::of_commit)? {
                return Ok(applied);
            }
        }
        self.begin_on_ledger(&mut lease, grant).await?;
        let result = write::upsert_under_lock(&mut lease, grant, row, upsert).await;
        end(lease, result).await
    }

    async fn try_delete(&self, grant: &Grant, row: &Row) -> Result<Applied, FenceError> {
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        self.begin_on_ledger(&mut lease, grant).await?;
        match write::delete_under_lock(&mut lease, grant, row).await {
            Err(FenceError::NoSuchRow { table }) => {
                lease.commit().await.map_err(FenceError::of_commit)?;
                Err(FenceError::NoSuchRow { table })
            }
            result => end(lease, result).await,
        }
    }

    async fn try_update_returning(
        &self,
        grant: &Grant,
        row: &Row,
        alone: &Rendered,
        statement: &Rendered,
    ) -> Result<DB::Row, FenceError> {
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        if self.keys.name_one_row(&mut lease, row).await? {
            let first = lease.fetch_optional(DB::query(alone.clone())).await;
            if let Some(written) = first.map_err(FenceError::of_commit)? {
                return Ok(written);
            }
        }
        begin(&mut lease, Isolation::default()).await?;
        let result = write::update_returning(&mut lease, &self.ledger, grant, row, statement.clone()).await;
        end(lease, result).await
    }

    async fn try_delete_returning(
        &self,
        grant: &Grant,
        row: &Row,
        statement: &Rendered,
    ) -> Result<DB::Row, FenceError> {
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        self.begin_on_ledger(&mut lease, grant).await?;
        match write::delete_returning(&mut lease, grant, row, statement.clone()).await {
            Err(FenceError::NoSuchRow { table }) => {
                lease.commit().await.map_err(FenceError::of_commit)?;
                Err(FenceError::NoSuchRow { table })
            }
            result => end(lease, result).await,
        }
    }

    async fn try_insert_select(
        &self,
        grant: &Grant,
        insert: &InsertSelect,
        statement: &Rendered,
    ) -> Result<Applied, FenceError> {
        let mut lease = self.lease().await?;
        self.checked.fence(&mut lease, insert.table(), &insert.fence().to_string()).await?;
        self.begin_on_ledger(&mut lease, grant).await?;
        let result = execute(&mut lease, statement.clone()).await;
        end(lease, result.map(|result| Applied { rows: DB::rows_affected(&result) })).await
    }

    async fn try_update_rows(
        &self,
        grant: &Grant,
        batch: &Batch<'_>,
        statement: &UpdateStatement,
    ) -> Result<Vec<Verdict>, FenceError> {
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        first.update(grant.token(), statement)?;
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, first).await?;
        begin(&mut lease, Isolation::default()).await?;
        let result = many::update(&mut lease, &self.ledger, grant, batch, statement).await;
        end(lease, result).await
    }

    async fn try_upsert_rows(
        &self,
        grant: &Grant,
        batch: &Batch<'_>,
        upserts: &[(Row, Upsert)],
    ) -> Result<Vec<Verdict>, FenceError> {
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, first).await?;
        self.begin_on_ledger(&mut lease, grant).await?;
        let result = many::upsert(&mut lease, grant, batch, upserts).await;
        end(lease, result).await
    }

    async fn try_delete_rows(&self, grant: &Grant, batch: &Batch<'_>) -> Result<Vec<Verdict>, FenceError> {
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, first).await?;
        self.begin_on_ledger(&mut lease, grant).await?;
        let result = many::delete(&mut lease, grant, batch).await;
        end(lease, result).await
    }

    async fn try_claim(&self, grant: &Grant, row: &Row, claiming: &write::Claiming) -> Result<DB::Row, FenceError> {
        let mut lease = self.lease().await?;
        self.check_row(&mut lease, row).await?;
        if !self.keys.name_one_row(&mut lease, row).await? {
            return self.claim_under_lock(lease, grant, row, claiming).await;
        }
        match write::claim_alone(&mut lease, claiming).await? {
            Claimed::Read(read) => Ok(read),
            Claimed::NotRaised => self.claim_under_lock(lease, grant, row, claiming).await,
            Claimed::Overtaken => match self.claim_under_lock(lease, grant, row, claiming).await {
                // It had been written to before this failed.
                Err(FenceError::Database { source }) => Err(FenceError::Unknown { source }),
                result => result,
            },
        }
    }

    async fn claim_under_lock(
        &self,
        mut lease: Lease<'static, DB>,
        grant: &Grant,
        row: &Row,
        claiming: &write::Claiming,
    ) -> Result<DB::Row, FenceError> {
        begin(&mut lease, Isolation::default()).await?;
        match write::claim_under_lock(&mut lease, grant, row, claiming).await {
            Err(FenceError::NoSuchRow { .. }) => lease.rollback().await,
            result => return end(lease, result).await,
        }
        // "There is no row" was read under this grant, and what is read under a claim must hold against older holders: they
        // could insert it now. So the ledger is raised before it is looked for again, and stays raised.
        self.begin_on_ledger(&mut lease, grant).await?;
        match write::claim_under_lock(&mut lease, grant, row, claiming).await {
            Err(FenceError::NoSuchRow { table }) => {
                lease.commit().await.map_err(FenceError::of_commit)?;
                Err(FenceError::NoSuchRow { table })
            }
            result => end(lease, result).await,
        }
    }

    async fn begin_on_ledger(&self, lease: &mut Lease<'_, DB>, grant: &Grant) -> Result<(), FenceError> {
        self.check_ledger(lease).await?;
        begin(lease, Isolation::default()).await?;
        let id = ledger::new_transaction_id();
        let raised = ledger::raise(lease, &self.ledger, grant.resources(), grant.token(), id).await;
        if raised.is_err() {
            lease.rollback().await;
        }
        raised.map(|_| ())
    }

    pub(crate) async fn lease(&self) -> Result<Lease<'static, DB>, FenceError> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(|source| FenceError::Database { source })?;
        if let Some(wait) = self.lock_wait {
            lease.limit_wait(wait).await.map_err(FenceError::of_statement)?;
        }
        Ok(lease)
    }

    async fn check_row(&self, lease: &mut Lease<'_, DB>, row: &Row) -> Result<(), FenceError> {
        row.has_a_key()?;
        self.checked.fence(lease, row.table(), &row.fence().to_string()).await
    }

    async fn check_ledger(&self, lease: &mut Lease<'_, DB>) -> Result<(), FenceError> {
        let table = self.ledger.table_name();
        self.checked.fence(lease, &table, TRANSACTION_ID).await?;
        if !self.checked.contains(&table, TOKEN) && DB::FLAVOR == Flavor::MySql {
            // Elsewhere the raise fails without one. Here it would insert a row for each token and refuse nobody.
            let query = DB::query(find_unique_key(&table, RESOURCE));
            if lease.fetch_optional(query).await.map_err(FenceError::of_statement)?.is_none() {
                return Err(ColumnProblem::NotUnique { table: display(&table), column: RESOURCE.to_owned() }.into());
            }
        }
        self.checked.fence(lease, &table, TOKEN).await
    }
}

impl<DB: Dialect> Clone for FenceStore<DB> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            ledger: self.ledger.clone(),
            checked: self.checked.clone(),
            keys: self.keys.clone(),
            lock_wait: self.lock_wait,
        }
    }
}

impl<DB: Dialect> fmt::Debug for FenceStore<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceStore").field("database", &DB::NAME).field("ledger", &self.ledger).finish_non_exhaustive()
    }
}

/// A row that was claimed: what it held then, and the way to write it.
///
/// From [`FenceStore::claim`].
pub struct Claim<DB: Dialect> {
    store: FenceStore<DB>,
    grant: Grant,
    row: Row,
    read: DB::Row,
}

impl<DB: Dialect> Claim<DB> {
    /// The row as it was when its fence had been raised.
    #[must_use]
    pub fn row(&self) -> &DB::Row {
        &self.read
    }

    /// A column of the row, by name or position.
    ///
    /// # Errors
    /// [`FenceError::Database`] if there is no such column, or it has another type.
    pub fn get<'r, T>(&'r self, column: impl ColumnIndex<DB::Row>) -> Result<T, FenceError>
    where
        T: Decode<'r, DB> + Type<DB>,
    {
        sqlx::Row::try_get(&self.read, column).map_err(|source| FenceError::Database { source })
    }

    /// Writes the row, unless a newer holder has claimed or written it since. May be done several times.
    ///
    /// # Errors
    /// As [`FenceStore::update`], but never [`FenceError::AlreadyWritten`].
    ///
    /// # Cancel safety
    /// As [`FenceStore::update`].
    pub async fn update(&self, statement: &UpdateStatement) -> Result<Applied, FenceError> {
        self.store.update(&self.grant, &self.row, statement).await
    }

    /// Deletes the row, unless a newer holder has claimed or written it since.
    ///
    /// # Errors
    /// As [`FenceStore::delete`], but never [`FenceError::AlreadyWritten`].
    ///
    /// # Cancel safety
    /// As [`FenceStore::delete`].
    pub async fn delete(self) -> Result<Applied, FenceError> {
        self.store.delete(&self.grant, &self.row).await
    }
}

impl<DB: Dialect> fmt::Debug for Claim<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("grant", &self.grant).field("row", &self.row).finish_non_exhaustive()
    }
}

async fn begin<DB: Dialect>(lease: &mut Lease<'_, DB>, isolation: Isolation) -> Result<(), FenceError> {
    lease.begin(isolation).await.map_err(FenceError::of_statement)
}

async fn highest_of<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    table: &TableName,
    column: impl IntoIden,
) -> Result<Option<i64>, FenceError> {
    let highest = Query::select().expr(Expr::col(column.into_iden()).max()).from(table.clone()).to_owned();
    let query = DB::query(DB::FLAVOR.render(&highest)?);
    let row = lease.fetch_optional(query).await.map_err(FenceError::of_statement)?;
    let highest = row.map(|row| DB::integer(&row, 0)).transpose();
    Ok(highest.map_err(|source| FenceError::Database { source })?.flatten())
}

async fn execute<DB: Dialect>(lease: &mut Lease<'_, DB>, statement: Rendered) -> Result<DB::QueryResult, FenceError> {
    lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)
}

/// Commits what was applied, rolls back what was not.
async fn end<DB: Dialect, T>(mut lease: Lease<'static, DB>, result: Result<T, FenceError>) -> Result<T, FenceError> {
    if result.is_ok() {
        let committed = lease.commit().await;
        lease.rollback().await;
        committed.map_err(FenceError::of_commit)?;
    } else {
        lease.rollback().await;
    }
    result
}
