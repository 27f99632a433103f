//! Whoever waits for a lock for so long is answered within that time and what the last attempt takes; unless its own process
//! was paused meanwhile.

use crate::sim::history::{History, Violation};
use crate::sim::plan::{Millis, Plan, millis};

/// A round trip more than once, per node that may have to be found deaf before the arbiter is found; and clocks that run
/// apart.
fn beyond(plan: &Plan, wait: Millis) -> Millis {
    let nodes = u64::try_from(plan.nodes).unwrap_or(u64::MAX);
    (nodes + 6) * millis(plan.node_timeout) + wait / 50 + 20
}

pub(crate) fn check(plan: &Plan, history: &History) -> Vec<Violation> {
    let late = history.asked.iter().filter(|asked| asked.wait + beyond(plan, asked.wait) < asked.took);
    late.map(|asked| {
        let what = format!("p{} was to wait {} ms and was answered after {} ms", asked.process, asked.wait, asked.took);
        Violation { invariant: "bounded_wait", what }
    })
    .collect()
}
