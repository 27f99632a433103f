//! The one source of chance: whatever happens in a simulated world hangs on its seed and on nothing else.
//!
//! Whole numbers and exact arithmetic only, so that a seed means the same world on every machine.

use redlock_core::Randomness;
use std::sync::{Mutex, PoisonError};

/// SplitMix64 (Steele, Lea, Flood 2014): small, seedable, and good enough to choose faults.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Another source, whose draws do not disturb this one's.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    /// From zero to `end`, without it; zero if there is nothing below it.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.next()) * u128::from(end);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// From `from` to `to`, with both.
    pub(crate) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    /// A position in something that has `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        let end = u64::try_from(len).unwrap_or(u64::MAX);
        usize::try_from(self.below(end)).unwrap_or(0)
    }

    pub(crate) fn pick<T: Copy>(&mut self, among: &[T]) -> T {
        among[self.index(among.len())]
    }

    /// Happens in so many of a thousand cases.
    pub(crate) fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1_000) < per_mille
    }

    /// Mostly near `typical`, now and then up to `stretch` times as much: the fourth power of an even draw, which looks
    /// enough like the log-normal delays of networks.
    pub(crate) fn long_tailed(&mut self, typical: u64, stretch: u64) -> u64 {
        let even = self.below(1 << 16);
        let square = (even * even) >> 16;
        let fourth = (square * square) >> 16;
        typical / 2 + self.below(typical + 1) + ((typical * stretch * fourth) >> 16)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// Spreads the bits of a number over all of another.
pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// A client's own randomness.
#[derive(Debug)]
pub(crate) struct ClientRandomness(Mutex<Random>);

impl ClientRandomness {
    pub(crate) fn new(random: Random) -> Self {
        Self(Mutex::new(random))
    }
}

impl Randomness for ClientRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_their_range_and_reach_its_ends() {
        let mut random = Random::new(1);
        let draws: Vec<u64> = (0..1_000).map(|_| random.between(3, 5)).collect();
        assert!(draws.iter().all(|draw| (3..=5).contains(draw)));
        assert!(draws.contains(&3));
        assert!(draws.contains(&5));
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn delays_are_mostly_short_and_sometimes_long() {
        let mut random = Random::new(2);
        let mut delays: Vec<u64> = (0..10_000).map(|_| random.long_tailed(10, 20)).collect();
        delays.sort_unstable();
        assert!((5..=25).contains(&delays[5_000]), "{}", delays[5_000]);
        assert!(100 < delays[9_990], "{}", delays[9_990]);
        assert!(delays[9_999] <= 5 + 10 + 200);
    }
}
