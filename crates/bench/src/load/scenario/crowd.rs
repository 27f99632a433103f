//! Many want one lock: 32 tasks of one process, and 8 processes with 4 tasks each, each of whom holds it for 1 ms.
//!
//! ```text
//!   again and again   every task comes back at once, until it has had the lock so often
//!   as a herd         all tasks come at one instant, and each wants it once
//!   ideal             a fair queue in one process whose head acquires and releases with nobody else there
//! ```
//!
//! All of it runs in processes of its own (`worker`, `peers/`), which note when they asked, had it and gave it back on a
//! clock that they share.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::clock;
use super::super::crowd::Run;
use super::super::figures::{as_f64, percentile};
use super::super::findings::{Figure, Findings, Table, Unit, shown};
use super::super::interleave::order;
use super::super::monitor::Monitor;
use super::super::network::Network;
use super::super::peer::{Errand, Peer};
use super::super::plan::Plan;
use super::super::plot::Plot;
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Places, Progress};
use super::peers::Library;
use super::{bar, note_absent, section, tone};
use crate::{BenchError, RedisServer};

/// How long the lock is held each time.
const HOLD: Duration = Duration::from_millis(1);

/// How long after the order the crowd begins, so that every process has heard it.
const START_IN: Duration = Duration::from_millis(30);

/// When a rehearsal ends; enough has been heard then.
const REHEARSAL_MAX: Duration = Duration::from_secs(1);

/// How many tasks want the lock.
const TASKS: usize = 32;

/// Commands that are ours to listen and count with, not the crowd's.
const NOT_COUNTED: [&str; 2] = ["info", "monitor"];

/// A crowd of one library: some processes, and what servers count for it.
pub(super) struct Crowd {
    library: Library,
    processes: Vec<Peer>,
    /// Which share of the commands of a name come from clients, and not from within scripts.
    shares: BTreeMap<String, f64>,
}

/// What a crowd did, block by block.
#[derive(Default)]
pub(super) struct Record {
    /// None for a block in which it did not come.
    pub(super) runs: Vec<Option<Run>>,
    pub(super) commands: Vec<f64>,
    trouble: BTreeMap<String, usize>,
}

impl Crowd {
    pub(super) async fn start(
        library: Library,
        processes: usize,
        places: &Places,
        urls: &[String],
        findings: &mut Findings,
    ) -> Option<Self> {
        let processes = library.start_all(places, &vec![urls.to_vec(); processes], findings).await?;
        Some(Self { library, processes, shares: BTreeMap::new() })
    }

    pub(super) fn name(&self) -> &'static str {
        self.library.name()
    }

    /// Comes once, unmeasured, while the servers are listened to.
    pub(super) async fn rehearse(
        &mut self,
        tasks: usize,
        limit: Duration,
        servers: &[RedisServer],
    ) -> Result<(), LoadError> {
        let mut monitors = Vec::new();
        for server in servers {
            monitors.push(Monitor::of(server).await?);
        }
        // What goes wrong here goes wrong again when it counts.
        let _ = self.come("load/crowd/rehearsal", tasks, 1, limit).await;
        let mut heard = BTreeMap::<String, (usize, usize)>::new();
        for monitor in &mut monitors {
            for command in monitor.heard().await? {
                let (from_clients, all) = heard.entry(command.words[0].clone()).or_default();
                *from_clients += usize::from(!command.from_script);
                *all += 1;
            }
        }
        let share = |(name, (from_clients, all))| (name, as_f64(from_clients) / as_f64(all));
        self.shares = heard.into_iter().map(share).collect();
        Ok(())
    }

    /// All tasks of all processes come at one instant, and each wants the lock so often.
    async fn come(&mut self, resource: &str, tasks: usize, grants: usize, limit: Duration) -> Result<Run, String> {
        let count = self.processes.len();
        let start = clock::nanos() + nanos(START_IN);
        let end = start + nanos(limit);
        let tasks = tasks / count;
        let errand = Errand { resource: resource.into(), tasks, hold: HOLD, grants, start, end };
        for (place, process) in self.processes.iter_mut().enumerate() {
            process.begin_crowd(&errand, place * tasks).await?;
        }
        let (mut all, mut failed) = (Vec::new(), 0);
        for process in &mut self.processes {
            let (grants, missing) = process.grants(end).await?;
            all.extend(grants);
            failed += missing;
        }
        // Between tasks where there is one process, between processes where there are several.
        let party = if count == 1 { 1 } else { tasks };
        Ok(Run::of(all, failed, (start, end), party))
    }

    /// The same, with the commands counted that the servers were sent for it.
    pub(super) async fn measure(
        &mut self,
        resource: &str,
        (tasks, grants, limit): (usize, usize, Duration),
        servers: &[RedisServer],
        record: &mut Record,
    ) -> Result<(), LoadError> {
        let before = calls(servers).await?;
        let run = self.come(resource, tasks, grants, limit).await;
        let after = calls(servers).await?;
        match run {
            Ok(run) => {
                if 0 < run.failed {
                    *record.trouble.entry("not_in_time".into()).or_default() += run.failed;
                }
                if 0 < run.grants {
                    let sent = after.iter().map(|(name, calls)| {
                        let new = calls.saturating_sub(before.get(name).copied().unwrap_or(0));
                        as_f64(new) * self.shares.get(name).copied().unwrap_or(1.0)
                    });
                    record.commands.push(sent.sum::<f64>() / as_f64(run.grants));
                }
                record.runs.push(Some(run));
            }
            Err(why) => {
                *record.trouble.entry(why).or_default() += 1;
                record.runs.push(None);
            }
        }
        Ok(())
    }
}

