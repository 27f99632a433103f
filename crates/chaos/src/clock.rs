//! The time that all processes of a run have in common, in microseconds.
//!
//! `CLOCK_BOOTTIME` is one for the whole machine, whoever asks, so what two processes wrote down can be put in order. Read
//! here and not through the library, which is judged by it.

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started.
#[must_use]
pub fn micros() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds * 1_000_000 + nanos / 1_000
}
