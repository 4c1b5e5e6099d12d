//! Looks over the node's shoulder: an account of its own of who waits, kept from the answers alone, by the sentences of
//! the protocol. It knows nothing of tickets.

use std::{collections::BTreeMap, sync::Arc};

use lock_core::{
    backend::{Acquire, Outcome, Token},
    key::LockKey,
};

/// Who waits for which key, in the order of coming.
#[derive(Debug, Default)]
pub(super) struct Audit {
    lines: BTreeMap<LockKey, Vec<Waiter>>,
    /// Whether the clock was set, so that nobody can say who is live.
    blind: bool,
    /// Whether the key was granted to somebody since the node looked at it.
    has_granted: bool,
    /// What was wrong, since it was last asked.
    pub(super) breaches: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Waiter {
    token: Token,
    asked: u64,
    life: u64,
    channel: Arc<str>,
    /// Whether it was not live at some time: it may have been dropped, and come back at the end.
    lapsed: bool,
}

impl Audit {
    /// Forgets everything, as the node did.
    pub(super) fn forget(&mut self) {
        self.lines.clear();
    }

    /// Judges no more: the clock is set.
    pub(super) fn look_away(&mut self) {
        self.blind = true;
    }

    /// The node looks at a key, and may drop who is not live.
    pub(super) fn look(&mut self, key: &LockKey, now: u64, channels: &BTreeMap<Arc<str>, usize>) {
        self.has_granted = false;
        for waiter in self.lines.get_mut(key).into_iter().flatten() {
            waiter.lapsed |= !waiter.is_live(now, channels);
        }
    }

    /// The key was granted to the place of a token, which is gone with it.
    pub(super) fn granted(&mut self, key: &LockKey, token: Token, now: u64, channels: &BTreeMap<Arc<str>, usize>) {
        self.has_granted = true;
        let line = self.lines.entry(key.clone()).or_default();
        let mine = line.iter().position(|waiter| waiter.token == token);
        let before = mine.filter(|mine| !line[*mine].lapsed).unwrap_or(0);
        let first = line[..before].iter().find(|waiter| waiter.is_live(now, channels) && !waiter.lapsed);
        if let Some(first) = first.filter(|_| !self.blind) {
            let message = format!("{key}: granted past a live place that was asked for at {} ms", first.asked);
            self.breaches.push(("out-of-turn", message));
        }
        // What has ended once and was renewed is not judged by its end, but whether it can be told is known.
        let is_live = mine.is_some_and(|mine| {
            line[mine].is_live(now, channels) || line[mine].lapsed && line[mine].can_be_told(channels)
        });
        if !is_live && !self.blind {
            self.breaches
                .push(("granted-to-nobody", format!("{key}: granted at {now} ms to a place that is not live")));
        }
        self.left(key, token);
    }

    /// A token gave up its place.
    pub(super) fn left(&mut self, key: &LockKey, token: Token) {
        if let Some(line) = self.lines.get_mut(key) {
            line.retain(|waiter| waiter.token != token);
        }
    }

    /// A token is over, and its place is left to end by itself.
    pub(super) fn lapsed(&mut self, key: &LockKey, token: Token) {
        if let Some(waiter) = self.find(key, token) {
            waiter.lapsed = true;
        }
    }

    fn find(&mut self, key: &LockKey, token: Token) -> Option<&mut Waiter> {
        self.lines.get_mut(key)?.iter_mut().find(|waiter| waiter.token == token)
    }

    /// Judges the answer to an acquire, and takes note of it.
    pub(super) fn acquired(
        &mut self,
        acquire: &Acquire,
        was_free: bool,
        outcome: Outcome,
        now: u64,
        channels: &BTreeMap<Arc<str>, usize>,
    ) {
        let Acquire { key, token, place, .. } = acquire;
        let line = self.lines.entry(key.clone()).or_default();
        let mine = line.iter().position(|waiter| waiter.token == *token);
        let lapsed = mine.is_some_and(|mine| line[mine].lapsed);
        let before = match mine {
            Some(mine) if line[mine].lapsed => 0,
            Some(mine) => mine,
            None => line.len(),
        };
        let first = line[..before].iter().find(|waiter| waiter.is_live(now, channels) && !waiter.lapsed);
        match outcome {
            Outcome::Held { .. } => {
                // What was its own before is no taking.
                if let Some(first) = first.filter(|_| was_free && !self.blind) {
                    let message = format!("{key}: took it past a live place that was asked for at {} ms", first.asked);
                    self.breaches.push(("barging", message));
                }
                self.left(key, *token);
                return;
            }
            Outcome::Busy { .. } if was_free && !self.has_granted => {
                self.breaches.push(("nobody-first", format!("{key}: a free key was refused at {now} ms for nobody")));
            }
            Outcome::Busy { .. } => {}
            _ => return,
        }
        let Some(place) = place else { return };
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (life, channel) = (millis(place.life), Arc::clone(&place.channel));
        let waiter = Waiter { token: *token, asked: now, life, channel, lapsed };
        match self.lines.entry(key.clone()).or_default().iter_mut().find(|known| known.token == *token) {
            Some(known) => *known = waiter,
            None => self.lines.entry(key.clone()).or_default().push(waiter),
        }
    }
}

impl Waiter {
    fn is_live(&self, now: u64, channels: &BTreeMap<Arc<str>, usize>) -> bool {
        now < self.asked + self.life && self.can_be_told(channels)
    }

    /// Whether a push reaches its owner, or it comes by itself.
    fn can_be_told(&self, channels: &BTreeMap<Arc<str>, usize>) -> bool {
        self.channel.is_empty() || channels.contains_key(&self.channel)
    }
}