/// How often each command was called on all servers, by clients and by scripts.
async fn calls(servers: &[RedisServer]) -> Result<BTreeMap<String, usize>, BenchError> {
    let mut calls = BTreeMap::<String, usize>::new();
    for server in servers {
        let info = server.command(&["INFO", "commandstats"]).await?.into_text("INFO")?;
        for line in info.lines() {
            let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(":calls=")) else {
                continue;
            };
            let name = name.split('|').next().unwrap_or(name);
            let count: usize = rest.split(',').next().and_then(|count| count.parse().ok()).unwrap_or(0);
            if !NOT_COUNTED.contains(&name) {
                *calls.entry(name.to_owned()).or_default() += count;
            }
        }
    }
    Ok(calls)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// A way in which a crowd comes.
struct Way {
    /// Under which its figures are filed.
    id: &'static str,
    title: &'static str,
    processes: usize,
    libraries: Vec<Library>,
    /// Through a slow network, or directly.
    network: Option<Duration>,
}

pub(super) async fn run(
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let everybody = [&[Library::IDEAL, Library::OURS, Library::RSLOCK][..], &Library::FOREIGN].concat();
    let ways = [
        Way {
            id: "one-process",
            title: "32 tasks of one process on one resource",
            processes: 1,
            libraries: everybody.clone(),
            network: None,
        },
        Way {
            id: "processes",
            title: "8 processes × 4 tasks on one resource",
            processes: 8,
            libraries: everybody,
            network: None,
        },
        Way {
            id: "processes-5ms",
            title: "8 processes × 4 tasks, network round trip of 5 ms",
            processes: 8,
            libraries: vec![Library::IDEAL, Library::OURS, Library::RSLOCK],
            network: Some(Duration::from_millis(5)),
        },
    ];
    let count = ways.len();
    for (place, way) in ways.into_iter().enumerate() {
        progress("crowd", place * plan.crowd_blocks, count * plan.crowd_blocks);
        let told = |block| progress("crowd", place * plan.crowd_blocks + block, count * plan.crowd_blocks);
        one_way(&way, plan, places, stage, findings, &told).await?;
    }
    Ok(())
}

