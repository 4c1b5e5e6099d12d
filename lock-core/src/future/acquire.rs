use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use crate::{
    backend::{self, Answer, BackendError, Batch, Operation, Outcome},
    clock::Moment,
    engine::{
        Call, Engine, Owed, Timer,
        cleanup::{Doubt, Parting},
        metrics,
        queues::{Arrival, Newcomer, Trip, line::WaiterId, unexpected},
        tenure::{Acquired, Offer, Terms},
    },
    error::{ACQUIRE, Error, ErrorKind},
    future::reentry,
    guard::LockGuard,
    key::LockKey,
    mutants::Mutant,
    request::LockRequest,
    token::Token,
};

/// The future of [`LockRequest::acquire`] and of awaiting a [`LockRequest`].
///
/// An uncontended acquire that finds nothing under way is one round trip, sent by this future itself. Otherwise the
/// engine asks for it, together with others; while the key is busy it stands in line, behind those of its process that
/// came before it, and its process behind those that queued before.
///
/// Who waits has to be polled: a future whose turn has come and that is not polled within 100 ms (one that is kept
/// while the task does something else) loses its turn, and stands at the end of the line when it is polled again.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind: what a request under way may have set is released in the background.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    /// None once it is over.
    request: Option<LockRequest>,
    progress: Progress,
    /// Made with the first poll.
    watch: Option<Watch>,
}

/// How far it has come.
#[derive(Debug)]
struct Progress {
    step: Step,
    /// When the wait is over; known from the first poll on.
    give_up: Moment,
    /// The moment that the last poll looked at: reading the clock is a good part of what an acquire in memory costs.
    now: Moment,
}

/// What shows an acquire to those who look in.
struct Watch {
    began: Moment,
    waiting: metrics::Waiting,
    span: tracing::Span,
}

enum Step {
    Begin,
    /// Sends the request itself: nothing was under way.
    Calling {
        waiter: Waiter,
        call: Call,
        asked: Asking,
    },
    /// In line; the engine sends what is to be sent.
    Waiting {
        waiter: Waiter,
        timer: Option<Timer>,
    },
    /// Takes up a lease that was handed over: there is nothing to wait for.
    TakingUp {
        attempt: Box<Attempt>,
        call: Call,
    },
    Finished,
}

/// A request that was sent by this future.
struct Asking {
    token: Token,
    /// The lease clock before sending.
    sent: Moment,
}

/// What must be left when the future is dropped.
#[derive(Clone, Copy)]
struct Waiter {
    /// None once it is over.
    id: Option<WaiterId>,
    /// Whether the engine has the waker of the poll that goes on: it has just been given.
    known: bool,
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            self.progress.leave(&request.engine);
        }
    }
}

impl Acquire {
    pub(crate) fn new(request: LockRequest) -> Self {
        let progress = Progress { step: Step::Begin, give_up: Moment::NEVER, now: Moment::NEVER };
        Self { request: Some(request), progress, watch: None }
    }
}

impl Watch {
    fn begin(request: &LockRequest, began: Moment) -> Self {
        let LockRequest { keys, label, .. } = request;
        Self {
            began,
            waiting: metrics::Waiting::begin(label),
            span: tracing::debug_span!("lock.acquire", key = keys.as_ref().map_or("", LockKey::as_str), lock = label),
        }
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { request, progress, watch } = &mut *self;
        let Some(asked) = request else { panic!("`Acquire` polled after completion") };
        // A hold that begins now counts from now, not from the last poll.
        progress.now = asked.engine.now();
        let watching = watch.get_or_insert_with(|| Watch::begin(asked, progress.now));
        let entered = watching.span.enter();
        let result = ready!(progress.poll(asked, cx));
        drop(entered);
        progress.leave(&asked.engine);
        let result = match (result, request.take()) {
            (Ok((id, hold)), Some(asked)) => Ok(LockGuard::new(asked.engine, id, hold, asked.options.on_lost)),
            (Err(error), Some(asked)) => Err(asked.failed(error)),
            (_, None) => unreachable!("it was asked"),
        };
        if let Some(Watch { began, mut waiting, span }) = watch.take() {
            let _entered = span.entered();
            let waited = progress.now.since(began);
            waiting.end(&result, waited);
            match &result {
                Ok(guard) => tracing::debug!(fencing_token = guard.fencing_token().get(), ?waited, "lease acquired"),
                Err(error) => tracing::debug!(%error, ?waited, "lease not acquired"),
            }
        }
        Poll::Ready(result)
    }
}

impl Progress {
    /// Finishes; forgets the waiter if it is not over.
    fn leave(&mut self, engine: &Engine) {
        let step = std::mem::replace(&mut self.step, Step::Finished);
        if let Step::Calling { waiter, .. } | Step::Waiting { waiter, .. } = &step
            && let Some(id) = waiter.id
        {
            engine.leave(id);
        }
    }

