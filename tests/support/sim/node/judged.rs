//! The operations of a batch, and what the journal and the judge are told of each.

use lock_core::{
    backend::{Acquire, Grant, Operation, Outcome, Release, Renew, Token},
    key::LockKey,
};

use super::{Holder, Node, Note, Push, Refuses, Reply, Run, ms, setter};
use crate::sim::audit::What;

/// How a key was found by an operation.
struct Found {
    /// Whether somebody may wait.
    waits: bool,
    /// Whether it was free, and whether nobody had it but others who share it.
    is_free: bool,
    was_free: bool,
    /// Whether the token of an acquire, or the one to take the key from, had it; and whether both did.
    is_own: bool,
    was_twice: bool,
    /// The places, and when they end, in ms.
    places: Vec<(Token, u64)>,
    /// Those whose shares end just now.
    ending: Vec<Token>,
    /// Who gives way if a lease is put back.
    reserved: Option<Token>,
}

impl Node {
    /// Executes what goes by the script.
    pub(super) fn script(&mut self, batch: &[Operation], run: &mut Run<'_>) -> Vec<Reply> {
        self.store.begin(batch, run.now * 1_000);
        if let [Operation::Acquire(acquire)] = batch {
            self.draw_in_vain(acquire, run);
        }
        let all_or_none = batch.iter().any(|it| matches!(it, Operation::Acquire(acquire) if acquire.all_or_none));
        let mut is_refused = false;
        let mut outcomes = Vec::with_capacity(batch.len());
        for operation in batch {
            let outcome = if is_refused { Ok(Outcome::Gone) } else { self.one(operation, run) };
            is_refused |= all_or_none && !matches!(outcome, Ok(Outcome::Held { .. }));
            outcomes.push(outcome);
        }
        for (operation, outcome) in batch.iter().zip(&mut outcomes).filter(|_| is_refused) {
            if let (Operation::Acquire(acquire), Ok(Outcome::Held { was_free: true, .. })) = (operation, &outcome) {
                self.give_back(acquire, run);
                *outcome = Ok(Outcome::Gone);
            }
        }
        outcomes
    }

    /// A call that takes one key with a token of its own draws the number before it finds that the key is shared.
    fn draw_in_vain(&mut self, acquire: &Acquire, run: &mut Run<'_>) {
        let Acquire { key, token, block, from, .. } = acquire;
        let is_quick = token.mode().is_exclusive() && from.is_none() && !self.store.waits(run.now * 1_000);
        let is_shared = self.is_there(key, run.now) && self.alone(key, run.now).is_none();
        if is_quick && is_shared && self.refuses == Refuses::Nothing {
            self.store.draw(*block, &run.call);
        }
    }

    /// Gives back what was taken with others that were not free.
    fn give_back(&mut self, acquire: &Acquire, run: &mut Run<'_>) {
        let Acquire { key, token, .. } = acquire;
        self.audit.look(key, run.now, &self.channels);
        self.audit.gives_up(key, *token, run.now, None);
        let found = self.find(key, None, run.now);
        self.store.give_back(acquire, &mut run.call);
        self.settle(key, &found, run.now);
        let grants = std::mem::take(&mut run.call.grants);
        self.granted(key, &found, grants, run);
        self.judge_shares(key, run.now);
    }

    /// Executes one operation.
    pub(super) fn one(&mut self, operation: &Operation, run: &mut Run<'_>) -> Reply {
        let (key, now) = (operation.key(), run.now);
        if matches!(operation, Operation::Acquire(_) | Operation::Release(_) | Operation::Force { .. }) {
            self.audit.look(key, now, &self.channels);
        }
        let found = self.find(key, if let Operation::Acquire(acquire) = operation { Some(acquire) } else { None }, now);
        let reply = self.perform(operation, run);
        self.settle(key, &found, now);
        let grants = std::mem::take(&mut run.call.grants);
        match (operation, &reply) {
            (Operation::Acquire(acquire), Ok(outcome)) => self.acquired(acquire, &found, *outcome, grants, run),
            (Operation::Release(release), Ok(outcome)) => self.released(release, &found, *outcome, grants, run),
            (Operation::Renew(renew), Ok(outcome)) => self.renewed(renew, *outcome, run),
            (Operation::Force { .. }, Ok(Outcome::Released)) => {
                self.audit.deleted(key);
                self.granted(key, &found, grants, run);
                if found.waits {
                    self.judge_head(key, now);
                }
            }
            _ => self.granted(key, &found, grants, run),
        }
        self.judge_shares(key, now);
        reply
    }

