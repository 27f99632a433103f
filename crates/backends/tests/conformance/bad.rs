//! Bad nodes fail the kit, and by the rule that names their fault.

use crate::bad_nodes::{Bad, Wrong};
use crate::common::in_virtual_time;
use redlock_core::conformance::{Conformance, PROMISES, check_all};
use std::collections::BTreeSet;

fn conformance(wrong: Wrong) -> Conformance {
    in_virtual_time(async { check_all(&Bad::new(wrong)).await })
}

/// One test for each fault, and the list of all promises that some fault breaks.
macro_rules! bad_nodes {
    ($($name:ident: $wrong:ident breaks $promise:ident;)*) => {
        $(
            #[test]
            fn $name() {
                let conformance = conformance(Wrong::$wrong);
                let broken: Vec<_> = conformance.broken().map(|broken| broken.promise).collect();
                assert!(broken.contains(&stringify!($promise)), "broken: {broken:?}");
            }
        )*

        const BROKEN_BY_SOMEBODY: &[&str] = &[$(stringify!($promise),)*];
    };
}

bad_nodes! {
    a_random_token: TokenIsRandom breaks a_grant_answers_one_above_floor_and_counter;
    a_constant_token: TokenIsConstant breaks a_grant_answers_one_above_floor_and_counter;
    a_constant_token_in_a_crowd: TokenIsConstant breaks counters_of_a_crowd_are_distinct_and_leave_no_gap;
    a_token_from_a_clock_that_steps_back: TokenIsTheTimeOfAClockThatStepsBack
        breaks counters_of_a_crowd_are_distinct_and_leave_no_gap;
    a_token_below_the_floor: TokenIgnoresTheFloor breaks a_grant_answers_one_above_floor_and_counter;
    a_token_of_32_bits: TokenIsReducedTo32Bits breaks counters_are_exact_up_to_the_highest_token;
    tokens_of_several_that_differ: TokensOfSeveralAreTheirOwn breaks several_resources_get_one_common_counter;
    a_counter_reset_on_release: CounterIsResetOnRelease breaks a_counter_outlives_release;
    a_counter_reset_on_expiry: CounterIsResetOnExpiry breaks a_counter_outlives_expiry;
    a_refusal_that_counts: RefusalCounts breaks a_held_resource_is_refused_and_nothing_changes;
    a_refusal_that_blames_the_wrong_one: RefusalBlamesTheOneWhoAsks breaks a_refusal_tells_what_is_in_the_way;
    a_refusal_that_prolongs: RefusalProlongs breaks a_lock_ends_after_its_ttl;
    a_node_that_fails: AcquireFails breaks a_free_resource_is_granted;
    a_node_for_few_resources: AcquireOfManyFails breaks as_many_as_a_lock_may_cover_are_granted;
    one_taken_after_the_other: AcquireTakesOneAfterTheOther breaks one_that_is_held_refuses_all;
    a_check_and_then_a_grant: AcquireChecksThenTakes breaks one_of_a_crowd_is_granted;
    a_check_and_then_a_grant_of_several: AcquireChecksThenTakes breaks several_resources_stay_together_in_a_crowd;
    a_grant_in_several_steps: AcquireTakesWithPauses breaks a_dropped_acquire_took_all_or_none;
    a_lock_that_is_reentered: AcquireReentersForTheOwner breaks the_holder_is_refused_as_well;
    an_acquire_that_arrives_late: AcquireArrivesLate breaks calls_keep_the_order_they_claim;
    an_acquire_that_is_repeated: AcquireIsRepeatedAfterACut breaks a_call_is_made_once;
    names_without_case: NamesAreFolded breaks names_are_told_apart;
    names_cut_at_a_zero_byte: NamesEndAtAZeroByte breaks names_are_told_apart;
    a_prefix_that_is_ignored: PrefixIsIgnored breaks names_are_told_apart;
    connections_with_a_memory_each: ConnectionsAreNodesOfTheirOwn breaks two_connections_see_one_node;
    a_raise_that_is_ignored: RaiseIsIgnored breaks the_holder_raises_the_counter;
    a_raise_in_several_steps: RaiseOfSeveralWithPauses breaks a_dropped_raise_happened_or_not;
    a_raise_that_lowers: RaiseLowers breaks a_raise_never_lowers;
    a_raise_without_an_owner_check: RaiseOfAnybody breaks only_the_holder_raises;
    a_raise_of_a_part: RaiseOfOneOfSeveral breaks a_raise_needs_all_resources;
    a_check_and_then_a_raise: RaiseChecksThenRaises breaks a_raise_is_one_step;
    a_raise_that_says_what_was_asked: RaiseAnswersWhatWasAsked breaks a_raise_answers_the_greatest_counter;
    an_extension_that_revives: ExtensionRevives breaks an_extension_revives_nothing;
    an_extension_that_takes_anew: ExtensionTakesAnew breaks a_dropped_extension_leaves_the_lock;
    an_extension_that_adds: ExtensionAdds breaks an_extension_sets_and_never_adds;
    an_extension_that_is_ignored: ExtensionIsIgnored breaks an_extension_prolongs;
    an_extension_without_an_owner_check: ExtensionOfAnybody breaks only_the_holder_extends;
    an_extension_of_a_part: ExtensionOfOneOfSeveral breaks an_extension_needs_all_resources;
    a_check_and_then_an_extension: ExtensionChecksThenExtends breaks an_extension_is_one_step;
    an_extension_that_counts: ExtensionCounts breaks an_extension_touches_no_counter;
    extensions_out_of_order: ExtensionsInAnotherOrder breaks many_extensions_are_answered_each_in_their_order;
    a_release_without_an_owner_check: ReleaseOfAnybody breaks only_the_holder_releases;
    a_repeated_release_without_an_owner_check: ReleaseOfAnybody
        breaks a_repeated_release_does_not_touch_the_next_holder;
    a_late_release_without_an_owner_check: ReleaseOfAnybody breaks a_late_release_does_not_touch_the_next_holder;
    a_check_and_then_a_release: ReleaseChecksThenFrees breaks a_release_is_one_step;
    a_release_of_all_or_nothing: ReleaseOfAllOrNothing breaks a_release_frees_what_is_held_of_several;
    a_release_that_fails_if_gone: ReleaseOfWhatIsGoneFails breaks a_second_release_finds_it_gone;
    a_release_left_to_the_ttl: ReleaseIsLeftToTheTtl breaks a_release_frees;
    an_acquire_that_is_not_undone: ReleaseIsLeftToTheTtl breaks a_dropped_acquire_is_undone_by_a_release;
    a_release_that_is_never_done: ReleaseIsLeftToTheTtl breaks a_dropped_release_can_be_repeated;
    a_ttl_that_never_ends: TtlNeverEnds breaks a_lock_ends_after_its_ttl;
    a_ttl_of_half_the_length: TtlIsHalf breaks a_lock_does_not_end_early;
    an_owner_for_ever: ExpiredIsStillTheOwners breaks what_has_expired_is_nobodys;
    a_cut_that_forgets: CutForgets breaks the_node_comes_back_after_its_connections_broke;
    a_call_that_waits_for_ever: SilenceIsWaitedOutForEver breaks a_call_ends_though_nobody_answers;
    a_line_from_the_end: LineCallsTheLast breaks the_first_in_line_is_called_when_the_lock_is_released;
    a_line_that_forgets_whoever_was_granted: LineForgetsWhoeverWasGranted breaks whoever_is_called_is_granted_as_anybody;
    a_line_that_is_not_heeded: LineIsNotHeeded breaks whoever_yields_lets_the_first_in_line_go_first;
    a_line_that_nobody_leaves: LineForgetsACallOnLeaving breaks a_call_is_passed_on_by_leaving_the_line;
    an_inspection_that_guesses: InspectionGuesses breaks inspection_tells_what_is_there;
    a_replica: HealthIsThatOfAReplica breaks health_is_that_of_a_node_that_decides;
    an_identity_per_connection: IdentityIsThatOfTheConnection breaks the_identity_stays_the_same;
    a_name_that_changes: NameCountsCalls breaks the_name_stays_the_same;
    a_calendar_that_stands_still: UnixTimeStandsStill breaks unix_time_goes_on;
}

#[test]
fn no_promise_is_there_that_nothing_could_break() {
    let broken: BTreeSet<_> = BROKEN_BY_SOMEBODY.iter().copied().collect();
    let never: Vec<_> = PROMISES.iter().map(|promise| promise.name).filter(|name| !broken.contains(name)).collect();
    assert_eq!(never, Vec::<&str>::new(), "promises that no bad node breaks check nothing, as far as is shown");
}

#[test]
fn what_is_broken_is_told_with_rule_and_deed() {
    let told = conformance(Wrong::RaiseLowers).to_string();
    let expected = "a_raise_never_lowers: a raise sets the counter to max(counter, to), so never to less than it was; instead, \
                    a raise to 0 at counter 101 was answered At(0), where At(101) is due";
    assert!(told.contains(expected), "{told}");
    assert!(told.starts_with(&format!("{} promises kept, 0 not offered, 3 broken\n", PROMISES.len() - 3)), "{told}");
}
