//! The state of one node; pure.
//!
//! Answers do not come in the order of the requests, so what is known of a token carries the sending time of its request, and an older
//! answer changes nothing. Releases that the node has not answered wait in a [`CleanUp`] of its own.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    time::Duration,
};

use super::asked::{Asked, Way};
use crate::{
    backend::{
        Acquire, Answer, Batch, Operation, Place, Release, Renew, Replied, Token,
        cleanup::{CleanUp, Doubt, PendingRelease, Try},
    },
    clock::Moment,
    key::LockKey,
    ttl::{MIN_TTL, Ttl},
};

/// The state of a node, and the operations that it still has to be sent.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Whether its last answer did not come.
    pub(super) silent: bool,
    /// Whether it can call this process.
    pub(super) listening: bool,
    /// How long its answers take over an open connection, smoothed.
    pub(super) round_trip: Option<Duration>,
    /// The same without noise.
    pub(super) shortest: Shortest,
    /// Whether it takes much longer than a majority of the others: it is not waited for, and keeps no places.
    pub(super) slow: bool,
    /// Tokens with acquires that it has not answered.
    pub(super) unanswered: HashMap<Token, Unanswered>,
    /// Until when it surely has a token. A lease that it may lack is put back by its next renewal, and does not count
    /// before: another may have held the key there.
    pub(super) surely: HashMap<Token, Possession>,
    /// Tokens that have a place there, as far as is known, and until when.
    pub(super) placed: HashMap<Token, Moment>,
    /// Releases that it has not answered, though the quorum may have.
    pub(super) pending: CleanUp,
    /// Their tokens, with the entry of each.
    pub(super) pending_tokens: HashMap<Token, usize>,
    /// Whether a call with some of them is in flight.
    pub(super) releasing: bool,
    /// When to ask it for a sign of life: its last answer did not come in time, so it is not known how slow it is.
    pub(super) probe: Option<Moment>,
    /// Leases to ask it for: its answer decides whether what this node or another one has of them counts. Until when the node keeps
    /// each in any case, if it has it; being asked does not make that longer. Several may share a key.
    pub(super) looks: BTreeMap<(LockKey, Token), Moment>,
    /// Whether it is being asked for leases, or for a sign of life.
    pub(super) looking: bool,
}

/// A token that a node has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Possession {
    pub(super) until: Moment,
    /// When the latest request was sent that found it there: answers do not come in the order of the requests.
    pub(super) found: Moment,
    /// When it was put back there. It counts once a majority of others is known to have had it then.
    pub(super) put_back: Option<Moment>,
}

/// Acquires of one token that a node may still execute.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unanswered {
    pub(super) doubt: Doubt,
    /// How many answers may still come.
    pub(super) under_way: u32,
    /// Whether one will not come.
    pub(super) lost: bool,
    /// Until when its key is to stay busy, if the token was released since they were sent.
    pub(super) over: Option<Moment>,
}

/// The shortest of the last round trips. Noise makes answers late and never early, so a busy machine hardly shows in it.
#[derive(Debug, Default)]
pub(super) struct Shortest {
    /// Of the last span of time, or shorter since.
    pub(super) known: Option<Duration>,
    /// That of this span, which began then, and of how many answers.
    current: Option<(Moment, Duration, u32)>,
}

impl Shortest {
    /// Returns whether it has changed: at once when an answer is quicker, and after a span of answers when all of them are slower.
    fn took(&mut self, round_trip: Duration, now: Moment) -> bool {
        let before = self.known;
        let (begun, shortest, answers) = self.current.unwrap_or((now, round_trip, 0));
        let (shortest, answers) = (shortest.min(round_trip), answers + 1);
        let is_over = answers >= SPAN_ANSWERS && now.since(begun) >= SPAN;
        self.current = (!is_over).then_some((begun, shortest, answers));
        self.known = if is_over { Some(shortest) } else { before.map(|known| known.min(round_trip)) };
        self.known != before
    }
}

impl Node {
    /// A place that this node can call, if it can call at all.
    pub(super) fn place(&self, place: Place) -> Place {
        if self.listening { place } else { Place { channel: "".into(), ..place } }
    }

    /// Whether a token has a place there, as far as is known.
    pub(super) fn has_place(&self, token: Token, now: Moment) -> bool {
        self.placed.get(&token).is_some_and(|until| *until > now)
    }

    /// Whether it may take a token by an acquire that it has not answered, or may have done so.
    pub(super) fn may_take(&self, token: Token, now: Moment) -> bool {
        self.unanswered.get(&token).is_some_and(|entry| entry.under_way > 0 || entry.doubt.until > now)
    }

    /// Records that an answer did not come in time.
    pub(super) fn was_late(&mut self, now: Moment) {
        self.probe.get_or_insert(now);
    }