    fn find(&self, key: &LockKey, acquire: Option<&Acquire>, now: u64) -> Found {
        let has = |token: Token| self.store.end_of(key, token, now * 1_000).is_some();
        let own = acquire.is_some_and(|acquire| has(acquire.token));
        let goes_on = |from: &Token, token: Token| {
            *from != token && (from.mode().is_exclusive() || from.mode() == token.mode()) && has(*from)
        };
        let other = acquire.is_some_and(|it| it.from.is_some_and(|from| goes_on(&from, it.token)));
        let was_free = self.alone(key, now).is_none() && !own && !other;
        let places = self.store.queues.get(key).into_iter().flat_map(|queue| &queue.places);
        // What an acquire takes from another is not left to nobody.
        let from = acquire.and_then(|acquire| acquire.from);
        let shares = self.store.keys.get(key).into_iter().flat_map(|holders| &holders.shares);
        Found {
            waits: self.store.waits(now * 1_000),
            is_free: was_free && !self.is_there(key, now),
            was_free,
            is_own: own || other,
            was_twice: own && other,
            places: places.map(|waiting| (waiting.token, waiting.ends / 1_000)).collect(),
            ending: shares
                .filter(|share| share.ends == now * 1_000 && Some(share.token) != from)
                .map(|share| share.token)
                .collect(),
            reserved: self.store.reserved_for(key, now * 1_000),
        }
    }

    /// Shares that ended just now are gone with a group that was left to nobody else.
    fn settle(&mut self, key: &LockKey, found: &Found, now: u64) {
        for token in &found.ending {
            if self.store.end_of(key, *token, now * 1_000).is_none() {
                self.audit.gives_up(key, *token, now, None);
            }
        }
    }

    fn acquired(&mut self, acquire: &Acquire, found: &Found, outcome: Outcome, grants: Vec<Push>, run: &mut Run<'_>) {
        let Acquire { key, token, from, ttl, .. } = acquire;
        let is_held = matches!(outcome, Outcome::Held { .. });
        let at = |token: Token| found.places.iter().position(|(other, _)| *other == token).unwrap_or(usize::MAX);
        let comes_first = |grant: &Grant| !is_held || !found.is_own && at(grant.token) < at(*token);
        let (first, then) = grants.into_iter().partition(|(_, grant)| comes_first(grant));
        self.granted(key, found, first, run);
        let downgraded = from.filter(|from| from.mode() != token.mode());
        if is_held {
            let gives_way = found.reserved.filter(|_| *from == Some(*token) && !found.is_own);
            for from in downgraded.into_iter().chain(gives_way) {
                self.audit.gives_up(key, from, run.now, None);
            }
            let ends = self.store.end_of(key, *token, run.now * 1_000).unwrap_or(0);
            self.audit.does(key, Holder::Ours(*token), What::Set(ends / 1_000));
            self.note(key, *token, Note { setter: setter(run.sender, *ttl), ..Note::default() });
        }
        let was = (found.was_free, found.is_free, found.waits);
        self.audit.acquired(acquire, was, outcome, (run.now, run.call.floor), &self.channels);
        self.granted(key, found, then, run);
        let is_judged = if from.is_some() {
            (downgraded.is_some() || found.was_twice) && is_held
        } else {
            !found.is_own && (is_held || matches!(outcome, Outcome::Busy { .. }))
        };
        if found.waits && is_judged {
            self.judge_head(key, run.now);
        }
    }

