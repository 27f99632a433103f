//! Runs fenced work again while it loses to others, and never when it must not.
//!
//! Work is run again after a conflict only: everything was rolled back then, and others made progress. It is not run again
//! after *stale*, whatever is left of the lock, nor after an error of its own. Before each run the lock is looked at, as
//! work that begins when its lock is over only keeps its successor waiting. Safety does not rest on that look, nor on any
//! clock: the transaction is fenced.

use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlock_core::{Grant, Guard, Held};

use crate::dialect::{Dialect, Isolation};
use crate::error::{FenceError, StatementProblem};
use crate::store::FenceStore;
use crate::transaction::{Settled, Transaction};

/// How often work is run unless said otherwise, the first time included.
const ATTEMPTS_MAX: u32 = 10;

/// The longest pause after the first conflict; it doubles with each further one, and chance chooses how much of it is used.
const PAUSE_MIN: Duration = Duration::from_millis(4);

/// The longest pause of all.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A grant that knows how long its lock may still be relied on: a guard, what it lends as [`Held`], or a [`Lent`] grant.
pub trait Validity: AsRef<Grant> {
    /// What is left; zero once it is over or the lock is known to be lost. Asks nobody.
    fn validity(&self) -> Duration;
}

impl Validity for Guard {
    fn validity(&self) -> Duration {
        self.remaining()
    }
}

impl Validity for Held {
    fn validity(&self) -> Duration {
        self.remaining()
    }
}

/// A grant that came from elsewhere, over a wire, with a way to know what is left of it.
///
/// ```
/// use std::time::Duration;
/// let grant = redlock_core::Grant::assume_granted("orders/42", 34).unwrap();
/// // The job's message said how long; who keeps no clock for it may say `Duration::MAX`, and relies on the fence alone.
/// let lent = fence_store::Lent::new(grant, || Duration::MAX);
/// ```
#[derive(Clone)]
pub struct Lent<F> {
    grant: Grant,
    validity: F,
}

impl<F: Fn() -> Duration> Lent<F> {
    /// A grant, and what tells how long it is still valid.
    pub fn new(grant: Grant, validity: F) -> Self {
        Self { grant, validity }
    }
}

impl<F> AsRef<Grant> for Lent<F> {
    fn as_ref(&self) -> &Grant {
        &self.grant
    }
}

impl<F: Fn() -> Duration> Validity for Lent<F> {
    fn validity(&self) -> Duration {
        (self.validity)()
    }
}

impl<F> fmt::Debug for Lent<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// One run's transaction, lent to the work: a [`Transaction`] that goes back to be committed when this is dropped.
///
/// Keep it in the work's future and nowhere else. A run that ends while it is kept elsewhere is not committed.
#[must_use = "the work is done with it"]
pub struct Attempt<DB: Dialect> {
    /// Always there until it is dropped.
    transaction: Option<Transaction<DB>>,
    back: Arc<Mutex<Option<Transaction<DB>>>>,
}

impl<DB: Dialect> Deref for Attempt<DB> {
    type Target = Transaction<DB>;

    fn deref(&self) -> &Transaction<DB> {
        self.transaction.as_ref().expect("an attempt keeps its transaction until it is dropped")
    }
}

impl<DB: Dialect> DerefMut for Attempt<DB> {
    fn deref_mut(&mut self) -> &mut Transaction<DB> {
        self.transaction.as_mut().expect("an attempt keeps its transaction until it is dropped")
    }
}

impl<DB: Dialect> Drop for Attempt<DB> {
    fn drop(&mut self) {
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = self.transaction.take();
    }
}

impl<DB: Dialect> fmt::Debug for Attempt<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Attempt").field(&self.transaction).finish()
    }
}

/// How fenced work is run: how often at most, at which isolation level, with how much of the lock left.
///
/// From [`FenceStore::running`].
#[derive(Clone, Debug)]
#[must_use = "nothing is run until `run` is awaited"]
pub struct Running<DB: Dialect> {
    store: FenceStore<DB>,
    attempts_max: u32,
    isolation: Isolation,
    validity_min: Duration,
}

impl<DB: Dialect> FenceStore<DB> {
    /// Runs work in a ledger transaction, and again while it is in conflict with others.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn example(store: fence_store::FenceStore<sqlx::Postgres>, guard: redlock_core::Guard)
    /// # -> Result<(), fence_store::FenceError> {
    /// let moved = store
    ///     .run(&guard, |mut transaction| async move {
    ///         transaction.execute("UPDATE accounts SET balance = balance - 5 WHERE id = 1").await?;
    ///         transaction.execute("UPDATE accounts SET balance = balance + 5 WHERE id = 2").await?;
    ///         Ok::<_, fence_store::FenceError>(5)
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// `Ok` means that it was committed, once. The work may have been run several times; what it did outside the
    /// transaction was done as often. An error of the work's own rolls back and ends it: so does *stale*. A conflict
    /// (serialization failure, dead-lock, lock wait, busy; at a statement or at the commit) is followed by a short pause
    /// that chance chooses, and another run, ten in all; [`running`](Self::running) sets that and more. A commit whose
    /// answer was lost is [settled](Self::settle) here, as far as the ledger can tell.
    ///
    /// What makes a run a conflict is what the database told its transaction, and not what the work made of it. Only an
    /// error on the bare [`connection`](Transaction::connection) has to be handed out as a [`FenceError`] to be seen.
    ///
    /// # Errors
    /// [`FenceError::LockOver`] before a run for which nothing is left of the lock; the last [`FenceError::Conflict`] when
    /// all runs were in conflict; [`FenceError::Unknown`] if nobody can tell what became of the commit; whatever
    /// [`begin`](Self::begin) answers, and the work's own.
    ///
    /// # Cancel safety
    /// If the future is dropped, the run is rolled back; while it is being committed, its outcome is unknown.
    pub async fn run<T, E, F, W>(&self, holder: &(impl Validity + Sync), work: F) -> Result<T, E>
    where
        F: FnMut(Attempt<DB>) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<FenceError> + 'static,
    {
        self.running().run(holder, work).await
    }

