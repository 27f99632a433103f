//! What must hold in every world, one file per promise. Each knows under which assumptions it may be held against a world.
//!
//! Those that are about a moment (told in time, nothing left, no wait beyond its bound) are looked at when it comes; those
//! that are about an order are found from the history afterwards.

pub(crate) mod bounded_wait;
pub(crate) mod no_stale_write;
pub(crate) mod nothing_left;
pub(crate) mod one_holder;
pub(crate) mod somebody_wins;
pub(crate) mod told_in_time;
pub(crate) mod token_order;

use super::history::Violation;
use super::plan::Plan;
use super::world::Ended;

/// Everything that is wrong with a world that has ended.
pub(crate) fn violations(plan: &Plan, ended: &Ended) -> Vec<Violation> {
    let mut violations = ended.history.violations.clone();
    violations.extend(one_holder::check(plan, &ended.history));
    violations.extend(token_order::check(plan, &ended.history));
    violations.extend(no_stale_write::check(plan, ended));
    violations.extend(bounded_wait::check(plan, &ended.history));
    violations.extend(somebody_wins::check(plan, &ended.history));
    violations
}
