//! The one waiter of a process that asks the backend for a key, and its pace; pure.

use std::time::Duration;

use crate::{
    backend::{
        BusyReason, Token,
        cleanup::{Doubt, PendingRelease},
    },
    clock::Moment,
    error::Error,
    key::LockKey,
};

/// The representative of a process in the queue of a key: a tenure-to-be.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// A new token for each tenure, kept for as long as its place or its unanswered request exists.
    pub(crate) token: Token,
    /// The condition under which the token can be forgotten.
    pub(crate) doubt: Doubt,
    /// How many requests it has sent, and for how many of them an answer may still come.
    pub(crate) sent: u32,
    pub(crate) in_flight: u32,
    /// Whether it has a place, as far as is known.
    placed: bool,
    /// Whether the key may hold its token.
    pub(crate) may_hold: bool,
    /// Whether the place that was asked for last can be called.
    pub(crate) callable: bool,
    /// Whether the backend has answered once.
    pub(crate) answered: bool,
    /// Whether a request waits to be sent.
    pub(crate) queued: bool,
    /// Whether that request confirms a grant, and has overtaken the others.
    pub(crate) confirms: bool,
    /// Whether its first request went past the queue, and no answer has come since: those behind it wait for that with their places.
    pub(crate) asks_without_place: bool,
    /// When the latest answered request was sent.
    pub(crate) heard: Moment,
    /// When the holder's ttl ends, as far as was said last; never if it has none or nothing was said.
    pub(crate) free_at: Moment,
    /// The error of its last request, if that failed and the next one may not.
    pub(crate) last_error: Option<Error>,
    /// How often it has polled, or failed.
    tries: u32,
    /// What was in the way, as the last answer said.
    pub(crate) by: BusyReason,
    /// Its place in the queue, as the last answer says.
    pub(crate) position: Option<u32>,
}

/// An answer that says that the key is busy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    /// The rest of the holder's ttl, if it has one.
    pub(crate) remaining: Option<Duration>,
    /// What is in the way.
    pub(crate) by: BusyReason,
    /// The place in the queue; none without a place.
    pub(crate) position: Option<u32>,
}

impl Candidate {
    pub(crate) fn new(token: Token) -> Self {
        Self {
            token,
            doubt: Doubt { until: Moment::from_origin(Duration::ZERO), unanswered_since: None },
            sent: 0,
            in_flight: 0,
            placed: false,
            may_hold: false,
            callable: false,
            answered: false,
            queued: false,
            confirms: false,
            asks_without_place: false,
            heard: Moment::from_origin(Duration::ZERO),
            free_at: Moment::NEVER,
            last_error: None,
            tries: 0,
            by: BusyReason::Holder,
            position: None,
        }
    }

    /// Whether a request is in flight, or waits to be sent.
    pub(crate) fn is_asking(&self) -> bool {
        self.queued || self.in_flight > 0
    }

    /// Records a request that is sent in an epoch of the backend, and can block others `until` a moment.
    pub(crate) fn sending(&mut self, until: Moment, epoch: u64) {
        (self.queued, self.confirms) = (false, false);
        self.sent += 1;
        self.in_flight += 1;
        self.doubt.until = self.doubt.until.max(until);
        // The oldest epoch stays: a release settles all requests only if it was answered in the epoch of the oldest one, since requests
        // of older connections may be executed after it.
        self.doubt.unanswered_since.get_or_insert(epoch);
    }

    /// Records an answer to the request that was sent at `sent`. It came in an epoch of the backend: requests of that
    /// epoch which were sent before it were executed before it. Of one that was sent after it nothing is known.
    pub(crate) fn answered(&mut self, sent: Moment, epoch: u64, repeated: bool) {
        self.answered = true;
        self.heard = self.heard.max(sent);
        if self.last_error.take().is_some() {
            self.tries = 0;
        }
        self.settle(epoch, repeated);
    }

    fn settle(&mut self, epoch: u64, repeated: bool) {
        self.in_flight = self.in_flight.saturating_sub(1);
        // An answer covers the older requests if all of them were sent in its epoch, where requests are executed in order. The only
        // request ever sent is covered by its own answer. If the batch was sent twice (`repeated`), the first sending may still be
        // executed, so its answer settles nothing.
        let covers = self.sent == 1 || self.doubt.unanswered_since == Some(epoch);
        if !repeated && self.in_flight == 0 && covers {
            self.doubt.unanswered_since = None;
        }
    }

    /// Records that a request sent at `sent` failed; `happened` says that it may have been, or may be, executed. Returns
    /// whether a later request was answered, so that the failure says nothing about the backend.
    pub(crate) fn failed(&mut self, sent: Moment, happened: bool) -> bool {
        if happened {
            self.in_flight = self.in_flight.saturating_sub(1);
        } else {
            // It surely did not happen, but that says nothing about the other requests: no epoch matches this one, so they stay in doubt.
            self.settle(Doubt::NO_EPOCH, false);
        }
        self.answered && sent < self.heard
    }

