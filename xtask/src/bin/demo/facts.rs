//! What happened, for programs: the object that `--json` prints.

use std::collections::BTreeMap;
use std::time::Duration;

use redlock_core::Guard;
use serde::{Deserialize, Serialize, Serializer};

use crate::telling::causes;

/// Everything the story found out. What it did not get to is null or absent.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Facts {
    /// Whether every step went as it must.
    pub(crate) ok: bool,
    /// The step that did not, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// How many nodes there are.
    pub(crate) nodes: usize,
    /// `redis` (started by the demo), `given`, or `in-memory`.
    pub(crate) node_kind: &'static str,
    pub(crate) node_names: Vec<String>,
    /// `sqlite`, `postgres` or `mysql`.
    pub(crate) database: &'static str,
    /// In the order in which they were granted.
    pub(crate) grants: Vec<GrantFacts>,
    /// What became of the frozen holder's write: `refused`, or `applied`, which is the disaster.
    pub(crate) stale_write: Option<&'static str>,
    /// The tokens by which the database refused it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<Refusal>,
    /// By the number of nodes that were down: `granted`, or the class of the error. `with_two_nodes_down` and so on.
    #[serde(flatten, serialize_with = "by_name")]
    pub(crate) outages: BTreeMap<usize, &'static str>,
    /// The nodes that the last outage's error named.
    pub(crate) nodes_named: Vec<String>,
    /// Whether, once all nodes were back, all of them held the lock again: `granted`.
    pub(crate) with_all_nodes_back: Option<&'static str>,
    /// The balance after all: the sum of the writes that were not refused.
    pub(crate) balance: Option<i64>,
    /// Lock keys that are left on the nodes.
    pub(crate) keys_left: Option<usize>,
}

/// One grant.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct GrantFacts {
    pub(crate) holder: Holder,
    pub(crate) token: i64,
    /// Nodes that had granted when the lock was won; the rest was not waited for.
    pub(crate) votes: usize,
    /// How long it lives on the nodes.
    pub(crate) ttl_ms: u64,
    /// How long the lock could be relied on, when it was handed out.
    pub(crate) validity_ms: u64,
    /// From before the first request of the attempt that won to its decision.
    pub(crate) elapsed_ms: f64,
}

/// Who is who in the story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Holder {
    /// The process that is frozen.
    A,
    /// The one that goes on.
    B,
}

/// By which tokens a write was refused.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Refusal {
    pub(crate) presented: i64,
    pub(crate) highest: i64,
}

impl GrantFacts {
    pub(crate) fn of(holder: Holder, guard: &Guard, ttl: Duration) -> Self {
        let report = guard.report();
        Self {
            holder,
            token: guard.token().get(),
            votes: report.granted(),
            ttl_ms: whole_millis(ttl),
            validity_ms: whole_millis(guard.remaining()),
            elapsed_ms: (report.elapsed.as_secs_f64() * 1e6).round() / 1e3,
        }
    }
}

impl Facts {
    pub(crate) fn conclude(&mut self, outcome: &anyhow::Result<()>) {
        self.ok = outcome.is_ok();
        self.failure = outcome.as_ref().err().map(causes);
    }
}

fn by_name<S: Serializer>(outages: &BTreeMap<usize, &'static str>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(outages.iter().map(|(down, outcome)| (outage_name(*down), outcome)))
}

/// The name under which an outage of so many nodes stands in the facts.
pub(crate) fn outage_name(down: usize) -> String {
    let plural = if down == 1 { "node" } else { "nodes" };
    format!("with_{}_{plural}_down", in_words(down))
}

/// Small numbers as words.
pub(crate) fn in_words(number: usize) -> String {
    const WORDS: [&str; 11] = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    WORDS.get(number).map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

/// A time in milliseconds, cut off.
pub(crate) fn whole_millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_are_named_as_the_readers_of_the_json_know_them() {
        assert_eq!(outage_name(1), "with_one_node_down");
        assert_eq!(outage_name(2), "with_two_nodes_down");
        assert_eq!(outage_name(3), "with_three_nodes_down");
    }
}
