//! The future of an acquire. It waits; the engine asks. A drop ends in `Queues::leave`: the place goes to the next waiter, or the token to the
//! clean-up.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{confirm::Confirm, take_up::TakeUp};
use crate::{
    backend::BackendError,
    clock::Moment,
    engine::{
        Engine, Timer,
        question::explanations::Found,
        queues::line::{Newcomer, WaiterId},
        tenure::Offer,
    },
    error::{ACQUIRE, Error, ErrorKind},
    guard::LockGuard,
    key::LockKey,
    metrics,
    request::LockRequest,
    trace,
};

/// The future of [`LockRequest::acquire`] and of awaiting a [`LockRequest`].
///
/// An uncontended acquire is one round trip, which the engine shares with other requests. While the key is busy, the request
/// waits in line behind earlier requests of its process, and its process waits behind those that queued before it.
///
/// Keep polling this future. If its turn comes and it is not polled within 100 ms, for example because a `select!` loop keeps it
/// aside, it loses its turn. It rejoins the queue at the end when it is polled again. A request that shares the key, or
/// takes permits, has 100 ms more for each 64 that its process holds, up to two seconds more.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind: whatever a request in flight may have set is released in the background.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    /// `None` once the key is acquired, or the request is over.
    request: Option<LockRequest>,
    progress: Progress,
    /// Waits for the replicas of the key, once it is acquired.
    confirming: Option<Box<(Confirm, Arc<Engine>)>>,
    /// Made with the first poll.
    watch: Option<Watch>,
}

/// How far it has come.
struct Progress {
    step: Step,
    /// When the wait is over; known from the first poll on.
    give_up: Moment,
    /// Whether the wait was over before, and the engine has not answered yet.
    overdue: bool,
    /// The time of the last poll: reading the clock once is a good part of the cost of an acquire in memory.
    now: Moment,
}

/// The span and the metrics of an acquire.
pub(super) struct Watch {
    began: Moment,
    waiting: metrics::Waiting,
    span: tracing::Span,
    /// The holder that was found, if the manager has asked.
    found: Option<Found>,
}

enum Step {
    Begin,
    /// In line; the engine sends what is to be sent.
    Waiting {
        id: WaiterId,
        timer: Option<Timer>,
    },
    /// Takes up a lease that was handed over: there is nothing to wait for.
    TakingUp(Box<TakeUp>),
    Finished,
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Some(request) = &self.request {
            self.progress.leave(&request.engine);
        }
    }
}

impl LockRequest {
    /// Acquires the lease, waiting until the key is free or `wait` has passed. Awaiting the request does the same; this future
    /// can be named.
    ///
    /// The ttl counts from the moment the request is sent, so [`Lease::remaining`](crate::Lease::remaining) is already less.
    ///
    /// # Errors
    /// * [`ErrorKind::Busy`] if `wait` has passed: nothing is held.
    /// * [`ErrorKind::Backend`] if the backend did not answer: a lease that it may have set is released in the background.
    /// * [`ErrorKind::Invalid`] for a key, a duration or permits out of range, before anything is sent.
    /// * [`ErrorKind::WouldDeadlock`] inside a scoped form that holds the key.
    /// * [`ErrorKind::Overloaded`] if more requests wait than the manager allows.
    /// * [`ErrorKind::NotReplicated`] with a [`durability`](Self::durability); then also [`ErrorKind::Lost`] if the key was taken
    ///   away meanwhile.
    /// * [`ErrorKind::WrongType`], [`ErrorKind::Denied`], [`ErrorKind::Unsupported`], [`ErrorKind::NoRuntime`] and
    ///   [`ErrorKind::ShutDown`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LockManager, future::Acquire};
    ///
    /// let manager = LockManager::in_memory();
    /// let acquire: Acquire = manager.lock("goods:1").acquire();
    /// let guard = acquire.await?;
    /// assert!(guard.is_held());
    /// # guard.release().await }
    /// ```
    pub fn acquire(self) -> Acquire {
        Acquire::new(self)
    }

