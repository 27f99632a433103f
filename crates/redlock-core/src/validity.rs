//! How long a grant may be relied on: `ttl − elapsed − drift`, or nothing.
//!
//! Pure arithmetic, all of it checked: values in, values out. The rule is the one of the Redlock description in the
//! Redis documentation (*Distributed locks with Redis*): the holder's clock and the nodes' clocks may run at rates that
//! differ by the drift allowance, and every moment since *before* the first request counts as gone.

use crate::resource::Ttl;
use std::time::Duration;

/// How far clocks may run apart during one time to live: `ttl × factor + constant`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drift {
    factor: f64,
    constant: Duration,
}

impl Drift {
    /// An allowance of `factor` of the ttl plus a `constant` for the nodes' resolution of a millisecond.
    ///
    /// `None` unless `0 <= factor < 1`.
    #[must_use]
    pub fn new(factor: f64, constant: Duration) -> Option<Self> {
        (0.0..1.0).contains(&factor).then_some(Self { factor, constant })
    }

    /// The allowance for one time to live.
    #[must_use]
    pub fn of(self, ttl: Ttl) -> Duration {
        ttl.as_duration().mul_f64(self.factor).saturating_add(self.constant)
    }
}

impl Default for Drift {
    /// One hundredth of the ttl plus two milliseconds, as the Redis documentation has it.
    fn default() -> Self {
        Self { factor: 0.01, constant: Duration::from_millis(2) }
    }
}

/// What is left of a lease of `ttl` after `elapsed`, less the drift allowance; `None` when nothing is.
#[must_use]
pub fn validity(ttl: Ttl, elapsed: Duration, drift: Drift) -> Option<Duration> {
    let left = ttl.as_duration().checked_sub(elapsed)?.checked_sub(drift.of(ttl))?;
    (Duration::ZERO < left).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(ttl: u64, elapsed: u64, expected: Option<u64>) {
        let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
        let validity = validity(ttl, Duration::from_millis(elapsed), Drift::default());
        assert_eq!(validity, expected.map(Duration::from_millis));
    }

    #[test]
    fn validity_is_what_is_left_after_the_time_spent_and_the_drift() {
        check(10_000, 0, Some(9_898));
        check(10_000, 100, Some(9_798));
        check(10_000, 9_897, Some(1));
        check(10_000, 9_898, None);
        check(10_000, 1_000_000, None);
    }

    /// B01: a lease shorter than its own drift is nothing, not a number that wrapped around.
    #[test]
    fn b01_a_short_lease_never_underflows() {
        for ttl in 1..=2 {
            check(ttl, 0, None);
            check(ttl, 5, None);
        }
    }

    proptest! {
        #[test]
        fn validity_is_positive_and_below_the_ttl(
            ttl in 1_u64..=31_536_000_000, elapsed in any::<u64>(), factor in 0.0..1.0, constant in any::<u64>()
        ) {
            let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
            let drift = Drift::new(factor, Duration::from_nanos(constant)).unwrap();
            if let Some(left) = validity(ttl, Duration::from_nanos(elapsed), drift) {
                prop_assert!(Duration::ZERO < left);
                prop_assert!(left <= ttl.as_duration());
            }
        }
    }

    #[test]
    fn a_drift_factor_is_a_fraction() {
        for nonsense in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Drift::new(nonsense, Duration::ZERO), None);
        }
    }
}
