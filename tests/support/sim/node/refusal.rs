//! What a node refuses to write.

use lock_core::backend::{BackendError, BusyReason, Operation, Outcome};

use super::{Node, Reply, Run};

/// What a node refuses to write at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) enum Refuses {
    #[default]
    Nothing,
    /// It is out of memory: SET, XADD and HSET are refused; DEL, HDEL and PEXPIRE are not. (Redis lets a script go on
    /// with everything once it has written something; here all of them are refused, which leaves more undone.)
    Memory,
    /// It is a replica, and refuses every write.
    Writes,
    /// The counter of fencing tokens cannot be written, as when something else stands there.
    Numbers,
}

impl Refuses {
    /// Whether it takes a write that may need memory.
    pub(super) fn more(self) -> bool {
        matches!(self, Self::Nothing | Self::Numbers)
    }

    fn error(self) -> BackendError {
        BackendError::unavailable(match self {
            Self::Writes => "it is a read-only replica",
            Self::Numbers => "it does not count",
            Self::Nothing | Self::Memory => "it is out of memory",
        })
    }
}

impl Node {
    /// Executes an operation, as far as it is not refused.
    pub(super) fn perform(&mut self, operation: &Operation, run: &mut Run<'_>) -> Reply {
        if matches!(operation, Operation::Force { foreign: false, .. }) && self.is_foreign(operation, run.now) {
            return Ok(Outcome::Gone);
        }
        let outcome = match self.refuses {
            Refuses::Nothing => self.store.perform(operation, &mut run.call),
            _ => self.refuse(operation, run)?,
        };
        Ok(match outcome {
            Outcome::Busy { remaining, position, .. } if self.is_foreign(operation, run.now) => {
                Outcome::Busy { remaining, by: BusyReason::Foreign, position }
            }
            other => other,
        })
    }

    /// Executes it without what is refused, or not at all.
    fn refuse(&mut self, operation: &Operation, run: &mut Run<'_>) -> Reply {
        let (key, now, refuses) = (operation.key(), run.now * 1_000, self.refuses);
        let (store, call) = (self.store.clone(), run.call.clone());
        // Nobody is granted the key, and no renewal has numbers.
        let mut less = operation.clone();
        match &mut less {
            Operation::Renew(renew) => renew.block = 0,
            Operation::Release(release) => release.quiet = true,
            _ => {}
        }
        let outcome = self.store.perform(&less, &mut run.call);
        let has_drawn = self.store.last_fence != store.last_fence;
        let is_refused = match operation {
            Operation::Acquire(_) if refuses == Refuses::Numbers => has_drawn,
            Operation::Acquire(_) => {
                has_drawn || !run.call.grants.is_empty() || matches!(outcome, Outcome::Held { .. })
            }
            Operation::Renew(renew) => {
                let is_moved = store.end_of(key, renew.token, now) != self.store.end_of(key, renew.token, now);
                is_moved && !refuses.more() && !(refuses == Refuses::Memory && renew.token.mode().is_exclusive())
            }
            Operation::Release(release) if refuses == Refuses::Writes => {
                outcome == Outcome::Released || store.waits(now) && store.has_place(key, release.token)
            }
            Operation::Release(release) => {
                let needs_more = !release.after.is_zero() && !release.token.mode().is_exclusive();
                outcome == Outcome::Released && needs_more && refuses == Refuses::Memory
            }
            Operation::Force { .. } => outcome == Outcome::Released && refuses == Refuses::Writes,
            _ => false,
        };
        if is_refused || matches!(outcome, Outcome::Busy { .. }) && refuses != Refuses::Numbers {
            (self.store, run.call) = (store, call);
        } else if let Operation::Force { key, .. } = operation {
            (self.store, run.call) = (store, call);
            self.store.keys.remove(key);
        }
        match outcome {
            _ if is_refused => Err(refuses.error()),
            Outcome::Busy { remaining, by, .. } if !refuses.more() => {
                Ok(Outcome::Busy { remaining, by, position: None })
            }
            other => Ok(other),
        }
    }
}