    fn poll(&mut self, request: &LockRequest, cx: &mut Context<'_>) -> Poll<Result<Offer, Error>> {
        let engine = &request.engine;
        self.step.forget_what_is_over(engine);
        let begins = matches!(self.step, Step::Begin);
        loop {
            match &mut self.step {
                Step::Begin => {
                    let (key, terms) = request.check()?;
                    engine.admit(ACQUIRE).map_err(|error| error.on(key))?;
                    reentry::refuse(engine, key, request.since, request.tries_once())?;
                    let now = self.now;
                    self.give_up = now + request.options.wait.get();
                    self.step = match request.from {
                        Some(from) => Step::take_up(engine, key.clone(), terms, from, now),
                        None => {
                            let newcomer = Newcomer { key, terms, tries: request.tries_once(), waker: cx.waker() };
                            Step::arrive(engine, newcomer, now)?
                        }
                    };
                }
                Step::Calling { waiter, call, asked } => {
                    if let Poll::Ready(result) = Pin::new(call).poll(cx) {
                        // Who is answered at once, by a store in the process, need not look at the clock again.
                        if !begins {
                            self.now = engine.now();
                        }
                        let Asking { token, sent } = *asked;
                        let trip = Trip { sent, now: self.now, epoch: engine.epoch(), repeated: false };
                        if let Poll::Ready(result) = waiter.answered(request, cx, token, result, trip) {
                            return Poll::Ready(result);
                        }
                        self.step = Step::Waiting { waiter: *waiter, timer: None };
                    } else {
                        return waiter.poll(engine, cx, self.now);
                    }
                }
                Step::Waiting { waiter, timer } => {
                    if let Poll::Ready(result) = waiter.poll(engine, cx, self.now) {
                        return Poll::Ready(result);
                    }
                    engine.admit(ACQUIRE).map_err(|error| request.on_key(error))?;
                    if self.give_up == Moment::NEVER {
                        return Poll::Pending;
                    }
                    let left = self.give_up.since(self.now);
                    let timer_ended = ready!(Pin::new(timer.get_or_insert_with(|| engine.sleep(left))).poll(cx));
                    timer_ended.map_err(|error| request.on_key(Error::backend(ACQUIRE, None, error)))?;
                    self.now = engine.now();
                    if self.now < self.give_up {
                        *timer = None;
                        continue;
                    }
                    match waiter.give_up(engine, self.now) {
                        Poll::Ready(error) => return Poll::Ready(Err(error)),
                        // The first answer is still to come, or the backend's time limit; or it has come just now.
                        Poll::Pending => self.give_up = Moment::NEVER,
                    }
                }
                Step::TakingUp { attempt, call } => {
                    let result = ready!(Pin::new(call).poll(cx));
                    self.now = engine.now();
                    return Poll::Ready(attempt.answered(result, self.now));
                }
                Step::Finished => unreachable!("the request is gone by then"),
            }
        }
    }
}

impl LockRequest {
    /// What its caller is told.
    fn failed(&self, error: Error) -> Error {
        match error.kind() {
            // The queue does not know for how long it was to wait.
            ErrorKind::Busy => error.busy_for(self.options.wait.get()),
            _ => error,
        }
    }

    fn on_key(&self, error: Error) -> Error {
        self.keys.as_ref().map_or_else(Clone::clone, |key| error.on(key))
    }
}

impl Waiter {
    fn poll(&mut self, engine: &Engine, cx: &Context<'_>, now: Moment) -> Poll<Result<Offer, Error>> {
        let Some(id) = self.id.filter(|_| !std::mem::take(&mut self.known)) else { return Poll::Pending };
        let result = ready!(engine.poll_waiter(id, cx.waker(), now));
        self.id = None;
        Poll::Ready(result)
    }

    /// Takes the answer to the request that its own future sent.
    fn answered(
        &mut self,
        request: &LockRequest,
        cx: &Context<'_>,
        token: Token,
        result: Result<Answer, BackendError>,
        trip: Trip,
    ) -> Poll<Result<Offer, Error>> {
        let (Some(id), Ok(key)) = (self.id, &request.keys) else { return Poll::Pending };
        self.known = true;
        let result = ready!(request.engine.acquired(key, id, cx.waker(), token, result, trip));
        self.id = None;
        Poll::Ready(result)
    }

    /// Whether it is the one who asks, with this token.
    fn asks_with(&self, engine: &Engine, token: Token) -> bool {
        self.id.is_some_and(|id| engine.is_contender(id, token))
    }

    /// Ends its wait. Pending if the first answer is still to come.
    fn give_up(&mut self, engine: &Engine, now: Moment) -> Poll<Error> {
        let Some(id) = self.id else { unreachable!("its answer has ended the future") };
        let error = ready!(engine.give_up(id, now));
        self.id = None;
        Poll::Ready(error)
    }
}

impl Step {
    /// Drops the future's own request if its token is over. A future that was not polled for long may not have sent it
    /// yet (it waited for a connection, say): the engine has asked in its stead, got the key, and released it when the
    /// turn was missed. Sent now, the request would take the key for nobody.
    fn forget_what_is_over(&mut self, engine: &Engine) {
        if let Self::Calling { waiter, asked, .. } = self
            && !waiter.asks_with(engine, asked.token)
            && !Mutant::LateRequestGoesOut.is_on()
        {
            *self = Self::Waiting { waiter: *waiter, timer: None };
        }
    }

