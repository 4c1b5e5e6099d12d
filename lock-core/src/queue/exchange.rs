//! What is sent to the backend, and what becomes of the answers and of the calls that come from it.

use std::{sync::Arc, time::Duration};

use rand::RngExt;

use super::{
    ATTEMPT, Item, LEAST_LIFE, LEAST_WINDOW, LONGEST_ROUND_TRIP, Purpose, Queues, Trip,
    contender::{CHECK, Contender, Found},
    line::{self, Standing, WaiterId},
    tenure::{Acquired, Terms, block_for},
    unexpected,
};
use crate::{
    backend::{self, BackendError, Batch, Operation, Outcome, Place},
    cleanup::{Doubt, Parting, Try},
    clock::Moment,
    end::End,
    error::{Error, ErrorKind, LossReason},
    key::LockKey,
    mutants::Mutant,
    token::Token,
};

impl Queues {
    /// Takes what waits to be sent `now`, at most `most`.
    pub(crate) fn send(&mut self, most: usize, now: Moment, epoch: u64) -> (Batch, Vec<Purpose>) {
        let (mut operations, mut purposes) = (Batch::new(), Vec::new());
        while operations.len() < most
            && let Some(item) = self.outbox.pop_front()
        {
            match item {
                Item::Ask(key, token) => {
                    // One that gave up meanwhile sends nothing.
                    let Some((waiter, _)) = self.lines.contender(&key, token) else { continue };
                    let line::Waiter { terms, tries, .. } = *self.lines.waiter(waiter);
                    let block = self.lines.of(&key).map_or(1, |line| block_for(line.length as usize, line.holds));
                    let request = self.request(&key, &terms, token, tries, block);
                    if let Some((_, contender)) = self.lines.contender(&key, token) {
                        contender.callable = self.listening;
                        contender.sending(terms.ttl, now, epoch);
                    }
                    let jitter = self.jitter();
                    self.look_at(waiter, now + CHECK.mul_f64(0.75 + jitter / 2.0));
                    operations.push(Operation::Acquire(request));
                    purposes.push(Purpose::Ask(key, token));
                }
                Item::Release(parting, doubt, answer) => {
                    // On the list from now on, lest it be forgotten if the engine's task ends.
                    let Try { entry, release } = self.cleanup.begin(parting, doubt, now);
                    operations.push(Operation::Release(release));
                    purposes.push(Purpose::Release(entry, answer));
                }
                Item::Refill(refill) => {
                    operations.push(Operation::Renew(refill.request.clone()));
                    purposes.push(Purpose::Refill(refill));
                }
            }
        }
        (operations, purposes)
    }

    /// Takes the answer to an operation that [`send`](Self::send) gave out.
    pub(crate) fn answered(&mut self, purpose: Purpose, result: Result<Outcome, BackendError>, trip: Trip) {
        match purpose {
            Purpose::Ask(key, token) => self.acquired(&key, token, result, trip, None),
            Purpose::Release(entry, answer) => {
                self.cleanup.tried(entry, Try::answered(&result).then_some(trip.epoch), trip.sent, trip.now);
                // Nobody may be left to hear it.
                let _ = answer.send((result, trip.repeated));
            }
            Purpose::Refill(refill) => {
                let mut sent = trip.sent;
                if Mutant::RefillFromReply.is_on() {
                    sent = trip.now;
                }
                let ended = self.tenures.refilled(&refill, result.ok(), sent, &mut self.deferred);
                self.bury(ended, trip.now);
            }
        }
    }

