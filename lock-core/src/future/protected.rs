//! Work that runs only while its lease is held.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use smallvec::{SmallVec, smallvec};

use crate::{
    end::{End, OnLost},
    engine::hold::Hold,
    error::{Error, ErrorKind, KEEP},
    flood::Flood,
    future::{reentry::Held, release::ReleaseAll},
    guard::{LockAllGuard, LockGuard},
};

pin_project! {
    /// The future of [`LockGuard::protect`]: runs work while the lease is held, drops it when the lease is lost, and
    /// releases the lease when the work is done.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases the lease in the background. A key with
    /// [`at_least`](crate::LockRequest::at_least) is free at once if the work has not returned.
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Protected<F: Future> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    #[project_replace = StateOwned]
    enum State<F: Future> {
        Working {
            #[pin]
            work: F,
            guards: Guards,
            on_lost: OnLost,
            // Which lease was lost, if the work goes on all the same.
            lost: Option<(Arc<Hold>, End)>,
            span: tracing::Span,
            // The leases that the task holds while it polls the work; known from the first poll on.
            held: Option<Arc<Held>>,
        },
        Releasing {
            release: ReleaseAll,
            output: Option<F::Output>,
        },
        Finished,
    }
}

impl LockGuard {
    /// Runs `work` for as long as the lease is held, then releases the lease: [`run`](crate::LockRequest::run) for an existing
    /// guard, as a future that can be named.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lease was lost while the work ran; the work was dropped, unless
    /// [`on_lost`](Protected::on_lost) says otherwise.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the lease in the background. The key is then free at once, also with
    /// [`at_least`](crate::LockRequest::at_least).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// let fence = guard.fencing_token();
    /// let written = guard.protect(async move { format!("sold under {fence}") }).await?;
    /// assert!(written.starts_with("sold"));
    /// assert!(!manager.is_locked("goods:1").await?);
    /// # Ok(()) }
    /// ```
    pub fn protect<F: Future>(self, work: F) -> Protected<F> {
        let on_lost = self.on_lost;
        Protected::new(smallvec![self], work, on_lost)
    }
}

impl LockAllGuard {
    /// Runs `work` for as long as all leases are held, then releases them; see [`LockGuard::protect`].
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if one lease was lost while the work ran; the work was dropped, unless
    /// [`on_lost`](Protected::on_lost) says otherwise.
    ///
    /// # Cancel safety
    /// Dropping the future drops the work and releases the leases in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock_all(["goods:1", "goods:3"]).await?;
    /// let sold = guard.protect(async { "sold both" }).await?;
    /// assert_eq!(sold, "sold both");
    /// assert!(!manager.is_locked("goods:1").await?);
    /// # Ok(()) }
    /// ```
    pub fn protect<F: Future>(self, work: F) -> Protected<F> {
        let on_lost = self.guards.first().map_or_else(OnLost::default, |guard| guard.on_lost);
        Protected::new(self.guards.into(), work, on_lost)
    }
}

/// One guard as a rule, which is kept without an allocation.
type Guards = SmallVec<[LockGuard; 1]>;

impl<F: Future> Protected<F> {
    fn new(mut guards: Guards, work: F, on_lost: OnLost) -> Self {
        guards.iter_mut().for_each(|guard| guard.unfinished = true);
        let span = span(&guards);
        Self { state: State::Working { work, guards, on_lost, lost: None, span, held: None } }
    }

    /// Sets what happens to this work when its lease is lost. Default: the policy of the request
    /// ([`LockRequest::on_lost`](crate::LockRequest::on_lost)), which is [`OnLost::Cancel`] unless it was changed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{ErrorKind, LockManager, LossReason, OnLost};
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("report").await?;
    /// let mut done = false;
    /// let work = async {
    ///     manager.force_release("report").await?;
    ///     tokio::task::yield_now().await;
    ///     done = true; // not reached with `OnLost::Cancel`
    ///     Ok::<_, lock_core::Error>(())
    /// };
    /// let lost = guard.protect(work).on_lost(OnLost::Finish).await;
    /// assert_eq!(lost.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
    /// assert!(done);
    /// # Ok(()) }
    /// ```
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        if let State::Working { on_lost, .. } = &mut self.state {
            *on_lost = policy;
        }
        self
    }
}

