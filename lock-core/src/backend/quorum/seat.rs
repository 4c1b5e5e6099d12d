//! The answer of one node to one operation, and how many nodes answer the same; pure.

use std::{cmp::Reverse, time::Duration};

use crate::backend::{BackendError, BusyReason, Outcome};

/// The answer of one node to one operation.
#[derive(Clone, Debug, Default)]
pub(super) struct Seat {
    pub(super) vote: Vote,
    /// Up to where the node has counted for it.
    pub(super) counted: u64,
    /// Whether it was asked to count further.
    pub(super) asked_back: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) enum Vote {
    #[default]
    Waiting,
    /// The request waits for a connection: nothing has happened there.
    Away,
    /// Deferred until the queue node has answered.
    Later,
    /// It is not asked, because another comes first at the queue node.
    Spared,
    Said(Outcome),
    Failed(BackendError),
}

/// A block of fencing tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct FenceBlock {
    pub(super) first: u64,
    pub(super) size: u32,
}

impl FenceBlock {
    pub(super) fn last(self) -> u64 {
        self.first.saturating_add(u64::from(self.size)).saturating_sub(1)
    }
}

impl Seat {
    pub(super) fn said(&self) -> Option<&Outcome> {
        match &self.vote {
            Vote::Said(outcome) => Some(outcome),
            Vote::Waiting | Vote::Away | Vote::Later | Vote::Spared | Vote::Failed(_) => None,
        }
    }

    /// Whether the node is asked later, if at all.
    pub(super) fn is_later(&self) -> bool {
        matches!(self.vote, Vote::Later)
    }

    pub(super) fn is_granted(&self) -> bool {
        matches!(self.said(), Some(Outcome::Held { .. } | Outcome::Renewed { .. } | Outcome::Released))
    }

    /// Whether the node may have something of the operation, if only a place.
    pub(super) fn may_have_something(&self) -> bool {
        let is_placed = matches!(self.said(), Some(Outcome::Busy { position: Some(_), .. }));
        self.is_granted() || matches!(self.vote, Vote::Waiting) || is_placed
    }

    pub(super) fn fences(&self) -> Option<FenceBlock> {
        match self.said()? {
            Outcome::Held { fence, block, .. } | Outcome::Renewed { fence: Some(fence), block, .. } => {
                Some(FenceBlock { first: *fence, size: *block })
            }
            _ => None,
        }
    }

    /// Whether the node agrees, and has counted to the last of these.
    pub(super) fn counts(&self, fences: FenceBlock) -> bool {
        self.is_granted() && self.counted >= fences.last()
    }

    pub(super) fn has_counted(&self, fences: Option<FenceBlock>) -> bool {
        !self.is_granted() || fences.is_some_and(|fences| self.counts(fences))
    }
}

/// How many nodes say what.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) waiting: usize,
    pub(super) away: usize,
    /// Held, renewed or released.
    pub(super) granted: usize,
    /// The key is free, or held with another token. A key of another type counts, too.
    pub(super) gone: usize,
    pub(super) failed: usize,
    /// Of the failed ones, those that may have done it all the same.
    pub(super) in_doubt: usize,
}

impl Tally {
    pub(super) fn of(row: &[Seat]) -> Self {
        let mut tally = Self::default();
        for seat in row {
            match &seat.vote {
                Vote::Waiting => tally.waiting += 1,
                Vote::Away | Vote::Later => tally.away += 1,
                Vote::Spared => {}
                Vote::Failed(error) => {
                    tally.failed += 1;
                    tally.in_doubt += usize::from(error.may_have_happened());
                }
                Vote::Said(_) if seat.is_granted() => tally.granted += 1,
                Vote::Said(Outcome::Gone) => tally.gone += 1,
                Vote::Said(_) => {}
            }
        }
        tally
    }
}

pub(super) fn failures(row: &[Seat]) -> Vec<BackendError> {
    let failed = |seat: &Seat| match &seat.vote {
        Vote::Failed(error) => Some(error.clone()),
        Vote::Waiting | Vote::Away | Vote::Later | Vote::Spared | Vote::Said(_) => None,
    };
    row.iter().filter_map(failed).collect()
}

/// The longest time that a holder has left, and whether one is of another library.
pub(super) fn holders(row: &[Seat]) -> (Option<Duration>, bool) {
    let mut longest = Some(Duration::ZERO);
    let mut any_foreign = false;
    for seat in row {
        let (remaining, foreign) = match seat.said() {
            Some(Outcome::Busy { remaining, by, .. }) => (*remaining, *by == BusyReason::Foreign),
            Some(Outcome::Shared { last, .. }) => (Some(*last), false),
            _ => continue,
        };
        longest = longest.zip(remaining).map(|(one, other)| one.max(other));
        any_foreign |= foreign;
    }
    (longest, any_foreign)
}

/// What those who share a key are, if more nodes say that it is shared than that one holder has it: as many leases and permits as
/// `most` of these nodes count at least, or as all of them do if they are fewer. A share that too few nodes have, such as one that is
/// being acquired or was left there by a request which failed, is so not counted.
pub(super) fn shares(row: &[Seat], most: usize) -> Option<Outcome> {
    let (mut leases_of_each, mut permits_of_each, mut ends, mut alone) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for seat in row {
        match seat.said() {
            Some(Outcome::Shared { leases, permits, first, last }) => {
                leases_of_each.push(*leases);
                permits_of_each.push(*permits);
                ends.push((*first, *last));
            }
            Some(Outcome::Busy { .. }) => alone += 1,
            _ => {}
        }
    }
    let counted_by_most = |mut of_each: Vec<u32>| {
        of_each.sort_unstable_by_key(|count| Reverse(*count));
        of_each.get(most.min(of_each.len()).checked_sub(1)?).copied()
    };
    let shared = Outcome::Shared {
        leases: counted_by_most(leases_of_each)?,
        permits: counted_by_most(permits_of_each)?,
        first: ends.iter().map(|(first, _)| *first).min()?,
        last: ends.iter().map(|(_, last)| *last).max()?,
    };
    (ends.len() > alone).then_some(shared)
}
