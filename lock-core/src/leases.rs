use std::{
    future::Future,
    pin::Pin,
    slice,
    task::{Context, Poll},
    time::Duration,
};

use crate::{error::LossReason, lease::Lease, token::FencingToken};

/// What a holder of several keys may ask; it cannot release them.
///
/// A cheap clone that can be sent to other tasks. All is held, or it counts as lost.
#[derive(Clone, Debug)]
pub struct Leases {
    /// At least one, in the order of the keys' bytes.
    leases: Vec<Lease>,
}

impl Leases {
    pub(crate) fn new(leases: Vec<Lease>) -> Self {
        Self { leases }
    }

    /// Returns the leases, in the order of their keys' bytes.
    pub fn iter(&self) -> slice::Iter<'_, Lease> {
        self.leases.iter()
    }

    /// Returns the fencing token of one key, or none if it is not among them.
    #[must_use]
    pub fn fencing_token(&self, key: &str) -> Option<FencingToken> {
        self.iter().find(|lease| lease.key() == key).map(Lease::fencing_token)
    }

    /// Returns for how long the holder may still rely on all of them: the least of what remains.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.iter().map(Lease::remaining).min().unwrap_or_default()
    }

    /// Returns whether all are still held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.iter().all(Lease::is_held)
    }

    /// Completes when one lease has ended, with the reason; see [`Lease::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    #[must_use = "a future does nothing unless it is awaited"]
    pub fn lost(&self) -> AnyLost {
        AnyLost { leases: self.clone() }
    }

    /// Asks whether one lease has ended, and registers the task to be woken when one does.
    pub fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<LossReason> {
        self.leases.iter_mut().map(|lease| lease.poll_lost(cx)).find(Poll::is_ready).unwrap_or(Poll::Pending)
    }
}

impl<'a> IntoIterator for &'a Leases {
    type Item = &'a Lease;
    type IntoIter = slice::Iter<'a, Lease>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// The future of [`Leases::lost`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct AnyLost {
    leases: Leases,
}

impl Future for AnyLost {
    type Output = LossReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.leases.poll_lost(cx)
    }
}
