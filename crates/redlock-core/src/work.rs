//! Work under a lock, in one call: acquire, keep alive, work, release.
//!
//! The result says which of the three it was: not acquired, lost on the way, or done while the lock was held throughout.

use crate::error::{AcquireError, LossReason};
use crate::guard::{Held, ReleaseOutcome};
use crate::hold::HoldState;
use crate::redlock::{Redlock, Request};
use crate::resource::IntoResources;
use crate::watchdog::KeepAlive;
use futures_util::future::{Either, select};
use std::pin::pin;

/// What happens to the work when its lock is lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum OnLoss {
    /// Its future is dropped, at whichever await it is.
    #[default]
    Drop,
    /// It goes on, and hears of it through [`Held`]; whatever it returns afterwards, the result is an error.
    Tell,
}

/// Work that is to be done under a lock.
#[derive(Debug)]
#[must_use = "work does nothing until `run` is awaited"]
pub struct Work<'a> {
    request: Request<'a>,
    keep_alive: KeepAlive,
    on_loss: OnLoss,
}

impl Redlock {
    /// Locks `resources`, keeps them locked while `work` runs, and releases them.
    ///
    /// ```
    /// # async fn example(redlock: redlock_core::Redlock) -> Result<(), redlock_core::WorkError> {
    /// let rows = redlock
    ///     .with_lock("reports/2026-11", |held| async move {
    ///         println!("rebuilding under token {}", held.token());
    ///         42
    ///     })
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`WorkError`]: the lock was not acquired, or it was lost while the work ran. In the latter case the work's future
    /// has been dropped; use [`Request::work`] for work that must not be dropped.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work is dropped with it and the lock is given back in the background. So it is if the
    /// work panics.
    pub async fn with_lock<T, F, W>(&self, resources: impl IntoResources, work: F) -> Result<T, WorkError>
    where
        F: FnOnce(Held) -> W,
        W: Future<Output = T>,
    {
        self.request(resources).work().run(work).await
    }
}

impl<'a> Request<'a> {
    /// Turns the request into work that is done under the lock.
    pub fn work(self) -> Work<'a> {
        Work { request: self, keep_alive: KeepAlive::default(), on_loss: OnLoss::default() }
    }
}

impl Work<'_> {
    /// How the lock is kept alive.
    pub fn keep_alive(mut self, keep_alive: KeepAlive) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// What happens to the work when the lock is lost.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Acquires, works, releases; see [`Redlock::with_lock`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn run<T, F, W>(self, work: F) -> Result<T, WorkError>
    where
        F: FnOnce(Held) -> W,
        W: Future<Output = T>,
    {
        let guard = self.request.acquire().await?;
        guard.keep_alive(self.keep_alive);
        let held = guard.held();
        let result = {
            let work = pin!(work(held.clone()));
            match self.on_loss {
                OnLoss::Tell => Ok(work.await),
                OnLoss::Drop => match select(work, pin!(held.lost())).await {
                    Either::Left((value, _)) => Ok(value),
                    Either::Right((reason, _)) => Err(reason),
                },
            }
        };
        let result = match (result, held.state()) {
            (Err(reason), _) | (Ok(_), HoldState::Lost(reason)) => Err(reason),
            (Ok(value), _) => Ok(value),
        };
        let release = guard.release().await;
        match result {
            Err(reason) => Err(WorkError::Lost { reason }),
            // Nobody had told us yet, and yet somebody took it away before the work was done.
            Ok(_) if release.outcome == ReleaseOutcome::AlreadyGone => {
                Err(WorkError::Lost { reason: LossReason::Expired })
            }
            Ok(value) => Ok(value),
        }
    }
}

/// Why work was not done under its lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkError {
    /// The lock was not acquired, and the work never began.
    #[error("the work did not begin: {0}")]
    Acquire(#[from] AcquireError),
    /// The lock was lost while the work ran. Somebody else may have done the same work; what the work returned, if it
    /// did, is dropped, because it cannot be relied on.
    #[error("the lock was lost while the work ran: {reason}")]
    Lost {
        /// How that came to be known.
        reason: LossReason,
    },
}