    /// How long it waits before it asks again after a failure. It keeps its place; a new connection has it ask at once.
    pub(crate) fn pause_after_error(&mut self, last_error: Error, jitter: f64) -> Duration {
        self.last_error = Some(last_error);
        let pause = grow(FIRST_RETRY, LONGEST_RETRY, self.tries);
        self.tries = self.tries.saturating_add(1);
        pause.mul_f64(0.5 + jitter / 2.0)
    }

    /// Goes on with another token, since the one that it had is over.
    pub(crate) fn begin_anew(&mut self, token: Token) {
        // The key is as busy as before, so `answered` stays: newcomers know that, and do not fail with the backend's next failure.
        let Self { tries, heard, free_at, by, .. } = *self;
        *self = Self { tries, heard, free_at, by, answered: true, ..Self::new(token) };
    }

    /// The token to release when the candidate gives up, or `None` if the backend surely has nothing of it.
    pub(crate) fn pending(&self, key: &LockKey) -> Option<(PendingRelease, Doubt)> {
        let left = self.placed || self.may_hold || self.doubt.unanswered_since.is_some();
        left.then(|| (PendingRelease::at_once(key.clone(), self.token).with_place(), self.doubt))
    }

    /// How long it waits before it asks again on its own account. `listening` says whether calls can come, and `jitter`
    /// lies in 0.0..1.0, so that waiters do not march in step.
    pub(crate) fn pause(&mut self, refusal: Refusal, listening: bool, jitter: f64) -> Duration {
        let Refusal { remaining, by, position } = refusal;
        let foreign = by == BusyReason::Foreign;
        // Once placed, always placed, as far as a release is concerned: an answer without a position does not prove that an earlier place
        // is gone, and a place that is left behind delays the others until it expires.
        let placed = position.is_some();
        self.position = position;
        self.placed |= placed;
        self.by = by;
        if placed && listening && !self.callable {
            // The place was made before messages could reach this process. Asking at once makes one that can be notified.
            return Duration::ZERO;
        }
        let near = self.is_near();
        let called = self.callable && placed && listening && !foreign;
        let pause = match (called, foreign) {
            (true, _) => return self.check(remaining, near, jitter),
            (false, false) => grow(FIRST, LONGEST, self.tries),
            (false, true) if near => grow(FIRST_FOREIGN, LONGEST_FOREIGN, self.tries),
            (false, true) => LONGEST_FOREIGN,
        };
        self.tries = self.tries.saturating_add(1);
        until_expiry(pause.mul_f64(0.5 + jitter / 2.0), remaining, near)
    }

    /// When a waiter that takes over its place checks that.
    pub(crate) fn check_at(&self, now: Moment) -> Moment {
        let remaining = (self.free_at < Moment::NEVER).then(|| self.free_at.since(now));
        now + until_expiry(CHECK, remaining, self.is_near())
    }

    fn is_near(&self) -> bool {
        self.position.is_none_or(|position| position <= NEAR)
    }

    fn check(&mut self, remaining: Option<Duration>, near: bool, jitter: f64) -> Duration {
        self.tries = 0;
        until_expiry(CHECK.mul_f64(0.75 + jitter / 2.0), remaining, near)
    }
}

fn grow(first: Duration, longest: Duration, tries: u32) -> Duration {
    first.saturating_mul(1 << tries.min(6)).min(longest)
}

/// A waiter near the front checks just after the holder's expiry, since no message tells of a key that expires.
fn until_expiry(pause: Duration, remaining: Option<Duration>, near: bool) -> Duration {
    match remaining {
        Some(remaining) if near => pause.min(remaining + Duration::from_millis(1)),
        _ => pause,
    }
}

