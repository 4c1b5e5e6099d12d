//! What keeps a tenure, and what ends it: renewals, extends, requests for more fencing tokens, and late answers and grants; pure.
//!
//! Nothing is sent here. `Tenures::advance` finds the leases that are due, by the times of `schedule.rs`; `poll_renewals` and
//! `renewals_answered` in `queues/requests.rs` send the requests and bring the answers.

use std::{cmp::Reverse, time::Duration};

use super::{BUDGET, Ended, HoldId, Renewing, Tenure, TenureId, Tenures, block_for};
use crate::{
    backend::{Outcome, Renew},
    clock::Moment,
    engine::{deferred::Deferred, schedule, trust},
    error::LossReason,
    replicas::Replicas,
    ttl::{Renewal, Ttl},
};

/// How far apart the leases are looked at when all of them may be gone: a hundred thousand in a second.
const APART: Duration = Duration::from_micros(10);
/// How long after a look at a key the next one comes at the soonest.
const LOOKS_APART: Duration = Duration::from_millis(10);

/// The least time between looks at all leases that connections cause; for many leases, four times as long as a look takes.
const CONNECTIONS_APART: Duration = Duration::from_secs(1);

impl Tenures {
    /// The request for another block of fencing tokens, if the present one is half used and `waiters` are left. `holds` is how many
    /// holds followed one another in the last tenure.
    pub(crate) fn refill(&mut self, tenure: TenureId, waiters: usize, holds: u32, now: Moment) -> Option<Renewing> {
        let found = self.get_mut(tenure)?;
        let block = block_for(waiters, found.number.max(holds));
        if found.refilling
            || !found.passes
            || found.fences.left() >= u64::from(block).div_ceil(2)
            || now >= found.since + BUDGET
        {
            return None;
        }
        found.refilling = true;
        found.asks_for(found.ttl, now);
        let request = found.renew(found.ttl).with_block(block);
        Some(Renewing { tenure, version: found.hold.version(), request })
    }

