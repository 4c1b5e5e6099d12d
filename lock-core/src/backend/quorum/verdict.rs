//! The common answer of the nodes to one operation; pure.

use std::time::Duration;

use self::Certainty::{Doubtful, Likely, Sure};
use super::{
    majority::{majority, too_few},
    seat::{FenceBlock, Seat, Tally, Vote, failures, holders, shares},
};
use crate::backend::{Acquire, BackendError, BusyReason, Operation, Outcome, Replied};

/// How sure the votes on an operation or a whole batch are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Certainty {
    /// The nodes that have answered do not decide.
    Open,
    /// Not decided yet, and given up if the others do not answer as soon as they usually do, however slow they are.
    Doubtful,
    /// Decided, but the answers of the others are worth a short wait.
    Likely,
    Sure,
}

/// How far a vote on an operation has come, and its result unless it is open.
pub(super) type Verdict = (Certainty, Option<Replied<Outcome>>);

/// The votes on one operation.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) operation: &'a Operation,
    /// One seat for each node.
    pub(super) seats: &'a [Seat],
    /// The node that keeps the queue: it decides who comes first.
    pub(super) queue_node: usize,
    /// Whether the token had a place at some node before.
    pub(super) placed: bool,
    /// The fencing tokens of the operation, once a majority has agreed to it.
    pub(super) fences: Option<FenceBlock>,
}

