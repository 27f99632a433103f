//! P3: a stale write is never applied. Told by who was granted when, not by the numbers that the storage compares: nothing
//! of an older grant takes effect after something of a grant that began when the older one had been handed out. And nothing
//! is lost: whoever claims before it reads writes onto what it has read.

use crate::sim::history::Violation;
use crate::sim::plan::Plan;
use crate::sim::world::Ended;

pub(crate) fn check(plan: &Plan, ended: &Ended) -> Vec<Violation> {
    let Some(beyond) = plan.assumed.order_beyond else { return Vec::new() };
    let grants = &ended.history.grants;
    let mut violations = Vec::new();
    for resource in 0..plan.resources {
        let applied: Vec<_> = ended.applied.iter().filter(|applied| applied.resource == resource).collect();
        let mut latest: Option<usize> = None;
        for write in &applied {
            if let Some(latest) = latest
                && grants[write.grant].finished + beyond < grants[latest].began
            {
                let (stale, newer) = (&grants[write.grant], &grants[latest]);
                let what = format!("resource {resource}: {write:?} of {stale} after something of {newer}");
                violations.push(Violation { invariant: "no_stale_write", what });
            }
            if latest.is_none_or(|latest| grants[latest].began < grants[write.grant].began) {
                latest = Some(write.grant);
            }
            if !write.is_claim && write.read != write.found {
                let what = format!("resource {resource}: {write:?} overwrites what it has not read");
                violations.push(Violation { invariant: "no_stale_write", what });
            }
        }
    }
    violations
}
