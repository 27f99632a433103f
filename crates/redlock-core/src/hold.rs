//! What is known of a held lock: until when it is valid, and whether it is lost.
//!
//! Shared between the guard, which the holder has, and the watchdog, which must not keep a lock alive whose guard is gone:
//! it only ever borrows this. Looking is free of requests, and looking is what finds out that the validity is over; who
//! waits for the news hears of it through [`Hold::lost`].

use crate::clock::{Clock, Moment};
use crate::error::LossReason;
use crate::settings::Terms;
use crate::token::Grant;
use crate::undertaking::Undertaking;
use futures_util::future::select;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The longest that a wait for the end of validity goes without looking at the clock again: timers may stand still while
/// the machine sleeps, the clock does not.
pub(crate) const LOOK_AT_LEAST_EVERY: Duration = Duration::from_millis(200);

/// How sure a holder may be of its lock, by its own clock and by what it has heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldState {
    /// Valid for so long.
    Held {
        /// The validity left.
        remaining: Duration,
    },
    /// Still valid for so long, but the latest extension was not confirmed by a quorum.
    Uncertain {
        /// The validity left.
        remaining: Duration,
    },
    /// Not valid any more, for good.
    Lost(LossReason),
    /// Given back by its holder: not held any more, and not lost. Only a [`Held`](crate::Held) that outlives its guard says
    /// this.
    Released,
}

impl HoldState {
    /// Whether the lock may still be relied on.
    #[must_use]
    pub fn is_held(self) -> bool {
        matches!(self, Self::Held { .. } | Self::Uncertain { .. })
    }
}

pub(crate) struct Hold {
    undertaking: Arc<Undertaking>,
    grant: Grant,
    clock: Arc<dyn Clock>,
    lease: Mutex<Lease>,
    lost: CancellationToken,
    /// Wakes those who wait for an end of validity that now comes earlier.
    shortened: Notify,
    /// The runtime on which the lock was acquired: the one that looks after it, as it is there for its holder.
    runtime: Option<Handle>,
    /// Whether the watchdog has been asked to announce the loss.
    pub(crate) watched: AtomicBool,
    /// Whether it has been asked to keep this alive.
    pub(crate) kept: AtomicBool,
    /// One extension at a time, so that the validity noted last is that of the ttl which the nodes were sent last.
    pub(crate) extending: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    valid_until: Moment,
    terms: Terms,
    uncertain: bool,
    lost: Option<LossReason>,
    /// The holder has given it back, or is about to: nothing is to be taken for it any more.
    released: bool,
}

impl Hold {
    pub(crate) fn new(
        undertaking: Arc<Undertaking>,
        grant: Grant,
        valid_until: Moment,
        terms: Terms,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let lease = Lease { valid_until, terms, uncertain: false, lost: None, released: false };
        let (lost, extending) = (CancellationToken::new(), tokio::sync::Mutex::new(()));
        let runtime = Handle::try_current().ok();
        let (watched, kept) = (AtomicBool::new(false), AtomicBool::new(false));
        let shortened = Notify::new();
        Self { undertaking, grant, clock, lease: Mutex::new(lease), lost, shortened, runtime, watched, kept, extending }
    }

    pub(crate) fn undertaking(&self) -> &Arc<Undertaking> {
        &self.undertaking
    }

    pub(crate) fn grant(&self) -> &Grant {
        &self.grant
    }

    pub(crate) fn runtime(&self) -> Option<&Handle> {
        self.runtime.as_ref()
    }

    pub(crate) fn terms(&self) -> Terms {
        self.lease().terms
    }

