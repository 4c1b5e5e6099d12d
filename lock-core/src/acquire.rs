use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
    vec,
};

use crate::{
    backend::{self, Answer, Operation, Outcome, Reply},
    cleanup::{Doubt, Parting},
    clock::{Moment, Sleep},
    engine::{self, Engine},
    error::{Error, ErrorKind},
    guard::{LockAllGuard, LockGuard},
    key::LockKey,
    metrics,
    queue::polling::Polling,
    request::{Asked, LockRequest, Wait},
    scope,
    token::Token,
};

/// The future of [`LockRequest::acquire`] and of awaiting a [`LockRequest`].
///
/// An uncontended acquire is one round trip, sent by this future itself. While the key is busy it tries again after
/// growing pauses with jitter, until the wait is over.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind: what a request under way may have set is released in the background.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    request: LockRequest,
    step: Step,
    /// When the wait is over; known from the first poll on.
    give_up: Moment,
    polling: Polling,
    /// Made with the first poll.
    watch: Option<Watch>,
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
    Calling { attempt: Attempt, reply: Reply<Answer> },
    Waiting(Sleep),
    Finished,
}

impl Acquire {
    pub(crate) fn new(request: LockRequest) -> Self {
        Self {
            request,
            step: Step::Begin,
            give_up: Moment::NEVER,
            polling: Polling::default(),
            watch: None,
            now: Moment::NEVER,
        }
    }

    fn watch(&mut self) -> &mut Watch {
        let LockRequest { engine, keys, label, .. } = &self.request;
        self.watch.get_or_insert_with(|| Watch {
            began: {
                self.now = engine.now();
                self.now
            },
            waiting: metrics::Waiting::begin(label),
            span: tracing::debug_span!("lock.acquire", key = keys.as_ref().map_or("", LockKey::as_str), lock = label),
        })
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockGuard, Error>> {
        let engine = Arc::clone(&self.request.engine);
        loop {
            match &mut self.step {
                Step::Begin => {
                    let asked = self.request.check()?;
                    engine.admit(ATTEMPT).map_err(|error| error.on(&asked.key))?;
                    scope::refuse_reentry(&engine, &asked.key, self.request.since)?;
                    let now = self.now;
                    self.give_up = match self.request.options.wait {
                        Wait::Atmost(wait) => now + wait,
                        Wait::Forever => Moment::NEVER,
                    };
                    self.step = Step::calling(&engine, asked, &self.request, now);
                }
                Step::Calling { attempt, reply } => {
                    let result = ready!(reply.as_mut().poll(cx));
                    let now = engine.now();
                    self.now = now;
                    let Asked { key, terms } = attempt.asked.clone();
                    match result.and_then(Answer::single) {
                        Ok(Outcome::Held { fence, .. }) => {
                            if now < terms.ttl.deadline(attempt.sent) {
                                let Step::Calling { attempt, .. } = std::mem::replace(&mut self.step, Step::Finished)
                                else {
                                    unreachable!("matched above")
                                };
                                return Poll::Ready(attempt.succeed(fence, now));
                            }
                            // No validity left: that is no acquire. Its token is released, and a new one tries.
                            if now >= self.give_up {
                                return Poll::Ready(Err(Error::new(ErrorKind::Backend, ATTEMPT).on(&key).detail(
                                    format!(
                                        "the answer took longer than the ttl of {:?}; use a longer ttl",
                                        terms.ttl.get()
                                    ),
                                )));
                            }
                            self.step = Step::calling(&engine, Asked { key, terms }, &self.request, now);
                        }
                        Ok(Outcome::Busy { remaining, foreign }) => {
                            attempt.answered = true;
                            if now >= self.give_up {
                                return Poll::Ready(Err(Error::busy(ATTEMPT, &key, self.request.options.wait.get())));
                            }
                            let pause = self.polling.pause(remaining, foreign, engine.jitter());
                            self.step = Step::Waiting(engine.clock().sleep(pause.min(self.give_up.since(now))));
                        }
                        Ok(Outcome::Gone) if self.request.from.is_some() => {
                            attempt.answered = true;
                            return Poll::Ready(Err(Error::new(ErrorKind::NotHeld, "take up").on(&key)));
                        }
                        Ok(outcome) => {
                            return Poll::Ready(Err(Error::backend(ATTEMPT, Some(&key), engine::unexpected(outcome))));
                        }
                        Err(error) => {
                            attempt.answered = !error.may_have_happened();
                            return Poll::Ready(Err(Error::backend(ATTEMPT, Some(&key), error)));
                        }
                    }
                }
                Step::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    let asked = self.request.check()?;
                    engine.admit(ATTEMPT).map_err(|error| error.on(&asked.key))?;
                    self.step = Step::calling(&engine, asked, &self.request, engine.now());
                }
                Step::Finished => panic!("`Acquire` polled after completion"),
            }
        }
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let engine = Arc::clone(&this.request.engine);
        let span = this.watch().span.clone();
        let entered = span.enter();
        let result = ready!(engine.enter(|| this.poll_inner(cx)));
        this.step = Step::Finished;
        if let Some(Watch { began, mut waiting, .. }) = this.watch.take() {
            let waited = this.now.since(began);
            waiting.end(&result, waited);
            match &result {
                Ok(guard) => tracing::debug!(fencing_token = guard.fencing_token().get(), ?waited, "lease acquired"),
                Err(error) => tracing::debug!(%error, ?waited, "lease not acquired"),
            }
        }
        drop(entered);
        Poll::Ready(result)
    }
}

