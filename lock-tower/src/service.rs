use std::{
    mem,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tower_layer::Layer;
use tower_service::Service;

use crate::{
    future::{Asked, ResponseFuture},
    key::{Choice, KeyExtractor},
    layer::LockLayer,
    metrics,
    misconfigured::Misconfigured,
    protocol::{Plain, Protocol},
    refusal::Refusal,
    until::{Until, UntilResponse},
};

/// A service that holds a lock while it works on a request; made by [`LockLayer`].
///
/// It is ready when the inner service is, and acquires nothing before it is called. The instance that was made ready
/// stays with the request until the key is acquired, and is the one that is called then.
///
/// See the [crate's documentation](crate) for examples.
#[derive(Debug)]
pub struct LockService<S, K, P = Plain, U = UntilResponse> {
    pub(crate) inner: S,
    lock: LockLayer<K, P, U>,
    /// Whether it can work; shared by its clones, so that the log says it once.
    checked: Arc<OnceLock<Result<(), Misconfigured>>>,
}

impl<S, K: Clone, P: Clone, U> Layer<S> for LockLayer<K, P, U> {
    type Service = LockService<S, K, P, U>;

    fn layer(&self, inner: S) -> Self::Service {
        metrics::describe();
        LockService::new(inner, self.clone(), self.check_options())
    }
}

impl<S, K, P, U> LockService<S, K, P, U> {
    /// The key is checked later: only with a request is its type known.
    pub(crate) fn new(inner: S, lock: LockLayer<K, P, U>, options: Result<(), Misconfigured>) -> Self {
        let checked = OnceLock::new();
        if options.is_err() {
            checked.get_or_init(|| lock.told(options));
        }
        Self { inner, lock, checked: Arc::new(checked) }
    }

    pub(crate) fn check<Req>(&self) -> &Result<(), Misconfigured>
    where
        K: KeyExtractor<Req>,
    {
        self.checked.get_or_init(|| self.lock.told(self.lock.check_for()))
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes `self`, returning the inner service.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, K: Clone, P: Clone, U> Clone for LockService<S, K, P, U> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), lock: self.lock.clone(), checked: Arc::clone(&self.checked) }
    }
}

/// Takes the instance that was made ready, with the permits that it reserved, and leaves one that was not.
pub(crate) fn take_ready<S: Clone>(service: &mut S) -> S {
    let unready = service.clone();
    mem::replace(service, unready)
}

impl<S: Clone, K, P, U> LockService<S, K, P, U> {
    fn take_ready(&mut self) -> S {
        take_ready(&mut self.inner)
    }

    fn refuse<Req>(&mut self, refusal: Refusal) -> ResponseFuture<S, Req, P, U>
    where
        S: Service<Req>,
        P: Clone,
        U: Until<S::Future>,
    {
        // A permit that readiness reserved must not wait for a next request that may never come.
        drop(self.take_ready());
        ResponseFuture::refusing(refusal, self.lock.protocol.clone(), self.lock.name_of())
    }
}

impl<S, K, P, U, Req> Service<Req> for LockService<S, K, P, U>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    P: Protocol<Req, S::Response, S::Error> + Clone,
    U: Until<S::Future>,
{
    type Response = P::Response;
    type Error = P::Error;
    type Future = ResponseFuture<S, Req, P, U>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // A misconfigured layer is logged before the first request comes, if the service is made ready before.
        let _ = self.check::<Req>();
        self.inner.poll_ready(cx).map_err(|error| self.lock.protocol.fail(error))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let protocol = self.lock.protocol.clone();
        let name = self.lock.name_of();
        if let Err(error) = self.check::<Req>() {
            let refusal = Refusal::Misconfigured(error.clone());
            return self.refuse(refusal);
        }
        let applies = if self.lock.counts() { protocol.counts(&request) } else { protocol.applies(&request) };
        if !applies {
            protocol.pass(&mut request);
            return ResponseFuture::unlocked(self.inner.call(request), protocol, name);
        }
        let keys = match self.lock.key.extract(&request) {
            Choice::Lock(key) => vec![key],
            Choice::LockAll(keys) => keys,
            Choice::Pass => {
                protocol.pass(&mut request);
                return ResponseFuture::unlocked(self.inner.call(request), protocol, name);
            }
            Choice::Refuse(error) => return self.refuse(Refusal::Key(error)),
        };
        let place = match self.lock.admit(&keys) {
            Ok(place) => place,
            Err(error) => return self.refuse(Refusal::Overloaded(error)),
        };
        let acquire = self.lock.acquire(&keys, protocol.shares(&request));
        let asked = Asked { lets_through: self.lock.lets_through(), place, made_at: self.lock.made_at };
        let ready = self.take_ready();
        ResponseFuture::acquiring(acquire, asked, ready, request, protocol, name)
    }
}
