//! The items of a batch, one after the other: all but acquires.

use std::time::Duration;

use lock_core::{
    backend::{Acquire, Operation, Outcome, Release, Renew, Token},
    key::LockKey,
};

use super::{Call, Entry, Holder, Node, NodeMutant, Reply, busy, ms, setter};
use crate::sim::audit::What;

impl Node {
    /// Executes what goes by the script.
    pub(super) fn script(&mut self, batch: &[Operation], call: &mut Call, sender: Option<(usize, u64)>) -> Vec<Reply> {
        if let [Operation::Acquire(acquire)] = batch {
            self.draw_in_vain(acquire, call);
        }
        let all_or_none = batch.iter().any(|it| matches!(it, Operation::Acquire(acquire) if acquire.all_or_none));
        let mut is_refused = false;
        let mut outcomes = Vec::with_capacity(batch.len());
        for operation in batch {
            let outcome = if is_refused { Ok(Outcome::Gone) } else { self.one(operation, call, sender) };
            is_refused |= all_or_none && !matches!(outcome, Ok(Outcome::Held { .. }));
            outcomes.push(outcome);
        }
        for key in std::mem::take(&mut call.deleted_last) {
            self.keys.remove(&key);
        }
        if is_refused {
            for (operation, outcome) in batch.iter().zip(&mut outcomes) {
                if let (Operation::Acquire(acquire), Ok(Outcome::Held { was_free: true, .. })) = (operation, &outcome) {
                    self.give_back(acquire, call);
                    *outcome = Ok(Outcome::Gone);
                }
            }
        }
        outcomes
    }

    /// A call that takes one key with a token of its own draws the number before it finds that the key is shared.
    fn draw_in_vain(&mut self, acquire: &Acquire, call: &mut Call) {
        let Acquire { key, token, block, from, .. } = acquire;
        let is_quick = token.mode().is_exclusive() && from.is_none() && call.now >= self.waiting;
        if is_quick && self.held(key, call.now).is_none() && self.is_there(key, call.now) {
            let clock = self.count_from_clock(call.now);
            self.draw(u64::from(*block), clock, call).ok();
        }
    }

    /// Gives back what was taken with others that were not free.
    fn give_back(&mut self, acquire: &Acquire, call: &mut Call) {
        let Acquire { key, token, .. } = acquire;
        if self.has(NodeMutant::AllOrNoneKeepsSome) {
            return;
        }
        self.audit.look(key, call.now, &self.channels);
        self.audit.gives_up(key, *token, call.now, None);
        match token.mode().is_exclusive() {
            true => drop(self.keys.remove(key)),
            false => self.end_share(key, *token, None, call.now),
        }
        if call.now < self.waiting {
            self.grant(key, None, call);
        }
        self.judge_shares(key, call.now);
    }

    pub(super) fn one(&mut self, operation: &Operation, call: &mut Call, sender: Option<(usize, u64)>) -> Reply {
        if let Operation::Acquire(Acquire { key, .. })
        | Operation::Release(Release { key, .. })
        | Operation::Force { key, .. } = operation
        {
            self.audit.look(key, call.now, &self.channels);
        }
        let waits = call.now < self.waiting;
        let reply = match operation {
            Operation::Acquire(acquire) => self.judged_acquire(acquire, call, sender),
            Operation::Renew(renew) => {
                let reply = self.renew(renew, call);
                self.came(renew, &reply, sender, call.now);
                if let Ok(Outcome::Renewed { .. }) = &reply {
                    self.audit.renewed(renew, call.now);
                }
                reply
            }
            Operation::Release(release) => {
                let after = Some(ms(release.after)).filter(|after| *after > 0).map(|after| call.now + after);
                let before = self.audit.gives_up(&release.key, release.token, call.now, after);
                let reply = self.release(release, call);
                if reply.is_err() {
                    self.audit.takes_back(&release.key, before);
                }
                self.audit.released(release);
                if waits && !release.quiet {
                    self.judge_head(&release.key, call.now);
                }
                reply
            }
            Operation::Inspect { key } => Ok(match (self.held(key, call.now), self.group(key, call.now)) {
                (Some(entry), _) => busy(&Entry { reserved: false, ..entry }, call.now, None),
                (None, Some(group)) => group.inspected(call.now),
                (None, None) => Outcome::Gone,
            }),
            Operation::Force { key, foreign } => self.force(key, *foreign, call),
            _ => Ok(Outcome::Gone),
        };
        self.judge_shares(operation.key(), call.now);
        reply
    }

    /// Compares those who share a key with what they were answered.
    fn judge_shares(&mut self, key: &LockKey, now: u64) {
        let group = self.groups.get(key).filter(|group| group.expires >= now);
        let shares = group.into_iter().flat_map(|group| group.live(now));
        let shares: Vec<_> = shares.filter_map(|share| Some((share.token()?, share.expires))).collect();
        self.audit.judge_shares(key, now, &shares, group.map(|group| group.expires));
    }

    /// Nobody is left to wait who comes first and may have the key.
    pub(super) fn judge_head(&mut self, key: &LockKey, now: u64) {
        let is_foreign = matches!(self.held(key, now), Some(Entry { holder: Holder::Foreign(_), .. }));
        if !is_foreign && self.refuses == super::Refuses::Nothing {
            self.audit.judge_head(key, now, &self.channels);
        }
    }

