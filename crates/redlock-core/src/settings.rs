//! Everything that can be set about a lock, checked before the first request.

use crate::error::SettingsError;
use crate::resource::{KeyPrefix, Ttl};
use crate::token::FencingToken;
use crate::validity::{Drift, whole_validity};
use std::time::Duration;

/// The per-node deadline unless one is set: this, or a tenth of the ttl if that is less.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// When and how often an acquire that did not succeed is tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// The longest time that an acquire waits; zero means a single attempt.
    pub wait: Duration,
    /// The most attempts made within that time.
    pub attempts: u32,
    /// The pause between two attempts; with the jitter, a millisecond at least.
    pub delay: Duration,
    /// A random part added to the pause, evenly spread from zero to this, so that contenders fall out of step.
    pub jitter: Duration,
}

impl Default for Retry {
    /// Up to ten seconds, as many attempts as fit, 25 to 75 ms apart.
    fn default() -> Self {
        Self {
            wait: Duration::from_secs(10),
            attempts: u32::MAX,
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(50),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) prefix: KeyPrefix,
    pub(crate) drift: Drift,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) min_validity: Duration,
    pub(crate) clock_floor: bool,
    /// No token is issued that is not above this.
    pub(crate) floor: Option<FencingToken>,
    /// How long a lock stays on its nodes after its holder was lost; released ones are free at once.
    pub(crate) lock_delay: Duration,
    /// The longest ttl that anybody uses, if the crash-recovery guard is on.
    pub(crate) guarded_ttl: Option<Ttl>,
}

/// How long the lock lives, how long a node may take, and what must be left: settled for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// What was asked for.
    pub(crate) ttl: Ttl,
    /// How long nodes hold the lock: the ttl, and the lock delay on top of it.
    pub(crate) lease: Ttl,
    /// For how long it may be relied on, counted from before nodes were asked.
    pub(crate) validity: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) min_validity: Duration,
}

impl Settings {
    /// Checks that something useful is left of a ttl after drift and two round trips at the per-node deadline.
    pub(crate) fn terms(&self, ttl: Duration, min_validity: Duration) -> Result<Terms, SettingsError> {
        let ttl = Ttl::new(ttl)?;
        let node_timeout = self.node_timeout.unwrap_or_else(|| NODE_TIMEOUT.min(ttl.as_duration() / 10));
        if let Some(longest) = self.guarded_ttl.filter(|longest| *longest < ttl) {
            return Err(SettingsError::TtlBeyondGuard { ttl: ttl.as_duration(), longest: longest.as_duration() });
        }
        let lease = Ttl::new(ttl.as_duration().saturating_add(self.lock_delay))?;
        let drift = self.drift.of(lease);
        let needed = drift.saturating_add(node_timeout.saturating_mul(2)).saturating_add(min_validity);
        if ttl.as_duration() <= needed {
            return Err(SettingsError::TtlTooShort { ttl: ttl.as_duration(), drift, node_timeout, min_validity });
        }
        let validity = whole_validity(lease, self.drift).saturating_sub(self.lock_delay);
        Ok(Terms { ttl, lease, validity, node_timeout, min_validity })
    }

    /// How long a node that has lost its memory does not vote: until the longest lock that it may have forgotten has run out
    /// by a clock that runs as fast as is allowed for. `None` if the crash-recovery guard is off.
    pub(crate) fn quarantine(&self) -> Option<Duration> {
        let lease = Ttl::new(self.guarded_ttl?.as_duration().saturating_add(self.lock_delay)).ok()?;
        Some(lease.as_duration().saturating_add(self.drift.of(lease)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(node_timeout: Option<Duration>) -> Settings {
        Settings {
            prefix: KeyPrefix::default(),
            drift: Drift::default(),
            node_timeout,
            retry: Retry::default(),
            min_validity: Duration::ZERO,
            clock_floor: true,
            floor: None,
            lock_delay: Duration::ZERO,
            guarded_ttl: None,
        }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_node_timeout_follows_a_short_ttl_unless_it_is_set() {
        assert_eq!(settings(None).terms(ms(10_000), Duration::ZERO).unwrap().node_timeout, ms(50));
        assert_eq!(settings(None).terms(ms(100), Duration::ZERO).unwrap().node_timeout, ms(10));
        assert_eq!(settings(Some(ms(20))).terms(ms(100), Duration::ZERO).unwrap().node_timeout, ms(20));
    }

    /// B01: a lease that its own drift eats up is refused with the numbers that say why.
    #[test]
    fn b01_a_ttl_that_leaves_nothing_is_refused() {
        for ttl in 1..=2 {
            assert!(matches!(settings(None).terms(ms(ttl), Duration::ZERO), Err(SettingsError::TtlTooShort { .. })));
        }
        assert!(matches!(settings(None).terms(ms(0), Duration::ZERO), Err(SettingsError::Ttl(_))));
        assert!(matches!(settings(Some(ms(50))).terms(ms(100), ms(0)), Err(SettingsError::TtlTooShort { .. })));
        assert!(matches!(settings(None).terms(ms(1_000), ms(900)), Err(SettingsError::TtlTooShort { .. })));
        assert!(settings(None).terms(ms(3), Duration::ZERO).is_ok());
    }

    #[test]
    fn a_lock_delay_lengthens_the_lease_and_not_the_validity() {
        let delayed = Settings { lock_delay: ms(5_000), ..settings(None) }.terms(ms(10_000), Duration::ZERO).unwrap();
        assert_eq!((delayed.ttl.as_duration(), delayed.lease.as_duration()), (ms(10_000), ms(15_000)));
        assert_eq!(delayed.validity, ms(10_000 - 150 - 2), "the drift of the whole lease counts");
        let endless = Settings { lock_delay: Duration::MAX, ..settings(None) };
        assert!(matches!(endless.terms(ms(10_000), Duration::ZERO), Err(SettingsError::Ttl(_))));
    }

    #[test]
    fn the_quarantine_outlasts_the_longest_lease_and_no_ttl_is_longer() {
        let guarded =
            |ttl| Settings { guarded_ttl: Some(Ttl::new(ms(ttl)).unwrap()), lock_delay: ms(1_000), ..settings(None) };
        assert_eq!(guarded(9_000).quarantine(), Some(ms(10_102)));
        assert_eq!(settings(None).quarantine(), None);
        let beyond = guarded(9_000).terms(ms(9_001), Duration::ZERO);
        assert!(matches!(beyond, Err(SettingsError::TtlBeyondGuard { .. })), "{beyond:?}");
        assert!(guarded(9_000).terms(ms(9_000), Duration::ZERO).is_ok());
    }
}
