//! Looks over the node's shoulder: an account of its own of who waits, kept from the answers alone, by the sentences of
//! the protocol. It knows nothing of tickets and stamps.

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
    /// What was wrong, since it was last asked.
    pub(super) breaches: Vec<(&'static str, String)>,
}

#[derive(Debug)]
struct Waiter {
    token: Token,
    asked: u64,
    life: u64,
    window: u64,
    called: Option<u64>,
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
        for waiter in self.lines.get_mut(key).into_iter().flatten() {
            waiter.lapsed |= !waiter.is_live(now, channels);
        }
    }

    /// The place of a token was called; again means nothing.
    pub(super) fn called(&mut self, key: &LockKey, token: Token, now: u64) {
        if let Some(waiter) = self.find(key, token) {
            waiter.called.get_or_insert(now);
        }
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
        // Somebody of whom nobody knows when he came.
        let mut others = line.iter().filter(|waiter| waiter.token != *token && waiter.is_live(now, channels));
        let unsure = self.blind || others.any(|waiter| waiter.lapsed) || lapsed && line.len() > 1;
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
            Outcome::Queued { .. } if unsure => {}
            Outcome::Queued { .. } => match first {
                None => self.breaches.push(("nobody-first", format!("{key}: queued at {now} ms behind nobody live"))),
                Some(first) if first.called.is_none() => {
                    self.breaches
                        .push(("not-called", format!("{key}: queued at {now} ms behind one who is not called")));
                }
                Some(_) => {}
            },
            Outcome::Busy { .. } => {}
            _ => return,
        }
        let Some(place) = place else { return };
        let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (life, window, channel) = (millis(place.life), millis(place.window), Arc::clone(&place.channel));
        let waiter = Waiter { token: *token, asked: now, life, window, called: None, channel, lapsed };
        match self.lines.entry(key.clone()).or_default().iter_mut().find(|known| known.token == *token) {
            Some(known) => *known = waiter,
            None => self.lines.entry(key.clone()).or_default().push(waiter),
        }
    }
}

impl Waiter {
    fn is_live(&self, now: u64, channels: &BTreeMap<Arc<str>, usize>) -> bool {
        now < self.asked + self.life
            && self.called.is_none_or(|called| now <= called + self.window)
            && (self.channel.is_empty() || channels.contains_key(&self.channel))
    }
}
