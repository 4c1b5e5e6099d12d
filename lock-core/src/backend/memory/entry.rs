//! The holders of a key of the store in memory.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    backend::{BusyReason, Outcome, Token},
    clock::Moment,
    mode::Mode,
};

/// Those who hold a key: one of them, unless they share it.
pub(super) struct Entry {
    pub(super) shares: SmallVec<[Share; 1]>,
    /// The fencing token of shared leases.
    pub(super) fence: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) token: Token,
    pub(super) expires: Moment,
    /// Whether the key was granted to the token, which has not come yet.
    pub(super) reserved: bool,
}

impl Entry {
    /// When the last of its shares ends.
    pub(super) fn expires(&self) -> Moment {
        self.shares.iter().map(|share| share.expires).max().unwrap_or(Moment::from_origin(Duration::ZERO))
    }

    pub(super) fn share(&mut self, token: Token) -> Option<&mut Share> {
        self.shares.iter_mut().find(|share| share.token == token)
    }

    /// What its holders have in common.
    pub(super) fn mode(&self) -> Mode {
        self.shares.first().map_or(Mode::Exclusive, |share| share.token.mode())
    }

    /// Whether another lease may join those that hold the key.
    pub(super) fn has_room(&self, mode: Mode) -> bool {
        let fits = match mode {
            Mode::Permits { total, take } => self.taken() + u64::from(take) <= u64::from(total),
            Mode::Exclusive | Mode::Shared => true,
        };
        fits && mode.goes_with(self.mode())
    }

    /// The answer to a look at the key.
    pub(super) fn inspected(&self, now: Moment) -> Outcome {
        let last = self.expires().since(now);
        if self.mode().is_exclusive() {
            return Outcome::Busy { remaining: Some(last), by: BusyReason::Holder, position: None };
        }
        let first = self.shares.iter().map(|share| share.expires).min().map_or(last, |end| end.since(now));
        let leases = u32::try_from(self.shares.len()).unwrap_or(u32::MAX);
        let permits = u32::try_from(self.taken()).unwrap_or(u32::MAX);
        Outcome::Shared { leases, permits, first, last }
    }

    /// How many permits its holders take.
    fn taken(&self) -> u64 {
        self.shares.iter().map(|share| u64::from(share.token.mode().permits())).sum()
    }

    /// The answer to a request in a mode that waits. `comes_later` says that there is room, which is for those who wait first.
    pub(super) fn busy(&self, now: Moment, mode: Mode, comes_later: bool, position: Option<u32>) -> Outcome {
        let by = match (self.mode(), mode) {
            (Mode::Permits { total, .. }, Mode::Permits { total: wanted, .. }) if total != wanted => {
                BusyReason::OtherTotal { total }
            }
            (Mode::Permits { .. }, Mode::Permits { .. }) => BusyReason::Permits,
            _ if comes_later || self.shares.iter().any(|share| share.reserved) => BusyReason::Waiters,
            _ => BusyReason::Holder,
        };
        let ends = self.shares.iter().map(|share| share.expires);
        // The first permits that are given back may be enough.
        let is_soonest = matches!(self.mode(), Mode::Permits { .. }) && !matches!(by, BusyReason::OtherTotal { .. });
        let remaining = if is_soonest { ends.min() } else { ends.max() }.map(|end| end.since(now));
        Outcome::Busy { remaining, by, position }
    }
}
