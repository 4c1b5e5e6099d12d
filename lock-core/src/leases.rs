use std::{
    future::poll_fn,
    slice,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use tokio::time::Instant;

use crate::{end::End, fencing::FencingToken, lease::Lease};

/// A view of several held leases for other tasks. It cannot release them.
///
/// A clone is cheap and can be sent to other tasks. The leases count as lost as soon as any one of them is lost.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock_all(["goods:1", "goods:3"]).await?;
/// let leases = guard.leases().clone();
/// for lease in &leases {
///     // Claim what each key protects with its own token, then read, then write: see `FencingToken`.
///     println!("write {} with fencing token {}", lease.key(), lease.fencing_token());
/// }
/// guard.release().await?;
/// assert!(!leases.is_held());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Leases {
    /// At least one, in the order of the keys' bytes.
    leases: Vec<Lease>,
}

impl From<Lease> for Leases {
    fn from(lease: Lease) -> Self {
        Self::new(vec![lease])
    }
}

getters! { leases: Leases =>
    /// Returns for how long the holder may still rely on all leases: the shortest of their remaining times.
    remaining: Duration = leases.iter().map(Lease::remaining).min().unwrap_or_default();

    /// Returns when the first lease ends if none is renewed; see [`Lease::deadline`].
    deadline: Instant = leases.iter().map(Lease::deadline).min().unwrap_or_else(Instant::now);

    /// Returns the ttl that the leases were acquired with.
    ttl: Duration = leases.iter().map(Lease::ttl).min().unwrap_or_default();

    /// Returns whether all leases are still held: none was lost or released, and no deadline has passed.
    is_held: bool = leases.iter().all(Lease::is_held);
}

impl Leases {
    pub(crate) fn new(leases: Vec<Lease>) -> Self {
        Self { leases }
    }

    /// Returns the leases, in the order of their keys' bytes.
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// Returns how many keys there are: at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is at least one")]
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns the lease of one key, or `None` if the key is not among them.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Lease> {
        self.iter().find(|lease| lease.key() == key)
    }

    /// Returns the fencing token of one key, or `None` if the key is not among them.
    #[must_use]
    pub fn fencing_token(&self, key: &str) -> Option<FencingToken> {
        self.get(key).map(Lease::fencing_token)
    }

    /// Completes when one lease has ended, and returns which one and how. If several have ended, it returns a lost lease before a
    /// released one.
    ///
    /// # Cancel safety
    /// Cancel safe: a later future completes at once if a lease has ended meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{End, LockManager, LossReason};
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock_all(["goods:1", "goods:3"]).await?;
    /// manager.force_release("goods:3").await?;
    /// let (lease, end) = guard.ended().await;
    /// assert_eq!((lease.key(), end), ("goods:3", End::Lost(LossReason::Forced)));
    /// # Ok(()) }
    /// ```
    pub fn ended(&self) -> impl Future<Output = (Lease, End)> + use<> {
        let mut leases = self.clone();
        poll_fn(move |cx| leases.poll_ended(cx))
    }

    /// Polls for the end of one lease, and registers the task to be woken when one ends.
    ///
    /// Each clone of the leases remembers one waker, that of its last poll.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(Lease, End)> {
        let mut first = None;
        for lease in &mut self.leases {
            if let Poll::Ready(end) = lease.poll_ended(cx)
                && (first.is_none() || end.loss().is_some())
            {
                first = Some((lease.clone(), end));
                if end.loss().is_some() {
                    break;
                }
            }
        }
        first.map_or(Poll::Pending, Poll::Ready)
    }
}

impl IntoIterator for Leases {
    type Item = Lease;
    type IntoIter = vec::IntoIter<Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.leases.into_iter()
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
