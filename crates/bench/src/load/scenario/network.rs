//! A network that takes its time: is a quorum of five dearer than a single server when round trips are what one pays?

use std::time::Duration;

use super::super::contestant::{Client, Contestant, Turn, rslock};
use super::super::fan_out::Commands;
use super::super::findings::{Figure, Findings, Unit};
use super::super::interleave::{interleave, part_of};
use super::super::network::Network;
use super::super::plan::Plan;
use super::super::plot::Plot;
use super::super::stage::{NODES, Stage};
use super::super::{LoadError, Progress};
use super::{bar, file, file_ratio, section, times_table, tone};

const NAME: &str = "network";

/// The round trips, as they are called and as they are.
pub(super) const ROUND_TRIPS: [(&str, Duration); 2] =
    [("0.5", Duration::from_micros(500)), ("5", Duration::from_millis(5))];

pub(super) async fn run(
    plan: &Plan,
    stage: &Stage,
    findings: &mut Findings,
    progress: Progress<'_>,
) -> Result<(), LoadError> {
    let mut section = section(
        NAME,
        "A network with a round trip of 0.5 and 5 ms",
        "Acquire and release by a single task, through a relay that delays each direction by half of the round trip. All \
         servers of a quorum are asked at once, so five cost hardly more than one.",
    );
    let mut networks = Vec::new();
    let mut contestants = Vec::new();
    for (round_trip, time) in ROUND_TRIPS {
        let targets = stage.healthy[..NODES].iter().map(crate::RedisServer::address).collect();
        let network = Network::start(targets, time)?;
        let urls = network.urls();
        let name = |who: &str| format!("{who}@{round_trip}");
        let what = |who: &str| format!("{who}, {round_trip} ms");
        contestants.push(Contestant::ours(&name("redlock-1"), &what("redlock, 1 server"), &urls[..1]).await?);
        contestants.push(Contestant::ours(&name("redlock-5"), &what("redlock, 5 servers"), &urls).await?);
        let plain = |who: &str, words: &str, urls: &[String]| {
            let (who, words, urls) = (name(who), what(words), urls.to_vec());
            async move { Contestant::raw(&who, &words, &urls, Commands::Plain).await }
        };
        contestants.push(plain("plain-1", "SET NX PX, 1 server", &urls[..1]).await?);
        contestants.push(plain("plain-5", "SET NX PX, 5 servers", &urls).await?);
        contestants.push(Contestant::new(name("rslock-5"), what("rslock, 5 servers"), Client::Rslock(rslock(&urls))));
        networks.push(network);
    }
    // Connects those that connect when they are first used.
    let once = Turn { lead_in: 0, rounds: 2, limit: Duration::from_secs(1) };
    for contestant in &mut contestants {
        contestant.turn(once).await;
    }
    let turn = Turn { lead_in: 2, rounds: plan.slow_rounds, limit: plan.turn_max.max(Duration::from_millis(400)) };
    // Everybody is slow here, and nobody is left out for it.
    let patient = Plan { patience: Duration::MAX / 1_000_000, ..plan.clone() };
    let blocks = plan.slow_blocks;
    let entries = interleave(&mut contestants, blocks, turn, &patient, part_of(progress, NAME)).await;
    file(findings, NAME, &entries);
    for entry in &entries {
        let round_trip = entry.name.split('@').nth(1).unwrap_or_default();
        for to in ["redlock-1", "plain-5"] {
            let to = format!("{to}@{round_trip}");
            if to != entry.name {
                file_ratio(findings, NAME, &entries, &entry.name, &to);
            }
        }
    }
    for ((round_trip, time), network) in ROUND_TRIPS.into_iter().zip(&networks) {
        let (error, spread) = network.error().await?;
        findings.put(
            format!("network/error@{round_trip}"),
            Figure { value: error, spread: Some(spread), unit: Unit::Micros },
        );
        section.notes.push(format!(
            "The relay of {} ms by itself adds {error:.0} µs to a round trip ({:.0} – {:.0}), part of it its own hop.",
            time.as_secs_f64() * 1e3,
            spread.low,
            spread.high
        ));
    }
    for (round_trip, _) in ROUND_TRIPS {
        let ours: Vec<_> =
            entries.iter().filter(|entry| entry.name.ends_with(&format!("@{round_trip}"))).cloned().collect();
        let (single, plain) = (format!("redlock-1@{round_trip}"), format!("plain-5@{round_trip}"));
        let to = [(single.as_str(), "ours, 1 server"), (plain.as_str(), "plain, 5 servers")];
        section.tables.push(times_table(findings, NAME, &ours, &to));
        let bars = ours.iter().map(|entry| {
            let what =
                entry.what.split(" ms").next().and_then(|what| what.rsplit_once(", ")).map_or("", |(what, _)| what);
            bar(findings, what, &format!("network/{}/p50", entry.name), tone(&entry.name))
        });
        section.plots.push(Plot::Bars {
            id: format!("network-{}", round_trip.replace('.', "-")),
            title: format!("Network round trip of {round_trip} ms"),
            axis: "µs for acquire + release, p50".into(),
            log: false,
            bars: bars.collect(),
            goal: None,
        });
    }
    findings.sections.push(section);
    Ok(())
}