    /// Takes the answer to a contender's request, who is to be woken unless it is `polled` just now. An answer for one that
    /// is over is ignored: its token is on the clean-up list, or its tenure goes on.
    pub(crate) fn acquired(
        &mut self,
        key: &LockKey,
        token: Token,
        result: Result<Outcome, BackendError>,
        trip: Trip,
        polled: Option<WaiterId>,
    ) {
        let Trip { sent, now, epoch, repeated } = trip;
        if result.is_ok() {
            self.took(now.since(sent));
            self.trouble = None;
        }
        let window = self.window();
        let Some((id, contender)) = self.lines.contender(key, token) else {
            // The future's own request and the engine's in its stead have one token: the later one reaches further.
            if let (Ok(Outcome::Held { .. }), Some(tenure)) = (&result, self.lines.tenure(key))
                && self.tenures.token(tenure) == Some(token)
            {
                self.tenures.granted_again(tenure, sent);
            }
            return;
        };
        let found = match result {
            Ok(Outcome::Held { fence, block }) => {
                contender.answered(sent, epoch, repeated);
                let doubt = contender.doubt();
                let acquired = Acquired { token, fence, block, sent, doubt, passes: true };
                return self.got(key, id, acquired, now, polled == Some(id));
            }
            Ok(Outcome::Busy { remaining, foreign, position }) => {
                Found { remaining, foreign, position, kept_free: None }
            }
            Ok(Outcome::Queued { position }) => {
                Found { remaining: None, foreign: false, position, kept_free: Some(window) }
            }
            Ok(Outcome::Split { remaining, foreign }) => {
                contender.answered(sent, epoch, repeated);
                let doubt = contender.doubt();
                if !Mutant::SplitKept.is_on() {
                    self.cleanup.push(Parting::at_once(key.clone(), token).with_place().quietly(), doubt, now);
                }
                let anew = Token::from_random(self.random.random());
                if let Some((_, contender)) = self.lines.contender(key, token)
                    && !Mutant::SplitTokenAgain.is_on()
                {
                    contender.begin_anew(anew);
                }
                return self.refused(id, Found { remaining, foreign, position: None, kept_free: None }, now);
            }
            Ok(outcome) => return self.fail(key, &Error::backend(ATTEMPT, Some(key), unexpected(outcome)), now),
            Err(error) => {
                let outdated = contender.failed(sent, error.may_have_happened());
                return match error.kind() {
                    ErrorKind::Backend if outdated => {}
                    ErrorKind::Backend => self.failed(id, error, now),
                    // Its own future was polled where no task can run; the others may be polled elsewhere.
                    ErrorKind::NoRuntime => self.dismiss(id, Error::backend(ATTEMPT, Some(key), error), now),
                    _ => self.fail(key, &Error::backend(ATTEMPT, Some(key), error), now),
                };
            }
        };
        contender.answered(sent, epoch, repeated);
        if Mutant::PlaceNotKept.is_on()
            && let Some((parting, doubt)) = contender.parting(key)
        {
            let callable = contender.callable;
            contender.begin_anew(Token::from_random(self.random.random()));
            contender.callable = callable;
            self.cleanup.push(parting, doubt, now);
        }
        self.refused(id, found, now);
    }

    /// The contender did not get the key: it waits, unless it only tries or its time is over.
    fn refused(&mut self, id: WaiterId, found: Found, now: Moment) {
        let waiter = self.lines.waiter(id);
        let Standing::InLine(Some(contender)) = &mut waiter.state else { return };
        contender.free_at = found.remaining.map_or(Moment::NEVER, |remaining| now + remaining);
        let pause = contender.pause(found, self.listening && !self.calls_refused, self.random.random());
        self.learn(id, now);
        let waiter = self.lines.waiter(id);
        if waiter.tries || waiter.overdue {
            let key = waiter.key.clone();
            let error = self.busy(&key, now);
            return self.dismiss(id, error, now);
        }
        if !waiter.waits
            && let Err(error) = self.limits.in_all(self.lines.waiting())
        {
            let error = error.on(&self.lines.waiter(id).key);
            return self.dismiss(id, error, now);
        }
        self.lines.wait(id);
        self.wheel.set(id, now + pause);
    }

    /// A place of this process was called: it takes the key, or says that it does not want it any more.
    pub(crate) fn called(&mut self, key: LockKey, token: Token, now: Moment) {
        if Mutant::CallNotHeard.is_on() {
            return;
        }
        self.calls_refused = false;
        if self.lines.contender(&key, token).is_some() {
            self.ask(&key, token, true);
        } else {
            self.disown(key, token, now);
        }
    }

    /// Releases a token that nobody here has any more, as when its request was executed after its release.
    pub(crate) fn disown(&mut self, key: LockKey, token: Token, now: Moment) {
        // Its holder's release is still to be sent, and is the one that has to find the key.
        let is_released = |item: &Item| matches!(item, Item::Release(parting, ..) if parting.token == token);
        if self.outbox.iter().any(is_released) {
            return;
        }
        let is_over = self.lines.contender(&key, token).is_none()
            && !self.handed_over.contains_key(&token)
            && self.lines.tenure(&key).and_then(|tenure| self.tenures.token(tenure)) != Some(token);
        if is_over {
            let doubt = Doubt { until: now, unanswered_since: None };
            let mut parting = Parting::at_once(key, token).with_place();
            // A call may come late, when its waiter has had the key already and left it to expire.
            parting.keep_until = self.kept.get(&token).copied().unwrap_or(parting.keep_until);
            self.cleanup.push(parting, doubt, now);
        }
    }

