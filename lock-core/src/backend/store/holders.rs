//! The holders of a key.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use super::place::APART;
use crate::{
    backend::{BusyReason, Outcome, Token},
    mode::Mode,
};

/// Those who hold a key: one of them, unless they share it. There are shares among them that are over.
#[derive(Clone, Debug)]
pub struct Holders {
    /// The lease of each, in the order of their tokens, so that thousands who come and go at once cost each other little.
    pub shares: SmallVec<[Share; 1]>,
    /// The fencing token of shared leases.
    pub fence: u64,
}

/// The lease of one holder.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The proof of holding.
    pub token: Token,
    /// When it ends.
    pub ends: u64,
}

impl Holders {
    /// A single one.
    #[must_use]
    pub fn new(share: Share, fence: u64) -> Self {
        Self { shares: smallvec![share], fence }
    }

    /// When the last of the leases ends; the beginning of time if there is none.
    #[must_use]
    pub fn ends(&self) -> u64 {
        self.shares.iter().map(|share| share.ends).max().unwrap_or(0)
    }

    /// Whether a lease ends at a time or later.
    #[must_use]
    pub fn is_live(&self, least: u64) -> bool {
        self.live(least).next().is_some()
    }

    /// The leases that end at a time or later.
    pub fn live(&self, least: u64) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(move |share| share.ends >= least)
    }

    /// The lease of a token, if it ends at a time or later.
    pub(super) fn share(&self, token: Token, least: u64) -> Option<&Share> {
        self.find(token).ok().map(|found| &self.shares[found]).filter(|share| share.ends >= least)
    }

    /// Adds a lease, or replaces that of its token. Those that end before a time go.
    pub(super) fn put(&mut self, share: Share, least: u64) {
        // The dead go, as in the script: a clock that is set back would bring them to life.
        if self.shares.iter().any(|other| other.ends < least) {
            self.shares.retain(|other| other.ends >= least);
        }
        match self.find(share.token) {
            Ok(found) => self.shares[found] = share,
            Err(place) => self.shares.insert(place, share),
        }
    }

    /// Removes the lease of a token.
    pub(super) fn remove(&mut self, token: Token) {
        if let Ok(found) = self.find(token) {
            self.shares.remove(found);
        }
    }

    /// Where the lease of a token is, or where it would be.
    fn find(&self, token: Token) -> Result<usize, usize> {
        self.shares.binary_search_by_key(&token, |share| share.token)
    }

    /// What the holders have in common.
    pub(super) fn mode(&self) -> Mode {
        self.shares.first().map_or(Mode::Exclusive, |share| share.token.mode())
    }

    /// Whether another lease may join those that hold the key.
    pub(super) fn has_room(&self, mode: Mode, least: u64) -> bool {
        let fits = match mode {
            Mode::Permits { total, take } => self.taken(least) + u64::from(take) <= u64::from(total),
            Mode::Exclusive | Mode::Shared => true,
        };
        fits && mode.goes_with(self.mode())
    }

    /// The answer to a look at the key.
    pub(super) fn inspected(&self, now: u64, least: u64) -> Outcome {
        let (first, last) = self.bounds(least);
        let (first, last) = (Duration::from_micros(first - now), Duration::from_micros(last - now));
        if self.mode().is_exclusive() {
            return Outcome::Busy { remaining: Some(last), by: BusyReason::Holder, position: None };
        }
        let leases = u32::try_from(self.live(least).count()).unwrap_or(u32::MAX);
        let permits = u32::try_from(self.taken(least)).unwrap_or(u32::MAX);
        Outcome::Shared { leases, permits, first, last }
    }

    /// When the first and the last of the leases end.
    fn bounds(&self, least: u64) -> (u64, u64) {
        let ends = || self.live(least).map(|share| share.ends);
        (ends().min().unwrap_or(least), ends().max().unwrap_or(least))
    }

    /// How many permits its holders take.
    fn taken(&self, least: u64) -> u64 {
        self.live(least).map(|share| u64::from(share.token.mode().permits())).sum()
    }

    /// The answer to a request in a mode that waits, where the key was `granted` last to a token until a time.
    pub(super) fn busy(
        &self,
        (now, least): (u64, u64),
        mode: Mode,
        granted: Option<(Token, u64)>,
        position: Option<u32>,
    ) -> Outcome {
        let is_kept =
            |share: &Share| granted.is_some_and(|(token, until)| share.token == token && share.ends <= until + APART);
        let is_granted = self.live(least).any(is_kept);
        let by = match (self.mode(), mode) {
            (Mode::Permits { total, .. }, Mode::Permits { total: wanted, .. }) if total != wanted => {
                BusyReason::OtherTotal { total }
            }
            (Mode::Permits { .. }, Mode::Permits { .. }) => BusyReason::Permits,
            // Where there is room, it is for those who wait first.
            _ if is_granted || self.has_room(mode, least) => BusyReason::Waiters,
            _ => BusyReason::Holder,
        };
        let (first, last) = self.bounds(least);
        // The first permits that are given back may be enough.
        let is_soonest = matches!(self.mode(), Mode::Permits { .. }) && !matches!(by, BusyReason::OtherTotal { .. });
        let ends = if is_soonest { first } else { last };
        Outcome::Busy { remaining: Some(Duration::from_micros(ends - now)), by, position }
    }
}
