//! One node as one client sees it: what is under way to it, and whether it is worth asking.
//!
//! A node that is silent or refuses connections is left alone, so that nothing piles up behind it, and asked again as
//! soon as there is reason to hope. No timer is involved: a call under way that has been silent for longer than the
//! per-node deadline *is* the probe, and its answer, however late, opens the lane again.
//!
//! Between [`crate::fan_out`], which asks, and the [`LockNode`], which answers.

use crate::clock::{Clock, Moment};
use crate::line::Lines;
use crate::node::{LockNode, NodeError};
use crate::resource::Resources;
use crate::tally::quorum_of;
use crate::telemetry::{self, NodeSeconds};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Calls that may be under way to a node that does not answer, if it has to be asked all the same: a bound on what a
/// frozen node has to execute when it thaws. A node that answers may have as many as its callers can wait for.
const UNDER_WAY_TO_SILENT_MAX: usize = 512;

/// Failures in a row after which a node that fails at once, such as one that refuses connections, is left alone.
const FAILURES_BEFORE_REST: u32 = 3;

/// How long such a node is left alone before one call is let through again.
const REST: Duration = Duration::from_millis(250);

pub(crate) struct Lane {
    node: Arc<dyn LockNode>,
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    lines: Arc<Lines>,
    seconds: NodeSeconds,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    /// The later of: the last answer, and the moment since which something has been under way without a break.
    last_sign: Option<Moment>,
    failures: u32,
    rests_until: Option<Moment>,
    /// When it last refused because of its quarantine.
    quarantined_at: Option<Moment>,
    /// It has refused because it waits to be enrolled, and nobody has looked yet.
    waits: bool,
}

impl Lane {
    pub(crate) fn new(node: Arc<dyn LockNode>, clock: Arc<dyn Clock>, lines: Arc<Lines>) -> Self {
        let (seconds, name) = (NodeSeconds::of(node.name()), node.name().into());
        Self { node, name, clock, lines, seconds, state: Mutex::default() }
    }

    /// The node says that others wait for the resources.
    pub(crate) fn note_crowd(&self, resources: &Resources) {
        self.lines.note_crowd(resources);
    }

    /// Reports what a call came to.
    fn report<T>(&self, answer: &Result<T, NodeError>, took: Duration) {
        match answer {
            Ok(_) => self.seconds.record(took),
            Err(error) => telemetry::node_failed(self.node.name(), error),
        }
    }

    pub(crate) fn node(&self) -> &dyn LockNode {
        &*self.node
    }

    /// Whether a call would be let through now.
    pub(crate) fn is_open(&self, patience: Duration) -> bool {
        let now = self.clock.now();
        let state = self.state();
        !state.is_silent(now, patience) && !state.is_resting(now) && !state.is_in_quarantine(now)
    }

    /// Whether the node's latest refusal was that it waits to be enrolled; asked once for each.
    pub(crate) fn began_to_wait(&self) -> bool {
        std::mem::take(&mut self.state().waits)
    }

    /// The node's name, shared by all reports on it.
    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Lets one call through, or says why the node is left alone.
    pub(crate) fn admit(self: &Arc<Self>, patience: Duration) -> Result<Pass, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        if state.is_silent(now, patience) || state.is_resting(now) {
            return Err(NodeError::LeftAlone { again_within: REST });
        }
        if FAILURES_BEFORE_REST <= state.failures {
            // This call is the probe; others wait for what becomes of it.
            state.rests_until = Some(now.after(REST));
        }
        Ok(self.begin(&mut state, now))
    }

    /// Lets one call through to a node that would be left alone, because without it there is no quorum to ask. Silence may
    /// be our own: a process that was not scheduled has not read the answers.
    fn admit_for_quorum(self: &Arc<Self>, patience: Duration) -> Result<Pass, NodeError> {
        let now = self.clock.now();
        let mut state = self.state();
        if state.is_silent(now, patience) && UNDER_WAY_TO_SILENT_MAX <= state.under_way {
            return Err(NodeError::LeftAlone { again_within: REST });
        }
        Ok(self.begin(&mut state, now))
    }

    /// Lets a call through even to a node that is left alone: one that takes back what was asked for before.
    pub(crate) fn admit_release(self: &Arc<Self>) -> Pass {
        let now = self.clock.now();
        self.begin(&mut self.state(), now)
    }

    fn begin(self: &Arc<Self>, state: &mut State, now: Moment) -> Pass {
        if state.under_way == 0 {
            state.last_sign = Some(now);
        }
        state.under_way += 1;
        Pass { lane: Arc::clone(self), since: now, open: true }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_resting(&self, now: Moment) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// Whether it has refused a moment ago because of its quarantine: no use to wait in its line.
    fn is_in_quarantine(&self, now: Moment) -> bool {
        self.quarantined_at.is_some_and(|at| now.since(at) < REST)
    }

    fn is_silent(&self, now: Moment, patience: Duration) -> bool {
        0 < self.under_way && self.last_sign.is_some_and(|sign| patience < now.since(sign))
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("node", &self.node.name()).field("state", &*self.state()).finish()
    }
}

