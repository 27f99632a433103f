//! What is measured: one file for each scenario. Each adds its figures, its section, and what it could not measure.

mod alone;
mod cost;
mod crowd;
mod fence;
mod network;
mod peers;
mod resources;
mod throughput;
mod waiters;

use super::findings::{Figure, Findings, Section, Table, Unit, shown};
use super::goals::PEERS;
use super::interleave::Entry;
use super::plan::{Plan, Scenario};
use super::plot::{Bar, Tone};
use super::stage::Stage;
use super::{LoadError, Places, Progress};

/// Runs one scenario.
pub(super) async fn run(
    scenario: Scenario,
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    match scenario {
        Scenario::Alone => alone::run(plan, places, stage, findings, progress).await,
        Scenario::Network => network::run(plan, stage, findings, progress).await,
        Scenario::Throughput => throughput::run(plan, places, stage, findings, progress).await,
        Scenario::Resources => resources::run(plan, stage, findings, progress).await,
        Scenario::Crowd => crowd::run(plan, places, stage, findings, progress).await,
        Scenario::Waiters => waiters::run(plan, places, stage, findings, progress).await,
        Scenario::Cost => cost::run(plan, places, stage, findings).await,
        Scenario::Fence => fence::run(plan, findings, progress).await,
    }
}

/// How far ours is ahead of others: their figure as a multiple of ours, block by block, from what all scenarios have found.
pub(super) fn ahead(findings: &mut Findings) {
    for peer in PEERS {
        let commands = |who: &str| findings.value(&format!("processes/{who}/commands"));
        let rate = findings.value(&format!("throughput/redlock-5/rate÷{peer}-5"));
        let found = [
            ("alone", format!("alone/{peer}-5"), findings.value(&format!("alone/{peer}-5/p50÷redlock-5"))),
            (
                "frozen",
                format!("alone/{peer}-frozen"),
                findings.value(&format!("alone/{peer}-frozen/p50÷redlock-frozen")),
            ),
            (
                "killed",
                format!("alone/{peer}-killed"),
                findings.value(&format!("alone/{peer}-killed/p50÷redlock-killed")),
            ),
            (
                "slowed",
                format!("alone/{peer}-slowed"),
                findings.value(&format!("alone/{peer}-slowed/p50÷redlock-slowed")),
            ),
            ("throughput", format!("throughput/{peer}-5"), rate),
            (
                "one-process",
                format!("one-process/{peer}"),
                findings.value(&format!("one-process/{peer}/total÷redlock")),
            ),
            ("processes", format!("processes/{peer}"), findings.value(&format!("processes/{peer}/total÷redlock"))),
            (
                "handover",
                format!("processes/{peer}"),
                findings.value(&format!("processes/{peer}/handover-p50÷redlock")),
            ),
            (
                "commands",
                format!("processes/{peer}"),
                commands(peer).zip(commands("redlock")).map(|(theirs, ours)| theirs / ours),
            ),
        ];
        for (figure, contestant, times) in found {
            let name = format!("ahead/{peer}/{figure}");
            if let (None, Some(reasons)) = (times, findings.failures.get(&contestant)) {
                let reasons: Vec<&str> = reasons.keys().map(String::as_str).collect();
                findings.miss(name.clone(), format!("it failed: {}", reasons.join(", ")));
            }
            findings.put(name, times.map(|times| Figure::plain(times, Unit::Ratio)));
        }
    }
}

/// Files the times of contestants under `scenario/name/…`.
fn file(findings: &mut Findings, scenario: &str, entries: &[Entry]) {
    for Entry { name, samples, failures, .. } in entries {
        let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        let p50 = samples.p50().map(|p50| Figure {
            value: micros(p50),
            spread: samples
                .p50_of_blocks()
                .map(|blocks| super::figures::Spread { low: micros(blocks.low), high: micros(blocks.high) }),
            unit: Unit::Micros,
        });
        findings.put(format!("{scenario}/{name}/p50"), p50);
        let p99 = samples.percentile(0.99).map(|p99| Figure::plain(micros(p99), Unit::Micros));
        findings.put(format!("{scenario}/{name}/p99"), p99);
        findings.failed(&format!("{scenario}/{name}"), failures);
    }
}

/// Files how the medians, and the p99, of one contestant compare to another's.
fn file_ratio(findings: &mut Findings, scenario: &str, entries: &[Entry], of: &str, to: &str) {
    let samples = |name: &str| entries.iter().find(|entry| entry.name == name).map(|entry| &entry.samples);
    let (Some(one), Some(other)) = (samples(of), samples(to)) else { return };
    let p50 =
        one.ratio_to(other).map(|ratio| Figure { value: ratio.value, spread: Some(ratio.blocks), unit: Unit::Ratio });
    findings.put(format!("{scenario}/{of}/p50÷{to}"), p50);
    let p99 = one.tail_ratio_to(other, 0.99).map(|ratio| Figure::plain(ratio, Unit::Ratio));
    findings.put(format!("{scenario}/{of}/p99÷{to}"), p99);
}

/// A table of times: everybody's p50, p99, and the ratios of the p50 to those of `to`.
fn times_table(findings: &Findings, scenario: &str, entries: &[Entry], to: &[(&str, &str)]) -> Table {
    let mut head = vec!["".to_owned(), "p50 µs (blocks)".into(), "p99 µs".into()];
    head.extend(to.iter().map(|(_, shown)| format!("÷ {shown} (blocks)")));
    head.extend(["rounds".into(), "failed".into()]);
    let row = |entry: &Entry| {
        let figure = |what: &str| shown(findings.figures.get(&format!("{scenario}/{}/{what}", entry.name)));
        let mut row = vec![entry.what.clone(), figure("p50"), figure("p99")];
        row.extend(to.iter().map(|(name, _)| figure(&format!("p50÷{name}"))));
        let failed: usize = entry.failures.values().sum();
        row.extend([entry.samples.rounds().to_string(), failed.to_string()]);
        row
    };
    Table { head, rows: entries.iter().map(row).collect() }
}

/// A bar for a figure.
fn bar(findings: &Findings, label: &str, figure: &str, tone: Tone) -> Bar {
    Bar { label: label.into(), figure: findings.figures.get(figure).copied(), tone }
}

/// Whose colour a contestant has.
fn tone(name: &str) -> Tone {
    if name.starts_with("redlock-py") {
        return Tone::Other(3);
    }
    match name {
        _ if name.starts_with("redlock") || name.starts_with("guarded") => Tone::Ours,
        _ if name.starts_with("plain") || name.starts_with("scripts") || name.starts_with("ideal") => Tone::Floor,
        _ if name.starts_with("rslock") => Tone::Other(0),
        _ if name.starts_with("node") => Tone::Other(1),
        _ => Tone::Other(2),
    }
}

/// Says in a section which other libraries are not in it.
fn note_absent(section: &mut Section, findings: &Findings) {
    let absent = findings.missing.iter().filter(|missing| PEERS.contains(&&*missing.what));
    section.notes.extend(absent.map(|missing| format!("{}: {}.", missing.what, missing.why)));
}

/// A section without anything in it yet.
fn section(id: &'static str, title: &str, text: &str) -> Section {
    Section { id, title: title.into(), text: text.into(), ..Section::default() }
}
