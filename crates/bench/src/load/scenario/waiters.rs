//! From 8 to 128 waiters, spread over 8 processes: does a grant cost more when more are waiting?

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::RedisServer;

use super::super::contestant::ours;
use super::super::figures::as_f64;
use super::super::findings::{Figure, Findings, Table, Unit, shown};
use super::super::interleave::order;
use super::super::plan::Plan;
use super::super::plot::{Plot, Series};
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Places, Progress};
use super::crowd::{Crowd, Record};
use super::peers::Library;
use super::{section, tone};

const NAME: &str = "waiters";

const PROCESSES: usize = 8;

const WAITERS: [usize; 5] = [8, 16, 32, 64, 128];

/// How many grants all of them together get in a block, for each grant that the plan gives to one of 32.
const GRANTS: usize = 32;

/// How many clients wait for a lock that nobody gives back, each with connections of its own…
const IDLE: u8 = 20;

/// …and for how long they are watched.
const HELD: Duration = Duration::from_secs(10);

/// What it costs to wait.
struct Idle {
    cpu: Figure,
    calls: Figure,
}

/// Watches clients that wait for a lock that is held all the time. Nothing else goes on in this process.
async fn idle(urls: &[String], servers: &[RedisServer]) -> Result<Idle, LoadError> {
    let resource = "load/waiters/idle";
    let holder = ours(urls).await?;
    let held = holder.request(resource).ttl(6 * HELD).try_acquire().await.map_err(LoadError::Holder)?;
    let mut waiters = JoinSet::new();
    for _ in 0..IDLE {
        let client = ours(urls).await?;
        waiters.spawn(async move { client.request(resource).wait(6 * HELD).acquire().await });
    }
    // Until all of them stand in line.
    tokio::time::sleep(HELD / 5).await;
    let (began, before, spent) = (Instant::now(), calls(servers).await?, processor_time());
    tokio::time::sleep(HELD).await;
    let (seconds, spent) = (began.elapsed().as_secs_f64(), processor_time().saturating_sub(spent));
    let calls = calls(servers).await? - before;
    waiters.shutdown().await;
    held.release().await;
    Ok(Idle {
        cpu: Figure::plain(spent.as_secs_f64() / seconds, Unit::Share),
        calls: Figure::plain(calls / seconds, Unit::Count),
    })
}

/// The processor time that this process has used so far.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

async fn calls(servers: &[RedisServer]) -> Result<f64, LoadError> {
    let mut calls = 0;
    for server in servers {
        calls += server.probe().command_calls("evalsha").await?;
    }
    Ok(as_f64(usize::try_from(calls).unwrap_or(usize::MAX)))
}

pub(super) async fn run(
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let (urls, servers) = (stage.quorum(NODES), &stage.healthy[..NODES]);
    let mut crowds = Vec::new();
    for library in [Library::OURS, Library::RSLOCK] {
        if let Some(mut crowd) = Crowd::start(library, PROCESSES, places, &urls, findings).await {
            crowd.rehearse(PROCESSES, plan.crowd_max, servers).await?;
            crowds.push(crowd);
        }
    }
    let mut records = BTreeMap::<(usize, usize), Record>::new();
    let blocks = plan.crowd_blocks.min(4);
    for block in 0..blocks {
        progress(NAME, block, blocks);
        for place in order(block, WAITERS.len()) {
            for (who, crowd) in crowds.iter_mut().enumerate() {
                if crowd.name() != Library::OURS.name() && plan.peer_blocks.min(1) <= block {
                    continue;
                }
                let waiters = WAITERS[place];
                let grants = (GRANTS * plan.crowd_grants).div_ceil(waiters);
                let resource = format!("load/waiters/{}/{waiters}", crowd.name());
                let record = records.entry((who, place)).or_default();
                crowd.measure(&resource, (waiters, grants, plan.crowd_max), servers, record).await?;
            }
        }
    }
    let mut rows = Vec::new();
    for ((who, place), record) in &records {
        let (name, waiters) = (crowds[*who].name(), WAITERS[*place]);
        let runs = || record.runs.iter().flatten().filter(|run| 0 < run.grants);
        let times: Vec<f64> = runs().map(|run| run.total_us / as_f64(run.grants)).collect();
        let failed: usize = runs().map(|run| run.failed).sum();
        let id = format!("{NAME}/{name}-{waiters}");
        findings.put(format!("{id}/commands"), Figure::median(&record.commands, Unit::Count));
        findings.put(format!("{id}/time"), Figure::median(&times, Unit::Micros));
        let handovers: Vec<f64> = runs().filter_map(|run| run.handover(0.5)).collect();
        findings.put(format!("{id}/handover-p50"), Figure::median(&handovers, Unit::Micros));
        let unfair: Vec<f64> = runs().filter_map(|run| run.unfairness).collect();
        findings.put(format!("{id}/unfairness"), Figure::median(&unfair, Unit::Ratio));
        if 0 < failed {
            findings.failed(&id, &[("not_in_time".to_owned(), failed)].into());
        }
        let figure = |what: &str| shown(findings.figures.get(&format!("{id}/{what}")));
        let mut row = vec![format!("{name}, {waiters} waiters")];
        row.extend(["time", "handover-p50", "commands", "unfairness"].map(figure));
        row.push(failed.to_string());
        rows.push(row);
    }
    for what in ["commands", "time"] {
        let value = |waiters: usize| findings.value(&format!("{NAME}/redlock-{waiters}/{what}"));
        let ratio =
            value(WAITERS[4]).zip(value(WAITERS[0])).map(|(most, least)| Figure::plain(most / least, Unit::Ratio));
        findings.put(format!("{NAME}/redlock/{what}-128÷8"), ratio);
    }
    let idle = idle(&urls, servers).await?;
    let cpu = shown(Some(&idle.cpu));
    let calls = shown(Some(&idle.calls));
    findings.put(format!("{NAME}/idle/cpu"), Some(idle.cpu));
    findings.put(format!("{NAME}/idle/calls"), Some(idle.calls));
    let mut section = section(
        NAME,
        "From 8 to 128 waiters",
        "8 processes on one resource that is held for 1 ms each time, with 1 to 16 tasks each, coming back at once. If a \
         grant costs the same however many are waiting, the lines are flat.",
    );
    let head = ["", "µs per grant", "hand-over p50 µs", "commands per grant", "longest ÷ mean wait", "not in time"];
    section.tables.push(Table { head: head.map(str::to_owned).into(), rows });
    section.notes.push(format!(
        "While a lock is held for {} s, {IDLE} clients of our own that wait for it take {cpu} of one core together, and make \
         {calls} calls per second to all five servers.",
        HELD.as_secs()
    ));
    let lines = |what: &str, title: &str, axis: &str, unit| {
        let series = crowds.iter().map(|crowd| {
            let value = |waiters: usize| findings.value(&format!("{NAME}/{}-{waiters}/{what}", crowd.name()));
            let points = WAITERS.into_iter().filter_map(|waiters| Some((as_f64(waiters), value(waiters)?)));
            Series { label: crowd.name().into(), tone: tone(crowd.name()), points: points.collect() }
        });
        Plot::Lines {
            id: format!("{NAME}-{what}"),
            title: title.into(),
            axis: axis.into(),
            across: "waiters".into(),
            unit,
            series: series.collect(),
        }
    };
    section.plots.push(lines("commands", "Commands per grant", "over all five servers", Unit::Count));
    section.plots.push(lines("time", "Time per grant", "µs, of which the lock is held for 1000", Unit::Micros));
    findings.sections.push(section);
    Ok(())
}