    fn on_key(&self, error: Error) -> Error {
        self.keys.as_ref().map_or_else(Clone::clone, |key| error.on(key))
    }
}

impl IntoFuture for LockRequest {
    type Output = <Acquire as Future>::Output;
    type IntoFuture = Acquire;

    fn into_future(self) -> Acquire {
        self.acquire()
    }
}

impl Acquire {
    pub(super) fn new(request: LockRequest) -> Self {
        let progress = Progress { step: Step::Begin, give_up: Moment::NEVER, overdue: false, now: Moment::NEVER };
        Self { request: Some(request), progress, confirming: None, watch: None }
    }
}

impl Watch {
    pub(super) fn begin(request: &LockRequest, began: Moment) -> Self {
        let LockRequest { keys, label, .. } = request;
        Self {
            began,
            waiting: metrics::Waiting::begin(label),
            found: None,
            span: tracing::debug_span!("lock.acquire", key = keys.as_ref().map_or("", LockKey::as_str), lock = label),
        }
    }

    /// Records how the acquire has ended.
    pub(super) fn end(self, mut result: Result<LockGuard, Error>, now: Moment) -> Result<LockGuard, Error> {
        let Self { began, mut waiting, span, found } = self;
        if let (Ok(guard), Some(trace)) = (&result, trace::current()) {
            guard.lease().hold().note_trace(trace);
        }
        if let Some((at, holder)) = found {
            result = result.map_err(|error| error.held_by(holder, now.since(at)));
        }
        let _entered = span.entered();
        let waited = now.since(began);
        waiting.end(&result, waited);
        match &mut result {
            Ok(guard) => {
                guard.waited = waited;
                log!(debug, fencing_token = guard.fencing_token().get(), ?waited, "lease acquired");
            }
            Err(error) => log!(debug, %error, ?waited, "lease not acquired"),
        }
        result
    }

    /// Leaves it to another watch to record how the acquire ends.
    pub(super) fn pass(mut self) {
        self.waiting.pass();
    }

    /// Takes what is known of the holder that the request has waited for, and links to its trace.
    fn explain(&mut self, request: &LockRequest, now: Moment) {
        self.found = request.keys.as_ref().ok().and_then(|key| request.engine.explained(key, self.began, now));
        if let Some(context) = self.found.as_ref().and_then(|(_, holder)| holder.trace_context()) {
            trace::link(&self.span, context);
        }
    }
}

impl Future for Acquire {
    type Output = Result<LockGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { request, progress, confirming, watch } = &mut *self;
        let mut result = if let Some((confirm, engine)) = confirming.as_deref_mut() {
            let entered = watch.as_ref().map(|watch| watch.span.enter());
            let guard = ready!(confirm.poll(cx));
            drop(entered);
            progress.now = engine.now();
            guard.map(|mut guards| guards.pop().expect("as many as were given"))
        } else {
            let Some(asked) = request else { panic!("`Acquire` polled after completion") };
            // A hold that begins now counts from now, not from the last poll.
            progress.now = asked.engine.now();
            let watching = watch.get_or_insert_with(|| Watch::begin(asked, progress.now));
            let entered = watching.span.enter();
            // A guard before the code of a subscriber runs, which may panic: a hold without one would be renewed for ever.
            let result = ready!(progress.poll(asked, cx)).map(|(id, hold)| {
                LockGuard::new(Arc::clone(&asked.engine), id, hold, asked.options.on_lost.unwrap_or_default())
            });
            drop(entered);
            progress.leave(&asked.engine);
            watching.explain(asked, progress.now);
            let durability = asked.options.replicas();
            let result = result.map_err(|error| asked.failed(error));
            *request = None;
            match (result, durability) {
                (Ok(guard), Some(replicas)) => {
                    let engine = guard.engine().map(Arc::clone);
                    *confirming = engine.map(|engine| Box::new((Confirm::new(vec![guard], replicas), engine)));
                    return self.poll(cx);
                }
                (result, _) => result,
            }
        };
        *confirming = None;
        if let Ok(guard) = &mut result {
            guard.unfinished = false;
        }
        if let Some(watch) = watch.take() {
            result = watch.end(result, progress.now);
        }
        Poll::Ready(result)
    }
}

