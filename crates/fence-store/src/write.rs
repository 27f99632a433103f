//! Runs row-fenced statements and finds out what became of them.
//!
//! The way of a write: the fenced statement first, on its own. If it matched, that is the answer, after one round trip. If
//! not, nothing is concluded from that; the row is locked, its fence read, and the answer given under the lock.
//!
//! A count of affected rows is believed when it is not zero: no database counts a row that the condition did not match. A
//! zero proves nothing and is looked into under lock. Postgres and SQLite count what an UPDATE matched; MySQL counts what it
//! matched (so sqlx asks, with `FOUND_ROWS`) or, behind something that does not pass this on, what it changed.
//!
//! Under the lock a statement is run a second time only if the fence shows that the first run wrote nothing. A fence below
//! the token: a run that matched would have raised it to the token, and fences never fall. A fence at the token, which the
//! rewriting rule lets pass: a run that matched and was counted as zero left every column as it was, so that the second
//! run, on a row that is locked, is the first one to write anything.
//!
//! `LAST_INSERT_ID(token)` as a sign of a match was tried and dropped: a trigger on the table takes the sign away, and what
//! the caller keeps there is lost (both seen on MariaDB 10.11).

use redlock_core::{FencingToken, Grant};
use sea_query::{IntoColumnRef, ReturningClause};
use sqlx::error::ErrorKind;

use crate::dialect::{Dialect, Flavor, LockWait, Rendered};
use crate::error::{FenceError, StatementProblem};
use crate::guard;
use crate::lease::Lease;
use crate::ledger;
use crate::row::{Judgement, Row, Upsert};
use crate::schema::{LedgerTable, display};

/// How often an insertion looks again when another program inserted the row first. The second look finds it.
const INSERT_LOOKS_MAX: usize = 3;

/// The write took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// How many rows it wrote: one, if the key is unique.
    pub rows: u64,
}

/// Runs a fenced UPDATE as a transaction of its own; `None` if it matched no row. The key names one row at most, as
/// [`crate::key`] has found: nothing could be taken back.
pub(crate) async fn update_alone<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    statement: Rendered,
) -> sqlx::Result<Option<Applied>> {
    let result = lease.execute(DB::query(statement)).await?;
    let rows = DB::rows_affected(&result);
    Ok((0 < rows).then_some(Applied { rows }))
}

/// Runs a fenced UPDATE within a transaction, which is rolled back if it wrote several rows; `None` if it matched none.
pub(crate) async fn update<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    row: &Row,
    statement: Rendered,
) -> Result<Option<Applied>, FenceError> {
    let applied = update_alone(lease, statement).await.map_err(FenceError::of_statement)?;
    match applied {
        Some(Applied { rows }) if 1 < rows => Err(several_rows(row)),
        applied => Ok(applied),
    }
}

/// Runs a fenced UPDATE within a transaction, first on its own and, where it matched nothing, under the row's lock.
pub(crate) async fn update_within<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    row: &Row,
    statement: Rendered,
) -> Result<Applied, FenceError> {
    match update(lease, row, statement.clone()).await? {
        Some(applied) => Ok(applied),
        None => update_under_lock(lease, ledger, grant, row, statement).await,
    }
}

/// Locks the row and says why a fenced UPDATE matched nothing, or runs it if there is no reason any more.
///
/// Within a transaction.
pub(crate) async fn update_under_lock<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    row: &Row,
    statement: Rendered,
) -> Result<Applied, FenceError> {
    match locked_fence(lease, row).await? {
        Some(fence) => let_pass(grant, row, fence)?,
        None => return Err(absent(lease, ledger, grant, row).await?),
    }
    update(lease, row, statement)
        .await?
        // The fence lets it pass and the row is locked, so the statement's own condition does not hold.
        .ok_or_else(|| no_such_row(row))
}

/// Inserts the row or updates it, under the lock of the grant's ledger rows, which the caller has raised.
///
/// Fenced insertions of one resource queue up on the ledger, as do deletions, so neither two of them collide nor can a
/// stale one bring back a row that a newer holder deleted.
pub(crate) async fn upsert_under_lock<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
    upsert: &Upsert,
) -> Result<Applied, FenceError> {
    upsert_from(lease, grant, row, upsert, 1).await
}

/// The same, where the row was absent a moment ago and an insertion was tried since.
pub(crate) async fn upsert_after_insertion<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
    upsert: &Upsert,
) -> Result<Applied, FenceError> {
    upsert_from(lease, grant, row, upsert, 2).await
}

