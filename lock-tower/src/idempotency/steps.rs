//! What happens to a request, step by step. The module's documentation says why the steps have this order; none of them may move.

use std::{future::poll_fn, pin::Pin, slice, sync::Arc, time::Duration};

use bytes::{BufMut, Bytes};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Body;
use lock_core::{__log::Flood, LockGuard, key::part};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};
use tower_service::Service;

use super::{
    answers::Answers,
    attempt::Attempt,
    form::{Form, sealed},
    layer::IdempotencyLayer,
    problem::{Problem, Refused},
    record::{self, Kept, Record},
    service::Shared,
};
use crate::{
    acquiring::Guard,
    body::ResponseBody,
    error::BoxError,
    future::refuse,
    key::{Absent, Choice, Find, KeyExtractor, Mistake, Principal, header},
    layer::MAX_HOLD,
    refusal::Refusal,
    shared::shown,
    until::{Detached, sealed::Until as _},
};

impl<K, A: Answers, P> Shared<K, A, P> {
    /// Serves a request: with the answer of the handler, the answer that is stored, or a refusal.
    pub(super) async fn serve<S, B, R>(
        self: Arc<Self>,
        mut service: S,
        request: Request<B>,
    ) -> Result<Response<ResponseBody<R>>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>, Future: Send, Error: Send> + Send + 'static,
        K: Principal<Request<B>> + Send + Sync + 'static,
        P: Form<B, R, S::Error>,
        B: Body<Error: Into<BoxError>> + Send + 'static,
        R: Body<Error: Into<BoxError>, Data: Send> + Send + 'static,
    {
        let lock = &self.layer.lock;
        let steps = async {
            self.check::<B>().clone().map_err(Refusal::Misconfigured)?;
            let key = if lock.protocol.applies(&request) { self.layer.key(&request)? } else { None };
            let Some(key) = key else {
                return Ok(service.call(request).await.map(|response| lock.protocol.done(response)));
            };
            if Handle::try_current().is_err() {
                let problem = "its requests are polled outside a tokio runtime, which has to run the handlers";
                return Err(Refusal::Misconfigured(lock.misconfigured(problem.to_owned())).into());
            }
            let begun = Instant::now();
            let time_left = lock.protocol.time_left(&request);
            // Read before the lock is acquired: a client that stalls in its upload keeps nothing.
            let (mut request, attempt) = self.layer.read_request(request, key).await?;
            if let Some(kept) = self.layer.stored(&attempt).await? {
                return Ok(Ok(replay(kept)));
            }
            let wait = time_left.map_or(self.layer.settings.wait, |left| left.min(self.layer.settings.wait));
            let guard = match self.layer.acquire(&attempt, Instant::now() + wait).await? {
                Turn::Run(guard) => Guard::One(guard),
                Turn::Replay(kept) => return Ok(Ok(replay(kept))),
            };
            guard.attach(&lock.protocol, &mut request);
            if time_left.is_some() {
                lock.protocol.waited(&mut request, begun.elapsed());
            }
            request.extensions_mut().insert(attempt.clone());
            let shared = Arc::clone(&self);
            // In a task of its own: a client that hangs up must not leave the work half done.
            let work = async move { shared.layer.run(service, request, &attempt).await };
            Detached::work(guard, work).await.map_err(Refusal::Lost)?.0
        };
        match steps.await {
            Ok(answer) => answer,
            Err(Refused::Lock(refusal)) => refuse(&lock.protocol, lock.name_of(), refusal),
            Err(Refused::Problem(problem)) => {
                tracing::debug!(lock = lock.name_of(), ?problem, "a request is not given the answer of its handler");
                Ok(P::answer(problem).map(ResponseBody::refusal))
            }
        }
    }
}

