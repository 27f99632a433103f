//! How much of what is measured.

use std::time::Duration;

/// A part of the comparison, which can be run without the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// One task each: sizes of the quorum, floors, other libraries, servers in trouble.
    Alone,
    /// A network that takes its time.
    Network,
    /// Many tasks on resources of their own.
    Throughput,
    /// One lock on several resources.
    Resources,
    /// 32 tasks of one process on one resource, and 8 processes with 4 tasks each.
    Crowd,
    /// From 8 to 128 waiters.
    Waiters,
    /// Instructions and allocations.
    Cost,
    /// Fenced writes.
    Fence,
}

impl Scenario {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 8] = [
        Self::Alone,
        Self::Network,
        Self::Throughput,
        Self::Resources,
        Self::Crowd,
        Self::Waiters,
        Self::Cost,
        Self::Fence,
    ];

    /// A short name, for the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Network => "network",
            Self::Throughput => "throughput",
            Self::Resources => "resources",
            Self::Crowd => "crowd",
            Self::Waiters => "waiters",
            Self::Cost => "cost",
            Self::Fence => "fence",
        }
    }

    /// Parts of the names of its figures, by which one finds out that they are missing because it was not run.
    #[must_use]
    pub const fn figures(self) -> &'static [&'static str] {
        match self {
            Self::Alone => &["alone", "frozen", "killed", "slowed"],
            Self::Network => &["network"],
            Self::Throughput => &["throughput"],
            Self::Resources => &["resources"],
            Self::Crowd => &[
                "one-process",
                "one-process-herd",
                "processes",
                "processes-herd",
                "processes-5ms",
                "handover",
                "commands",
            ],
            Self::Waiters => &["waiters"],
            Self::Cost => &["cost"],
            Self::Fence => &["fence"],
        }
    }
}

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What is measured at all.
    pub scenarios: Vec<Scenario>,
    /// How often each contestant has its turn where one task is alone.
    pub blocks: usize,
    /// The measured rounds of one turn.
    pub rounds: usize,
    /// The rounds before them that are not measured: the contestant before has left its traces in every cache.
    pub lead_in: usize,
    /// How long everybody runs unmeasured once servers are in trouble: long enough for whoever learns from failures to
    /// have learned.
    pub warm_up: Duration,
    /// A turn begins no further round after this.
    pub turn_max: Duration,
    /// A contestant that is slow takes part in as many blocks as fit into this.
    pub patience: Duration,
    /// Blocks where the network or a database takes its time.
    pub slow_blocks: usize,
    /// Rounds there.
    pub slow_rounds: usize,
    /// Blocks where many tasks are busy at once.
    pub many_blocks: usize,
    /// How long they are.
    pub many_time: Duration,
    /// How often a crowd comes for us.
    pub crowd_blocks: usize,
    /// How often it comes for other libraries, which take much longer.
    pub peer_blocks: usize,
    /// How often each of 32 tasks gets the lock.
    pub crowd_grants: usize,
    /// How many herds of 32 tasks come in a block for us; for other libraries one.
    pub herds: usize,
    /// When a crowd gives up.
    pub crowd_max: Duration,
    /// Rounds of which instructions and allocations are counted.
    pub cost_rounds: usize,
}

impl Plan {
    /// Some minutes.
    #[must_use]
    pub fn whole() -> Self {
        Self {
            scenarios: Scenario::ALL.to_vec(),
            blocks: 100,
            rounds: 50,
            lead_in: 5,
            warm_up: Duration::from_millis(300),
            turn_max: Duration::from_millis(250),
            patience: Duration::from_secs(5),
            slow_blocks: 20,
            slow_rounds: 30,
            many_blocks: 12,
            many_time: Duration::from_millis(200),
            crowd_blocks: 7,
            peer_blocks: 2,
            crowd_grants: 10,
            herds: 4,
            crowd_max: Duration::from_secs(4),
            cost_rounds: 400,
        }
    }

    /// One to two minutes, for a first look.
    #[must_use]
    pub fn quick() -> Self {
        Self {
            blocks: 15,
            rounds: 40,
            warm_up: Duration::from_millis(100),
            patience: Duration::from_millis(500),
            slow_blocks: 5,
            slow_rounds: 15,
            many_blocks: 4,
            many_time: Duration::from_millis(150),
            crowd_blocks: 3,
            peer_blocks: 1,
            crowd_grants: 6,
            herds: 2,
            crowd_max: Duration::from_millis(1_500),
            cost_rounds: 100,
            ..Self::whole()
        }
    }

    /// As little as can be: to see that everything works.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            blocks: 2,
            rounds: 3,
            lead_in: 1,
            warm_up: Duration::from_millis(20),
            turn_max: Duration::from_millis(50),
            patience: Duration::from_millis(300),
            slow_blocks: 2,
            slow_rounds: 3,
            many_blocks: 1,
            many_time: Duration::from_millis(50),
            crowd_blocks: 1,
            peer_blocks: 1,
            crowd_grants: 2,
            herds: 1,
            crowd_max: Duration::from_secs(3),
            cost_rounds: 20,
            ..Self::whole()
        }
    }
}
