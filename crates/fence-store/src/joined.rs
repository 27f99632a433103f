//! A transaction that the caller began and will end, fenced.
//!
//! Comes from [`FenceStore::join`](crate::FenceStore::join), which raised the ledger's rows in it. What holds then is what
//! holds in a [`crate::Transaction`]; but nobody watches over it: errors do not roll it back, and a statement that ends it
//! is not held up. Both are the caller's.

use std::fmt;

use redlock_core::Grant;
use sea_query::{IntoColumnRef, UpdateStatement};

use crate::check::Checked;
use crate::dialect::Dialect;
use crate::error::FenceError;
use crate::lease::Lease;
use crate::ledger::Marks;
use crate::many::{self, Batch, Verdict};
use crate::row::{Row, Upsert};
use crate::schema::LedgerTable;
use crate::transaction::Ticket;
use crate::write::{self, Applied};

/// A caller's transaction under a grant. The fence is in the database until the transaction ends, so this may be dropped at
/// once, and has to be before the commit.
///
/// Kept, it writes rows that have a fence of their own, and lends the connection for everything else.
pub struct Joined<'c, DB: Dialect> {
    lease: Lease<'c, DB>,
    ledger: LedgerTable,
    grant: Grant,
    marks: Marks,
    checked: Checked,
}

impl<'c, DB: Dialect> Joined<'c, DB> {
    pub(crate) fn new(lease: Lease<'c, DB>, ledger: LedgerTable, grant: Grant, marks: Marks, checked: Checked) -> Self {
        Self { lease, ledger, grant, marks, checked }
    }

    /// The connection, for all that sqlx can do with one.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self.lease.unwatched()
    }

    /// The grant under which it was joined.
    #[must_use]
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Keep it before the commit, to be able to ask [`FenceStore::settle`](crate::FenceStore::settle) what became of the
    /// transaction when the answer was lost.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        Ticket::new(&self.grant, self.marks)
    }

    /// Updates a row that has a fence of its own, as [`FenceStore::update`](crate::FenceStore::update) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn update(&mut self, row: &Row, statement: &UpdateStatement) -> Result<Applied, FenceError> {
        let statement = DB::FLAVOR.render(&row.update(self.grant.token(), statement)?)?;
        self.check(row).await?;
        write::update_within(&mut self.lease, &self.ledger, &self.grant, row, statement).await
    }

    /// Inserts or updates a row that has a fence of its own, as [`FenceStore::upsert`](crate::FenceStore::upsert) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn upsert(&mut self, row: &Row, upsert: &Upsert) -> Result<Applied, FenceError> {
        row.accepts(upsert)?;
        self.check(row).await?;
        write::upsert_under_lock(&mut self.lease, &self.grant, row, upsert).await
    }

    /// Deletes a row that has a fence of its own, as [`FenceStore::delete`](crate::FenceStore::delete) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn delete(&mut self, row: &Row) -> Result<Applied, FenceError> {
        row.has_a_key()?;
        self.check(row).await?;
        write::delete_under_lock(&mut self.lease, &self.grant, row).await
    }

    /// Updates many rows by one statement, as [`FenceStore::update_rows`](crate::FenceStore::update_rows) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back. A verdict is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn update_rows(&mut self, rows: &[Row], statement: &UpdateStatement) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        first.update(self.grant.token(), statement)?;
        self.check(first).await?;
        many::update(&mut self.lease, &self.ledger, &self.grant, &batch, statement).await
    }

    /// Inserts or updates many rows, as [`FenceStore::upsert_rows`](crate::FenceStore::upsert_rows) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back. A verdict is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn upsert_rows(&mut self, upserts: &[(Row, Upsert)]) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::of_upserts(upserts)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        self.check(first).await?;
        many::upsert(&mut self.lease, &self.grant, &batch, upserts).await
    }

    /// Deletes many rows, as [`FenceStore::delete_rows`](crate::FenceStore::delete_rows) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back. A verdict is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn delete_rows(&mut self, rows: &[Row]) -> Result<Vec<Verdict>, FenceError> {
        let batch = Batch::new(rows)?;
        let Some(first) = batch.first() else {
            return Ok(Vec::new());
        };
        self.check(first).await?;
        many::delete(&mut self.lease, &self.grant, &batch).await
    }

    /// Claims a row that has a fence of its own, as [`Transaction::claim`](crate::Transaction::claim) does.
    ///
    /// # Errors
    /// The same. After any of them roll the transaction back.
    ///
    /// # Cancel safety
    /// If the future is dropped, roll the transaction back.
    pub async fn claim<C: IntoColumnRef>(
        &mut self,
        row: &Row,
        columns: impl IntoIterator<Item = C> + Send,
    ) -> Result<DB::Row, FenceError> {
        row.has_a_key()?;
        let claiming = write::Claiming::new(DB::FLAVOR, None, self.grant.token(), row, columns)?;
        self.check(row).await?;
        write::claim_under_lock(&mut self.lease, &self.grant, row, &claiming).await
    }

    async fn check(&mut self, row: &Row) -> Result<(), FenceError> {
        self.checked.fence(&mut self.lease, row.table(), &row.fence().to_string()).await
    }
}

impl<DB: Dialect> fmt::Debug for Joined<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("grant", &self.grant).finish_non_exhaustive()
    }
}
