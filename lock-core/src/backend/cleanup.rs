//! Tokens that are over but may still be set in the backend; pure.
//!
//! A token comes here when its holder let go of it (a dropped guard), when its request was dropped or never answered,
//! and when its lease was lost. It is released until that is known to have worked, and no token that is in use is ever
//! here: a clean-up of a token in use would make two holders.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use slab::Slab;

use crate::{
    backend::{Outcome, Release, Replied, Token},
    clock::Moment,
    error::ErrorKind,
    key::LockKey,
};

/// The tokens to release, and when to try each again.
#[derive(Debug, Default)]
pub(crate) struct CleanUp {
    entries: Slab<Entry>,
    /// Entries that wait for their next try.
    waiting: BTreeSet<(Moment, usize)>,
    /// What was released last, and when that was answered: a server that takes over may not have heard of it. `None` for a store
    /// that no other one takes over from.
    lately: Option<VecDeque<(Moment, PendingRelease)>>,
    /// The epoch of a connection, and since when it is known that no request of an older one will be executed.
    settled: Option<(u64, Moment)>,
}

#[derive(Debug)]
struct Entry {
    pending: PendingRelease,
    doubt: Doubt,
    tries: u32,
    /// Until when the token is released again once that which is in flight is answered.
    again: Option<Moment>,
}

/// A token that is over, and how its key is to be left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingRelease {
    pub(crate) key: LockKey,
    pub(crate) token: Token,
    /// Until when the key stays busy all the same; [`AT_ONCE`] for one that is free at once.
    pub(crate) keep_until: Moment,
    /// Whether the token may have a place in the queue of the key.
    pub(crate) place: bool,
    /// Whether the key is granted to no waiter, since the token was not a lease: a majority of the nodes did not have it.
    pub(crate) quiet: bool,
}

/// The end of a key that is free as soon as its holder is done.
pub(crate) const AT_ONCE: Moment = Moment::from_origin(Duration::ZERO);

sets! { PendingRelease =>
    /// The end of a token that may have a place in the queue.
    pub(crate) with_place() => place = true;
    /// The end of a token that was no lease.
    pub(crate) quietly() => quiet = true;
}

impl PendingRelease {
    /// A key that is free at once.
    pub(crate) fn at_once(key: LockKey, token: Token) -> Self {
        Self { key, token, keep_until: AT_ONCE, place: false, quiet: false }
    }

    /// The request to send at the moment that `now` gives.
    pub(crate) fn release(&self, doubt: Doubt, now: Moment) -> Release {
        let mut release = Release::new(self.key.clone(), self.token);
        (release.place, release.quiet, release.until) = (self.place, self.quiet, doubt.until);
        if self.keep_until == AT_ONCE {
            return release;
        }
        // Redis counts whole milliseconds. Rounding down would end `at_least` too early, and a second machine could run the job.
        let left = self.keep_until.since(now).as_micros().div_ceil(1_000);
        let after = Duration::from_millis(u64::try_from(left).unwrap_or(u64::MAX));
        release.after(after)
    }
}

/// The condition under which a token can be forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    /// The latest moment until which a request for the token can block others, if it was executed in time.
    pub(crate) until: Moment,
    /// The epoch of the backend when the unanswered request was sent, or `None` if every request was answered.
    ///
    /// A release answered in the same epoch was executed after the request, and settles it. A request sent in an
    /// older epoch (over a connection that was replaced) may still be executed after the release.
    pub(crate) unanswered_since: Option<u64>,
}

/// A release that is sent for the list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Try {
    pub(crate) entry: usize,
    pub(crate) release: Release,
}

impl Doubt {
    /// The epoch of a request of which no release says when it was executed.
    pub(crate) const NO_EPOCH: u64 = u64::MAX;
}

impl Try {
    /// Whether a release was refused, and will be again.
    pub(crate) fn is_refused(result: &Replied<Outcome>) -> bool {
        result.as_ref().is_err_and(|error| {
            matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) && !error.may_have_happened()
        })
    }

    /// Whether this is an answer to a release: a wrong type is one too, since the token is not there.
    pub(crate) fn answered(result: &Replied<Outcome>) -> bool {
        result.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::WrongType)
    }
}

