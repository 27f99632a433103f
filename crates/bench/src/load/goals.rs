//! The goals, as data: which figure, and how great or small it may be. A goal that nobody measured has a verdict too.

use serde::Serialize;

use super::findings::{Findings, number};

/// What is demanded of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// It is this or less.
    AtMost(f64),
    /// It is this or more.
    AtLeast(f64),
}

/// One goal.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Goal {
    /// What it is about, the same for goals that belong together.
    pub row: &'static str,
    /// Which of them.
    pub what: String,
    /// The name of the figure.
    pub figure: String,
    /// What is demanded.
    pub bound: Bound,
}

/// How a goal turned out.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// As demanded.
    Met,
    /// Not as demanded.
    Missed,
    /// There is no figure, and why.
    NotMeasured(String),
}

/// A goal and how it turned out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The goal.
    #[serde(flatten)]
    pub goal: Goal,
    /// The figure as text; empty without one.
    pub shown: String,
    /// The figure.
    pub value: Option<f64>,
    /// How it turned out.
    pub outcome: Outcome,
}

/// The libraries that ours is compared with.
pub const PEERS: [&str; 4] = ["rslock", "node-redlock", "pottery", "redlock-py"];

/// In which figures ours has to be ahead of each of them: a peer's figure as a multiple of ours, or for throughput ours as
/// a multiple of theirs.
pub const AHEAD: [(&str, &str); 9] = [
    ("alone", "acquire + release, p50"),
    ("frozen", "one node frozen, p50"),
    ("killed", "one node killed, p50"),
    ("slowed", "one node slowed by 20 ms, p50"),
    ("throughput", "64 tasks on distinct resources"),
    ("one-process", "32 tasks of one process, one resource"),
    ("processes", "8 processes × 4 tasks, one resource"),
    ("handover", "hand-over between processes, p50"),
    ("commands", "commands per grant, 8 processes × 4 tasks"),
];

/// The databases with a fence.
pub const DATABASES: [(&str, &str); 3] = [("postgres", "Postgres"), ("mariadb", "MariaDB"), ("sqlite", "SQLite")];

/// The rows of the table that are not about peers or databases: row, what, figure, bound.
const ROWS: [(&str, &str, &str, Bound); 33] = {
    use Bound::{AtLeast, AtMost};
    const ALONE: &str = "acquire + release alone, with token, 5 nodes, p50, against a raw fan-out of the same scripts";
    const PLAIN: &str = "the same against a raw fan-out of plain SET NX PX and compare-and-delete, without token";
    const FAULTS: &str = "one node frozen, killed or slowed by 20 ms, against all healthy";
    const MANY: &str = "throughput of 64 tasks on distinct resources, against a raw fan-out of the same scripts";
    const COST: &str = "what the client spends on an acquire + release, against the raw plain fan-out";
    const GUARD: &str = "the crash-recovery guard on, against off: acquire + release alone, 5 nodes, p50";
    const SINGLE: &str = "quorum of 5 against a single instance, p50, network round trip of 0.5 ms";
    const ONE: &str = "32 tasks of one process, one resource, 1 ms hold";
    const EIGHT: &str = "8 processes × 4 tasks, one resource, 1 ms hold";
    const IDLE: &str = "20 clients wait for a lock that is held for 10 s";
    const HANDOVER: &str = "hand-over between processes: release sent → next holder has its grant, p50";
    [
        (ALONE, "times as long", "alone/redlock-5/p50÷scripts-5", AtMost(1.02)),
        (PLAIN, "times as long", "alone/redlock-5/p50÷plain-5", AtMost(1.25)),
        (GUARD, "times as long", "alone/guarded-5/p50÷redlock-5", AtMost(1.03)),
        (FAULTS, "frozen, p50", "alone/redlock-frozen/p50÷redlock-5", AtMost(1.05)),
        (FAULTS, "frozen, p99", "alone/redlock-frozen/p99÷redlock-5", AtMost(2.0)),
        (FAULTS, "killed, p50", "alone/redlock-killed/p50÷redlock-5", AtMost(1.05)),
        (FAULTS, "killed, p99", "alone/redlock-killed/p99÷redlock-5", AtMost(2.0)),
        (FAULTS, "slowed, p50", "alone/redlock-slowed/p50÷redlock-5", AtMost(1.05)),
        (FAULTS, "slowed, p99", "alone/redlock-slowed/p99÷redlock-5", AtMost(2.0)),
        (MANY, "times as many", "throughput/redlock-5/rate÷scripts-5", AtLeast(1.0)),
        (COST, "instructions", "cost/redlock-5/instructions÷plain-5", AtMost(0.6)),
        (COST, "allocations", "cost/redlock-5/allocations÷plain-5", AtMost(0.5)),
        (SINGLE, "times as long", "network/redlock-5@0.5/p50÷redlock-1@0.5", AtMost(1.3)),
        (ONE, "again and again: total against the ideal", "one-process/redlock/total÷ideal", AtMost(1.05)),
        (ONE, "as a herd: total against the ideal", "one-process-herd/redlock/total÷ideal", AtMost(1.05)),
        (ONE, "again and again: longest ÷ mean wait", "one-process/redlock/unfairness", AtMost(1.3)),
        (ONE, "again and again: commands per grant", "one-process/redlock/commands", AtMost(10.0)),
        (ONE, "as a herd: commands per grant", "one-process-herd/redlock/commands", AtMost(10.0)),
        (ONE, "two holders at once", "one-process/redlock/overlaps", AtMost(0.0)),
        (EIGHT, "again and again: total against the ideal", "processes/redlock/total÷ideal", AtMost(1.3)),
        (EIGHT, "as a herd: total against the ideal", "processes-herd/redlock/total÷ideal", AtMost(1.3)),
        (EIGHT, "again and again: longest ÷ mean wait", "processes/redlock/unfairness", AtMost(2.0)),
        (EIGHT, "again and again: commands per grant", "processes/redlock/commands", AtMost(20.0)),
        (EIGHT, "as a herd: commands per grant", "processes-herd/redlock/commands", AtMost(20.0)),
        (EIGHT, "two holders at once", "processes/redlock/overlaps", AtMost(0.0)),
        (EIGHT, "flat: commands per grant of 128 waiters ÷ of 8", "waiters/redlock/commands-128÷8", AtMost(1.25)),
        (EIGHT, "flat: time per grant of 128 waiters ÷ of 8", "waiters/redlock/time-128÷8", AtMost(1.25)),
        (EIGHT, "commands per grant of 128 waiters", "waiters/redlock-128/commands", AtMost(20.0)),
        (IDLE, "processor time of all of them, as a part of one core", "waiters/idle/cpu", AtMost(0.05)),
        (IDLE, "calls per second", "waiters/idle/calls", AtMost(200.0)),
        (HANDOVER, "on this machine, again and again", "processes/redlock/handover-p50-rtt", AtMost(3.0)),
        (HANDOVER, "on this machine, as a herd", "processes-herd/redlock/handover-p50-rtt", AtMost(3.0)),
        (HANDOVER, "network round trip of 5 ms", "processes-5ms/redlock/handover-p50-rtt", AtMost(3.0)),
    ]
};

