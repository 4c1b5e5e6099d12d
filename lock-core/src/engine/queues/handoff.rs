//! Succession: how a hold, a turn or a place goes from one waiter to the next.
//!
//! A hold that ends passes to the first waiter under the same token while the tenure allows it; otherwise the key is released and the waiters
//! at the front contend. A waiter takes its hold when its future is polled. A candidate that gives up leaves its place to the next waiter
//! with the same terms.

use super::{
    LONGEST_MORE, Queues, TURN,
    candidate::Candidate,
    in_flight::Item,
    line::{Line, Standing, TOGETHER, WaiterId},
};
use crate::{
    backend::{BusyReason, Grant, cleanup::PendingRelease},
    clock::Moment,
    engine::{
        tenure::{Acquired, HoldId, Offer, TenureId},
        terms::Terms,
        trust,
    },
    error::{ACQUIRE, Error, ErrorKind, LossReason},
    key::LockKey,
    ttl::Ttl,
};

impl Queues {
    /// Passes the key to the next waiter of this process, within the same tenure and without a request.
    ///
    /// The tenure must be the one that the line possesses. A tenure that was taken up or lost has no waiters, and its key may by now
    /// be held by another process.
    pub(super) fn pass(&mut self, hold: HoldId, now: Moment) -> bool {
        let Some(key) = self.tenures.of_hold(hold).map(|tenure| tenure.key()) else { return false };
        let line = self.lines.of(key).filter(|line| line.tenure == Some(hold.tenure));
        let Some(next) = line.and_then(Line::first) else { return false };
        let key = key.clone();
        let terms = self.lines.waiter(next).terms;
        let Some(offer) = self.tenures.pass(hold, &terms, now) else { return false };
        // It has a place of its own if it contended behind others who shared the key or have left since.
        if let Some((pending, doubt)) = self.lines.candidate_of(next).and_then(|candidate| candidate.pending(&key)) {
            self.cleanup.push(pending, doubt, now);
        }
        self.offer(next, offer, now);
        self.refill(&key, hold.tenure, now);
        true
    }

    /// Asks for another block of fencing tokens if the waiters will need it.
    fn refill(&mut self, key: &LockKey, tenure: TenureId, now: Moment) {
        if let Some(line) = self.lines.of(key).filter(|line| line.length > 0)
            && let Some(refill) = self.tenures.refill(tenure, line.length as usize, line.holds, now)
        {
            self.outbox.push_back(Item::Refill(Box::new(refill)));
        }
    }

    /// Offers a hold to a waiter, whose turn has come.
    pub(super) fn offer(&mut self, id: WaiterId, (hold, arc): Offer, now: Moment) {
        let waiter = self.lines.waiter(id);
        let is_alone = waiter.terms.mode.is_exclusive();
        let shares = self.beside.get(&waiter.key).filter(|_| !is_alone).map_or(0, Vec::len);
        // Thousands who share a key are woken at once, and polled one after another. Those that missed their turns would ask again, all
        // of them, each time that a few have been polled.
        let long = (TURN * u32::try_from(shares / TOGETHER).unwrap_or(0)).min(LONGEST_MORE);
        // A lease that ends within a turn would count as lost.
        let more = long.min(arc.end().since(now) / 2);
        self.lines.take_out(id, Standing::Turn(hold, arc));
        self.wheel.set(id, now + TURN + more);
        self.wake(id);
    }

