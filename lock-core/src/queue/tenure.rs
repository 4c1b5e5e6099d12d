//! What this process possesses: its tenures, each with a hold and a time for the engine to look at it; pure.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use slab::Slab;

use crate::{
    backend::{Outcome, Renew},
    cleanup::{Doubt, Parting},
    clock::Moment,
    error::LossReason,
    key::LockKey,
    lease::{Hold, Wakers},
    renewal::{schedule, wheel::Wheel},
    token::Token,
    validity::{Renewal, Ttl},
};

/// A process's stay in possession of a key, from its acquire to its release.
#[derive(Debug)]
pub(crate) struct Tenure {
    pub(crate) key: LockKey,
    /// Drawn anew for each tenure.
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    renewal: Renewal,
    /// The present holder.
    hold: Arc<Hold>,
    /// The number of the present hold, counted within the tenure.
    number: u32,
    /// When to renew next; never for a fixed lease.
    renew_at: Moment,
    /// Whether a renewal waits for its turn or its answer.
    renewing: bool,
    /// Renewals that failed since the last success.
    failures: u32,
    /// Until when the key stays busy even if the hold ends sooner.
    keep_until: Moment,
    doubt: Doubt,
}

/// Names a hold: a guard speaks to the engine with it, and one that is over names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldId {
    tenure: TenureId,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TenureId {
    index: usize,
    /// Tells a tenure from a later one at the same index.
    serial: u64,
}

/// A renewal that the engine is to send, and what it must know when the answer comes.
#[derive(Debug)]
pub(crate) struct Renewing {
    tenure: TenureId,
    /// The version of the hold's deadline when it was sent.
    version: u32,
    pub(crate) request: Renew,
}

/// A tenure that ended by itself: its token must be released.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) parting: Parting,
    pub(crate) doubt: Doubt,
    pub(crate) reason: LossReason,
    /// To be dropped when the engine's lock is not held.
    pub(crate) wakers: Wakers,
}

/// All tenures of a manager.
#[derive(Debug)]
pub(crate) struct Tenures {
    slab: Slab<(u64, Tenure)>,
    next_serial: u64,
    /// One timer per tenure: its next renewal or its end, whichever is first.
    wheel: Wheel,
    /// Renewals that are due and not sent yet, the nearest deadline first.
    due: BinaryHeap<Reverse<(Moment, TenureId)>>,
}

