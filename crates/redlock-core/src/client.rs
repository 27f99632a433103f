//! What the clones of a client share, and how an acquire is tried again.
//!
//! Between [`Redlock`](crate::Redlock), which takes the request, and [`crate::round`], which makes one attempt.

use crate::clock::Clock;
use crate::error::AcquireError;
use crate::fan_out;
use crate::floor::{self, HighestTokens};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::owner::{Owner, Ownership, Randomness};
use crate::resource::{Resources, Ttl};
use crate::round::Round;
use crate::settings::{Retry, Settings, Terms};
use crate::telemetry;
use crate::undertaking::Undertaking;
use crate::watchdog::Watchdog;
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct Client {
    pub(crate) lanes: Vec<Arc<Lane>>,
    pub(crate) settings: Settings,
    pub(crate) ttl: Ttl,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) randomness: Arc<dyn Randomness>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) highest_tokens: HighestTokens,
}

impl Client {
    /// Attempts until one is won or the patience of `retry` is at an end.
    pub(crate) async fn wait_for(
        self: &Arc<Self>,
        resources: &Resources,
        terms: Terms,
        retry: Retry,
        attempts: &mut u32,
    ) -> Result<Guard, AcquireError> {
        let began = self.clock.now();
        loop {
            let out_of_time = retry.wait <= self.clock.now().since(began);
            *attempts += 1;
            let error = match self.attempt(resources, terms).await {
                Err(error) if error.is_worth_retrying() => error,
                decided => return decided,
            };
            if retry.attempts <= *attempts || retry.wait.is_zero() {
                return Err(error);
            }
            let waited = self.clock.now().since(began);
            if out_of_time || retry.wait <= waited {
                return Err(AcquireError::TimedOut { waited, attempts: *attempts, last: Box::new(error) });
            }
            // A pause that would outlast the wait ends with it, and one last attempt is made then.
            let pause = retry.delay.saturating_add(self.random_part_of(retry.jitter));
            tokio::time::sleep(pause.min(retry.wait.saturating_sub(waited))).await;
        }
    }

    /// One attempt, with its metrics.
    async fn attempt(self: &Arc<Self>, resources: &Resources, terms: Terms) -> Result<Guard, AcquireError> {
        let result = Round::begin(self, resources, terms).run().await;
        let outcome = match &result {
            Ok(guard) => {
                metrics::histogram!(telemetry::ACQUIRE_SECONDS).record(guard.report().elapsed);
                metrics::histogram!(telemetry::VALIDITY_SECONDS).record(guard.remaining());
                "granted"
            }
            Err(error) => error.class(),
        };
        metrics::counter!(telemetry::ATTEMPTS, "outcome" => outcome).increment(1);
        result
    }

    pub(crate) fn undertaking(&self, resources: &Resources, ttl: Ttl, time: Option<u64>) -> Undertaking {
        let mut bytes = [0; 16];
        self.randomness.fill(&mut bytes);
        let owner = Owner::from_random_bytes(bytes);
        let ownership = Ownership::new(self.settings.prefix.clone(), resources.clone(), owner);
        let highest = self.highest_tokens.highest(resources);
        Undertaking::new(ownership, ttl, floor::floor(highest, time), self.lanes.len())
    }

    /// The nodes' time, if tokens are to be lifted to it and it is known.
    pub(crate) fn nodes_time(&self) -> Option<u64> {
        if !self.settings.clock_floor {
            return None;
        }
        floor::nodes_time(self.lanes.iter().map(|lane| lane.node().unix_time()))
    }

    fn random_part_of(&self, duration: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.randomness.fill(&mut bytes);
        // Whoever asks for more than a year of jitter gets a year's.
        duration.min(Ttl::MAX).mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
    }
}

impl Client {
    /// Tells every node that may hold something of the undertaking's, without waiting for any.
    pub(crate) fn release_in_background(&self, undertaking: &Arc<Undertaking>) {
        let lanes = self.lanes.iter().enumerate();
        let releases: Vec<_> = lanes
            .filter(|(node, _)| undertaking.may_be_on(*node))
            .map(|(node, lane)| fan_out::release(lane, undertaking, node))
            .collect();
        if !releases.is_empty() {
            self.keeper.keep(releases);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.watchdog.stop();
        self.keeper.close();
    }
}
