//! Chance that can be repeated.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Numbers that look random, and are the same in every run (xorshift).
#[derive(Clone, Debug, Default)]
pub struct Dice(u64);

impl Dice {
    /// Dice of their own for each `name`.
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish() | 1)
    }

    /// Dice of their own for each seed.
    pub fn seeded(seed: u64) -> Self {
        // Of splitmix64: seeds that differ by one have nothing else in common.
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// Other dice, which these decide: however often they are thrown, these go on as they would have.
    pub fn split(&mut self) -> Self {
        Self::seeded(self.below(u64::MAX))
    }

    /// A number below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11).checked_rem(bound).unwrap_or(0)
    }

    /// A time from `least` to `most`, to the microsecond.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX);
        least + Duration::from_micros(self.below(span.saturating_add(1)))
    }
}