    /// Takes note of who renews what was granted to it: it holds without having asked for it.
    fn came(&mut self, renew: &Renew, reply: &Reply, sender: Option<(usize, u64)>, now: u64) {
        let Ok(Outcome::Renewed { .. }) = reply else { return };
        let share = self.groups.get_mut(&renew.key).and_then(|group| group.share_of(renew.token));
        // What expired before the key was shared is there still, and nobody's.
        let held = self.keys.get_mut(&renew.key).filter(|entry| entry.expires >= now);
        if let Some(entry) = held.or(share) {
            entry.renewed = true;
            entry.setter = entry.setter.or_else(|| setter(sender, renew.ttl));
        }
    }

    fn force(&mut self, key: &LockKey, foreign: bool, call: &mut Call) -> Reply {
        match self.held(key, call.now) {
            Some(Entry { holder: Holder::Foreign(_), .. }) if !foreign => Ok(Outcome::Gone),
            None if self.group(key, call.now).is_none() => Ok(Outcome::Gone),
            _ => {
                self.refuses.less()?;
                self.audit.deleted(key);
                self.keys.remove(key);
                self.groups.remove(key);
                if call.now < self.waiting {
                    self.grant(key, None, call);
                    self.judge_head(key, call.now);
                }
                Ok(Outcome::Released)
            }
        }
    }

    fn renew(&mut self, renew: &Renew, call: &mut Call) -> Reply {
        let Renew { key, token, .. } = renew;
        let left = match self.held(key, call.now) {
            None => self.push_share_out(renew, call.now)?,
            Some(entry) => self.push_out(renew, entry, call.now)?,
        };
        let Some(left) = left else { return Ok(Outcome::Gone) };
        let holder = self.held(key, call.now).map_or(Holder::Ours(*token), |entry| entry.holder);
        self.audit.does(key, holder, What::Set(call.now + left));
        let drawn = match renew.block {
            0 => None,
            block => self.take_fences(key, u64::from(block), call).ok(),
        };
        if let Some(numbers) = drawn {
            self.audit.gives(key, *token, numbers);
        }
        let (fence, block) = (drawn.map(|(fence, _)| fence), drawn.map_or(0, |(_, size)| size));
        let block = u32::try_from(block).unwrap_or(u32::MAX);
        Ok(Outcome::Renewed { remaining: Duration::from_millis(left), fence, block })
    }

    /// Pushes an expiry out to a ttl from now, and never in. Returns what is left in ms; `None` for another token.
    fn push_out(
        &mut self,
        renew: &Renew,
        entry: Entry,
        now: u64,
    ) -> Result<Option<u64>, lock_core::backend::BackendError> {
        if entry.holder != Holder::Ours(renew.token) && !self.has(NodeMutant::RenewWithoutTokenCheck) {
            return Ok(None);
        }
        let (left, ttl) = (entry.expires - now, ms(renew.ttl));
        if left < ttl || self.has(NodeMutant::RenewalShortens) {
            self.refuses.less()?;
            self.set_expiry(&renew.key, now + ttl);
        }
        Ok(Some(left.max(ttl)))
    }

    fn release(&mut self, release: &Release, call: &mut Call) -> Reply {
        let Release { key, token, .. } = release;
        let waits = call.now < self.waiting;
        let (grants, late) = (
            waits && (!release.quiet || self.has(NodeMutant::QuietGrants)) && !self.has(NodeMutant::NoGrantInRelease),
            self.has(NodeMutant::ReleaseGrantsToItself),
        );
        let mut left = Ok(());
        let mut was_granted = false;
        if waits {
            if !late {
                left = self.leave(key, *token);
            }
            if left.is_ok() {
                self.audit.left(key, *token);
            }
            was_granted = self.granted_last(key, call.now) == Some(*token);
        } else {
            self.audit.lapsed(key, *token);
        }
        let held = self.held(key, call.now);
        let mine = held.is_some_and(|entry| {
            entry.holder == Holder::Ours(*token) || self.has(NodeMutant::ReleaseWithoutTokenCheck)
        });
        let is_share = held.is_none() && left.is_ok() && self.end_of_share(key, *token, call.now).is_some();
        let after = ms(release.after);
        if is_share {
            if after > 0 {
                self.refuses.more()?
            } else {
                self.refuses.less()?
            }
            self.end_share(key, *token, (after > 0).then_some(call.now + after), call.now);
        } else if mine {
            self.refuses.less()?;
            match after {
                0 if !waits && self.has(NodeMutant::DeletedLast) => {
                    self.keys.remove(key);
                    call.deleted_last.push(key.clone());
                }
                0 => drop(self.keys.remove(key)),
                after => {
                    self.set_expiry(key, call.now + after);
                    self.keys.entry(key.clone()).and_modify(|entry| entry.kept = true);
                }
            }
        }
        let passed = grants && self.held(key, call.now).is_none() && self.grant(key, None, call).is_given;
        if waits && late {
            left = self.leave(key, *token);
        }
        if was_granted && !passed {
            self.forget_grant(key);
        }
        if mine || is_share { Ok(Outcome::Released) } else { left.map(|()| Outcome::Gone) }
    }

    /// Removes that a key was granted to the token that it was granted to last.
    pub(super) fn forget_grant(&mut self, key: &LockKey) {
        if let Some(queue) = self.queues.get_mut(key) {
            queue.granted = None;
        }
    }

    /// The token that a key was granted to last, until it has come.
    pub(super) fn granted_last(&self, key: &LockKey, now: u64) -> Option<Token> {
        self.queues.get(key).filter(|queue| queue.expires >= now)?.granted
    }
}