impl Tenures {
    pub(crate) fn new() -> Self {
        Self { slab: Slab::new(), next_serial: 0, wheel: Wheel::new(), due: BinaryHeap::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Enters a tenure that begins with `hold`, for a request that was sent at `sent`; its key stays busy until
    /// `keep_until` even if it ends sooner.
    pub(crate) fn enter(
        &mut self,
        token: Token,
        ttl: Ttl,
        renewal: Renewal,
        hold: Arc<Hold>,
        sent: Moment,
        keep_until: Moment,
    ) -> HoldId {
        let key = hold.key.clone();
        let doubt = Doubt { until: ttl.end(sent), unanswered_since: None };
        let mut tenure = Tenure {
            key,
            token,
            ttl,
            renewal,
            hold,
            number: 1,
            renew_at: Moment::NEVER,
            renewing: false,
            failures: 0,
            keep_until,
            doubt,
        };
        tenure.plan_renewal(sent);
        let serial = self.next_serial;
        self.next_serial += 1;
        let timer = tenure.timer();
        let index = self.slab.insert((serial, tenure));
        self.wheel.set(index, timer);
        HoldId { tenure: TenureId { index, serial }, number: 1 }
    }

    /// Takes a tenure out because its holder is done with it. None if that hold is over already.
    pub(crate) fn leave(&mut self, hold: HoldId) -> Option<Tenure> {
        self.of_hold(hold)?;
        self.remove(hold.tenure)
    }

    /// The tenure of a hold that goes on.
    pub(crate) fn of_hold(&self, hold: HoldId) -> Option<&Tenure> {
        self.get(hold.tenure).filter(|tenure| tenure.number == hold.number)
    }

    /// Takes note that the user's own request moved the deadline, or lowered it.
    pub(crate) fn extended(&mut self, hold: HoldId, sent: Moment, ttl: Ttl) {
        let index = hold.tenure.index;
        let Some(tenure) = self.get_mut(hold.tenure).filter(|tenure| tenure.number == hold.number) else { return };
        tenure.doubt.until = tenure.doubt.until.max(ttl.end(sent));
        tenure.plan_renewal(sent);
        let timer = tenure.timer();
        self.wheel.set(index, timer);
    }

    /// Moves on to `now`: collects the renewals that are due and returns the tenures that ended by themselves.
    pub(crate) fn advance(&mut self, now: Moment) -> Vec<Ended> {
        let mut fired = Vec::new();
        self.wheel.advance(now, |index| fired.push(index));
        // The order within a tick is that of the wheel's lists; make it one that a replay repeats.
        fired.sort_unstable();
        let mut ended = Vec::new();
        for index in fired {
            let Some((serial, tenure)) = self.slab.get_mut(index) else { continue };
            let id = TenureId { index, serial: *serial };
            let (over, wakers) = tenure.hold.settle(None);
            if let Some(reason) = over {
                ended.extend(self.end(id, reason, wakers));
                continue;
            }
            if !tenure.renewing && tenure.renew_at <= now {
                tenure.renewing = true;
                self.due.push(Reverse((tenure.hold.end(), id)));
            }
            let timer = tenure.timer();
            self.wheel.set(index, timer);
        }
        ended
    }

    /// Takes the renewals that are due to be sent `now`, at most `most`, the nearest deadline first.
    pub(crate) fn renewals(&mut self, most: usize, now: Moment) -> Vec<Renewing> {
        let mut renewals = Vec::new();
        while renewals.len() < most
            && let Some(Reverse((_, id))) = self.due.pop()
        {
            let Some(tenure) = self.get_mut(id) else { continue };
            tenure.doubt.until = tenure.doubt.until.max(tenure.ttl.end(now));
            renewals.push(Renewing {
                tenure: id,
                version: tenure.hold.version(),
                request: Renew::new(tenure.key.clone(), tenure.token, tenure.ttl.get()),
            });
        }
        renewals
    }

    pub(crate) fn has_renewals(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes the answer to a renewal that was sent at `sent`; an answer for a tenure that is over is ignored. Returns
    /// the tenure if it ends with the answer.
    pub(crate) fn renewed(
        &mut self,
        renewal: &Renewing,
        outcome: Option<Outcome>,
        sent: Moment,
        now: Moment,
        jitter: f64,
    ) -> Option<Ended> {
        let id = renewal.tenure;
        let tenure = self.get_mut(id)?;
        tenure.renewing = false;
        let taken = match outcome {
            Some(Outcome::Renewed { .. }) => {
                tenure.failures = 0;
                tenure.hold.raise(tenure.ttl.deadline(sent), renewal.version);
                tenure.plan_renewal(sent);
                None
            }
            Some(_) => Some(LossReason::Taken),
            None => {
                tenure.failures += 1;
                let interval = tenure.renewal.interval(tenure.ttl).unwrap_or_else(|| tenure.ttl.get());
                tenure.renew_at = schedule::after_failure(now, tenure.failures, interval, jitter);
                None
            }
        };
        let (over, wakers) = tenure.hold.settle(taken);
        if let Some(reason) = over {
            return self.end(id, reason, wakers);
        }
        let timer = tenure.timer();
        self.wheel.set(id.index, timer);
        None
    }

    /// Ends a hold that is still going on, as when an answer to its own request said so.
    pub(crate) fn lose(&mut self, hold: HoldId, reason: LossReason) -> Option<Ended> {
        let (over, wakers) = self.of_hold(hold)?.hold.settle(Some(reason));
        self.end(hold.tenure, over?, wakers)
    }

    /// Ends every tenure of a key (or of all keys).
    pub(crate) fn lose_all(&mut self, key: Option<&LockKey>, reason: LossReason) -> Vec<Ended> {
        let ids: Vec<_> = self
            .slab
            .iter()
            .filter(|(_, (_, tenure))| key.is_none_or(|key| tenure.key == *key))
            .map(|(index, (serial, _))| TenureId { index, serial: *serial })
            .collect();
        let lose = |id| {
            let (over, wakers) = self.get(id)?.hold.settle(Some(reason));
            self.end(id, over?, wakers)
        };
        ids.into_iter().filter_map(lose).collect()
    }

    /// When [`advance`](Self::advance) has something to do next.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.wheel.next()
    }

    fn end(&mut self, id: TenureId, reason: LossReason, wakers: Wakers) -> Option<Ended> {
        let tenure = self.remove(id)?;
        Some(Ended { parting: Parting::at_once(tenure.key, tenure.token), doubt: tenure.doubt, reason, wakers })
    }

    fn remove(&mut self, id: TenureId) -> Option<Tenure> {
        self.get(id)?;
        self.wheel.unset(id.index);
        self.slab.try_remove(id.index).map(|(_, tenure)| tenure)
    }

    fn get(&self, id: TenureId) -> Option<&Tenure> {
        self.slab.get(id.index).filter(|(serial, _)| *serial == id.serial).map(|(_, tenure)| tenure)
    }

    fn get_mut(&mut self, id: TenureId) -> Option<&mut Tenure> {
        self.slab.get_mut(id.index).filter(|(serial, _)| *serial == id.serial).map(|(_, tenure)| tenure)
    }
}

impl Tenure {
    /// How its key is to be left by its holder.
    pub(crate) fn parting(&self) -> Parting {
        Parting { key: self.key.clone(), token: self.token, keep_until: self.keep_until }
    }

    /// What must be true before the token can be forgotten once the tenure is over.
    pub(crate) fn doubt(&self) -> Doubt {
        self.doubt
    }

    /// Sets the time of the next renewal after a success that was sent at `sent`.
    fn plan_renewal(&mut self, sent: Moment) {
        self.renew_at = match self.renewal.interval(self.ttl) {
            Some(interval) => schedule::after_success(sent, interval, self.hold.end()),
            None => Moment::NEVER,
        };
    }

    /// When the engine must look at the tenure.
    fn timer(&self) -> Moment {
        let end = self.hold.end();
        if self.renewing { end } else { end.min(self.renew_at) }
    }
}

#[cfg(test)]
mod tests {
    use std::{panic::Location, time::Duration};

    use super::*;
    use crate::{
        clock::{Clock, Sleep},
        token::FencingToken,
    };

    /// A clock that stands still: these tests say what the time is.
    #[derive(Debug)]
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            at(0)
        }

        fn sleep(&self, _: Duration) -> Sleep {
            Box::pin(std::future::pending())
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn enter(tenures: &mut Tenures, key: &str, ttl_ms: u64) -> HoldId {
        let ttl = Ttl::new(Duration::from_millis(ttl_ms)).unwrap();
        let (key, fence) = (LockKey::new(key).unwrap(), FencingToken::new(1));
        let hold = Hold::new(key, fence, Location::caller(), "", Arc::new(Still), ttl.deadline(at(0)), Moment::NEVER);
        tenures.enter(Token::from_random(1), ttl, Renewal::ThirdOfTtl, Arc::new(hold), at(0), at(0))
    }

    #[test]
    fn renewals_that_fell_behind_are_sent_with_the_nearest_deadline_first() {
        let mut tenures = Tenures::new();
        for ttl_ms in [900, 300, 600, 1_200] {
            enter(&mut tenures, &ttl_ms.to_string(), ttl_ms);
        }
        assert!(tenures.advance(at(500)).is_empty());
        let first = tenures.renewals(2, at(500));
        let rest = tenures.renewals(9, at(500));
        let keys = |renewals: &[Renewing]| -> Vec<_> {
            renewals.iter().map(|renewal| renewal.request.key.as_str().to_owned()).collect()
        };
        assert_eq!((keys(&first), keys(&rest)), (vec!["300".into(), "600".into()], vec!["900".into(), "1200".into()]));
    }

    #[test]
    fn a_hold_that_is_over_names_nothing_even_when_its_place_is_taken_again() {
        let mut tenures = Tenures::new();
        let first = enter(&mut tenures, "first", 900);
        assert!(tenures.leave(first).is_some());
        let second = enter(&mut tenures, "second", 900);
        assert_eq!(first.tenure.index, second.tenure.index);
        assert!(tenures.leave(first).is_none() && tenures.lose(first, LossReason::Taken).is_none());
        assert!(tenures.of_hold(first).is_none() && tenures.of_hold(second).is_some());
        let later = HoldId { number: 2, ..second };
        assert!(tenures.leave(later).is_none(), "a later hold of the tenure is another hold");
        assert_eq!(tenures.len(), 1);
    }

    #[test]
    fn a_renewal_under_way_is_not_sent_again_and_its_late_answer_is_ignored() {
        let mut tenures = Tenures::new();
        let hold = enter(&mut tenures, "k", 900);
        tenures.advance(at(300));
        let renewals = tenures.renewals(9, at(300));
        tenures.advance(at(600));
        assert!(!tenures.has_renewals());
        tenures.leave(hold);
        assert!(tenures.renewed(&renewals[0], Some(Outcome::Gone), at(300), at(601), 0.5).is_none());
    }
}
