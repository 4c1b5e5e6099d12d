//! Every request from its registration to its answer: what waits to be sent, what is in flight, and for whom.
//!
//! Requests that come while others are in flight share a call (group commit, as of a database's log).

use std::time::Duration;

use slab::Slab;

use super::{
    Queues,
    candidate::CHECK,
    in_flight::{self, BATCH, CallId, Counted, Item, Purpose, RoundTrip, SentCall, Transmits, Work},
    line,
};
use crate::{
    backend::{
        self, Answer, BackendError, Batch, Operation, Outcome, Outcomes, Replied, Token,
        cleanup::{Doubt, PendingRelease, Try},
    },
    clock::Moment,
    engine::{
        responder::Responder,
        schedule,
        tenure::{Renewing, block_for},
    },
    error::ErrorKind,
    key::LockKey,
};

impl Queues {
    // ---- registration

    /// Registers a call of its own.
    pub(crate) fn request(&mut self, batch: Batch, responder: Responder) {
        if !in_flight::is_limited_by_backend(&batch) {
            self.expect_answer(responder.at);
        }
        self.outbox.push_back(Item::Call(Box::new(batch), responder));
    }

    pub(super) fn request_release(&mut self, pending: PendingRelease, doubt: Doubt, responder: Responder) {
        self.expect_answer(responder.at);
        self.outbox.push_back(Item::Release(pending, doubt, responder));
    }

    /// Has requests that go unanswered looked for when one that was made at `made` is late.
    fn expect_answer(&mut self, made: Moment) {
        // All requests have the same limit, so a moment that is set already belongs to an earlier request.
        if self.answers_due == Moment::NEVER {
            self.answers_due = made + self.limits.answer;
        }
    }

    // ---- sending

    /// Whether a request that waits, or a release that was not tried, can leave now.
    pub(crate) fn can_send(&self) -> bool {
        match self.outbox.front() {
            Some(Item::Call(..)) => true,
            None if !self.cleanup.has_untried() => false,
            Some(_) | None => self.counted.leaves_room(self.calls_at_once, self.outbox.len()),
        }
    }

    /// How many requests wait to be sent.
    pub(crate) fn waiting(&self) -> usize {
        self.outbox.len()
    }

    /// Whether no call that requests share is in flight, and there is room for two.
    pub(crate) fn takes_two_calls(&self) -> bool {
        self.counted.sending == 0 && self.calls_at_once > 1
    }

    /// Whether renewals are due, and can leave now.
    pub(crate) fn can_renew(&self) -> bool {
        let at_once = self.calls_at_once.max(schedule::CALLS);
        !self.tenures.due.is_empty()
            && schedule::takes_another(self.counted.renewing, at_once, self.tenures.due.len(), schedule::BATCH)
    }

    /// When there is something to send next, except renewals. What shares calls waits until there is room for one.
    pub(super) fn next_to_send(&self) -> Moment {
        if !self.lists.is_empty() || self.has_messages() || matches!(self.outbox.front(), Some(Item::Call(..))) {
            return Moment::from_origin(Duration::ZERO);
        }
        if !self.counted.leaves_room(self.calls_at_once, self.outbox.len()) {
            return Moment::NEVER;
        }
        if !self.outbox.is_empty() || self.cleanup.has_untried() {
            return Moment::from_origin(Duration::ZERO);
        }
        self.cleanup.next().unwrap_or(Moment::NEVER)
    }

    /// Takes the renewals that are due.
    pub(crate) fn poll_renewals(&mut self, now: Moment) -> Transmits {
        let mut calls = Transmits::new();
        while self.can_renew() {
            let renewals = self.tenures.renewals(schedule::BATCH, now);
            if renewals.is_empty() {
                break;
            }
            let batch = renewals.iter().map(|renewal| Operation::Renew(renewal.request.clone())).collect();
            self.counted.renewing += 1;
            calls.push((self.register(Work::Renew(renewals), now), batch));
        }
        calls
    }

    /// Takes what is to be sent, except renewals.
    pub(crate) fn poll_transmit(&mut self, now: Moment, epoch: u64) -> Transmits {
        let mut calls = Transmits::new();
        loop {
            // No limit applies to calls of their own: waiting would gain nothing, and would hold up the requests behind them.
            while let Some((batch, work)) = self.own_call() {
                calls.push((self.register(work, now), batch));
            }
            if !self.counted.leaves_room(self.calls_at_once, self.outbox.len()) {
                return calls;
            }
            let (batch, work) = self.shared_call(now, epoch);
            if batch.is_empty() {
                return calls;
            }
            self.counted.sending += 1;
            calls.push((self.register(work, now), batch));
        }
    }

    fn register(&mut self, work: Work, sent: Moment) -> CallId {
        self.in_flight.insert(SentCall { sent, work })
    }

