//! In which modes the tasks of a schedule ask for leases.

use lock_core::{KeyInMode, exclusive, permits, shared};

use super::plan::Store;
use crate::{Dice, history::Mode};

/// Of ten requests, how many are shared, and how many for permits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mix {
    shared: u64,
    permits: u64,
    /// How many permits a key has.
    total: u32,
}

impl Mix {
    /// Draws nothing for stores that know exclusive leases only.
    pub(super) fn draw(dice: &mut Dice, store: Store) -> Self {
        let (shared, permits) = match store {
            Store::Modes => [(6, 0), (3, 0), (8, 0), (0, 8), (0, 9), (3, 4)][dice.below(6) as usize],
            Store::ModesOfQuorum => [(6, 0), (3, 0), (8, 0)][dice.below(3) as usize],
            _ => return Self::default(),
        };
        Self { shared, permits, total: 1 + dice.below(5) as u32 }
    }

    /// Whether all leases are exclusive.
    pub(super) fn is_plain(self) -> bool {
        self.shared + self.permits == 0
    }

    /// The mode of a request.
    pub(super) fn mode(self, dice: &mut Dice) -> Mode {
        if self.is_plain() {
            return Mode::Exclusive;
        }
        match dice.below(10) {
            drawn if drawn < self.shared => Mode::Shared,
            drawn if drawn < self.shared + self.permits => self.permits(dice),
            _ => Mode::Exclusive,
        }
    }

    fn permits(self, dice: &mut Dice) -> Mode {
        // Somebody is wrong about the total now and then.
        let total = self.total + u32::from(dice.below(30) == 0);
        let take = if dice.below(2) == 0 { 1 } else { 1 + dice.below(u64::from(total)) as u32 };
        Mode::Permits { total, take }
    }
}

/// One of several keys, in a mode.
pub(super) fn key(key: &str, mode: Mode) -> KeyInMode {
    match mode {
        Mode::Exclusive => exclusive(key),
        Mode::Shared => shared(key),
        Mode::Permits { total, take } => permits(key, total).take(take),
    }
}
