//! What is explored, with the numbers that came out: what stands, and which mistakes are found how fast.
//!
//! A number of states that changes without anybody having changed the model means that the decision code decides
//! differently; somebody should know why. So does a refutation that takes more events than it did, or fewer.

use super::{Counter, DISTINCT, IN_ORDER, NODES, ONE_HOLDER, Restart, Rule, Setup};

/// A setup in which everything that is promised stands, and how large it is.
#[derive(Clone, Debug)]
pub struct Exploration {
    /// What is explored.
    pub name: &'static str,
    /// The setup.
    pub setup: Setup,
    /// How many worlds there are in it.
    pub states: usize,
    /// Whether it takes minutes rather than seconds.
    pub long: bool,
}

/// A mistake, and what finds it.
#[derive(Clone, Debug)]
pub struct Refutation {
    /// The setup with the mistake in it.
    pub setup: Setup,
    /// The promise that falls.
    pub promise: &'static str,
    /// The least number of events that it takes.
    pub events: usize,
}

/// Counters as they come to stand when grants, losses and late requests have left nodes behind.
const APART: [[Counter; NODES]; 2] = [[2, 0, 0], [2, 1, 0]];

/// All explorations.
#[must_use]
pub fn explorations() -> Vec<Exploration> {
    let short = |name, states, setup| Exploration { name, setup, states, long: false };
    let long = |name, states, setup| Exploration { name, setup, states, long: true };
    let once = |kind| Setup::attempts(2).restarts(1, [kind]);
    vec![
        short(
            "one attempt, messages lost, floors, counters apart",
            26_033,
            Setup::attempts(1).loss().floor(2).counters(APART),
        ),
        short("two attempts", 46_267, Setup::attempts(2)),
        short("two attempts, clocks agree, messages lost", 4_233, Setup::attempts(2).clocks_agree().loss()),
        short("three attempts, clocks agree", 61_160, Setup::attempts(3).clocks_agree()),
        short("a node restarts empty, clocks agree", 33_194, once(Restart::Empty).clocks_agree()),
        long("a node restarts empty, clocks agree, messages lost", 136_205, once(Restart::Empty).clocks_agree().loss()),
        long("two attempts, counters apart", 3_006_674, Setup::attempts(2).counters(APART)),
        long("two attempts, messages lost", 466_920, Setup::attempts(2).loss()),
        long("two attempts, floors", 2_011_587, Setup::attempts(2).floor(2)),
        long("a node restarts empty", 2_449_142, once(Restart::Empty)),
        long("a node restarts with a truncated log", 263_292, once(Restart::Truncated)),
        long("a node restarts with everything", 2_598_037, once(Restart::Whole)),
    ]
}

/// The refutation of each wrong rule.
#[must_use]
pub fn refutations() -> Vec<Refutation> {
    let found = |rule, promise, events, setup: Setup| Refutation { setup: setup.rule(rule), promise, events };
    let restart = |kind| Setup::attempts(2).restarts(1, [kind]);
    vec![
        found(Rule::GreatestReply, DISTINCT, 10, Setup::attempts(2)),
        found(Rule::GreatestReply, IN_ORDER, 9, Setup::attempts(2).counters([[1, 0, 0]])),
        found(Rule::RaiseWithoutOwnerCheck, DISTINCT, 14, Setup::attempts(2)),
        found(Rule::AnyRaiseIsAnAck, DISTINCT, 17, Setup::attempts(2)),
        found(Rule::NoGuard, DISTINCT, 9, restart(Restart::Empty)),
        found(Rule::NoGuard, ONE_HOLDER, 9, restart(Restart::Empty).clocks_agree()),
        found(Rule::NoQuarantine, DISTINCT, 12, restart(Restart::Empty)),
        found(Rule::NoQuarantine, ONE_HOLDER, 12, restart(Restart::Empty).clocks_agree()),
        found(Rule::MarksFromTooFew, DISTINCT, 11, restart(Restart::Empty)),
        found(Rule::MarksFromBefore, DISTINCT, 12, restart(Restart::Empty)),
        found(Rule::BaseForMissingOnly, DISTINCT, 12, restart(Restart::Truncated)),
    ]
}