impl Step {
    fn calling(engine: &Arc<Engine>, asked: Asked, request: &LockRequest, now: Moment) -> Self {
        let attempt = Attempt {
            engine: Arc::clone(engine),
            token: engine.token(),
            sent: now,
            epoch: engine.epoch(),
            answered: false,
            asked,
        };
        let Asked { key, terms } = &attempt.asked;
        let mut acquire = backend::Acquire::new(key.clone(), attempt.token, terms.ttl.get());
        acquire.from = request.from;
        let reply = engine.call(vec![Operation::Acquire(acquire)]);
        Self::Calling { attempt, reply }
    }
}

/// A token whose acquire was sent: as long as nobody knows what became of it, its drop has it cleaned up.
struct Attempt {
    engine: Arc<Engine>,
    asked: Asked,
    token: Token,
    /// The lease clock before sending.
    sent: Moment,
    /// The backend's epoch before sending.
    epoch: u64,
    /// Whether it is known that the token is not set.
    answered: bool,
}

impl Attempt {
    fn succeed(mut self, fence: u64, now: Moment) -> Result<LockGuard, Error> {
        let Asked { key, terms } = &self.asked;
        // On an error the drop of `self` releases the key.
        let (id, hold) = self.engine.begin(key, self.token, fence, *terms, self.sent, now)?;
        self.answered = true;
        Ok(LockGuard::new(Arc::clone(&self.engine), id, hold))
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.answered {
            let parting = Parting::at_once(self.asked.key.clone(), self.token);
            let until = self.asked.terms.ttl.end(self.engine.now());
            self.engine.clean_up(parting, Doubt { until, unanswered_since: Some(self.epoch) });
        }
    }
}

/// The future of [`LockRequest::acquire`] for several keys: one after the other, in the order of their bytes.
///
/// # Cancel safety
/// Dropping the future releases what it has acquired and leaves nothing behind.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct AcquireAll {
    request: LockRequest<Vec<LockKey>>,
    keys: Option<vec::IntoIter<LockKey>>,
    current: Option<Acquire>,
    guards: Vec<LockGuard>,
    give_up: Moment,
}

impl AcquireAll {
    pub(crate) fn new(request: LockRequest<Vec<LockKey>>) -> Self {
        Self { request, keys: None, current: None, guards: Vec::new(), give_up: Moment::NEVER }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockAllGuard, Error>> {
        let engine = Arc::clone(&self.request.engine);
        if self.keys.is_none() {
            let keys = self.request.keys.clone()?;
            self.give_up = match self.request.options.wait {
                Wait::Atmost(wait) => engine.now() + wait,
                Wait::Forever => Moment::NEVER,
            };
            self.keys = Some(keys.into_iter());
        }
        loop {
            if let Some(current) = &mut self.current {
                let guard = ready!(Pin::new(current).poll(cx))?;
                self.current = None;
                self.guards.push(guard);
            }
            let Some(key) = self.keys.as_mut().and_then(Iterator::next) else { break };
            // Waiting for this key while holding those before it in the order: two such requests never wait for each
            // other.
            let mut request = self.request.for_key(key);
            if let Wait::Atmost(_) = request.options.wait {
                request.options.wait = Wait::Atmost(self.give_up.since(engine.now()));
            }
            self.current = Some(Acquire::new(request));
        }
        let guard = LockAllGuard::new(std::mem::take(&mut self.guards));
        Poll::Ready(guard.check(ATTEMPT).map(|()| guard))
    }
}

impl Future for AcquireAll {
    type Output = Result<LockAllGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.poll_inner(cx));
        self.current = None;
        self.guards.clear();
        Poll::Ready(result)
    }
}

const ATTEMPT: &str = "acquire";

impl Wait {
    fn get(self) -> Duration {
        match self {
            Self::Atmost(wait) => wait,
            Self::Forever => Duration::MAX,
        }
    }
}

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
            Self::Waiting(_) => "Waiting",
            Self::Finished => "Finished",
        })
    }
}
