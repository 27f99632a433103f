//! Everybody in turn: blocks in which each contestant has one, in an order that changes from block to block.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Progress;
use super::contestant::{Contestant, Turn};
use super::figures::{Samples, as_f64};
use super::plan::Plan;

/// What one contestant took.
#[derive(Debug, Clone, Default)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) what: String,
    /// Its times; those of rounds that failed are [`FAILED`](super::figures::FAILED). A block in which it had no turn has
    /// none.
    pub(super) samples: Samples,
    /// How many rounds failed, by the reason.
    pub(super) failures: BTreeMap<String, usize>,
}

/// Measures rounds of everybody, and of the slow no more than the plan has patience for.
pub(super) async fn interleave(
    contestants: &mut [Contestant],
    blocks: usize,
    turn: Turn,
    plan: &Plan,
    progress: impl Fn(usize, usize),
) -> Vec<Entry> {
    let entry = |contestant: &Contestant| Entry {
        name: contestant.name.clone(),
        what: contestant.what.clone(),
        ..Entry::default()
    };
    let mut entries: Vec<Entry> = contestants.iter().map(entry).collect();
    let mut used = vec![Duration::ZERO; contestants.len()];
    for block in 0..blocks {
        progress(block, blocks);
        for turn_of in order(block, contestants.len()) {
            let entry = &mut entries[turn_of];
            // A slow one's turns are spread over the whole run.
            if plan.patience.mul_f64(as_f64(block + 1) / as_f64(blocks)) <= used[turn_of] {
                entry.samples.add_block(Vec::new());
                continue;
            }
            let began = Instant::now();
            let outcome = contestants[turn_of].turn(turn).await;
            used[turn_of] += began.elapsed();
            entry.samples.add_block(outcome.times);
            for (reason, count) in outcome.failures {
                *entry.failures.entry(reason).or_default() += count;
            }
        }
    }
    entries
}

/// Part of a scenario's progress, as a function of what is done of it.
pub(super) fn part_of<'a>(progress: Progress<'a>, name: &'a str) -> impl Fn(usize, usize) + 'a {
    move |done, all| progress(name, done, all)
}

/// Who has a turn after whom in a block: everybody once, and with other neighbours than in the block before.
pub(super) fn order(block: usize, contestants: usize) -> impl Iterator<Item = usize> {
    let strides: Vec<usize> = (1..=contestants).filter(|stride| gcd(*stride, contestants) == 1).collect();
    let stride = strides.get(block % strides.len().max(1)).copied().unwrap_or(1);
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
        for contestants in 0..=9 {
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