impl<K, A: Answers, P> IdempotencyLayer<K, A, P> {
    /// Finds the key of a request: scope, principal and idempotency key. `None` passes without a lock.
    fn key<B>(&self, request: &Request<B>) -> Result<Option<String>, Refused>
    where
        K: Principal<Request<B>>,
    {
        let idempotency_key = match header::<String>(HEADER).find(request) {
            Ok(key) if key.len() <= MOST_BYTES => key,
            // A key that is there and empty is a mistake, and not a request without a key.
            Err(Absent::Missing(_)) if !request.headers().contains_key(HEADER) => {
                return if self.settings.is_optional { Ok(None) } else { Err(Problem::KeyMissing.into()) };
            }
            _ => return Err(Problem::KeyUnusable.into()),
        };
        match self.lock.key.extract(request) {
            Choice::Lock(whose) => Ok(Some(format!("{whose}:{}", part(&idempotency_key)))),
            Choice::Refuse(error) => Err(Refusal::Key(error).into()),
            _ => {
                let problem =
                    "a request has no principal; let the closure of an `IdempotencyLayer` return text or an error";
                Err(Refusal::Key(Mistake(problem.to_owned()).into()).into())
            }
        }
    }

    /// Reads the body of a request, which is part of its fingerprint.
    async fn read_request<B>(&self, request: Request<B>, key: String) -> Result<(Request<B>, Attempt), Refused>
    where
        P: sealed::Form<B>,
        B: Body<Error: Into<BoxError>>,
    {
        let (head, body) = request.into_parts();
        let mut data = Vec::new();
        match read(Box::pin(body).as_mut(), self.settings.request_limit, &mut data).await {
            Ok(_) => {}
            Err(None) => return Err(Problem::RequestTooLarge.into()),
            Err(Some(_)) => return Err(Problem::RequestUnreadable.into()),
        }
        let request = Request::from_parts(head, ());
        let attempt = Attempt::new(key, &request, &data, &self.settings.headers);
        Ok((request.map(|()| P::body(data.into())), attempt))
    }

    /// Waits until it is the turn of a request.
    async fn acquire(&self, attempt: &Attempt, until: Instant) -> Result<Turn, Refused> {
        let key = attempt.key().to_owned();
        let _place = self.lock.admit(slice::from_ref(&key)).map_err(Refusal::Overloaded)?;
        let ask = |is_shared, wait| self.lock.request(&key, is_shared).wait(wait).acquire();
        let left = || until.saturating_duration_since(Instant::now());
        match ask(false, Duration::ZERO).await {
            Ok(guard) => return Ok(Turn::Run(guard)),
            Err(error) if error.is_busy() => {}
            Err(error) => return Err(Refusal::NotAcquired(error).into()),
        }
        // Duplicates share the key: the release of the first lets all of them in, in one step. They need it for no longer than that.
        drop(ask(true, left()).await.map_err(not_acquired)?);
        if let Some(kept) = self.stored(attempt).await? {
            return Ok(Turn::Replay(kept));
        }
        // The first has left no answer, so this request may be the one that runs. If all went on to share the key, none would.
        ask(false, left()).await.map(Turn::Run).map_err(not_acquired)
    }

    /// Runs the handler under the lease, and stores its answer before the lease is released.
    async fn run<S, B, R>(&self, mut service: S, request: Request<B>, attempt: &Attempt) -> Answer<R, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>>,
        P: Form<B, R, S::Error>,
        R: Body<Error: Into<BoxError>>,
    {
        // The first look was before the lease: another request may have stored its answer in between.
        if let Some(kept) = self.stored(attempt).await? {
            return Ok(Ok(replay(kept)));
        }
        let (head, body) = match service.call(request).await {
            Ok(response) => response.into_parts(),
            Err(error) => return Ok(Err(error)),
        };
        let (mut rest, mut data) = (Box::pin(body), Vec::new());
        let end = timeout(STREAMS, read(rest.as_mut(), self.settings.limit, &mut data)).await.unwrap_or(Err(None));
        let data = Bytes::from(data);
        if P::is_final(&head, end.as_ref().ok().and_then(Option::as_ref)) {
            let mine = match &end {
                Ok(trailers) => attempt.record(head.status, &head.headers, trailers.as_ref(), &data),
                Err(_) => record::write_not_kept(attempt.fingerprint()),
            };
            let held = self.put(attempt, &mine).await?;
            // What the store holds is the answer. Two requests have run if a lease was lost, and both clients must be told the same.
            if held != mine {
                return Ok(Ok(replay(self.read_record(&held, attempt)?)));
            }
        }
        Ok(Ok(Response::from_parts(
            head,
            match end {
                Ok(trailers) => ResponseBody::buffered(data, None, trailers.map(Ok)),
                Err(None) => ResponseBody::buffered(data, Some(rest), None),
                Err(Some(error)) => ResponseBody::buffered(data, None, Some(Err(error))),
            },
        )))
    }

