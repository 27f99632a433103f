//! Many tasks, each on a resource of its own: how much a client can do, and how that grows with the number of tasks.

use std::sync::Arc;
use std::time::Duration;

use super::super::contestant::{Client, Contestant, rslock};
use super::super::fan_out::Commands;
use super::super::figures::as_f64;
use super::super::findings::{Figure, Findings, Table, Unit, shown};
use super::super::interleave::order;
use super::super::plan::Plan;
use super::super::plot::{Plot, Series};
use super::super::script_calls::Calls;
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Places, Progress};
use super::peers::Library;
use super::{bar, note_absent, section, tone};

const NAME: &str = "throughput";

/// The number of tasks that goals speak of.
const TASKS: usize = 64;

/// Growth with the number of resources that are locked at the same time.
const GROWTH: [usize; 5] = [1, 4, 16, TASKS, 256];

/// Who is measured over all of these.
const GROWING: [&str; 3] = ["redlock-5", "scripts-5", "rslock-5"];

/// How long a contestant runs before it is measured.
const LEAD_IN: Duration = Duration::from_millis(30);

pub(super) async fn run(
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let urls = stage.quorum(NODES);
    let mut contestants = vec![Contestant::ours("redlock-5", "redlock, 5 servers", &urls).await?];
    match Calls::heard(&stage.healthy[..NODES]).await {
        Ok(calls) => {
            let commands = Commands::Ours(Arc::new(calls));
            contestants.push(Contestant::raw("scripts-5", "same scripts, 5 servers (floor)", &urls, commands).await?);
        }
        Err(error @ LoadError::NoPattern(_)) => findings.miss("throughput/redlock-5/rate÷scripts-5", error.to_string()),
        Err(error) => return Err(error),
    }
    contestants.push(Contestant::raw("plain-5", "SET NX PX, 5 servers", &urls, Commands::Plain).await?);
    contestants.push(Contestant::ours("redlock-1", "redlock, 1 server", &urls[..1]).await?);
    contestants.push(Contestant::new("rslock-5", "rslock, 5 servers", Client::Rslock(rslock(&urls))));
    for library in Library::FOREIGN {
        let peers = library.start_all(places, std::slice::from_ref(&urls), findings).await.unwrap_or_default();
        for peer in peers {
            let (name, what) = (format!("{}-5", library.name()), format!("{}, 5 servers", library.name()));
            contestants.push(Contestant::new(name, what, Client::Peer(Box::new(peer))));
        }
    }

    // One value for each block, by contestant and number of tasks; none where it failed.
    let mut rates = vec![vec![Vec::<Option<f64>>::new(); GROWTH.len()]; contestants.len()];
    let mut failed = vec![0; contestants.len()];
    for block in 0..plan.many_blocks {
        progress(NAME, block, plan.many_blocks);
        for turn in order(block, contestants.len()) {
            let contestant = &mut contestants[turn];
            for (place, tasks) in GROWTH.into_iter().enumerate() {
                if tasks != TASKS && !(GROWING.contains(&&*contestant.name) && block.is_multiple_of(3)) {
                    continue;
                }
                // The first time connects those that connect when they are first used.
                let lead_in = contestant.many(tasks, LEAD_IN).await;
                let many = match lead_in {
                    Ok(_) => contestant.many(tasks, plan.many_time).await,
                    Err(why) => Err(why),
                };
                let rate = many.as_ref().ok().map(|many| as_f64(many.done) / plan.many_time.as_secs_f64());
                failed[turn] += many.map_or(1, |many| many.failed);
                rates[turn][place].push(rate);
            }
        }
    }

    let at = GROWTH.iter().position(|tasks| *tasks == TASKS).unwrap_or_default();
    for (turn, Contestant { name, .. }) in contestants.iter().enumerate() {
        for (place, tasks) in GROWTH.iter().enumerate() {
            let figure =
                Figure::median(&rates[turn][place].iter().flatten().copied().collect::<Vec<_>>(), Unit::PerSecond);
            let suffix = if *tasks == TASKS { String::new() } else { format!("-{tasks}") };
            findings.put(format!("{NAME}/{name}/rate{suffix}"), figure);
        }
        if 0 < failed[turn] {
            findings.failed(&format!("{NAME}/{name}"), &[("not_locked".to_owned(), failed[turn])].into());
        }
    }
    for to in ["scripts-5", "plain-5", "rslock-5", "node-redlock-5", "pottery-5", "redlock-py-5"] {
        let Some(other) = contestants.iter().position(|contestant| contestant.name == to) else { continue };
        for (turn, Contestant { name, .. }) in contestants.iter().enumerate().filter(|(turn, _)| *turn != other) {
            let pairs = rates[turn][at].iter().zip(&rates[other][at]);
            let ratios: Vec<f64> = pairs.filter_map(|(one, other)| Some((*one)? / (*other)?)).collect();
            findings.put(format!("{NAME}/{name}/rate÷{to}"), Figure::median(&ratios, Unit::Ratio));
        }
    }

    let mut section = section(
        NAME,
        "Throughput: 64 tasks on 64 resources",
        "Tasks that never compete, on one connection to each server, as often as they can. Rounds of acquire and release \
         in a second; more is better.",
    );
    let head = ["", "rounds/s (blocks)", "÷ same scripts (blocks)", "÷ plain (blocks)", "failed"];
    let rows = contestants.iter().zip(&failed).map(|(Contestant { name, what, .. }, failed)| {
        let figure = |what: &str| shown(findings.figures.get(&format!("{NAME}/{name}/{what}")));
        vec![what.clone(), figure("rate"), figure("rate÷scripts-5"), figure("rate÷plain-5"), failed.to_string()]
    });
    section.tables.push(Table { head: head.map(str::to_owned).into(), rows: rows.collect() });
    note_absent(&mut section, findings);
    section.plots.push(Plot::Bars {
        id: NAME.into(),
        title: "64 tasks on distinct resources".into(),
        axis: "acquire + release per second; more is better".into(),
        log: false,
        bars: contestants
            .iter()
            .map(|contestant| {
                let figure = format!("{NAME}/{}/rate", contestant.name);
                bar(findings, &contestant.what, &figure, tone(&contestant.name))
            })
            .collect(),
        goal: None,
    });
    let series = GROWING.iter().map(|name| {
        let point = |tasks: &usize| {
            let suffix = if *tasks == TASKS { String::new() } else { format!("-{tasks}") };
            Some((as_f64(*tasks), findings.value(&format!("{NAME}/{name}/rate{suffix}"))?))
        };
        let what = contestants.iter().find(|contestant| contestant.name == *name).map(|contestant| &*contestant.what);
        let label = what.and_then(|what| what.split(',').next()).unwrap_or(name).into();
        Series { label, tone: tone(name), points: GROWTH.iter().filter_map(point).collect() }
    });
    section.plots.push(Plot::Lines {
        id: "throughput-tasks".into(),
        title: "Growth with the number of resources".into(),
        axis: "acquire + release per second".into(),
        across: "tasks, each with a resource of its own".into(),
        unit: Unit::PerSecond,
        series: series.collect(),
    });
    findings.sections.push(section);
    Ok(())
}
