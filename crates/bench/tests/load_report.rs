//! The arithmetic of the load comparison, on times that were made up: nothing here is measured.

use std::time::Duration;

use redlock_bench::load::Plan;
use redlock_bench::load::contestant::Who;
use redlock_bench::load::figures::{FAILED, Ratio, Samples, Spread};
use redlock_bench::load::report::{Entry, Origin, Report};

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn samples(blocks: &[&[u64]]) -> Samples {
    let mut samples = Samples::default();
    for block in blocks {
        samples.add_block(block.iter().map(|micros| us(*micros)).collect());
    }
    samples
}

fn origin() -> Origin {
    Origin {
        command: "cargo xtask bench".into(),
        commit: "0123456789".into(),
        processor: "abacus, 2 cores".into(),
        system: "none".into(),
        load_average: "0 0 0".into(),
        server: "7.0.15".into(),
        redis_crate: "1.8.1".into(),
        redlock: "0.1.0".into(),
        compiler: "rustc".into(),
        optimised: true,
    }
}

/// A report in which everybody takes 100 µs, except for those named.
fn report(exceptions: &[(Who, u64)]) -> Report {
    let time = |who| exceptions.iter().find(|(other, _)| *other == who).map_or(100, |(_, micros)| *micros);
    let entries = Who::ALL.map(|who| Entry { samples: samples(&[&[time(who)]]), ..Entry::of(who) });
    Report::new(Plan::WHOLE, origin(), entries.into())
}

/// Which goals are met, in the order of the report.
fn met(exceptions: &[(Who, u64)]) -> Vec<bool> {
    report(exceptions).verdicts().iter().map(|verdict| verdict.is_met()).collect()
}

#[test]
fn a_percentile_is_the_least_value_that_this_share_does_not_exceed() {
    let hundred: Vec<u64> = (1..=100).rev().collect();
    let hundred = samples(&[&hundred]);
    assert_eq!(hundred.p50(), Some(us(50)));
    assert_eq!(hundred.percentile(0.99), Some(us(99)));
    assert_eq!(hundred.percentile(1.0), Some(us(100)));
    assert_eq!(hundred.percentile(0.0), Some(us(1)));
    assert_eq!(samples(&[&[3, 1, 2]]).p50(), Some(us(2)));
    assert_eq!(samples(&[&[1, 2]]).p50(), Some(us(1)));
    assert_eq!(samples(&[&[7]]).percentile(0.99), Some(us(7)));
}

#[test]
fn nothing_has_no_percentile_and_no_ratio() {
    let (nothing, something) = (samples(&[]), samples(&[&[1]]));
    assert_eq!(nothing.p50(), None);
    assert_eq!(samples(&[&[]]).p50(), None);
    assert_eq!(nothing.ratio_to(&something), None);
    assert_eq!(something.ratio_to(&nothing), None);
}

#[test]
fn percentiles_are_over_all_rounds_and_the_spread_over_the_blocks() {
    let blocks: Vec<Vec<u64>> = (1..=10).map(|block| vec![10 * block, 10 * block, 1_000]).collect();
    let blocks: Vec<&[u64]> = blocks.iter().map(Vec::as_slice).collect();
    let samples = samples(&blocks);
    assert_eq!(samples.rounds(), 30);
    // Twenty times up to 100, ten times 1000: the fifteenth of thirty is an 80.
    assert_eq!(samples.p50(), Some(us(80)));
    assert_eq!(samples.percentile(0.99), Some(us(1_000)));
    assert_eq!(samples.p50_of_blocks(), Some(Spread { low: us(10), high: us(90) }));
}

#[test]
fn a_ratio_is_that_of_the_medians_with_the_spread_of_the_blocks_ratios() {
    // The machine is twice as slow in the second block, for both: the ratios within the blocks do not notice.
    let (one, other) = (samples(&[&[30, 30, 30], &[60, 60, 60]]), samples(&[&[20, 20, 20], &[40, 40, 40]]));
    let expected = Ratio { value: 1.5, blocks: Spread { low: 1.5, high: 1.5 } };
    assert_eq!(one.ratio_to(&other), Some(expected));
    assert_eq!(one.ratio_to(&samples(&[&[0], &[0]])), None, "nothing is a multiple of no time");
}

