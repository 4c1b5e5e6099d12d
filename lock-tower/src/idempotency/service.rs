//! The steps of a request. The module's documentation says why they have this order; none of them may move.

use std::{
    future::poll_fn,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{BufMut, Bytes};
use http::{HeaderMap, Request, Response};
use http_body::Body;
use lock_core::{
    __log::Flood,
    LockGuard,
    answer::{Answer, Case},
    key::part,
};
use tokio::time::{Instant, sleep, timeout};
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Answers, Attempt, Form, IdempotencyLayer,
    answers::MOST,
    form::{NOT_KEPT, Problem},
};
use crate::{
    acquiring::Guard,
    body::ResponseBody,
    error::BoxError,
    future::refuse,
    key::{Choice, KeyExtractor, Mistake, Principal, Scoped},
    layer::MAX_HOLD,
    metrics,
    misconfigured::Misconfigured,
    refusal::Refusal,
    service::{LockService, take_ready},
    shared::{shown, warn},
    until::{Detached, Task, sealed::Until as _},
};

/// A service that gives all requests of one idempotency key the answer of the first; made by [`IdempotencyLayer`].
///
/// See the [module's documentation](crate::idempotency) for examples.
#[derive(Clone, Debug)]
pub struct IdempotencyService<S, K, A, P = crate::Http> {
    /// Has the inner service, and what was found wrong with the options.
    lock: LockService<S, Scoped<K>, P>,
    layer: Arc<IdempotencyLayer<K, A, P>>,
}

/// What a request is told in place of the handler's own answer.
pub(super) enum Stop {
    /// An answer that was kept: its body, and its trailers.
    Kept(Box<Response<(Bytes, Option<HeaderMap>)>>),
    Lock(Refusal),
    /// An answer of this layer, and its code.
    Problem(Answer, &'static str),
}

impl<S, K: Clone, A: Answers, P: Clone> Layer<S> for IdempotencyLayer<K, A, P> {
    type Service = IdempotencyService<S, K, A, P>;

