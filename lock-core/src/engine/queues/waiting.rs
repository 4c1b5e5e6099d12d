//! The waiter's side of a key: arriving, polling, giving up, and leaving.

use std::task::{Poll, Waker};

use super::{
    Queues,
    line::{self, Newcomer, Standing, WaiterId},
};
use crate::{
    backend::BusyReason,
    clock::Moment,
    end::End,
    engine::tenure::Offer,
    error::{ACQUIRE, Error},
    key::LockKey,
    mode::Mode,
};

impl Queues {
    /// Begins an acquire.
    pub(crate) fn arrive(&mut self, newcomer: Newcomer<'_>, now: Moment) -> Result<WaiterId, Error> {
        let Newcomer { key, tries, .. } = newcomer;
        let mut knows = false;
        let mut asks_again = None;
        if let Some(tenure) = self.lines.tenure(key) {
            // The tenure may have lapsed unnoticed, for example while the process was stopped: its timer has not fired yet. Settled now,
            // it does not make the newcomer wait behind a lease that has ended.
            let ended = self.tenures.settle(tenure);
            self.clean_up_ended(ended, now);
        }
        let line = self.lines.of(key);
        let contends = self.lines.would_contend(key, newcomer.terms.mode);
        if let Some(line) = line {
            let (waiters, possessed) = (line.waiters(), line.tenure.is_some());
            let candidate = self.lines.first_candidate(key).filter(|_| !contends);
            knows = possessed || candidate.as_ref().is_some_and(|first| first.answered && first.last_error.is_none());
            // The candidate's last request failed, and its next one may be a second away. The newcomer's question is a reason to ask now:
            // the backend may be back, and otherwise the newcomer learns of the outage at once.
            let failed = candidate.filter(|first| first.last_error.is_some() && !first.is_asking());
            asks_again = failed.map(|first| first.token);
            if tries && knows {
                return Err(self.busy_key(key, newcomer.terms.mode, None, now));
            }
            if !tries {
                let (limits, waiting) = (self.limits, self.lines.waiting());
                let free = limits.per_key(waiters).and_then(|()| limits.in_all(waiting));
                free.map_err(|error| error.on(key))?;
            }
        }
        let waiter = self.lines.enter(&newcomer, knows, now);
        self.set_timer(waiter, Moment::NEVER);
        if !contends && !tries {
            self.explanations.watch(key, now);
            self.lines.wait(waiter);
        }
        self.contend_next(key);
        if let Some(token) = asks_again {
            self.ask(key, token, false);
        }
        Ok(waiter)
    }

    /// Returns the result of a waiter, if there is one; until then its task is woken when its state changes.
    pub(crate) fn poll(&mut self, id: WaiterId, waker: &Waker, now: Moment) -> Poll<Result<Offer, Error>> {
        let waiter = self.lines.waiter(id);
        match &waiter.state {
            Standing::InLine(_) => {}
            Standing::Turn(hold, _) => {
                let hold = *hold;
                if !self.tenures.begin(hold, &waiter.terms, now) {
                    // The hold was offered, but its lease has ended before this future was polled. The turn is void: the waiter rejoins
                    // the line instead of getting a guard that is lost already.
                    let ended = self.tenures.settle(hold.tenure);
                    self.clean_up_ended(ended, now);
                    self.wheel.unset(id);
                    return self.rejoin_or_fail(id, waker, now);
                }
                let Standing::Turn(hold, arc) = self.forget(id) else { unreachable!("matched above") };
                return Poll::Ready(Ok((hold, arc)));
            }
            Standing::Missed => return self.rejoin_or_fail(id, waker, now),
            Standing::Failed(_) => {
                let Standing::Failed(error) = self.forget(id) else { unreachable!("matched above") };
                return Poll::Ready(Err(error));
            }
        }
        let registered = &mut self.lines.waiter(id).waker;
        if !registered.as_ref().is_some_and(|registered| registered.will_wake(waker)) {
            let unused = registered.replace(waker.clone());
            self.deferred.discard(unused);
        }
        Poll::Pending
    }

