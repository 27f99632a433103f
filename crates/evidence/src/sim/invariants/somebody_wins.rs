//! P8: as long as somebody can win, somebody does. After the storm everybody who asks for one lock gets it in turn, and no
//! hand-over takes longer than what the waiting promises.
//!
//! That everybody is granted at all is seen by those who ask; here it is how long they had to wait for each other.

use crate::sim::history::{History, Violation};
use crate::sim::plan::{Millis, Plan, millis};

/// A pause of at most 75 ms times four until whoever waits asks by itself, three times if somebody who was called and does
/// not come is overtaken, and the time for which a process keeps its turn.
const HAND_OVER_MAX: Millis = 1_500;

/// Twelve times those four pauses until the other nodes are asked whether a holder whom one node names is there at all.
const AFTER_A_DEATH_MAX: Millis = 3_600;

pub(crate) fn check(plan: &Plan, history: &History) -> Vec<Violation> {
    let mut holders: Vec<_> = history.contest.iter().map(|grant| &history.grants[*grant]).collect();
    holders.sort_by_key(|grant| grant.finished);
    let longest =
        HAND_OVER_MAX + if history.left_by_the_dead { AFTER_A_DEATH_MAX } else { 0 } + 10 * millis(plan.node_timeout);
    let took = holders.windows(2).map(|pair| (pair[1], pair[1].finished.saturating_sub(pair[0].until())));
    let slow = took.filter(|(_, took)| longest < *took);
    slow.map(|(next, took)| Violation {
        invariant: "somebody_wins",
        what: format!("the hand-over to {next} took {took} ms"),
    })
    .collect()
}
