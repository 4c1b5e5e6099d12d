//! Which keys were busy recently; pure.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use crate::{clock::Moment, key::LockKey};

/// Remembers when keys were last found busy, in a fixed number of slots. Keys may share a slot. A key that is wrongly taken for
/// busy only uses the script, which is slower.
#[derive(Debug)]
pub(super) struct RecentlyBusy {
    until: Box<[Moment]>,
}

impl RecentlyBusy {
    pub(super) fn new() -> Self {
        Self { until: vec![Moment::from_origin(Duration::ZERO); SLOTS].into() }
    }

    /// Records that another holder has the key.
    pub(super) fn found_busy(&mut self, key: &LockKey, now: Moment) {
        self.until[slot(key)] = now + RECENTLY;
    }

    pub(super) fn was_busy(&self, key: &LockKey, now: Moment) -> bool {
        now < self.until[slot(key)]
    }
}

/// The same in every process that one version of Rust has built, unlike the hash that a key carries: which keys share a slot decides what
/// is sent, and a seed of the simulation must be one run. Keys that were chosen to share a slot gain nothing but the slower script.
fn slot(key: &LockKey) -> usize {
    let mut hasher = DefaultHasher::new();
    key.as_str().hash(&mut hasher);
    usize::try_from(hasher.finish() % SLOTS as u64).unwrap_or(0)
}

/// How long a key that was busy counts as busy. A request during that time uses the script, which takes one round trip even if the
/// key is busy; without the script it would take two.
const RECENTLY: Duration = Duration::from_secs(2);

const SLOTS: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fixture::at;

    #[test]
    fn a_busy_key_is_remembered_for_two_seconds() {
        let key = LockKey::new("goods:1").unwrap();
        let mut recent = RecentlyBusy::new();
        assert!(!recent.was_busy(&key, at(0)));
        recent.found_busy(&key, at(0));
        assert!(recent.was_busy(&key, at(1_999)));
        assert!(!recent.was_busy(&key, at(2_000)));
    }
}
