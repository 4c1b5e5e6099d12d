//! Chance that can be repeated.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

/// Numbers that look random, and are the same in every run (xorshift).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice of their own for each `name`.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        Self(hasher.finish() | 1)
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
