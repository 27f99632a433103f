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

use redlock_core::Grant;
use sqlx::error::ErrorKind;

use crate::dialect::{Dialect, Flavor, Rendered};
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

/// Runs a fenced UPDATE; `None` if it matched no row.
pub(crate) async fn update<DB: Dialect>(lease: &mut Lease<DB>, statement: Rendered) -> sqlx::Result<Option<Applied>> {
    let result = lease.execute(DB::query(statement)).await?;
    let rows = DB::rows_affected(&result);
    Ok((0 < rows).then_some(Applied { rows }))
}

/// Locks the row and says why a fenced UPDATE matched nothing, or runs it if there is no reason any more.
///
/// Within a transaction.
pub(crate) async fn update_under_lock<DB: Dialect>(
    lease: &mut Lease<DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    row: &Row,
    statement: Rendered,
) -> Result<Applied, FenceError> {
    match locked_fence(lease, row).await? {
        Some(fence) => let_pass(grant, row, fence)?,
        None => return Err(absent(lease, ledger, grant, row).await?),
    }
    update(lease, statement)
        .await
        .map_err(FenceError::of_statement)?
        // The fence lets it pass and the row is locked, so the statement's own condition does not hold.
        .ok_or_else(|| no_such_row(row))
}

/// Inserts the row or updates it, under the lock of the grant's ledger rows, which the caller has raised.
///
/// Fenced insertions of one resource queue up on the ledger, as do deletions, so neither two of them collide nor can a
/// stale one bring back a row that a newer holder deleted.
pub(crate) async fn upsert_under_lock<DB: Dialect>(
    lease: &mut Lease<DB>,
    grant: &Grant,
    row: &Row,
    upsert: &Upsert,
) -> Result<Applied, FenceError> {
    let token = grant.token();
    let insert = DB::FLAVOR.render(&row.insert(DB::FLAVOR, token, upsert)?)?;
    let rewrite = DB::FLAVOR.render(&row.update(token, &upsert.as_update())?)?;
    for look in 1..=INSERT_LOOKS_MAX {
        if let Some(fence) = locked_fence(lease, row).await? {
            if 1 < look && fence == token.get() {
                // Absent a moment ago, and nobody else can write this token while the ledger is locked: this is the row
                // that was inserted here, and a trigger that put it elsewhere kept the insertion from being counted.
                return Ok(Applied { rows: 1 });
            }
            let_pass(grant, row, fence)?;
            let updated = update(lease, rewrite).await.map_err(FenceError::of_statement)?;
            return updated.ok_or_else(|| no_such_row(row));
        }
        if inserted(lease, insert.clone(), look).await? {
            return Ok(Applied { rows: 1 });
        }
    }
    Err(FenceError::conflict("another program inserts and deletes the row"))
}

/// Deletes the row, under the lock of the grant's ledger rows, which the caller has raised and which keep the fence.
pub(crate) async fn delete_under_lock<DB: Dialect>(
    lease: &mut Lease<DB>,
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
        rows => Ok(Applied { rows }),
    }
}

/// The statements of a claim inside a transaction: what raises the fence, and what reads where the first cannot return.
pub(crate) struct Claiming {
    pub(crate) raise: Rendered,
    pub(crate) read: Rendered,
}

/// Raises a row's fence and reads the row; `None` if none was raised.
pub(crate) async fn claim<DB: Dialect>(
    lease: &mut Lease<DB>,
    raise: Rendered,
    read: &Rendered,
) -> sqlx::Result<Option<DB::Row>> {
    if DB::FLAVOR != Flavor::MySql {
        return lease.fetch_optional(DB::query(raise)).await;
    }
    // No UPDATE returns rows there. Between the two statements only newer holders can write, and if one does, its token is
    // not ours and the second statement finds nothing.
    let raised = lease.execute(DB::query(raise)).await?;
    if DB::rows_affected(&raised) == 0 {
        return Ok(None);
    }
    lease.fetch_optional(DB::query(read.clone())).await
}

/// Locks the row and claims it, or says why not. Within a transaction.
pub(crate) async fn claim_under_lock<DB: Dialect>(
    lease: &mut Lease<DB>,
    grant: &Grant,
    row: &Row,
    statements: &Claiming,
) -> Result<DB::Row, FenceError> {
    match locked_fence(lease, row).await? {
        // A claim may be repeated, whatever the rule for writes is.
        Some(fence) => let_pass(grant, &row.clone().may_rewrite(), fence)?,
        None => return Err(no_such_row(row)),
    }
    let claimed = claim(lease, statements.raise.clone(), &statements.read).await;
    claimed.map_err(FenceError::of_statement)?.ok_or_else(|| no_such_row(row))
}

/// The row's fence, read under lock, on its newest version; `None` if there is no such row.
async fn locked_fence<DB: Dialect>(lease: &mut Lease<DB>, row: &Row) -> Result<Option<i64>, FenceError> {
    let statement = DB::FLAVOR.render(&row.lock())?;
    let rows = lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    match rows.as_slice() {
        [] => Ok(None),
        [found] => DB::integer(found, 0).map_err(|source| FenceError::Database { source }),
        _ => Err(StatementProblem::KeyOfSeveralRows { table: display(row.table()) }.into()),
    }
}

fn let_pass(grant: &Grant, row: &Row, fence: i64) -> Result<(), FenceError> {
    let token = grant.token();
    let target = || row.to_string();
    match row.judge(token, fence) {
        Judgement::Passes => Ok(()),
        Judgement::AlreadyWritten => Err(FenceError::AlreadyWritten { token, target: target() }),
        Judgement::Stale => Err(FenceError::Stale { presented: token, highest: fence, target: target() }),
    }
}

/// The row is not there: was it deleted by a newer holder? The ledger knows.
async fn absent<DB: Dialect>(
    lease: &mut Lease<DB>,
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
async fn inserted<DB: Dialect>(lease: &mut Lease<DB>, statement: Rendered, look: usize) -> Result<bool, FenceError> {
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

fn is_duplicate(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|reported| reported.kind() == ErrorKind::UniqueViolation)
}

fn no_such_row(row: &Row) -> FenceError {
    FenceError::NoSuchRow { table: display(row.table()) }
}
