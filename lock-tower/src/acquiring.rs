//! The lease or the leases of a request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use lock_core::{
    Error, Leases, LockAllGuard, LockGuard,
    future::{Acquire, AcquireAll, Protected},
};
use pin_project_lite::pin_project;

use crate::protocol::Protocol;

pin_project! {
    /// Acquires the key or the keys of a request.
    #[project = AcquiringProj]
    pub(crate) enum Acquiring {
        One {
            #[pin]
            acquire: Acquire,
        },
        // Boxed, as most requests have one key.
        All {
            acquire: Pin<Box<AcquireAll>>,
        },
    }
}

impl Acquiring {
    pub(crate) fn one(acquire: Acquire) -> Self {
        Self::One { acquire }
    }

    pub(crate) fn all(acquire: AcquireAll) -> Self {
        Self::All { acquire: Box::pin(acquire) }
    }
}

impl Future for Acquiring {
    type Output = Result<Guard, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AcquiringProj::One { acquire } => acquire.poll(cx).map_ok(Guard::One),
            AcquiringProj::All { acquire } => acquire.as_mut().poll(cx).map_ok(Guard::All),
        }
    }
}

/// What a request is served under.
#[expect(unnameable_types, reason = "an argument of a sealed trait")]
#[derive(Debug)]
pub enum Guard {
    One(LockGuard),
    All(LockAllGuard),
}

impl Guard {
    /// Shows the request its leases.
    pub(crate) fn attach<Req, Res, Err>(&self, protocol: &impl Protocol<Req, Res, Err>, request: &mut Req) {
        match self {
            Self::One(guard) => protocol.attach(request, guard.lease()),
            // Extractors that give one key between them are no different from one extractor.
            Self::All(guard) => match guard.leases().iter().as_slice() {
                [lease] => protocol.attach(request, lease),
                _ => protocol.attach_all(request, guard.leases()),
            },
        }
    }

    pub(crate) fn leases(&self) -> Leases {
        match self {
            Self::One(guard) => guard.lease().clone().into(),
            Self::All(guard) => guard.leases().clone(),
        }
    }

    pub(crate) fn protect<F: Future>(self, work: F) -> Protected<F> {
        match self {
            Self::One(guard) => guard.protect(work),
            Self::All(guard) => guard.protect(work),
        }
    }
}
