//! All tenures of this process, each with a time for the engine to look at it; pure.

use std::{cmp::Reverse, collections::BinaryHeap, mem, num::NonZeroU64, sync::Arc};

use slab::Slab;

use super::{Acquired, BUDGET, Ended, Fences, HoldId, Offer, Tenure, TenureId};
use crate::{
    backend::{
        Token,
        cleanup::{AT_ONCE, Doubt, PendingRelease},
    },
    clock::Moment,
    end::End,
    engine::{
        hold::{Ending, Hold, Validity},
        pulse::Pulse,
        schedule,
        slack::Slack,
        terms::Terms,
        trust,
        wheel::Wheel,
    },
    error::LossReason,
    key::LockKey,
    lost::Loss,
    ttl::Renewal,
};

/// All tenures of a manager.
#[derive(Debug)]
pub(crate) struct Tenures {
    pulse: Arc<Pulse>,
    slab: Slab<(NonZeroU64, Tenure)>,
    next_serial: NonZeroU64,
    /// One timer per tenure: its next renewal or its end, whichever is first.
    pub(crate) wheel: Wheel,
    /// Renewals that are due and not sent yet, the nearest deadline first.
    pub(crate) due: BinaryHeap<Reverse<(Moment, TenureId)>>,
    /// Until when a connection that is made has no tenure looked at, since all were just before.
    pub(super) next_connected: Moment,
    /// When a connection was made last, and from when on it has tenures looked at.
    pub(super) connected: (Moment, Moment),
    /// The time that deadlines had left when they were renewed lately; zero if a deadline passed before its renewal.
    pub(crate) slack: Slack,
    /// The leases that were lost since the manager was made.
    pub(crate) losses: [(LossReason, u64); 5],
    /// Those of them that are not put off for the log yet.
    pub(crate) lost: Vec<(LockKey, Loss, Moment)>,
    /// How many holds have begun since then.
    pub(crate) acquired: u64,
}

