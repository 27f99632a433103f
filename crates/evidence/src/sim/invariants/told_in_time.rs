//! P7: whoever has asked to be told hears of the loss of a lock no later than its validity ends on the holder's own clock.
//!
//! Looked at when it comes: by the audit, for the signal, and by those who wait for `lost`. A process that does not run
//! cannot hear, and one that has just gone on may have to wait for its timers.

use crate::sim::plan::Millis;
use crate::sim::process::Shared;
use redlock_core::Moment;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Timers end at whole milliseconds, and clocks run apart while one is waited for.
const ROUNDING: Duration = Duration::from_millis(4);

/// After a sleep of the machine, timers are behind by as much as a wait goes without looking at the clock.
const AFTER_PAUSE: Millis = 205;

/// What is wrong if a holder hears at `now`, when its clock shows `clock`, of what was over at `valid_until`.
pub(crate) fn check(
    process: &Shared,
    grant: usize,
    valid_until: Moment,
    (now, clock): (Millis, Moment),
) -> Option<String> {
    let since_pause = now.saturating_sub(process.resumed_at.load(Ordering::Relaxed));
    let paused = process.pauses.load(Ordering::Relaxed) != 0 && since_pause <= AFTER_PAUSE;
    let late = clock.since(valid_until);
    (!paused && ROUNDING < late).then(|| format!("{process:?} was not told of the end of grant {grant} for {late:?}"))
}
