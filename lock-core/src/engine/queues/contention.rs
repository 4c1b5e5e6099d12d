//! Contention: what answers and grants mean for the candidates.
//!
//! A candidate keeps one token from its first request to the end of its place, so a repeated request (a check) changes nothing. `HELD`
//! begins a tenure, `BUSY` sets the timer of the next check, an error leaves the token in doubt. After a grant the waiter holds at once if
//! `trust.rs` allows it, or asks again before all others. If no candidate has the token of a grant, the token is released.

use std::{sync::Arc, time::Duration};

use rand::RngExt;

use super::{
    HandedOver, LEAST_LIFE, LEAST_RESERVED, LEAST_UNHEARD, LONGEST_FIRST_ROUND_TRIP, LONGEST_RESERVED,
    LONGEST_ROUND_TRIP, Queues, TOTALS,
    candidate::{Candidate, LONGEST_CHECK, Refusal},
    in_flight::{Item, RoundTrip},
    line::{Standing, WaiterId},
};
use crate::{
    backend::{
        self, BackendError, BusyReason, Grant, Outcome, Place, Replied, Token,
        cleanup::{Doubt, PendingRelease},
    },
    clock::Moment,
    end::End,
    engine::{
        tenure::{Acquired, TenureId},
        terms::Terms,
        trust::{self, Placing, Told},
    },
    error::{ACQUIRE, Error, ErrorKind, LossReason},
    key::LockKey,
};

impl Queues {
    /// Takes the answer to a candidate's request. An answer for a candidate that is over is ignored: its token is on the
    /// clean-up list, or its tenure goes on.
    pub(crate) fn acquired(&mut self, key: &LockKey, token: Token, result: Replied<Outcome>, trip: RoundTrip) {
        let candidate = self.lines.candidate(key, token).map(|(_, candidate)| candidate);
        let held_up = candidate.is_some_and(|candidate| std::mem::take(&mut candidate.asks_without_place));
        self.candidate_answered(key, token, result, trip);
        if held_up {
            // Those behind it, who did not ask before its request had a place. It is sent before theirs.
            self.contend_next(key);
        }
    }

    fn candidate_answered(&mut self, key: &LockKey, token: Token, result: Replied<Outcome>, trip: RoundTrip) {
        let RoundTrip { sent, now, epoch, repeated } = trip;
        if result.is_ok() {
            self.record_round_trip(now.since(sent));
            self.last_error = None;
        }
        let Some((id, candidate)) = self.lines.candidate(key, token) else {
            return self.answered_late(key, token, result, sent, now);
        };
        let refusal = match result {
            Ok(Outcome::Held { fence, block, .. }) => {
                candidate.answered(sent, epoch, repeated);
                let doubt = candidate.doubt;
                let acquired = Acquired { token, fence, block, sent, doubt, passes: true, granted: None };
                return self.held(key, id, acquired, now);
            }
            Ok(Outcome::Busy { remaining, by, position }) => Refusal { remaining, by, position },
            Ok(Outcome::NotFree) => {
                candidate.answered(sent, epoch, repeated);
                candidate.may_hold = true;
                self.recently_busy.found_busy(key, now);
                return self.ask(key, token, false);
            }
            Ok(Outcome::Split { remaining, foreign }) => {
                candidate.answered(sent, epoch, repeated);
                self.recently_busy.found_busy(key, now);
                self.replace_split_token(id, now);
                let by = if foreign { BusyReason::Foreign } else { BusyReason::Holder };
                return self.refused(id, Refusal { remaining, by, position: None }, now);
            }
            Ok(outcome) => {
                return self.fail(key, &Error::backend(ACQUIRE, Some(key), BackendError::unexpected(outcome)), now);
            }
            Err(error) => {
                let outdated = candidate.failed(sent, error.may_have_happened());
                // The script is asked next time instead of the transaction: its errors name the command that was refused.
                self.recently_busy.found_busy(key, now);
                return match error.kind() {
                    // A later request was answered, so the failure of an older one says nothing about the backend now.
                    ErrorKind::Backend if outdated => {}
                    ErrorKind::Backend => self.failed(id, error, now),
                    _ => self.fail(key, &Error::backend(ACQUIRE, Some(key), error), now),
                };
            }
        };
        candidate.answered(sent, epoch, repeated);
        candidate.may_hold = false;
        self.recently_busy.found_busy(key, now);
        self.refused(id, refusal, now);
    }

