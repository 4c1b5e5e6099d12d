//! Who has a key, by what its node has answered: who may have it beside whom, with which number, and until when.

use std::{collections::BTreeMap, sync::Arc};

use lock_core::{
    Mode,
    backend::{Acquire, Renew, Token},
    key::LockKey,
};

use super::{Audit, Waiter, millis};
use crate::sim::network::name;

/// Those who have a key.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct Account {
    /// Each token, and when its time is over, in ms.
    leases: Vec<(Token, u64)>,
    /// The fencing token of those who share the key.
    fence: u64,
}

impl Account {
    fn live(&self, now: u64) -> impl Iterator<Item = (Token, u64)> {
        self.leases.iter().copied().filter(move |(_, ends)| *ends >= now)
    }

    /// The same by a clock that is so many ms ahead.
    pub(super) fn moved(mut self, by: i64) -> Self {
        self.leases.iter_mut().for_each(|(_, ends)| *ends = ends.saturating_add_signed(by));
        self
    }

    fn set(&mut self, token: Token, ends: u64, now: u64) {
        self.leases.retain(|(other, ends)| *other != token && *ends >= now);
        self.leases.push((token, ends));
    }

    /// Why a token may not have the key beside those who have it.
    fn in_the_way(&self, token: Token, now: u64) -> Option<&'static str> {
        let mode = token.mode();
        let mut taken = take_of(mode);
        for (other, _) in self.live(now).filter(|(other, _)| *other != token) {
            if !go_together(mode, other.mode()) {
                return Some("beside");
            }
            taken += take_of(other.mode());
        }
        matches!(mode, Mode::Permits { total, .. } if taken > u64::from(total)).then_some("too-many")
    }
}

impl Audit {
    /// A token gives up what it has of a key, at once or at a time in ms.
    pub(in crate::sim) fn gives_up(&mut self, key: &LockKey, token: Token, now: u64, at: Option<u64>) {
        let Some(account) = self.accounts.get_mut(key) else { return };
        account.leases.retain(|(other, ends)| *ends >= now && (*other != token || at.is_some()));
        let own = account.leases.iter_mut().filter(|(other, _)| *other == token);
        own.for_each(|(_, ends)| *ends = at.unwrap_or(*ends));
    }

    /// Nobody has a key any more.
    pub(in crate::sim) fn deleted(&mut self, key: &LockKey) {
        self.accounts.remove(key);
    }

    /// A lease is pushed out to a ttl from now.
    pub(in crate::sim) fn renewed(&mut self, renew: &Renew, now: u64) {
        let Some(account) = self.accounts.get_mut(&renew.key) else { return };
        if let Some((_, ends)) = account.leases.iter_mut().find(|(token, _)| *token == renew.token) {
            *ends = (*ends).max(now + millis(renew.ttl));
        }
    }

    /// A token has a key until a time at least, with a number: of its own, or that of those who share the key.
    pub(super) fn takes(
        &mut self,
        key: &LockKey,
        (token, from): (Token, Option<Token>),
        (now, until): (u64, u64),
        fences: (u64, u64),
        floor: u64,
    ) {
        let account = self.accounts.entry(key.clone()).or_default();
        // It may take the key from another. (One that is put back takes it from nobody.)
        let from = from.filter(|from| *from != token);
        account.leases.retain(|(other, _)| Some(*other) != from || other.mode() == Mode::Shared);
        let in_the_way = account.in_the_way(token, now);
        let concerns_shares = account.live(now).chain([(token, 0)]).any(|(token, _)| !token.mode().is_exclusive());
        let is_joined =
            token.mode() == Mode::Shared && account.live(now).any(|(other, _)| other.mode() == Mode::Shared);
        let own = account.live(now).find(|(other, _)| *other == token).map_or(0, |(_, ends)| ends);
        let known = account.fence;
        account.set(token, until.max(own), now);
        account.leases.retain(|(other, _)| Some(*other) != from);
        account.fence = fences.0;
        if let Some(rule) = in_the_way.filter(|_| concerns_shares && !self.blind) {
            let message = format!("{key}: {} is given to one more at {now} ms than may have it", token.mode());
            self.breaches.push((rule, message));
        }
        if fences.0 < floor && !self.blind {
            let message = format!("{key}: {} has the number {}, and {floor} was asked for", token.mode(), fences.0);
            self.breaches.push(("below-floor", message));
        }
        if !is_joined || floor > known {
            self.drew(key, token, fences);
            return;
        }
        self.gives(key, token, fences);
        if fences.0 != known && !self.blind {
            let message = format!("{key}: one who shares it has the number {}, and the others {known}", fences.0);
            self.breaches.push(("shared-fence", message));
        }
    }

    /// A free key was taken by a command, without a look at those who wait.
    pub(in crate::sim) fn takes_free(&mut self, acquire: &Acquire, now: u64) {
        let account = self.accounts.entry(acquire.key.clone()).or_default();
        account.set(acquire.token, now + millis(acquire.ttl), now);
    }

    /// Each share of a key ends at its own time.
    pub(in crate::sim) fn judge_shares(&mut self, key: &LockKey, now: u64, shares: &[(Token, u64)]) {
        let Some(account) = self.accounts.get(key).filter(|_| !self.blind) else { return };
        let mut of_account = account.live(now).filter(|(token, _)| !token.mode().is_exclusive());
        let cut = of_account.find(|(token, ends)| !shares.iter().any(|(other, at)| token == other && at >= ends));
        let is_right =
            |(token, at): &&(Token, u64)| account.live(now).any(|(other, ends)| *token == other && *at <= ends);
        let kept = shares.iter().find(|share| !is_right(share));
        let mut breach = |rule, what: String| self.breaches.push((rule, format!("{key} at {now} ms: {what}")));
        if let Some((token, ends)) = cut {
            breach("share-cut", format!("the share of {}, which lasts until {ends} ms, is over", name(token)));
        } else if let Some((token, ends)) = kept {
            breach("share-kept", format!("the share of {}, which is over, lasts until {ends} ms", name(*token)));
        }
    }

    /// The first who waits may not have the key: else it would have been granted.
    pub(in crate::sim) fn judge_head(&mut self, key: &LockKey, now: u64, channels: &BTreeMap<Arc<str>, usize>) {
        let account = self.accounts.entry(key.clone()).or_default();
        // A late request may have taken the key with the token of a place, without a look at the queue: that place is left until
        // the next request of its token, and keeps nobody out.
        let has_come = |waiter: &&Waiter| account.live(now).any(|(token, _)| token == waiter.token);
        let line = self.lines.get(key).into_iter().flatten().filter(|waiter| !has_come(waiter));
        let first = line.into_iter().find(|waiter| waiter.lapsed || waiter.is_live(now, channels));
        let Some(first) = first.filter(|first| !first.lapsed && !self.blind) else { return };
        if account.in_the_way(first.token, now).is_none() {
            let message = format!("{key}: at {now} ms a place asked for at {} ms is left, and fits", first.asked);
            self.breaches.push(("left-out", message));
        }
    }
}

/// Whether leases in two modes may have a key at once, if it has permits enough.
fn go_together(one: Mode, other: Mode) -> bool {
    match (one, other) {
        (Mode::Permits { total, .. }, Mode::Permits { total: others, .. }) => total == others,
        _ => one == Mode::Shared && other == Mode::Shared,
    }
}

/// How many permits a mode takes.
fn take_of(mode: Mode) -> u64 {
    match mode {
        Mode::Permits { take, .. } => u64::from(take),
        _ => 1,
    }
}