async fn upsert_from<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
    upsert: &Upsert,
    first_look: usize,
) -> Result<Applied, FenceError> {
    let token = grant.token();
    let insert = DB::FLAVOR.render(&row.insert(DB::FLAVOR, token, upsert)?)?;
    let rewrite = DB::FLAVOR.render(&row.update(token, &upsert.as_update())?)?;
    for look in first_look..=INSERT_LOOKS_MAX {
        if let Some(fence) = locked_fence(lease, row).await? {
            if 1 < look && fence == token.get() {
                // Absent a moment ago, and nobody else can write this token while the ledger is locked: this is the row
                // that was inserted here, and a trigger that put it elsewhere kept the insertion from being counted.
                return Ok(Applied { rows: 1 });
            }
            let_pass(grant, row, fence)?;
            return update(lease, row, rewrite).await?.ok_or_else(|| no_such_row(row));
        }
        if inserted(lease, insert.clone(), look).await? {
            return Ok(Applied { rows: 1 });
        }
    }
    Err(FenceError::conflict("another program inserts and deletes the row"))
}

/// Runs a fenced UPDATE that returns the row, under the row's lock, if the fence lets it pass. Within a transaction.
pub(crate) async fn update_returning<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    row: &Row,
    statement: Rendered,
) -> Result<DB::Row, FenceError> {
    match locked_fence(lease, row).await? {
        Some(fence) => let_pass(grant, row, fence)?,
        None => return Err(absent(lease, ledger, grant, row).await?),
    }
    one_row(lease, row, statement).await?.ok_or_else(|| no_such_row(row))
}

/// Deletes the row and returns it, under the lock of the grant's ledger rows, which the caller has raised.
pub(crate) async fn delete_returning<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
    statement: Rendered,
) -> Result<DB::Row, FenceError> {
    match locked_fence(lease, row).await? {
        Some(fence) => let_pass(grant, row, fence)?,
        None => return Err(no_such_row(row)),
    }
    let condemn = DB::FLAVOR.render(&guard::condemn(row, grant.token()))?;
    lease.execute(DB::query(condemn)).await.map_err(FenceError::of_statement)?;
    let deleted = one_row(lease, row, statement).await?;
    deleted.ok_or_else(|| StatementProblem::Suppressed { table: display(row.table()) }.into())
}

/// The one row that a statement returns; several are refused, which rolls the transaction back.
async fn one_row<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    row: &Row,
    statement: Rendered,
) -> Result<Option<DB::Row>, FenceError> {
    let mut found = lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    if 1 < found.len() { Err(several_rows(row)) } else { Ok(found.pop()) }
}

/// Deletes the row, under the lock of the grant's ledger rows, which the caller has raised and which keep the fence.
pub(crate) async fn delete_under_lock<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
) -> Result<Applied, FenceError> {
    match locked_fence(lease, row).await? {
        Some(fence) => let_pass(grant, row, fence)?,
        None => return Err(no_such_row(row)),
    }
    let condemn = DB::FLAVOR.render(&guard::condemn(row, grant.token()))?;
    lease.execute(DB::query(condemn)).await.map_err(FenceError::of_statement)?;
    let statement = DB::FLAVOR.render(&row.delete())?;
    let result = lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    match DB::rows_affected(&result) {
        // It is there and locked, so something of the table's own keeps it.
        0 => Err(StatementProblem::Suppressed { table: display(row.table()) }.into()),
        // One more than there were a moment ago.
        2.. => Err(several_rows(row)),
        rows => Ok(Applied { rows }),
    }
}

/// The statements of a claim: what raises the fence (inside a transaction, and as one of its own), and what reads where
/// those cannot return.
pub(crate) struct Claiming {
    pub(crate) raise: Rendered,
    pub(crate) alone: Rendered,
    pub(crate) read: Rendered,
}

impl Claiming {
    pub(crate) fn new<C: IntoColumnRef>(
        flavor: Flavor,
        wait: Option<LockWait>,
        token: FencingToken,
        row: &Row,
        columns: impl IntoIterator<Item = C>,
    ) -> Result<Self, FenceError> {
        let mut columns: Vec<_> = columns.into_iter().map(IntoColumnRef::into_column_ref).collect();
        if columns.is_empty() {
            // A claim of somebody who wants to know nothing; SQL has no word for that.
            columns.push(row.fence().clone().into_column_ref());
        }
        let columns = ReturningClause::Columns(columns);
        let raise = row.claim(flavor, token, &columns);
        Ok(Self {
            raise: flavor.render(&raise)?,
            alone: flavor.render(&Row::alone(flavor, wait, raise))?,
            read: flavor.render(&row.select_claimed(token, &columns))?,
        })
    }
}

/// What came of a claim that was a transaction of its own, or two.
pub(crate) enum Claimed<R> {
    Read(R),
    /// The fence was raised, and somebody newer raised it further before the row was read.
    Overtaken,
    /// No row was matched.
    NotRaised,
}