    /// Says how work is run; [`Running::run`] runs it.
    pub fn running(&self) -> Running<DB> {
        Running {
            store: self.clone(),
            attempts_max: ATTEMPTS_MAX,
            isolation: Isolation::default(),
            validity_min: Duration::ZERO,
        }
    }
}

impl<DB: Dialect> Running<DB> {
    /// How often the work is run at most, the first time included; 10 by default. 0 is taken as 1.
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// The isolation level; read committed by default.
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// How much of the lock must be left for a run to begin: the time that one needs, more or less. By default any.
    pub fn validity_min(mut self, validity: Duration) -> Self {
        self.validity_min = validity;
        self
    }

    /// Runs the work: see [`FenceStore::run`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn run<T, E, F, W>(&self, holder: &(impl Validity + Sync), mut work: F) -> Result<T, E>
    where
        F: FnMut(Attempt<DB>) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<FenceError> + 'static,
    {
        let mut attempt = 1;
        loop {
            let left = holder.validity();
            if left <= self.validity_min {
                return Err(FenceError::LockOver { left, runs: attempt - 1 }.into());
            }
            match self.once(holder.as_ref(), &mut work).await {
                Outcome::Done(result) => return result,
                Outcome::Conflict(error) if attempt == self.attempts_max => return Err(error),
                Outcome::Conflict(_) => {
                    tokio::time::sleep(pause(attempt, random()).min(holder.validity())).await;
                    attempt += 1;
                }
            }
        }
    }

    async fn once<T, E, F, W>(&self, grant: &Grant, work: &mut F) -> Outcome<T, E>
    where
        F: FnMut(Attempt<DB>) -> W,
        W: Future<Output = Result<T, E>>,
        E: From<FenceError> + 'static,
    {
        let transaction = match self.store.begin_with(grant, self.isolation).await {
            Ok(transaction) => transaction,
            Err(error) => return Outcome::of(error),
        };
        let ticket = transaction.ticket();
        let back = Arc::new(Mutex::new(None));
        let result = work(Attempt { transaction: Some(transaction), back: Arc::clone(&back) }).await;
        let transaction = back.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (result, transaction) {
            (Ok(_), None) => Outcome::of(StatementProblem::TransactionKept.into()),
            (Ok(value), Some(transaction)) => match transaction.commit().await {
                Ok(()) => Outcome::Done(Ok(value)),
                Err(FenceError::Unknown { source }) => match self.store.settle(&ticket).await {
                    Ok(Settled::Committed) => Outcome::Done(Ok(value)),
                    Ok(Settled::NotCommitted) => Outcome::Conflict(FenceError::Conflict { source }.into()),
                    Ok(Settled::Undecided | Settled::Superseded { .. }) | Err(_) => {
                        Outcome::Done(Err(FenceError::Unknown { source }.into()))
                    }
                },
                Err(error) => Outcome::of(error),
            },
            (Err(error), transaction) => {
                let seen = (&error as &dyn Any).downcast_ref().is_some_and(FenceError::is_conflict);
                let is_conflict = seen || transaction.as_ref().is_some_and(Transaction::was_in_conflict);
                if let Some(transaction) = transaction {
                    transaction.rollback().await;
                }
                if is_conflict { Outcome::Conflict(error) } else { Outcome::Done(Err(error)) }
            }
        }
    }
}

/// What one run came to.
enum Outcome<T, E> {
    Done(Result<T, E>),
    Conflict(E),
}

impl<T, E: From<FenceError>> Outcome<T, E> {
    fn of(error: FenceError) -> Self {
        if error.is_conflict() { Self::Conflict(error.into()) } else { Self::Done(Err(error.into())) }
    }
}

/// How long to wait after so many conflicts; `random` says how much of the longest pause is used.
fn pause(conflicts: u32, random: u64) -> Duration {
    let doubled = 1_u32.checked_shl(conflicts.saturating_sub(1)).unwrap_or(u32::MAX);
    let longest = PAUSE_MIN.saturating_mul(doubled).min(PAUSE_MAX);
    let micros = u64::try_from(longest.as_micros()).expect("half a second fits");
    Duration::from_micros(random % (micros + 1))
}

fn random() -> u64 {
    getrandom::u64().expect("the system has randomness")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_chance_spreads_them() {
        let longest = |conflicts| (0..2_000).map(|step| pause(conflicts, step * 500)).max().unwrap();
        assert_eq!(pause(1, 4_000), PAUSE_MIN);
        assert_eq!(pause(1, 0), Duration::ZERO);
        assert_eq!(pause(3, 16_000), PAUSE_MIN * 4);
        for conflicts in [8, 31, 32, 33, u32::MAX] {
            assert_eq!(pause(conflicts, 500_000), PAUSE_MAX, "{conflicts}");
            assert!(longest(conflicts) <= PAUSE_MAX, "{conflicts}");
        }
    }
}
