use std::{
    mem,
    task::{Context, Poll},
};

use tower_service::Service;

use crate::{
    future::ResponseFuture,
    key::{Choice, KeyExtractor},
    layer::LockLayer,
    protocol::{Protocol, Refusal},
};

/// A service that holds a lock while it works on a request; made by [`LockLayer`].
///
/// It is ready when the inner service is, and acquires nothing before it is called. The instance that was made ready
/// stays with the request until the key is acquired, and is then the one that is called.
///
/// See the [crate's documentation](crate) for examples.
#[derive(Clone, Debug)]
pub struct LockService<S, K, P = crate::Plain> {
    inner: S,
    lock: LockLayer<K, P>,
}

impl<S, K, P> LockService<S, K, P> {
    pub(crate) fn new(inner: S, lock: LockLayer<K, P>) -> Self {
        Self { inner, lock }
    }

    /// Returns the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns the inner service for a change.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Takes the lock off the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K, P> LockService<S, K, P> {
    /// Takes the instance that was made ready, with what it reserved, and leaves one that was not.
    fn take_ready(&mut self) -> S {
        let unready = self.inner.clone();
        mem::replace(&mut self.inner, unready)
    }
}

impl<S, K, P, Req> Service<Req> for LockService<S, K, P>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    P: Protocol<Req, S::Response, S::Error> + Clone,
{
    type Response = P::Response;
    type Error = P::Error;
    type Future = ResponseFuture<S, Req, P>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(|error| self.lock.protocol.fail(error))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let protocol = self.lock.protocol.clone();
        match self.lock.key.extract(&request) {
            Choice::Lock(key) => {
                let acquire = self.lock.request(&key).acquire();
                let tries_once = self.lock.tries_once();
                ResponseFuture::acquiring(acquire, tries_once, self.take_ready(), request, protocol)
            }
            Choice::Pass => ResponseFuture::unlocked(self.inner.call(request), protocol),
            Choice::Refuse(error) => {
                // What readiness reserved must not wait for a next request that may never come.
                drop(self.take_ready());
                ResponseFuture::refusing(Refusal::Key(error), protocol)
            }
        }
    }
}
