//! One task, one resource: what a lock costs when nobody else wants it, on quorums of every size, next to what cannot be
//! had for less, next to other libraries, and with a server in trouble.

use std::sync::Arc;

use super::super::contestant::{Client, Contestant, Turn, rslock};
use super::super::fan_out::Commands;
use super::super::findings::Findings;
use super::super::goals::PEERS;
use super::super::interleave::{interleave, part_of};
use super::super::plan::Plan;
use super::super::plot::{Bar, Plot, Series, Tone};
use super::super::script_calls::Calls;
use super::super::stage::{Fault, NODES, Stage};
use super::super::{LoadError, Places, Progress};
use super::peers::Library;
use super::{bar, file, file_ratio, note_absent, section, times_table, tone};

const NAME: &str = "alone";

/// The sizes of quorums.
const SIZES: [usize; 4] = [1, 3, 5, 7];

pub(super) async fn run(
    plan: &Plan,
    places: &Places,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let mut contestants = connect(places, stage, findings).await?;
    // Everybody meets healthy servers first, so that nobody is measured while it is still connecting.
    warm_up(&mut contestants, plan).await;
    stage.make_trouble().await?;
    warm_up(&mut contestants, plan).await;

    let turn = Turn { lead_in: plan.lead_in, rounds: plan.rounds, limit: plan.turn_max };
    let entries = interleave(&mut contestants, plan.blocks, turn, plan, part_of(progress, NAME)).await;
    file(findings, NAME, &entries);
    for entry in &entries {
        for to in ["scripts-5", "plain-5", "redlock-5"].into_iter().filter(|to| *to != entry.name) {
            file_ratio(findings, NAME, &entries, &entry.name, to);
        }
        for (peer, how) in PEERS.iter().flat_map(|peer| ["5", "frozen", "killed", "slowed"].map(|how| (peer, how))) {
            if entry.name == format!("{peer}-{how}") && how != "5" {
                file_ratio(findings, NAME, &entries, &entry.name, &format!("redlock-{how}"));
            }
        }
        for fault in Fault::ALL {
            if let Some(client) = entry.name.strip_suffix(&format!("-{}", fault.name())) {
                file_ratio(findings, NAME, &entries, &entry.name, &format!("{client}-5"));
            }
        }
    }
    let mut section = section(
        NAME,
        "Alone: one task, one resource",
        "Acquire and release by a single task that nobody competes with. The floor is a raw fan-out on the same Redis \
         client that sends what our own client sends, to all five servers, and takes the first three answers: no deadline, \
         no validity, no token, nothing undone. The plain floor sends SET NX PX and compare-and-delete, which costs the \
         servers less.",
    );
    let to = [("scripts-5", "same scripts"), ("plain-5", "plain"), ("redlock-5", "ours, healthy")];
    section.tables.push(times_table(findings, NAME, &entries, &to));
    note_absent(&mut section, findings);
    section.plots = plots(findings, &entries);
    findings.sections.push(section);
    Ok(())
}