    /// Takes the answer to a request of a candidate that is over.
    fn answered_late(&mut self, key: &LockKey, token: Token, result: Replied<Outcome>, sent: Moment, now: Moment) {
        let Some(tenure) = self.tenure_of(key, token) else {
            // A check that comes after somebody has taken the lease up leaves a place, or the key, to a token that is nobody's.
            let is_stray = |known: &HandedOver| match result {
                Ok(Outcome::Busy { .. }) => trust::is_later(sent, known.proven),
                // Those who share a key have one number, until the last of them goes.
                Ok(Outcome::Held { fence, was_free, .. }) => {
                    was_free && (fence > known.fence || fence == known.fence && trust::is_later(sent, known.proven))
                }
                _ => false,
            };
            if self.handed_over.get(&token).is_some_and(is_stray)
                && let Some(known) = self.handed_over.remove(&token)
            {
                self.release_stray(key.clone(), token, Doubt { until: known.until, unanswered_since: None }, now);
            }
            return;
        };
        match result {
            // The tenure began by a grant or by another request while this check was in flight. If the check was executed later, the
            // key expires later too, so the deadline may be raised; `held_again` compares the fencing tokens to find out.
            Ok(Outcome::Held { fence, was_free, .. }) => {
                let ended = self.tenures.held_again(tenure, (fence, was_free), sent, now);
                self.clean_up_ended(ended, now);
            }
            // A check that was executed after the grant finds the tenure's own token. If it was busy, the key was taken away in between;
            // if it was executed before the grant, the answer says nothing, which `refused_again` tells by `sent`.
            Ok(Outcome::Busy { .. }) => {
                let ended = self.tenures.refused_again(tenure, sent, now);
                self.clean_up_ended(ended, now);
            }
            _ => {}
        }
    }

    /// The tenure of a key, if it has this token.
    pub(super) fn tenure_of(&self, key: &LockKey, token: Token) -> Option<TenureId> {
        self.tenures_of(key).find(|tenure| self.tenures.token(*tenure) == Some(token))
    }

    /// Cleans up the token of a candidate, which some nodes may have, and gives it another.
    fn replace_split_token(&mut self, id: WaiterId, now: Moment) {
        let anew = self.token();
        let waiter = self.lines.waiter(id);
        let anew = anew.in_mode(waiter.terms.mode);
        let Standing::InLine(Some(candidate)) = &mut waiter.state else { return };
        let pending = PendingRelease::at_once(waiter.key.clone(), candidate.token).with_place().quietly();
        self.cleanup.push(pending, candidate.doubt, now);
        // The release of the old token may be executed late. It would end the next lease if that had the same token.
        candidate.begin_anew(anew);
    }

    /// The candidate did not get the key: it waits, unless it only tries or its time is over.
    fn refused(&mut self, id: WaiterId, refusal: Refusal, now: Moment) {
        let waiter = self.lines.waiter(id);
        let Standing::InLine(Some(candidate)) = &mut waiter.state else { return };
        if let BusyReason::OtherTotal { total } = refusal.by
            && now >= self.totals_told
        {
            self.totals_told = now + TOTALS;
            self.deferred.other_total = Some((waiter.key.clone(), waiter.terms.mode, total));
        }
        candidate.free_at = refusal.remaining.map_or(Moment::NEVER, |remaining| now + remaining);
        let pause = candidate.pause(refusal, self.listening && !self.calls_refused, self.random.random());
        self.note_busy(id, now);
        let waiter = self.lines.waiter(id);
        if waiter.tries || waiter.overdue {
            let error = self.busy(id, now);
            return self.dismiss(id, error, now);
        }
        if !waiter.waits
            && let Err(error) = self.limits.in_all(self.lines.waiting())
        {
            let error = error.on(&self.lines.waiter(id).key);
            return self.dismiss(id, error, now);
        }
        let key = self.lines.waiter(id).key.clone();
        self.explanations.watch(&key, now);
        self.lines.wait(id);
        self.wheel.set(id, now + pause);
        // Where one that only tried has left, a reader may stand at the front now.
        self.contend_next(&key);
    }

