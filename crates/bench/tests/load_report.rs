//! The arithmetic and the telling of the load comparison, on times that were made up: nothing here is measured.

use std::time::Duration;

use redlock_bench::load::figures::{FAILED, Ratio, Samples, Spread, percentile};
use redlock_bench::load::findings::{Figure, Findings, Section, Table, Unit};
use redlock_bench::load::goals::{Bound, Outcome, goals};
use redlock_bench::load::origin::Origin;
use redlock_bench::load::plot::{Bar, Plot, Series, Tone};
use redlock_bench::load::report::{Report, Score};

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
        processor: "abacus <two beads>, 2 cores".into(),
        system: "none".into(),
        load_average: "0 0 0".into(),
        server: "7.0.15".into(),
        redis_crate: "1.8.1".into(),
        rslock_crate: "0.10.0".into(),
        redlock: "0.1.0".into(),
        compiler: "rustc".into(),
        optimised: true,
    }
}

/// Findings in which every goal is met exactly, except for those named.
fn findings(exceptions: &[(&str, Option<f64>)]) -> Findings {
    let mut findings = Findings::default();
    for goal in goals() {
        let (Bound::AtMost(met) | Bound::AtLeast(met)) = goal.bound;
        let exception = exceptions.iter().find(|(figure, _)| *figure == goal.figure);
        if let Some(value) = exception.map_or(Some(met), |(_, value)| *value) {
            findings.put(goal.figure, Figure::plain(value, Unit::Ratio));
        }
    }
    findings.sections.push(Section {
        id: "alone",
        title: "Alone & unhurried".into(),
        text: "Nobody else.".into(),
        tables: vec![Table {
            head: vec!["".into(), "p50 µs".into()],
            rows: vec![vec!["redlock, 5 servers".into(), "187".into()], vec!["a < b".into(), "–".into()]],
        }],
        plots: vec![
            Plot::Bars {
                id: "alone".into(),
                title: "Five servers".into(),
                axis: "µs".into(),
                log: true,
                bars: vec![
                    Bar {
                        label: "redlock".into(),
                        figure: Figure::median(&[10.0, 20.0, 30.0], Unit::Micros),
                        tone: Tone::Ours,
                    },
                    Bar { label: "other".into(), figure: None, tone: Tone::Other(1) },
                ],
                goal: Some(15.0),
            },
            Plot::Lines {
                id: "growth".into(),
                title: "Growth".into(),
                axis: "µs".into(),
                across: "servers".into(),
                unit: Unit::Micros,
                series: vec![Series {
                    label: "redlock".into(),
                    tone: Tone::Ours,
                    points: vec![(1.0, 100.0), (7.0, 200.0)],
                }],
            },
        ],
        notes: vec!["The relay adds 12 µs.".into()],
    });
    findings
}