impl Tenures {
    pub(crate) fn new(pulse: Arc<Pulse>) -> Self {
        let (slab, due, lost, acquired) = Default::default();
        let (next_serial, wheel, slack) = (NonZeroU64::MIN, Wheel::new(), Slack::new());
        let losses = LossReason::ALL.map(|reason| (reason, 0));
        let (next_connected, connected) = (AT_ONCE, (AT_ONCE, AT_ONCE));
        Self { pulse, slab, next_serial, wheel, due, next_connected, connected, slack, losses, lost, acquired }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Enters a tenure with its first hold, which may begin.
    pub(crate) fn enter(&mut self, key: &LockKey, terms: &Terms, acquired: Acquired, now: Moment) -> Offer {
        let Acquired { token, fence, block, sent, doubt, passes, granted } = acquired;
        let deadline = granted.unwrap_or(terms.ttl).deadline(sent);
        let validity = Validity { deadline, danger: Moment::NEVER, version: 0 };
        let hold = Hold::new(key.clone(), fence, terms, &self.pulse, validity);
        let mut tenure = Tenure {
            token,
            ttl: terms.ttl,
            renewal: terms.renewal,
            since: now,
            passes: passes && terms.mode.is_exclusive(),
            granted: granted.is_some(),
            proven: sent,
            fences: Fences::after_first(fence, block),
            above_first: 0,
            refilling: false,
            replicated: 0,
            hold: Arc::clone(&hold),
            number: 1,
            renew_at: Moment::NEVER,
            renewing: false,
            changed: false,
            failures: 0,
            keep_until: AT_ONCE,
            doubt: Doubt { until: doubt.until.max(terms.ttl.end(sent)), ..doubt },
        };
        if granted.is_none() {
            tenure.plan_renewal(sent, validity.deadline);
        } else {
            tenure.renew_at = trust::renew_at(now, validity.deadline);
            hold.note_danger(schedule::danger(tenure.renew_at, validity.deadline));
        }
        let serial = self.next_serial;
        self.next_serial = serial.saturating_add(1);
        let timer = tenure.timer(validity.deadline);
        let index = self.slab.insert((serial, tenure));
        self.wheel.set(index, timer);
        let id = TenureId::new(index, serial);
        if granted.is_none() {
            self.look_again(id, sent, now);
        }
        (HoldId { tenure: id, number: 1 }, hold)
    }

    /// Begins a hold that was offered, unless it has ended: from now on it counts for its own longest and shortest time.
    pub(crate) fn begin(&mut self, hold: HoldId, terms: &Terms, now: Moment) -> bool {
        let Some(tenure) = self.present(hold) else { return false };
        if !tenure.hold.begin(now) {
            return false;
        }
        if !terms.at_least.is_zero() {
            tenure.keep_until = now + terms.at_least;
        }
        if let Some(max_hold) = terms.max_hold {
            self.end_by(hold, now + max_hold);
        }
        self.acquired += 1;
        true
    }

    /// Has a hold end at `latest`, however long it is renewed.
    pub(crate) fn end_by(&mut self, hold: HoldId, latest: Moment) {
        let Some(tenure) = self.present(hold) else { return };
        tenure.hold.end_by(latest);
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(hold.tenure.index(), timer);
    }

    /// Has the key of a hold freed when the hold ends, also if its terms keep the key busy for longer.
    pub(crate) fn keep_no_longer(&mut self, hold: HoldId) {
        if let Some(tenure) = self.present(hold) {
            tenure.keep_until = AT_ONCE;
        }
    }

    /// Has the hold of the next waiter follow one that is over, if the tenure can continue. The terms have to fit, and the key must
    /// not be kept for the old hold. Half the ttl and a fencing token have to be left. And other processes must not have waited for
    /// too long.
    pub(crate) fn pass(&mut self, hold: HoldId, terms: &Terms, now: Moment) -> Option<Offer> {
        let pulse = Arc::clone(&self.pulse);
        let tenure = self.present(hold)?;
        let validity = tenure.hold.validity();
        let goes_on = tenure.passes
            && terms.fit(tenure.ttl, tenure.renewal)
            && tenure.keep_until <= now
            && now < tenure.since + BUDGET
            && match tenure.granted {
                true => trust::leaves_enough(tenure.since, validity.deadline, now),
                false => validity.deadline.since(now) >= tenure.ttl.get() / 2,
            };
        if !goes_on {
            return None;
        }
        let fence = tenure.fences.take()?;
        tenure.number += 1;
        tenure.above_first = u32::try_from(fence.saturating_sub(tenure.first_fence())).unwrap_or(u32::MAX);
        let next = Hold::new(tenure.key().clone(), fence, terms, &pulse, validity);
        let last = mem::replace(&mut tenure.hold, next);
        let offer = (HoldId { number: tenure.number, ..hold }, Arc::clone(&tenure.hold));
        // It may have gone off between the end of the last hold and this.
        let timer = tenure.timer(validity.deadline);
        self.wheel.set(hold.tenure.index(), timer);
        self.note_loss(&last, now);
        Some(offer)
    }

    /// Ends a tenure whose time is over, if that was not noticed before.
    pub(crate) fn settle(&mut self, tenure: TenureId) -> Option<Ended> {
        let hold = &self.get(tenure)?.hold;
        let now = hold.now();
        let (over, ending) = hold.settle(now, None);
        self.finish(tenure, over?, ending, now)
    }

    /// The present hold of a tenure.
    pub(crate) fn hold(&self, tenure: TenureId) -> Option<&Arc<Hold>> {
        self.get(tenure).map(|tenure| &tenure.hold)
    }

    pub(crate) fn token(&self, tenure: TenureId) -> Option<Token> {
        self.get(tenure).map(|tenure| tenure.token)
    }

    pub(crate) fn is_renewed(&self, tenure: TenureId) -> bool {
        self.get(tenure).is_some_and(|tenure| tenure.renewal != Renewal::Never)
    }

    /// When its key is free at the latest, if its holder neither releases nor renews it.
    pub(crate) fn end(&self, tenure: TenureId) -> Option<Moment> {
        self.get(tenure).map(|tenure| tenure.hold.end().max(tenure.keep_until))
    }

    /// Takes a tenure out because its holder is done with it. Returns `None` if that hold is over already.
    pub(crate) fn leave(&mut self, hold: HoldId, now: Moment) -> Option<Tenure> {
        self.of_hold(hold)?;
        self.remove(hold.tenure, now)
    }

    /// The tenure of a hold that goes on.
    pub(crate) fn of_hold(&self, hold: HoldId) -> Option<&Tenure> {
        self.get(hold.tenure).filter(|tenure| tenure.number == hold.number)
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
            let id = TenureId::new(index, *serial);
            // The clock is not read here: if it panicked, those that have fired would have no timer any longer.
            let (over, ending) = tenure.hold.settle(now, None);
            if let Some(end) = over {
                ended.extend(self.finish(id, end, ending, now));
                continue;
            }
            let end = tenure.hold.end();
            if !tenure.renewing && tenure.renew_at <= now {
                tenure.renewing = true;
                self.due.push(Reverse((end, id)));
            }
            let timer = tenure.timer(end);
            self.wheel.set(index, timer);
        }
        ended
    }

