//! The load comparison: what a lock costs, next to what nobody can do without, and next to other libraries.
//!
//! ```text
//!   stage         seven healthy servers; others that are frozen, killed, slowed        (network: an exact delay)
//!     │
//!   contestant    redlock · raw fan-out of its scripts, of SET NX PX · rslock          (fan_out, script_calls, monitor)
//!   peer          the same in processes of their own: our workers, Node, Python        (worker, peers/)
//!     │
//!   scenario/*    alone · network · throughput · resources · crowd · waiters · cost · fence
//!     │           everybody in turn, in blocks, in changing order
//!   figures       percentiles, spread over blocks, ratios block by block               (pure)
//!     │
//!   findings      figures by name, and what could not be measured
//!   goals         judges them                                                           (pure)
//!     │
//!   report        terminal, Markdown, HTML with pictures (plot), JSON                   (origin: machine, versions)
//! ```
//!
//! Absolute times say little on a machine that others share. So all contestants run interleaved in one run, in an order
//! that changes from block to block, and what is judged is a ratio.
//!
//! Unlike the rest of this crate this part knows the library and a Redis client, behind the feature `load`.

pub mod clock;
mod contestant;
pub mod crowd;
mod fan_out;
pub mod figures;
pub mod findings;
pub mod goals;
mod interleave;
mod monitor;
mod network;
pub mod origin;
mod peer;
pub mod plan;
pub mod plot;
pub mod report;
mod scenario;
mod script_calls;
mod stage;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use self::contestant::{Client, Contestant};
use self::fan_out::{Commands, FanOut};
use self::findings::Findings;
use self::origin::Origin;
pub use self::plan::{Plan, Scenario};
use self::report::Report;
use self::stage::{NODES, Stage};
pub use self::worker::work;

/// How long every contestant asks for the lock.
const TTL: Duration = Duration::from_secs(10);

/// How long a server may take to answer a client that runs under a profiler, which makes it some fifty times as slow.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where things are that are not part of the program.
#[derive(Debug, Clone)]
pub struct Places {
    /// The folder with the scripts of other languages.
    pub scripts: PathBuf,
    /// The folder into which their libraries were installed.
    pub libraries: PathBuf,
    /// This program, which is also what a worker runs.
    pub program: PathBuf,
    /// The program that counts its allocations.
    pub counter: PathBuf,
}

/// Why there is nothing to compare.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The servers could not be had.
    #[error("the servers for the comparison are not there")]
    Servers(#[from] crate::BenchError),
    /// The plain client could not connect.
    #[error("the plain client does not get through to its server")]
    Plain(#[from] redis::RedisError),
    /// Our nodes could not connect.
    #[error("our nodes do not get through to their servers")]
    Nodes(#[from] redlock_backends::redis::ConnectError),
    /// The library did not take the settings.
    #[error("our client does not accept its settings")]
    Settings(#[from] redlock_core::SettingsError),
    /// A lock that somebody is to wait for could not be had.
    #[error("the lock that others are to wait for is not granted")]
    Holder(#[source] redlock_core::AcquireError),
    /// The servers could not be enrolled.
    #[error("the nodes of our client cannot be enrolled")]
    Enroll(#[from] redlock_core::EnrollError),
    /// There is no contestant of this name, or it is told something it does not know.
    #[error("no contestant is called {0}, or knows what to do with it")]
    NoSuchContestant(String),
    /// What our client sends cannot be sent again by somebody else.
    #[error("the floor cannot send what our client sends: {0}")]
    NoPattern(&'static str),
}

/// Told how far a scenario is: its name, and how much of how much is done.
pub type Progress<'a> = &'a (dyn Fn(&str, usize, usize) + Send + Sync);

/// Runs the scenarios of the plan, one after the other. `progress` is told how far they are.
///
/// A scenario that cannot be measured is a finding, not an error.
///
/// # Errors
/// [`LoadError`] if the Redis servers cannot be started or connected to.
///
/// # Cancel safety
/// Dropping the future stops the servers and all processes.
pub async fn compare(
    plan: &Plan,
    places: &Places,
    command: String,
    progress: Progress<'_>,
) -> Result<Report, LoadError> {
    let stage = Stage::set().await?;
    let mut findings = Findings::default();
    for scenario in Scenario::ALL {
        if !plan.scenarios.contains(&scenario) {
            for name in scenario.figures() {
                findings.miss(*name, format!("not asked for; run `cargo xtask bench --only {}`", scenario.name()));
            }
            continue;
        }
        progress(scenario.name(), 0, 1);
        scenario::run(scenario, plan, places, &stage, &mut findings, progress).await?;
        progress(scenario.name(), 1, 1);
    }
    scenario::ahead(&mut findings);
    Ok(Report::new(Origin::of(&stage, command).await, findings))
}

/// Runs one contestant alone for `rounds` rounds, for a profiler to look at; on five servers of its own, or on those of
/// `urls`. Returns how many rounds failed.
///
/// # Errors
/// As [`compare`], and [`LoadError::NoSuchContestant`].
///
/// # Cancel safety
/// As [`compare`].
pub async fn repeat(name: &str, rounds: usize, urls: Option<&str>) -> Result<usize, LoadError> {
    let mut rehearsal = Rehearsal::of(name, urls).await?;
    Ok(rehearsal.rounds(rounds).await)
}

/// One contestant that is looked at from outside: by a profiler, by a counting allocator.
#[derive(Debug)]
pub struct Rehearsal {
    contestant: Contestant,
    _servers: Option<crate::Servers>,
}

impl Rehearsal {
    /// Connects a contestant to the servers of `urls`, separated by commas, or to five servers of its own.
    ///
    /// # Errors
    /// As [`repeat`].
    ///
    /// # Cancel safety
    /// As [`repeat`].
    pub async fn of(name: &str, urls: Option<&str>) -> Result<Self, LoadError> {
        let servers = if urls.is_none() { Some(crate::Servers::start(NODES).await?) } else { None };
        let own = servers.as_ref().map(|servers| servers.urls());
        let urls = own.unwrap_or_else(|| urls.unwrap_or_default().split(',').map(str::to_owned).collect());
        let raw = async |commands| FanOut::connect_with_time(&urls, commands, &format!("load/{name}"), PATIENCE).await;
        let client = match name {
            "redlock-5" => Client::Ours(contestant::ours_with_time(&urls, PATIENCE).await?),
            "plain-5" => Client::Raw(raw(Commands::Plain).await?),
            "scripts-5" => {
                let servers = servers.as_ref().ok_or_else(|| LoadError::NoSuchContestant(name.to_owned()))?;
                Client::Raw(raw(Commands::Ours(script_calls::Calls::heard(servers).await?.into())).await?)
            }
            "rslock-5" => Client::Rslock(contestant::rslock(&urls)),
            _ => return Err(LoadError::NoSuchContestant(name.to_owned())),
        };
        let contestant = Contestant::new(name, "", client);
        Ok(Self { contestant, _servers: servers })
    }

    /// Locks and unlocks so often, and says how often that failed.
    ///
    /// # Cancel safety
    /// The round that was under way may have been locked.
    pub async fn rounds(&mut self, rounds: usize) -> usize {
        let mut failed = 0;
        for _ in 0..rounds {
            failed += usize::from(self.contestant.round().await.is_err());
        }
        failed
    }
}
