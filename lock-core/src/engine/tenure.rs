//! Tenures, the keys that this process possesses, and their holds; pure.
//!
//! Holds of one tenure follow one another without a word to the backend, each with a fencing token of the block that
//! the tenure took. (The cohort lock of Dice, Marathe and Shavit, *Lock Cohorting*, 2012, on a network.)

mod renewing;
mod tenures;
#[cfg(test)]
mod tests;

use std::{num::NonZeroU64, sync::Arc, time::Duration};

pub(crate) use self::tenures::Tenures;
use crate::{
    backend::{
        Renew, Token,
        cleanup::{Doubt, PendingRelease},
    },
    clock::Moment,
    engine::hold::{Ending, Hold},
    key::LockKey,
    ttl::{Renewal, Ttl},
};

/// An acquire that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acquired {
    pub(crate) token: Token,
    /// The first fencing token of the block.
    pub(crate) fence: u64,
    pub(crate) block: u32,
    /// When the request was sent.
    pub(crate) sent: Moment,
    pub(crate) doubt: Doubt,
    /// Whether holds may follow one another in the process, if the terms allow it.
    pub(crate) passes: bool,
    /// For how long the key is kept, if it was granted and not acquired; `None` for the ttl.
    pub(crate) granted: Option<Ttl>,
}

/// A process's stay in possession of a key, from its acquire to its release.
#[derive(Debug)]
pub(crate) struct Tenure {
    /// A new token for each tenure.
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    pub(crate) renewal: Renewal,
    /// When it was entered: it ends some time after that even if waiters of this process are left, so that those of
    /// others are not kept waiting.
    since: Moment,
    /// Whether holds may follow one another in the process.
    passes: bool,
    fences: Fences,
    /// How far the fencing token of the present hold is above the one that it began with.
    above_first: u32,
    /// True until the first renewal of a lease that started from a push.
    granted: bool,
    /// When the latest request was sent that is known to have found the key its own.
    proven: Moment,
    /// Whether another block was asked for.
    refilling: bool,
    /// The present holder.
    hold: Arc<Hold>,
    /// The number of the present hold, counted within the tenure.
    number: u32,
    /// When to renew next; never for a fixed lease.
    renew_at: Moment,
    /// Whether a renewal waits for its turn or its answer.
    renewing: bool,
    /// Whether another client has written to the key since a renewal was sent.
    changed: bool,
    /// Renewals that failed since the last success.
    failures: u16,
    /// How many replicas are known to have the key, at least: together with `failures` in four bytes, since there are many
    /// tenures.
    replicated: u16,
    /// Until when the key stays busy even if the hold ends sooner.
    keep_until: Moment,
    pub(crate) doubt: Doubt,
}

/// Names a hold: a guard speaks to the engine with it, and one that is over names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldId {
    pub(crate) tenure: TenureId,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenureId {
    index: u32,
    /// Tells a tenure from a later one at the same index.
    serial: NonZeroU64,
}

impl TenureId {
    fn new(index: usize, serial: NonZeroU64) -> Self {
        Self { index: u32::try_from(index).expect("memory ends before four billion leases do"), serial }
    }

    fn index(self) -> usize {
        self.index as usize
    }
}

/// A renewal that the engine is to send, and what it must know when the answer comes.
#[derive(Debug)]
pub(crate) struct Renewing {
    tenure: TenureId,
    /// The version of the hold's deadline when it was sent.
    version: u32,
    pub(crate) request: Renew,
}

/// A hold that may begin.
pub(crate) type Offer = (HoldId, Arc<Hold>);

/// A tenure that ended by itself: its token must be released.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) tenure: TenureId,
    pub(crate) pending: PendingRelease,
    pub(crate) doubt: Doubt,
    /// Whether it was to be renewed, and its deadline passed before.
    pub(crate) lapsed: bool,
    /// To be dropped when the engine's lock is not held.
    pub(crate) ending: Ending,
}

impl Tenure {
    /// When the newest request was sent that has found the key its own, and the fencing token that it began with.
    pub(crate) fn proof(&self) -> (Moment, u64) {
        (self.proven, self.first_fence())
    }

