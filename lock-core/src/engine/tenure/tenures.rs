//! All tenures of this process, each with a time for the engine to look at it; pure.

use std::{cmp::Reverse, collections::BinaryHeap, num::NonZeroU64, sync::Arc, time::Duration};

use slab::Slab;

use super::{Acquired, BUDGET, Ended, Fences, HoldId, Offer, Renewing, Tenure, TenureId, Terms, block_for};
use crate::{
    backend::{Outcome, Renew, Token},
    clock::{Clock, Moment},
    end::End,
    engine::{
        cleanup::{AT_ONCE, Doubt, Parting},
        deferred::Deferred,
        hold::{Ending, Validity},
        schedule,
        slack::Slack,
        trust,
        wheel::Wheel,
    },
    error::LossReason,
    key::LockKey,
    mutants::Mutant,
    ttl::{Renewal, Ttl},
};

/// All tenures of a manager.
#[derive(Debug)]
pub(crate) struct Tenures {
    slab: Slab<(NonZeroU64, Tenure)>,
    next_serial: NonZeroU64,
    /// One timer per tenure: its next renewal or its end, whichever is first.
    pub(super) wheel: Wheel,
    /// Renewals that are due and not sent yet, the nearest deadline first.
    due: BinaryHeap<Reverse<(Moment, TenureId)>>,
    /// What deadlines had left when they were renewed lately; nothing where one passed before.
    pub(crate) slack: Slack,
}

