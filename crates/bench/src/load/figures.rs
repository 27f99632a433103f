//! The arithmetic of a comparison: percentiles, spread, ratios. Pure.

use std::time::Duration;

use serde::Serialize;

/// What a failed round counts as: slower than any other. So failures push percentiles up instead of vanishing from them.
pub const FAILED: Duration = Duration::MAX;

/// The percentiles between which a spread lies.
const SPREAD: (f64, f64) = (0.1, 0.9);

/// What one contestant took, block by block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Samples {
    blocks: Vec<Vec<Duration>>,
}

/// From where to where most of something lies: its 10th and 90th percentile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread<T> {
    /// The 10th percentile.
    pub low: T,
    /// The 90th percentile.
    pub high: T,
}

/// How many times as long one contestant takes as another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// The median over all blocks of the ratio within a block, where both met the same conditions.
    pub value: f64,
    /// How those ratios spread.
    pub blocks: Spread<f64>,
}

impl Samples {
    /// Adds the times of one block.
    pub fn add_block(&mut self, times: Vec<Duration>) {
        self.blocks.push(times);
    }

    /// How many rounds were measured.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.blocks.iter().map(Vec::len).sum()
    }

    /// The time that `share` of all rounds do not exceed; `None` without rounds, and where that would be a failed one.
    #[must_use]
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let all: Vec<Duration> = self.blocks.iter().flatten().copied().collect();
        percentile(all, share).filter(|time| *time != FAILED)
    }

    /// The median over all rounds.
    #[must_use]
    pub fn p50(&self) -> Option<Duration> {
        self.percentile(0.5)
    }

    /// How the medians of the blocks spread.
    #[must_use]
    pub fn p50_of_blocks(&self) -> Option<Spread<Duration>> {
        let medians: Vec<Duration> = self.block_medians().flatten().collect();
        Some(Spread { low: percentile(medians.clone(), SPREAD.0)?, high: percentile(medians, SPREAD.1)? })
    }

    /// How this compares to what `other` took in the same run, block by block; `None` if there is no block in which both
    /// have a median.
    #[must_use]
    pub fn ratio_to(&self, other: &Self) -> Option<Ratio> {
        let pairs = self.block_medians().zip(other.block_medians());
        let ratios: Vec<f64> = pairs.filter_map(|(own, others)| ratio(own?, others?)).collect();
        let (value, blocks) = median_and_spread(&ratios)?;
        Some(Ratio { value, blocks })
    }

    /// How the time that `share` of all rounds do not exceed compares to that of `other`. Blocks are too short to have one
    /// of their own.
    #[must_use]
    pub fn tail_ratio_to(&self, other: &Self, share: f64) -> Option<f64> {
        ratio(self.percentile(share)?, other.percentile(share)?)
    }

    fn block_medians(&self) -> impl Iterator<Item = Option<Duration>> {
        self.blocks.iter().map(|block| percentile(block.clone(), 0.5).filter(|time| *time != FAILED))
    }
}

/// The median of values that were measured one by one, and between which most of them lie; `None` if there are none.
#[must_use]
pub fn median_and_spread(values: &[f64]) -> Option<(f64, Spread<f64>)> {
    let at = |share| percentile(values.to_vec(), share);
    Some((at(0.5)?, Spread { low: at(SPREAD.0)?, high: at(SPREAD.1)? }))
}

fn ratio(one: Duration, other: Duration) -> Option<f64> {
    (other != Duration::ZERO).then(|| one.as_secs_f64() / other.as_secs_f64())
}

/// The least of the values that `share` of them do not exceed (nearest rank); `None` if there are none.
#[must_use]
pub fn percentile<T: PartialOrd + Copy>(mut values: Vec<T>, share: f64) -> Option<T> {
    values.sort_unstable_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    // The first whose rank is not below the share: comparisons, and no rounding to argue about.
    let count = as_f64(values.len());
    let reached: Vec<usize> = (0..values.len()).collect();
    let index = reached.partition_point(|index| as_f64(index + 1) < share * count);
    values.get(index).copied()
}

/// A count as a number to calculate with.
#[must_use]
pub fn as_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}
