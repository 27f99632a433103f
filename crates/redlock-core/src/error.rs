//! Errors, grouped by what the caller does next. The causes are in the report and in `source()`.

use crate::node::NodeError;
use crate::report::Report;
use crate::resource::{KeyPrefixError, ResourceError, TtlError};
use std::time::Duration;

/// Why a lock was not acquired. In every case whatever the attempt had taken is being given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Others hold it: wait, or let them do the work. By whom, on which node and for how long is in the report.
    #[error("contended: {0}")]
    Contended(Box<Report>),
    /// Too few nodes answered to form a quorum: an outage, not contention. Mend the nodes that the report names.
    #[error("unavailable, no quorum of nodes answered: {0}")]
    Unavailable(Box<Report>),
    /// Won, but so late that the validity left is below the least that is useful: the nodes are slow for this ttl.
    #[error("too slow, won after {:?} with no useful validity left; use a longer ttl: {report}", report.elapsed)]
    TooSlow {
        /// What every node said.
        report: Box<Report>,
    },
    /// So many nodes refuse because of how they are set up that waiting does not help. The report says what to change.
    #[error("misconfigured, nodes refuse to vote: {0}")]
    Misconfigured(Box<Report>),
    /// The time to wait is over.
    #[error("timed out after {waited:.1?} and {attempts} attempts; the last: {last}")]
    TimedOut {
        /// How long was waited.
        waited: Duration,
        /// How many attempts were made.
        attempts: u32,
        /// Why the last of them failed.
        last: Box<AcquireError>,
    },
    /// The caller's own signal ended the wait.
    #[error("cancelled by the caller after {attempts} attempts")]
    Cancelled {
        /// How many attempts were made.
        attempts: u32,
    },
    /// What was asked for cannot be; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] SettingsError),
}

impl AcquireError {
    /// What every node said in the last attempt, if there was one.
    #[must_use]
    pub fn report(&self) -> Option<&Report> {
        match self {
            Self::Contended(report) | Self::Unavailable(report) | Self::Misconfigured(report) => Some(report),
            Self::TooSlow { report } => Some(report),
            Self::TimedOut { last, .. } => last.report(),
            Self::Cancelled { .. } | Self::Invalid(_) => None,
        }
    }

    /// Whether another attempt, a little later, may succeed without anybody changing the set-up.
    #[must_use]
    pub fn is_worth_retrying(&self) -> bool {
        matches!(self, Self::Contended(_) | Self::Unavailable(_) | Self::TooSlow { .. })
    }

    /// A short word for the class, for metrics.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Contended(_) => "contended",
            Self::Unavailable(_) => "unavailable",
            Self::TooSlow { .. } => "too_slow",
            Self::Misconfigured(_) => "misconfigured",
            Self::TimedOut { .. } => "timed_out",
            Self::Cancelled { .. } => "cancelled",
            Self::Invalid(_) => "invalid",
        }
    }
}

/// Why a lock was not extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The lock is lost: its validity is over, or so many nodes no longer hold it for us that no quorum is left. Stop
    /// working; what was written under the old token is safe, what is written from now on is refused as stale once
    /// somebody else has written.
    #[error("the lock is lost: {reason}")]
    Lost {
        /// How that came to be known.
        reason: LossReason,
    },
    /// Too few nodes answered in time. The earlier validity still stands and nothing was given up: try again.
    #[error("the extension was not confirmed by a quorum; the lock is still valid for {remaining:?}")]
    Unconfirmed {
        /// The validity that is left.
        remaining: Duration,
        /// The nodes that did not answer, with their causes.
        failed: Vec<(String, NodeError)>,
    },
    /// The time to live asked for cannot be; nothing was sent.
    #[error(transparent)]
    Invalid(#[from] SettingsError),
}

/// How the loss of a lock came to be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// Its validity is over by the holder's own clock.
    #[error("its validity is over")]
    Expired,
    /// It was held for as long as keeping it alive is allowed to hold it; the nodes free it within its ttl.
    #[error("it was held for the longest time allowed, {max_hold:?}")]
    HeldTooLong {
        /// The ceiling.
        max_hold: Duration,
    },
    /// So many nodes do not hold it for us any more that no quorum is left.
    #[error("{gone} of {nodes} nodes do not hold it for us any more")]
    NotOwner {
        /// How many nodes said so.
        gone: usize,
        /// How many nodes are configured.
        nodes: usize,
    },
}

/// Less validity is left than the work needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock is valid for {remaining:?}, less than the {required:?} required; extend it or stop")]
pub struct NotEnoughValidity {
    /// What is left; zero once the validity is over.
    pub remaining: Duration,
    /// What was required.
    pub required: Duration,
}

/// A setting that cannot work, and what to change about it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No node was given.
    #[error("no node is configured; give an odd number of independent ones, five as a rule")]
    NoNodes,
    /// An even number of nodes was given.
    #[error(
        "{nodes} nodes are configured; an even number tolerates no more failures than one less, so add or remove one, or \
         say `allow_even_nodes`"
    )]
    EvenNodes {
        /// How many.
        nodes: usize,
    },
    /// Two nodes are one.
    #[error("the nodes {first:?} and {second:?} are the same server, so they are one vote; name each server once")]
    SameNode {
        /// The name of one.
        first: String,
        /// The name of the other.
        second: String,
    },
    /// The time to live is not one.
    #[error(transparent)]
    Ttl(#[from] TtlError),
    /// Nothing useful would be left of the time to live.
    #[error(
        "a ttl of {ttl:?} leaves no useful validity: {drift:?} of it are drift allowance, {node_timeout:?} may pass in \
         each of two round trips, and {min_validity:?} must remain; use a longer ttl or a shorter node timeout"
    )]
    TtlTooShort {
        /// The time to live.
        ttl: Duration,
        /// The drift allowance for it.
        drift: Duration,
        /// The per-node deadline.
        node_timeout: Duration,
        /// The least useful validity.
        min_validity: Duration,
    },
    /// The time to live is longer than the crash-recovery guard allows for.
    #[error(
        "a ttl of {ttl:?} is longer than the {longest:?} that the crash-recovery guard allows for; use a shorter ttl and extend \
         the lock, or give all clients a crash guard for a longer one"
    )]
    TtlBeyondGuard {
        /// The time to live.
        ttl: Duration,
        /// The longest that the guard was told of.
        longest: Duration,
    },
    /// A node keeps no record, and the crash-recovery guard is on.
    #[error(
        "the node {node:?} keeps no record by which one could tell that it has lost its memory, so the crash-recovery guard cannot \
         be on; use Redis nodes, or leave the guard off"
    )]
    NodeWithoutRecord {
        /// The node's name.
        node: String,
    },
    /// The per-node deadline is zero.
    #[error("the node timeout is zero; give every node at least the time of a round trip")]
    NoNodeTimeout,
    /// The drift factor is not a fraction.
    #[error("a drift factor of {0} is not a fraction; use one between 0 and 1, such as 0.01")]
    DriftFactor(f64),
    /// The number of attempts is zero.
    #[error("zero attempts never acquire anything; allow at least one")]
    NoAttempts,
    /// A resource name, or their number, is not one.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The key prefix is not one.
    #[error(transparent)]
    KeyPrefix(#[from] KeyPrefixError),
}