    /// Takes a grant of a key to a place of this process: its waiter holds or confirms, or no waiter wants the key any longer, and
    /// its token is released.
    pub(crate) fn granted(&mut self, grant: Grant, now: Moment) {
        self.calls_refused = false;
        let round_trip = Duration::from_nanos(self.round_trip);
        if let Some((id, candidate)) = self.lines.candidate(&grant.key, grant.token) {
            if grant.out_of_turn {
                return;
            }
            let heard = candidate.heard;
            let ttl = self.lines.waiter(id).terms.ttl;
            let told = Told { grant: &grant, ttl, heard, check: LONGEST_CHECK, round_trip, now };
            // The runtime may be another than when the place was made.
            return match told.holds().filter(|_| self.trusts) {
                Some(kept) => self.holds_by(id, &grant, kept, now),
                None => self.ask(&grant.key, grant.token, true),
            };
        }
        let Grant { key, token, fence, lasts, of_one_node, .. } = grant;
        if let Some(tenure) = self.tenure_of(&key, token) {
            let ended = self.tenures.granted_anew(tenure, if of_one_node { 0 } else { fence }, now);
            self.clean_up_ended(ended, now);
        } else {
            // Without a release, the key expires after `lasts`.
            let doubt = Doubt { until: now + lasts, unanswered_since: None };
            if self.handed_over.get(&token).is_some_and(|known| !of_one_node && fence > known.fence) {
                // To a place that a late check has made: who has taken the lease up has released it.
                self.handed_over.remove(&token);
            }
            self.release_stray(key, token, doubt, now);
        }
    }

    /// Releases a token that no tenure here has, for example because its request was executed after its release.
    pub(crate) fn release_stray(&mut self, key: LockKey, token: Token, doubt: Doubt, now: Moment) {
        // The holder's own release is still queued, and its caller awaits the outcome: a clean-up that came first would make that
        // release find nothing, and report a loss that never happened.
        let is_released = |item: &Item| matches!(item, Item::Release(pending, ..) if pending.token == token);
        if self.outbox.iter().any(is_released) {
            return;
        }
        // The same holds for one that is in flight: if the connection is replaced, a clean-up may overtake it. The token is
        // released again when it is answered.
        let mut in_flight = self.in_flight.iter().flat_map(|(_, call)| call.work.releases());
        if let Some(entry) = in_flight.find(|entry| self.cleanup.is_of(*entry, token)) {
            return self.cleanup.release_again(entry, doubt.until);
        }
        let is_over = self.lines.candidate(&key, token).is_none()
            && !self.handed_over.contains_key(&token)
            && self.tenure_of(&key, token).is_none();
        if is_over {
            let mut pending = PendingRelease::at_once(key, token).with_place();
            // The message may come after its waiter has had the key, and has left it to expire at `at_least`. Releasing it at once would
            // free the key before that time.
            pending.keep_until = self.kept.get(&token).copied().unwrap_or(pending.keep_until);
            self.cleanup.push(pending, doubt, now);
        }
    }

    /// Records whether messages can reach this process.
    ///
    /// While the connection was away, messages were lost, and places with it if the server was replaced. So every candidate asks again,
    /// which makes its place once more and finds a grant that was missed. Otherwise each would wait for its next check.
    pub(crate) fn listen(&mut self, listening: bool) {
        self.listening = listening;
        self.calls_refused = false;
        self.ask_again(|candidate| candidate.last_error.is_some() || listening && candidate.answered);
    }

