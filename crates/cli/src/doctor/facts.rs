//! What one server says about itself, asked once. Says nothing about what that means.

use super::keys::Sample;
use super::rights::{self, Rights};
use crate::exit::with_causes;
use crate::quorum;
use crate::remote::{PATIENCE, Remote, Unanswered, command};
use crate::settings::{SENTINEL, Settings};
use redlock_core::{KeyPrefix, Standing};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// How often a server is asked for the time, which is also how its latency is measured.
const TIMES_ASKED: usize = 9;

/// What is asked of the configuration: what `INFO` does not tell.
const CONFIGURATION: [&str; 5] =
    ["appendfsync", "save", "min-replicas-to-write", "maxclients", "stop-writes-on-bgsave-error"];

/// What one server says.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) name: String,
    /// Nothing else is known if this failed.
    pub(super) reached: Result<Seen, Unanswered>,
}

/// What a server that can be asked says.
#[derive(Debug)]
pub(super) struct Seen {
    /// How long answers took.
    pub(super) latencies: Vec<Duration>,
    /// How far its calendar is before ours, in microseconds; `None` if it does not say.
    pub(super) ahead_us: Result<i64, Unanswered>,
    pub(super) info: Result<Info, Unanswered>,
    pub(super) configuration: BTreeMap<&'static str, Result<Option<String>, Unanswered>>,
    /// Its own name in its cluster, and the names of the members that it knows.
    pub(super) cluster: Option<Result<(String, String), Unanswered>>,
    /// Whether it lets us in without a password.
    pub(super) open_to_all: bool,
    pub(super) rights: Rights,
    pub(super) sample: Result<Sample, Unanswered>,
    /// Whether it serves clients with the crash-recovery guard, if that is on.
    pub(super) standing: Option<Result<Standing, String>>,
    /// Whether Sentinels say where it is.
    pub(super) behind_sentinels: bool,
}

/// The fields of `INFO`.
#[derive(Clone, Debug, Default)]
pub(super) struct Info(BTreeMap<String, String>);

impl Info {
    pub(super) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    pub(super) fn is(&self, field: &str, value: &str) -> bool {
        self.text(field) == Some(value)
    }
}

impl Facts {
    pub(super) async fn read(settings: &Settings, position: usize, prefix: &KeyPrefix, read_only: bool) -> Self {
        let name = Remote::name_of(settings, position);
        let reached = match Remote::connect(settings, position).await {
            Ok(remote) => Seen::read(&remote, settings, position, prefix, read_only).await,
            Err(error) => Err(error),
        };
        Self { name, reached }
    }
}

impl Seen {
    async fn read(
        remote: &Remote,
        settings: &Settings,
        position: usize,
        prefix: &KeyPrefix,
        read_only: bool,
    ) -> Result<Self, Unanswered> {
        let (latencies, ahead_us) = times(remote).await;
        let info = remote.ask::<String>(&command(&["INFO"])).await.map(|text| Info::parse(&text));
        // One that wants a password, or has gone, answers nothing else either.
        if let Err(error @ (Unanswered::Credentials(_) | Unanswered::Silent(_))) = info {
            return Err(error);
        }
        let mut configuration = BTreeMap::new();
        for name in CONFIGURATION {
            let answer = remote.ask::<Vec<String>>(&command(&["CONFIG", "GET", name])).await;
            configuration.insert(name, answer.map(|pair| pair.into_iter().nth(1)));
        }
        let in_cluster = info.as_ref().is_ok_and(|info| info.is("cluster_enabled", "1"));
        let cluster = if in_cluster { Some(cluster(remote).await) } else { None };
        let is_replica = info.as_ref().is_ok_and(|info| info.is("role", "slave"));
        Ok(Self {
            latencies,
            ahead_us,
            info,
            configuration,
            cluster,
            open_to_all: !settings.nodes[position].has_password(),
            rights: rights::try_all(remote, settings, position, prefix, read_only || is_replica).await,
            sample: Sample::take(remote, prefix).await,
            standing: standing(settings, position, prefix).await,
            behind_sentinels: settings.nodes[position].expose().starts_with(SENTINEL),
        })
    }

    /// The latency in the middle.
    pub(super) fn latency(&self) -> Option<Duration> {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

/// How long answers take, and how far the server's calendar is ahead of ours, by the answer that came fastest.
async fn times(remote: &Remote) -> (Vec<Duration>, Result<i64, Unanswered>) {
    let mut latencies = Vec::with_capacity(TIMES_ASKED);
    let mut best: Option<(Duration, Result<i64, Unanswered>)> = None;
    for _ in 0..TIMES_ASKED {
        let (before, began) = (our_calendar_us(), Instant::now());
        let answer = remote.ask::<(i64, i64)>(&command(&["TIME"])).await;
        let took = began.elapsed();
        let refused = answer.is_err();
        let half = i64::try_from(took.as_micros() / 2).unwrap_or(i64::MAX);
        let ahead = answer.map(|(seconds, micros)| {
            seconds.saturating_mul(1_000_000).saturating_add(micros).saturating_sub(before.saturating_add(half))
        });
        latencies.push(took);
        if best.as_ref().is_none_or(|(fastest, _)| took < *fastest) {
            best = Some((took, ahead));
        }
        if refused {
            break;
        }
    }
    (latencies, best.expect("asked at least once").1)
}

/// Our own calendar, to compare others with. Nothing relies on its being right.
pub(super) fn our_calendar_us() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1_000)
}

/// How the node stands with the crash-recovery guard. One that has lost its memory begins its quarantine with this question, as
/// with any client's first call.
async fn standing(settings: &Settings, position: usize, prefix: &KeyPrefix) -> Option<Result<Standing, String>> {
    let longest_ttl = settings.crash_guard?;
    let node = match quorum::open_one(&settings.nodes[position], &settings.tls) {
        Ok(node) => node,
        Err(error) => return Some(Err(with_causes(&error))),
    };
    // How long that is, is the library's to say; here one node is as good as all.
    let client = quorum::builder(settings, Vec::new(), longest_ttl.min(settings.ttl)).node(node).build();
    let client = match client {
        Ok(client) => client,
        Err(error) => return Some(Err(with_causes(&error))),
    };
    let (quarantine, node) = (client.quarantine()?, client.nodes().next()?);
    let answer = tokio::time::timeout(PATIENCE, node.standing(prefix, quarantine)).await;
    Some(match answer {
        Ok(answer) => answer.map_err(|error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    })
}

async fn cluster(remote: &Remote) -> Result<(String, String), Unanswered> {
    let own = remote.ask::<String>(&command(&["CLUSTER", "MYID"])).await?;
    let members = remote.ask::<String>(&command(&["CLUSTER", "NODES"])).await?;
    Ok((own, members))
}
