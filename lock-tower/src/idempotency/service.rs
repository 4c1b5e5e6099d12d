use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{answers::Answers, form::Form, layer::IdempotencyLayer};
use crate::{
    body::ResponseBody, error::BoxError, key::Principal, metrics, misconfigured::Misconfigured, service::take_ready,
};

/// A service that gives all requests of one idempotency key the answer of the first; made by [`IdempotencyLayer`].
///
/// See the [module's documentation](crate::idempotency) for examples.
pub struct IdempotencyService<S, K, A, P = crate::Http> {
    inner: S,
    shared: Arc<Shared<K, A, P>>,
}

pub(super) struct Shared<K, A, P> {
    pub(super) layer: IdempotencyLayer<K, A, P>,
    /// Whether it can work, so that the log says it once.
    checked: OnceLock<Result<(), Misconfigured>>,
}

impl<S, K: Clone, A: Answers, P: Clone> Layer<S> for IdempotencyLayer<K, A, P> {
    type Service = IdempotencyService<S, K, A, P>;

    fn layer(&self, inner: S) -> Self::Service {
        metrics::describe();
        IdempotencyService { inner, shared: Arc::new(Shared { layer: self.clone(), checked: OnceLock::new() }) }
    }
}

impl<K, A: Answers, P> Shared<K, A, P> {
    pub(super) fn check<B>(&self) -> &Result<(), Misconfigured>
    where
        K: Principal<Request<B>>,
    {
        self.checked.get_or_init(|| self.layer.lock.told(self.layer.check_for::<B>()))
    }
}

impl<S, K, A, P, B, R> Service<Request<B>> for IdempotencyService<S, K, A, P>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send, Error: Send> + Clone + Send + 'static,
    S::Future: 'static,
    K: Principal<Request<B>> + Send + Sync + 'static,
    A: Answers,
    P: Form<B, R, S::Error>,
    B: Body<Error: Into<BoxError>> + Send + 'static,
    R: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        // A misconfigured layer is logged before the first request comes, if the service is made ready before.
        let _ = self.shared.check::<B>();
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = take_ready(&mut self.inner);
        Box::pin(Arc::clone(&self.shared).serve(service, request))
    }
}

impl<S: Clone, K, A, P> Clone for IdempotencyService<S, K, A, P> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, K, A: fmt::Debug, P: fmt::Debug> fmt::Debug for IdempotencyService<S, K, A, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyService").field("inner", &self.inner).field("layer", &self.shared.layer).finish()
    }
}
