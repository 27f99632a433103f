//! P2 from outside: two owners' values do not stand on a majority of the servers at once.
//!
//! By what the observer saw, which asks no client. It counts what a node had granted before a restart until it expires, so a
//! node that forgot and votes again shows as two majorities. That is excused where a node did forget; and where three nodes
//! restarted with everything within one lock's life, since what was released after their restart counts on as well.

use std::collections::BTreeSet;

use super::{Finding, QUORUM};
use crate::fault::{Kind, Memory, Target};
use crate::history::{Fault, History, Holding, Micros};

/// What the observer's own period and a busy machine make of a handover.
const NOISE: Micros = 25_000;

/// Compares all majorities of each resource.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut open: Vec<&Holding> = Vec::new();
    for later in &history.holdings {
        open.retain(|holding| later.from < holding.until);
        for earlier in open.iter().filter(|earlier| earlier.resource == later.resource && earlier.owner != later.owner)
        {
            let lasted = earlier.until.min(later.until).saturating_sub(later.from);
            if NOISE < lasted {
                findings.push(Finding {
                    promise: "P2".into(),
                    at: later.from,
                    resource: later.resource.clone(),
                    what: format!(
                        "{}… and {}… both stood on a majority of the servers for {} ms",
                        earlier.owner,
                        later.owner,
                        lasted / 1_000
                    ),
                    excuse: excuse(history, earlier, later),
                });
            }
        }
        open.push(later);
    }
    findings
}

fn excuse(history: &History, earlier: &Holding, later: &Holding) -> Option<String> {
    let from = earlier.from.saturating_sub(history.setup.ttl);
    let meanwhile = |fault: &&Fault| fault.at <= later.from && from <= fault.until;
    let faults = || history.faults.iter().filter(meanwhile);
    if faults().any(|fault| history.memory(fault) != Memory::Kept) {
        return Some("a node may have lost the earlier lock".to_owned());
    }
    let restarted: BTreeSet<Target> =
        faults().filter(|fault| fault.kind == Kind::RestartWithData).map(|fault| fault.target).collect();
    (QUORUM <= restarted.len()).then(|| "so many nodes restarted that it cannot be told from outside".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;

    fn holding(owner: &str, from: Micros, until: Micros) -> Holding {
        Holding { resource: "r".into(), owner: owner.into(), from, until }
    }

    fn check(story: Story, second_from: Micros) -> Vec<Finding> {
        let mut history = story.0;
        history.setup.ttl = 3 * S / 2;
        history.holdings = vec![holding("a", 10 * S, 11 * S), holding("b", second_from, 12 * S)];
        super::check(&history)
    }

    #[test]
    fn two_majorities_at_once_are_found() {
        assert_eq!(check(Story::default(), 11 * S), []);
        let findings = check(Story::default(), 11 * S - 100_000);
        assert!(findings[0].is_violation());
        assert!(findings[0].what.contains("for 100 ms"), "{findings:?}");
    }

    #[test]
    fn a_node_that_forgot_excuses_if_it_did_so_before() {
        let forgot = |at| Story::default().fault(Kind::RestartEmpty, Target::Node(0), at, at);
        assert!(!check(forgot(10 * S), 11 * S - 100_000)[0].is_violation());
        assert!(check(forgot(8 * S), 11 * S - 100_000)[0].is_violation());
        assert!(check(forgot(11 * S), 11 * S - 100_000)[0].is_violation());
    }

    #[test]
    fn three_restarts_excuse_and_two_do_not() {
        let restarts = |nodes| {
            (0..nodes).fold(Story::default(), |story: Story, node| {
                story.fault(Kind::RestartWithData, Target::Node(node), 10 * S, 10 * S)
            })
        };
        assert!(check(restarts(2), 11 * S - 100_000)[0].is_violation());
        assert!(!check(restarts(3), 11 * S - 100_000)[0].is_violation());
    }
}
