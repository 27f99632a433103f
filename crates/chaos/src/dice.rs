//! Numbers that look drawn by lot and follow from a seed (SplitMix64, Steele, Lea and Flood 2014).
//!
//! One algorithm of ten lines, so that a seed means the same plan with every version of every dependency.

use std::time::Duration;

/// A source of such numbers.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// The source that belongs to a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `0` up to and without `end`.
    ///
    /// # Panics
    /// If `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The modulo favours small numbers by less than one in 2^32 for the small ends used here.
        self.roll() % end
    }

    /// A position in something of this length.
    ///
    /// # Panics
    /// If the length is zero.
    pub fn position(&mut self, len: usize) -> usize {
        let len = u64::try_from(len).expect("a length fits 64 bits");
        usize::try_from(self.below(len)).expect("it is below a length")
    }

    /// Whether something happens that happens `percent` times in a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// A time between two numbers of milliseconds.
    ///
    /// # Panics
    /// If the first is not below the second.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(from + self.below(to - from))
    }

    /// Puts a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            let other = self.position(end + 1);
            list.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything() {
        let mut dice = Dice::new(1);
        // The first two of the reference implementation for this seed.
        assert_eq!([dice.roll(), dice.roll()], [0x910a_2dec_8902_5cc1, 0xbeeb_8da1_658e_ec67]);
    }

    #[test]
    fn shuffling_loses_nothing() {
        let mut list: Vec<u32> = (0..50).collect();
        Dice::new(7).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
