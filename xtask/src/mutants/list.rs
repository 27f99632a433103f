//! The mutants, each with the cheapest test that catches it.

use std::collections::BTreeSet;
use std::fmt;

use super::LIB;
use crate::tidy::files::Files;

/// The page that lists them.
pub(super) const PAGE: &str = "docs/mutants.md";

/// A deliberate bug.
#[derive(Debug)]
pub(super) struct Mutant {
    /// The name behind which it stands in the sources.
    pub(super) name: &'static str,
    /// What catches it.
    pub(super) test: TestIn,
}

/// A test, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TestIn {
    pub(super) package: &'static str,
    pub(super) target: &'static str,
    pub(super) name: &'static str,
}

impl fmt::Display for TestIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.package, self.target, self.name)
    }
}

const fn mutant(name: &'static str, package: &'static str, target: &'static str, test: &'static str) -> Mutant {
    Mutant { name, test: TestIn { package, target, name: test } }
}

const CORE: &str = "redlock-core";
const BACKENDS: &str = "redlock-backends";
const FENCE: &str = "fence-store";
const EVIDENCE: &str = "redlock-evidence";

const SCRIPTED: &str = "scripted_faults";
const POINTS: &str = "failure_points";
const GUARD: &str = "crash_guard";
const KEEPING: &str = "keeping_in_virtual_time";

const ONE_FAILURE: &str = "a_lock_survives_every_single_failure_of_three_nodes";
const IN_TIME: &str = "p4_an_attempt_is_decided_by_the_nodes_that_answer_in_time";
const CANCELLED: &str = "p5_an_acquire_cancelled_at_any_await_leaves_nothing_behind";
const OVERTAKEN: &str = "p5_a_release_that_overtakes_its_acquire_is_repeated";
const TRIED_AGAIN: &str = "a_failed_renewal_shows_and_is_tried_again_inside_the_validity";
const TOO_LOW: &str = "counters_that_came_back_too_low_do_not_count";
const TWO_ATTEMPTS: &str = "p1_two_attempts_in_every_order_with_locks_that_expire_at_any_moment";
const STALE: &str = "tokens::b55_a_stale_grant_is_refused_by_every_form_of_write_sqlite";

/// All of them, by where a lock passes them.
pub(super) const MUTANTS: &[Mutant] = &[
    mutant("one owner for all attempts", BACKENDS, POINTS, ONE_FAILURE),
    mutant("drift ignored", CORE, LIB, "validity::tests::validity_is_the_ttl_less_the_drift"),
    mutant("elapsed ignored", BACKENDS, "refuted", "validity::a_grant_that_is_heard_after_its_validity_is_too_slow"),
    mutant(
        "validity from the last reply",
        BACKENDS,
        "refuted",
        "validity::a_pause_between_two_lines_does_not_lengthen_the_validity",
    ),
    mutant(
        "wall clock for validity",
        BACKENDS,
        "cases",
        "b05_wall_clock::b05_a_jump_of_the_calendars_does_not_change_validity_or_cadence",
    ),
    mutant("quorum is half", CORE, LIB, "mint::tests::b53_the_greatest_vote_is_no_token_before_a_quorum_stands_at_it"),
    mutant(
        "quorum of the reachable",
        CORE,
        LIB,
        "mint::tests::b53_the_greatest_vote_is_no_token_before_a_quorum_stands_at_it",
    ),
    mutant(
        "greatest reply",
        CORE,
        LIB,
        "attempt::tests::b53_counters_that_disagree_are_raised_before_a_token_is_issued",
    ),
    mutant("any raise is an ack", EVIDENCE, "model", TWO_ATTEMPTS),
    mutant("a refused raise is an ack", EVIDENCE, "model", TWO_ATTEMPTS),
    mutant("floor ignored", CORE, LIB, "floor::tests::the_floor_is_the_greater_of_both_and_leaves_room"),
    mutant(
        "one server votes twice",
        BACKENDS,
        "cases",
        "b13_same_server::b13_a_quorum_is_not_reached_with_two_distinct_servers",
    ),
    mutant("no deadline", BACKENDS, SCRIPTED, IN_TIME),
    mutant("waits for the slow", BACKENDS, SCRIPTED, IN_TIME),
    mutant("drop without undo", BACKENDS, SCRIPTED, CANCELLED),
    mutant("release only where granted", BACKENDS, POINTS, ONE_FAILURE),
    mutant("stragglers forgotten", BACKENDS, POINTS, ONE_FAILURE),
    mutant("an overtaken release is not repeated", BACKENDS, SCRIPTED, OVERTAKEN),
    mutant("a release is tried once", BACKENDS, POINTS, ONE_FAILURE),
    mutant("guard dropped without release", BACKENDS, SCRIPTED, IN_TIME),
    mutant(
        "token looked up when it is needed",
        BACKENDS,
        "cases",
        "b55_token_remembered::b55_a_late_holder_has_its_old_token",
    ),
    mutant("a loss is never told", BACKENDS, KEEPING, "the_lost_signal_comes_no_later_than_the_validity_ends"),
    mutant(
        "the end of a validity is not noticed",
        BACKENDS,
        KEEPING,
        "the_lost_signal_comes_no_later_than_the_validity_ends",
    ),
    mutant("a lost lock is extended", BACKENDS, "refuted", "validity::a_validity_that_was_over_does_not_come_back"),
    mutant("an extension needs no quorum", BACKENDS, KEEPING, TRIED_AGAIN),
    mutant("a failed extension ends the lock", BACKENDS, KEEPING, TRIED_AGAIN),
    mutant(
        "an extension counts from its answer",
        BACKENDS,
        "refuted",
        "validity::the_validity_of_an_extension_counts_from_before_it_was_sent",
    ),
    mutant(
        "late shorter extensions forgotten",
        CORE,
        LIB,
        "undertaking::tests::an_extension_is_relied_on_unless_a_shorter_one_may_still_come",
    ),
    mutant("a raise in memory does not look at the owner", BACKENDS, "conformance", "memory::only_the_holder_raises"),
    mutant(
        "a grant takes what is held",
        BACKENDS,
        "conformance",
        "redis::a_held_resource_is_refused_and_nothing_changes",
    ),
    mutant("a grant takes some of several", BACKENDS, "conformance", "redis::one_that_is_held_refuses_all"),
    mutant(
        "a grant does not raise the counter",
        BACKENDS,
        "conformance",
        "redis::a_grant_answers_one_above_floor_and_counter",
    ),
    mutant("a raise does not look at the owner", BACKENDS, "conformance", "redis::only_the_holder_raises"),
    mutant("an extension adds", BACKENDS, "conformance", "redis::an_extension_sets_and_never_adds"),
    mutant("an extension takes anew what is gone", BACKENDS, "conformance", "redis::an_extension_revives_nothing"),
    mutant("anybody releases", BACKENDS, "conformance", "redis::only_the_holder_releases"),
    mutant(
        "a release calls nobody",
        BACKENDS,
        "conformance",
        "redis::the_first_in_line_is_called_when_the_lock_is_released",
    ),
    mutant("expired counters are forgotten", BACKENDS, "marks", "a_counter_that_expired_is_covered_by_the_base"),
    mutant("a node that was emptied votes", BACKENDS, GUARD, "a_node_that_was_emptied_takes_nothing"),
    mutant("another server's record is believed", BACKENDS, GUARD, TOO_LOW),
    mutant("no quarantine", BACKENDS, GUARD, "a_quarantine_is_one_for_all_and_begins_again_with_each_restart"),
    mutant("marks from before", BACKENDS, "crash_guard_refuted", "marks_are_not_fetched_before_the_quarantine_is_over"),
    mutant("marks from too few", BACKENDS, GUARD, "memory::a_quorum_that_forgot_fails_closed_until_it_is_reseeded"),
    mutant("counters that came back count", BACKENDS, GUARD, TOO_LOW),
    mutant(
        "a strict fence admits its own token",
        FENCE,
        "fence",
        "rows::every_outcome_of_an_update_is_told_apart_sqlite",
    ),
    mutant("a look under lock lets everything pass", FENCE, "fence", STALE),
    mutant("a claim takes a newer row", FENCE, "fence", STALE),
    mutant("a stale token passes the ledger", FENCE, "fence", STALE),
];

