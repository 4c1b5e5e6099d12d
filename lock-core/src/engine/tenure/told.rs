//! News of its key that reaches a tenure after it has begun: late answers to its candidate's requests, and grants; pure.

use super::{Ended, Renewing, Tenure, TenureId, Tenures};
use crate::{clock::Moment, engine::trust, error::LossReason};

impl Tenures {
    /// Takes note that another request with a tenure's token, sent at `sent`, was granted, with the fencing token `fence`.
    ///
    /// A request that was executed before the tenure began changes nothing. A request that found the key free afterwards ends the
    /// tenure: the key was lost in between, and another holder may have had it. Any other one raises the deadline, unless the user
    /// has lowered it.
    pub(crate) fn held_again(&mut self, id: TenureId, fence: u64, was_free: bool, sent: Moment) -> Option<Ended> {
        let tenure = self.get_mut(id)?;
        let first = tenure.first_fence();
        if fence < first {
            return None;
        }
        if fence > first && was_free {
            return self.take_away(id, LossReason::Taken);
        }
        tenure.asks_for(tenure.ttl, sent);
        tenure.confirmed(sent, 0, tenure.hold.now());
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(id.index(), timer);
        None
    }

    /// Ends a tenure whose own request, sent at `sent`, found another holder. Returns `None` if a later request succeeded, or if the
    /// key was granted to the place that this request made: then it may have been executed before that.
    pub(crate) fn refused_again(&mut self, tenure: TenureId, sent: Moment) -> Option<Ended> {
        let is_later = trust::is_later(sent, self.get(tenure)?.proven);
        if is_later { self.take_away(tenure, LossReason::Taken) } else { None }
    }

    /// Ends a tenure whose key was granted to its token once more, with a larger fencing token than its first one: the key was lost
    /// in between, and another holder may have had it.
    pub(crate) fn granted_anew(&mut self, tenure: TenureId, fence: u64) -> Option<Ended> {
        let is_new = fence > self.get(tenure)?.first_fence();
        if is_new { self.take_away(tenure, LossReason::Taken) } else { None }
    }
}

impl Tenure {
    /// The renewal of a tenure that goes to another process and lives on what its grant gave: the other counts on more.
    pub(crate) fn renews_for_another(&self, id: TenureId) -> Option<Renewing> {
        let renewing = || Renewing { tenure: id, version: self.hold.version(), request: self.renew(self.ttl) };
        self.granted.then(renewing)
    }
}
