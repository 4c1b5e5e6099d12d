//! Leases that were lost, and the application's function that is told of them.

use std::{fmt, sync::Arc, time::Duration};

use crate::{caught::caught, error::LossReason, fencing::FencingToken, key::LockKey};

/// A lease that was lost, as the function of [`LockManagerBuilder::on_lost`](crate::LockManagerBuilder::on_lost) gets it.
///
/// Its `Display` is a sentence for people, with all of it.
#[derive(Clone, Debug)]
pub struct LostLease {
    pub(crate) key: LockKey,
    pub(crate) fence: FencingToken,
    pub(crate) label: &'static str,
    pub(crate) held: Duration,
    pub(crate) loss: Loss,
}

getters! { lost: LostLease =>
    /// Returns the key as it was given to [`lock`](crate::LockManager::lock).
    key: &str = lost.key.as_str();

    /// Returns the fencing token of the lease.
    fencing_token: FencingToken = lost.fence;

    /// Returns why the lease was lost.
    reason: LossReason = lost.loss.reason;

    /// Returns the [`label`](crate::LockRequest::label) of the request, which is never a key: to group losses by. It is empty if
    /// there is none.
    label: &str = lost.label;

    /// Returns for how long the lease was held.
    held: Duration = lost.held;
}

impl fmt::Display for LostLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, fence, held, loss, .. } = self;
        write!(f, "lost the lease of {:?} with fencing token {fence} after {held:?}: {loss}", key.as_str())
    }
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    pub(crate) reason: LossReason,
    /// For how long this process stood still, if the lease was lost because of that.
    pub(crate) stood_still: Option<Duration>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stood_still {
            Some(stood_still) => write!(
                f,
                "this process stood still for {:.1} s (its threads were blocked, or it was stopped, swapped out or suspended); move \
                 blocking work to `spawn_blocking`, give the manager a runtime of its own, or raise the ttl",
                stood_still.as_secs_f64()
            ),
            None => self.reason.fmt(f),
        }
    }
}

/// The function of the application that is told of losses.
#[derive(Clone)]
pub(crate) struct Observer(pub(crate) Arc<dyn Fn(&LostLease) + Send + Sync>);

impl Observer {
    /// Tells it, while no lock of the engine's is held. A panic is caught.
    pub(crate) fn tell(&self, lost: &LostLease) {
        let _ = caught("function of `on_lost`", || (self.0)(lost));
    }
}

shows!(Observer);
