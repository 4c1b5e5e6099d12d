use crate::error::LossReason;

/// How many leases were lost, by reason; pure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Losses([(LossReason, u64); 5]);

impl Losses {
    pub(crate) const fn new() -> Self {
        Self([
            (LossReason::Expired, 0),
            (LossReason::Taken, 0),
            (LossReason::MaxHold, 0),
            (LossReason::Forced, 0),
            (LossReason::ShutDown, 0),
        ])
    }

    pub(crate) fn count(&mut self, lost: LossReason) {
        for (reason, number) in &mut self.0 {
            *number += u64::from(*reason == lost);
        }
    }

    pub(crate) fn as_slice(&self) -> &[(LossReason, u64)] {
        &self.0
    }
}