    /// Takes note that the backend would not call anybody: waiters come by themselves until somebody is called again.
    pub(crate) fn calls_refused(&mut self) {
        self.calls_refused = true;
    }

    /// Takes note of whether calls can come. Some may have been lost, and places too: everybody asks again.
    pub(crate) fn listen(&mut self, listening: bool) {
        self.listening = listening;
        self.calls_refused = false;
        self.ask_again(|contender| contender.trouble.is_some() || listening && contender.answered);
    }

    /// Begins anew after the engine's task has ended and its requests with it.
    pub(crate) fn restart(&mut self, now: Moment) {
        self.listening = false;
        self.cleanup.restart(now);
        // What was sent is on the clean-up list already; what was not goes there, and nobody waits for its answer in vain.
        let waiting = std::mem::take(&mut self.outbox);
        for item in waiting {
            match item {
                Item::Release(parting, doubt, answer) => {
                    self.cleanup.push(parting, doubt, now);
                    drop(answer);
                }
                Item::Ask(..) => self.outbox.push_back(item),
                Item::Refill(_) => {}
            }
        }
        let ended = self.tenures.lose_all(LossReason::ShutDown);
        self.bury(ended, now);
        self.deferred.lost_more(self.losses.take_all());
        self.ask_again(|contender| {
            contender.abandon_engine_s();
            !contender.by_caller
        });
        // Somebody has to start the next task.
        for id in self.lines.ids() {
            let waker = self.lines.waiter(id).waker.take();
            self.deferred.wake(waker);
        }
    }

    /// Fails every waiter.
    pub(crate) fn shut_down(&mut self, now: Moment) {
        let error = |key: &LockKey| Error::new(ErrorKind::ShutDown, ATTEMPT).on(key);
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::InLine(_) = waiter.state {
                let key = waiter.key.clone();
                self.fail(&key, &error(&key), now);
            }
        }
        // Nobody is in line any more who could have the hold that was offered to another.
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::Failed(_) = waiter.state {
                continue;
            }
            let failed = Standing::Failed(error(&waiter.key));
            self.deferred.wake(waiter.waker.take());
            if let Standing::Turn(hold, offered) = std::mem::replace(&mut waiter.state, failed) {
                self.wheel.unset(id);
                offered.finish(End::Released);
                self.depart(hold, now);
            }
        }
    }

    /// Has the contender's request sent: before all others where it was called.
    pub(super) fn ask(&mut self, key: &LockKey, token: Token, called: bool) {
        let Some((id, contender)) = self.lines.contender(key, token) else { return };
        if std::mem::replace(&mut contender.queued, true) {
            return;
        }
        // As it was asked for: the key of a call does not say how much of it is the manager's prefix.
        let mut own = self.lines.waiter(id).key.clone();
        if called && Mutant::PrefixLost.is_on() {
            own = own.without_prefix();
        }
        let item = Item::Ask(own, token);
        if called {
            self.outbox.push_front(item);
        } else {
            self.outbox.push_back(item);
        }
    }

    pub(super) fn ask_again(&mut self, whether: impl Fn(&mut Contender) -> bool) {
        for id in self.lines.ids() {
            let waiter = self.lines.waiter(id);
            if let Standing::InLine(Some(contender)) = &mut waiter.state
                && whether(contender)
            {
                let (key, token) = (waiter.key.clone(), contender.token);
                self.ask(&key, token, false);
            }
        }
    }

    pub(super) fn request(
        &self,
        key: &LockKey,
        terms: &Terms,
        token: Token,
        tries: bool,
        block: u32,
    ) -> backend::Acquire {
        let mut request = backend::Acquire::new(key.clone(), token, terms.ttl.get());
        if terms.is_passed_on() {
            request.block = block;
        }
        if !tries {
            let channel = Arc::clone(if self.listening { &self.channel } else { &self.no_channel });
            let life = LEAST_LIFE.max(Duration::from_nanos(self.round_trip * 2) + Duration::from_secs(1));
            request.place = Some(Place::new(channel, life, self.window()));
        }
        request
    }

    /// How long the others wait for a waiter that was called.
    pub(super) fn window(&self) -> Duration {
        LEAST_WINDOW.max(Duration::from_nanos(self.round_trip * 4))
    }

    /// Takes note of how long a call to the backend took.
    pub(super) fn took(&mut self, round_trip: Duration) {
        let round_trip = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX).min(LONGEST_ROUND_TRIP);
        self.round_trip = (self.round_trip * 7 + round_trip) / 8;
    }
}
