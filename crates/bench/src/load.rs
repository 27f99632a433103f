//! The load comparison: what a lock costs, next to what nobody can do without.
//!
//! ```text
//!   stage         two sets of five servers; in the second one is frozen and one killed
//!     │
//!   contestant    redlock · plain fan-out · fan-out of our scripts · single server       (fan_out: the raw ones)
//!     │           one task, one resource each; in turn, a block of rounds each
//!   figures       percentiles, spread over blocks, ratios                                 (pure)
//!     │
//!   report        table, verdict for each goal, JSON                                      (origin: machine, versions)
//! ```
//!
//! Absolute times say little on a machine that others share. So all contestants run interleaved in one run, in an order
//! that changes from block to block, and what is judged is a ratio.
//!
//! Unlike the rest of this crate this part knows the library and a Redis client, behind the feature `load`.

pub mod contestant;
mod fan_out;
pub mod figures;
mod origin;
pub mod report;
mod stage;

use std::time::Duration;

use tokio::time::Instant;

use self::contestant::Contestant;
use self::origin::Origin;
use self::report::{Entry, Report};
use self::stage::Stage;

/// How long the contestants run unmeasured once two servers are down: long enough for whoever learns from failures to
/// have learned.
const WARM_UP: Duration = Duration::from_millis(500);

/// The pause after a round that failed. Nobody asks again at once; and a client that does gives its own runtime no time
/// to take in the answers that it missed.
const AFTER_FAILURE: Duration = Duration::from_millis(1);

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How often each contestant has its turn.
    pub blocks: usize,
    /// The measured rounds of one turn.
    pub rounds: usize,
    /// The rounds before them that are not measured: the contestant before has left its traces in every cache.
    pub lead_in: usize,
}

impl Plan {
    /// About half a minute.
    pub const WHOLE: Self = Self { blocks: 200, rounds: 50, lead_in: 5 };

    /// A few seconds, for a first look.
    pub const QUICK: Self = Self { blocks: 20, rounds: 40, lead_in: 5 };
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
    /// There is no contestant of this name.
    #[error("no contestant is called {0}")]
    NoSuchContestant(String),
}

/// Runs the comparison. `progress` is told how many blocks of how many are done.
///
/// # Errors
/// [`LoadError`] if the servers cannot be started or connected to.
///
/// # Cancel safety
/// Dropping the future stops the servers.
pub async fn compare(plan: Plan, command: String, progress: impl Fn(usize, usize) + Send) -> Result<Report, LoadError> {
    let stage = Stage::set().await?;
    let mut contestants = contestant::all(&stage).await?;
    // Everybody meets healthy servers first, so that nobody is measured while it is still connecting.
    warm_up(&mut contestants).await;
    stage.take_two_down()?;
    warm_up(&mut contestants).await;

    let mut entries: Vec<Entry> = contestants.iter().map(|contestant| Entry::of(contestant.who())).collect();
    for block in 0..plan.blocks {
        progress(block, plan.blocks);
        for turn in order(block, contestants.len()) {
            measure(&mut contestants[turn], plan, &mut entries[turn]).await;
        }
    }
    progress(plan.blocks, plan.blocks);
    Ok(Report::new(plan, Origin::of(&stage, command).await, entries))
}

/// Runs one contestant alone for `rounds` rounds, for a profiler to look at. Returns how many failed.
///
/// # Errors
/// As [`compare`], and [`LoadError::NoSuchContestant`].
///
/// # Cancel safety
/// As [`compare`].
pub async fn repeat(name: &str, rounds: usize) -> Result<usize, LoadError> {
    let stage = Stage::set().await?;
    let mut contestants = contestant::all(&stage).await?;
    stage.take_two_down()?;
    let mut contestants = contestants.iter_mut();
    let contestant = contestants
        .find(|contestant| contestant.who().name() == name)
        .ok_or_else(|| LoadError::NoSuchContestant(name.to_owned()))?;
    let mut failed = 0;
    for _ in 0..rounds {
        failed += usize::from(contestant.round().await.is_err());
    }
    Ok(failed)
}

async fn warm_up(contestants: &mut [Contestant]) {
    for contestant in contestants {
        let end = Instant::now() + WARM_UP;
        while Instant::now() < end {
            unmeasured(contestant).await;
        }
        contestant.settle().await;
    }
}

/// One turn of one contestant.
async fn measure(contestant: &mut Contestant, plan: Plan, entry: &mut Entry) {
    for _ in 0..plan.lead_in {
        unmeasured(contestant).await;
    }
    let mut times = Vec::with_capacity(plan.rounds);
    for _ in 0..plan.rounds {
        let started = Instant::now();
        match contestant.round().await {
            Ok(()) => times.push(started.elapsed()),
            Err(reason) => {
                times.push(figures::FAILED);
                *entry.failures.entry(reason).or_default() += 1;
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
    entry.samples.add_block(times);
    contestant.settle().await;
}

async fn unmeasured(contestant: &mut Contestant) {
    if contestant.round().await.is_err() {
        tokio::time::sleep(AFTER_FAILURE).await;
    }
}

/// Who has a turn after whom in a block: everybody once, and with other neighbours than in the block before.
fn order(block: usize, contestants: usize) -> impl Iterator<Item = usize> {
    let strides: Vec<usize> = (1..=contestants).filter(|stride| gcd(*stride, contestants) == 1).collect();
    let stride = strides[block % strides.len()];
    (0..contestants).map(move |turn| (block + turn * stride) % contestants)
}

fn gcd(one: usize, other: usize) -> usize {
    if other == 0 { one } else { gcd(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_every_block_everybody_has_one_turn() {
        for contestants in 1..=9 {
            for block in 0..40 {
                let mut turns: Vec<usize> = order(block, contestants).collect();
                turns.sort_unstable();
                assert_eq!(turns, (0..contestants).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn neighbours_change() {
        let after_zero = |block| {
            let turns: Vec<usize> = order(block, 7).collect();
            turns.windows(2).find(|pair| pair[0] == 0).map(|pair| pair[1])
        };
        let mut followers: Vec<usize> = (0..42).filter_map(after_zero).collect();
        followers.sort_unstable();
        followers.dedup();
        assert_eq!(followers, [1, 2, 3, 4, 5, 6]);
    }
}
