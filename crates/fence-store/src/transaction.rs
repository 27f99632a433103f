//! A transaction that holds the ledger rows of its grant until it ends, so that any statements in it are fenced.
//!
//! Comes from [`FenceStore::begin`](crate::FenceStore::begin), which raised the rows. After any error there is nothing to
//! be saved: the whole transaction is rolled back at once, for databases differ in how much of it they keep (InnoDB undoes
//! one statement after a lock wait, everything after a dead-lock; Postgres takes a `COMMIT` then and rolls back).

use std::fmt;

use redlock_core::{Grant, Resource};
use sea_query::{IntoColumnRef, QueryStatementWriter, UpdateStatement};
use sqlx::Execute;

use crate::check::Checked;
use crate::dialect::{BoxFuture, Dialect};
use crate::error::FenceError;
use crate::lease::Lease;
use crate::ledger::{self, Entry, Marks};
use crate::many::{self, Batch, Verdict};
use crate::row::{Row, Upsert};
use crate::schema::LedgerTable;
use crate::statement::Opened;
use crate::telemetry::record;
use crate::write::{self, Applied};

/// Marks that a transaction is still the one that was begun: it survives neither a commit nor a rollback.
const SAVEPOINT: &str = "SAVEPOINT fence_store_unwatched";
const RELEASE: &str = "RELEASE SAVEPOINT fence_store_unwatched";

/// An open transaction under a grant.
///
/// # Dropping is rolling back
/// Nothing is kept unless [`commit`](Self::commit) says so. A transaction that is dropped, or whose future is dropped in
/// the middle of a statement, never returns open to the pool: it is rolled back first, or its connection is closed.
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction<DB: Dialect> {
    lease: Lease<'static, DB>,
    ledger: LedgerTable,
    grant: Grant,
    marks: Marks,
    /// Tables that were found fit.
    checked: Checked,
    /// Why it was rolled back before its end.
    failed: Option<Failure>,
    /// A statement of the caller's was run, or the connection lent out: the transaction may have been ended unseen.
    unwatched: bool,
}

/// An error that ended a transaction, kept for whoever calls `commit` in spite of it.
struct Failure {
    conflict: bool,
    message: String,
}

/// By which a transaction whose commit got no answer is found again: see [`FenceStore::settle`](crate::FenceStore::settle).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) resource: Resource,
    pub(crate) token: redlock_core::FencingToken,
    pub(crate) marks: Marks,
}

impl Ticket {
    pub(crate) fn new(grant: &Grant, marks: Marks) -> Self {
        Self { resource: ledger::first(grant.resources()).clone(), token: grant.token(), marks }
    }

    /// What the mark that is there now says of the transaction.
    pub(crate) fn judge(&self, entry: Option<Entry>) -> Settled {
        match entry {
            Some(entry) if entry.mark == self.marks.own => Settled::Committed,
            // Nobody has been here since the transaction began, itself included. 0 says nothing: programs in other languages
            // leave it, each time they raise the row.
            Some(entry) if entry.mark == self.marks.before && entry.mark != 0 => Settled::NotCommitted,
            Some(entry) if self.token.get() < entry.token => Settled::Superseded { highest: entry.token },
            Some(entry) if self.token.get() == entry.token => Settled::Undecided,
            _ => Settled::NotCommitted,
        }
    }
}

/// What became of a transaction whose commit got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was committed.
    Committed,
    /// It was rolled back: run it again while the lock is held.
    NotCommitted,
    /// Another transaction under the same grant has been committed since this one began, and its mark is where that of this
    /// one would be. Look at what it should have written, or settle each transaction before the next is begun: then the
    /// answer is exact.
    Undecided,
    /// A newer holder has been here since, and the trace is gone. The newer holder saw whatever was committed.
    Superseded {
        /// The newer holder's token.
        highest: i64,
    },
}

impl<DB: Dialect> Transaction<DB> {
    pub(crate) fn new(
        lease: Lease<'static, DB>,
        ledger: LedgerTable,
        grant: Grant,
        marks: Marks,
        checked: Checked,
    ) -> Self {
        Self { lease, ledger, grant, marks, checked, failed: None, unwatched: false }
    }

