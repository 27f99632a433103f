//! Many rows in few statements, and a verdict for each.
//!
//! The rows are locked by one statement, in the order of their keys; their fences decide; those that pass are written by
//! one statement more. Whatever is not that plain (a row that was not found, one that is rewritten under the same token,
//! a count that is less than expected) goes the way of a single row, which is right in all cases and costs a round trip.

use redlock_core::Grant;
use sea_query::UpdateStatement;

use crate::dialect::{Dialect, Flavor};
use crate::error::{FenceError, StatementProblem};
use crate::lease::Lease;
use crate::row::{Judgement, Row, Upsert};
use crate::schema::{LedgerTable, display};
use crate::write::{self, Applied};

/// How many rows one statement locks or writes. Each binds its key twice, and databases bind 32 766 values at most.
const ROWS_PER_STATEMENT: usize = 200;

/// What became of one row of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a row may have been refused"]
pub enum Verdict {
    /// It was written.
    Applied,
    /// It carries this very token already, and may not be rewritten: see [`FenceError::AlreadyWritten`].
    AlreadyWritten,
    /// A newer holder has been here: see [`FenceError::Stale`].
    Stale {
        /// The highest token that the row, or the ledger for a row that is gone, has accepted.
        highest: i64,
    },
    /// It is not there, or the statement's own condition does not hold for it: see [`FenceError::NoSuchRow`].
    NoSuchRow,
}

impl Verdict {
    /// Whether the row was written.
    #[must_use]
    pub fn is_applied(self) -> bool {
        self == Self::Applied
    }

    /// What a single write's result says of one row; an error that says nothing of the row stays one.
    fn of(result: Result<Applied, FenceError>) -> Result<Self, FenceError> {
        match result {
            Ok(_) => Ok(Self::Applied),
            Err(FenceError::AlreadyWritten { .. }) => Ok(Self::AlreadyWritten),
            Err(FenceError::Stale { highest, .. }) => Ok(Self::Stale { highest }),
            Err(FenceError::NoSuchRow { .. }) => Ok(Self::NoSuchRow),
            Err(error) => Err(error),
        }
    }
}

/// Rows of one table under one kind of key, no two of them the same, and the order in which they are locked.
pub(crate) struct Batch<'r> {
    rows: Vec<&'r Row>,
    /// Places in `rows`, by key.
    order: Vec<usize>,
}

impl<'r> Batch<'r> {
    pub(crate) fn new(rows: impl IntoIterator<Item = &'r Row>) -> Result<Self, FenceError> {
        let rows: Vec<&Row> = rows.into_iter().collect();
        // Values have no order of their own. Any will do, if it is everybody's.
        let keys: Vec<String> = rows.iter().map(|row| format!("{:?}", row.key())).collect();
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|one, other| keys[*one].cmp(&keys[*other]));
        for row in &rows {
            row.has_a_key()?;
            if !row.is_like(rows[0]) {
                return Err(StatementProblem::RowsOfSeveralKinds { table: display(rows[0].table()) }.into());
            }
        }
        if let Some(pair) = order.windows(2).find(|pair| keys[pair[0]] == keys[pair[1]]) {
            return Err(StatementProblem::RowTwice { table: display(rows[pair[0]].table()) }.into());
        }
        Ok(Self { rows, order })
    }

    /// The rows of upserts, each of which leaves alone what is the store's business.
    pub(crate) fn of_upserts(upserts: &'r [(Row, Upsert)]) -> Result<Self, FenceError> {
        for (row, upsert) in upserts {
            row.accepts(upsert)?;
        }
        Self::new(upserts.iter().map(|(row, _)| row))
    }

    /// A row that stands for all where the table and the columns are meant; `None` if there are no rows.
    pub(crate) fn first(&self) -> Option<&'r Row> {
        self.rows.first().copied()
    }

    fn chunks(&self) -> impl Iterator<Item = &[usize]> {
        self.order.chunks(ROWS_PER_STATEMENT)
    }

    fn pick(&self, places: &[usize]) -> Vec<&'r Row> {
        places.iter().map(|place| self.rows[*place]).collect()
    }
}

