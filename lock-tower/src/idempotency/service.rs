use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use http::{Request, Response};
use http_body::Body;
use tokio::{runtime::Handle, time::Instant};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answers::{Answers, MOST},
    attempt::Attempt,
    form::Form,
    layer::IdempotencyLayer,
    steps,
    steps::Stop,
};
use crate::{
    acquiring::Guard,
    body::ResponseBody,
    error::BoxError,
    future::refuse,
    key::Principal,
    metrics,
    misconfigured::Misconfigured,
    refusal::Refusal,
    service::take_ready,
    until::{Detached, sealed::Until as _},
};

/// A service that gives all requests of one idempotency key the answer of the first; made by [`IdempotencyLayer`].
///
/// See the [module's documentation](crate::idempotency) for examples.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S, K, A, P = crate::Http> {
    inner: S,
    layer: Arc<IdempotencyLayer<K, A, P>>,
    /// Whether it can work, so that the log says it once.
    checked: Arc<OnceLock<Result<(), Misconfigured>>>,
}

impl<S, K: Clone, A: Answers, P: Clone> Layer<S> for IdempotencyLayer<K, A, P> {
    type Service = IdempotencyService<S, K, A, P>;

    fn layer(&self, inner: S) -> Self::Service {
        metrics::describe();
        let checked = OnceLock::new();
        if let Err(error) = self.tell_at_start() {
            let _ = checked.set(Err(error));
        }
        IdempotencyService { inner, layer: Arc::new(self.clone()), checked: Arc::new(checked) }
    }
}

impl<S, K, A, P, B, R> Service<Request<B>> for IdempotencyService<S, K, A, P>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send, Error: Send> + Clone + Send + 'static,
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
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let checked = self.checked.get_or_init(|| self.layer.lock.told(self.layer.check_for::<B>())).clone();
        let (layer, mut service) = (Arc::clone(&self.layer), take_ready(&mut self.inner));
        Box::pin(async move {
            let (lock, begun) = (&layer.lock, Instant::now());
            let steps = async {
                checked.map_err(Refusal::Misconfigured).map_err(Stop::Lock)?;
                let key = if lock.protocol.applies(&request) { layer.key(&request)? } else { None };
                let Some(key) = key else {
                    return Ok(service.call(request).await.map(|response| lock.protocol.done(response)));
                };
                if Handle::try_current().is_err() {
                    let problem = "its requests are polled outside a tokio runtime, which has to run the handlers";
                    return Err(Stop::Lock(Refusal::Misconfigured(lock.misconfigured(problem.to_owned()))));
                }
                let time_left = lock.protocol.time_left(&request);
                let (head, body) = request.into_parts();
                // Before the lease: a client that stalls in its upload keeps no key.
                let body = steps::read_request(body, layer.limit).await?;
                let request = Request::from_parts(head, ());
                let attempt = Attempt::new(lock.manager.prefix(), &key, &request, &body);
                layer.look(&attempt).await?;
                let until = Instant::now() + layer.wait;
                let until = time_left.map_or(until, |left| until.min(begun + left.min(MOST)));
                let guard = Guard::One(layer.acquire(key, &attempt, until).await?);
                let mut request = request.map(|()| P::body(body));
                guard.attach(&lock.protocol, &mut request);
                request.extensions_mut().insert(attempt.clone());
                let (running, own) = (Arc::clone(&layer), attempt.clone());
                // In a task of its own: a client that hangs up must not leave the work half done.
                let work = async move { running.run(service, request, &own, begun).await };
                match Detached::work(guard, work).await {
                    Ok((answer, _)) => answer,
                    Err(lost) => {
                        layer.look_for_own(&attempt).await?;
                        Err(Stop::Lock(Refusal::Lost(lost)))
                    }
                }
            };
            match steps.await {
                Ok(answer) => answer,
                Err(Stop::Kept(kept)) => Ok(steps::replay(*kept)),
                Err(Stop::Lock(refusal)) => refuse(&lock.protocol, lock.name_of(), refusal),
                Err(Stop::Problem(problem)) => {
                    tracing::debug!(
                        lock = lock.name_of(),
                        ?problem,
                        "a request is not given the answer of its handler"
                    );
                    Ok(P::answer(problem).map(ResponseBody::refusal))
                }
            }
        })
    }
}
