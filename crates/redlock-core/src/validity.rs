//! How long a grant may be relied on: `ttl − drift`, counted from before it was asked for.
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

/// The validity of a lease of `ttl` counted from before it was asked for, less the drift allowance; zero if the allowance
/// eats it up.
///
/// There is no `elapsed` here on purpose: the moment at which a validity ends is fixed before the first request is sent, and
/// whatever time passes afterwards, in the network or because the process is paused, is taken from what is left of it.
#[must_use]
pub fn whole_validity(ttl: Ttl, drift: Drift) -> Duration {
    let drift = mutant!("drift ignored", drift.of(ttl), Duration::ZERO);
    ttl.as_duration().saturating_sub(drift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(ttl: u64, expected: u64) {
        let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
        assert_eq!(whole_validity(ttl, Drift::default()), Duration::from_millis(expected));
    }

    #[test]
    fn validity_is_the_ttl_less_the_drift() {
        check(10_000, 9_898);
        check(1_000, 988);
    }

    /// B01: a lease shorter than its own drift is nothing, not a number that wrapped around.
    #[test]
    fn b01_a_short_lease_never_underflows() {
        check(1, 0);
        check(2, 0);
    }

    proptest! {
        #[test]
        fn validity_is_below_the_ttl(
            ttl in 1_u64..=31_536_000_000, factor in 0.0..1.0, constant in any::<u64>()
        ) {
            let ttl = Ttl::new(Duration::from_millis(ttl)).unwrap();
            let drift = Drift::new(factor, Duration::from_nanos(constant)).unwrap();
            prop_assert!(whole_validity(ttl, drift) <= ttl.as_duration());
        }
    }

    #[test]
    fn a_drift_factor_is_a_fraction() {
        for nonsense in [-0.1, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Drift::new(nonsense, Duration::ZERO), None);
        }
    }
}