/// Updates rows, all by the same statement. Within a transaction.
pub(crate) async fn update<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    ledger: &LedgerTable,
    grant: &Grant,
    batch: &Batch<'_>,
    statement: &UpdateStatement,
) -> Result<Vec<Verdict>, FenceError> {
    let mut verdicts = vec![Verdict::NoSuchRow; batch.rows.len()];
    for chunk in batch.chunks() {
        let mut plain = Vec::new();
        let fences = locked_fences(lease, &batch.pick(chunk)).await?;
        for (place, fence) in chunk.iter().zip(fences) {
            let row = batch.rows[*place];
            verdicts[*place] = match fence.map(|fence| (fence, row.judge(grant.token(), fence))) {
                Some((highest, Judgement::Stale)) => Verdict::Stale { highest },
                Some((_, Judgement::AlreadyWritten)) => Verdict::AlreadyWritten,
                Some((fence, Judgement::Passes)) if fence < grant.token().get() => {
                    plain.push(*place);
                    continue;
                }
                // A count of rewritten rows would not tell which.
                Some((_, Judgement::Passes)) | None => {
                    let single = DB::FLAVOR.render(&row.update(grant.token(), statement)?)?;
                    Verdict::of(write::update_under_lock(lease, ledger, grant, row, single).await)?
                }
            };
        }
        let written = update_plain(lease, grant, &batch.pick(&plain), statement).await?;
        for (place, verdict) in plain.iter().zip(written) {
            verdicts[*place] = verdict;
        }
    }
    Ok(verdicts)
}

/// Updates rows that are locked and whose fences are below the token, by one statement.
async fn update_plain<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    rows: &[&Row],
    statement: &UpdateStatement,
) -> Result<Vec<Verdict>, FenceError> {
    let Some(first) = rows.first() else {
        return Ok(Vec::new());
    };
    let update = DB::FLAVOR.render(&Row::update_all(rows, grant.token(), statement)?)?;
    let result = lease.execute(DB::query(update)).await.map_err(FenceError::of_statement)?;
    let expected = u64::try_from(rows.len()).expect("a chunk is small");
    match DB::rows_affected(&result) {
        written if written == expected => Ok(vec![Verdict::Applied; rows.len()]),
        written if expected < written => Err(write::several_rows(first)),
        // The statement's own condition does not hold for some; those that were written carry the token now.
        _ => {
            let is_written = |fence| fence == Some(grant.token().get());
            let verdict = |fence| if is_written(fence) { Verdict::Applied } else { Verdict::NoSuchRow };
            Ok(locked_fences(lease, rows).await?.into_iter().map(verdict).collect())
        }
    }
}

/// Inserts or updates rows, under the lock of the grant's ledger rows, which the caller has raised.
pub(crate) async fn upsert<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    batch: &Batch<'_>,
    upserts: &[(Row, Upsert)],
) -> Result<Vec<Verdict>, FenceError> {
    let mut verdicts = vec![Verdict::NoSuchRow; batch.rows.len()];
    for chunk in batch.chunks() {
        let (mut absent, mut plain) = (Vec::new(), Vec::new());
        let fences = locked_fences(lease, &batch.pick(chunk)).await?;
        for (place, fence) in chunk.iter().zip(fences) {
            match fence.map(|fence| (fence, batch.rows[*place].judge(grant.token(), fence))) {
                None => absent.push(*place),
                Some((highest, Judgement::Stale)) => verdicts[*place] = Verdict::Stale { highest },
                Some((_, Judgement::AlreadyWritten)) => verdicts[*place] = Verdict::AlreadyWritten,
                Some((fence, Judgement::Passes)) if fence < grant.token().get() => plain.push(*place),
                Some((_, Judgement::Passes)) => {
                    let single = write::upsert_under_lock(lease, grant, batch.rows[*place], &upserts[*place].1).await;
                    verdicts[*place] = Verdict::of(single)?;
                }
            }
        }
        // Those that are written alike, by one statement.
        while let Some(like) = plain.first().map(|place| upserts[*place].1.as_update()) {
            let (alike, others) = plain.into_iter().partition(|place| upserts[*place].1.as_update() == like);
            plain = others;
            let written = update_plain(lease, grant, &batch.pick(&alike), &like).await?;
            for (place, verdict) in alike.iter().zip(written) {
                verdicts[*place] = verdict;
            }
        }
        while let Some(like) = absent.first().map(|place| &upserts[*place].1) {
            let (alike, others): (Vec<_>, _) =
                absent.into_iter().partition(|place| upserts[*place].1.inserts_like(like));
            absent = others;
            let values: Vec<_> = alike.iter().map(|place| (batch.rows[*place], &upserts[*place].1)).collect();
            let all = insert(lease, grant, &values).await?;
            for (place, (row, upsert)) in alike.iter().zip(values) {
                verdicts[*place] = if all {
                    Verdict::Applied
                } else {
                    Verdict::of(write::upsert_after_insertion(lease, grant, row, upsert).await)?
                };
            }
        }
    }
    Ok(verdicts)
}