    /// The state now. Whoever finds that the validity is over gives the signal.
    pub(crate) fn state(&self) -> HoldState {
        let now = self.clock.now();
        let mut lease = self.lease();
        let over = mutant!("the end of a validity is not noticed", lease.valid_until <= now, false);
        if lease.lost.is_none() && !lease.released && over {
            self.note_loss(&mut lease, LossReason::Expired);
        }
        let remaining = lease.valid_until.since(now);
        match lease.lost {
            Some(reason) => HoldState::Lost(reason),
            None if lease.released => HoldState::Released,
            None if lease.uncertain => HoldState::Uncertain { remaining },
            None => HoldState::Held { remaining },
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self.state() {
            HoldState::Held { remaining } | HoldState::Uncertain { remaining } => remaining,
            HoldState::Lost(_) | HoldState::Released => Duration::ZERO,
        }
    }

    /// Resolves once the lock is lost, no later than the end of its validity; then too if it was given back before.
    pub(crate) async fn lost(&self) -> LossReason {
        loop {
            let mut shortened = pin!(self.shortened.notified());
            // From before the look, so that nothing is missed in between.
            shortened.as_mut().enable();
            let remaining = match self.state() {
                HoldState::Lost(reason) => return reason,
                HoldState::Held { remaining } | HoldState::Uncertain { remaining } => remaining,
                HoldState::Released => self.lease().valid_until.since(self.clock.now()),
            };
            if remaining.is_zero() {
                return LossReason::Expired;
            }
            let pause = remaining.min(LOOK_AT_LEAST_EVERY);
            // Whichever comes first: the signal, an earlier end, or the time to look again.
            let _ = tokio::time::timeout(pause, select(pin!(self.lost.cancelled()), shortened)).await;
        }
    }

    pub(crate) fn lost_token(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// An extension to `new_end` is about to be sent. A node that executes a shorter one ends the lock earlier, whether or
    /// not that is heard, so the validity shrinks before anything is sent. Says whether it has.
    pub(crate) fn extending_to(&self, new_end: Moment, terms: Terms) -> bool {
        self.undertaking.extended_to(terms.lease);
        let shorter = {
            let mut lease = self.lease();
            let shorter = new_end < lease.valid_until;
            lease.valid_until = lease.valid_until.min(new_end);
            shorter
        };
        if shorter {
            self.shortened.notify_waiters();
        }
        shorter
    }

    /// A quorum has extended, and this is heard now: too late if the earlier validity is over.
    pub(crate) fn extended(&self, new_end: Moment, terms: Terms) {
        let now = self.clock.now();
        let mut lease = self.lease();
        if lease.lost.is_none() && !lease.released && lease.valid_until <= now {
            self.note_loss(&mut lease, LossReason::Expired);
        }
        if mutant!("a lost lock is extended") {
            lease.lost = None;
        }
        if lease.lost.is_none() {
            (lease.valid_until, lease.terms, lease.uncertain) = (new_end, terms, false);
        }
    }

    /// Too few nodes confirmed an extension; the earlier validity stands.
    pub(crate) fn unconfirmed(&self) {
        self.lease().uncertain = true;
    }

    /// The lock is lost. A lock that was given back is not lost: its going is no news.
    pub(crate) fn lose(&self, reason: LossReason) {
        let mut lease = self.lease();
        if lease.lost.is_none() && !lease.released {
            self.note_loss(&mut lease, reason);
        }
    }

    /// The holder gives the lock back. From now on nothing is taken for it.
    pub(crate) fn release(&self) {
        self.lease().released = true;
    }

    /// Calls `take` unless the lock has been given back or lost; while it runs, it is not.
    pub(crate) fn unless_over<T>(&self, take: impl FnOnce() -> T) -> Option<T> {
        let lease = self.lease();
        (!lease.released && lease.lost.is_none()).then(take)
    }

    fn note_loss(&self, lease: &mut Lease, reason: LossReason) {
        lease.lost = Some(reason);
        tracing::warn!(resources = %self.grant.resources(), token = self.grant.token().get(), %reason, "lock lost");
        if !mutant!("a loss is never told") {
            self.lost.cancel();
        }
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("grant", &self.grant).field("lease", &*self.lease()).finish_non_exhaustive()
    }
}
