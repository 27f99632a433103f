//! P2: two grants of one resource never overlap in validity, as long as no node forgets a live lock and clocks stay within
//! the drift allowance.

use crate::sim::history::{Granted, History, Violation};
use crate::sim::plan::Plan;

pub(crate) fn check(plan: &Plan, history: &History) -> Vec<Violation> {
    if !plan.assumed.exclusion {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for resource in 0..plan.resources {
        let holders = history.grants.iter().filter(|grant| grant.resources.contains(&resource));
        let mut holders: Vec<&Granted> = holders.collect();
        holders.sort_by_key(|grant| (grant.finished, grant.token));
        let mut last: Option<&Granted> = None;
        for next in holders {
            if let Some(last) = last
                && next.finished < last.until()
            {
                let what = format!("resource {resource} has two holders: {last} and {next}");
                violations.push(Violation { invariant: "one_holder", what });
            }
            if last.is_none_or(|last| last.until() < next.until()) {
                last = Some(next);
            }
        }
    }
    violations
}
