//! A seeded simulation of whole clients and fenced writers in virtual time.
//!
//! One seed decides everything: how many nodes and processes there are, how long locks live, what goes wrong and when, who
//! asks for what, and every random bit that a client draws. The clients are the real ones, on the real runtime; simulated
//! are the network, the servers, the storage, all clocks, and whether a process gets to run at all. So a seed that fails
//! fails again, and a run of the same seed leaves the same [digest](Outcome::digest).
//!
//! ```text
//!   plan        what the seed decides before anything happens, and which promises may be held against it
//!     ▼
//!   world       time, messages ──▶ faults    what goes wrong and right again
//!     │   └──▶ process (a client on a runtime of its own) ── remote (a node as it sees it) ──▶ server
//!     │           └ workload (what it does)   audit (what it believes)
//!     ▼
//!   history     what happened ──▶ invariants, one file per promise
//! ```
//!
//! What it is not: real servers, real sockets, real threads; and time in it comes in whole milliseconds.

mod audit;
mod faults;
mod history;
mod invariants;
mod plan;
mod process;
mod random;
mod remote;
mod server;
mod workload;
mod world;

pub use history::{Counts, Violation};
pub use plan::{FaultKind, Sabotage};

use std::cell::Cell;
use std::sync::Once;

/// What came of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// Promises that were broken.
    pub violations: Vec<Violation>,
    /// What was asked for, granted, refused, and so on.
    pub seen: Counts,
    /// Faults by kind.
    pub faults: Counts,
    /// How long the world lasted, in milliseconds of its own time.
    pub lasted_ms: u64,
    /// The same for every run of the seed.
    pub digest: u64,
    /// What happened, if it was to be told.
    pub log: Vec<String>,
}

/// Runs the world of one seed. `told` keeps a log of it.
#[must_use]
pub fn run(seed: u64, sabotage: Sabotage, told: bool) -> Outcome {
    let panics = panics();
    let world = world::World::new(seed, sabotage, told);
    let plan = std::sync::Arc::clone(&world.plan);
    let ended = world.run();
    let mut violations = invariants::violations(&plan, &ended);
    if panics != self::panics() {
        violations.push(Violation { invariant: "nobody_panics", what: "a task panicked; see above".to_owned() });
    }
    let mut seen = ended.history.seen.clone();
    seen.add_many("attempt", u64::try_from(ended.history.attempts.len()).unwrap_or(0));
    seen.add_many("grant", u64::try_from(ended.history.grants.len()).unwrap_or(0));
    Outcome { violations, seen, faults: ended.faults, lasted_ms: ended.lasted, digest: ended.digest, log: ended.log }
}

/// What has to happen now and then over many seeds: if it does not, the simulation no longer reaches what it is there for.
pub const SOMETIMES: [&str; 27] = [
    "contended",
    "timed out",
    "unavailable",
    "too slow",
    "cancelled",
    "elected",
    "raise",
    "granted after a raise",
    "granted after a call",
    "granted by overtaking",
    "vote while another node was frozen",
    "node taken again",
    "vote refused in quarantine",
    "node enrolled again",
    "reseeded",
    "many extended in one call",
    "wake-up delivered",
    "lock lost",
    "loss announced by the token",
    "loss announced by `lost`",
    "work lost its lock",
    "stale claim refused",
    "stale write refused",
    "write without an answer",
    "released everywhere",
    "released on a quorum",
    "release found it gone",
];

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// How many panics this thread has seen: a task's panic ends the task and would otherwise go unnoticed.
fn panics() -> u64 {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            before(panic);
        }));
    });
    PANICS.get()
}