    /// Starts again after the engine's task has ended and its requests with it.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.listening = false;
        self.end_calls();
        self.cleanup.restart(now);
        let ended = self.tenures.lose_all(LossReason::ShutDown, now);
        self.clean_up_ended(ended, now);
        self.put_off_losses();
        self.deferred.untold += self.losses.take_all();
        self.end_questions(now);
        self.ask_again(|candidate| {
            candidate.in_flight = 0;
            true
        });
        // The task that would send these requests has ended with its runtime. A future that is polled on another runtime starts the next
        // one, so all of them are woken; which of them still has a runtime is not known here.
        for id in self.lines.ids() {
            let waker = self.lines.waiter(id).waker.take();
            self.deferred.wake(waker);
        }
    }

    /// Fails every waiter.
    pub(crate) fn shut_down(&mut self, now: Moment) {
        let error = |key: &LockKey| Error::new(ErrorKind::ShutDown, ACQUIRE).on(key);
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::InLine(_) = waiter.state {
                let key = waiter.key.clone();
                self.fail(&key, &error(&key), now);
            }
        }
        // Offered holds end only now that no waiter is left in line. Otherwise `abandon` would pass them on to the next waiter.
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::Failed(_) = waiter.state {
                continue;
            }
            let failed = Standing::Failed(error(&waiter.key));
            self.deferred.wake(waiter.waker.take());
            if let Standing::Turn(hold, offered) = std::mem::replace(&mut waiter.state, failed) {
                self.wheel.unset(id);
                offered.finish_at(now, End::Released);
                self.abandon(hold, now);
            }
        }
    }

    /// Has the candidate's request sent: before all others if it confirms a grant, which does not last.
    pub(super) fn ask(&mut self, key: &LockKey, token: Token, confirms: bool) {
        let Some((id, candidate)) = self.lines.candidate(key, token) else { return };
        let was_queued = std::mem::replace(&mut candidate.queued, true);
        // The confirmation overtakes a check that waits already. That check is not sent when its turn comes.
        if was_queued && (!confirms || std::mem::replace(&mut candidate.confirms, true)) {
            return;
        }
        candidate.confirms = confirms;
        // The waiter's own key is used: the key of a message does not say how much of it is the manager's prefix.
        let own = self.lines.waiter(id).key.clone();
        let item = Item::Ask(own, token);
        if confirms {
            self.outbox.push_front(item);
        } else {
            self.outbox.push_back(item);
        }
    }

    pub(super) fn ask_again(&mut self, whether: impl Fn(&mut Candidate) -> bool) {
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::InLine(Some(candidate)) = &mut waiter.state
                && whether(candidate)
            {
                let (key, token) = (waiter.key.clone(), candidate.token);
                self.ask(&key, token, false);
            }
        }
    }

    pub(super) fn acquire(
        &self,
        key: &LockKey,
        terms: &Terms,
        token: Token,
        tries: bool,
        block: u32,
        now: Moment,
    ) -> backend::Acquire {
        let mut request = backend::Acquire::new(key.clone(), token, terms.ttl.get());
        if terms.is_passed_on() {
            request.block = block;
        }
        if !tries {
            let channel = Arc::clone(if self.listening { &self.channel } else { &self.no_channel });
            let life = LEAST_LIFE.max(Duration::from_nanos(self.round_trip * 2) + Duration::from_secs(1));
            let lasts = self.kept_for(terms);
            request.place = Some(Place::new(channel, life, lasts, now));
        }
        request
    }

    /// For how long a key is kept for a waiter with these terms that it is granted to.
    fn kept_for(&self, terms: &Terms) -> Duration {
        let (ttl, round_trip) = (terms.ttl.get(), Duration::from_nanos(self.round_trip));
        let placing = Placing {
            trusts: self.trusts,
            is_told: self.listening && !self.calls_refused,
            is_renewed: terms.is_renewed(),
            ttl: terms.ttl,
            check: LONGEST_CHECK,
            round_trip,
        };
        if let Some(trusted) = placing.trusts_for() {
            return trusted;
        }
        let least = if self.listening { LEAST_RESERVED } else { LEAST_UNHEARD };
        // A dead waiter delays others by at most its ttl.
        (round_trip * 4).clamp(LEAST_RESERVED, LONGEST_RESERVED).max(least).min(ttl.max(LEAST_RESERVED))
    }

    /// Records how long a call to the backend took. (Smoothed like the round trips of TCP, RFC 6298.)
    pub(super) fn record_round_trip(&mut self, round_trip: Duration) {
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_ROUND_TRIP);
        self.round_trip = match self.round_trip {
            0 => round_trip.min(LONGEST_FIRST_ROUND_TRIP),
            known => (known * 7 + round_trip) / 8,
        };
    }
}