/// Lets one call through to each node that is worth asking; to all of them, if those are too few for a quorum.
pub(crate) fn admit_to_all(lanes: &[Arc<Lane>], patience: Duration) -> Vec<Result<Pass, NodeError>> {
    let mut passes: Vec<_> = lanes.iter().map(|lane| lane.admit(patience)).collect();
    if passes.iter().filter(|pass| pass.is_ok()).count() < quorum_of(lanes.len()) {
        for (pass, lane) in passes.iter_mut().zip(lanes).filter(|(pass, _)| pass.is_err()) {
            *pass = lane.admit_for_quorum(patience);
        }
    }
    passes
}

/// The servers that have been heard in one round: each has one vote, under however many names it is known.
#[derive(Debug, Default)]
pub(crate) struct Twins(Vec<Arc<str>>);

impl Twins {
    /// Whether the node is the first of its server to be heard, as far as that can be told.
    pub(crate) fn admit(&mut self, node: &dyn LockNode) -> bool {
        match node.identity() {
            Some(identity) if self.0.contains(&identity) => mutant!("one server votes twice"),
            Some(identity) => {
                self.0.push(identity);
                true
            }
            None => true,
        }
    }
}

/// One call that is under way; ends when the answer is in, or when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    lane: Arc<Lane>,
    since: Moment,
    open: bool,
}

impl Pass {
    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Notes and reports what became of the call, and how long it took.
    pub(crate) fn answered<T>(mut self, answer: &Result<T, NodeError>) -> Duration {
        self.open = false;
        let now = self.lane.clock.now();
        let mut state = self.lane.state();
        state.under_way -= 1;
        if matches!(answer, Err(NodeError::Quarantined { .. })) {
            state.quarantined_at = Some(now);
        }
        state.waits |= matches!(answer, Err(NodeError::Quarantined { remaining: Duration::ZERO }));
        match answer {
            Err(NodeError::Unreachable(_) | NodeError::Timeout { .. }) => {
                state.failures = state.failures.saturating_add(1);
                if FAILURES_BEFORE_REST <= state.failures {
                    state.rests_until = Some(now.after(REST));
                }
            }
            // Whatever else it said, it is alive.
            Ok(_) | Err(_) => {
                state.last_sign = Some(now);
                state.failures = 0;
                state.rests_until = None;
            }
        }
        drop(state);
        let took = now.since(self.since);
        self.lane.report(answer, took);
        took
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.open {
            self.lane.state().under_way -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ManualClock, NeverAsked};

    const PATIENCE: Duration = Duration::from_millis(50);

    fn lane() -> (Arc<Lane>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::default());
        (Arc::new(Lane::new(Arc::new(NeverAsked), clock.clone(), Arc::default())), clock)
    }

    fn failure() -> Result<(), NodeError> {
        Err(NodeError::unreachable("connection refused"))
    }

    #[test]
    fn a_node_that_is_silent_with_calls_under_way_is_left_alone_until_it_answers() {
        let (lane, clock) = lane();
        let pending = lane.admit(PATIENCE).unwrap();
        clock.advance(PATIENCE);
        let second = lane.admit(PATIENCE).unwrap();
        clock.advance(Duration::from_millis(1));
        assert!(matches!(lane.admit(PATIENCE), Err(NodeError::LeftAlone { .. })));
        assert_eq!(pending.answered(&Ok(())), PATIENCE + Duration::from_millis(1));
        assert!(lane.admit(PATIENCE).is_ok(), "an answer, however late, is a sign of life");
        drop(second);
    }

    #[test]
    fn a_node_without_calls_under_way_is_not_silent() {
        let (lane, clock) = lane();
        lane.admit(PATIENCE).unwrap().answered(&Ok(()));
        clock.advance(Duration::from_secs(3600));
        assert!(lane.admit(PATIENCE).is_ok());
    }

    #[test]
    fn a_node_that_keeps_failing_rests_and_is_probed_by_one_call_at_a_time() {
        let (lane, clock) = lane();
        for _ in 0..FAILURES_BEFORE_REST {
            lane.admit(PATIENCE).unwrap().answered(&failure());
        }
        assert!(lane.admit(PATIENCE).is_err());
        clock.advance(REST);
        let probe = lane.admit(PATIENCE).unwrap();
        assert!(lane.admit(PATIENCE).is_err(), "one probe at a time");
        probe.answered(&Ok(()));
        assert!(lane.admit(PATIENCE).is_ok());
    }

    #[test]
    fn a_node_that_answers_is_not_bounded_and_a_silent_one_is() {
        let (lane, clock) = lane();
        let mut passes: Vec<_> = (0..2 * UNDER_WAY_TO_SILENT_MAX).map(|_| lane.admit(PATIENCE).unwrap()).collect();
        clock.advance(PATIENCE + Duration::from_millis(1));
        assert!(lane.admit(PATIENCE).is_err());
        assert!(lane.admit_for_quorum(PATIENCE).is_err());
        passes.truncate(UNDER_WAY_TO_SILENT_MAX - 1);
        assert!(lane.admit_for_quorum(PATIENCE).is_ok(), "a dropped call makes room");
    }
}
