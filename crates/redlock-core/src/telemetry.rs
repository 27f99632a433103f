//! The names of everything this crate reports, in one place.
//!
//! Metrics go through the [`metrics`] facade and spans through [`tracing`]; without a recorder or subscriber they cost
//! next to nothing. No value ever carries an owner, a password or the name of a resource as a label: labels are few.

use crate::node::NodeError;
use std::time::Duration;

/// Counter, by `outcome` (`granted`, `contended`, `unavailable`, `too_slow`, `misconfigured`): single attempts.
pub const ATTEMPTS: &str = "redlock_attempts_total";
/// Histogram, seconds: from before the first request of an attempt to its decision, won attempts only.
pub const ACQUIRE_SECONDS: &str = "redlock_acquire_seconds";
/// Histogram, seconds: from the request to the grant, of grants that had to wait: for their turn, or for another attempt.
pub const WAIT_SECONDS: &str = "redlock_wait_seconds";
/// Counter, by `by` (`call`: a node called this waiter; `interval`: none did for a while): ends of pauses in a line.
pub const WAKE_UPS: &str = "redlock_wake_ups_total";
/// Histogram, seconds: validity left when a grant is handed to its caller.
pub const VALIDITY_SECONDS: &str = "redlock_validity_seconds";
/// Histogram: how many nodes had granted when an attempt was decided.
pub const VOTES: &str = "redlock_votes";
/// Counter: raises sent because the counters of a quorum disagreed; each costs the attempt one more round trip.
pub const RAISES: &str = "redlock_token_raises_total";
/// Counter, by `node` and `class` (see [`NodeError::class`]): calls that a node did not answer.
pub const NODE_ERRORS: &str = "redlock_node_errors_total";
/// Histogram, seconds, by `node`: time to a node's answer.
pub const NODE_SECONDS: &str = "redlock_node_seconds";
/// Counter, by `outcome` (`extended`, `lost`, `unconfirmed`): extensions.
pub const EXTENSIONS: &str = "redlock_extensions_total";
/// Counter, by `outcome` (`everywhere`, `quorum`, `partly`, `already_gone`): awaited releases.
pub const RELEASES: &str = "redlock_releases_total";
/// Counter: guards that were dropped, not released, so that the release went on in the background.
pub const DROPPED_GUARDS: &str = "redlock_dropped_guards_total";
/// Counter: background calls given up because too many were waiting; keys they would have removed stay until their ttl.
pub const ABANDONED: &str = "redlock_abandoned_total";

/// Counter, by `outcome` (`enrolled`, `quarantined`, `failed`): tries to take a node back that had lost its memory.
pub const ENROLMENTS: &str = "redlock_enrolments_total";

/// Span around one acquire with all its attempts; fields `resources`, `attempts`, `outcome` (as of [`ATTEMPTS`], and
/// `timed_out`, `cancelled`), `votes` (of the last attempt), `token` (if it was granted).
pub const ACQUIRE_SPAN: &str = "redlock.acquire";
/// Span around one extension that somebody awaits; fields `token`, `outcome` (as of [`EXTENSIONS`]).
pub const EXTEND_SPAN: &str = "redlock.extend";
/// Span around one awaited release; fields `token`, `outcome` (as of [`RELEASES`]).
pub const RELEASE_SPAN: &str = "redlock.release";

/// The metric of one node's answers, whose labels need not be made anew for each of them.
#[derive(Debug)]
pub(crate) struct NodeSeconds(metrics::Key);

static METADATA: metrics::Metadata<'static> =
    metrics::Metadata::new(module_path!(), metrics::Level::INFO, Some(module_path!()));

impl NodeSeconds {
    pub(crate) fn of(node: &str) -> Self {
        Self(metrics::Key::from_parts(NODE_SECONDS, vec![metrics::Label::new("node", node.to_owned())]))
    }

    pub(crate) fn record(&self, took: Duration) {
        // Registered with whichever recorder there is by now; it may have been installed after the client was made.
        metrics::with_recorder(|recorder| recorder.register_histogram(&self.0, &METADATA).record(took));
    }
}

pub(crate) fn node_failed(node: &str, error: &NodeError) {
    metrics::counter!(NODE_ERRORS, "node" => node.to_owned(), "class" => error.class()).increment(1);
    tracing::debug!(node, error = error as &dyn std::error::Error, "node did not answer");
}