impl CleanUp {
    /// Takes a refusal for an answer if the token must have expired meanwhile: another release would be refused, too.
    pub(crate) fn refused(&mut self, entry: usize, now: Moment) -> bool {
        if self.entries.get(entry).is_some_and(|entry| now >= entry.doubt.until && entry.again.is_none()) {
            self.entries.remove(entry);
            return true;
        }
        self.tried_beside(entry, None, (now, now), |_| true)
    }

    /// Adds a token; it is due at once. Returns its entry.
    pub(crate) fn push(&mut self, pending: PendingRelease, doubt: Doubt, now: Moment) -> usize {
        let entry = self.entries.insert(Entry { pending, doubt, tries: 0, again: None });
        self.waiting.insert((now, entry));
        entry
    }

    /// Adds to an entry what else is known of its token: the key stays busy for as long as any of its releases says.
    pub(crate) fn add(&mut self, entry: usize, more: &PendingRelease, doubt: Doubt) {
        let Some(Entry { pending, doubt: known, .. }) = self.entries.get_mut(entry) else { return };
        pending.keep_until = pending.keep_until.max(more.keep_until);
        (pending.place, pending.quiet) = (pending.place | more.place, pending.quiet & more.quiet);
        known.until = known.until.max(doubt.until);
        known.unanswered_since = [known.unanswered_since, doubt.unanswered_since].into_iter().flatten().min();
    }

    /// Adds a token whose first release is sent now; it must be answered by [`tried_beside`](Self::tried_beside).
    pub(crate) fn begin(&mut self, pending: PendingRelease, doubt: Doubt, now: Moment) -> Try {
        let release = pending.release(doubt, now);
        Try { entry: self.entries.insert(Entry { pending, doubt, tries: 0, again: None }), release }
    }

    /// Whether an entry is about a token.
    pub(crate) fn is_of(&self, entry: usize, token: Token) -> bool {
        self.entries.get(entry).is_some_and(|entry| entry.pending.token == token)
    }

    /// Has the token of an entry released again until a moment, after the release that is in flight.
    pub(crate) fn release_again(&mut self, entry: usize, until: Moment) {
        if let Some(Entry { pending, again, .. }) = self.entries.get_mut(entry) {
            pending.place = true;
            *again = Some(again.map_or(until, |known| known.max(until)));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the next one was never tried: it is due.
    pub(crate) fn has_untried(&self) -> bool {
        self.waiting.first().is_some_and(|(_, entry)| self.entries[*entry].tries == 0)
    }

    /// The moment of the next try.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.waiting.first().map(|(at, _)| *at)
    }

    /// Takes at most `most` tries that are due; each must be answered by [`tried_beside`](Self::tried_beside).
    pub(crate) fn due(&mut self, now: Moment, most: usize) -> Vec<Try> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(&(at, entry)) = self.waiting.first()
            && at <= now
        {
            self.waiting.pop_first();
            let Entry { pending, doubt, .. } = &self.entries[entry];
            due.push(Try { entry, release: pending.release(*doubt, now) });
        }
        due
    }

    /// Records that no request that was sent before the connection of an epoch was up will be executed. Tokens that are only in
    /// doubt because of such a request are released at once, for the last time.
    pub(crate) fn settle(&mut self, epoch: u64, now: Moment) {
        self.settled = Some((epoch, now));
        let entries = &self.entries;
        let is_older = |entry: usize| entries[entry].doubt.unanswered_since.is_some_and(|since| since < epoch);
        self.waiting =
            self.waiting.iter().map(|&(at, entry)| (if is_older(entry) { at.min(now) } else { at }, entry)).collect();
    }

    /// Releases once more what was released just before, because the server may have forgotten that. From the first time on, what is
    /// released is kept for the next.
    pub(crate) fn release_lately_released(&mut self, now: Moment) {
        for (_, pending) in self.lately.replace(VecDeque::new()).into_iter().flatten() {
            self.push(pending, Doubt { until: now + LATELY, unanswered_since: None }, now);
        }
    }