    /// Puts a waiter whose turn was missed into its line again, unless it has no time left.
    fn rejoin_or_fail(&mut self, id: WaiterId, waker: &Waker, now: Moment) -> Poll<Result<Offer, Error>> {
        let waiter = self.lines.waiter(id);
        if waiter.tries || waiter.overdue {
            let error = self.busy(id, now);
            self.forget(id);
            return Poll::Ready(Err(error));
        }
        self.explanations.watch(&waiter.key, now);
        self.rejoin(id);
        self.poll(id, waker, now)
    }

    /// Ends the wait of a waiter whose time is over. The error is the backend's last one if there is one, because the state of the key
    /// is not known then.
    ///
    /// Pending in two cases: the waiter does not know yet whether its key is busy, and has to wait for the first answer; or it has left
    /// the line since it was polled, and its next poll returns the result.
    pub(crate) fn give_up(&mut self, id: WaiterId, now: Moment) -> Poll<Error> {
        let waiter = self.lines.waiter(id);
        if !matches!(waiter.state, Standing::InLine(_)) || !waiter.knows {
            waiter.overdue = true;
            return Poll::Pending;
        }
        let last_error = self.lines.candidate_for(id).and_then(|candidate| candidate.last_error.clone());
        let error = last_error.unwrap_or_else(|| self.busy(id, now));
        self.leave(id, now);
        Poll::Ready(error)
    }

    /// The error of a waiter that leaves because the key is busy.
    pub(super) fn busy(&mut self, id: WaiterId, now: Moment) -> Error {
        let waiter = self.lines.waiter(id);
        let (key, mode) = (waiter.key.clone(), waiter.terms.mode);
        self.busy_key(&key, mode, Some(id), now)
    }

    /// The error of a request that finds the key busy. It says what is in the way and for how long at most, as far as is known: the rest
    /// of this process's own lease, or of another holder's ttl, less the time since the answer.
    fn busy_key(&mut self, key: &LockKey, mode: Mode, id: Option<WaiterId>, now: Moment) -> Error {
        let tenure = self.lines.tenure(key);
        let here = tenure.and_then(|tenure| self.tenures.hold(tenure)).map(|hold| hold.since);
        let (free_at, by) = match tenure {
            Some(tenure) => (self.tenures.end(tenure), BusyReason::Holder),
            None => {
                let candidate = match id {
                    Some(id) if self.lines.is_candidate(id) => self.lines.candidate_of(id),
                    _ => self.lines.first_candidate(key),
                };
                candidate.map_or((None, BusyReason::Holder), |candidate| (Some(candidate.free_at), candidate.by))
            }
        };
        let remaining = free_at.filter(|at| now < *at && *at < Moment::NEVER).map(|at| at.since(now));
        self.busy += 1;
        Error::busy(ACQUIRE, key, by, mode).free_in(remaining).held_since(here)
    }

    /// Removes a waiter whose future is done or was dropped. Its hold or place is passed on or cleaned up.
    pub(crate) fn leave(&mut self, id: WaiterId, now: Moment) {
        let candidate = self.lines.take_out(id, Standing::Missed);
        let waiter = self.lines.waiter(id);
        let (key, terms, tries) = (waiter.key.clone(), waiter.terms, waiter.tries);
        match self.forget(id) {
            Standing::Turn(hold, offered) => {
                offered.finish_at(now, End::Released);
                self.abandon(hold, now);
            }
            // A waiter that was in line: `take_out` has given it this state.
            Standing::Missed => match candidate {
                Some(candidate) => self.hand_on_place(&key, candidate, &terms, tries, now),
                None => self.contend_next(&key),
            },
            Standing::InLine(_) | Standing::Failed(_) => {}
        }
    }

    /// Removes a waiter that is out of the line, and returns its state.
    fn forget(&mut self, id: WaiterId) -> Standing {
        self.wheel.unset(id);
        let line::Waiter { state, waker, .. } = self.lines.forget(id);
        self.deferred.discard(waker);
        state
    }
}