    /// Takes the first request if it has a call of its own. One that is no longer waited for is cancelled.
    fn own_call(&mut self) -> Option<(Batch, Work)> {
        loop {
            let Some(Item::Call(_, responder)) = self.outbox.front() else { return None };
            // A request whose limit has passed is answered already. It is not sent any longer, because its caller has gone on.
            let cancelled = responder.is_cancelled() || responder.is_answered();
            let Some(Item::Call(batch, responder)) = self.outbox.pop_front() else { unreachable!("it was looked at") };
            if cancelled {
                // Its waker may own a task, and that task a guard, so the waker is dropped when no lock is held.
                self.deferred.discard(responder.waker());
                continue;
            }
            return Some((Batch::clone(&batch), Work::Call(batch, responder)));
        }
    }

    /// Takes requests that share a call.
    fn shared_call(&mut self, now: Moment, epoch: u64) -> (Batch, Work) {
        // Releases come first: the next candidate for a key may be in the same call, and its acquire must find the key released. They
        // leave half of the call to requests, so that a mass of releases does not hold up the requests.
        let room = BATCH - self.outbox.len().min(BATCH / 2);
        let tries = self.cleanup.due(now, room);
        let mut batch = Batch::new();
        batch.extend(tries.iter().map(|entry| Operation::Release(entry.release.clone())));
        let purposes = self.send(&mut batch, now, epoch);
        (batch, Work::Send(tries, purposes))
    }

    /// Takes what waits to be sent `now`, up to a request with a call of its own, and adds it to a call.
    pub(super) fn send(&mut self, batch: &mut Batch, now: Moment, epoch: u64) -> Vec<Purpose> {
        let mut purposes = Vec::new();
        // Acquires of keys that are thought to be free come behind the rest, since the backend sends them in another way. Their own order
        // does not matter, because each has a key of its own.
        let (before, mut rest) = (batch.len(), 0);
        while batch.len() < BATCH
            && !matches!(self.outbox.front(), Some(Item::Call(..)))
            && let Some(item) = self.outbox.pop_front()
        {
            match item {
                Item::Ask(key, token) => {
                    let Some(request) = self.request_of(&key, token, now, epoch) else { continue };
                    purposes.push(Purpose::Ask(key, token, request.blocks_until(now)));
                    let expects_free = request.expects_free;
                    batch.push(Operation::Acquire(request));
                    if expects_free {
                        continue;
                    }
                }
                Item::Release(pending, doubt, responder) => {
                    // On the list from now on, so that it is not forgotten if the engine's task ends.
                    let Try { entry, release } = self.cleanup.begin(pending, doubt, now);
                    batch.push(Operation::Release(release));
                    purposes.push(Purpose::Release(entry, responder));
                }
                // Executed after the release of its tenure, it would extend a key that is left to expire (`at_least`).
                Item::Refill(refill) if !self.tenures.has(&refill) => continue,
                Item::Refill(refill) | Item::LastRenewal(refill) => {
                    batch.push(Operation::Renew(refill.request.clone()));
                    purposes.push(Purpose::Refill(refill));
                }
                Item::Call(..) => unreachable!("it was looked at"),
            }
            let last = purposes.len() - 1;
            if rest < last {
                batch.swap(before + rest, before + last);
                purposes.swap(rest, last);
            }
            rest += 1;
        }
        purposes
    }

    /// Makes the request that a candidate sends `now`. There is none if the candidate has given up, or if a confirmation has
    /// been sent before it.
    fn request_of(&mut self, key: &LockKey, token: Token, now: Moment, epoch: u64) -> Option<backend::Acquire> {
        let (waiter, candidate) = self.lines.candidate(key, token)?;
        if !candidate.queued {
            return None;
        }
        let first = candidate.sent == 0;
        let line::Waiter { terms, tries, .. } = *self.lines.waiter(waiter);
        let (waiters, holds) = self.lines.of(key).map_or((1, 0), |line| (line.length as usize, line.holds));
        let mut request = self.acquire(key, &terms, token, tries, block_for(waiters, holds), now);
        // A key with `at_least` ends by its expiry, each time. A request without the script would then pass the waiters of other
        // processes, so such keys always use the script.
        let free = terms.at_least.is_zero() && !self.recently_busy.was_busy(key, now);
        request.expects_free = first && waiters == 1 && free;
        if let Some((_, candidate)) = self.lines.candidate(key, token) {
            candidate.callable = self.listening;
            candidate.asks_without_place |= request.expects_free && terms.mode.is_exclusive();
            candidate.sending(request.blocks_until(now), epoch);
        }
        let jitter = self.jitter();
        self.set_timer(waiter, now + CHECK.mul_f64(0.75 + jitter / 2.0));
        Some(request)
    }

    // ---- answers