    fn released(&mut self, release: &Release, found: &Found, outcome: Outcome, grants: Vec<Push>, run: &mut Run<'_>) {
        let Release { key, token, after, quiet, .. } = release;
        let after = Some(ms(*after)).filter(|after| *after > 0).map(|after| run.now + after);
        self.audit.gives_up(key, *token, run.now, after);
        if after.is_some() && outcome == Outcome::Released {
            let note = self.note_of(key, *token);
            self.note(key, *token, Note { kept: true, ..note });
        }
        if found.waits {
            self.audit.left(key, *token);
        } else {
            self.audit.lapsed(key, *token);
        }
        self.granted(key, found, grants, run);
        self.audit.released(release);
        if found.waits && !quiet {
            self.judge_head(key, run.now);
        }
    }

    /// A waiter that renews what was granted to it holds the key without having asked for it.
    fn renewed(&mut self, renew: &Renew, outcome: Outcome, run: &Run<'_>) {
        let Renew { key, token, ttl, .. } = renew;
        let Outcome::Renewed { remaining, fence, block } = outcome else { return };
        self.audit.does(key, Holder::Ours(*token), What::Set(run.now + ms(remaining)));
        if let Some(fence) = fence {
            self.audit.gives(key, *token, (fence, u64::from(block)));
        }
        let note = self.note_of(key, *token);
        let setter = note.setter.or_else(|| setter(run.sender, *ttl));
        self.note(key, *token, Note { renewed: true, setter, ..note });
        self.audit.renewed(renew, run.now);
    }

    /// A key was granted to places, each of which is to be told.
    fn granted(&mut self, key: &LockKey, found: &Found, grants: Vec<Push>, run: &mut Run<'_>) {
        let now = run.now;
        for (channel, grant) in grants {
            let token = grant.token;
            let mut lasts = ms(grant.lasts);
            let is_refused = self.mute && !channel.is_empty();
            if is_refused {
                // Its next check finds the grant, and comes before the place would have ended.
                let ends = found.places.iter().find(|(other, _)| *other == token).map_or(0, |(_, ends)| *ends);
                lasts = lasts.max(ends.saturating_sub(now));
                let shares = self.store.keys.get_mut(key).into_iter().flat_map(|holders| &mut holders.shares);
                let until = (now + lasts) * 1_000;
                shares.filter(|share| share.token == token).for_each(|share| share.ends = until);
                let granted = self.store.queues.get_mut(key).and_then(|queue| queue.granted.as_mut());
                if let Some(granted) = granted.filter(|(granted, _)| *granted == token) {
                    granted.1 = until;
                }
                run.mute = true;
            }
            self.note(key, token, Note { reserved: true, ..Note::default() });
            self.audit.does(key, Holder::Ours(token), What::Set(now + lasts));
            let fences = (grant.fence, u64::from(grant.block));
            self.audit.granted(key, token, (now, lasts), (fences, run.call.floor), self.mute, &self.channels);
            if !is_refused && !channel.is_empty() {
                self.audit.told(key, self.store.end_of(key, token, now * 1_000).is_some());
                run.pushes.push((channel, grant));
            }
        }
    }

    /// Compares those who share a key with what they were answered.
    fn judge_shares(&mut self, key: &LockKey, now: u64) {
        let holders = self.store.keys.get(key).filter(|_| self.alone(key, now).is_none());
        let shares = holders.into_iter().flat_map(|holders| holders.live(now * 1_000));
        let shares: Vec<_> = shares.map(|share| (share.token, share.ends / 1_000)).collect();
        self.audit.judge_shares(key, now, &shares);
    }

    /// No waiter that comes first and may have the key is left waiting.
    pub(in crate::sim) fn judge_head(&mut self, key: &LockKey, now: u64) {
        let is_foreign = self.alone(key, now).is_some_and(|(_, note)| note.foreign.is_some());
        if !is_foreign && self.refuses == Refuses::Nothing {
            self.audit.judge_head(key, now, &self.channels);
        }
    }
}
