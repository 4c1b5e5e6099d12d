//! Acquires: who may have a key, and what it is told.

use std::time::Duration;

use lock_core::{
    Mode,
    backend::{Acquire, BusyReason, Outcome, Token},
};

use super::{Call, Entry, Holder, Node, NodeMutant, Reply, What, busy, group::total_of, ms, setter};

/// What a token has of a key already.
struct Own {
    /// Its own lease of the key, or the one to take it from.
    held: Option<Entry>,
    /// When its own share ends.
    share: Option<u64>,
    /// The share to take over.
    other: Option<Token>,
}

impl Own {
    fn is_none(&self) -> bool {
        self.held.is_none() && self.share.is_none() && self.other.is_none()
    }
}

impl Node {
    /// Executes an acquire, and has the answer judged.
    pub(super) fn judged_acquire(&mut self, acquire: &Acquire, call: &mut Call, sender: Option<(usize, u64)>) -> Reply {
        let Acquire { key, from, .. } = acquire;
        let waits = call.now < self.waiting;
        let own = self.own(acquire, call.now);
        let was_free = self.held(key, call.now).is_none() && own.is_none();
        // Those that wait may share a key that is shared from now on.
        let downgraded = from.filter(|from| from.mode() != acquire.token.mode());
        let before = downgraded.map(|from| self.audit.gives_up(key, from, call.now, None));
        let is_free = was_free && !self.is_there(key, call.now);
        let has_place = waits && self.has_place(key, acquire.token, call.now);
        let reply = self.acquire(acquire, call, sender);
        match &reply {
            Ok(outcome) => {
                if !matches!(outcome, Outcome::Held { .. }) {
                    before.into_iter().for_each(|before| self.audit.takes_back(key, before));
                }
                let found = (was_free, is_free, waits);
                self.audit.acquired(acquire, found, *outcome, (call.now, call.floor), &self.channels);
                let is_held = matches!(outcome, Outcome::Held { .. });
                let was_alone =
                    own.held.is_some() || own.is_none() && has_place && !self.has(NodeMutant::TakerLetsNobodyIn);
                let was_twice = own.share.is_some() && own.other.is_some();
                if waits && is_held && (was_alone || was_twice) && !acquire.token.mode().is_exclusive() {
                    // Those behind it may share the key now.
                    self.grant(key, None, call);
                }
                let is_judged = if from.is_some() {
                    (downgraded.is_some() || was_twice) && is_held
                } else {
                    own.is_none() && (is_held || matches!(outcome, Outcome::Busy { .. }))
                };
                if waits && is_judged {
                    self.judge_head(key, call.now);
                }
            }
            // Without memory, what was to be shared may be lost.
            Err(_) if self.held(key, call.now).is_none() => {}
            Err(_) => before.into_iter().for_each(|before| self.audit.takes_back(key, before)),
        }
        reply
    }

    /// What a token has of a key before it acquires it.
    fn own(&self, acquire: &Acquire, now: u64) -> Own {
        let Acquire { key, token, from, .. } = acquire;
        let held = self.held(key, now);
        let share = self.end_of_share(key, *token, now).filter(|_| held.is_none());
        // Also beside its own share: this may be a repeat, and a late acquire of the other have come before it.
        let is_other = |from: &Token| {
            held.is_none()
                && from != token
                && from.mode() == token.mode()
                && self.end_of_share(key, *from, now).is_some()
        };
        let other = from.filter(is_other);
        let is_own = |entry: &Entry| entry.token().is_some_and(|holder| holder == *token || *from == Some(holder));
        Own { held: held.filter(is_own), share, other }
    }

    fn acquire(&mut self, acquire: &Acquire, call: &mut Call, sender: Option<(usize, u64)>) -> Reply {
        let Acquire { key, token, from, .. } = acquire;
        let mode = token.mode();
        let looks = call.now < self.waiting && !self.has(NodeMutant::Barging);
        let own = self.own(acquire, call.now);
        let mut is_late = false;
        if looks && from.is_none() && own.is_none() && self.held(key, call.now).is_none() {
            if self.has(NodeMutant::NoGrantInAcquire) {
                if self.comes_later(key, *token, call.now) {
                    let position = self.keep_place(acquire, call);
                    let remaining = Some(Duration::ZERO);
                    return Ok(Outcome::Busy { remaining, by: BusyReason::Holder, position });
                }
            } else {
                is_late = self.grant(key, Some(*token), call).is_late;
            }
        }
        if mode == Mode::Shared && self.has(NodeMutant::ReaderPassesWriter) {
            is_late = false;
        }
        let held = self.held(key, call.now);
        let mut may_take = match from {
            _ if !own.is_none() => true,
            Some(_) => false,
            None => held.is_none() && !is_late,
        };
        if let Some(group) = self.group(key, call.now).filter(|_| !mode.is_exclusive() && own.is_none())
            && held.is_none()
        {
            let (total, wanted) = (group.total(), total_of(mode));
            let is_other = total.is_some() && wanted.is_some() && total != wanted;
            let overwrites = is_other && self.has(NodeMutant::TotalOverwritten);
            may_take = may_take && (overwrites || self.has_room(group, mode, call.now));
        }
        if may_take && let Some(outcome) = self.take(acquire, &own, call, sender)? {
            return Ok(outcome);
        }
        if from.is_some() {
            return Ok(Outcome::Gone);
        }
        let position = self.keep_place(acquire, call);
        let looks = acquire.place.is_some() || call.now < self.waiting;
        let granted = self.granted_last(key, call.now).filter(|_| looks);
        Ok(match self.held(key, call.now) {
            Some(entry) => {
                let reserved = granted.is_some() && entry.token() == granted;
                busy(&Entry { reserved, ..entry }, call.now, position)
            }
            None => self.busy_group(acquire, granted, call.now, position),
        })
    }