    /// Takes the answer to a call.
    pub(crate) fn handle_response(&mut self, call: CallId, result: Replied<Answer>, now: Moment, epoch: u64) {
        let Some(SentCall { sent, work }) = self.in_flight.try_remove(call) else { return };
        match work {
            Work::Renew(renewals) => {
                self.counted.renewing -= 1;
                self.renewals_answered(renewals, result, RoundTrip { sent, now, epoch, repeated: false });
            }
            Work::Send(tries, purposes) => {
                self.counted.sending -= 1;
                self.shared_answered(tries, purposes, result, RoundTrip { sent, now, epoch, repeated: false });
            }
            Work::Call(batch, responder) => {
                if responder.is_cancelled()
                    && let Ok(answer) = &result
                    && answer.out_of_order
                {
                    self.release_overtaken(&batch, &answer.outcomes, sent, now);
                }
                self.deferred.wake(responder.answer(result));
            }
        }
    }

    /// Releases what the acquires of a call may have taken after the releases of their tokens: its caller is gone.
    fn release_overtaken(&mut self, batch: &Batch, outcomes: &Outcomes, sent: Moment, now: Moment) {
        for (index, operation) in batch.iter().enumerate() {
            if let Operation::Acquire(acquire) = operation {
                // No release of this epoch need come after one that was not answered.
                let is_answered = outcomes.get(index).is_some_and(Result::is_ok);
                let unanswered_since = (!is_answered).then_some(Doubt::NO_EPOCH);
                let doubt = Doubt { until: acquire.blocks_until(sent), unanswered_since };
                self.release_stray(acquire.key.clone(), acquire.token, doubt, now);
            }
        }
    }

    fn renewals_answered(&mut self, renewals: Vec<Renewing>, result: Replied<Answer>, trip: RoundTrip) {
        let RoundTrip { sent, now, .. } = trip;
        // Sent again over a new connection, or not answered, it may have been executed after the release of its token. (So may a refill,
        // and the request of an `extend` that was dropped, which are much rarer.)
        let is_late = result.as_ref().is_ok_and(|answer| answer.repeated || answer.out_of_order);
        let is_silent = result.as_ref().is_err_and(BackendError::may_have_happened);
        let outcomes = match result {
            Ok(answer) => answer.outcomes,
            Err(error) => {
                let logged = now >= self.complaint;
                if logged {
                    self.complaint = now + COMPLAINTS;
                }
                self.deferred.failed.push((renewals.len(), error, logged));
                Outcomes::new()
            }
        };
        let mut outcomes = outcomes.into_iter();
        for renewal in renewals {
            let (outcome, is_unanswered) = match outcomes.next() {
                Some(Ok(outcome)) => (Some(outcome), false),
                // The key holds another value: it is no longer ours.
                Some(Err(error)) if error.kind() == ErrorKind::WrongType => (Some(Outcome::Gone), false),
                Some(Err(error)) => (None, error.may_have_happened()),
                None => (None, is_silent),
            };
            let token = renewal.request.token;
            let was_late = is_unanswered || is_late && matches!(outcome, Some(Outcome::Renewed { .. }));
            if was_late && let Some(kept) = self.kept.get(&token) {
                let until = now + renewal.request.ttl;
                let doubt = if is_unanswered {
                    // No release of this epoch need come after one that was not answered. One that comes when the key is free revives nothing.
                    Doubt { until: until.min(*kept), unanswered_since: Some(Doubt::NO_EPOCH) }
                } else {
                    Doubt { until, unanswered_since: None }
                };
                self.release_stray(renewal.request.key.clone(), token, doubt, now);
            }
            let jitter = self.jitter();
            let ended = self.tenures.renewed(&renewal, outcome, sent, now, jitter, &mut self.deferred);
            self.clean_up_ended(ended, now);
        }
    }

