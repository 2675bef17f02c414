//! Random numbers.

use std::env;

/// A small random number generator. A failing test shows its seed.
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator whose seed comes from `REDLATCH_SEED` or the clock. The function prints
    /// the seed, so that a failed run can be repeated.
    pub(crate) fn new() -> Self {
        let fixed = env::var("REDLATCH_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed: u64 = fixed.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
            u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap()
        });
        println!("REDLATCH_SEED={seed}");
        Self::of(seed)
    }

    pub(crate) fn of(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
