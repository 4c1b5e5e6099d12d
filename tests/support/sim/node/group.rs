//! Groups: those who share a key, or have permits of it.

use std::time::Duration;

use lock_core::{
    Mode,
    backend::{BackendError, Outcome, Renew, Token},
    key::LockKey,
};

use super::{Call, Entry, Holder, Node, NodeMutant, ms};

/// The holders of a key that is not held exclusively.
#[derive(Clone, Debug)]
pub(super) struct Group {
    /// What they share: the mode of one of them, or of the first if they have permits.
    mode: Mode,
    /// The fencing token of those who share the key.
    fence: u64,
    /// The share of each, also of those whose time is over.
    pub(super) shares: Vec<Entry>,
    /// When the key expires, in ms.
    pub(super) expires: u64,
}

impl Group {
    pub(super) fn live(&self, now: u64) -> impl Iterator<Item = &Entry> {
        self.shares.iter().filter(move |share| share.expires >= now)
    }

    pub(super) fn share_of(&mut self, token: Token) -> Option<&mut Entry> {
        self.shares.iter_mut().find(|share| share.holder == Holder::Ours(token))
    }

    pub(super) fn share_with(&self, holder: Holder) -> Option<&Entry> {
        self.shares.iter().find(|share| share.holder == holder)
    }

    /// The total of its permits, unless it is of another mode.
    pub(super) fn total(&self) -> Option<u32> {
        total_of(self.mode)
    }

    /// The answer to a look at the key.
    pub(super) fn inspected(&self, now: u64) -> Outcome {
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let takes = |share: &Entry| share.token().map_or(1, |token| taken_by(token.mode()));
        let permits = self.total().map_or(0, |_| self.live(now).map(takes).sum());
        let last = self.live(now).map(|share| share.expires).max().unwrap_or(self.expires);
        let left = |end: u64| Duration::from_millis(end - now);
        Outcome::Shared {
            leases: small(self.live(now).map(|_| 1).sum()),
            permits: small(permits),
            first: left(self.soonest(now)),
            last: left(last),
        }
    }

    /// When the first of its shares ends.
    pub(super) fn soonest(&self, now: u64) -> u64 {
        self.live(now).map(|share| share.expires).min().unwrap_or(self.expires)
    }
}

/// How many permits a mode is about, if it is.
pub(super) fn total_of(mode: Mode) -> Option<u32> {
    match mode {
        Mode::Permits { total, .. } => Some(total),
        _ => None,
    }
}

/// How many permits a share takes.
pub(super) fn taken_by(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { take, .. } => u64::from(take),
        _ => 1,
    }
}

impl Node {
    /// Has the share of a token end now, as if its time were over. Returns whether it has one.
    pub fn lapse(&mut self, key: &LockKey, token: Token, micros: u64) -> bool {
        let now = micros / 1_000;
        let Some(group) = self.groups.get_mut(key).filter(|group| group.expires >= now) else { return false };
        let Some(share) = group.share_of(token).filter(|share| share.expires >= now) else { return false };
        share.expires = 1;
        self.audit.gives_up(key, token, now, None);
        self.settle(key, now);
        true
    }

    /// The group at a key, unless all its shares are over.
    pub(super) fn group(&self, key: &LockKey, now: u64) -> Option<&Group> {
        let counts_dead = self.has(NodeMutant::DeadShareCounts);
        let is_live = |group: &&Group| group.expires >= now && (counts_dead || group.live(now).next().is_some());
        self.groups.get(key).filter(is_live)
    }

    /// When the share of a token ends, if it has one that is live.
    pub(super) fn end_of_share(&self, key: &LockKey, token: Token, now: u64) -> Option<u64> {
        let group = self.groups.get(key).filter(|group| group.expires >= now)?;
        group.live(now).find(|share| share.holder == Holder::Ours(token)).map(|share| share.expires)
    }