    fn layer(&self, inner: S) -> Self::Service {
        metrics::describe();
        let lock = LockService::new(inner, self.lock.clone(), self.check_at_start());
        IdempotencyService { lock, layer: Arc::new(self.clone()) }
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
        self.lock.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let checked = self.lock.check::<Request<B>>().clone();
        let (layer, mut service) = (Arc::clone(&self.layer), take_ready(&mut self.lock.inner));
        Box::pin(async move {
            let (lock, begun) = (&layer.lock, Instant::now());
            let steps = async {
                checked.map_err(|error| Stop::Lock(Refusal::Misconfigured(error)))?;
                let key = if lock.protocol.applies(&request) { layer.key(&request)? } else { None };
                let Some(key) = key else {
                    lock.protocol.pass(&mut request);
                    return Ok(service.call(request).await.map(|response| lock.protocol.done(response)));
                };
                if let Some(error) = Misconfigured::outside_runtime(lock.name_of(), lock.made_at) {
                    return Err(Stop::Lock(Refusal::Misconfigured(error)));
                }
                let time_left = lock.protocol.time_left(&request);
                let ((head, body), mut data) = (request.into_parts(), Vec::new());
                let mut body = Box::pin(body);
                // Before the lease: a client that stalls in its upload keeps no key.
                let all = timeout(MAX_HOLD, read(body.as_mut(), layer.limit.max(REQUEST), &mut data));
                if let Err(error) = all.await.unwrap_or_else(|late| Err(Some(late.into()))) {
                    let problem = if error.is_some() { Problem::UNREADABLE } else { Problem::TOO_LARGE };
                    return Err(problem.into());
                }
                drop(body);
                let request = Request::from_parts(head, ());
                let attempt = Attempt::new(lock.manager.prefix(), &key, &request, &data);
                layer.look(&attempt).await?;
                let until = Instant::now() + layer.wait;
                let until = time_left.map_or(until, |left| until.min(begun + left.min(MOST)));
                let guard = Guard::One(layer.acquire(key, &attempt, until).await?);
                let mut request = request.map(|()| P::body(data.into()));
                guard.attach(&lock.protocol, &mut request);
                request.extensions_mut().insert(attempt.clone());
                let (running, own) = (Arc::clone(&layer), attempt.clone());
                // In a task of its own: a client that hangs up must not leave the work half done.
                let work = async move {
                    // The first look was before the lease: another request may have stored its answer in between.
                    running.look(&own).await?;
                    running.lock.protocol.waited(&mut request, begun.elapsed()); // with both looks
                    let (head, body) = match service.call(request).await {
                        Ok(response) => response.into_parts(),
                        Err(error) => return running.look_for_own(&own).await.map(|()| Err(error)),
                    };
                    let (mut rest, mut data) = (Box::pin(body), Vec::new());
                    let end =
                        timeout(STREAMS, read(rest.as_mut(), running.limit, &mut data)).await.unwrap_or(Err(None));
                    let response = Response::from_parts(head, Bytes::from(data));
                    let trailers = end.as_ref().ok().and_then(Option::as_ref);
                    if P::is_final(&response, trailers) {
                        let mine = if end.is_ok() { own.kept(&response, trailers) } else { own.not_kept() };
                        // In a task of its own: a lease that is lost now must not lose the answer, too.
                        let put = Arc::clone(&running).put(own.clone(), mine.clone());
                        let held = Task::spawn(put).await?;
                        // What the store holds is the answer. Two requests have run if a lease was lost, and both clients must
                        // be told the same.
                        if held != mine {
                            return Err(own.read(&held).unwrap_or_else(|| Problem::NOT_STORED.into()));
                        }
                    } else {
                        running.look_for_own(&own).await?;
                    }
                    Ok(Ok(response.map(|data| match end {
                        Ok(trailers) => ResponseBody::buffered(data, None, trailers.map(Ok)),
                        Err(None) => ResponseBody::buffered(data, Some(rest), None),
                        Err(Some(error)) => ResponseBody::buffered(data, None, Some(Err(error))),
                    })))
                };
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
                Err(Stop::Kept(kept)) => Ok((*kept).map(|(data, end)| ResponseBody::buffered(data, None, end.map(Ok)))),
                Err(Stop::Lock(refusal)) => refuse(&lock.protocol, lock.name_of(), refusal),
                Err(Stop::Problem(answer, code)) => {
                    tracing::debug!(lock = shown(lock.name_of()), code, "a request is not given its handler's answer");
                    Ok(P::answer(answer, code).map(ResponseBody::refusal))
                }
            }
        })
    }
}

impl<K, A: Answers, P> IdempotencyLayer<K, A, P> {
    /// Finds the key of a request: scope, principal and idempotency key. Returns `None` if the request passes without one.
    fn key<B>(&self, request: &Request<B>) -> Result<Option<String>, Stop>
    where
        K: Principal<Request<B>>,
    {
        let mut sent = request.headers().get_all("idempotency-key").iter();
        let idempotency_key = match (sent.next(), sent.next()) {
            (None, _) if self.is_optional => return Ok(None),
            (None, _) => return Err(Problem::KEY_MISSING.into()),
            (Some(key), None) if (1..=255).contains(&key.len()) => key.to_str().ok(), // as at Stripe
            _ => None,
        };
        let idempotency_key = part(idempotency_key.ok_or(Problem::KEY_UNUSABLE)?);
        // All clients with an empty principal would be one client, as would those with an empty part of it.
        let is_named = |whose: &str| {
            whose
                .strip_prefix(self.lock.key.scope)
                .is_some_and(|rest| rest.split(':').skip(1).all(|part| !part.is_empty()))
        };
        Err(Stop::Lock(Refusal::Key(match self.lock.key.extract(request) {
            Choice::Lock(whose) if is_named(&whose) => return Ok(Some(format!("{whose}:{idempotency_key}"))),
            Choice::Refuse(error) => error,
            _ => Mistake("the principal of a request is empty, or a part of it is; let the layer that authenticates refuse such requests, or a closure return text or an error".to_owned()).into(),
        })))
    }

    /// Looks for an answer; goes on only if there is none.
    async fn look(&self, attempt: &Attempt) -> Result<(), Stop> {
        let error = match within(self.store_timeout, self.answers.get(attempt.key())).await {
            Ok(None) => return Ok(()),
            Ok(Some(record)) => match attempt.read(&record) {
                Some(stop) => return Err(stop),
                None => "what is stored is not an answer".into(),
            },
            Err(error) => error,
        };
        self.tell(&*error, "the answers to earlier requests cannot be read");
        Err(Problem::UNAVAILABLE.into())
    }

