//! What a tenure is told of its key after it has begun: by answers to its contender's requests, and by grants; pure.

use super::{Ended, Renewing, Tenure, TenureId, Tenures};
use crate::{clock::Moment, engine::trust, error::LossReason, mutants::Mutant};

impl Tenures {
    /// Raises the deadline of a tenure after another request with its token was granted, which was sent at `sent`,
    /// before the user could change the deadline.
    pub(crate) fn granted_again(&mut self, tenure: TenureId, sent: Moment) {
        let index = tenure.index();
        let Some(tenure) = self.get_mut(tenure) else { return };
        tenure.doubt.until = tenure.doubt.until.max(tenure.ttl.end(sent));
        tenure.proved(sent);
        tenure.hold.raise(tenure.ttl.deadline(sent), 0);
        let timer = tenure.timer(tenure.hold.end());
        self.wheel.set(index, timer);
    }

    /// Ends a tenure whose own request, sent at `sent`, found another holder. Returns `None` for a request that was
    /// sent before one that succeeded, or that made the place which the key was granted to: it may have been executed
    /// before.
    pub(crate) fn refused_again(&mut self, tenure: TenureId, sent: Moment) -> Option<Ended> {
        let is_later = trust::is_later(sent, self.get(tenure)?.proven);
        if is_later && !Mutant::RefusalIgnored.is_on() { self.take_away(tenure, LossReason::Taken) } else { None }
    }

    /// Ends a tenure whose key was granted to its token once more, with a fencing token above its own: the key was lost
    /// in between, and another may have held it.
    pub(crate) fn granted_anew(&mut self, tenure: TenureId, fence: u64) -> Option<Ended> {
        let is_new = fence > self.get(tenure)?.hold.fence.get();
        if is_new && !Mutant::RegrantIgnored.is_on() { self.take_away(tenure, LossReason::Taken) } else { None }
    }
}

impl Tenure {
    /// The renewal of a tenure that goes to another process and lives on what its grant gave: the other counts on more.
    pub(crate) fn renews_for_another(&self, id: TenureId, now: Moment) -> Option<Renewing> {
        let renewing = || Renewing { tenure: id, version: self.hold.version(), request: self.renew(self.ttl, now) };
        self.granted.then(renewing)
    }
}
