//! P5: when all work has ended and everything in the background with it, no key is left on any node: neither of attempts
//! that failed, nor of calls that were cancelled, nor of guards that were dropped.
//!
//! Keys of killed processes may be left until their ttl, and so may those whose acquire was executed when its call had long
//! ended in an error: nobody who could give them back knows of them. So may those that an extension prolonged which was sent
//! before the release and executed behind it: if all tries of the release are lost for as long as a lock lives, the key ends
//! with the ttl that the extension gave it.

use crate::sim::history::Violation;
use crate::sim::plan::Plan;
use std::collections::BTreeSet;
use std::time::Duration;

pub(crate) fn check(
    plan: &Plan,
    left: Vec<Vec<(String, String, Duration)>>,
    loose: &BTreeSet<(usize, String)>,
) -> Vec<Violation> {
    if !plan.assumed.nothing_left {
        return Vec::new();
    }
    let left = (0..).zip(left).flat_map(|(node, locks)| locks.into_iter().map(move |lock| (node, lock)));
    let left = left.filter(|(node, (_, owner, _))| !loose.contains(&(*node, owner.clone())));
    left.map(|(node, (key, owner, remaining))| Violation {
        invariant: "nothing_left",
        what: format!("{key} of {owner} is left on n{node} for {remaining:?}"),
    })
    .collect()
}