async fn one_way(
    way: &Way,
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<(), LoadError> {
    let servers = &stage.healthy[..NODES];
    let network = match way.network {
        Some(round_trip) => Some(Network::start(servers.iter().map(RedisServer::address).collect(), round_trip)?),
        None => None,
    };
    let urls = network.as_ref().map_or_else(|| stage.quorum(NODES), Network::urls);
    let mut crowds = Vec::new();
    for library in &way.libraries {
        let processes = if *library == Library::IDEAL { 1 } else { way.processes };
        if let Some(mut crowd) = Crowd::start(*library, processes, places, &urls, findings).await {
            crowd.rehearse(TASKS, plan.crowd_max.min(REHEARSAL_MAX), servers).await?;
            crowds.push(crowd);
        }
    }
    let slow_network = way.network.is_some();
    let (grants, herds) = if slow_network { (plan.crowd_grants.min(3), 1) } else { (plan.crowd_grants, plan.herds) };
    let blocks = if slow_network { plan.crowd_blocks.min(3) } else { plan.crowd_blocks };
    let mut again: Vec<Record> = crowds.iter().map(|_| Record::default()).collect();
    let mut herd: Vec<Record> = crowds.iter().map(|_| Record::default()).collect();
    for block in 0..blocks {
        progress(block);
        for turn in order(block, crowds.len()) {
            let crowd = &mut crowds[turn];
            let is_ours = crowd.library == Library::OURS || crowd.library == Library::IDEAL;
            if !is_ours && plan.peer_blocks <= block {
                again[turn].runs.push(None);
                herd[turn].runs.extend((0..herds).map(|_| None));
                continue;
            }
            let resource = format!("load/crowd/{}/{}", way.id, crowd.name());
            crowd.measure(&resource, (TASKS, grants, plan.crowd_max), servers, &mut again[turn]).await?;
            for number in 0..herds {
                // One herd of others takes as long as all of ours.
                if !is_ours && 0 < number {
                    herd[turn].runs.push(None);
                    continue;
                }
                crowd.measure(&resource, (TASKS, 1, plan.crowd_max), servers, &mut herd[turn]).await?;
            }
        }
    }
    let names: Vec<&str> = crowds.iter().map(Crowd::name).collect();
    let text = format!(
        "Each holds the lock for 1 ms. Again and again: every task comes back at once until it has had the lock {grants} \
         times. As a herd: all come at one instant, and each wants it once. The ideal is a fair queue in one process whose \
         head acquires and releases with nobody else there; its hand-over is two round trips, by which the others' are \
         measured. A hand-over counts from the moment before a release is sent to the moment the next holder has its \
         grant, where somebody was waiting; {}. Commands are those that clients sent to all five servers, without what scripts \
         call.{}",
        if way.processes == 1 { "from task to task" } else { "from process to process" },
        if slow_network { " The relay that stands for the network delays each direction by 2.5 ms." } else { "" }
    );
    let mut section = section(way.id, way.title, &text);
    // A second name of the same kind for the second table.
    let herd_id = format!("{}-herd", way.id);
    for (id, how, records) in [(way.id, "again and again", &again), (&herd_id, "as a herd", &herd)] {
        file(findings, id, &names, records);
        section.tables.push(table(findings, id, how, &names));
        section.plots.extend(plots(findings, id, how, &names));
    }
    if !slow_network {
        note_absent(&mut section, findings);
    }
    findings.sections.push(section);
    Ok(())
}

/// Files everything that was seen of the crowds under `id/name/…`.
fn file(findings: &mut Findings, id: &str, names: &[&str], records: &[Record]) {
    let ideal = names.iter().position(|name| *name == Library::IDEAL.name()).map(|place| &records[place]);
    for (name, record) in names.iter().zip(records) {
        let each = |of: fn(&Run) -> Option<f64>| -> Vec<f64> { record.runs.iter().flatten().filter_map(of).collect() };
        let mut put = |what: &str, figure: Option<Figure>| findings.put(format!("{id}/{name}/{what}"), figure);
        put("total", Figure::median(&each(|run| Some(run.total_us)), Unit::Micros));
        put("handover-p50", Figure::median(&each(|run| run.handover(0.5)), Unit::Micros));
        let all: Vec<f64> = record.runs.iter().flatten().flat_map(|run| run.handovers_us.iter().copied()).collect();
        put("handover-p99", percentile(all, 0.99).map(|p99| Figure::plain(p99, Unit::Micros)));
        put("to-oneself", Figure::median(&each(Run::to_oneself_share), Unit::Share));
        put("unfairness", Figure::median(&each(|run| run.unfairness), Unit::Ratio));
        put("commands", Figure::median(&record.commands, Unit::Count));
        if record.runs.iter().flatten().next().is_some() {
            let overlaps: usize = record.runs.iter().flatten().map(|run| run.overlaps).sum();
            put("overlaps", Some(Figure::plain(as_f64(overlaps), Unit::Count)));
        }
        if let Some(ideal) = ideal {
            let pairs = || {
                record.runs.iter().zip(&ideal.runs).filter_map(|(one, other)| Some((one.as_ref()?, other.as_ref()?)))
            };
            let totals: Vec<f64> = pairs().map(|(run, ideal)| run.total_us / ideal.total_us).collect();
            put("total÷ideal", Figure::median(&totals, Unit::Ratio));
            let round_trips =
                pairs().filter_map(|(run, ideal)| Some(run.handover(0.5)? / (ideal.handover(0.5)? / 2.0)));
            put("handover-p50-rtt", Figure::median(&round_trips.collect::<Vec<_>>(), Unit::RoundTrips));
        }
        findings.failed(&format!("{id}/{name}"), &record.trouble);
    }
    let Some(ours) = names.iter().position(|name| *name == Library::OURS.name()).map(|place| &records[place]) else {
        return;
    };
    for (name, record) in names.iter().zip(records) {
        let pairs =
            || record.runs.iter().zip(&ours.runs).filter_map(|(one, other)| Some((one.as_ref()?, other.as_ref()?)));
        let totals: Vec<f64> = pairs().map(|(run, ours)| run.total_us / ours.total_us).collect();
        findings.put(format!("{id}/{name}/total÷redlock"), Figure::median(&totals, Unit::Ratio));
        let handovers = pairs().filter_map(|(run, ours)| Some(run.handover(0.5)? / ours.handover(0.5)?));
        let handovers: Vec<f64> = handovers.collect();
        findings.put(format!("{id}/{name}/handover-p50÷redlock"), Figure::median(&handovers, Unit::Ratio));
    }
}

fn table(findings: &Findings, id: &str, how: &str, names: &[&str]) -> Table {
    let head = [
        how,
        "total ms",
        "÷ ideal",
        "hand-over p50 µs",
        "in round trips",
        "p99 µs",
        "to oneself",
        "longest ÷ mean wait",
        "commands per grant",
        "two at once",
        "not in time",
    ];
    let row = |name: &&str| {
        let figure = |what: &str| findings.figures.get(&format!("{id}/{name}/{what}"));
        let value = |what: &str| shown(figure(what).map(|figure| Figure::plain(figure.value, figure.unit)).as_ref());
        let total = figure("total").map(|total| Figure::plain(total.value / 1e3, Unit::Count));
        let failed: usize = findings.failures.get(&format!("{id}/{name}")).map_or(0, |reasons| reasons.values().sum());
        vec![
            (*name).to_owned(),
            shown(total.as_ref()),
            shown(figure("total÷ideal")),
            value("handover-p50"),
            value("handover-p50-rtt"),
            value("handover-p99"),
            value("to-oneself"),
            value("unfairness"),
            value("commands"),
            value("overlaps"),
            failed.to_string(),
        ]
    };
    Table { head: head.map(str::to_owned).into(), rows: names.iter().map(row).collect() }
}

fn plots(findings: &Findings, id: &str, how: &str, names: &[&str]) -> Vec<Plot> {
    let plot = |what: &str, title: &str, axis: &str, log: bool, goal: Option<f64>| {
        let bars = names.iter().map(|name| bar(findings, name, &format!("{id}/{name}/{what}"), tone(name)));
        let id = format!("{id}-{}", what.split('÷').next().unwrap_or(what));
        Plot::Bars { id, title: format!("{title}, {how}"), axis: axis.into(), log, bars: bars.collect(), goal }
    };
    vec![
        plot("total÷ideal", "Total", "times the ideal", true, None),
        plot("handover-p50", "Hand-over", "µs from release to next grant, p50", true, None),
        plot("commands", "Commands", "per grant, over all five servers", true, None),
    ]
}
