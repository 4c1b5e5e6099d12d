//! The holder's side of a key: entering, releasing the hold, and handing the token to another process.

use std::{collections::HashMap, mem, time::Duration};

use super::{Departure, HandedOver, Queues, in_flight::Item};
use crate::{
    backend::{Token, cleanup::PendingRelease},
    clock::Moment,
    engine::{
        responder::Responder,
        tenure::{Acquired, Ended, HoldId, Offer, Tenure},
        terms::Terms,
    },
    key::LockKey,
    mode::Mode,
};

impl Queues {
    /// Ends a hold as its holder wishes. The next waiter's hold follows, or the key is released by the request that `ask`
    /// makes.
    pub(crate) fn release<R>(
        &mut self,
        hold: HoldId,
        now: Moment,
        ask: impl FnOnce() -> (Responder, R),
    ) -> Departure<R> {
        // Passing comes first: the next hold follows under the same token, so the key must not be released, not even for a moment. If
        // nobody follows, the tenure is removed before the release is registered, so that no renewal can be sent after the release:
        // executed in that order, it would find the key gone and report a loss.
        if self.pass(hold, now) {
            return Departure::Passed;
        }
        let Some(tenure) = self.tenures.leave(hold, now) else { return Departure::Over };
        let (pending, doubt) = (tenure.pending(), tenure.doubt);
        self.keep_busy(&pending, now);
        let key = pending.key.clone();
        let (responder, response) = ask();
        // The release is registered before the next waiter contends: both travel in one call, and the acquire must find the key released.
        self.request_release(pending, doubt, responder);
        self.free(&key, hold.tenure, tenure.holds());
        Departure::Released(response)
    }

    /// Ends a hold whose guard was dropped.
    pub(crate) fn abandon(&mut self, hold: HoldId, now: Moment) {
        if self.pass(hold, now) {
            return;
        }
        if let Some(tenure) = self.tenures.leave(hold, now) {
            let pending = tenure.pending();
            let key = pending.key.clone();
            self.keep_busy(&pending, now);
            self.cleanup.push(pending, tenure.doubt, now);
            self.free(&key, hold.tenure, tenure.holds());
        }
    }

    /// Ends a hold whose token goes elsewhere.
    pub(crate) fn hand_over(&mut self, hold: HoldId, now: Moment) -> Option<Tenure> {
        let tenure = self.tenures.leave(hold, now)?;
        // The token is on its way to another process. It is remembered until it must have expired, because a late message for it would
        // otherwise look like a stray token here, and its clean-up would free the key before that process has taken it up.
        let until = tenure.doubt.until.max(tenure.ttl.end(now));
        let (proven, fence) = tenure.proof();
        remember(&mut self.handed_over, tenure.token, HandedOver { until, proven, fence }, |known| known.until, now);
        if let Some(renewing) = tenure.renews_for_another(hold.tenure) {
            self.outbox.push_back(Item::LastRenewal(Box::new(renewing)));
        }
        self.free(tenure.key(), hold.tenure, tenure.holds());
        Some(tenure)
    }

    /// Remembers a token whose key stays busy after its release: another release of it has to leave the key so too.
    fn keep_busy(&mut self, pending: &PendingRelease, now: Moment) {
        if now < pending.keep_until {
            remember(&mut self.kept, pending.token, pending.keep_until, |until| *until, now);
        }
    }

    /// Enters the tenure of an acquire that did not go through a line, and begins its hold. Holds follow it only if nobody in this
    /// process has asked for the key meanwhile.
    pub(crate) fn enter(&mut self, key: &LockKey, terms: &Terms, acquired: Acquired, now: Moment) -> Offer {
        let passes = acquired.passes && terms.mode.is_exclusive() && self.lines.of(key).is_none();
        let (id, hold) = self.tenures.enter(key, terms, Acquired { passes, ..acquired }, now);
        self.tenures.begin(id, terms, now);
        if passes {
            self.lines.possess(key, id.tenure);
        } else {
            self.beside.entry(key.clone()).or_default().push(id.tenure);
        }
        (id, hold)
    }

    /// Whether nobody in this process has a key, or wants it, so that a request may go past the line. Those that share the key
    /// are in nobody's way. A key that was busy lately is asked for in the line, too.
    pub(crate) fn is_quiet(&self, key: &LockKey, mode: Mode, now: Moment) -> bool {
        let is_held = mode.is_exclusive() && self.beside.contains_key(key);
        !is_held && self.lines.of(key).is_none() && !self.recently_busy.was_busy(key, now)
    }

    /// Records that another holder has a key.
    pub(crate) fn found_busy(&mut self, key: &LockKey, now: Moment) {
        self.recently_busy.found_busy(key, now);
    }

    /// Has the tokens of tenures that ended by themselves cleaned up, and lets the next waiters contend.
    pub(crate) fn clean_up_ended(&mut self, ended: impl IntoIterator<Item = Ended>, now: Moment) {
        for Ended { tenure, pending, doubt, lapsed, ending } in ended {
            if lapsed {
                self.tenures.slack.note(Duration::ZERO, now);
            }
            let key = pending.key.clone();
            self.cleanup.push(pending, doubt, now);
            self.deferred.endings.push(ending);
            self.free(&key, tenure, 0);
        }
    }

    /// Puts losses off for the log, until no lock is held.
    pub(super) fn put_off_losses(&mut self) {
        for (key, loss, at) in mem::take(&mut self.tenures.lost) {
            self.deferred.losses.push((key, loss, self.losses.has_line(at)));
        }
    }
}

/// Enters a token until a moment. Those whose time is over are swept out when the map would have to grow, so that it costs
/// the same however many there were.
fn remember<T>(tokens: &mut HashMap<Token, T>, token: Token, known: T, until: impl Fn(&T) -> Moment, now: Moment) {
    if tokens.len() == tokens.capacity() {
        tokens.retain(|_, known| now < until(known));
        tokens.reserve(tokens.len());
    }
    tokens.insert(token, known);
}
