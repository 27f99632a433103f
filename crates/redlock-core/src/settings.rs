//! Everything that can be set about a lock, checked before the first request.

use crate::error::SettingsError;
use crate::resource::{KeyPrefix, Ttl};
use crate::token::FencingToken;
use crate::validity::Drift;
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
}

/// How long the lock lives, how long a node may take, and what must be left: settled for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) node_timeout: Duration,
    pub(crate) min_validity: Duration,
}

impl Settings {
    /// Checks that something useful is left of a ttl after drift and two round trips at the per-node deadline.
    pub(crate) fn terms(&self, ttl: Duration, min_validity: Duration) -> Result<Terms, SettingsError> {
        let ttl = Ttl::new(ttl)?;
        let node_timeout = self.node_timeout.unwrap_or_else(|| NODE_TIMEOUT.min(ttl.as_duration() / 10));
        let drift = self.drift.of(ttl);
        let needed = drift.saturating_add(node_timeout.saturating_mul(2)).saturating_add(min_validity);
        if ttl.as_duration() <= needed {
            return Err(SettingsError::TtlTooShort { ttl: ttl.as_duration(), drift, node_timeout, min_validity });
        }
        Ok(Terms { ttl, node_timeout, min_validity })
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
}
