//! Leader election: a lock that is kept for as long as one can, under a token per term.
//!
//! A thin layer on the guard and the watchdog. The term is the fencing token of the grant, so a leader that was replaced
//! without noticing is fenced off like any other stale holder.

use crate::error::{AcquireError, LossReason, SettingsError};
use crate::guard::{Guard, Held, Release};
use crate::node::{Holder, NodeError, Remaining};
use crate::owner::Fingerprint;
use crate::redlock::Redlock;
use crate::resource::Resource;
use crate::settings::Retry;
use crate::tally::quorum_of;
use crate::token::FencingToken;
use crate::watchdog::KeepAlive;
use futures_util::future::{Either, select};
use std::collections::HashMap;
use std::pin::pin;
use std::time::Duration;

/// An election for one office, held by at most one candidate at a time as far as the lock's promises go.
#[derive(Clone, Debug)]
pub struct Election {
    redlock: Redlock,
    office: Resource,
    keep_alive: KeepAlive,
    retry: Retry,
}

impl Election {
    /// An election for the office with this name. A term lasts an hour at the most, and then whoever is first is elected.
    ///
    /// # Errors
    /// [`SettingsError::Resource`] if the name is not a resource's.
    pub fn new(redlock: &Redlock, office: impl AsRef<str>) -> Result<Self, SettingsError> {
        let office = Resource::new(office)?;
        Ok(Self { redlock: redlock.clone(), office, keep_alive: KeepAlive::default(), retry: Retry::default() })
    }

    /// How the office is kept; [`KeepAlive::max_hold`] is the longest term.
    #[must_use]
    pub fn keep_alive(mut self, keep_alive: KeepAlive) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// How long one campaign waits, and how often it tries.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Waits to be elected.
    ///
    /// # Errors
    /// As [`Redlock::acquire`]; [`AcquireError::TimedOut`] while somebody else is in office.
    ///
    /// # Cancel safety
    /// If the future is dropped, the candidacy is withdrawn.
    pub async fn campaign(&self) -> Result<Leadership, AcquireError> {
        let guard = self.redlock.request(&self.office).retry(self.retry).acquire().await?;
        guard.keep_alive(self.keep_alive);
        Ok(Leadership { guard })
    }

    /// Campaigns, and runs `work` while in office, again and again: when the office is lost, the work is dropped and the
    /// next campaign begins. Returns what the work returns, after resigning.
    ///
    /// Goes on for ever if the work does; dropping the future ends it. Work that returns is done, even if the office was
    /// lost in the same moment: whether it was is for the storage to decide, by the term's token.
    ///
    /// # Errors
    /// [`AcquireError`] if campaigning cannot succeed without somebody changing the set-up. Being outvoted, and outages,
    /// are no reason to give up.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work is dropped and the office given back in the background.
    pub async fn serve<T, F, W>(&self, mut work: F) -> Result<T, AcquireError>
    where
        F: FnMut(Held) -> W,
        W: Future<Output = T>,
    {
        loop {
            let leadership = match self.campaign().await {
                Ok(leadership) => leadership,
                Err(AcquireError::TimedOut { .. }) => continue,
                Err(error) if error.is_worth_retrying() => {
                    // A campaign of a single attempt: its pause is this one.
                    tokio::time::sleep(self.retry.delay.max(Duration::from_millis(10))).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let value = match select(pin!(work(leadership.held())), pin!(leadership.lost())).await {
                Either::Left((value, _)) => Some(value),
                Either::Right(_) => None,
            };
            leadership.resign().await;
            if let Some(value) = value {
                return Ok(value);
            }
        }
    }

    /// Who is in office, as a quorum of nodes sees it; `None` if nobody is.
    ///
    /// Old news as soon as it is told. To decide something by it, decide by the term's token instead.
    ///
    /// # Errors
    /// [`ObserveError`] if too few nodes answered to know.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn leader(&self) -> Result<Option<Leader>, ObserveError> {
        let answers = self.redlock.inspect(&self.office).await;
        let quorum = quorum_of(answers.len());
        let mut failed = Vec::new();
        let mut seen: HashMap<Fingerprint, Vec<(Remaining, Option<u64>)>> = HashMap::new();
        let mut heard = 0;
        for (node, answer) in answers {
            match answer {
                Ok(inspections) => {
                    heard += 1;
                    for inspection in inspections {
                        if let Some(held) = inspection.held
                            && let Holder::Owner(fingerprint) = held.holder
                        {
                            seen.entry(fingerprint).or_default().push((held.remaining, inspection.counter));
                        }
                    }
                }
                Err(error) => failed.push((node, error)),
            }
        }
        let leader = seen.into_iter().find(|(_, nodes)| quorum <= nodes.len());
        match leader {
            Some((owner, nodes)) => Ok(Some(Leader::new(owner, &nodes, quorum))),
            None if heard < quorum => Err(ObserveError { heard, needed: quorum, failed }),
            None => Ok(None),
        }
    }
}

/// An office that is held. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The term: greater than that of every earlier leader. What a fenced store is written with.
    #[must_use]
    pub fn term(&self) -> FencingToken {
        self.guard.token()
    }

    /// The lock that is the office.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// A handle for the work that is done in office.
    #[must_use]
    pub fn held(&self) -> Held {
        self.guard.held()
    }

    /// Whether the office may still be relied on. No request is made.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.guard.is_held()
    }

    /// Resolves once the office is lost.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> LossReason {
        self.guard.lost().await
    }

    /// Gives the office back, so that the next candidate need not wait for the ttl.
    ///
    /// # Cancel safety
    /// If the future is dropped, resigning goes on in the background.
    pub async fn resign(self) -> Release {
        self.guard.release().await
    }
}

/// Who is in office, as a quorum of nodes sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The leader's owner value, as far as it may be shown.
    pub owner: Fingerprint,
    /// For how long a quorum of nodes holds the office for it, if it does not extend.
    pub remaining: Option<Duration>,
    /// The term, if a quorum of nodes agrees on it.
    pub term: Option<u64>,
}

impl Leader {
    fn new(owner: Fingerprint, nodes: &[(Remaining, Option<u64>)], quorum: usize) -> Self {
        let mut remaining: Vec<Duration> = nodes
            .iter()
            .filter_map(|(remaining, _)| match remaining {
                Remaining::For(remaining) => Some(*remaining),
                Remaining::WithoutExpiry | Remaining::Unknown => None,
            })
            .collect();
        // The office is held until fewer than a quorum of nodes hold it: the quorum-th longest of them decides.
        remaining.sort_unstable_by(|one, other| other.cmp(one));
        let counters = || nodes.iter().filter_map(|(_, counter)| *counter);
        let term = counters().find(|term| quorum <= counters().filter(|other| other == term).count());
        Self { owner, remaining: remaining.get(quorum - 1).copied(), term }
    }
}

/// Too few nodes answered to know who is in office.
#[derive(Debug, thiserror::Error)]
#[error("{heard} nodes answered, {needed} are needed to know who is in office; mend those that did not")]
#[non_exhaustive]
pub struct ObserveError {
    /// How many nodes answered.
    pub heard: usize,
    /// How many must.
    pub needed: usize,
    /// Those that did not, with their causes.
    pub failed: Vec<(String, NodeError)>,
}