    fn shared_answered(&mut self, tries: Vec<Try>, purposes: Vec<Purpose>, result: Replied<Answer>, trip: RoundTrip) {
        let RoundTrip { sent, now, epoch, .. } = trip;
        let (repeated, out_of_order) =
            result.as_ref().map_or((false, false), |answer| (answer.repeated, answer.out_of_order));
        // Until a grant arrives again, waiters poll, because the server refuses to notify them.
        self.calls_refused |= result.as_ref().is_ok_and(|answer| answer.calls_refused);
        let (outcomes, error) = match result {
            Ok(answer) => (answer.outcomes, None),
            Err(error) => (Outcomes::new(), Some(error)),
        };
        let mut outcomes = outcomes.into_iter();
        for Try { entry, .. } in tries {
            let outcome = outcomes.next();
            if outcome.as_ref().is_some_and(Try::is_refused) {
                self.cleanup.refused(entry, now);
            } else {
                let answered = outcome.as_ref().is_some_and(Try::answered).then_some(epoch);
                self.cleanup.tried_beside(entry, answered, (sent, now), |token| is_asked(&self.in_flight, token));
            }
        }
        for purpose in purposes {
            let missing = || error.clone().unwrap_or_else(BackendError::missing);
            let outcome = outcomes.next().unwrap_or_else(|| Err(missing()));
            // An error that says that nothing was done, and never will be, leaves no token behind.
            let is_refused = outcome.as_ref().is_err_and(|error| !error.may_have_happened());
            if let Purpose::Ask(key, token, _) = &purpose
                && out_of_order
                && matches!(outcome, Ok(Outcome::Busy { .. }))
                && (self.tenure_of(key, *token).is_some() || self.handed_over.contains_key(token))
            {
                // It proves nothing against the lease: while a slot moves, it stands for a request that was not executed.
                continue;
            }
            let late = match &purpose {
                // A token that has had a part of the nodes is released already.
                Purpose::Ask(key, token, until)
                    if out_of_order && !is_refused && !matches!(outcome, Ok(Outcome::Split { .. })) =>
                {
                    // No release of this epoch need come after one that was not answered.
                    let unanswered_since = outcome.is_err().then_some(Doubt::NO_EPOCH);
                    Some((key.clone(), *token, Doubt { until: *until, unanswered_since }))
                }
                _ => None,
            };
            self.answered(purpose, outcome, RoundTrip { repeated, ..trip });
            // An acquire out of order may have been executed after the release of its own token. Then the key holds a token that nothing
            // else would release.
            if let Some((key, token, doubt)) = late {
                self.release_stray(key, token, doubt, now);
            }
        }
    }

    /// Takes the answer to an operation that [`send`](Self::send) gave out.
    pub(super) fn answered(&mut self, purpose: Purpose, result: Replied<Outcome>, trip: RoundTrip) {
        match purpose {
            Purpose::Ask(key, token, _) => self.acquired(&key, token, result, trip),
            Purpose::Release(entry, responder) => {
                let (answered, times) = (Try::answered(&result).then_some(trip.epoch), (trip.sent, trip.now));
                self.cleanup.tried_beside(entry, answered, times, |token| is_asked(&self.in_flight, token));
                let answer = Answer { repeated: trip.repeated, ..Answer::new([result]) };
                self.deferred.wake(responder.answer(Ok(answer)));
            }
            Purpose::Refill(refill) => {
                let ended = self.tenures.refilled(&refill, result.ok(), (trip.sent, trip.now), &mut self.deferred);
                self.clean_up_ended(ended, trip.now);
            }
        }
    }

    // ---- without an answer

    /// Fails requests that were made too long ago and were not answered. (Waiters have timers of their own, and so has the
    /// backend for some calls.)
    pub(super) fn fail_unanswered(&mut self, now: Moment) {
        if now < self.answers_due {
            return;
        }
        let limit = self.limits.answer;
        let mut next = Moment::NEVER;
        let in_time = |item: &&Item| !matches!(item, Item::Call(batch, _) if in_flight::is_limited_by_backend(batch));
        let waiting = self.outbox.iter().filter(in_time).filter_map(Item::responder);
        let in_flight = self.in_flight.iter().map(|(_, call)| &call.work);
        let in_flight =
            in_flight.filter(|work| !matches!(work, Work::Call(batch, _) if in_flight::is_limited_by_backend(batch)));
        let in_flight = in_flight.flat_map(Work::responder);
        for responder in waiting.chain(in_flight) {
            if now < responder.at + limit {
                next = next.min(responder.at + limit);
            } else {
                self.deferred.wake(responder.answer(Err(BackendError::unanswered(limit))));
            }
        }
        self.answers_due = next;
    }

    /// Ends what was in flight, as if the connection had broken: the task that would have read the answers has ended. Waiters ask again,
    /// the clean-up releases again, and leases are lost. What waits to be sent is left to the next task.
    pub(super) fn end_calls(&mut self) {
        self.counted = Counted::default();
        for (_, SentCall { work, .. }) in std::mem::take(&mut self.in_flight) {
            for responder in work.responder() {
                self.deferred.wake(responder.answer(Err(BackendError::ended())));
            }
        }
        self.outbox.retain(|item| !matches!(item, Item::Refill(_)));
        // Somebody has to start the next task.
        for responder in self.outbox.iter().filter_map(Item::responder) {
            self.deferred.wake(responder.waker());
        }
        for list in &self.lists {
            self.deferred.wake(list.responder.waker());
        }
    }
}

/// Whether a call in flight, which the backend may send again, acquires with a token.
fn is_asked(in_flight: &Slab<SentCall>, token: Token) -> bool {
    in_flight.iter().any(|(_, call)| call.work.acquires(token))
}

/// How often failing renewals are complained of in the log.
const COMPLAINTS: Duration = Duration::from_secs(1);