#[test]
fn a_failed_round_is_slower_than_any_other_and_never_a_figure() {
    let mut samples = samples(&[&[10, 20, 30]]);
    samples.add_block(vec![FAILED, FAILED]);
    assert_eq!(samples.rounds(), 5);
    assert_eq!(samples.p50(), Some(us(30)));
    assert_eq!(samples.percentile(0.99), None);
    samples.add_block(vec![FAILED, FAILED]);
    assert_eq!(samples.p50(), None, "most rounds failed");
}

#[test]
fn a_goal_is_met_up_to_its_bound_and_not_beyond() {
    assert_eq!(met(&[]), [true, true, true]);
    assert_eq!(met(&[(Who::RedlockTwoDown, 120)]), [true, true, true]);
    assert_eq!(met(&[(Who::RedlockTwoDown, 121)]), [false, true, true]);
    assert_eq!(met(&[(Who::Redlock, 102), (Who::RedlockTwoDown, 102)]), [true, true, true]);
    assert_eq!(met(&[(Who::Redlock, 103)]), [true, false, true]);
    assert_eq!(met(&[(Who::Redlock, 126)]), [true, false, false]);
}

#[test]
fn only_the_binding_goal_fails_the_run() {
    assert!(report(&[]).passed());
    assert!(report(&[(Who::Redlock, 1_000)]).passed());
    assert!(!report(&[(Who::RedlockTwoDown, 121)]).passed());
}

#[test]
fn what_was_not_measured_was_not_met() {
    let report = Report::new(Plan::WHOLE, origin(), Vec::new());
    assert!(report.verdicts().iter().all(|verdict| !verdict.is_met()));
    assert!(!report.passed());
}

#[test]
fn the_json_carries_what_the_table_shows() {
    let json = report(&[(Who::RedlockTwoDown, 150), (Who::Scripts, 50)]).to_json();
    assert_eq!(json["passed"], false);
    assert_eq!(json["origin"]["command"], "cargo xtask bench");
    assert_eq!(json["plan"]["blocks"], Plan::WHOLE.blocks);
    let two_down = &json["contestants"][1];
    assert_eq!(two_down["name"], "redlock-two-down");
    assert_eq!(two_down["rounds"], 1);
    assert_eq!(two_down["failed"].as_object().map(|failed| failed.len()), Some(0));
    assert!((two_down["p50_us"].as_f64().unwrap() - 150.0).abs() < 1e-9);
    assert!((two_down["to_healthy"]["ratio"].as_f64().unwrap() - 1.5).abs() < 1e-9);
    assert!((two_down["to_floor"]["ratio"].as_f64().unwrap() - 3.0).abs() < 1e-9);
    assert!(json["contestants"][0]["to_healthy"].is_null());
    let goal = &json["goals"][0];
    assert_eq!((goal["of"].as_str(), goal["to"].as_str()), (Some("redlock-two-down"), Some("redlock")));
    assert_eq!(goal["met"], false);
}

#[test]
fn the_table_names_everybody_and_says_what_was_missed() {
    let text = report(&[(Who::RedlockTwoDown, 121), (Who::Redlock, 110)]).to_string();
    for who in Who::ALL {
        assert!(text.contains(&who.to_string()), "{who} is not in\n{text}");
    }
    assert!(text.contains("met     redlock-two-down / redlock at p50: 1.100, goal at most 1.2\n"), "{text}");
    assert!(text.contains("missed  redlock / scripts at p50: 1.100, goal at most 1.02 (for information)\n"), "{text}");
    assert!(text.contains("command   cargo xtask bench"), "{text}");
}

#[test]
fn the_table_says_who_failed_and_why() {
    let failures = [("too_slow", 1), ("unavailable", 2)].into();
    let entry = Entry { failures, samples: samples(&[&[1, 2, 3, 4]]), who: Who::Redlock };
    let text = Report::new(Plan::WHOLE, origin(), vec![entry]).to_string();
    assert!(text.contains("failed  redlock: too_slow 1, unavailable 2 of 4 rounds\n"), "{text}");
}