    /// Whether a group has room for another share.
    pub(super) fn has_room(&self, group: &Group, mode: Mode, now: u64) -> bool {
        let (Some(total), Some(of)) = (total_of(mode), group.total()) else {
            return group.mode == mode;
        };
        let weight = |mode| if self.has(NodeMutant::WeightIgnored) { 1 } else { taken_by(mode) };
        let counts = |share: &&Entry| share.expires >= now || self.has(NodeMutant::DeadShareCounts);
        let shares = group.shares.iter().filter(counts);
        let taken: u64 = shares.filter_map(|share| share.token()).map(|token| weight(token.mode())).sum();
        let one_more = u64::from(self.has(NodeMutant::OneTooMany));
        total == of && taken + weight(mode) <= u64::from(total) + one_more
    }

    /// Gives a token a share of the group at a key, or a new one if the key is free. Returns its fencing token.
    pub(super) fn join(
        &mut self,
        key: &LockKey,
        token: Token,
        share: Entry,
        clock: u64,
        call: &mut Call,
    ) -> Result<u64, BackendError> {
        let mode = token.mode();
        let known = self.group(key, call.now).map(|group| group.fence).filter(|_| mode == Mode::Shared);
        let fence = match known.filter(|fence| *fence >= call.floor && !self.has(NodeMutant::SharedRaisesFence)) {
            Some(fence) => fence,
            None => self.take_fences_from(clock, key, 1, call)?.0,
        };
        self.refuses.more()?;
        if self.group(key, call.now).is_none() {
            let group = Group { mode, fence, shares: Vec::new(), expires: share.expires };
            self.groups.insert(key.clone(), group);
        }
        let keeps_dead = self.has(NodeMutant::DeadShareCounts);
        if let Some(group) = self.groups.get_mut(key) {
            (group.fence, group.expires) = (fence, group.expires.max(share.expires));
            if group.total().is_some() {
                group.mode = mode;
            }
            group.shares.retain(|old| (old.expires >= call.now || keeps_dead) && old.holder != share.holder);
            group.shares.push(share);
        }
        Ok(fence)
    }

    /// Pushes the end of a share out to a ttl from now, and never in. Returns what is left of it in ms; `None` without a share.
    pub(super) fn push_share_out(&mut self, renew: &Renew, now: u64) -> Result<Option<u64>, BackendError> {
        let Renew { key, token, .. } = renew;
        let Some(ends) = self.end_of_share(key, *token, now) else { return Ok(None) };
        let (left, ttl) = (ends - now, ms(renew.ttl));
        if left >= ttl {
            return Ok(Some(left));
        }
        self.refuses.more()?;
        let raises_all = self.has(NodeMutant::RenewalRaisesAll);
        if let Some(group) = self.groups.get_mut(key) {
            group.expires = group.expires.max(now + ttl);
            for share in group.shares.iter_mut() {
                if share.holder == Holder::Ours(*token) || raises_all && share.expires >= now {
                    share.expires = now + ttl;
                }
            }
        }
        Ok(Some(ttl))
    }

    /// Ends the share of a token at once, or at a time in ms.
    pub(super) fn end_share(&mut self, key: &LockKey, token: Token, at: Option<u64>, now: u64) {
        let ends_all = self.has(NodeMutant::GroupEndsWithFirst);
        if let Some(group) = self.groups.get_mut(key) {
            match (at, group.share_of(token)) {
                (Some(at), Some(share)) => (share.expires, share.kept) = (at, true),
                _ => group.shares.retain(|share| share.holder != Holder::Ours(token)),
            }
            if ends_all && let Some(soonest) = group.live(now).map(|share| share.expires).min() {
                group.expires = soonest;
                return;
            }
        }
        self.settle(key, now);
    }

    /// Has a group's key expire with the last share that is live, and removes it without one.
    pub(super) fn settle(&mut self, key: &LockKey, now: u64) {
        let Some(group) = self.groups.get_mut(key) else { return };
        match group.live(now).map(|share| share.expires).max() {
            Some(last) if last > now => group.expires = last,
            // A time that is not ahead deletes the key, with the shares that end just now.
            _ => {
                let ended = self.groups.remove(key).into_iter().flat_map(|group| group.shares);
                for token in ended.filter_map(|share| share.token()) {
                    self.audit.gives_up(key, token, now, None);
                }
            }
        }
    }
}
