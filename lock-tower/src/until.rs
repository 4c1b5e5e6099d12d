//! For how long a lease is held, and who drives the work.
#![expect(unnameable_types, reason = "the futures of a sealed trait")]

use std::{
    fmt, panic,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use lock_core::{Error, Leases, future::Protected};
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::acquiring::Guard;

/// How long a [`LockLayer`](crate::LockLayer) keeps a lease, and who drives the work: [`UntilResponse`],
/// [`UntilBodyEnd`] or [`Detached`].
pub trait Until<F: Future>: sealed::Until<F> {}

impl<F: Future, U: sealed::Until<F>> Until<F> for U {}

/// The lease is released when the service has answered, before the response goes out.
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilResponse;

/// The lease is held until the body of the response has ended or was dropped; see
/// [`LockLayer::until_body_end`](crate::LockLayer::until_body_end).
#[derive(Clone, Copy, Debug, Default)]
pub struct UntilBodyEnd;

/// The service works in a task of its own; see [`LockLayer::detached`](crate::LockLayer::detached).
#[derive(Clone, Copy, Debug, Default)]
pub struct Detached;

pub(crate) mod sealed {
    use super::{BodyLease, Error, Guard};

    /// How an acquired lease and the work of a service are driven.
    pub trait Until<F: Future> {
        /// The work under its lease.
        type Work: Future<Output = Result<(F::Output, Option<BodyLease>), Error>>;

        /// Whether the work is a task, which needs a runtime.
        const SPAWNS: bool = false;

        /// Begins the work.
        fn work(guard: Guard, work: F) -> Self::Work;
    }
}

impl<F: Future> sealed::Until<F> for UntilResponse {
    type Work = Scoped<F>;

    fn work(guard: Guard, work: F) -> Scoped<F> {
        Scoped { work: guard.protect(work) }
    }
}

pin_project! {
    /// Work whose lease is released before its output is there.
    pub struct Scoped<F: Future> {
        #[pin]
        work: Protected<F>,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = Result<(F::Output, Option<BodyLease>), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().work.poll(cx).map_ok(|output| (output, None))
    }
}

impl<F> sealed::Until<F> for Detached
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Work = Task<Result<(F::Output, Option<BodyLease>), Error>>;

    const SPAWNS: bool = true;

    fn work(guard: Guard, work: F) -> Self::Work {
        let work = guard.protect(work);
        Task::spawn(async move { work.await.map(|output| (output, None)) })
    }
}

/// Work in a task of its own, which continues when nothing waits for it.
#[derive(Debug)]
pub struct Task<T> {
    /// `None` once its runtime has ended.
    task: Option<JoinHandle<T>>,
}

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Self {
        // A task begins outside all spans: without this, the log lines of the work lose the request they belong to.
        Self { task: Some(tokio::spawn(work.in_current_span())) }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = &mut self.task else { return Poll::Pending };
        match ready!(Pin::new(task).poll(cx)) {
            Ok(output) => Poll::Ready(output),
            Err(error) if error.is_panic() => panic::resume_unwind(error.into_panic()),
            // No other code can abort the task, so its runtime is ending. Another thread of it may poll this future once more.
            Err(_) => {
                self.task = None;
                Poll::Pending
            }
        }
    }
}

impl<F> sealed::Until<F> for UntilBodyEnd
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    type Work = HeldOn<F::Output>;

    fn work(guard: Guard, work: F) -> HeldOn<F::Output> {
        let shared = Arc::new(Mutex::new(Shared { output: None, ended: false }));
        let leases = guard.leases();
        let aside = Aside { work: Some(work), shared: Arc::clone(&shared) };
        let scope = Box::pin(guard.protect(aside));
        HeldOn {
            shared: Arc::clone(&shared),
            hold: Some(BodyLease { scope: Mutex::new(scope), ended: shared, leases }),
        }
    }
}

/// Work whose lease stays in a [`BodyLease`] after its output is there.
#[derive(Debug)]
pub struct HeldOn<T> {
    shared: Arc<Mutex<Shared<T>>>,
    hold: Option<BodyLease>,
}

impl<T> Future for HeldOn<T> {
    type Output = Result<(T, Option<BodyLease>), Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let hold = self.hold.as_mut().expect("not polled after completion");
        if let Poll::Ready(outcome) = hold.poll_scope(cx) {
            // The lease is needed until `ended` is set, so only a loss can have ended the scope.
            return Poll::Ready(Err(outcome.expect_err("the scope ends before its work only when the lease is lost")));
        }
        let output = lock(&self.shared).output.take();
        match output {
            Some(output) => Poll::Ready(Ok((output, self.hold.take()))),
            None => Poll::Pending,
        }
    }
}

/// A lease that is held until a body ends; given to [`Protocol::hold`](crate::Protocol::hold).
///
/// Dropping it releases the lease in the background. [`poll_lost`](Self::poll_lost) reports a loss, and
/// [`poll_release`](Self::poll_release) releases the lease and waits for the answer.
pub struct BodyLease {
    /// The guard and what is left of the work. The mutex is never locked: it makes the whole `Sync`.
    scope: Mutex<Scope>,
    ended: Arc<dyn End>,
    leases: Leases,
}

impl BodyLease {
    /// Returns the lease, or all of a request that has several keys.
    #[must_use]
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Completes when the lease is lost and the body has to be cancelled; until then it registers the task to be woken.
    /// With [`OnLost::Finish`](lock_core::OnLost::Finish) and [`OnLost::Ignore`](lock_core::OnLost::Ignore) it never completes.
    pub fn poll_lost(&mut self, cx: &mut Context<'_>) -> Poll<Error> {
        match self.poll_scope(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(error),
            _ => Poll::Pending,
        }
    }

    /// Releases the lease and waits for the answer. Poll it until it is ready, and not after that.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](lock_core::ErrorKind::Lost) when the lease was lost before, unless it is ignored.
    pub fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.ended.end();
        self.poll_scope(cx)
    }

    /// Releases the lease as at the end of the body, and does not wait for the answer.
    pub(crate) fn release(mut self) {
        let _ = self.poll_release(&mut Context::from_waker(Waker::noop()));
    }

    fn poll_scope(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.scope.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx)
    }
}

impl fmt::Debug for BodyLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyLease").field("leases", &self.leases).finish_non_exhaustive()
    }
}

type Scope = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

/// The state shared by the work of a [`BodyLease`] and its owner.
#[derive(Debug)]
struct Shared<T> {
    /// The output of the work, on its way out.
    output: Option<T>,
    /// Whether the lease is no longer needed.
    ended: bool,
}

trait End: Send + Sync {
    fn end(&self);
}

impl<T: Send> End for Mutex<Shared<T>> {
    fn end(&self) {
        lock(self).ended = true;
    }
}

pin_project! {
    /// Puts the output of the work aside and stays pending until `ended` is set, so that the scope around it keeps the lease.
    struct Aside<F: Future> {
        #[pin]
        work: Option<F>,
        shared: Arc<Mutex<Shared<F::Output>>>,
    }
}

impl<F: Future> Future for Aside<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        if let Some(work) = this.work.as_mut().as_pin_mut() {
            let output = ready!(work.poll(cx));
            this.work.set(None);
            lock(this.shared).output = Some(output);
        }
        // No waker is needed: only the owner of the scope sets `ended`, and polls the scope right after.
        if lock(this.shared).ended { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn lock<T>(shared: &Mutex<Shared<T>>) -> MutexGuard<'_, Shared<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