    /// Takes the answer to a request for another block, which was sent at `sent`. Returns the tenure if it ends with the
    /// answer.
    pub(crate) fn refilled(
        &mut self,
        refill: &Renewing,
        outcome: Option<Outcome>,
        (sent, now): (Moment, Moment),
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
                let slack = tenure.confirmed(sent, refill.version, now);
                deferred.renewed(tenure.hold.label, slack);
                None
            }
            Some(_) => self.take_away(id, LossReason::Taken, now),
            None => None,
        }
    }

    /// The request, to be sent `now`, that shows whether replicas have the key of a hold. `None` if the hold is over, or if
    /// they are known to have the key of its tenure.
    pub(crate) fn confirmation(&mut self, hold: HoldId, replicas: Replicas, now: Moment) -> Option<Renewing> {
        let tenure = self.present(hold).filter(|tenure| u32::from(tenure.replicated) < replicas.min())?;
        tenure.asks_for(tenure.ttl, now);
        let request = tenure.renew(tenure.ttl).on_replicas(replicas);
        Some(Renewing { tenure: hold.tenure, version: tenure.hold.version(), request })
    }

    /// Records that replicas have the key, as the answer to a request says that was sent at `sent`.
    pub(crate) fn replicated(&mut self, confirmation: &Renewing, sent: Moment, deferred: &mut Deferred) {
        let Some(tenure) = self.get_mut(confirmation.tenure) else { return };
        let min = confirmation.request.replicas.map_or(0, Replicas::min);
        tenure.replicated = tenure.replicated.max(u16::try_from(min).unwrap_or(u16::MAX));
        let slack = tenure.confirmed(sent, confirmation.version, tenure.hold.now());
        deferred.renewed(tenure.hold.label, slack);
    }

    /// Takes the renewals that are due to be sent `now`, at most `most`, the nearest deadline first.
    pub(crate) fn renewals(&mut self, most: usize, now: Moment) -> Vec<Renewing> {
        let mut renewals = Vec::new();
        while renewals.len() < most
            && let Some(Reverse((_, id))) = self.due.pop()
        {
            let Some(tenure) = self.get_mut(id) else { continue };
            // Up to the end that `extend` has promised: a node of a quorum that has lost its data has to be given all of it back.
            let promised = Ttl::for_validity(tenure.hold.validity().deadline.since(now));
            let ttl = promised.map_or(tenure.ttl, |ttl| ttl.max(tenure.ttl));
            tenure.asks_for(ttl, now);
            let mut request = tenure.renew(ttl);
            // A connection that stays silent for half of what the lease has left is replaced, so the other half is there for another
            // try. A lease that lives on its grant has too little left for that: half of it is within the jitter of a slow server, and a
            // connection would be replaced for nothing.
            let left = tenure.hold.validity().deadline.since(now);
            request.within = if tenure.granted { left } else { left / 2 };
            tenure.changed = false;
            renewals.push(Renewing { tenure: id, version: tenure.hold.version(), request });
        }
        renewals
    }

    /// Has a tenure renewed soon because another client has written to its key. The renewal shows whether the key is still its own.
    pub(crate) fn renew_soon(&mut self, id: TenureId, now: Moment) {
        let Some(tenure) = self.get_mut(id) else { return };
        // What is in flight may have been executed before the change, so its success would prove nothing. A renewal follows its answer.
        tenure.changed = true;
        self.hasten(id, now);
    }

    /// Has every tenure that is renewed at all renewed soon, one after the other.
    pub(crate) fn renew_all_soon(&mut self, now: Moment) {
        // One after the other: 100,000 leases at once would keep the server from everything else for longer than some of them last.
        for (place, id) in (0..).zip(self.ids()) {
            self.renew_soon(id, now + APART * place);
        }
    }

    /// Has every tenure renewed soon, since a connection was made: its server may be another, or have lost its data. For
    /// what is in flight, see [`look_again`](Self::look_again).
    pub(crate) fn connected(&mut self, now: Moment) {
        let from = now.max(self.next_connected);
        let ids = self.ids();
        let takes = APART * u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if from == now {
            self.next_connected = now + CONNECTIONS_APART.max(4 * takes);
        }
        self.connected = (now, from);
        for (place, id) in (0..).zip(ids) {
            self.hasten(id, from + APART * place);
        }
    }

    /// Has a tenure renewed soon if it relies on a request that was sent at `sent`, before the latest connection. A former server may have
    /// answered it, and the answer may have waited for other answers to the same call.
    pub(super) fn look_again(&mut self, id: TenureId, sent: Moment, now: Moment) {
        let (connected, from) = self.connected;
        if sent < connected {
            self.hasten(id, now.max(from));
        }
    }

    fn hasten(&mut self, id: TenureId, now: Moment) {
        let Some(tenure) = self.get_mut(id).filter(|tenure| !tenure.renewing) else { return };
        tenure.renew_at = tenure.renew_at.min(tenure.next_look(now));
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(id.index(), timer);
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
        let (mut slack, is_renewed) = (None, matches!(outcome, Some(Outcome::Renewed { .. })));
        match outcome {
            Some(Outcome::Renewed { .. }) => {
                tenure.failures = 0;
                tenure.hold.note_renewal(false);
                // The new deadline counts from the sending, as everywhere: the server moved the expiry at some moment after that, so
                // the deadline is never later than the expiry, however long the answer took.
                // The clock is not read here: if it panicked, nothing would renew the lease after this.
                slack = tenure.confirmed(sent, renewal.version, now);
                deferred.renewed(tenure.hold.label, slack);
                tenure.plan_renewal(sent, tenure.hold.validity().deadline);
                if tenure.changed {
                    tenure.renew_at = tenure.renew_at.min(tenure.next_look(now));
                }
            }
            Some(_) => return self.take_away(id, LossReason::Taken, now),
            None => {
                tenure.failures = tenure.failures.saturating_add(1);
                tenure.hold.note_renewal(true);
                let interval = tenure.renewal.interval(tenure.ttl).unwrap_or_else(|| tenure.ttl.get());
                tenure.renew_at = schedule::after_failure(now, tenure.failures.into(), interval, jitter);
            }
        }
        let (over, ending) = tenure.hold.settle(now, None);
        let timer = tenure.timer(tenure.hold.end());
        if let Some(slack) = slack {
            self.slack.note(slack, now);
        }
        if let Some(end) = over {
            return self.finish(id, end, ending, now);
        }
        self.wheel.set(id.index(), timer);
        if is_renewed {
            self.look_again(id, sent, now);
        }
        None
    }

    /// Whether the tenure of a renewal goes on.
    pub(crate) fn has(&self, renewing: &Renewing) -> bool {
        self.get(renewing.tenure).is_some()
    }

    /// Returns the user's own request, to be sent at `sent`, which has lowered the deadline. It may fail: what was planned before
    /// stays. `None` if the hold is over.
    pub(crate) fn extending(&mut self, hold: HoldId, sent: Moment, ttl: Ttl) -> Option<Renew> {
        self.plan_after(hold, sent, ttl, false);
        Some(self.of_hold(hold)?.renew(ttl))
    }

    /// Records that the user's own request moved the deadline.
    pub(crate) fn extended(&mut self, hold: HoldId, sent: Moment, ttl: Ttl) {
        if let Some(tenure) = self.present(hold) {
            tenure.proved(sent);
        }
        self.plan_after(hold, sent, ttl, true);
        self.look_again(hold.tenure, sent, sent);
    }

    fn plan_after(&mut self, hold: HoldId, sent: Moment, ttl: Ttl, has_succeeded: bool) {
        let index = hold.tenure.index();
        let Some(tenure) = self.present(hold) else { return };
        tenure.asks_for(ttl, sent);
        // The next hold would have what this one has added.
        tenure.passes &= ttl <= tenure.ttl;
        let deadline = tenure.hold.validity().deadline;
        if has_succeeded {
            tenure.plan_renewal(sent, deadline);
            if tenure.changed {
                tenure.renew_at = tenure.renew_at.min(tenure.next_look(sent));
            }
        } else {
            tenure.renew_at = tenure.renew_at.min(tenure.next_renewal(sent, deadline));
            let danger = schedule::danger(tenure.renew_at, deadline);
            tenure.hold.note_danger(danger.min(tenure.hold.validity().danger));
        }
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(index, timer);
    }

    /// Records that another request with a tenure's token, sent at `sent`, was granted, with the fencing token `fence`.
    ///
    /// A request that was executed before the tenure began changes nothing. A request that found the key free afterwards ends the
    /// tenure: the key was lost in between, and another holder may have had it. Any other one raises the deadline, unless the user
    /// has lowered it.
    pub(crate) fn held_again(
        &mut self,
        id: TenureId,
        (fence, was_free): (u64, bool),
        sent: Moment,
        now: Moment,
    ) -> Option<Ended> {
        let tenure = self.get_mut(id)?;
        let first = tenure.first_fence();
        if fence < first {
            return None;
        }
        if fence > first && was_free {
            return self.take_away(id, LossReason::Taken, now);
        }
        tenure.asks_for(tenure.ttl, sent);
        tenure.confirmed(sent, 0, now);
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(id.index(), timer);
        None
    }

    /// Ends a tenure whose own request, sent at `sent`, found another holder. Returns `None` if a later request succeeded, or if the
    /// key was granted to the place that this request made: then it may have been executed before that.
    pub(crate) fn refused_again(&mut self, tenure: TenureId, sent: Moment, now: Moment) -> Option<Ended> {
        let is_later = trust::is_later(sent, self.get(tenure)?.proven);
        if is_later { self.take_away(tenure, LossReason::Taken, now) } else { None }
    }

    /// Ends a tenure whose key was granted to its token once more, with a larger fencing token than its first one: the key was lost
    /// in between, and another holder may have had it.
    pub(crate) fn granted_anew(&mut self, tenure: TenureId, fence: u64, now: Moment) -> Option<Ended> {
        let is_new = fence > self.get(tenure)?.first_fence();
        if is_new { self.take_away(tenure, LossReason::Taken, now) } else { None }
    }
}

