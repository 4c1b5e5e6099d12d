//! Looks over the node's shoulder: an account of its own of who waits, kept from the answers alone, by the sentences of
//! the protocol. It knows nothing of tickets.

mod shares;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use lock_core::{
    backend::{Acquire, Outcome, Place, Release, Token},
    key::LockKey,
};

use self::shares::Account;
use super::node::{Holder, ms as millis};

/// Who waits for which key, in the order of coming.
#[derive(Clone, Debug, Default)]
pub(super) struct Audit {
    lines: BTreeMap<LockKey, Vec<Waiter>>,
    /// Who has which key.
    accounts: BTreeMap<LockKey, Account>,
    /// Whether the clock was set, so that nobody can say who is live.
    blind: bool,
    /// Whether the key was granted to somebody since the node looked at it.
    has_granted: bool,
    /// The largest number that was drawn for a key, by a grant or an acquire.
    numbers: BTreeMap<LockKey, u64>,
    /// For how long a key may be kept for a waiter at most, in ms: one that can be told, and one that cannot.
    pub(super) longest: [u64; 2],
    /// The longest time that a place and a grant to it take together, in ms.
    pub(super) longest_place: u64,
    /// Keys that had expired, or were deleted by another library, and were taken without a look at their queue, and with which number: in that gap a newcomer may
    /// come first.
    pub(super) in_gaps: BTreeSet<(LockKey, u64)>,
    /// By how many numbers the counter may be ahead of the clock.
    pub(super) lead: u64,
    /// What was wrong, since it was last asked.
    pub(super) breaches: Vec<(&'static str, String)>,
    /// What was done for whom, since it was last asked.
    pub(super) done: Vec<Done>,
}

/// What was seen of a key.
#[derive(Debug)]
pub(super) struct Moved {
    line: Vec<Waiter>,
    account: Option<Account>,
    number: u64,
    blind: bool,
}

/// What a node has done for a holder.
#[derive(Clone, Debug)]
pub(super) struct Done {
    pub(super) key: LockKey,
    pub(super) holder: Holder,
    pub(super) what: What,
}

/// What that was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It has the key until a time by the node's clock, in ms.
    Set(u64),
    /// It was given numbers: the first, and how many.
    Numbers(u64, u64),
}

#[derive(Clone, Debug)]
struct Waiter {
    token: Token,
    asked: u64,
    life: u64,
    /// For how long the key is to be kept for it.
    lasts: u64,
    channel: Arc<str>,
    /// Whether it was not live at some time: it may have been dropped, and come back at the end.
    lapsed: bool,
}

impl Audit {
    /// Forgets everything, as the node did.
    pub(super) fn forget(&mut self) {
        self.lines.clear();
        self.accounts.clear();
        self.numbers_may_lag();
    }

    /// Goes on from a copy of what the node had.
    pub(super) fn fail_over(&mut self, copy: Self) {
        self.lines = copy.lines;
        self.accounts = copy.accounts;
        self.done.clear();
        self.numbers_may_lag();
    }

    /// Takes over what a former node has seen.
    pub(super) fn outlive(&mut self, former: &Self) {
        self.longest_place = self.longest_place.max(former.longest_place);
        self.in_gaps.extend(former.in_gaps.iter().cloned());
    }

    /// Gives away what it has seen of a key, with its slot.
    pub(super) fn give(&mut self, key: &LockKey) -> Moved {
        let account = self.accounts.remove(key);
        let (line, number) = (self.lines.remove(key), self.numbers.remove(key));
        Moved { line: line.unwrap_or_default(), account, number: number.unwrap_or_default(), blind: self.blind }
    }

    /// Takes that over, by a clock that is so many ms ahead. By clocks that are `apart` nobody can say who is live.
    pub(super) fn take(&mut self, key: &LockKey, moved: Moved, by: i64, apart: bool) {
        let Moved { line, account, number, blind } = moved;
        self.lines.insert(key.clone(), line);
        self.numbers.insert(key.clone(), number);
        self.blind |= blind;
        if apart {
            self.all_lapsed(Some(key));
        }
        if let Some(account) = account {
            self.accounts.insert(key.clone(), account.moved(by));
        }
    }

    /// Forgets what it has seen of keys that are not the node's own.
    pub(super) fn drop_strangers(&mut self, is_own: impl Fn(&LockKey) -> bool) {
        self.lines.retain(|key, _| is_own(key));
        self.accounts.retain(|key, _| is_own(key));
    }

    /// Something is done for a holder.
    pub(super) fn does(&mut self, key: &LockKey, holder: Holder, what: What) {
        self.done.push(Done { key: key.clone(), holder, what });
    }

    /// A token is given numbers.
    pub(super) fn gives(&mut self, key: &LockKey, token: Token, (first, size): (u64, u64)) {
        self.does(key, Holder::Ours(token), What::Numbers(first, size));
    }

    /// The counter has lost what it was ahead of the clock: less than 1 ms, or what an aim allows.
    fn numbers_may_lag(&mut self) {
        self.numbers.values_mut().for_each(|number| *number = number.saturating_sub(self.lead));
    }

