//! What an acquire and release costs the client itself: instructions, counted by Valgrind, and allocations, counted by an
//! allocator that counts.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use super::super::figures::as_f64;
use super::super::findings::{Figure, Findings, Table, Unit, shown};
use super::super::plan::Plan;
use super::super::plot::Plot;
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Places};
use super::{bar, section, tone};

const NAME: &str = "cost";

/// Who is looked at.
const CLIENTS: [(&str, &str); 3] = [
    ("redlock-5", "redlock, 5 servers"),
    ("plain-5", "SET NX PX, 5 servers (floor)"),
    ("rslock-5", "rslock, 5 servers"),
];

/// How long one count may take; Valgrind is some fifty times as slow as the processor.
const COUNT_MAX: Duration = Duration::from_secs(60);

pub(super) async fn run(plan: &Plan, places: &Places, stage: &Stage, findings: &mut Findings) -> Result<(), LoadError> {
    let urls = stage.quorum(NODES).join(",");
    for (name, _) in CLIENTS {
        match allocations(&places.counter, name, plan.cost_rounds, &urls).await {
            Ok((count, bytes)) => {
                findings.put(format!("{NAME}/{name}/allocations"), Figure::plain(count, Unit::Count));
                findings.put(format!("{NAME}/{name}/bytes"), Figure::plain(bytes, Unit::Count));
            }
            Err(why) => findings.miss(format!("{NAME}/{name}/allocations"), why),
        }
        match instructions(&places.program, name, plan.cost_rounds, &urls).await {
            Ok(count) => findings.put(format!("{NAME}/{name}/instructions"), Figure::plain(count, Unit::Count)),
            Err(why) => findings.miss(format!("{NAME}/{name}/instructions"), why),
        }
    }
    for (name, _) in CLIENTS {
        for what in ["instructions", "allocations"] {
            let value = |name: &str| findings.value(&format!("{NAME}/{name}/{what}"));
            let ratio = value(name).zip(value("plain-5")).map(|(one, floor)| Figure::plain(one / floor, Unit::Ratio));
            findings.put(format!("{NAME}/{name}/{what}÷plain-5"), ratio);
        }
    }
    let mut section = section(
        NAME,
        "What it costs the client",
        "Of one acquire and release, in the client's process alone: instructions as Valgrind's callgrind counts them (the \
         difference between a longer and a shorter run, so that starting up does not count), and allocations as a counting \
         allocator counts them. These hardly depend on how busy the machine is.",
    );
    let rows = CLIENTS.iter().map(|(name, what)| {
        let figure = |what: &str| shown(findings.figures.get(&format!("{NAME}/{name}/{what}")));
        let figures = ["instructions", "instructions÷plain-5", "allocations", "allocations÷plain-5", "bytes"];
        [vec![(*what).to_owned()], figures.map(figure).into()].concat()
    });
    let head = ["", "instructions", "÷ plain", "allocations", "÷ plain", "bytes allocated"];
    section.tables.push(Table { head: head.map(str::to_owned).into(), rows: rows.collect() });
    for (what, title) in [("instructions", "Instructions of the client"), ("allocations", "Allocations of the client")]
    {
        section.plots.push(Plot::Bars {
            id: format!("{NAME}-{what}"),
            title: title.into(),
            axis: "for one acquire + release".into(),
            log: false,
            bars: CLIENTS
                .iter()
                .map(|(name, shown)| bar(findings, shown, &format!("{NAME}/{name}/{what}"), tone(name)))
                .collect(),
            goal: None,
        });
    }
    for missing in findings.missing.iter().filter(|missing| missing.what.starts_with(NAME)) {
        let note = format!("Not measured: {}.", missing.why);
        if !section.notes.contains(&note) {
            section.notes.push(note);
        }
    }
    findings.sections.push(section);
    Ok(())
}

/// Allocations, and bytes, of one round.
async fn allocations(counter: &Path, name: &str, rounds: usize, urls: &str) -> Result<(f64, f64), String> {
    if !counter.exists() {
        return Err("the program `counted` is not built; `cargo xtask bench` builds it".into());
    }
    let mut command = Command::new(counter);
    command.args([name, &rounds.to_string(), urls]);
    let (said, _) = output(command).await?;
    let numbers: Vec<usize> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [count, bytes, 0] => Ok((as_f64(count) / as_f64(rounds), as_f64(bytes) / as_f64(rounds))),
        [_, _, failed] => Err(format!("{failed} of {rounds} rounds failed")),
        _ => Err(format!("the counter said {said:?}")),
    }
}

/// Instructions of one round.
async fn instructions(program: &Path, name: &str, rounds: usize, urls: &str) -> Result<f64, String> {
    let count = async |rounds: usize| {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        command.args(["--repeat", name, &rounds.to_string(), "--on", urls]);
        let (_, told) = output(command).await?;
        let collected = told.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
        collected.ok_or_else(|| format!("valgrind said {:?}", told.lines().last().unwrap_or_default()))
    };
    let (short, long) = (count(rounds).await?, count(2 * rounds).await?);
    Ok((long - short) / as_f64(rounds))
}

/// What a program says on its standard output and error, if all is well with it.
async fn output(mut command: Command) -> Result<(String, String), String> {
    let program =
        Path::new(command.as_std().get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = tokio::time::timeout(COUNT_MAX, command.kill_on_drop(true).output()).await;
    let output = output.map_err(|_| format!("{program} took longer than {} s", COUNT_MAX.as_secs()))?;
    let output = output.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("not measured here: install {program}"),
        _ => format!("{program} cannot be run: {error}"),
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok((text(&output.stdout), text(&output.stderr))),
        false => Err(format!("{program}: {}", text(&output.stderr).lines().last().unwrap_or("failed"))),
    }
}
