//! What the clones of a client share.
//!
//! Between [`crate::waiting`], which decides when to try, and [`crate::round`], which makes one attempt.

use crate::bell::Listener;
use crate::clock::Clock;
use crate::error::AcquireError;
use crate::fan_out::{self, Call};
use crate::floor::{self, HighestTokens};
use crate::guard::Guard;
use crate::keeper::Keeper;
use crate::lane::Lane;
use crate::line::{Lines, Turn};
use crate::owner::{Owner, Ownership, Randomness};
use crate::recovery::{self, Recovery};
use crate::resource::{Resources, Ttl};
use crate::round::{Approach, Round};
use crate::settings::{Settings, Terms};
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
    pub(crate) lines: Arc<Lines>,
    pub(crate) listener: Listener,
    pub(crate) recovery: Recovery,
}

impl Client {
    /// One attempt, with its metrics.
    pub(crate) async fn attempt(
        self: &Arc<Self>,
        resources: &Resources,
        terms: Terms,
        approach: Approach,
    ) -> Result<Guard, AcquireError> {
        let result = Round::begin(self, resources, terms).run(approach).await;
        recovery::tend(self);
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
        let owner = Owner::from_random_bytes(mutant!("one owner for all attempts", bytes, [7; 16]));
        let ownership = Ownership::new(self.settings.prefix.clone(), resources.clone(), owner);
        let ownership = match self.settings.quarantine() {
            Some(quarantine) => ownership.guarded(quarantine),
            None => ownership,
        };
        let highest = self.highest_tokens.highest(resources).max(self.settings.floor);
        Undertaking::new(ownership, ttl, floor::floor(highest, time), self.lanes.len())
    }

    /// The nodes' time, if tokens are to be lifted to it and it is known.
    pub(crate) fn nodes_time(&self) -> Option<u64> {
        if !self.settings.clock_floor {
            return None;
        }
        floor::nodes_time(self.lanes.iter().map(|lane| lane.node().unix_time()))
    }

    pub(crate) fn random_part_of(&self, duration: Duration) -> Duration {
        let mut bytes = [0; 4];
        self.randomness.fill(&mut bytes);
        // Whoever asks for more than a year of jitter gets a year's.
        duration.min(Ttl::MAX).mul_f64(f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX))
    }
}

impl Client {
    /// Tells every node that may hold something of the undertaking's, without waiting for any.
    ///
    /// Inside a runtime they are told at once: a guard is often dropped on the way out of a program that has met an error.
    /// The turn passes on once all of them have been told.
    pub(crate) fn release_in_background(&self, undertaking: &Arc<Undertaking>, turn: Option<Turn>) {
        let releases = self.releases(undertaking, turn);
        if !releases.is_empty() {
            self.keeper.begin(releases.into_iter().map(|(_, release)| release));
        }
    }

    /// A release for every node that may hold something of the undertaking's; the last one carries the turn.
    pub(crate) fn releases(&self, undertaking: &Arc<Undertaking>, turn: Option<Turn>) -> Vec<(usize, Call)> {
        let mut told = self.lanes.iter().enumerate().filter(|(node, _)| undertaking.may_be_on(*node)).peekable();
        let mut releases = Vec::with_capacity(self.lanes.len());
        let mut turn = turn;
        while let Some((node, lane)) = told.next() {
            let turn = if told.peek().is_none() { turn.take() } else { None };
            releases.push((node, fan_out::release(lane, undertaking, node, turn)));
        }
        releases
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.watchdog.stop();
        self.keeper.close();
    }
}