    fn arrive(engine: &Engine, newcomer: Newcomer<'_>, now: Moment) -> Result<Self, Error> {
        let waiter = |id, known| Waiter { id: Some(id), known };
        Ok(match engine.arrive(newcomer, now)? {
            Arrival::Ask(id, request) => {
                let asked = Asking { token: request.token, sent: now };
                let call = engine.call(Batch::from([Operation::Acquire(request)]));
                Self::Calling { waiter: waiter(id, false), call, asked }
            }
            Arrival::Wait(id) => Self::Waiting { waiter: waiter(id, true), timer: None },
        })
    }

    fn take_up(engine: &Arc<Engine>, key: LockKey, terms: Terms, from: Token, now: Moment) -> Self {
        let token = engine.token();
        let request = backend::Acquire::new(key.clone(), token, terms.ttl.get()).from(from);
        let doubt = Doubt { until: terms.ttl.end(now), unanswered_since: Some(engine.epoch()) };
        let (doubt, _owed) = (Some(doubt), engine.owe());
        let attempt = Attempt { engine: Arc::clone(engine), key, terms, token, sent: now, doubt, _owed };
        Self::TakingUp { attempt: Box::new(attempt), call: engine.call(Batch::from([Operation::Acquire(request)])) }
    }
}

/// A request to take a lease up: as long as nobody knows what became of it, its drop has its token cleaned up.
struct Attempt {
    engine: Arc<Engine>,
    key: LockKey,
    terms: Terms,
    token: Token,
    sent: Moment,
    /// None once it is known that the token is not set, or is in use.
    doubt: Option<Doubt>,
    /// Until then the engine stays.
    _owed: Owed,
}

impl Attempt {
    fn answered(&mut self, result: Result<Answer, BackendError>, now: Moment) -> Result<Offer, Error> {
        let Self { engine, key, terms, token, sent, doubt, .. } = self;
        let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
        match result.and_then(Answer::single) {
            Ok(Outcome::Held { fence, block }) if now < terms.ttl.deadline(*sent) => {
                let unanswered_since = repeated.then(|| engine.epoch());
                let doubt_left = Doubt { until: terms.ttl.end(now), unanswered_since };
                let acquired = Acquired { token: *token, fence, block, sent: *sent, doubt: doubt_left, passes: false };
                let offer = engine.take_up(key, terms, acquired, now)?;
                *doubt = None;
                Ok(offer)
            }
            Ok(Outcome::Held { .. }) => {
                let detail = "the answer took longer than the lease had left";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(key).detail(detail))
            }
            Ok(Outcome::Gone) => {
                *doubt = None;
                Err(Error::new(ErrorKind::NotHeld, TAKE_UP).on(key))
            }
            // The token may stand somewhere, and is cleaned up.
            Ok(Outcome::Split { .. }) => {
                let detail = "too few nodes had the lease that was handed over, or another took it up; it may be lost";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(key).detail(detail))
            }
            Ok(outcome) => Err(Error::backend(TAKE_UP, Some(key), unexpected(outcome))),
            Err(error) => {
                if !error.may_have_happened() {
                    *doubt = None;
                }
                Err(Error::backend(TAKE_UP, Some(key), error))
            }
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(doubt) = self.doubt {
            let until = self.terms.ttl.end(self.engine.now());
            self.engine.clean_up(Parting::at_once(self.key.clone(), self.token), Doubt { until, ..doubt });
        }
    }
}

const TAKE_UP: &str = "take up";

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("began", &self.began).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Begin => "Begin",
            Self::Calling { .. } => "Calling",
            Self::Waiting { .. } => "Waiting",
            Self::TakingUp { .. } => "TakingUp",
            Self::Finished => "Finished",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        task::Waker,
        time::Duration,
    };

    use super::*;
    use crate::LockManager;

    fn is_refused<F: Future + Unpin>(future: &mut F) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        catch_unwind(AssertUnwindSafe(|| Pin::new(future).poll(&mut cx).is_ready())).is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_that_is_polled_after_its_end_gives_no_guard() {
        let manager = LockManager::in_memory();
        let mut one = manager.lock("a").acquire();
        let held = (&mut one).await.unwrap();
        assert!(is_refused(&mut one));
        drop(held);
        let mut all = manager.lock_all(["a", "b"]).acquire();
        assert_eq!((&mut all).await.unwrap().leases().iter().count(), 2);
        assert!(is_refused(&mut all));
        let _busy = manager.lock("a").await.unwrap();
        let mut failed = manager.lock_all(["a", "b"]).wait(Duration::ZERO).acquire();
        assert_eq!((&mut failed).await.unwrap_err().kind(), ErrorKind::Busy);
        assert!(is_refused(&mut failed));
    }
}