/// Where the sources, this list and the page disagree.
pub(crate) fn complaints(files: &Files) -> Vec<String> {
    let sources = files.ending(".rs").filter(|file| file.path.starts_with("crates/"));
    let placed: BTreeSet<&str> = sources.flat_map(|file| names(&file.text)).collect();
    let listed: BTreeSet<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
    let unlisted =
        placed.difference(&listed).map(|name| format!("xtask/src/mutants/list.rs: nothing catches \"{name}\""));
    let unplaced = listed.difference(&placed).map(|name| format!("xtask/src/mutants/list.rs: \"{name}\" is nowhere"));
    let told = files.iter().any(|file| file.path == PAGE && file.text == page());
    let untold = (!told).then(|| format!("{PAGE}: is not what `cargo xtask mutants --write` writes"));
    unlisted.chain(unplaced).chain(untold).collect()
}

/// The names of the mutants in a source.
fn names(source: &str) -> impl Iterator<Item = &str> {
    source.split("mutant!(").skip(1).filter_map(|rest| {
        let name = rest.trim_start().strip_prefix('"')?;
        Some(name.split('"').next().unwrap_or(name))
    })
}

/// What the reader is told.
pub(super) fn page() -> String {
    let mut page = String::from(
        "# Mutants: who catches which bug\n\n\
         Tests that pass say little unless they fail when something is wrong. So bugs are put in, one at a time, and a test has \
         to\nfail: `cargo xtask mutants`. They stand in the sources, where somebody would make them, behind `mutant!` and their \
         name, in\nbuilds that nothing else makes; in every other build they are not there.\n\n\
         The test is the cheapest that catches the mutant; most are caught by others as well. Not every promise has one: what \
         only\nservers that die can show is left to the cases, and the fence's mutants are tried on SQLite alone.\n\n\
         | mutant | caught by | in |\n|---|---|---|\n",
    );
    for Mutant { name, test } in MUTANTS {
        page += &format!("| {name} | `{}` | {} {} |\n", test.name, test.package, test.target);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_is_given_twice() {
        let names: BTreeSet<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), MUTANTS.len());
    }

    #[test]
    fn names_are_found_where_they_stand() {
        let source = "if mutant!(\"a\") {\n let x = mutant!(\n \"b c\",\n right, wrong);\nmacro_rules! mutant {";
        assert_eq!(names(source).collect::<Vec<_>>(), ["a", "b c"]);
    }

    #[test]
    fn a_mutant_that_nothing_catches_is_named() {
        let files = Files::from([("crates/a/src/b.rs", "mutant!(\"new\")"), (PAGE, &page())]);
        let complaints = complaints(&files);
        assert_eq!(complaints[0], "xtask/src/mutants/list.rs: nothing catches \"new\"");
        assert_eq!(complaints.len(), 1 + MUTANTS.len());
    }
}