    /// Ends a hold that is still going on, as when an answer to its own request said so.
    pub(crate) fn lose(&mut self, hold: HoldId, reason: LossReason, now: Moment) -> Option<Ended> {
        self.of_hold(hold)?;
        self.take_away(hold.tenure, reason, now)
    }

    /// Ends every tenure. The clock is not read here: it may be what has failed.
    pub(crate) fn lose_all(&mut self, reason: LossReason, now: Moment) -> Vec<Ended> {
        self.ids().into_iter().filter_map(|id| self.take_away(id, reason, now)).collect()
    }

    pub(super) fn ids(&self) -> Vec<TenureId> {
        self.slab.iter().map(|(index, (serial, _))| TenureId::new(index, *serial)).collect()
    }

    /// Ends a tenure whose key is no longer its own, or will not be. Even if its holder has just released it, the tenure is
    /// not passed on.
    pub(crate) fn take_away(&mut self, id: TenureId, reason: LossReason, now: Moment) -> Option<Ended> {
        let tenure = self.get_mut(id)?;
        // The holder may have ended its hold on another thread, and not reached the engine yet. Its tenure then stays, and must not pass
        // on a key that is no longer its own.
        tenure.passes = false;
        let (over, ending) = tenure.hold.settle(now, Some(End::Lost(reason)));
        self.finish(id, over?, ending, now)
    }

    /// Takes a tenure out that is over. One whose holder has just released it waits for what that says next.
    pub(super) fn finish(&mut self, id: TenureId, end: End, ending: Ending, now: Moment) -> Option<Ended> {
        let reason = end.loss()?;
        let tenure = self.remove(id, now)?;
        let pending = PendingRelease::at_once(tenure.key().clone(), tenure.token);
        let lapsed = reason == LossReason::Expired && tenure.renewal != Renewal::Never;
        Some(Ended { tenure: id, pending, doubt: tenure.doubt, lapsed, ending })
    }

    fn remove(&mut self, id: TenureId, now: Moment) -> Option<Tenure> {
        self.get(id)?;
        self.wheel.unset(id.index());
        let (_, tenure) = self.slab.try_remove(id.index())?;
        self.note_loss(&tenure.hold, now);
        Some(tenure)
    }

    /// Its guard may have found out for itself that the time was over, before the engine did.
    fn note_loss(&mut self, hold: &Hold, now: Moment) {
        if let Some(reason) = hold.loss() {
            for (counted, number) in &mut self.losses {
                *number += u64::from(*counted == reason);
            }
            self.lost.push((hold.key.clone(), hold.loss_of(reason, now), now));
        }
    }

    pub(super) fn get(&self, id: TenureId) -> Option<&Tenure> {
        self.slab.get(id.index()).filter(|(serial, _)| *serial == id.serial).map(|(_, tenure)| tenure)
    }

    pub(super) fn get_mut(&mut self, id: TenureId) -> Option<&mut Tenure> {
        self.slab.get_mut(id.index()).filter(|(serial, _)| *serial == id.serial).map(|(_, tenure)| tenure)
    }

    /// The tenure whose present hold is this one.
    pub(super) fn present(&mut self, hold: HoldId) -> Option<&mut Tenure> {
        self.get_mut(hold.tenure).filter(|tenure| tenure.number == hold.number)
    }
}
