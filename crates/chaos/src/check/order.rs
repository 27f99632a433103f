//! P1: tokens of one resource are distinct, and a grant that began after another was there has a greater one.
//!
//! Clocks, delays and pauses excuse nothing. What does is that counters are gone: if so many of the nodes that both grants
//! rest on had lost their memory in between that none of them need have known the earlier token.

use std::collections::BTreeMap;

use super::{Finding, QUORUM, faithful};
use crate::history::History;
use crate::life::{Hold, Life};

/// Compares each grant with the greatest one that was there before it began, and with any of the same token.
#[must_use]
pub fn check(history: &History, lives: &[Life]) -> Vec<Finding> {
    let mut by_resource: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for life in lives {
        if let Some(hold) = &life.hold {
            by_resource.entry(&life.resource).or_default().push(hold);
        }
    }
    let mut findings = Vec::new();
    for (resource, holds) in by_resource {
        for (earlier, later) in out_of_order(&holds).into_iter().chain(twins(&holds)) {
            findings.push(Finding {
                promise: "P1".into(),
                at: later.at,
                resource: resource.into(),
                what: format!(
                    "token {} was granted on nodes {:?} after token {} on {:?}",
                    later.granted.token, later.granted.nodes, earlier.granted.token, earlier.granted.nodes
                ),
                excuse: excuse(history, earlier, later),
            });
        }
    }
    findings
}

/// Each grant that is not above the greatest of those that were there before it began, with that one.
fn out_of_order<'a>(holds: &[&'a Hold]) -> Vec<(&'a Hold, &'a Hold)> {
    let mut by_end = holds.to_vec();
    by_end.sort_by_key(|hold| hold.at);
    let mut by_beginning = holds.to_vec();
    by_beginning.sort_by_key(|hold| hold.granted.attempt_began);

    let mut ended = by_end.into_iter().peekable();
    let mut greatest: Option<&Hold> = None;
    let mut wrong = Vec::new();
    for later in by_beginning {
        while let Some(hold) = ended.next_if(|hold| hold.at < later.granted.attempt_began) {
            if greatest.is_none_or(|greatest| greatest.granted.token < hold.granted.token) {
                greatest = Some(hold);
            }
        }
        if let Some(earlier) = greatest
            && later.granted.token < earlier.granted.token
        {
            wrong.push((earlier, later));
        }
    }
    wrong
}

/// Grants with one token.
fn twins<'a>(holds: &[&'a Hold]) -> Vec<(&'a Hold, &'a Hold)> {
    let mut by_token: BTreeMap<i64, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        by_token.entry(hold.granted.token).or_default().push(hold);
    }
    by_token
        .into_values()
        .flat_map(|mut twins| {
            twins.sort_by_key(|hold| hold.at);
            twins.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
        })
        .collect()
}

fn excuse(history: &History, earlier: &Hold, later: &Hold) -> Option<String> {
    let (first, second) = (&earlier.granted, &later.granted);
    let faithful =
        faithful(history, &first.nodes, &second.nodes, first.attempt_began.min(second.attempt_began), later.at, true);
    // Where more than a quorum granted, not all of them need have stood at the token.
    let spare = first.nodes.len().saturating_sub(QUORUM) + second.nodes.len().saturating_sub(QUORUM);
    (faithful.len() <= spare).then(|| "the nodes that both rest on had lost their counters in between".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::story::{S, Story};
    use super::*;
    use crate::fault::{Kind, Target};
    use crate::life::lives;

    fn check(story: Story) -> Vec<Finding> {
        super::check(&story.0, &lives(&story.0))
    }

    #[test]
    fn tokens_that_grow_are_fine() {
        assert_eq!(check(Story::default().grant(1, S, S + 10, 5).grant(2, 2 * S, 2 * S + 10, 6)), []);
    }

    #[test]
    fn a_token_that_falls_is_found_even_if_others_came_in_between() {
        let story =
            Story::default().grant(1, S, S + 10, 5).grant(2, 2 * S, 2 * S + 10, 9).grant(3, 3 * S, 3 * S + 10, 8);
        let findings = check(story);
        assert_eq!(findings.len(), 1);
        assert!(findings[0].is_violation());
        assert!(findings[0].what.contains("token 8 was granted on nodes [0, 1, 2] after token 9"), "{findings:?}");
    }

    #[test]
    fn a_token_that_is_given_twice_is_found_even_if_both_asked_at_once() {
        let findings = check(Story::default().grant(1, S, 2 * S, 5).grant(2, S, 2 * S, 5));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].is_violation());
    }

    #[test]
    fn those_who_asked_at_once_may_be_served_in_any_order() {
        assert_eq!(check(Story::default().grant(1, S, 2 * S, 6).grant(2, S, 2 * S + 10, 5)), []);
    }

    fn falls_on_node_2_alone() -> Story {
        Story::default().grant(1, S, S + 10, 9).grant_on(2, 3 * S, 3 * S + 10, 8, &[2, 3, 4])
    }

    #[test]
    fn a_lost_memory_excuses_on_the_nodes_that_both_rest_on() {
        let lost = |node| falls_on_node_2_alone().fault(Kind::FlushAll, Target::Node(node), 2 * S, 2 * S + 1);
        assert!(!check(lost(2))[0].is_violation());
        assert!(check(lost(1))[0].is_violation());
    }

    #[test]
    fn a_clock_and_a_loss_at_another_time_excuse_nothing() {
        let clock = falls_on_node_2_alone().fault(Kind::ClockForward, Target::Node(2), 2 * S, 2 * S + 1);
        assert!(check(clock)[0].is_violation());
        let later = falls_on_node_2_alone().fault(Kind::FlushAll, Target::Node(2), 4 * S, 4 * S + 1);
        assert!(check(later)[0].is_violation());
    }
}