    /// The queue of a key was lost, or of all keys that somebody waits: all may be passed over, and come back.
    pub(super) fn all_lapsed(&mut self, key: Option<&LockKey>) {
        let lines = self.lines.iter_mut().filter(|(name, _)| key.is_none_or(|key| *name == key));
        lines.flat_map(|(_, line)| line).for_each(|waiter| waiter.lapsed = true);
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

    /// The key was granted to the place of a token, which is gone with it: for so many ms, with a block of numbers. `mute`
    /// says that nobody can be told at present.
    pub(super) fn granted(
        &mut self,
        key: &LockKey,
        token: Token,
        (now, lasts): (u64, u64),
        (fences, floor): ((u64, u64), u64),
        mute: bool,
        channels: &BTreeMap<Arc<str>, usize>,
    ) {
        self.has_granted = true;
        self.takes(key, (token, None), (now, now + lasts), fences, floor);
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
            let waiter = &line[mine];
            // Where nobody can be told, nobody knows who could.
            (waiter.lapsed || waiter.is_in_time(now)) && (mute || waiter.can_be_told(channels))
        });
        // A grant that cannot be told is kept until the place would have ended.
        let asked_for = mine.map(|mine| if mute { line[mine].lasts.max(line[mine].life) } else { line[mine].lasts });
        if let Some(asked_for) = asked_for.filter(|asked_for| lasts > *asked_for) {
            let message = format!("{key}: granted for {lasts} ms to a place that asked for {asked_for} ms");
            self.breaches.push(("kept-too-long", message));
        }
        if !is_live && !self.blind {
            self.breaches
                .push(("granted-to-nobody", format!("{key}: granted at {now} ms to a place that is not live")));
        }
        self.left(key, token);
    }

    /// Numbers were drawn for a token of a key: larger ones than any before, also after a loss of data, as far as clocks agree.
    pub(super) fn drew(&mut self, key: &LockKey, token: Token, (fence, size): (u64, u64)) {
        self.gives(key, token, (fence, size));
        let last = self.numbers.entry(key.clone()).or_default();
        if fence <= *last && !self.blind {
            self.breaches.push(("number-falls", format!("{key}: {fence} is drawn after {last}")));
        }
        *last = fence + size - 1;
    }

    /// A grant is told.
    pub(super) fn told(&mut self, key: &LockKey, is_set: bool) {
        if !is_set {
            self.breaches.push(("told-unset", format!("{key}: a grant was told, and the key is not set")));
        }
    }

    /// A release was executed: one that is quiet grants nobody.
    pub(super) fn released(&mut self, release: &Release) {
        if release.quiet && self.has_granted {
            self.breaches.push(("quiet-grant", format!("{}: a quiet release granted it", release.key)));
        }
    }

    /// Records how long a place and a grant to it may last, whether it was made or not.
    pub(super) fn may_last(&mut self, place: &Place) {
        self.longest_place = self.longest_place.max(millis(place.life) + millis(place.lasts));
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
        (was_free, is_free, waits): (bool, bool, bool),
        outcome: Outcome,
        (now, floor): (u64, u64),
        channels: &BTreeMap<Arc<str>, usize>,
    ) {
        let Acquire { key, token, place, .. } = acquire;
        if let Outcome::Held { fence, block, .. } = outcome {
            let times = (now, now + millis(acquire.ttl));
            self.takes(key, (*token, acquire.from), times, (fence, u64::from(block)), floor);
        }
        self.judge_terms(acquire);
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
                if let Some(first) = first.filter(|_| was_free && acquire.from != Some(*token) && !self.blind) {
                    let message = format!("{key}: took it past a live place that was asked for at {} ms", first.asked);
                    self.breaches.push(("barging", message));
                }
                // Its place is left to end by itself if nobody is known to wait.
                if waits {
                    self.left(key, *token)
                } else {
                    self.lapsed(key, *token)
                }
                return;
            }
            Outcome::Busy { .. } if is_free && !self.has_granted => {
                self.breaches.push(("nobody-first", format!("{key}: a free key was refused at {now} ms for nobody")));
                return;
            }
            // A place that could not be written stays as it was.
            Outcome::Busy { position: Some(_), .. } => {}
            _ => return,
        }
        let Some(place) = place else { return };
        let (life, lasts, channel) = (millis(place.life), millis(place.lasts), Arc::clone(&place.channel));
        let waiter = Waiter { token: *token, asked: now, life, lasts, channel, lapsed };
        match self.lines.entry(key.clone()).or_default().iter_mut().find(|known| known.token == *token) {
            Some(known) => *known = waiter,
            None => self.lines.entry(key.clone()).or_default().push(waiter),
        }
    }

    /// A place asks for no more time than it may cost the others if its owner is silent: what its round trips are worth,
    /// and no more than its ttl, or the 100 ms of every grant.
    fn judge_terms(&mut self, acquire: &Acquire) {
        let Some(place) = &acquire.place else { return };
        self.may_last(place);
        let (lasts, ttl) = (millis(place.lasts), millis(acquire.ttl).max(100));
        let most = self.longest[usize::from(place.channel.is_empty())].min(ttl);
        if lasts > most {
            let message = format!("{}: a place wants the key kept for {lasts} ms, and {most} are enough", acquire.key);
            self.breaches.push(("kept-too-long", message));
        }
    }
}

impl Waiter {
    fn is_live(&self, now: u64, channels: &BTreeMap<Arc<str>, usize>) -> bool {
        self.is_in_time(now) && self.can_be_told(channels)
    }

    fn is_in_time(&self, now: u64) -> bool {
        now < self.asked + self.life
    }

    /// Whether a push reaches its owner, or it comes by itself.
    fn can_be_told(&self, channels: &BTreeMap<Arc<str>, usize>) -> bool {
        self.channel.is_empty() || channels.contains_key(&self.channel)
    }
}
