//! One lock on several resources at once: what the second, the fourth, the thirty-second name costs.

use std::time::Duration;

use tokio::time::Instant;

use super::super::contestant::{our_round, ours};
use super::super::figures::as_f64;
use super::super::findings::{Figure, Findings, Table, Unit, shown};
use super::super::interleave::order;
use super::super::plan::Plan;
use super::super::plot::{Plot, Series, Tone};
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Progress};
use super::section;

const NAME: &str = "resources";

const SIZES: [usize; 6] = [1, 2, 4, 8, 16, 32];

pub(super) async fn run(
    plan: &Plan,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let redlock = ours(&stage.quorum(NODES)).await?;
    let names = |size: usize| (0..size).map(|number| format!("load/set/{number}")).collect::<Vec<_>>();
    let sets = SIZES.map(names);
    let mut medians = vec![Vec::<Option<f64>>::new(); SIZES.len()];
    let mut failed = 0;
    for block in 0..plan.slow_blocks {
        progress(NAME, block, plan.slow_blocks);
        for turn in order(block, SIZES.len()) {
            let mut times = Vec::new();
            for round in 0..plan.lead_in + plan.slow_rounds {
                let set: Vec<&str> = sets[turn].iter().map(String::as_str).collect();
                let started = Instant::now();
                let result = our_round(&redlock, set.as_slice()).await;
                let time = started.elapsed();
                if result.is_err() {
                    failed += 1;
                    tokio::time::sleep(Duration::from_millis(1)).await;
                } else if plan.lead_in <= round {
                    times.push(time.as_secs_f64() * 1e6);
                }
            }
            medians[turn].push(Figure::median(&times, Unit::Micros).map(|figure| figure.value));
        }
    }
    if 0 < failed {
        findings.failed("resources/redlock", &[("not_locked".to_owned(), failed)].into());
    }
    for (place, size) in SIZES.iter().enumerate() {
        let values: Vec<f64> = medians[place].iter().flatten().copied().collect();
        findings.put(format!("{NAME}/redlock-{size}/p50"), Figure::median(&values, Unit::Micros));
        let pairs = medians[place].iter().zip(&medians[0]);
        let ratios: Vec<f64> = pairs.filter_map(|(one, other)| Some((*one)? / (*other)?)).collect();
        findings.put(format!("{NAME}/redlock-{size}/p50÷1"), Figure::median(&ratios, Unit::Ratio));
    }
    let mut section = section(
        NAME,
        "One lock on several resources",
        "Acquire and release of a lock that covers several resources, all or none. Each server is told all names in one \
         script, so what grows is the script's work and not the number of round trips.",
    );
    let rows = SIZES.iter().map(|size| {
        let figure = |what: &str| shown(findings.figures.get(&format!("{NAME}/redlock-{size}/{what}")));
        let name = if *size == 1 { "1 resource".to_owned() } else { format!("{size} resources") };
        vec![name, figure("p50"), figure("p50÷1")]
    });
    let head = ["", "p50 µs (blocks)", "÷ 1 resource (blocks)"];
    section.tables.push(Table { head: head.map(str::to_owned).into(), rows: rows.collect() });
    let point = |size: &usize| Some((as_f64(*size), findings.value(&format!("{NAME}/redlock-{size}/p50"))?));
    section.plots.push(Plot::Lines {
        id: NAME.into(),
        title: "One lock on several resources".into(),
        axis: "µs for acquire + release, p50".into(),
        across: "resources".into(),
        unit: Unit::Micros,
        series: vec![Series {
            label: "redlock, 5 servers".into(),
            tone: Tone::Ours,
            points: SIZES.iter().filter_map(point).collect(),
        }],
    });
    findings.sections.push(section);
    Ok(())
}