impl Tenure {
    /// The renewal of a tenure that goes to another process and lives on what its grant gave: the other counts on more.
    pub(crate) fn renews_for_another(&self, id: TenureId) -> Option<Renewing> {
        let renewing = || Renewing { tenure: id, version: self.hold.version(), request: self.renew(self.ttl) };
        self.granted.then(renewing)
    }

    /// When to look at the key, at the soonest `now`. Somebody may write at it again and again. A fixed lease has no renewals.
    fn next_look(&self, now: Moment) -> Moment {
        match self.renewal {
            Renewal::Never => Moment::NEVER,
            _ => now.max(self.proven + LOOKS_APART),
        }
    }

    /// Records a request that is sent at `sent` and may have the key hold the token for `ttl`.
    pub(super) fn asks_for(&mut self, ttl: Ttl, sent: Moment) {
        self.doubt.until = self.doubt.until.max(ttl.end(sent));
    }

    /// Records that a request that was sent at `sent`, when the deadline had this version, has found the key its own,
    /// and given it the ttl. Returns what the deadline had left, unless that was of a grant: it is less than the ttl, and
    /// says nothing of how late renewals are.
    pub(super) fn confirmed(&mut self, sent: Moment, version: u32, now: Moment) -> Option<Duration> {
        let slack = self.hold.raise(now, self.ttl.deadline(sent), version);
        let was_granted = self.granted;
        self.proved(sent);
        if was_granted {
            // The renewal that would have come soon is no longer needed.
            self.plan_renewal(sent, self.hold.validity().deadline);
        }
        slack.filter(|_| !was_granted)
    }

    /// Records that a request that was sent at `sent` has found the key its own, and given it the ttl.
    fn proved(&mut self, sent: Moment) {
        self.proven = self.proven.max(sent);
        self.granted = false;
    }

    /// Sets the time of the next renewal after a success that was sent at `sent` and left it valid until `deadline`.
    pub(super) fn plan_renewal(&mut self, sent: Moment, deadline: Moment) {
        self.renew_at = self.next_renewal(sent, deadline);
        self.hold.note_danger(schedule::danger(self.renew_at, deadline));
    }

    fn next_renewal(&self, sent: Moment, deadline: Moment) -> Moment {
        match self.renewal.interval(self.ttl) {
            Some(interval) => schedule::after_success(sent, interval, deadline),
            None => Moment::NEVER,
        }
    }
}