impl Row<'_> {
    pub(super) fn verdict(&self) -> Verdict {
        let tally = Tally::of(self.seats);
        match self.operation {
            Operation::Acquire(acquire) => self.acquired(acquire, &tally),
            Operation::Renew(renew) => self.renewed(&tally, renew.block > 0),
            Operation::Release(_) | Operation::Force { .. } => self.released(&tally),
            Operation::Inspect { .. } => self.inspected(&tally),
        }
    }

    /// The fencing tokens that a majority can give, if one agrees to the operation.
    pub(super) fn common_fences(&self) -> Option<FenceBlock> {
        let granted = self.seats.iter().filter_map(Seat::fences);
        if granted.clone().count() < self.most() {
            return None;
        }
        let firsts = granted.clone().map(|fences| fences.first);
        let first = firsts.max()?;
        let size = granted.map(|fences| fences.size).min()?;
        Some(FenceBlock { first, size })
    }

    /// Whether a majority agrees, and has counted to the last of these.
    pub(super) fn is_counted(&self, fences: FenceBlock) -> bool {
        self.seats.iter().filter(|seat| seat.counts(fences)).count() >= self.most()
    }

    /// Whether this is a refusal of an acquire by so few nodes that it proves nothing, because a majority may have the token; or of one
    /// that takes the key from another token, if any node may have the new one.
    pub(super) fn is_in_doubt(&self, outcome: &Replied<Outcome>) -> bool {
        let refused = || self.seats.iter().filter(|seat| seat.said().is_some()).count();
        match (self.operation, outcome) {
            (Operation::Acquire(_), Ok(Outcome::Busy { .. })) => refused() < self.seats.len() + 1 - self.most(),
            (Operation::Acquire(Acquire { from: Some(_), .. }), Ok(Outcome::Gone)) => {
                Tally::of(self.seats).gone < self.seats.len()
            }
            _ => false,
        }
    }

    fn acquired(&self, acquire: &Acquire, tally: &Tally) -> Verdict {
        let most = self.most();
        let queue_vote = &self.seats[self.queue_node].vote;
        // Its key is kept for another, who comes first at the other nodes too.
        let comes_later = matches!(queue_vote, Vote::Said(Outcome::Busy { by: BusyReason::Waiters, .. }));
        // What is taken from another token is wanted by nobody else, and lost if a node that has it is not heard.
        let is_taken = acquire.from.is_some();
        let against = tally.granted + tally.failed + tally.waiting + tally.away < self.seats.len();
        if tally.granted >= most && !comes_later {
            let Some(fences) = self.fences else { return OPEN };
            if !self.is_counted(fences) {
                // A node that has granted it is asked to count further. If it fails meanwhile, and the others are against it, nothing in
                // the same call must wait for that node.
                return if against && !is_taken { (Doubtful, Some(Ok(self.lost(tally)))) } else { OPEN };
            }
            let held = Ok(Outcome::Held { fence: fences.first, block: fences.size, was_free: false });
            // Others may wait at the queue node; and the more are known to have it, the more may fail.
            return (tally.settled(), Some(held));
        }
        if tally.granted + tally.waiting + tally.away >= most && !comes_later {
            // The key may still be granted. But if each of several waiters has a part of the nodes, all would wait for a slow node, and with
            // them what is in the same call. One of sixteen does where it may help: a token that nobody releases, at a node that is not slow,
            // would keep all of them from a majority. One that is about to be released is new, and most leases are of one length.
            let is_new = |left: Duration| (acquire.ttl - NEW.min(acquire.ttl / 4)..=acquire.ttl).contains(&left);
            let is_left = |seat: &Seat| match seat.said() {
                Some(Outcome::Busy { by: BusyReason::Holder | BusyReason::Foreign, remaining, .. }) => {
                    !remaining.is_some_and(is_new)
                }
                _ => false,
            };
            let waits = acquire.place.is_some() && acquire.token.is_one_of_sixteen() && self.seats.iter().any(is_left);
            let certainty = if waits { Doubtful } else { Likely };
            return if against && !is_taken { (certainty, Some(Ok(self.lost(tally)))) } else { OPEN };
        }
        if tally.failed > self.seats.len() - most {
            // Nodes that did not answer may have the token, and one of them may keep a place for it.
            let in_doubt = self.seats.iter().any(Seat::may_have_something);
            return (Sure, Some(Err(self.too_few(in_doubt))));
        }
        // A majority lacks what is to be taken, though others may have the new token.
        let outcome = if tally.gone > self.seats.len() - most && is_taken { Outcome::Gone } else { self.lost(tally) };
        (tally.settled(), Some(Ok(outcome)))
    }

    /// The answer to an acquire that was not granted.
    fn lost(&self, tally: &Tally) -> Outcome {
        // A token with a place is kept though a node may take it late: the next check finds that, and the place is released
        // everywhere in the end. Else any node that hangs would cost every waiter its place.
        let is_settled = tally.waiting + tally.in_doubt == 0 || self.placed || self.position().is_some();
        if tally.granted == 0 && is_settled { self.refused() } else { self.split() }
    }

    /// The place of an acquire: at the queue node if that has said so, else at its deputy.
    fn position(&self) -> Option<u32> {
        let position = |seat: &Seat| match seat.said()? {
            Outcome::Busy { position, .. } => *position,
            _ => None,
        };
        position(&self.seats[self.queue_node]).or_else(|| self.seats.iter().find_map(position))
    }

    /// The answer to an acquire that has happened nowhere.
    fn refused(&self) -> Outcome {
        let said = |wanted: fn(&Outcome) -> bool| self.seats.iter().any(|seat| seat.said().is_some_and(wanted));
        if said(|outcome| matches!(outcome, Outcome::Busy { .. })) {
            let (remaining, foreign) = holders(self.seats);
            let by = match &self.seats[self.queue_node].vote {
                Vote::Said(Outcome::Busy { by: BusyReason::Waiters, .. }) if !foreign => BusyReason::Waiters,
                _ => holder(foreign),
            };
            Outcome::Busy { remaining, by, position: self.position() }
        } else {
            Outcome::Gone
        }
    }

    fn renewed(&self, tally: &Tally, takes_fences: bool) -> Verdict {
        let most = self.most();
        if tally.granted >= most {
            let remaining = self.seats.iter().filter_map(|seat| match seat.said() {
                Some(Outcome::Renewed { remaining, .. }) => Some(*remaining),
                _ => None,
            });
            // What the node that keeps it for longest has left.
            let remaining = remaining.max().unwrap_or_default();
            let fences = self.fences.filter(|_| takes_fences);
            let all_count = fences.is_some_and(|fences| self.is_counted(fences));
            if takes_fences && !all_count && self.seats.iter().any(|seat| seat.asked_back && !seat.has_counted(fences))
            {
                return OPEN;
            }
            // Renewed it is, though not all may count on.
            let fences = fences.filter(|_| all_count);
            let (fence, block) = (fences.map(|fences| fences.first), fences.map_or(0, |fences| fences.size));
            let outcome = Ok(Outcome::Renewed { remaining, fence, block });
            // The others' answers are awaited, too, so that their leases count next time.
            return (tally.settled(), Some(outcome));
        }
        if tally.gone > self.seats.len() - most {
            return (Sure, Some(Ok(Outcome::Gone)));
        }
        let unknown = || Err(self.too_few(true));
        if tally.granted + tally.waiting + tally.away < most {
            return (Sure, Some(unknown()));
        }
        // A batch has many: they do not wait without end for the slowest node of one. But a slow node may be the one that keeps the lease.
        if tally.gone > 0 { (Doubtful, Some(unknown())) } else { OPEN }
    }

    fn released(&self, tally: &Tally) -> Verdict {
        let most = self.most();
        if tally.granted + tally.gone < most {
            if tally.granted + tally.gone + tally.waiting + tally.away >= most {
                return OPEN;
            }
            return (Sure, Some(Err(self.too_few(true))));
        }
        let outcome = match self.operation {
            // Nobody repeats it; it must not strike the next holder when a node goes on that was stopped.
            Operation::Force { .. } if tally.waiting + tally.away > 0 => return OPEN,
            Operation::Force { .. } if tally.in_doubt > 0 => Err(self.too_few(true)),
            Operation::Force { .. } if tally.granted > 0 => Ok(Outcome::Released),
            // A key that is to stay busy is kept by a majority, or it is not known whether it is.
            Operation::Release(release)
                if !release.after.is_zero() && (1..most).contains(&tally.granted) && tally.gone < most =>
            {
                if tally.waiting + tally.away > 0 {
                    return OPEN;
                }
                Err(self.too_few(true))
            }
            // Whether it can have been held by a majority.
            _ if tally.granted > 0 && self.seats.len() - tally.gone >= most => Ok(Outcome::Released),
            _ => Ok(Outcome::Gone),
        };
        (tally.settled(), Some(outcome))
    }

    fn inspected(&self, tally: &Tally) -> Verdict {
        let most = self.most();
        let is_busy = |seat: &&Seat| matches!(seat.said(), Some(Outcome::Busy { .. } | Outcome::Shared { .. }));
        let busy = self.seats.iter().filter(is_busy).count();
        let heard = tally.waiting + tally.away == 0;
        if heard && busy + tally.gone < most {
            return (Sure, Some(Err(self.too_few(false))));
        }
        // Those that failed may have it too.
        if busy >= most || (heard && busy > 0 && busy + tally.failed >= most) {
            let (remaining, foreign) = holders(self.seats);
            let alone = Outcome::Busy { remaining, by: holder(foreign), position: None };
            let shared = shares(self.seats, most).filter(|_| !foreign);
            return (Sure, Some(Ok(shared.unwrap_or(alone))));
        }
        if heard || tally.gone > self.seats.len() - most { (Sure, Some(Ok(Outcome::Gone))) } else { OPEN }
    }

    /// The answer to an acquire that some nodes may have granted.
    fn split(&self) -> Outcome {
        let (remaining, foreign) = holders(self.seats);
        Outcome::Split { remaining: remaining.filter(|remaining| !remaining.is_zero()), foreign }
    }

    fn too_few(&self, elsewhere: bool) -> BackendError {
        too_few(self.seats.len(), &failures(self.seats), elsewhere)
    }

    fn most(&self) -> usize {
        majority(self.seats.len())
    }
}

impl Tally {
    /// How sure a decided vote is: the answers of the others are worth a short wait.
    fn settled(&self) -> Certainty {
        if self.waiting > 0 { Likely } else { Sure }
    }
}

const OPEN: Verdict = (Certainty::Open, None);
/// How long a lease counts as new, which may be about to be released.
const NEW: Duration = Duration::from_secs(1);

fn holder(foreign: bool) -> BusyReason {
    if foreign { BusyReason::Foreign } else { BusyReason::Holder }
}