    /// Records how long an answer took. The time of a request that waited for a connection does not count. Returns whether its
    /// shortest round trip has changed.
    pub(super) fn took(&mut self, round_trip: Duration, open: bool, now: Moment) -> bool {
        let average = |usual: Duration| (usual * 7 + round_trip) / 8;
        if open {
            self.round_trip = Some(self.round_trip.map_or(round_trip, average));
        }
        open && self.shortest.took(round_trip, now)
    }

    /// Records an acquire that is sent.
    pub(super) fn asks(&mut self, acquire: &Acquire, sent: Moment, epoch: u64) {
        let until = acquire.blocks_until(sent);
        let entry = self.unanswered.entry(acquire.token).or_insert(Unanswered {
            doubt: Doubt { until, unanswered_since: Some(epoch) },
            under_way: 0,
            lost: false,
            over: None,
        });
        entry.under_way += 1;
        entry.doubt.until = entry.doubt.until.max(until);
    }

    /// Records that an acquire which had waited for a connection has left in this epoch.
    pub(super) fn left_in(&mut self, token: Token, epoch: u64) {
        if let Some(entry) = self.unanswered.get_mut(&token)
            && entry.under_way == 1
            && !entry.lost
        {
            entry.doubt.unanswered_since = Some(epoch);
        }
    }

    /// Records that an acquire is no longer in flight. `known`: it was executed, or it never will be. Returns until when the key is to stay
    /// busy, if the token was released meanwhile.
    pub(super) fn settle(&mut self, token: Token, known: bool) -> Option<Moment> {
        let entry = self.unanswered.get_mut(&token)?;
        entry.under_way = entry.under_way.saturating_sub(1);
        entry.lost |= !known;
        let Unanswered { under_way, lost, over, .. } = *entry;
        if under_way == 0 && !lost {
            self.unanswered.remove(&token);
        }
        over
    }

    /// Records a release, and whether it was answered in this epoch. Returns what is in doubt still.
    pub(super) fn released(&mut self, token: Token, answered: bool, asked: &Asked, epoch: u64) -> Option<Doubt> {
        let entry = self.unanswered.get_mut(&token)?;
        let doubt = entry.doubt;
        // The order of requests that waited for a connection is not known.
        let came_after = asked.way.open && asked.way.epoch == epoch && doubt.unanswered_since == Some(epoch);
        if !answered || !(came_after || asked.sent >= doubt.until) {
            return Some(doubt);
        }
        entry.lost = false;
        if entry.under_way == 0 {
            self.unanswered.remove(&token);
        }
        None
    }

    /// Records that it has a token, for at least `ttl` from `sent` on, and since when if that is news. Returns what was known
    /// before.
    pub(super) fn has(
        &mut self,
        token: Token,
        sent: Moment,
        ttl: Duration,
        put_back: Option<Moment>,
    ) -> Option<Possession> {
        let until = Ttl::new(ttl).map_or(sent, |ttl| ttl.deadline(sent));
        let before = self.surely.get(&token).copied();
        let known = before.unwrap_or(Possession { until, found: sent, put_back });
        let (until, found) = (known.until.max(until), known.found.max(sent));
        self.surely.insert(token, Possession { until, found, put_back: put_back.or(known.put_back) });
        before
    }

    /// Records that a request which was sent at `sent` did not find a token.
    pub(super) fn lacks(&mut self, token: Token, sent: Moment) {
        if self.surely.get(&token).is_some_and(|known| known.found <= sent) {
            self.surely.remove(&token);
        }
    }

    /// Has it asked for a lease, unless it does not answer anyway: then the next renewal finds out.
    pub(super) fn look_for(&mut self, key: &LockKey, token: Token, until: Moment) {
        if !self.silent {
            self.looks.insert((key.clone(), token), until);
        }
    }

    pub(super) fn surely_has(&self, token: Token, now: Moment) -> bool {
        self.surely.get(&token).is_some_and(|known| known.until > now)
    }

    /// Has a release sent again that was not answered, or leaves a doubt: until what it is for has expired.
    pub(super) fn add_pending_release(
        &mut self,
        release: &Release,
        doubt: Option<Doubt>,
        sent: Moment,
        longest: Duration,
        now: Moment,
    ) {
        let mut pending = PendingRelease::at_once(release.key.clone(), release.token);
        (pending.place, pending.quiet) = (release.place, release.quiet);
        pending.keep_until = release.keeps_until(sent);
        let until = release.until.min(sent + longest);
        // A token in doubt may have been renewed since.
        let until = doubt.map_or(until, |doubt| until.max(doubt.until));
        let unanswered_since = doubt.filter(|doubt| doubt.until > now).and_then(|doubt| doubt.unanswered_since);
        if now < until {
            self.add_pending(pending, Doubt { until, unanswered_since }, now);
        }
    }