    /// Notes the answer to a try, with the epoch in which it was `answered`, or that there is none. `is_asked` says whether a request with
    /// the token is in flight, which the backend may send again over the next connection.
    pub(crate) fn tried_beside(
        &mut self,
        entry: usize,
        answered: Option<u64>,
        (sent, now): (Moment, Moment),
        is_asked: impl FnOnce(Token) -> bool,
    ) -> bool {
        let Some(Entry { pending, doubt, tries, again }) = self.entries.get_mut(entry) else { return true };
        if answered.is_some()
            && let Some(until) = again.take()
        {
            // What was answered before is over with this release, and leaves what may come late.
            let until = doubt.unanswered_since.map_or(until, |_| doubt.until.max(until));
            *doubt = Doubt { until, unanswered_since: Some(Doubt::NO_EPOCH) };
        }
        // Not `>=`: a release that was sent in the same moment may have been sent before that was known.
        let came_last = |since: u64, epoch: u64| {
            self.settled.is_some_and(|(of, at)| since < of && of == epoch && sent > at) && !is_asked(pending.token)
        };
        let settled = match (answered, doubt.unanswered_since) {
            (Some(_), None) => true,
            // In the same epoch the connection kept the order of requests, so this release was executed after the request in
            // doubt. In a later epoch that request may be executed after this release; it is settled only by a release that was
            // sent after everything in doubt had expired.
            // A connection that the server has closed, and said so, carries no request that is executed later.
            (Some(epoch), Some(since)) => epoch == since || sent >= doubt.until || came_last(since, epoch),
            // No answer, but every earlier request was answered: whatever was set has expired by `until`, by itself.
            (None, None) => now >= doubt.until && again.is_none(),
            // An unanswered request may still be executed, however late, so only an answered release can settle it.
            (None, Some(_)) => false,
        };
        if settled {
            let Entry { pending, .. } = self.entries.remove(entry);
            if answered.is_some()
                && let Some(lately) = &mut self.lately
            {
                // Counted from the last release, because nobody can tell how long it takes until another server is found.
                while lately.front().is_some_and(|(at, _)| *at + LATELY <= now) || lately.len() >= MOST_LATELY {
                    lately.pop_front();
                }
                lately.push_back((now, pending));
            }
            return true;
        }
        // After an answer, only a request that is executed late can still set the token, which grows less likely with time. Without
        // an answer the key is probably still busy for others, so the pause stays short. A connection that is away is sought in a hurry
        // while requests ask for it, so a few releases ask often; a mass of them would cost too much.
        let longest = match answered {
            Some(_) => LONGEST_PAUSE,
            None if entry < HURRIED && now < doubt.until => HURRIED_RETRY,
            None => LONGEST_RETRY,
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << (2 * (*tries).min(8))).min(longest);
        *tries = tries.saturating_add(1);
        // The next try is not planned beyond `until`: the first release that is sent after that moment and answered is the last one,
        // so a longer pause would only keep the entry in memory, and a shutdown waiting.
        let at = if now < doubt.until { (now + pause).min(doubt.until) } else { now + pause };
        self.waiting.insert((at, entry));
        false
    }

    /// Tries everything again: for the next task, when the last one has ended and its tries with it.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.waiting = self.entries.iter().map(|(entry, _)| (now, entry)).collect();
    }

    /// Forgets tokens that have expired by themselves: for the end of the manager, when no caller waits for an answer.
    pub(crate) fn forget_expired(&mut self, now: Moment, mut forgotten: impl FnMut(Token)) {
        // An entry whose try is in flight is not among those that wait. It stays until its answer comes, which names the entry.
        let waiting = &mut self.waiting;
        waiting.retain(|(_, entry)| {
            let Entry { doubt, again, .. } = &self.entries[*entry];
            let keep = again.map_or(doubt.until, |again| again.max(doubt.until)) > now;
            if !keep {
                forgotten(self.entries.remove(*entry).pending.token);
            }
            keep
        });
    }
}

/// The pause after the first try; each is four times as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// How many releases are retried in a hurry until their key has expired: those of one call.
const HURRIED: usize = 64;

/// The longest pause of those.
const HURRIED_RETRY: Duration = Duration::from_millis(100);