/// All goals, in the order of the report.
#[must_use]
pub fn goals() -> Vec<Goal> {
    let rows = ROWS.into_iter().map(|(row, what, figure, bound)| Goal {
        row,
        what: what.into(),
        figure: figure.into(),
        bound,
    });
    let peers = PEERS.into_iter().flat_map(|peer| {
        AHEAD.into_iter().map(move |(figure, what)| Goal {
            row: "ahead of other libraries in the same run",
            what: format!("{peer}: {what}"),
            figure: format!("ahead/{peer}/{figure}"),
            bound: Bound::AtLeast(1.0),
        })
    });
    let databases = DATABASES.into_iter().flat_map(|(database, shown)| {
        let goal = |row, figure: &str, most| Goal {
            row,
            what: shown.into(),
            figure: format!("fence/{database}/{figure}"),
            bound: Bound::AtMost(most),
        };
        [
            goal("fenced row UPDATE against a plain UPDATE", "update÷plain", 1.05),
            goal("ledger transaction against a plain transaction", "ledger÷plain", 1.15),
        ]
    });
    let mut databases: Vec<Goal> = databases.collect();
    databases.sort_by_key(|goal| goal.row);
    rows.chain(peers).chain(databases).collect()
}

/// Judges every goal.
#[must_use]
pub fn judge(findings: &Findings) -> Vec<Verdict> {
    goals().into_iter().map(|goal| verdict(goal, findings)).collect()
}

fn verdict(goal: Goal, findings: &Findings) -> Verdict {
    let Some(figure) = findings.figures.get(&goal.figure) else {
        let outcome = Outcome::NotMeasured(findings.why_missing(&goal.figure));
        return Verdict { goal, shown: String::new(), value: None, outcome };
    };
    let outcome = if goal.bound.allows(figure.value) { Outcome::Met } else { Outcome::Missed };
    Verdict { goal, shown: number(figure.value, figure.unit), value: Some(figure.value), outcome }
}

impl Bound {
    fn allows(self, value: f64) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => least <= value,
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::AtLeast(least) => write!(f, "≥ {least}"),
        }
    }
}
