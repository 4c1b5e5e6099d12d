//! The steps of a request. The module's documentation says why they have this order; none of them may move.

use std::{future::poll_fn, pin::Pin, slice, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use lock_core::{__log::Flood, LockGuard, key::part};
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use super::{answers::Answers, attempt::Attempt, form::Form, layer::IdempotencyLayer, problem::Problem, record};
use crate::{
    body::ResponseBody,
    error::BoxError,
    key::{Absent, Choice, Find, KeyExtractor, Mistake, Principal, header},
    layer::MAX_HOLD,
    refusal::Refusal,
    shared::warn,
    until::Task,
};

/// What a request is told in place of the handler's own answer.
pub(super) enum Stop {
    /// An answer that was kept: its body, and its trailers.
    Kept(Box<Response<(Bytes, HeaderMap)>>),
    Lock(Refusal),
    Problem(Problem),
}

impl<K, A: Answers, P> IdempotencyLayer<K, A, P> {
    /// Finds the key of a request: scope, principal and idempotency key. Returns `None` if the request passes without one.
    pub(super) fn key<B>(&self, request: &Request<B>) -> Result<Option<String>, Stop>
    where
        K: Principal<Request<B>>,
    {
        let idempotency_key = match header::<String>(HEADER).find(request) {
            Ok(key) if key.len() <= 255 => key, // as at Stripe
            // A key that is there and empty is a mistake, and not a request without a key.
            Err(Absent::Missing(_)) if !request.headers().contains_key(HEADER) => {
                return if self.is_optional { Ok(None) } else { Err(Stop::Problem(Problem::KEY_MISSING)) };
            }
            _ => return Err(Stop::Problem(Problem::KEY_UNUSABLE)),
        };
        let no_principal = "the principal of a request is empty; let the layer that authenticates refuse such requests, or a closure return text or an error";
        // All clients with an empty one would be one client.
        let is_named = |whose: &str| {
            whose.strip_prefix(self.lock.key.scope).is_some_and(|rest| rest != ":" && !rest.starts_with("::"))
        };
        match self.lock.key.extract(request) {
            Choice::Lock(whose) if is_named(&whose) => Ok(Some(format!("{whose}:{}", part(&idempotency_key)))),
            Choice::Refuse(error) => Err(Stop::Lock(Refusal::Key(error))),
            _ => Err(Stop::Lock(Refusal::Key(Mistake(no_principal.to_owned()).into()))),
        }
    }

    /// Looks for an answer; goes on only if there is none.
    pub(super) async fn look(&self, attempt: &Attempt) -> Result<(), Stop> {
        match within(self.store_timeout, self.answers.get(attempt.key())).await {
            Ok(None) => Ok(()),
            Ok(Some(record)) => Err(self.told(&record, attempt)),
            Err(error) => Err(self.unavailable(&*error)),
        }
    }

    /// What a request is told for which this is stored.
    fn told(&self, record: &Bytes, attempt: &Attempt) -> Stop {
        record::read(record, &attempt.fingerprint)
            .unwrap_or_else(|| self.unavailable(&*BoxError::from("what is stored is not an answer")))
    }

    fn unavailable(&self, error: &(dyn std::error::Error + 'static)) -> Stop {
        self.tell(error, "the answers to earlier requests cannot be read");
        Stop::Problem(Problem::UNAVAILABLE)
    }

    /// Waits until it is the turn of a request to run.
    pub(super) async fn acquire(&self, key: String, attempt: &Attempt, until: Instant) -> Result<LockGuard, Stop> {
        let _place = self.lock.admit(slice::from_ref(&key)).map_err(|error| Stop::Lock(Refusal::Overloaded(error)))?;
        let ask = |is_shared, wait| self.lock.request(&key, is_shared).wait(wait).acquire();
        let left = || until.saturating_duration_since(Instant::now());
        match ask(false, Duration::ZERO).await {
            Err(error) if error.is_busy() => {}
            first => return first.map_err(not_acquired),
        }
        // Duplicates share the key: the release of the first lets all of them in, in one step. They need it for no longer than that.
        drop(ask(true, left()).await.map_err(not_acquired)?);
        self.look(attempt).await?;
        // The first has left no answer, so this request may be the one that runs. If all went on to share the key, none would.
        ask(false, left()).await.map_err(not_acquired)
    }

    /// Runs the handler under the lease, and stores its answer before the lease is released.
    pub(super) async fn run<S, B, R>(
        self: Arc<Self>,
        mut service: S,
        mut request: Request<B>,
        attempt: &Attempt,
        begun: Instant,
    ) -> Result<Result<Response<ResponseBody<R>>, S::Error>, Stop>
    where
        K: Send + Sync + 'static,
        S: Service<Request<B>, Response = Response<R>>,
        P: Form<B, R, S::Error>,
        R: Body<Error: Into<BoxError>>,
    {
        // The first look was before the lease: another request may have stored its answer in between.
        self.look(attempt).await?;
        self.lock.protocol.waited(&mut request, begun.elapsed()); // with both looks
        let (head, body) = match service.call(request).await {
            Ok(response) => response.into_parts(),
            Err(error) => return self.look_for_own(attempt).await.map(|()| Err(error)),
        };
        let (mut rest, mut data) = (Box::pin(body), Vec::new());
        let end = timeout(STREAMS, read(rest.as_mut(), self.limit, &mut data)).await.unwrap_or(Err(None));
        let (data, trailers) = (Bytes::from(data), end.as_ref().ok().and_then(Option::as_ref));
        if P::is_final(&head, trailers) {
            let mine = match &end {
                Ok(_) => record::write(&attempt.fingerprint, head.status, &head.headers, trailers, &data),
                Err(_) => record::write_not_kept(&attempt.fingerprint),
            };
            // In a task of its own: a lease that is lost now must not lose the answer, too.
            let put = Arc::clone(&self).put(attempt.clone(), mine.clone());
            let held = Task::spawn(put).await?;
            // What the store holds is the answer. Two requests have run if a lease was lost, and both clients must be told the same.
            if held != mine {
                let told = record::read(&held, &attempt.fingerprint);
                return Err(told.unwrap_or(Stop::Problem(Problem::NOT_STORED))); // what is not an answer is none
            }
        } else {
            self.look_for_own(attempt).await?;
        }
        let body = match end {
            Ok(trailers) => ResponseBody::buffered(data, None, trailers.map(Ok)),
            Err(None) => ResponseBody::buffered(data, Some(rest), None),
            Err(Some(error)) => ResponseBody::buffered(data, None, Some(Err(error))),
        };
        Ok(Ok(Response::from_parts(head, body)))
    }

    /// Looks for an answer that the handler has stored itself before it failed, or another request after the lease was lost. Without one
    /// the failure is told.
    pub(super) async fn look_for_own(&self, attempt: &Attempt) -> Result<(), Stop> {
        match self.look(attempt).await {
            Err(stop @ Stop::Kept(_)) => Err(stop),
            _ => Ok(()),
        }
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
                pause = (2 * pause).min(Duration::from_secs(1));
                limit = limit.saturating_mul(2); // a store that is only slow stores it in the end
            }
        };
        timeout(MAX_HOLD, tries).await.map_err(|_| Stop::Problem(Problem::NOT_STORED))
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
    if error.is_busy() {
        return Stop::Problem(Problem::in_progress(error.retry_after()));
    }
    Stop::Lock(Refusal::NotAcquired(error))
}

/// Gives an answer again.
pub(super) fn replay<R: Body>(mut kept: Response<(Bytes, HeaderMap)>) -> Response<ResponseBody<R>> {
    kept.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    kept.map(|(body, trailers)| ResponseBody::buffered(body, None, (!trailers.is_empty()).then_some(Ok(trailers))))
}

/// Reads the body of a request, which is part of its fingerprint.
pub(super) async fn read_request<B: Body<Error: Into<BoxError>>>(body: B, limit: usize) -> Result<Bytes, Stop> {
    let mut data = Vec::new();
    match read(Box::pin(body).as_mut(), limit.max(REQUEST), &mut data).await {
        Ok(_) => Ok(data.into()),
        Err(None) => Err(Stop::Problem(Problem::REQUEST_TOO_LARGE)),
        Err(Some(_)) => Err(Stop::Problem(Problem::REQUEST_UNREADABLE)),
    }
}

/// Reads a body to its end, and returns its trailers. Fails without an error if it is larger than the limit. What was read is in `data`,
/// also if this future is dropped.
async fn read<B: Body<Error: Into<BoxError>>>(
    mut body: Pin<&mut B>,
    limit: usize,
    data: &mut Vec<u8>,
) -> Result<Option<HeaderMap>, Option<BoxError>> {
    let mut trailers = None;
    loop {
        let to_come = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if data.len().saturating_add(to_come) > limit {
            return Err(None);
        }
        let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await else { return Ok(trailers) };
        match frame.map_err(|error| Some(error.into()))?.into_data() {
            Ok(part) => data.put(part),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
}

/// The header of a request, and the metadata of a call.
const HEADER: &str = "idempotency-key";
/// The header of an answer that is given again, with the name that Stripe gives it.
const REPLAYED: &str = "idempotent-replayed";
/// The most bytes of a request, unless answers may have more. It is the limit of axum's extractors.
const REQUEST: usize = 2 * 1024 * 1024;
/// An answer whose body takes longer than this is a stream, which is not kept.
const STREAMS: Duration = Duration::from_secs(5);
