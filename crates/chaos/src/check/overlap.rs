//! P2: two grants of one resource do not overlap in validity.
//!
//! A grant counts from when its caller had it until the end of its validity, or until it was given back or its loss was
//! heard of. A holder that is frozen or killed counts on, as its lock does.
//!
//! Excused is what rests on nodes that may have lost the earlier lock before they granted the later one: every node that is in
//! both majorities has to be one of them. Of a lock that was extended in the background it is not known which nodes hold it
//! in the end; there, one such node among those that granted the later one has to do.

use std::collections::BTreeMap;

use super::{Finding, faithful};
use crate::history::{History, Micros};
use crate::life::{Hold, Life};

/// Two readings of one clock by two processes may lie so far apart in what they are taken for.
const READING: Micros = 2_000;

/// Compares all grants of each resource.
#[must_use]
pub fn check(history: &History, lives: &[Life]) -> Vec<Finding> {
    let mut by_resource: BTreeMap<&str, Vec<(&Life, &Hold)>> = BTreeMap::new();
    for life in lives {
        if let Some(hold) = &life.hold {
            by_resource.entry(&life.resource).or_default().push((life, hold));
        }
    }
    let mut findings = Vec::new();
    for (resource, mut holds) in by_resource {
        holds.sort_by_key(|(_, hold)| hold.at);
        // Those that go on while later ones begin.
        let mut open: Vec<(&Life, &Hold)> = Vec::new();
        for (life, later) in holds {
            open.retain(|(_, hold)| later.at + READING < hold.relied_until());
            for (other, earlier) in &open {
                let lasted = earlier.relied_until().min(later.relied_until()).saturating_sub(later.at);
                if lasted <= READING {
                    continue;
                }
                findings.push(Finding {
                    promise: "P2".into(),
                    at: later.at,
                    resource: resource.into(),
                    what: format!(
                        "client {} under token {} (nodes {:?}) and client {} under token {} (nodes {:?}) both relied on \
                         the lock for {} ms",
                        other.client,
                        earlier.granted.token,
                        earlier.granted.nodes,
                        life.client,
                        later.granted.token,
                        later.granted.nodes,
                        lasted / 1_000
                    ),
                    excuse: excuse(history, earlier, later),
                });
            }
            open.push((life, later));
        }
    }
    findings
}

fn excuse(history: &History, earlier: &Hold, later: &Hold) -> Option<String> {
    let (from, to) = (earlier.granted.attempt_began.min(later.granted.attempt_began), later.at);
    let excused = if earlier.granted.kept || later.granted.kept {
        let forgot = |node: &usize| history.forgetting(*node, from, to, false).next().is_some();
        later.granted.nodes.iter().any(forgot)
    } else {
        faithful(history, &earlier.granted.nodes, &later.granted.nodes, from, to, false).is_empty()
            && earlier.granted.nodes.iter().any(|node| later.granted.nodes.contains(node))
    };
    excused.then(|| "the nodes that both rest on may have lost the earlier lock".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::fault::{Kind, Target};
    use crate::history::Said;
    use crate::life::lives;

    fn check(story: Story) -> Vec<Finding> {
        super::check(&story.0, &lives(&story.0))
    }

    /// The second grant comes a second after the first, which is valid for half a second more.
    fn overlapping() -> Story {
        Story::default().grant(1, S, S + 10_000, 5).grant_on(2, 2 * S - 10_000, 2 * S, 6, &[2, 3, 4])
    }

    #[test]
    fn an_overlap_is_found_with_its_length() {
        let findings = check(overlapping());
        assert_eq!(findings.len(), 1);
        assert!(findings[0].is_violation());
        assert!(findings[0].what.ends_with("both relied on the lock for 500 ms"), "{findings:?}");
    }

    #[test]
    fn whoever_gave_the_lock_back_or_heard_of_its_loss_relies_on_it_no_more() {
        assert_eq!(check(overlapping().release(1, 3 * S / 2)), []);
        assert_eq!(check(overlapping().line(3 * S / 2, 1, Said::Lost { why: "gone".into(), expired: false })), []);
    }

    #[test]
    fn a_lock_that_is_extended_is_relied_on_for_longer() {
        let story = || Story::default().grant(1, S, S + 10_000, 5).grant(2, 3 * S, 3 * S + 10_000, 6);
        assert_eq!(check(story()), []);
        let extended = story().line(2 * S, 1, Said::Looked { held: true, valid_until: 4 * S });
        assert_eq!(check(extended).len(), 1);
    }

    #[test]
    fn a_node_in_both_majorities_that_forgot_excuses_and_another_does_not() {
        let forgot = |node| overlapping().fault(Kind::RestartEmpty, Target::Node(node), 3 * S / 2, 3 * S / 2 + 9);
        assert!(!check(forgot(2))[0].is_violation());
        assert!(check(forgot(3))[0].is_violation());
    }

    #[test]
    fn every_node_in_both_majorities_has_to_have_forgotten() {
        let story = Story::default().grant(1, S, S + 10, 5).grant_on(2, 2 * S - 10, 2 * S, 6, &[1, 2, 3]);
        let story = story.fault(Kind::FlushAll, Target::Node(2), 3 * S / 2, 3 * S / 2 + 9);
        assert!(check(story)[0].is_violation());
    }

    #[test]
    fn a_calendar_that_jumped_excuses_and_a_freeze_does_not() {
        let clock = overlapping().fault(Kind::ClockForward, Target::Node(2), 3 * S / 2, 2 * S);
        assert!(!check(clock)[0].is_violation());
        let frozen = overlapping().fault(Kind::FreezeServer, Target::Node(2), 3 * S / 2, 2 * S);
        assert!(check(frozen)[0].is_violation());
    }
}
