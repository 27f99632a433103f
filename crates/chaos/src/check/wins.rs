//! P8, and the other half of every promise of safety: once the faults have stopped, somebody is granted each lock.

use super::Finding;
use crate::history::{History, ORDERS};
use crate::life::Life;

/// Asks for a grant of each resource in the calm, and for writes that were applied then.
#[must_use]
pub fn check(history: &History, lives: &[Life]) -> Vec<Finding> {
    let granted = |resource: &str| {
        let mut holds = lives.iter().filter(|life| life.resource == resource).filter_map(|life| life.hold.as_ref());
        holds.any(|hold| history.calm_from <= hold.at)
    };
    let never = ORDERS.iter().filter(|order| !granted(order.resource));
    never
        .map(|order| Finding {
            promise: "P8".into(),
            at: history.end,
            resource: order.resource.into(),
            what: "nobody was granted the lock after the faults had stopped".into(),
            excuse: None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::life::lives;

    #[test]
    fn a_lock_that_nobody_is_granted_is_found() {
        let mut history = Story::default().grant(1, 2 * S, 2 * S + 10, 5).grant(2, 4 * S, 4 * S + 10, 6).0;
        for line in &mut history.lines {
            if let crate::history::Said::Asks { resource } = &mut line.said {
                *resource = ORDERS[usize::from(line.work == 2)].resource.into();
            }
        }
        history.calm_from = 3 * S;
        let found = check(&history, &lives(&history));
        let missing: Vec<&str> = found.iter().map(|finding| finding.resource.as_str()).collect();
        assert_eq!(missing.len(), ORDERS.len() - 1, "{missing:?}");
        assert!(missing.contains(&ORDERS[0].resource));
    }
}