    pub(super) fn add_pending(&mut self, pending: PendingRelease, doubt: Doubt, now: Moment) {
        match self.pending_tokens.entry(pending.token) {
            Entry::Occupied(known) => self.pending.add(*known.get(), &pending, doubt),
            Entry::Vacant(unknown) => drop(unknown.insert(self.pending.push(pending, doubt, now))),
        }
    }

    /// Has the release of an acquire sent that was executed after its first release.
    pub(super) fn release_once_more(&mut self, acquire: &Acquire, keep_until: Moment, now: Moment) {
        let mut pending = PendingRelease::at_once(acquire.key.clone(), acquire.token).quietly();
        pending.keep_until = keep_until;
        // (Also if another release of it is pending: that may have been sent before.)
        self.pending.push(pending, Doubt { until: now + acquire.ttl, unanswered_since: None }, now);
    }

    /// Takes the releases that are due to be sent again. Each must be answered by [`releases_answered`](Self::releases_answered).
    pub(super) fn due(&mut self, now: Moment, most: usize) -> Option<Vec<Try>> {
        let Self { pending, pending_tokens, releasing, .. } = self;
        if *releasing {
            return None;
        }
        pending.forget_expired(now, |token| {
            pending_tokens.remove(&token);
        });
        let due = pending.due(now, most);
        *releasing = !due.is_empty();
        releasing.then_some(due)
    }

    /// Whether it is due to be asked for leases, or for a sign of life: by what [`take_looks`](Self::take_looks) says
    /// then. To be answered by [`looked`](Self::looked).
    pub(super) fn looks(&mut self, now: Moment) -> bool {
        let Self { probe, looks, looking, .. } = self;
        let due = !*looking && (!looks.is_empty() || probe.is_some_and(|at| at <= now));
        *looking |= due;
        due
    }

    /// Takes the questions with which the node is checked: about leases that it may have, or none.
    pub(super) fn take_looks(&mut self, sent: Moment, way: Way, most: usize) -> Batch {
        let mut batch = Batch::new();
        while batch.len() < most
            && let Some(((key, token), until)) = self.looks.pop_first()
        {
            let left = until.since(sent);
            // A request that waits for a connection may be executed after the release, and lengthen what that left.
            if way.open && left >= MIN_TTL {
                batch.push(Operation::Renew(Renew::new(key, token, left)));
            }
        }
        batch
    }

    /// Records that it was looked at, and whether it answered; when it was asked and when that was over. Returns whether
    /// it is heard again, and may have executed acquires late.
    pub(super) fn looked(&mut self, answered: bool, sent: Moment, now: Moment) -> bool {
        let is_back = answered && self.probe.is_some();
        self.looking = false;
        if !answered {
            self.looks.clear();
        }
        if self.probe.is_some() && answered {
            // The node may have become slower since its round trip was measured last.
            self.round_trip = self.round_trip.max(Some(now.since(sent)));
        }
        self.probe = self.probe.filter(|_| !answered).map(|_| now + PROBE);
        is_back && self.unanswered.values().any(|entry| entry.lost && entry.over.is_none())
    }

    /// Takes the answer to releases that were sent once more: when they were sent and when answered, and in which
    /// epoch.
    pub(super) fn releases_answered(
        &mut self,
        tries: Vec<Try>,
        result: &Replied<Answer>,
        (sent, now, epoch): (Moment, Moment, u64),
    ) {
        (self.silent, self.releasing) = (result.is_err(), false);
        if result.is_ok() {
            // The node may have become slower since its round trip was measured last.
            self.round_trip = self.round_trip.max(Some(now.since(sent)));
        }
        let mut outcomes = result.iter().flat_map(|answer| &answer.outcomes);
        for Try { entry, release } in tries {
            let answered = outcomes.next().is_some_and(Try::answered);
            let is_asked = |token| self.unanswered.get(&token).is_some_and(|entry| entry.under_way > 0);
            if self.pending.tried_beside(entry, answered.then_some(epoch), (sent, now), is_asked) {
                self.pending_tokens.remove(&release.token);
            }
        }
    }

    /// Forgets what has expired by itself, at a cost that spreads over the requests.
    pub(super) fn sweep(&mut self, now: Moment, longest: Duration) {
        if self.surely.len() == self.surely.capacity() {
            // An extension that it did not answer may keep a lease there for so much longer.
            self.surely.retain(|_, known| known.until + longest > now);
        }
        if self.placed.len() == self.placed.capacity() {
            self.placed.retain(|_, until| *until > now);
        }
        if self.unanswered.len() == self.unanswered.capacity() {
            self.unanswered.retain(|_, entry| entry.under_way > 0 || entry.doubt.until > now);
        }
    }
}

/// How long round trips are compared, at least, and how many: one that stalls must not make a node slow.
const SPAN: Duration = Duration::from_millis(500);
const SPAN_ANSWERS: u32 = 4;

/// The time between two questions to a node whose answer did not come in time.
const PROBE: Duration = Duration::from_millis(500);