/// The longest pause after a try that was not answered.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The longest pause after a try that was answered.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How much older than the last release those are that a server which takes over may not have. Replicas are seldom further behind.
const LATELY: Duration = Duration::from_secs(2);

/// How many of them are kept.
const MOST_LATELY: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn with(unanswered_since: Option<u64>) -> CleanUp {
        let mut list = CleanUp::default();
        let pending = PendingRelease::at_once(LockKey::new("k").unwrap(), Token::from_random(1));
        list.push(pending, Doubt { until: at(1_000), unanswered_since }, at(0));
        list
    }

    fn one(list: &mut CleanUp, now: Moment) -> usize {
        let due = list.due(now, 10);
        assert_eq!(due.len(), 1);
        due[0].entry
    }

    impl CleanUp {
        /// Notes the answer to a try, or that there is none, while no request asks for the token.
        pub(crate) fn tried(&mut self, entry: usize, answered: Option<u64>, sent: Moment, now: Moment) -> bool {
            self.tried_beside(entry, answered, (sent, now), |_| true)
        }
    }

    #[test]
    fn an_answered_release_of_an_answered_token_is_the_end() {
        let mut list = with(None);
        let entry = one(&mut list, at(0));
        assert!(list.due(at(0), 10).is_empty(), "a try in flight is not sent again");
        list.tried(entry, Some(7), at(0), at(1));
        assert!(list.is_empty());
    }

    #[test]
    fn a_token_whose_requests_were_answered_is_released_again_only_until_a_late_one_is_over() {
        let mut list = with(None);
        let entry = one(&mut list, at(0));
        list.release_again(entry, at(100));
        assert!(!list.tried(entry, Some(7), at(0), at(1)), "the late one may come after it");
        let entry = one(&mut list, at(100));
        assert!(list.tried(entry, Some(7), at(100), at(101)), "what was answered went with the first");
        let mut list = with(Some(3));
        let entry = one(&mut list, at(0));
        list.release_again(entry, at(100));
        assert!(!list.tried(entry, Some(7), at(100), at(101)), "another one may come late, too");
    }

    #[test]
    fn an_unanswered_request_of_the_same_epoch_is_settled_by_one_release() {
        let mut list = with(Some(7));
        let entry = one(&mut list, at(0));
        list.tried(entry, Some(7), at(0), at(1));
        assert!(list.is_empty());
    }

    #[test]
    fn after_a_reconnect_releases_go_on_until_one_is_sent_after_the_deadline() {
        let mut list = with(Some(7));
        let mut sent_at = Vec::new();
        let mut now = at(0);
        while !list.is_empty() {
            now = list.next().unwrap().max(now);
            let entry = one(&mut list, now);
            sent_at.push(now);
            list.tried(entry, Some(8), now, now);
        }
        assert_eq!(sent_at, [at(0), at(50), at(250), at(1_000)]);
    }

    #[test]
    fn a_release_that_is_sent_after_the_former_connection_was_killed_settles_its_requests() {
        let mut list = with(Some(7));
        let entry = one(&mut list, at(0));
        assert!(!list.tried_beside(entry, Some(8), (at(0), at(1)), |_| false));
        let planned = list.next();
        list.settle(8, at(2));
        assert!(list.next() < planned, "it is tried at once");
        let entry = one(&mut list, at(3));
        assert!(list.tried_beside(entry, Some(8), (at(3), at(4)), |_| false) && list.is_empty());
    }

    #[test]
    fn a_killed_connection_settles_nothing_else() {
        // A release that was in flight when the kill was answered; one that was answered over another connection; a request that
        // may be sent again; one of the new connection itself, and one of which nothing is known.
        for (since, answered, sent, is_asked) in
            [(7, 8, 2, false), (7, 9, 3, false), (7, 7 + 1, 3, true), (9, 8, 3, false), (Doubt::NO_EPOCH, 8, 3, false)]
        {
            let mut list = with(Some(since));
            list.settle(8, at(2));
            let entry = one(&mut list, at(3));
            assert!(!list.tried_beside(entry, Some(answered), (at(sent), at(4)), |_| is_asked), "{since} {answered}");
        }
    }

    #[test]
    fn what_was_released_lately_is_released_once_more_at_the_next_server() {
        let mut list = CleanUp::default();
        let release = |list: &mut CleanUp, now| {
            let pending = PendingRelease::at_once(LockKey::new("k").unwrap(), Token::from_random(1));
            list.push(pending, Doubt { until: at(9_000), unanswered_since: None }, at(now));
            let entry = one(list, at(now));
            assert!(list.tried(entry, Some(1), at(now), at(now)));
        };
        release(&mut list, 0);
        list.release_lately_released(at(1));
        assert!(list.is_empty(), "nothing is kept for a store that nobody has taken over");
        release(&mut list, 2);
        release(&mut list, 2_001);
        // The next server was found after a minute.
        list.release_lately_released(at(62_000));
        let due = list.due(at(62_000), 10);
        assert_eq!(due.len(), 2);
        assert!(due.iter().all(|due| list.tried(due.entry, Some(2), at(62_000), at(62_001))));
        release(&mut list, 70_000);
        list.release_lately_released(at(70_001));
        assert_eq!(list.entries.len(), 1, "the others were released too long before it");
    }

    #[test]
    fn a_bounded_number_of_releases_is_kept() {
        let mut list = CleanUp::default();
        list.release_lately_released(at(0));
        for number in 0..2 * MOST_LATELY as u128 {
            let pending = PendingRelease::at_once(LockKey::new("k").unwrap(), Token::from_random(number));
            let Try { entry, .. } = list.begin(pending, Doubt { until: at(0), unanswered_since: None }, at(0));
            list.tried(entry, Some(1), at(0), at(1));
        }
        list.release_lately_released(at(1));
        assert_eq!(list.entries.len(), MOST_LATELY);
    }

    #[test]
    fn a_token_in_doubt_stays_for_as_long_as_nothing_answers() {
        let mut list = with(Some(7));
        let entry = one(&mut list, at(5_000));
        list.tried(entry, None, at(5_000), at(6_000));
        assert!(!list.is_empty());
        list.forget_expired(at(6_000), |_| {});
        assert!(list.is_empty() && list.next().is_none());
    }

    #[test]
    fn releases_that_nothing_answers_are_retried_in_a_hurry_until_their_keys_have_expired() {
        let mut list = with(Some(7));
        let (mut sent_at, mut now) = (Vec::new(), at(0));
        while now < at(4_000) {
            now = list.next().unwrap().max(now);
            sent_at.push(now);
            for due in list.due(now, usize::MAX) {
                list.tried(due.entry, None, now, now);
            }
        }
        assert_eq!(sent_at[..4], [at(0), at(50), at(150), at(250)]);
        assert_eq!(sent_at.iter().filter(|sent| **sent < at(1_000)).count(), 11);
        assert_eq!(
            sent_at[11..],
            [at(1_000), at(2_000), at(3_000), at(4_000)],
            "an idle process lets a server come up"
        );

        let mut mass = CleanUp::default();
        for token in 0..1_000 {
            let pending = PendingRelease::at_once(LockKey::new("k").unwrap(), Token::from_random(token));
            mass.push(pending, Doubt { until: at(60_000), unanswered_since: Some(7) }, at(0));
        }
        for now in [0, 50, 150, 250, 350] {
            for due in mass.due(at(now), usize::MAX) {
                mass.tried(due.entry, None, at(now), at(now));
            }
        }
        assert_eq!(mass.due(at(450), usize::MAX).len(), HURRIED);
    }

    #[test]
    fn a_release_that_is_refused_ends_when_what_may_be_left_has_ended() {
        let mut list = with(Some(7));
        let entry = one(&mut list, at(0));
        assert!(!list.refused(entry, at(999)));
        let entry = one(&mut list, at(1_100));
        assert!(list.refused(entry, at(1_100)) && list.is_empty());
    }

    #[test]
    fn an_answered_token_is_left_to_expire_when_nothing_answers() {
        let mut list = with(None);
        let entry = one(&mut list, at(0));
        list.tried(entry, None, at(0), at(500));
        let entry = one(&mut list, at(550));
        list.tried(entry, None, at(550), at(1_000));
        assert!(list.is_empty());
    }
}