impl Tenures {
    pub(crate) fn new() -> Self {
        Self {
            slab: Slab::new(),
            next_serial: NonZeroU64::MIN,
            wheel: Wheel::new(),
            due: BinaryHeap::new(),
            slack: Slack::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Enters a tenure with its first hold, which may begin.
    pub(crate) fn enter(
        &mut self,
        key: &LockKey,
        terms: &Terms,
        acquired: Acquired,
        clock: &Arc<dyn Clock>,
        now: Moment,
    ) -> Offer {
        let Acquired { token, fence, block, mut sent, doubt, passes, granted } = acquired;
        if Mutant::DeadlineFromReply.is_on() {
            sent = now;
        }
        let mut validity = Validity { deadline: granted.unwrap_or(terms.ttl).deadline(sent), version: 0 };
        if granted.is_some() && Mutant::GrantForTheTtl.is_on() {
            validity.deadline = terms.ttl.deadline(sent);
        }
        let hold = terms.hold(key, fence, clock, validity);
        let mut tenure = Tenure {
            token,
            ttl: terms.ttl,
            renewal: terms.renewal,
            since: now,
            passes,
            granted: granted.is_some(),
            proven: sent,
            fences: Fences::after_first(fence, block),
            refilling: false,
            hold: Arc::clone(&hold),
            number: 1,
            renew_at: Moment::NEVER,
            renewing: false,
            failures: 0,
            too_far: None,
            keep_until: AT_ONCE,
            doubt: Doubt { until: doubt.until.max(terms.ttl.end(sent)), ..doubt },
        };
        if granted.is_none() {
            tenure.plan_renewal(sent, validity.deadline);
        } else if Mutant::GrantNotRenewed.is_on() {
            tenure.renew_at = terms.ttl.end(sent);
        } else {
            tenure.renew_at = trust::renew_at(now, validity.deadline);
        }
        let serial = self.next_serial;
        self.next_serial = serial.saturating_add(1);
        let timer = tenure.timer(validity.deadline);
        let index = self.slab.insert((serial, tenure));
        self.wheel.set(index, timer);
        (HoldId { tenure: TenureId::new(index, serial), number: 1 }, hold)
    }

    /// Begins a hold that was offered, unless it has ended: from now on it counts for its own longest and shortest time.
    pub(crate) fn begin(&mut self, hold: HoldId, terms: &Terms, now: Moment) -> bool {
        let of_hold = |tenure: &&mut Tenure| tenure.number == hold.number;
        let Some(tenure) = self.get_mut(hold.tenure).filter(of_hold) else { return false };
        if !tenure.hold.begin(now, terms.max_hold.map_or(Moment::NEVER, |max_hold| now + max_hold)) {
            return false;
        }
        if !terms.at_least.is_zero() {
            tenure.keep_until = now + terms.at_least;
        }
        if terms.max_hold.is_some() {
            let timer = tenure.timer(tenure.hold.end());
            self.wheel.set(hold.tenure.index(), timer);
        }
        true
    }

    /// Has the hold of the next waiter follow one that is over, if the tenure can go on: the terms fit, the key need
    /// not be kept for the old hold, half the ttl and a fencing token are left, and others have not waited for too long.
    pub(crate) fn pass(&mut self, hold: HoldId, terms: &Terms, clock: &Arc<dyn Clock>, now: Moment) -> Option<Offer> {
        let tenure = self.get_mut(hold.tenure).filter(|tenure| tenure.number == hold.number)?;
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
        let mut fence = tenure.fences.take()?;
        if Mutant::PassWithoutFence.is_on() {
            fence = tenure.hold.fence.get();
        }
        let mut validity = validity;
        if Mutant::PassForTheWholeTtl.is_on() {
            validity.deadline = tenure.ttl.deadline(now);
        }
        tenure.number += 1;
        tenure.hold = terms.hold(tenure.key(), fence, clock, validity);
        let offer = (HoldId { number: tenure.number, ..hold }, Arc::clone(&tenure.hold));
        // It may have gone off between the end of the last hold and this.
        let timer = tenure.timer(validity.deadline);
        self.wheel.set(hold.tenure.index(), timer);
        Some(offer)
    }

    /// The request for another block of fencing tokens, where the present one comes to its end and `waiters` are left;
    /// `holds` is how many followed one another in the last tenure.
    pub(crate) fn refill(&mut self, tenure: TenureId, waiters: usize, holds: u32, now: Moment) -> Option<Renewing> {
        let found = self.get_mut(tenure)?;
        let block = block_for(waiters, found.number.max(holds));
        if found.refilling || found.fences.left() >= u64::from(block).div_ceil(2) || now >= found.since + BUDGET {
            return None;
        }
        found.refilling = true;
        found.doubt.until = found.doubt.until.max(found.ttl.end(now));
        let request = Renew::new(found.key().clone(), found.token, found.ttl.get()).with_block(block);
        Some(Renewing { tenure, version: found.hold.version(), request })
    }

    /// Takes the answer to a request for another block, which was sent at `sent`. Returns the tenure if it ends with the
    /// answer.
    pub(crate) fn refilled(
        &mut self,
        refill: &Renewing,
        outcome: Option<Outcome>,
        sent: Moment,
        deferred: &mut Deferred,
    ) -> Option<Ended> {
        let id = refill.tenure;
        let tenure = self.get_mut(id)?;
        tenure.refilling = false;
        match outcome {
            Some(Outcome::Renewed { fence, block, .. }) => {
                if let Some(fence) = fence {
                    tenure.fences.follow(fence, block);
                }
                let slack = tenure.hold.raise(tenure.ttl.deadline(sent), refill.version);
                let slack = slack.filter(|_| !tenure.granted);
                if std::mem::take(&mut tenure.granted) {
                    // The renewal that would have come soon is not needed any more.
                    tenure.plan_renewal(sent, tenure.hold.validity().deadline);
                }
                tenure.proved(sent);
                deferred.renewed(tenure.hold.label(), slack);
                None
            }
            Some(_) => self.take_away(id, LossReason::Taken),
            None => None,
        }
    }

    /// Whether the tenure of a renewal goes on.
    pub(crate) fn has(&self, renewing: &Renewing) -> bool {
        self.get(renewing.tenure).is_some()
    }

    /// Ends a tenure whose time is over, if nobody noticed before.
    pub(crate) fn settle(&mut self, tenure: TenureId) -> Option<Ended> {
        let (over, ending) = self.get(tenure)?.hold.settle(None);
        self.finish(tenure, over?, ending)
    }

    pub(crate) fn token(&self, tenure: TenureId) -> Option<Token> {
        self.get(tenure).map(|tenure| tenure.token)
    }

    /// When its key is free at the latest, if its holder neither releases nor renews it.
    pub(crate) fn end(&self, tenure: TenureId) -> Option<Moment> {
        self.get(tenure).map(|tenure| tenure.hold.end().max(tenure.keep_until))
    }

    /// Takes a tenure out because its holder is done with it. None if that hold is over already.
    pub(crate) fn leave(&mut self, hold: HoldId) -> Option<Tenure> {
        self.of_hold(hold)?;
        if Mutant::RenewalAfterRelease.is_on() {
            let kept = self.get(hold.tenure)?;
            return Some(Tenure { hold: Arc::clone(&kept.hold), fences: Fences::after_first(0, 1), ..*kept });
        }
        self.remove(hold.tenure)
    }

    /// The tenure of a hold that goes on.
    pub(crate) fn of_hold(&self, hold: HoldId) -> Option<&Tenure> {
        self.get(hold.tenure).filter(|tenure| tenure.number == hold.number || Mutant::LateGuardActs.is_on())
    }

    /// Takes note that the user's own request is sent, and has lowered the deadline.
    pub(crate) fn extending(&mut self, hold: HoldId, sent: Moment, ttl: Ttl) {
        self.moves(hold, sent, ttl, false);
    }

    /// Takes note that the user's own request moved the deadline.
    pub(crate) fn extended(&mut self, hold: HoldId, sent: Moment, ttl: Ttl) {
        self.moves(hold, sent, ttl, true);
    }

    fn moves(&mut self, hold: HoldId, sent: Moment, ttl: Ttl, answered: bool) {
        let index = hold.tenure.index();
        let Some(tenure) = self.get_mut(hold.tenure).filter(|tenure| tenure.number == hold.number) else { return };
        tenure.doubt.until = tenure.doubt.until.max(ttl.end(sent));
        if answered {
            tenure.proved(sent);
        }
        let soon = if tenure.granted { tenure.renew_at } else { Moment::NEVER };
        tenure.plan_renewal(sent, tenure.hold.validity().deadline);
        tenure.renew_at = tenure.renew_at.min(soon);
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(index, timer);
    }

    /// Takes note of what a request of the user's own, sent at `sent`, found to be left at the key.
    pub(crate) fn found(&mut self, hold: HoldId, remaining: Duration, sent: Moment) {
        if let Some(tenure) = self.get_mut(hold.tenure).filter(|tenure| tenure.number == hold.number) {
            tenure.found(remaining, sent);
        }
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
            let (over, ending) = tenure.hold.settle(None);
            if let Some(end) = over
                && !Mutant::RenewalAfterRelease.is_on()
            {
                ended.extend(self.finish(id, end, ending));
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

    /// Takes the renewals that are due to be sent `now`, at most `most`, the nearest deadline first.
    pub(crate) fn renewals(&mut self, most: usize, now: Moment) -> Vec<Renewing> {
        let mut renewals = Vec::new();
        while renewals.len() < most
            && let Some(Reverse((_, id))) = self.due.pop()
        {
            let Some(tenure) = self.get_mut(id) else { continue };
            tenure.doubt.until = tenure.doubt.until.max(tenure.ttl.end(now));
            let mut request = tenure.renew(tenure.ttl, now);
            // Half of what is left: then there is time for another try. What a grant gave is too little to tell silence by.
            let left = tenure.hold.end().since(now);
            request.within = if tenure.granted { left } else { left / 2 };
            renewals.push(Renewing { tenure: id, version: tenure.hold.version(), request });
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
        deferred: &mut Deferred,
    ) -> Option<Ended> {
        let id = renewal.tenure;
        let tenure = self.get_mut(id)?;
        tenure.renewing = false;
        let mut slack = None;
        match outcome {
            Some(Outcome::Renewed { remaining, .. }) => {
                tenure.failures = 0;
                let mut counts_from = sent;
                if Mutant::DeadlineFromReply.is_on() {
                    counts_from = now;
                }
                slack = tenure.hold.raise(tenure.ttl.deadline(counts_from), renewal.version);
                // What a grant gave is less than the ttl, and says nothing of how late renewals are.
                slack = slack.filter(|_| !tenure.granted);
                deferred.renewed(tenure.hold.label(), slack);
                tenure.proved(sent);
                tenure.plan_renewal(sent, tenure.hold.validity().deadline);
                tenure.found(remaining, sent);
                if tenure.too_far.is_some() && renewal.request.too_far.is_none() {
                    tenure.renew_at = now; // at once, lest the holder dies before
                }
            }
            Some(_) if !Mutant::GoneIsFailure.is_on() => return self.take_away(id, LossReason::Taken),
            _ => {
                tenure.failures += 1;
                let interval = tenure.renewal.interval(tenure.ttl).unwrap_or_else(|| tenure.ttl.get());
                tenure.renew_at = schedule::after_failure(now, tenure.failures, interval, jitter);
            }
        }
        let (over, ending) = tenure.hold.settle(None);
        let timer = tenure.timer(tenure.hold.end());
        if let Some(slack) = slack {
            self.slack.note(slack, now);
        }
        if let Some(end) = over {
            return self.finish(id, end, ending);
        }
        self.wheel.set(id.index(), timer);
        None
    }

    /// Ends a hold that is still going on, as when an answer to its own request said so.
    pub(crate) fn lose(&mut self, hold: HoldId, reason: LossReason) -> Option<Ended> {
        self.of_hold(hold)?;
        self.take_away(hold.tenure, reason)
    }

    /// Ends every tenure.
    pub(crate) fn lose_all(&mut self, reason: LossReason) -> Vec<Ended> {
        let ids: Vec<_> = self.slab.iter().map(|(index, (serial, _))| TenureId::new(index, *serial)).collect();
        ids.into_iter().filter_map(|id| self.take_away(id, reason)).collect()
    }

    /// When [`advance`](Self::advance) has something to do next.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.wheel.next()
    }

    /// Ends a tenure whose key is not its own any more, or will not be: also where its holder has just released it, it is
    /// not passed on.
    pub(crate) fn take_away(&mut self, id: TenureId, reason: LossReason) -> Option<Ended> {
        let tenure = self.get_mut(id)?;
        tenure.passes = false;
        let (over, ending) = tenure.hold.settle(Some(End::Lost(reason)));
        self.finish(id, over?, ending)
    }

    /// Takes a tenure out that is over. One whose holder has just released it waits for what that says next.
    fn finish(&mut self, id: TenureId, end: End, ending: Ending) -> Option<Ended> {
        let reason = end.loss()?;
        let tenure = self.remove(id)?;
        let parting = Parting::at_once(tenure.key().clone(), tenure.token);
        let lapsed = reason == LossReason::Expired && tenure.renewal != Renewal::Never;
        Some(Ended { tenure: id, parting, doubt: tenure.doubt, reason, lapsed, ending })
    }

    fn remove(&mut self, id: TenureId) -> Option<Tenure> {
        self.get(id)?;
        self.wheel.unset(id.index());
        self.slab.try_remove(id.index()).map(|(_, tenure)| tenure)
    }

    pub(super) fn get(&self, id: TenureId) -> Option<&Tenure> {
        let late = Mutant::LateGuardActs.is_on();
        self.slab.get(id.index()).filter(|(serial, _)| *serial == id.serial || late).map(|(_, tenure)| tenure)
    }

    pub(super) fn get_mut(&mut self, id: TenureId) -> Option<&mut Tenure> {
        self.slab.get_mut(id.index()).filter(|(serial, _)| *serial == id.serial).map(|(_, tenure)| tenure)
    }
}