/// Raises a row's fence as a transaction of its own and reads the row. The key names one row at most.
///
/// On MySQL the fence may have been raised and kept when this fails, whatever the reason is that the row was not read: then
/// the outcome is unknown, also where the database told what kept it from answering.
pub(crate) async fn claim_alone<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    claiming: &Claiming,
) -> Result<Claimed<DB::Row>, FenceError> {
    if DB::FLAVOR != Flavor::MySql {
        let raised = lease.fetch_all(DB::query(claiming.alone.clone())).await;
        return Ok(raised.map_err(FenceError::of_commit)?.pop().map_or(Claimed::NotRaised, Claimed::Read));
    }
    if update_alone(lease, claiming.alone.clone()).await.map_err(FenceError::of_commit)?.is_none() {
        return Ok(Claimed::NotRaised);
    }
    let read = lease.fetch_all(DB::query(claiming.read.clone())).await;
    Ok(read.map_err(|source| FenceError::Unknown { source })?.pop().map_or(Claimed::Overtaken, Claimed::Read))
}

/// Raises a row's fence within a transaction and reads the row.
async fn raised_rows<DB: Dialect>(lease: &mut Lease<'_, DB>, claiming: &Claiming) -> sqlx::Result<Vec<DB::Row>> {
    if DB::FLAVOR != Flavor::MySql {
        return lease.fetch_all(DB::query(claiming.raise.clone())).await;
    }
    // No UPDATE returns rows there. The row is locked, so nobody comes between the two statements.
    let raised = lease.execute(DB::query(claiming.raise.clone())).await?;
    if DB::rows_affected(&raised) == 0 {
        return Ok(Vec::new());
    }
    lease.fetch_all(DB::query(claiming.read.clone())).await
}

/// Locks the row and claims it, or says why not. Within a transaction.
pub(crate) async fn claim_under_lock<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    row: &Row,
    statements: &Claiming,
) -> Result<DB::Row, FenceError> {
    match locked_fence(lease, row).await? {
        // A claim may be repeated, whatever the rule for writes is.
        Some(fence) => let_pass(grant, &row.clone().may_rewrite(), fence)?,
        None => return Err(no_such_row(row)),
    }
    let claimed = raised_rows(lease, statements).await;
    let mut claimed = claimed.map_err(FenceError::of_statement)?;
    match claimed.len() {
        0 | 1 => claimed.pop().ok_or_else(|| no_such_row(row)),
        _ => Err(several_rows(row)),
    }
}

/// The row's fence, read under lock, on its newest version; `None` if there is no such row.
async fn locked_fence<DB: Dialect>(lease: &mut Lease<'_, DB>, row: &Row) -> Result<Option<i64>, FenceError> {
    let statement = DB::FLAVOR.render(&row.lock())?;
    let rows = lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    one_fence::<DB>(row, &rows)
}

/// The fence in the first column of the one row that was found.
pub(crate) fn one_fence<DB: Dialect>(row: &Row, found: &[DB::Row]) -> Result<Option<i64>, FenceError> {
    match found {
        [] => Ok(None),
        [found] => DB::integer(found, 0).map_err(|source| FenceError::Database { source }),
        _ => Err(several_rows(row)),
    }
}

fn let_pass(grant: &Grant, row: &Row, fence: i64) -> Result<(), FenceError> {
    let token = grant.token();
    let target = || row.to_string();
    match row.judge(token, mutant!("a look under lock lets everything pass", fence, 0)) {
        Judgement::Passes => Ok(()),
        Judgement::AlreadyWritten => Err(FenceError::AlreadyWritten { token, target: target() }),
        Judgement::Stale => Err(FenceError::Stale { presented: token, highest: fence, target: target() }),
    }
}

/// The row is not there: was it deleted by a newer holder? The ledger knows.
async fn absent<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    row: &Row,
) -> Result<FenceError, FenceError> {
    let highest = ledger::highest(lease, ledger, grant.resources()).await?;
    Ok(match highest {
        Some((highest, resource)) if grant.token().get() < highest => ledger::stale(grant.token(), highest, &resource),
        _ => no_such_row(row),
    })
}

/// Runs the insertion of a row that was absent a moment ago; false if another program was faster.
async fn inserted<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    statement: Rendered,
    look: usize,
) -> Result<bool, FenceError> {
    if DB::FLAVOR != Flavor::MySql {
        let row = lease.fetch_optional(DB::query(statement)).await;
        return Ok(row.map_err(FenceError::of_statement)?.is_some());
    }
    match lease.execute(DB::query(statement)).await {
        Ok(_) => Ok(true),
        // Of the row's key, or of another unique one: the next look at the row tells them apart.
        Err(error) if look < INSERT_LOOKS_MAX && is_duplicate(&error) => Ok(false),
        Err(error) => Err(FenceError::of_statement(error)),
    }
}

pub(crate) fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|reported| reported.kind() == ErrorKind::UniqueViolation)
}

pub(crate) fn several_rows(row: &Row) -> FenceError {
    StatementProblem::KeyOfSeveralRows { table: display(row.table()) }.into()
}

fn no_such_row(row: &Row) -> FenceError {
    FenceError::NoSuchRow { table: display(row.table()) }
}