/// Between two checks of a place that can be called, on average.
pub(crate) const CHECK: Duration = Duration::from_millis(500);
/// Between two checks of a place that can be called, at most.
pub(crate) const LONGEST_CHECK: Duration = Duration::from_millis(625);
/// How many places come when the holder's ttl is over, and ask a foreign holder often.
const NEAR: u32 = 3;
/// The first pause of a waiter that cannot be called.
const FIRST: Duration = Duration::from_millis(5);
/// The longest pause of a waiter that cannot be called.
const LONGEST: Duration = Duration::from_millis(80);
/// The first pause after a failure.
const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The longest pause after a failure.
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// The first pause while another library has the key.
const FIRST_FOREIGN: Duration = Duration::from_millis(25);
/// The longest pause while another library has the key.
const LONGEST_FOREIGN: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::fixture::at;
    use crate::ttl::Ttl;

    fn candidate() -> Candidate {
        Candidate { callable: true, ..Candidate::new(Token::from_random(1)) }
    }

    fn refusal(remaining: Option<Duration>, foreign: bool, position: Option<u32>) -> Refusal {
        Refusal { remaining, by: if foreign { BusyReason::Foreign } else { BusyReason::Holder }, position }
    }

    #[test]
    fn pauses_without_calls_grow_to_a_bound_and_keep_half_of_it_as_jitter() {
        let mut candidate = candidate();
        let pauses: Vec<_> = (0..10).map(|_| candidate.pause(refusal(None, false, Some(1)), false, 1.0)).collect();
        assert_eq!(pauses[0], FIRST);
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses[9], LONGEST);
        assert_eq!(candidate.pause(refusal(None, false, None), true, 0.0), LONGEST / 2);
    }

    #[test]
    fn bad_input_18_a_holder_without_ttl_is_polled_at_the_longest_pause() {
        let mut candidate = candidate();
        let last = (0..20).map(|_| candidate.pause(refusal(None, true, Some(1)), true, 1.0)).last();
        assert_eq!(last, Some(LONGEST_FOREIGN));
        assert_eq!(self::candidate().pause(refusal(None, true, Some(4)), true, 1.0), LONGEST_FOREIGN);
    }

    #[test]
    fn the_first_places_come_just_after_the_end_of_a_ttl() {
        let left = Duration::from_millis(3);
        for position in [1, 3] {
            let pause = candidate().pause(refusal(Some(left), false, Some(position)), true, 0.5);
            assert_eq!(pause, left + Duration::from_millis(1));
        }
        assert_eq!(candidate().pause(refusal(Some(left), false, Some(4)), true, 0.5), CHECK);
    }

    #[test]
    fn a_place_that_was_made_before_calls_could_come_is_made_anew_at_once() {
        let mut candidate = Candidate::new(Token::from_random(1));
        assert_eq!(candidate.pause(refusal(None, false, Some(1)), true, 1.0), Duration::ZERO);
    }

    #[test]
    fn a_ttl_that_a_stepped_clock_makes_endless_is_not_waited_for() {
        let pause = candidate().pause(refusal(Some(Duration::from_secs(3_602)), false, Some(1)), true, 1.0);
        assert!(pause <= CHECK.mul_f64(1.25));
    }

    #[test]
    fn an_answer_settles_the_requests_of_its_epoch_only() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let mut candidate = candidate();
        assert!(candidate.pending(&LockKey::new("k").unwrap()).is_none(), "nothing was sent");
        candidate.sending(ttl.end(at(0)), 1);
        candidate.sending(ttl.end(at(10)), 2);
        candidate.answered(at(0), 2, false);
        assert_eq!(candidate.doubt, Doubt { until: at(1_010), unanswered_since: Some(1) });
        candidate.answered(at(0), 1, true);
        assert_eq!(candidate.doubt.unanswered_since, Some(1), "a copy may have gone out before");
        candidate.answered(at(0), 1, false);
        assert_eq!(candidate.doubt.unanswered_since, None);
    }

    #[test]
    fn an_answer_says_nothing_of_a_request_that_was_sent_after_it_or_over_another_connection() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let twice = || {
            let mut candidate = candidate();
            candidate.sending(ttl.end(at(0)), 1);
            candidate.sending(ttl.end(at(10)), 1);
            candidate
        };
        let mut candidate = twice();
        assert!(!candidate.failed(at(0), false));
        assert_eq!(candidate.doubt.unanswered_since, Some(1), "the other one is in flight");
        let mut candidate = twice();
        candidate.answered(at(0), 1, false);
        assert_eq!(candidate.doubt.unanswered_since, Some(1), "it may be the answer to the first");
        candidate.answered(at(0), 1, false);
        assert_eq!(candidate.doubt.unanswered_since, None);
        let mut candidate = twice();
        candidate.in_flight = 0;
        candidate.answered(at(0), 2, false);
        assert_eq!(
            candidate.doubt.unanswered_since,
            Some(1),
            "the first may be executed over the old connection still"
        );
        let mut alone = self::candidate();
        alone.sending(ttl.end(at(0)), 1);
        alone.answered(at(0), 2, false);
        assert_eq!(alone.doubt.unanswered_since, None, "no other request was sent");
    }

    #[test]
    fn a_failure_of_a_request_older_than_an_answer_says_nothing_about_the_backend() {
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let mut candidate = candidate();
        candidate.sending(ttl.end(at(0)), 1);
        candidate.sending(ttl.end(at(10)), 1);
        candidate.answered(at(10), 1, false);
        assert!(candidate.failed(at(0), true));
        candidate.sending(ttl.end(at(20)), 1);
        assert!(!candidate.failed(at(20), true));
        assert_eq!(candidate.doubt.unanswered_since, Some(1), "it may be executed still");
    }

    #[test]
    fn pauses_after_failures_grow_to_a_second() {
        let mut candidate = candidate();
        let last_error = || Error::new(crate::ErrorKind::Backend, "acquire");
        let pauses: Vec<_> = (0..8).map(|_| candidate.pause_after_error(last_error(), 1.0)).collect();
        assert!(pauses.is_sorted() && pauses[0] == FIRST_RETRY && pauses[7] == LONGEST_RETRY, "{pauses:?}");
        candidate.answered(at(0), 1, false);
        assert!(candidate.last_error.is_none());
        assert_eq!(candidate.pause_after_error(last_error(), 0.0), FIRST_RETRY / 2);
    }
}
