//! The time that counts: one that goes on while the machine sleeps.
//!
//! A lease on a node runs out whether or not the holder's machine is suspended, so the holder must measure with a clock
//! that counts suspend as well. Deadlines of single calls use tokio's timers and do not need this. Wall clocks never
//! enter here.

use std::fmt;
use std::time::Duration;

/// A point on a [`Clock`], meaningful only against other points of the same clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Moment(Duration);

impl Moment {
    /// The point that lies `since_origin` after the clock's own origin.
    #[must_use]
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// The time from the clock's own origin to this point.
    #[must_use]
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// The time that has passed since `earlier`; zero if `earlier` lies in the future.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `duration` later; stops at the end of time instead of wrapping around.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

/// A clock that never goes back and does not stop while the machine is suspended.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present.
    fn now(&self) -> Moment;
}

/// The operating system's clock: `CLOCK_BOOTTIME` on Linux, which counts suspend; elsewhere the best that the standard
/// library has, which may stand still while the machine sleeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

#[cfg(target_os = "linux")]
impl Clock for SystemClock {
    fn now(&self) -> Moment {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
        Moment(Duration::new(seconds, nanoseconds))
    }
}

#[cfg(not(target_os = "linux"))]
impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everybody else goes through")]
    fn now(&self) -> Moment {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        Moment(Instant::now().duration_since(*ORIGIN.get_or_init(Instant::now)))
    }
}

/// Tokio's clock, which stands still while a test has paused it: for tests and simulation.
///
/// Does not count suspend; not for production.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock(tokio::time::Instant);

impl TokioClock {
    /// A clock whose origin is now.
    #[must_use]
    pub fn starting_now() -> Self {
        Self(tokio::time::Instant::now())
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment(self.0.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_both_ends() {
        let early = Moment::from_origin(Duration::from_secs(1));
        let late = Moment::from_origin(Duration::from_secs(3));
        assert_eq!(late.since(early), Duration::from_secs(2));
        assert_eq!(early.since(late), Duration::ZERO);
        assert_eq!(late.after(Duration::MAX), Moment::from_origin(Duration::MAX));
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let first = SystemClock.now();
        assert!(first <= SystemClock.now());
    }
}
