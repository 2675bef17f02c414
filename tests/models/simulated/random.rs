//! A small random number generator, with which a seed always gives the same numbers.

#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i64, high: i64) -> i64 {
        low + (self.next() % (high - low + 1) as u64) as i64
    }

    pub(crate) fn percent(&mut self, chance: i64) -> bool {
        self.between(1, 100) <= chance
    }

    pub(crate) fn one_of(&mut self, ranges: &[(i64, i64)]) -> i64 {
        let (low, high) = ranges[self.between(0, ranges.len() as i64 - 1) as usize];
        self.between(low, high)
    }
}
