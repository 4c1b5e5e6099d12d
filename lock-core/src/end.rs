use std::fmt;

use crate::error::LossReason;

/// How a lease ended; the output of [`Lease::ended`](crate::Lease::ended).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{End, LockManager, LossReason};
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("goods:1").await?;
/// let lease = guard.lease().clone();
/// guard.release().await?;
/// assert_eq!(lease.ended().await, End::Released);
///
/// let guard = manager.lock("goods:1").await?;
/// manager.force_release("goods:1").await?;
/// assert_eq!(guard.ended().await.loss(), Some(LossReason::Forced));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// The holder released it or dropped the guard. Only a [`Lease`](crate::Lease), or its future, that outlives the guard sees this.
    Released,
    /// The holder [handed it over](crate::LockGuard::hand_over) to another process. Only a [`Lease`](crate::Lease), or its
    /// future, that outlives the guard sees this.
    HandedOver,
    /// It was lost before the holder released it.
    Lost(LossReason),
}

impl End {
    /// Returns why the lease was lost, or `None` if its holder ended it.
    #[must_use]
    pub fn loss(self) -> Option<LossReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            Self::Released | Self::HandedOver => None,
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("its holder released it"),
            Self::HandedOver => f.write_str("its holder handed it over"),
            Self::Lost(reason) => reason.fmt(f),
        }
    }
}

/// The policy for scoped work when its lease is lost; set by [`LockRequest::on_lost`](crate::LockRequest::on_lost), which has examples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// The work is dropped at its current `.await`, and the error is returned.
    #[default]
    Cancel,
    /// The work runs to its end, and then the error is returned instead of its result: for work that must not be
    /// cancelled. Another holder may do the same work meanwhile.
    Finish,
    /// The loss is ignored and the result of the work is returned.
    Ignore,
}