fn report(exceptions: &[(&str, Option<f64>)]) -> Report {
    Report::new(origin(), findings(exceptions))
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
    assert_eq!(percentile(vec![2.0, 1.0], 1.0), Some(2.0));
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
fn a_ratio_is_the_median_of_the_blocks_ratios() {
    // The machine is twice as slow in the second block, for both: the ratios within the blocks do not notice.
    let (one, other) = (samples(&[&[30, 30, 30], &[60, 60, 60]]), samples(&[&[20, 20, 20], &[40, 40, 40]]));
    let expected = Ratio { value: 1.5, blocks: Spread { low: 1.5, high: 1.5 } };
    assert_eq!(one.ratio_to(&other), Some(expected));
    assert_eq!(one.ratio_to(&samples(&[&[0], &[0]])), None, "nothing is a multiple of no time");
}

#[test]
fn whoever_sits_out_a_block_is_compared_in_the_others() {
    // Slow in the block that it sat out would have been everybody.
    let (one, other) = (samples(&[&[], &[60], &[30]]), samples(&[&[900], &[40], &[20]]));
    assert_eq!(one.ratio_to(&other).map(|ratio| ratio.value), Some(1.5));
    assert_eq!(one.tail_ratio_to(&other, 0.5), Some(0.75), "a tail is over all rounds");
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
    assert_eq!(report(&[]).score(), Score { met: goals().len(), missed: 0, not_measured: 0 });
    let missed = [("alone/redlock-5/p50÷scripts-5", Some(1.03)), ("throughput/redlock-5/rate÷scripts-5", Some(0.99))];
    let report = report(&missed);
    assert_eq!(report.score().missed, 2);
    for (figure, _) in missed {
        let verdict = report.verdicts().iter().find(|verdict| verdict.goal.figure == figure).unwrap();
        assert_eq!(verdict.outcome, Outcome::Missed, "{figure}");
    }
}

#[test]
fn what_was_not_measured_has_a_verdict_that_says_why() {
    let mut findings = findings(&[("ahead/pottery/alone", None), ("fence/postgres/update÷plain", None)]);
    findings.miss("pottery", "not present: python3");
    let report = Report::new(origin(), findings);
    assert_eq!(report.score().not_measured, 2);
    let why = |figure: &str| {
        let verdict = report.verdicts().iter().find(|verdict| verdict.goal.figure == figure).unwrap();
        verdict.outcome.clone()
    };
    assert_eq!(why("ahead/pottery/alone"), Outcome::NotMeasured("not present: python3".into()));
    assert!(matches!(why("fence/postgres/update÷plain"), Outcome::NotMeasured(why) if why.contains("failed")));
}

#[test]
fn every_goal_stands_in_every_form_of_the_report() {
    let report = Report::new(origin(), Findings::default());
    assert_eq!(report.score().not_measured, goals().len());
    let forms = [report.to_html(), report.to_markdown(), report.to_terminal(false)];
    for goal in goals() {
        for form in &forms {
            assert!(form.contains(&goal.what) && form.contains(goal.row), "{}: {} is missing", goal.row, goal.what);
        }
    }
    assert_eq!(report.to_json()["goals"].as_array().map(Vec::len), Some(goals().len()));
}

#[test]
fn no_two_goals_are_about_the_same_figure() {
    let mut figures: Vec<String> = goals().into_iter().map(|goal| goal.figure).collect();
    let count = figures.len();
    figures.sort_unstable();
    figures.dedup();
    assert_eq!(figures.len(), count);
}

#[test]
fn a_missed_goal_is_red_in_the_terminal_and_on_the_page() {
    let report = report(&[("alone/redlock-5/p50÷scripts-5", Some(1.5))]);
    let colourful = report.to_terminal(true);
    let line = colourful.lines().find(|line| line.contains("missed  ")).unwrap();
    assert!(line.starts_with("\x1b[31m") && line.contains("1.50"), "{line:?}");
    assert!(!report.to_terminal(false).contains('\x1b'));
    assert!(report.to_html().contains("<td class=\"missed\">1.50</td><td class=\"missed\">missed</td>"));
    assert!(report.to_markdown().contains("| 1.50 | **missed** |"));
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let html = report(&[]).to_html();
    for outside in ["http:", "https:", "src=", "<script", "<link", "@import", "url("] {
        assert!(!html.contains(outside), "{outside} is in the page");
    }
    assert!(
        html.contains("abacus &lt;two beads&gt;")
            && html.contains("a &lt; b")
            && html.contains("Alone &amp; unhurried")
    );
    assert_eq!(html.matches("<svg").count(), 2);
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert_eq!(html.matches("<tr").count(), html.matches("</tr>").count());
    for link in html.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert!(html.contains(&format!("id=\"{id}\"")), "nothing is called {id}");
    }
}

#[test]
fn a_picture_can_stand_alone() {
    let pictures = report(&[]).pictures();
    let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["alone.svg", "growth.svg"]);
    for (name, svg) in &pictures {
        assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && svg.contains("<style>"), "{name}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {svg}");
    }
}

#[test]
fn the_json_carries_figures_verdicts_and_where_they_come_from() {
    let mut findings = findings(&[("alone/redlock-5/p50÷plain-5", Some(1.5))]);
    findings.put("alone/redlock-5/p50", Figure::median(&[10.0, 20.0, 30.0], Unit::Micros));
    findings.failed("alone/redlock-5", &[("too_slow".to_owned(), 3)].into());
    let text = Report::new(origin(), findings).to_json().to_string();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["origin"]["command"], "cargo xtask bench");
    assert_eq!(json["score"]["missed"], 1);
    assert_eq!(json["figures"]["alone/redlock-5/p50"]["value"], 20.0);
    assert_eq!(json["figures"]["alone/redlock-5/p50"]["spread"]["high"], 30.0);
    assert_eq!(json["failures"]["alone/redlock-5"]["too_slow"], 3);
    let missed = json["goals"].as_array().unwrap().iter().find(|goal| goal["outcome"] == "missed").unwrap();
    assert_eq!((missed["figure"].as_str(), missed["value"].as_f64()), (Some("alone/redlock-5/p50÷plain-5"), Some(1.5)));
}

#[test]
fn failed_rounds_are_told_in_every_form() {
    let mut findings = findings(&[]);
    findings.failed("alone/redlock-5", &[("too_slow".to_owned(), 1), ("unavailable".to_owned(), 2)].into());
    let report = Report::new(origin(), findings);
    for form in [report.to_html(), report.to_markdown(), report.to_terminal(false)] {
        assert!(form.contains("alone/redlock-5: too_slow 1, unavailable 2"), "{form}");
    }
}
