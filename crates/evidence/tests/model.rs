//! The short explorations, one test each, and every wrong rule refuted. The long ones: `cargo xtask model --long`.

use redlock_evidence::model::{Event, Rule, check, explorations, refutations, refute};

/// Everything stands, everything is reached, and the space is as large as it was.
fn stands(name: &str) {
    let exploration =
        explorations().into_iter().find(|exploration| exploration.name == name).expect("it is in the plan");
    assert!(!exploration.long, "{name} is for `cargo xtask model --long`");
    let checked = check(exploration.setup);
    assert!(checked.refuted.is_empty(), "{name}: {:#?}", checked.refuted);
    assert_eq!(checked.unreached, Vec::<&str>::new(), "{name}: to be reached somewhere in {} states", checked.states);
    assert_eq!(checked.states, exploration.states, "{name}");
}

/// Each promise that the rule breaks falls, by as few events as it did; gives the events, for each promise.
fn falls(rule: Rule) -> Vec<Vec<Event>> {
    let of_rule: Vec<_> = refutations().into_iter().filter(|refutation| refutation.setup.rule == rule).collect();
    assert!(!of_rule.is_empty(), "{rule:?} is in the plan");
    let falls = of_rule.into_iter().map(|refutation| {
        let events = refute(refutation.setup, refutation.promise).refutation(refutation.promise);
        assert_eq!(events.len(), refutation.events, "{rule:?}: {}: {events:#?}", refutation.promise);
        events
    });
    falls.collect()
}

#[test]
fn p1_one_attempt_with_lost_messages_and_floors() {
    stands("one attempt, messages lost, floors, counters apart");
}

#[test]
fn p1_two_attempts_in_every_order_with_locks_that_expire_at_any_moment() {
    stands("two attempts");
}

#[test]
fn p2_two_attempts_with_lost_messages_never_overlap_while_clocks_agree() {
    stands("two attempts, clocks agree, messages lost");
}

#[test]
fn p2_three_attempts_never_overlap_while_clocks_agree() {
    stands("three attempts, clocks agree");
}

#[test]
fn p6_a_node_that_restarts_empty_is_taken_back_without_harm() {
    stands("a node restarts empty, clocks agree");
}

#[test]
fn the_greatest_reply_is_no_token() {
    let refutations = falls(Rule::GreatestReply);
    assert!(refutations.iter().flatten().all(|event| !matches!(event, Event::Raise { .. })), "{refutations:#?}");
}

#[test]
fn a_raise_checks_the_owner() {
    falls(Rule::RaiseWithoutOwnerCheck);
}

/// The node has executed the acquire, its answer is on its way or lost, and it stands higher than what it confirms.
#[test]
fn a_raise_that_is_answered_with_more_is_no_acknowledgement() {
    let refutations = falls(Rule::AnyRaiseIsAnAck);
    let raises = refutations.iter().all(|events| events.iter().any(|event| matches!(event, Event::Raise { .. })));
    assert!(raises, "{refutations:#?}");
}

#[test]
fn a_node_that_restarted_does_not_just_serve_again() {
    falls(Rule::NoGuard);
}

#[test]
fn a_node_is_not_taken_back_while_attempts_count_what_it_said_before() {
    falls(Rule::NoQuarantine);
}

#[test]
fn marks_come_from_a_quorum_of_the_others() {
    falls(Rule::MarksFromTooFew);
}

#[test]
fn marks_are_fetched_after_the_quarantine() {
    falls(Rule::MarksFromBefore);
}

#[test]
fn the_base_lifts_counters_that_came_back_too_low() {
    falls(Rule::BaseForMissingOnly);
}