async fn connect(places: &Places, stage: &Stage, findings: &mut Findings) -> Result<Vec<Contestant>, LoadError> {
    let mut all = Vec::new();
    for size in SIZES {
        let (urls, servers) =
            (stage.quorum(size), if size == 1 { "1 server".into() } else { format!("{size} servers") });
        all.push(Contestant::ours(&format!("redlock-{size}"), &format!("redlock, {servers}"), &urls).await?);
        let what = format!("SET NX PX, {servers}");
        all.push(Contestant::raw(&format!("plain-{size}"), &what, &urls, Commands::Plain).await?);
    }
    let urls = stage.quorum(NODES);
    all.push(Contestant::guarded("guarded-5", "redlock, 5 servers, crash-recovery guard", &urls).await?);
    match Calls::heard(&stage.healthy[..NODES]).await {
        Ok(calls) => {
            let commands = Commands::Ours(Arc::new(calls));
            all.push(Contestant::raw("scripts-5", "same scripts, 5 servers (floor)", &urls, commands).await?);
        }
        Err(error @ LoadError::NoPattern(_)) => {
            for figure in ["alone/redlock-5/p50÷scripts-5", "scripts-5"] {
                findings.miss(figure, error.to_string());
            }
        }
        Err(error) => return Err(error),
    }
    let rslock = |urls: &[String]| Client::Rslock(rslock(urls));
    all.push(Contestant::new("rslock-5", "rslock, 5 servers", rslock(&urls)));
    for fault in Fault::ALL {
        let (urls, name, what) = (stage.with(fault), fault.name(), fault.what());
        all.push(Contestant::ours(&format!("redlock-{name}"), &format!("redlock, {what}"), &urls).await?);
        let (plain, shown) = (format!("plain-{name}"), format!("SET NX PX, {what}"));
        all.push(Contestant::raw(&plain, &shown, &urls, Commands::Plain).await?);
        if fault == Fault::TwoDown {
            continue;
        }
        all.push(Contestant::new(format!("rslock-{name}"), format!("rslock, {what}"), rslock(&urls)));
    }
    let faults = [Fault::Frozen, Fault::Killed, Fault::Slowed];
    let servers: Vec<Vec<String>> = [vec![stage.quorum(NODES)], faults.map(|fault| stage.with(fault)).into()].concat();
    for library in Library::FOREIGN {
        let peers = library.start_all(places, &servers, findings).await.unwrap_or_default();
        for (place, peer) in peers.into_iter().enumerate() {
            let (name, what) = match place.checked_sub(1).map(|place| faults[place]) {
                None => ("5", format!("{} {}, 5 servers", library.name(), peer.version)),
                Some(fault) => (fault.name(), format!("{}, {}", library.name(), fault.what())),
            };
            all.push(Contestant::new(format!("{}-{name}", library.name()), what, Client::Peer(Box::new(peer))));
        }
    }
    Ok(all)
}

async fn warm_up(contestants: &mut [Contestant], plan: &Plan) {
    let turn = Turn { lead_in: 0, rounds: usize::from(u16::MAX), limit: plan.warm_up };
    for contestant in contestants {
        contestant.turn(turn).await;
    }
}

fn plots(findings: &Findings, entries: &[super::Entry]) -> Vec<Plot> {
    let of = |names: &[&str]| -> Vec<Bar> {
        let named = |name: &&str| entries.iter().find(|entry| entry.name == **name);
        let entries = names.iter().filter_map(named);
        entries
            .map(|entry| bar(findings, &entry.what, &format!("alone/{}/p50", entry.name), tone(&entry.name)))
            .collect()
    };
    let axis = "µs for acquire + release, p50".to_owned();
    let floor = Plot::Bars {
        id: "alone".into(),
        title: "Five servers, nobody else".into(),
        axis: axis.clone(),
        log: false,
        bars: of(&["plain-5", "scripts-5", "redlock-5", "guarded-5", "rslock-5"]),
        goal: None,
    };
    let peers = Plot::Bars {
        id: "alone-peers".into(),
        title: "Other libraries, five servers".into(),
        axis: axis.clone(),
        log: true,
        bars: of(&["redlock-5", "rslock-5", "node-redlock-5", "pottery-5", "redlock-py-5"]),
        goal: None,
    };
    let faults = [Fault::Frozen, Fault::Killed, Fault::Slowed].map(|fault| {
        let names: Vec<String> = ["redlock", "plain", "rslock", "node-redlock", "pottery", "redlock-py"]
            .map(|client| format!("{client}-{}", fault.name()))
            .into();
        Plot::Bars {
            id: format!("alone-{}", fault.name()),
            title: format!("Five servers, {}", fault.what()),
            axis: axis.clone(),
            log: true,
            bars: of(&names.iter().map(String::as_str).collect::<Vec<_>>()),
            goal: None,
        }
    });
    let points = |client: &str| -> Vec<(f64, f64)> {
        let point = |size: &usize| {
            let p50 = findings.value(&format!("alone/{client}-{size}/p50"))?;
            Some((super::super::figures::as_f64(*size), p50))
        };
        SIZES.iter().filter_map(point).collect()
    };
    let sizes = Plot::Lines {
        id: "alone-sizes".into(),
        title: "Growth with the number of servers".into(),
        axis: "µs for acquire + release, p50".into(),
        across: "servers".into(),
        unit: super::Unit::Micros,
        series: vec![
            Series { label: "redlock".into(), tone: Tone::Ours, points: points("redlock") },
            Series { label: "SET NX PX".into(), tone: Tone::Floor, points: points("plain") },
        ],
    };
    [vec![floor, sizes, peers], faults.into()].concat()
}