    /// Looks for an answer that the handler has stored itself before it failed, or another request after the lease was lost, or for the
    /// mark of one that was not kept. Without one the failure is told.
    async fn look_for_own(&self, attempt: &Attempt) -> Result<(), Stop> {
        match self.look(attempt).await {
            Err(stop @ (Stop::Kept(_) | Stop::Problem(_, NOT_KEPT))) => Err(stop),
            _ => Ok(()),
        }
    }

    /// Waits until it is the turn of a request to run.
    async fn acquire(&self, key: String, attempt: &Attempt, until: Instant) -> Result<LockGuard, Stop> {
        let _place = self.lock.admit(slice::from_ref(&key)).map_err(|error| Stop::Lock(Refusal::Overloaded(error)))?;
        let ask = |is_shared, wait| self.lock.request(&key, is_shared).wait(wait).acquire();
        let left = || until.saturating_duration_since(Instant::now());
        match ask(false, Duration::ZERO).await {
            Err(error) if error.is_busy() => {}
            first => return first.map_err(not_acquired),
        }
        // Duplicates share the key: the release of the first lets all of them in, in one step. They need it for no longer than that.
        drop(ask(true, left()).await.map_err(not_acquired)?.release_at_once());
        self.look(attempt).await?;
        // The first has left no answer, so this request may be the one that runs. If all went on to share the key, none would.
        ask(false, left()).await.map_err(not_acquired)
    }

    /// Stores an answer unless there is one, and returns the one that is stored. The effect has happened, so it tries again. While there is
    /// a lease, nobody else runs meanwhile.
    async fn put(self: Arc<Self>, attempt: Attempt, mine: Bytes) -> Result<Bytes, Stop> {
        let tries = async {
            let (mut pause, mut limit) = (Duration::from_millis(20), self.store_timeout);
            loop {
                match within(limit, self.answers.put_if_absent(attempt.key(), mine.clone(), self.keep)).await {
                    Ok(held) => return held,
                    Err(error) => self.tell(&*error, "an answer could not be stored; trying again"),
                }
                sleep(pause).await;
                // A store that is only slow stores it in the end.
                (pause, limit) = ((2 * pause).min(Duration::from_secs(1)), limit.saturating_mul(2));
            }
        };
        timeout(MAX_HOLD, tries).await.map_err(|_| Problem::NOT_STORED.into())
    }

    /// Logs a failure of the store, at most once a second.
    fn tell(&self, error: &(dyn std::error::Error + 'static), what: &str) {
        static TOLD: Flood = Flood::new();
        warn(&TOLD, error, self.lock.name_of(), what);
    }
}

/// Waits for the store, which may have no limit of its own.
async fn within<T>(limit: Duration, asked: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
    let late = |_| Err(format!("the store of answers has not answered within {limit:?}").into());
    timeout(limit, asked).await.unwrap_or_else(late)
}

fn not_acquired(error: lock_core::Error) -> Stop {
    if !error.is_busy() {
        return Stop::Lock(Refusal::NotAcquired(error));
    }
    let detail = "the first request with this Idempotency-Key is still running; try again later for its answer";
    Stop::Problem(Answer::new(Case::Busy).detail(detail).retry_after(error.retry_after()), "idempotency_in_progress")
}

/// Reads a body to its end, and returns its trailers. Fails without an error if it is larger than the limit. What was read is in `data`,
/// also if this future is dropped.
async fn read<B: Body<Error: Into<BoxError>>>(
    mut body: Pin<&mut B>,
    limit: usize,
    data: &mut Vec<u8>,
) -> Result<Option<HeaderMap>, Option<BoxError>> {
    loop {
        let to_come = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if data.len().saturating_add(to_come) > limit {
            return Err(None);
        }
        let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await else { return Ok(None) };
        match frame.map_err(|error| Some(error.into()))?.into_data() {
            Ok(part) => data.put(part),
            Err(last) => return Ok(last.into_trailers().ok()),
        }
    }
}

/// The most bytes of a request, unless answers may have more. It is the limit of axum's extractors.
const REQUEST: usize = 2 * 1024 * 1024;
/// An answer whose body takes longer than this is a stream, which is not kept.
const STREAMS: Duration = Duration::from_secs(5);