    /// Returns the answer that is stored, if there is one and this request may have it.
    async fn stored(&self, attempt: &Attempt) -> Result<Option<Kept>, Refused> {
        match self.answers.get(attempt.key()).await {
            Ok(Some(record)) => self.read_record(&record, attempt).map(Some),
            Ok(None) => Ok(None),
            Err(error) => {
                self.tell(&*error, "the answers to earlier requests cannot be read");
                Err(Problem::Unavailable.into())
            }
        }
    }

    fn read_record(&self, record: &Bytes, attempt: &Attempt) -> Result<Kept, Refused> {
        let Some(Record { fingerprint, answer }) = record::read(record) else {
            // Of a later version, perhaps. It says that the request was carried out, so it must not run.
            self.tell(
                &Mistake(format!("what is stored for {:?} is not an answer", attempt.key())),
                "an answer cannot be read",
            );
            return Err(Problem::Unavailable.into());
        };
        if fingerprint != attempt.fingerprint() {
            return Err(Problem::KeyReused.into());
        }
        answer.ok_or(Problem::AnswerNotKept.into())
    }

    /// Stores an answer unless there is one, and returns the one that is stored. The effect has happened, so it tries as long as there is
    /// a lease: nobody else runs meanwhile.
    async fn put(&self, attempt: &Attempt, mine: &Bytes) -> Result<Bytes, Refused> {
        let tries = async {
            let mut pause = Duration::from_millis(20);
            loop {
                match self.answers.put_if_absent(attempt.key(), mine.clone(), self.settings.keep).await {
                    Ok(held) => return held,
                    Err(error) => self.tell(&*error, "an answer could not be stored; trying again"),
                }
                sleep(pause).await;
                pause = (2 * pause).min(Duration::from_secs(1));
            }
        };
        // A lease may be lost and its work go on, if `on_lost` says so.
        timeout(MAX_HOLD, tries).await.map_err(|_| Problem::AnswerNotStored.into())
    }

    /// Logs a failure of the store, at most once a second.
    fn tell(&self, error: &(dyn std::error::Error + 'static), what: &str) {
        static TOLD: Flood = Flood::new();
        let lock = shown(self.lock.name_of());
        match TOLD.line() {
            Some(others) => tracing::warn!(error, lock, others = (others > 0).then_some(others), "{what}"),
            None => tracing::debug!(error, lock, "{what}"),
        }
    }
}

/// What a request does when its turn has come.
enum Turn {
    Run(LockGuard),
    Replay(Kept),
}

/// The answer or the error of the service, unless the request is refused.
type Answer<R, E> = Result<Result<Response<ResponseBody<R>>, E>, Refused>;

fn not_acquired(error: lock_core::Error) -> Refused {
    if error.is_busy() { Problem::InProgress(error.retry_after()).into() } else { Refusal::NotAcquired(error).into() }
}

fn replay<R: Body>(kept: Kept) -> Response<ResponseBody<R>> {
    let Kept { status, mut headers, trailers, body } = kept;
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    let trailers = (!trailers.is_empty()).then_some(Ok(trailers));
    let mut response = Response::new(ResponseBody::buffered(body, None, trailers));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// Reads a body to its end, and returns its trailers. Fails without an error if it is larger than the limit. What was read is in `data`,
/// also if this future is dropped.
async fn read<B>(mut body: Pin<&mut B>, limit: usize, data: &mut Vec<u8>) -> Result<Option<HeaderMap>, Option<BoxError>>
where
    B: Body<Error: Into<BoxError>>,
{
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
/// As Stripe allows it.
const MOST_BYTES: usize = 255;
/// The header of an answer that is not the handler's, with the name that Stripe gives it.
const REPLAYED: &str = "idempotent-replayed";
/// An answer whose body takes longer than this is a stream, which is not kept.
const STREAMS: Duration = Duration::from_secs(5);