/// Inserts rows that were absent a moment ago by one statement; whether all of them were.
async fn insert<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    values: &[(&Row, &Upsert)],
) -> Result<bool, FenceError> {
    let statement = DB::FLAVOR.render(&Row::insert_all(DB::FLAVOR, grant.token(), values)?)?;
    if DB::FLAVOR == Flavor::MySql {
        return match lease.execute(DB::query(statement)).await {
            Ok(_) => Ok(true),
            // The whole statement was undone.
            Err(error) if write::is_duplicate(&error) => Ok(false),
            Err(error) => Err(FenceError::of_statement(error)),
        };
    }
    let inserted = lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    Ok(inserted.len() == values.len())
}

/// Deletes rows, under the lock of the grant's ledger rows, which the caller has raised and which keep the fence.
pub(crate) async fn delete<DB: Dialect>(
    lease: &mut Lease<'_, DB>,
    grant: &Grant,
    batch: &Batch<'_>,
) -> Result<Vec<Verdict>, FenceError> {
    let mut verdicts = vec![Verdict::NoSuchRow; batch.rows.len()];
    for chunk in batch.chunks() {
        let mut doomed = Vec::new();
        let fences = locked_fences(lease, &batch.pick(chunk)).await?;
        for (place, fence) in chunk.iter().zip(fences) {
            let row = batch.rows[*place];
            verdicts[*place] = match fence.map(|fence| (fence, row.judge(grant.token(), fence))) {
                Some((highest, Judgement::Stale)) => Verdict::Stale { highest },
                Some((_, Judgement::AlreadyWritten)) => Verdict::AlreadyWritten,
                Some((_, Judgement::Passes)) => {
                    doomed.push(row);
                    Verdict::Applied
                }
                None => Verdict::of(write::delete_under_lock(lease, grant, row).await)?,
            };
        }
        if let Some(first) = doomed.first() {
            let condemn = DB::FLAVOR.render(&Row::condemn_all(&doomed, grant.token()))?;
            lease.execute(DB::query(condemn)).await.map_err(FenceError::of_statement)?;
            let statement = DB::FLAVOR.render(&Row::delete_all(&doomed))?;
            let result = lease.execute(DB::query(statement)).await.map_err(FenceError::of_statement)?;
            match usize::try_from(DB::rows_affected(&result)) {
                Ok(deleted) if deleted == doomed.len() => {}
                Ok(deleted) if deleted < doomed.len() => {
                    return Err(StatementProblem::Suppressed { table: display(first.table()) }.into());
                }
                _ => return Err(write::several_rows(first)),
            }
        }
    }
    Ok(verdicts)
}

/// Locks rows and reads their fences, on their newest versions; `None` for one that was not found.
async fn locked_fences<DB: Dialect>(lease: &mut Lease<'_, DB>, rows: &[&Row]) -> Result<Vec<Option<i64>>, FenceError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let statement = DB::FLAVOR.render(&Row::lock_all(rows))?;
    let found = lease.fetch_all(DB::query(statement)).await.map_err(FenceError::of_statement)?;
    let mut fences = vec![None; rows.len()];
    for row in &found {
        let integer = |index| DB::integer(row, index).map_err(|source| FenceError::Database { source });
        let place = integer(0)?.and_then(|place| usize::try_from(place).ok()).and_then(|place| fences.get_mut(place));
        let Some(fence) = place else { continue };
        if fence.is_some() {
            return Err(write::several_rows(rows[0]));
        }
        *fence = integer(1)?;
    }
    Ok(fences)
}
