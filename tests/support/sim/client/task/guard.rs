//! One guard or several in one, with what both can do.

use std::{future::Future, pin::Pin, slice, time::Duration};

use lock_core::{Error, Lease, LockAllGuard, LockGuard, LockRequest, future::Protected};

use super::Extras;

/// What a holder has in its hand.
pub(super) enum Guard {
    One(LockGuard),
    All(LockAllGuard),
}

impl Guard {
    /// The leases, in the order of their keys.
    pub(super) fn leases(&self) -> impl Iterator<Item = &Lease> {
        match self {
            Self::One(guard) => slice::from_ref(guard.lease()).iter(),
            Self::All(guard) => guard.leases().iter(),
        }
    }

    pub(super) async fn extend(&mut self, ttl: Duration) -> Result<(), Error> {
        match self {
            Self::One(guard) => guard.extend(ttl).await.map(drop),
            Self::All(guard) => guard.extend(ttl).await.map(drop),
        }
    }

    pub(super) fn release(self) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send>> {
        match self {
            Self::One(guard) => Box::pin(guard.release()),
            Self::All(guard) => Box::pin(guard.release()),
        }
    }

    pub(super) fn protect<F: Future>(self, work: F) -> Protected<F> {
        match self {
            Self::One(guard) => guard.protect(work),
            Self::All(guard) => guard.protect(work),
        }
    }
}

impl Extras {
    /// A request with them, which waits for ever where it says so.
    pub(super) fn request<K>(self, request: LockRequest<K>, ttl: Duration, wait: Duration) -> LockRequest<K> {
        let request = if wait == Duration::MAX { request.wait_forever() } else { request.wait(wait) };
        match self {
            Self::None => request.ttl(ttl),
            Self::Fixed => request.ttl(ttl).fixed(),
            Self::OftenRenewed => request.ttl(ttl).renew_every(ttl / 2),
            Self::MaxHold => request.ttl(ttl).max_hold(ttl / 2),
            Self::AtLeast => request.ttl(ttl).at_least(ttl / 10),
        }
    }
}