    /// Has the token take the key; `None` if it turns out to be shared.
    fn take(
        &mut self,
        acquire: &Acquire,
        own: &Own,
        call: &mut Call,
        sender: Option<(usize, u64)>,
    ) -> Result<Option<Outcome>, lock_core::backend::BackendError> {
        let Acquire { key, token, ttl, block, .. } = acquire;
        let waits = call.now < self.waiting;
        let is_share = !token.mode().is_exclusive();
        let expires = call.now + ms(*ttl);
        let setter = setter(sender, *ttl);
        let (fence, size) = if is_share {
            let entry = Entry::new(*token, expires.max(own.share.unwrap_or(0)), setter);
            let fence = self.take_share(acquire, own, entry, call)?;
            self.audit.does(key, entry.holder, What::Set(entry.expires));
            (fence, 1)
        } else {
            let mine = own.held.filter(|entry| entry.holder == Holder::Ours(*token));
            let mine = mine.filter(|_| !self.has(NodeMutant::OwnAcquireShortens));
            let entry = Entry::new(*token, mine.map_or(0, |entry| entry.expires).max(expires), setter);
            let is_shared = own.is_none() && self.group(key, call.now).is_some();
            let is_shared = is_shared && !self.has(NodeMutant::WriterBesideReaders);
            if self.has(NodeMutant::DrawnLast) && self.refuses.more().is_ok() && !is_shared {
                self.put(key, entry);
            }
            let numbers = self.take_fences(key, u64::from(*block), call)?;
            self.refuses.more()?;
            if is_shared {
                return Ok(None);
            }
            self.put(key, entry);
            numbers
        };
        if waits && !self.has(NodeMutant::PlaceKeptOnTaking) {
            if self.granted_last(key, call.now) == Some(*token) {
                self.forget_grant(key);
            }
            self.remove_place(key, *token);
        }
        let block = u32::try_from(size).unwrap_or(u32::MAX);
        Ok(Some(Outcome::Held { fence, block, was_free: own.is_none() }))
    }

    fn take_share(
        &mut self,
        acquire: &Acquire,
        own: &Own,
        entry: Entry,
        call: &mut Call,
    ) -> Result<u64, lock_core::backend::BackendError> {
        let Acquire { key, token, .. } = acquire;
        let clock = self.count_from_clock(call.now);
        if let Some(held) = own.held {
            // It is the token to take it from.
            self.refuses.less()?;
            self.keys.remove(key);
            if self.has(NodeMutant::DowngradeLetsIn) && call.now < self.waiting {
                self.grant(key, None, call);
            }
            let joined = self.join(key, *token, entry, clock, call);
            if joined.is_err() && self.refuses.more().is_ok() {
                self.keys.insert(key.clone(), held);
            }
            return joined;
        }
        let fence = self.join(key, *token, entry, clock, call)?;
        if let Some(other) = own.other {
            self.end_share(key, other, None, call.now);
        }
        Ok(fence)
    }

    fn busy_group(&self, acquire: &Acquire, granted: Option<Token>, now: u64, position: Option<u32>) -> Outcome {
        let Some(group) = self.group(&acquire.key, now) else {
            // It was granted, and nobody could be told.
            return Outcome::Busy { remaining: Some(Duration::ZERO), by: BusyReason::Holder, position };
        };
        let mode = acquire.token.mode();
        let other = group.total().filter(|total| total_of(mode).is_some_and(|wanted| wanted != *total));
        // The first that are given back may be enough.
        let until = if group.total().is_some() && other.is_none() { group.soonest(now) } else { group.expires };
        // Where there is room, it is for those who wait first.
        let comes_later = !mode.is_exclusive() && self.has_room(group, mode, now);
        let is_granted = granted.is_some_and(|token| self.end_of_share(&acquire.key, token, now).is_some());
        let by = match (group.total(), total_of(mode)) {
            (Some(total), Some(_)) if other.is_some() => BusyReason::OtherTotal { total },
            (Some(_), Some(_)) => BusyReason::Permits,
            _ if comes_later || is_granted => BusyReason::Waiters,
            _ => BusyReason::Holder,
        };
        Outcome::Busy { remaining: Some(Duration::from_millis(until - now)), by, position }
    }
}