    /// The fencing token that it began with.
    fn first_fence(&self) -> u64 {
        self.hold.fence.get().saturating_sub(u64::from(self.above_first))
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.hold.key
    }

    /// How its key is to be left by its holder.
    pub(crate) fn pending(&self) -> PendingRelease {
        let pending = PendingRelease::at_once(self.key().clone(), self.token);
        PendingRelease { keep_until: self.keep_until, ..pending }
    }

    /// How many holds followed one another in it, or would have if there had been fencing tokens for them.
    pub(crate) fn holds(&self) -> u32 {
        if self.fences.left() == 0 { self.number.max(MANY_HOLDS) } else { self.number }
    }

    /// The request that renews it for `ttl`.
    pub(crate) fn renew(&self, ttl: Ttl) -> Renew {
        let mut request = Renew::new(self.key().clone(), self.token, ttl.get());
        // A store reports one write, and each of ours takes the next report away. Watching the key costs the server memory. A lease that has
        // just begun by a grant usually ends before its second renewal. A key that is shared changes with each renewal of each holder.
        let is_renewed = self.renewal != Renewal::Never;
        request.watch = is_renewed && !self.granted && self.token.mode().is_exclusive();
        request
    }

    /// When the engine must look at the tenure, whose hold lasts until `end`.
    fn timer(&self, end: Moment) -> Moment {
        // While a renewal waits or is in flight, only the end matters. A timer for the next renewal would fire again and again, since
        // that renewal cannot be planned before this one is answered.
        if self.renewing { end } else { end.min(self.renew_at) }
    }
}

/// The fencing tokens of a block that are left, and the block that follows.
#[derive(Debug)]
struct Fences {
    next: u64,
    left: u32,
    /// How many the following block has: together with `left` in eight bytes, since there are many tenures.
    following: u32,
    first_following: u64,
}

impl Fences {
    /// The rest of a block whose first token has been given out.
    fn after_first(first: u64, block: u32) -> Self {
        Self { next: first.saturating_add(1), left: block.saturating_sub(1), following: 0, first_following: 0 }
    }

    fn take(&mut self) -> Option<u64> {
        // The first block is used up before the second: tokens have to rise from hold to hold, and the second block has the larger numbers.
        if self.left == 0 {
            (self.next, self.left) = (self.first_following, std::mem::take(&mut self.following));
        }
        self.left = self.left.checked_sub(1)?;
        let fence = self.next;
        self.next = fence.saturating_add(1);
        Some(fence)
    }

    fn left(&self) -> u64 {
        u64::from(self.left) + u64::from(self.following)
    }

    /// Takes a block that follows. Numbers that are not above those of the present one are not used.
    fn follow(&mut self, first: u64, block: u32) {
        // After a loss of data the counter may have restarted behind the present block. Using such a block would give the next hold a
        // smaller token than this one.
        if first < self.next.saturating_add(u64::from(self.left)) {
            return;
        }
        (self.first_following, self.following) = (first, block);
    }
}

/// The size of the next block of fencing tokens for `waiters` waiters, after `holds` local handoffs in this tenure or the last. The next block has to come before this one is used up.
pub(crate) fn block_for(waiters: usize, holds: u32) -> u32 {
    let waiters = u32::try_from(waiters).unwrap_or(u32::MAX).clamp(1, LARGEST_BLOCK);
    let used = if holds < MANY_HOLDS { 0 } else { holds.saturating_mul(2).min(LARGEST_USED_BLOCK) };
    waiters.max(used)
}

/// For how long holds follow one another in a process before the next one has to ask the backend, where waiters of other
/// processes may come first.
pub(crate) const BUDGET: Duration = Duration::from_millis(100);

/// Larger blocks would let the counter run ahead of the clock (by a microsecond for each), which keeps fencing tokens
/// rising over a loss of data.
const LARGEST_BLOCK: u32 = 32;

/// From how many holds in a tenure on more are expected than wait.
const MANY_HOLDS: u32 = 16;

/// The largest block for a key that uses them up: half of what the script lets the counter lead.
const LARGEST_USED_BLOCK: u32 = 512;
