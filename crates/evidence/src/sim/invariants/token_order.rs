//! P1: tokens of one resource are distinct, and a grant that began after another finished has a greater one, unless counters
//! were lost and no clock makes up for it.

use crate::sim::history::{Granted, History, Violation};
use crate::sim::plan::Plan;

pub(crate) fn check(plan: &Plan, history: &History) -> Vec<Violation> {
    let Some(beyond) = plan.assumed.order_beyond else { return Vec::new() };
    let mut violations = Vec::new();
    for resource in 0..plan.resources {
        let grants = history.grants.iter().filter(|grant| grant.resources.contains(&resource));
        let mut by_end: Vec<&Granted> = grants.collect();
        let mut by_beginning = by_end.clone();
        by_end.sort_by_key(|grant| grant.finished);
        by_beginning.sort_by_key(|grant| grant.began);
        // The greatest token of all that had finished by the time at which the next one began.
        let mut finished = by_end.iter().peekable();
        let mut greatest: Option<&Granted> = None;
        for next in by_beginning {
            while let Some(grant) = finished.next_if(|grant| grant.finished + beyond < next.began) {
                if greatest.is_none_or(|greatest| greatest.token < grant.token) {
                    greatest = Some(grant);
                }
            }
            if let Some(greatest) = greatest
                && next.token <= greatest.token
            {
                let what = format!("resource {resource}: {next} began after {greatest} had finished");
                violations.push(Violation { invariant: "token_order", what });
            }
        }
        by_end.sort_by_key(|grant| grant.token);
        for pair in by_end.windows(2).filter(|pair| beyond == 0 && pair[0].token == pair[1].token) {
            let what = format!("resource {resource}: one token twice: {} and {}", pair[0], pair[1]);
            violations.push(Violation { invariant: "token_order", what });
        }
    }
    violations
}
