//! Looks over the shoulder of every holder after each step of its process: until when does it believe in its lock, and was
//! it told in time that it is lost (P7)?
//!
//! Looking at a lock is one of the ways in which its loss is noticed, so a look could do the watchdog's work. It does not:
//! validities are longer than the time between two looks, so a lock that is found lost was found valid by the look before,
//! and how late it is can be told.

use super::history::Granted;
use super::invariants::told_in_time;
use super::plan::Millis;
use super::process::{Shared, lock};
use redlock_core::{Held, Moment};
use tokio_util::sync::CancellationToken;

/// The longest time between two looks at a process that runs.
pub(crate) const LOOKS_EVERY: Millis = 40;

/// A lock that is looked at.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) grant: usize,
    pub(crate) held: Held,
    /// Its holder has asked to be told.
    pub(crate) told: Option<CancellationToken>,
    pub(crate) valid_until: Moment,
}

impl Watched {
    pub(crate) fn new(grant: usize, held: Held, told: Option<CancellationToken>, process: &Shared) -> Self {
        let valid_until = redlock_core::Clock::now(process).after(held.remaining());
        Self { grant, held, told, valid_until }
    }
}

/// Looks at all locks of a process. Inside its runtime, so that its clock tells its time.
pub(crate) fn look(process: &Shared) {
    let mut watched = lock(&process.watched);
    if watched.is_empty() {
        return;
    }
    let (now, clock) = (process.now(), process.clock_now());
    let mut history = lock(&process.history);
    watched.retain_mut(|lock| {
        let told = lock.told.as_ref().is_some_and(CancellationToken::is_cancelled);
        let remaining = lock.held.remaining();
        let grant: &mut Granted = &mut history.grants[lock.grant];
        if !remaining.is_zero() {
            lock.valid_until = clock.after(remaining);
            grant.believed_until = now + process.in_world(remaining);
            return true;
        }
        grant.ended.get_or_insert(now);
        history.note("lock lost");
        if told {
            history.note("loss announced by the token");
        } else if lock.told.is_some()
            && let Some(what) = told_in_time::check(process, lock.grant, lock.valid_until, (now, clock))
        {
            history.violated("told_in_time", what);
        }
        false
    });
}

impl Shared {
    pub(crate) fn clock_now(&self) -> Moment {
        redlock_core::Clock::now(self)
    }
}