impl Progress {
    /// Finishes, and takes the waiter out of its line if it is still there.
    fn leave(&mut self, engine: &Engine) {
        if let Step::Waiting { id, .. } = std::mem::replace(&mut self.step, Step::Finished) {
            let now = engine.now();
            engine.with(|state| state.queues.leave(id, now));
        }
    }

    fn poll(&mut self, request: &LockRequest, cx: &mut Context<'_>) -> Poll<Result<Offer, Error>> {
        let engine = &request.engine;
        loop {
            match &mut self.step {
                Step::Begin => {
                    let (key, terms) = request.check()?;
                    let now = self.now;
                    self.give_up = now + request.options.patience();
                    self.step = match request.from {
                        Some(from) => Step::TakingUp(Box::new(TakeUp::new(engine, key.clone(), terms, from, now))),
                        None => {
                            // The waker is left when the waiter is asked for: a store in the process has answered by then.
                            let newcomer = Newcomer { key, terms, tries: request.tries_once() };
                            Step::Waiting { id: engine.arrive(newcomer, now)?, timer: None }
                        }
                    };
                }
                Step::Waiting { id, timer } => {
                    if let Poll::Ready(result) = engine.with(|state| state.queues.poll(*id, cx.waker(), self.now)) {
                        self.step = Step::Finished;
                        return Poll::Ready(result);
                    }
                    engine.admit(ACQUIRE).map_err(|error| request.on_key(error))?;
                    if self.give_up == Moment::NEVER {
                        return Poll::Pending;
                    }
                    if timer.is_none() && !engine.has_timers() {
                        let error = Error::backend(ACQUIRE, None, engine.ended(ErrorKind::NoRuntime));
                        return Poll::Ready(Err(request.on_key(error)));
                    }
                    let left = self.give_up.since(self.now);
                    let timer_ended = ready!(Pin::new(timer.get_or_insert_with(|| engine.sleep(left))).poll(cx));
                    timer_ended.map_err(|error| request.on_key(Error::backend(ACQUIRE, None, error)))?;
                    self.now = engine.now();
                    if self.now < self.give_up {
                        *timer = None;
                        continue;
                    }
                    match engine.with(|state| state.queues.give_up(*id, self.now)) {
                        Poll::Ready(error) => {
                            self.step = Step::Finished;
                            return Poll::Ready(Err(error));
                        }
                        Poll::Pending if self.overdue => {
                            let limit = engine.patience().unwrap_or_default();
                            let error = Error::backend(ACQUIRE, None, BackendError::unattended(limit));
                            return Poll::Ready(Err(request.on_key(error)));
                        }
                        // The first answer is still to come, or the backend's time limit; or it has come just now.
                        Poll::Pending => {
                            self.overdue = true;
                            *timer = None;
                            self.give_up = engine.patience().map_or(Moment::NEVER, |limit| self.now + limit);
                        }
                    }
                }
                Step::TakingUp(take_up) => return take_up.poll(cx, &mut self.now),
                Step::Finished => unreachable!("the request is gone by then"),
            }
        }
    }
}

impl<K> LockRequest<K> {
    /// The error for the caller.
    pub(super) fn failed(&self, error: Error) -> Error {
        match error.kind() {
            // The queue does not know for how long it was to wait, and a later key had only what was left of the wait.
            ErrorKind::Busy => error.busy_for(self.options.patience()),
            _ => error,
        }
    }
}

shows!(Acquire, request);

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
