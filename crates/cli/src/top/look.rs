//! One look at everything: nodes and locks.

use crate::inspect;
use crate::remote::{Remote, Unanswered, command};
use crate::survey::{LockSeen, State, Survey, Verdict};
use futures_util::future::join_all;
use serde::Serialize;
use std::time::Duration;
use tokio::time::Instant;

/// What was seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Look {
    /// What stands before every key.
    pub prefix: String,
    /// Node by node, in the order in which they are configured.
    pub nodes: Vec<NodeSeen>,
    /// The locks that somebody holds somewhere.
    pub locks: Vec<LockSeen>,
    /// Whether there may be more of them.
    pub more: bool,
}

/// What was seen of a node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeSeen {
    /// Its name.
    pub node: String,
    /// Why it could not be asked, if it could not.
    pub trouble: Option<String>,
    /// How long it took to answer, in microseconds.
    pub latency_us: Option<u64>,
    /// `master`, or `slave` for a replica.
    pub role: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// How many clients are connected.
    pub clients: Option<u64>,
    /// How many commands it runs each second.
    pub commands_per_second: Option<u64>,
    /// How many bytes it uses.
    pub used_bytes: Option<u64>,
    /// How long it has been up, in seconds.
    pub up_seconds: Option<u64>,
    /// How many of the locks seen it holds.
    pub locks: usize,
}

impl Look {
    pub(super) async fn take(survey: &mut Survey, limit: usize) -> Self {
        survey.reconnect().await;
        let mut nodes = join_all(survey.nodes().map(async |(name, remote)| NodeSeen::ask(name, remote).await)).await;
        let found = survey.find(limit).await;
        let mut locks = survey.look_at(&found.resources).await;
        locks.retain(|lock| lock.nodes.iter().any(|node| node.state != State::Free));
        locks.sort_by_cached_key(|lock| (std::cmp::Reverse(lock.waiting), inspect::cells(lock)));
        for (position, node) in nodes.iter_mut().enumerate() {
            let holds = |lock: &&LockSeen| matches!(lock.nodes[position].state, State::Held { .. });
            node.locks = locks.iter().filter(holds).count();
        }
        Self { prefix: survey.prefix().to_owned(), nodes, locks, more: found.more }
    }

    pub(super) fn up(&self) -> usize {
        self.nodes.iter().filter(|node| node.trouble.is_none()).count()
    }

    pub(super) fn held(&self) -> usize {
        self.locks.iter().filter(|lock| matches!(lock.verdict, Verdict::Held { .. })).count()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.locks.iter().filter_map(|lock| lock.waiting).sum()
    }
}

impl NodeSeen {
    async fn ask(name: &str, remote: &Result<Remote, Unanswered>) -> Self {
        let node = Self { node: name.to_owned(), ..Self::default() };
        let remote = match remote {
            Ok(remote) => remote,
            Err(error) => return Self { trouble: Some(error.to_string()), ..node },
        };
        let began = Instant::now();
        if let Err(error) = remote.ask::<redis::Value>(&command(&["TIME"])).await {
            return Self { trouble: Some(error.to_string()), ..node };
        }
        let took: Duration = began.elapsed();
        // Who may not read it sees less.
        let info = remote.ask::<String>(&command(&["INFO"])).await.unwrap_or_default();
        let text = |field: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
                .map(|value| value.trim().to_owned())
        };
        let number = |field: &str| text(field)?.parse().ok();
        Self {
            latency_us: u64::try_from(took.as_micros()).ok(),
            role: text("role"),
            version: text("valkey_version").or_else(|| text("redis_version")),
            clients: number("connected_clients"),
            commands_per_second: number("instantaneous_ops_per_sec"),
            used_bytes: number("used_memory"),
            up_seconds: number("uptime_in_seconds"),
            ..node
        }
    }
}