    /// Begins a tenure, since the candidate's request was granted.
    pub(super) fn held(&mut self, key: &LockKey, id: WaiterId, acquired: Acquired, now: Moment) {
        let waiter = self.lines.waiter(id);
        let (terms, overdue) = (waiter.terms, waiter.overdue || waiter.tries);
        // Validity counts from the sending. The server has granted the key, but its answer came so late that the key may expire before
        // the holder would look at its clock.
        if now >= terms.ttl.deadline(acquired.sent) {
            // Without any validity left the acquire has failed. Its token is released, and the next try has a new one: a late
            // release of the old token would otherwise end the lease of the next try.
            let pending = PendingRelease::at_once(key.clone(), acquired.token).with_place();
            self.cleanup.push(pending, acquired.doubt, now);
            if overdue {
                self.lines.waiter(id).state = Standing::InLine(None);
                let ttl = terms.ttl.get();
                let detail = format!("the answer took longer than the ttl of {ttl:?}; raise the ttl");
                self.dismiss(id, Error::new(ErrorKind::Backend, ACQUIRE).on(key).detail(detail), now);
            } else {
                self.contend(id);
            }
            return;
        }
        self.begin_tenure(key, id, &terms, acquired, now);
    }

    /// Begins a tenure by a grant that the candidate trusts, and that keeps the key for `kept`.
    pub(super) fn holds_by(&mut self, id: WaiterId, grant: &Grant, kept: Ttl, now: Moment) {
        let waiter = self.lines.waiter(id);
        let Standing::InLine(Some(candidate)) = &waiter.state else { return };
        let doubt = trust::doubt(candidate.doubt, kept, now);
        // The waiter's own key, not that of the message: the message does not say how much of it is the manager's prefix, and errors
        // and guards show the key without the prefix.
        let (own, terms) = (waiter.key.clone(), waiter.terms);
        let Grant { token, fence, block, sent, .. } = *grant;
        let acquired = Acquired { token, fence, block, sent, doubt, passes: true, granted: Some(kept) };
        let tenure = self.begin_tenure(&own, id, &terms, acquired, now);
        // The grant has the block of fencing tokens that its place asked for. Waiters that joined after the place was made are not
        // counted in that block, so it may be too small for them.
        self.refill(&own, tenure, now);
    }

    fn begin_tenure(
        &mut self,
        key: &LockKey,
        id: WaiterId,
        terms: &Terms,
        acquired: Acquired,
        now: Moment,
    ) -> TenureId {
        let offer = self.tenures.enter(key, terms, acquired, now);
        let tenure = offer.0.tenure;
        if !terms.mode.is_exclusive() {
            self.beside.entry(key.clone()).or_default().push(tenure);
            self.offer(id, offer, now);
            self.contend_next(key);
            return tenure;
        }
        self.lines.possess(key, tenure);
        self.offer(id, offer, now);
        // After the offer, which takes the new holder out of its line: those behind it learn that the key is busy, and a holder that
        // only tries must not be rejected with them.
        self.note_busy_for_all(key, now);
        tenure
    }

    /// Sends a waiter at the front away with an error; the next one contends.
    pub(super) fn dismiss(&mut self, id: WaiterId, error: Error, now: Moment) {
        let waiter = self.lines.waiter(id);
        let (key, terms, tries) = (waiter.key.clone(), waiter.terms, waiter.tries);
        let candidate = self.lines.take_out(id, Standing::Failed(error));
        self.wheel.unset(id);
        self.wake(id);
        match candidate {
            Some(candidate) => self.hand_on_place(&key, candidate, &terms, tries, now),
            None => self.contend_next(&key),
        }
    }

    /// Fails all waiters of a key, since the backend's answer is the same for all of them.
    pub(super) fn fail(&mut self, key: &LockKey, error: &Error, now: Moment) {
        while let Some(id) = self.lines.first(key) {
            let candidate = self.lines.take_out(id, Standing::Failed(error.clone()));
            self.wheel.unset(id);
            self.wake(id);
            if let Some((pending, doubt)) = candidate.and_then(|candidate| candidate.pending(key)) {
                self.cleanup.push(pending, doubt, now);
            }
        }
        self.lines.tidy(key);
    }