    /// Runs a sqlx query.
    ///
    /// # Errors
    /// As the database reports, sorted; the transaction is rolled back then. [`FenceError::Statement`] before anything is
    /// sent, and without consequence, if the statement would end the transaction: COMMIT, ROLLBACK, and on MySQL what commits
    /// by itself, such as TRUNCATE or ALTER. What ends it unseen, as a procedure can, is noticed by [`commit`](Self::commit).
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction can only be rolled back; so do it by dropping it too.
    pub fn execute<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, Result<DB::QueryResult, FenceError>> {
        Box::pin(async move {
            let query = self.admit(query).await?;
            let result = self.lease.execute(query).await;
            self.watch(result.map_err(FenceError::of_statement)).await
        })
    }

    /// Runs a sqlx query and returns the first row, if there is one.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub fn fetch_optional<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, Result<Option<DB::Row>, FenceError>> {
        Box::pin(async move {
            let query = self.admit(query).await?;
            let result = self.lease.fetch_optional(query).await;
            self.watch(result.map_err(FenceError::of_statement)).await
        })
    }

    /// Runs a sqlx query and returns all rows.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub fn fetch_all<'e, 'q: 'e>(
        &'e mut self,
        query: impl Execute<'q, DB> + 'q,
    ) -> BoxFuture<'e, Result<Vec<DB::Row>, FenceError>> {
        Box::pin(async move {
            let query = self.admit(query).await?;
            let result = self.lease.fetch_all(query).await;
            self.watch(result.map_err(FenceError::of_statement)).await
        })
    }

    /// Runs a sea-query statement and returns how many rows it affected, as the database counts them.
    ///
    /// # Errors
    /// As [`execute`](Self::execute), and [`FenceError::Statement`] before anything is sent.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn run(&mut self, statement: &(impl QueryStatementWriter + Sync)) -> Result<u64, FenceError> {
        let query = DB::query(DB::FLAVOR.render(statement)?);
        self.still_open()?;
        // sea-query has no words that would end a transaction, so it needs no mark.
        let result = self.lease.execute(query).await;
        let result = self.watch(result.map_err(FenceError::of_statement)).await?;
        Ok(DB::rows_affected(&result))
    }

    /// Runs a sea-query statement and returns all its rows.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn read(&mut self, statement: &(impl QueryStatementWriter + Sync)) -> Result<Vec<DB::Row>, FenceError> {
        let query = DB::query(DB::FLAVOR.render(statement)?);
        self.still_open()?;
        let result = self.lease.fetch_all(query).await;
        self.watch(result.map_err(FenceError::of_statement)).await
    }

    /// Updates a row that has a fence of its own, as [`FenceStore::update`](crate::FenceStore::update) does.
    ///
    /// # Errors
    /// The same. A refusal rolls back the transaction.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn update(&mut self, row: &Row, statement: &UpdateStatement) -> Result<Applied, FenceError> {
        let statement = DB::FLAVOR.render(&row.update(self.grant.token(), statement)?)?;
        self.check(row).await?;
        let result = write::update_within(&mut self.lease, &self.ledger, &self.grant, row, statement).await;
        self.watch(result).await
    }

    /// Inserts or updates a row that has a fence of its own, as [`FenceStore::upsert`](crate::FenceStore::upsert) does.
    ///
    /// # Errors
    /// The same. A refusal rolls back the transaction.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn upsert(&mut self, row: &Row, upsert: &Upsert) -> Result<Applied, FenceError> {
        row.accepts(upsert)?;
        self.check(row).await?;
        let result = write::upsert_under_lock(&mut self.lease, &self.grant, row, upsert).await;
        self.watch(result).await
    }

    /// Deletes a row that has a fence of its own, as [`FenceStore::delete`](crate::FenceStore::delete) does.
    ///
    /// # Errors
    /// The same. A refusal rolls back the transaction.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn delete(&mut self, row: &Row) -> Result<Applied, FenceError> {
        row.has_a_key()?;
        self.check(row).await?;
        let result = write::delete_under_lock(&mut self.lease, &self.grant, row).await;
        self.watch(result).await
    }

    /// Updates many rows by one statement, as [`FenceStore::update_rows`](crate::FenceStore::update_rows) does.
    ///
    /// # Errors
    /// The same. A verdict rolls nothing back: that is for whoever reads it.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn update_rows(&mut self, rows: &[Row], statement: &UpdateStatement) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        first.update(self.grant.token(), statement)?;
        self.check(first).await?;
        let result = many::update(&mut self.lease, &self.ledger, &self.grant, &batch, statement).await;
        self.watch(result).await
    }

    /// Inserts or updates many rows, as [`FenceStore::upsert_rows`](crate::FenceStore::upsert_rows) does.
    ///
    /// # Errors
    /// The same. A verdict rolls nothing back: that is for whoever reads it.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn upsert_rows(&mut self, upserts: &[(Row, Upsert)]) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::of_upserts(upserts)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        self.check(first).await?;
        let result = many::upsert(&mut self.lease, &self.grant, &batch, upserts).await;
        self.watch(result).await
    }

    /// Deletes many rows, as [`FenceStore::delete_rows`](crate::FenceStore::delete_rows) does.
    ///
    /// # Errors
    /// The same. A verdict rolls nothing back: that is for whoever reads it.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn delete_rows(&mut self, rows: &[Row]) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        self.check(first).await?;
        let result = many::delete(&mut self.lease, &self.grant, &batch).await;
        self.watch(result).await
    }

    /// Claims a row that has a fence of its own, as [`FenceStore::claim`](crate::FenceStore::claim) does, and returns what it
    /// holds then. Unlike there, the ledger's rows are held in any case, so an absent row stays absent for older holders.
    ///
    /// What is not fenced row by row needs no claim: this transaction's ledger rows were claimed when it began.
    ///
    /// # Errors
    /// The same. A refusal rolls back the transaction.
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn claim<C: IntoColumnRef>(
        &mut self,
        row: &Row,
        columns: impl IntoIterator<Item = C> + Send,
    ) -> Result<DB::Row, FenceError> {
        row.has_a_key()?;
        let claiming = write::Claiming::new(DB::FLAVOR, None, self.grant.token(), row, columns)?;
        self.check(row).await?;
        let result = write::claim_under_lock(&mut self.lease, &self.grant, row, &claiming).await;
        self.watch(result).await
    }

    /// The connection, for whatever sqlx can do with one: query macros, savepoints, `COPY`.
    ///
    /// What happens on it is not watched. **An error of a statement run here must end the transaction**: turn it into a
    /// [`FenceError`] with `?` and drop the transaction. MySQL has rolled back everything after a dead-lock, and would run
    /// the next statement on its own, outside the fence; a commit notices that, but the statement has been run. Do not
    /// commit or roll back by hand.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub async fn connection(&mut self) -> Result<&mut DB::Connection, FenceError> {
        self.mark().await?;
        Ok(self.lease.unwatched())
    }

    /// The grant under which it was opened.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Keep it before [`commit`](Self::commit), to be able to ask what became of it when the answer was lost.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket::new(&self.grant, self.marks)
    }

    /// Makes everything permanent. When this returns, it is.
    ///
    /// # Errors
    /// [`FenceError::Unknown`] if the answer was lost: it may be committed, and [`FenceStore::settle`] tells. Every other
    /// error means that nothing was kept, also when an earlier error of this transaction was passed over.
    ///
    /// # Cancel safety
    /// If the future is dropped, the outcome is unknown in the same way. No transaction stays open.
    ///
    /// [`FenceStore::settle`]: crate::FenceStore::settle
    pub async fn commit(mut self) -> Result<(), FenceError> {
        let result = self.try_commit().await;
        record::<DB, _>("commit", &result);
        result
    }

    async fn try_commit(&mut self) -> Result<(), FenceError> {
        self.still_open()?;
        if self.unwatched {
            // Fails if the transaction was ended by a statement, if the server has rolled back (MySQL), or will roll back
            // instead of committing (Postgres).
            let released = self.lease.execute(RELEASE).await;
            // A lost answer is told as one to the commit, as nobody needs to know at which of the two it was.
            self.watch(released.map_err(FenceError::of_commit)).await?;
        }
        match self.lease.commit().await {
            Ok(()) => Ok(()),
            Err(error) => {
                // SQLite keeps a transaction open whose commit was refused.
                self.lease.rollback().await;
                Err(FenceError::of_commit(error))
            }
        }
    }

    /// Undoes everything, the raise of the ledger included.
    ///
    /// # Cancel safety
    /// If the future is dropped, the rollback goes on without it.
    pub async fn rollback(mut self) {
        self.lease.rollback().await;
    }

    /// Lets a caller's statement in, unless it would end the transaction.
    async fn admit<'q>(&mut self, query: impl Execute<'q, DB>) -> Result<Opened<DB>, FenceError> {
        let query = Opened::new(query).map_err(FenceError::of_statement)?;
        query.keeps_the_transaction()?;
        self.mark().await?;
        Ok(query)
    }

    /// Checks that a row's fence can be kept in its table.
    async fn check(&mut self, row: &Row) -> Result<(), FenceError> {
        self.still_open()?;
        let checked = self.checked.fence(&mut self.lease, row.table(), &row.fence().to_string()).await;
        self.watch(checked).await
    }

    /// Sets the savepoint by which the end notices that the transaction is still the same, before a first statement that
    /// could end it.
    async fn mark(&mut self) -> Result<(), FenceError> {
        self.still_open()?;
        if !self.unwatched {
            let marked = self.lease.execute(SAVEPOINT).await;
            self.watch(marked.map_err(FenceError::of_statement)).await?;
            self.unwatched = true;
        }
        Ok(())
    }

    /// After an error: rolls back at once, so that nobody waits for locks of a transaction that will not commit.
    async fn watch<T>(&mut self, result: Result<T, FenceError>) -> Result<T, FenceError> {
        if let Err(error) = &result {
            self.failed = Some(Failure { conflict: error.is_conflict(), message: error.to_string() });
            self.lease.rollback().await;
        }
        result
    }

    /// Whether a conflict has ended it.
    pub(crate) fn was_in_conflict(&self) -> bool {
        self.failed.as_ref().is_some_and(|failure| failure.conflict)
    }

    fn still_open(&self) -> Result<(), FenceError> {
        let Some(failure) = &self.failed else {
            return Ok(());
        };
        let source = sqlx::Error::Protocol(failure.message.clone());
        Err(if failure.conflict { FenceError::Conflict { source } } else { FenceError::Database { source } })
    }
}

impl<DB: Dialect> fmt::Debug for Transaction<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("grant", &self.grant).field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: i64, entry: Option<(i64, i64)>, expected: Settled) {
        let marks = Marks { before, own: 5 };
        let ticket = Ticket::new(&Grant::assume_granted("orders/42", 34).unwrap(), marks);
        assert_eq!(ticket.judge(entry.map(|(token, mark)| Entry { token, mark })), expected, "{before} {entry:?}");
    }

    #[test]
    fn a_mark_settles_what_became_of_a_transaction() {
        check(3, Some((34, 5)), Settled::Committed);
        check(3, None, Settled::NotCommitted);
        // The mark that it found, of an older holder or of its own grant.
        check(3, Some((33, 3)), Settled::NotCommitted);
        check(3, Some((34, 3)), Settled::NotCommitted);
        check(3, Some((33, 7)), Settled::NotCommitted);
        check(3, Some((34, 7)), Settled::Undecided);
        check(3, Some((35, 7)), Settled::Superseded { highest: 35 });
        // Left by a program in another language, before or after.
        check(0, Some((34, 0)), Settled::Undecided);
        check(0, Some((35, 0)), Settled::Superseded { highest: 35 });
        check(0, Some((33, 0)), Settled::NotCommitted);
    }
}