impl<F: Future> Future for Protected<F> {
    type Output = Result<F::Output, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Working { mut work, guards, on_lost, lost, span, held } => {
                    let entered = span.enter();
                    let first = held.is_none();
                    let looks = *on_lost != OnLost::Ignore && lost.is_none();
                    if looks
                        && (first || poll_ended(guards, cx))
                        && let Some(ended) = ended(guards)
                    {
                        if *on_lost == OnLost::Cancel {
                            // The work is dropped here, and the guards after it.
                            drop(entered);
                            state.set(State::Finished);
                            return Poll::Ready(Err(ended.0.error(KEEP, ended.1)));
                        }
                        *lost = Some(ended);
                    }
                    if held.as_ref().is_some_and(|held| !held.is_of_this_task()) {
                        *held = None;
                    }
                    let holding = held.get_or_insert_with(|| enter(guards));
                    let polled = holding.around(|| watch::poll(guards, cx, |cx| work.as_mut().poll(cx)));
                    let Poll::Ready(output) = polled else {
                        // Work that completes at its first poll needs no waker for a loss, so one is registered only now.
                        if looks && first && poll_ended(guards, cx) {
                            continue;
                        }
                        return Poll::Pending;
                    };
                    drop(entered);
                    if let Some((hold, end)) = lost.take() {
                        // It ran to its end, and the other keys stay busy for as long as was asked for.
                        guards.iter_mut().for_each(|guard| guard.unfinished = false);
                        state.set(State::Finished);
                        return Poll::Ready(Err(hold.error(KEEP, end)));
                    }
                    let owned = state.as_mut().project_replace(State::Finished);
                    let StateOwned::Working { guards, .. } = owned else { unreachable!("matched above") };
                    let release = ReleaseAll::new(guards.into_iter().map(LockGuard::release));
                    state.set(State::Releasing { release, output: Some(output) });
                }
                StateProj::Releasing { release, output } => {
                    if let Err(error) = ready!(Pin::new(release).poll(cx)) {
                        log_unreleased(&error);
                    }
                    let output = output.take().expect("the output is taken once, on completion");
                    state.set(State::Finished);
                    return Poll::Ready(Ok(output));
                }
                StateProj::Finished => panic!("`Protected` polled after completion"),
            }
        }
    }
}

/// Logs that a lease could not be released: at most one line a second of each cause, since an outage has one for each work.
fn log_unreleased(error: &Error) {
    static LOST: Flood = Flood::new();
    static UNANSWERED: Flood = Flood::new();
    let flood = if matches!(error.kind(), ErrorKind::Lost(_)) { &LOST } else { &UNANSWERED };
    let Some(others) = flood.line() else {
        log!(debug, %error, "the work is done, but its lease could not be released");
        return;
    };
    let others = (others > 0).then_some(others);
    log!(warn, %error, others, "the work is done, but its lease could not be released");
}

impl<F: Future> fmt::Debug for Protected<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Protected").finish_non_exhaustive()
    }
}

/// The leases that the task holds while it polls the work.
fn enter(guards: &[LockGuard]) -> Arc<Held> {
    Held::enter(guards.first().and_then(LockGuard::manager), holds(guards))
}

fn holds(guards: &[LockGuard]) -> impl Iterator<Item = &Arc<Hold>> {
    guards.iter().map(|guard| guard.lease().hold())
}

/// Which lease has ended, if one has.
fn ended(guards: &[LockGuard]) -> Option<(Arc<Hold>, End)> {
    holds(guards).find_map(|hold| hold.check().err().map(|end| (Arc::clone(hold), end)))
}

/// Whether a lease has ended; has the task woken when one does.
fn poll_ended(guards: &mut [LockGuard], cx: &mut Context<'_>) -> bool {
    guards.iter_mut().any(|guard| guard.poll_ended(cx).is_ready())
}

fn span(guards: &[LockGuard]) -> tracing::Span {
    if let [guard] = guards {
        return tracing::debug_span!("lock.hold", key = guard.key(), fencing_token = guard.fencing_token().get());
    }
    tracing::debug_span!("lock.hold", keys = ?guards.iter().map(|guard| guard.key()).collect::<Vec<_>>())
}

/// The hook of the test kit, which polls the work of a whole process in the place of [`Protected`]. Its types are public only for the kit.
#[doc(hidden)]
pub mod watch {
    use std::{panic::Location, sync::OnceLock};

    use super::{Context, LockGuard, Poll, ready};

    /// Polls work that the guards protect, as often as it likes until the work is ready, and says what it has become.
    pub type Watch = fn(&[LockGuard], &mut Context<'_>, &mut dyn FnMut(&mut Context<'_>) -> Poll<()>) -> Poll<()>;

    static WATCH: OnceLock<Watch> = OnceLock::new();

    /// Has a function poll all work from now on. The first one stays.
    pub fn install(watch: Watch) {
        let _ = WATCH.set(watch);
    }

    /// Polls the work, without more than a look at [`WATCH`] in a process without a test kit.
    pub(super) fn poll<T>(
        guards: &[LockGuard],
        cx: &mut Context<'_>,
        mut work: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        let Some(watch) = WATCH.get() else { return work(cx) };
        let mut output = None;
        ready!(watch(guards, cx, &mut |cx| work(cx).map(|done| output = Some(done))));
        output.map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns which manager a guard is of; see `LockManager::__id`.
    #[must_use]
    pub fn manager(guard: &LockGuard) -> Option<usize> {
        guard.manager()
    }

    /// Returns where the lock was asked for.
    #[must_use]
    pub fn since(guard: &LockGuard) -> &'static Location<'static> {
        guard.lease().hold().since
    }

    /// Ends the lease as if an answer had said that another holder has the key.
    pub fn lose(guard: &LockGuard) {
        guard.taken();
    }
}