    /// Passes the place of a candidate that has given up to the next waiter with the same terms, or leaves the place.
    pub(super) fn hand_on_place(
        &mut self,
        key: &LockKey,
        candidate: Candidate,
        terms: &Terms,
        tries: bool,
        now: Moment,
    ) {
        if let Some(next) = self.lines.first(key) {
            // The place of a reader goes to nobody: its token shares the key. The writer behind it usually contends, but not if it came while
            // this process held the key.
            let is_next = terms.mode.is_exclusive() && !self.lines.is_candidate(next);
            let waiter = self.lines.waiter(next);
            if is_next && !tries && !waiter.tries && waiter.terms.fit(terms.ttl, terms.renewal) {
                let token = candidate.token;
                // The place was made for the former candidate. If no message can reach it (it was made before this process listened,
                // or the holder is another library, which notifies nobody), the new candidate has to ask at once, or it would
                // wait for its next check.
                let is_called = candidate.callable && self.listening && candidate.by != BusyReason::Foreign;
                let asks = !is_called;
                let check = candidate.check_at(now);
                waiter.state = Standing::InLine(Some(candidate));
                self.set_timer(next, check);
                if asks {
                    self.ask(key, token, false);
                }
                // Readers that stood behind this one come to the front with it.
                return self.contend_next(key);
            }
        }
        if let Some((pending, doubt)) = candidate.pending(key) {
            self.cleanup.push(pending, doubt, now);
        }
        self.contend_next(key);
    }

    /// Ends the tenures of this process for a key that was force-released: those that it had `before` that was asked for. Another one may
    /// have begun since by a grant that came with the answer, and goes on. Or it was struck, too: it finds out by its next renewal, and is
    /// ended here if it has none. (It did not begin by a grant alone then, see `trust.rs`.)
    pub(crate) fn forced(&mut self, key: &LockKey, before: &[TenureId], now: Moment) {
        let tenures: Vec<_> = self.tenures_of(key).collect();
        for tenure in tenures {
            if before.contains(&tenure) || !self.tenures.is_renewed(tenure) {
                let ended = self.tenures.take_away(tenure, LossReason::Forced, now);
                self.clean_up_ended(ended, now);
            } else {
                self.tenures.renew_soon(tenure, now);
            }
        }
    }

    /// Finds out whether what this process has of a key is still its own.
    pub(crate) fn changed(&mut self, key: &LockKey, now: Moment) {
        let tenures: Vec<_> = self.tenures_of(key).collect();
        for tenure in tenures {
            self.tenures.renew_soon(tenure, now);
        }
    }

    /// The tenures of a key: that of its line, and those beside it.
    pub(crate) fn tenures_of(&self, key: &LockKey) -> impl Iterator<Item = TenureId> {
        self.lines.tenure(key).into_iter().chain(self.beside.get(key).into_iter().flatten().copied())
    }

    /// Ends a tenure for its line: the first waiter contends, if there is one.
    pub(super) fn free(&mut self, key: &LockKey, tenure: TenureId, holds: u32) {
        if let Some(beside) = self.beside.get_mut(key) {
            if let Some(place) = beside.iter().position(|other| *other == tenure) {
                beside.swap_remove(place);
            }
            if beside.is_empty() {
                self.beside.remove(key);
            }
        }
        if self.lines.dispossess(key, tenure, holds) {
            self.contend_next(key);
        }
    }

    /// Has the waiters at the front of the line contend who do not yet, unless the process possesses the key.
    pub(super) fn contend_next(&mut self, key: &LockKey) {
        let next = self.lines.next_to_contend(key);
        if next.is_empty() {
            self.lines.tidy(key);
        }
        for id in next {
            self.contend(id);
        }
    }

    /// Makes a waiter at the front a candidate, with a token of its own.
    fn contend(&mut self, id: WaiterId) {
        let token = self.token();
        let waiter = self.lines.waiter(id);
        let token = token.in_mode(waiter.terms.mode);
        let candidate = Candidate::new(token);
        waiter.state = Standing::InLine(Some(candidate));
        let key = waiter.key.clone();
        self.ask(&key, token, false);
    }

    /// Puts a waiter at the end of its line again.
    pub(super) fn rejoin(&mut self, id: WaiterId) {
        self.lines.reenter(id);
        let key = self.lines.waiter(id).key.clone();
        self.contend_next(&key);
    }
}
