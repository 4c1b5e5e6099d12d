mod all;
mod downgrade;
mod extend;

use std::{
    sync::Arc,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use tokio::time::Instant;

pub use self::all::LockAllGuard;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{
    clock::Moment,
    end::{End, OnLost},
    engine::{
        Engine,
        hold::Hold,
        tenure::{HoldId, Renewing},
    },
    error::{Error, HAND_OVER, LossReason},
    fencing::FencingToken,
    future::release::Release,
    handover::Handover,
    lease::Lease,
    mode::Mode,
    replicas::Replicas,
};

/// A held lease, which is released when the guard is dropped.
///
/// The engine renews the lease for as long as the guard lives (unless it is [`fixed`](crate::LockRequest::fixed)). A guard
/// has one owner; other tasks get its [`lease`](Self::lease).
///
/// Dropping the guard is one message to the engine. It never blocks and never panics, on any thread, during unwinding and
/// after the runtime has ended (the key is then free when its ttl has expired). [`release`](Self::release) also waits for the
/// answer.
///
/// `let _ = manager.lock("goods:1").await?;` drops the guard at once, and the compiler does not warn. The lint `let_underscore_drop` of
/// rustc finds such lines: `#![warn(let_underscore_drop)]`. To hold the lease until the end of the block, write `let _guard = …`.
///
/// # Examples
///
/// A guard cannot be cloned; its lease can, and that releases nothing:
///
/// ```compile_fail,E0599
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// let guard = lock_core::LockManager::in_memory().lock("goods:1").await?;
/// let second = guard.clone(); // error: no method named `clone`
/// # Ok(()) }
/// ```
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// let guard = lock_core::LockManager::in_memory().lock("goods:1").await?;
/// let lease = guard.lease().clone();
/// tokio::spawn(async move { println!("write with fencing token {}", lease.fencing_token()) });
/// # Ok(()) }
/// ```
#[must_use = "the lease is released as soon as the guard is dropped, which `let _ = …` does at once; write `let _guard = …`"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    /// `None` once the guard was released or handed over.
    held: Option<(Arc<Engine>, HoldId)>,
    lease: Lease,
    /// The policy for protected work when the lease is lost.
    pub(crate) on_lost: OnLost,
    /// Whether its drop frees the key at once, whatever `at_least` says: it protects work that has not returned, or the acquire is
    /// not over.
    pub(crate) unfinished: bool,
    /// The replicas that have confirmed it.
    pub(crate) durability: Option<Replicas>,
    pub(crate) waited: Duration,
}

getters! { guard: LockGuard =>
    /// Returns the lease, whose clones can be sent to other tasks.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let guard = LockManager::in_memory().lock("goods:1").await?;
    /// let lease = guard.lease().clone();
    /// let writer = tokio::spawn(async move { lease.is_held() });
    /// assert!(writer.await.expect("no panic"));
    /// # guard.release().await }
    /// ```
    lease: &Lease = &guard.lease;

    /// Returns the key as it was given to [`lock`](crate::LockManager::lock).
    key: &str = guard.lease.key();

    /// Returns the mode in which the key is held.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LockManager, Mode};
    ///
    /// let manager = LockManager::in_memory();
    /// let reader = manager.lock("price:1").shared().await?;
    /// assert_eq!(reader.mode(), Mode::Shared);
    /// # reader.release().await }
    /// ```
    mode: Mode = guard.lease.mode();

    /// Returns the fencing token of this hold: larger than that of every holder of the key before it, except that those who
    /// [share](crate::LockRequest::shared) a key may have the same. See [`FencingToken`] for its use and its limits.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// let first = guard.fencing_token();
    /// guard.release().await?;
    ///
    /// let guard = manager.lock("goods:1").await?;
    /// assert!(guard.fencing_token() > first);
    /// # guard.release().await }
    /// ```
    fencing_token: FencingToken = guard.lease.fencing_token();

    /// Returns for how long the holder may still rely on the lease if it is not renewed; zero once it is lost. See
    /// [`Lease::remaining`].
    remaining: Duration = guard.lease.remaining();

    /// Returns when the lease ends if it is not renewed; see [`Lease::deadline`].
    deadline: Instant = guard.lease.deadline();

    /// Returns how long the acquire took, from its first poll until the lease was held.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use std::time::Duration;
    ///
    /// let guard = lock_core::LockManager::in_memory().lock("goods:1").await?;
    /// if guard.waited() > Duration::from_secs(1) {
    ///     println!("waited {:?} for {}", guard.waited(), guard.key());
    /// }
    /// # Ok(()) }
    /// ```
    waited: Duration = guard.waited;

    /// Returns the ttl that the lease was acquired with.
    ttl: Duration = guard.lease.ttl();

    /// Returns whether the lease is still held: not lost, and its deadline not passed.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// assert!(guard.is_held());
    /// manager.force_release("goods:1").await?;
    /// assert!(!guard.is_held());
    /// # Ok(()) }
    /// ```
    is_held: bool = guard.lease.is_held();
}

impl LockGuard {
    /// Makes the guard of a hold that has begun.
    pub(crate) fn new(engine: Arc<Engine>, id: HoldId, hold: Arc<Hold>, on_lost: OnLost) -> Self {
        hold.count();
        let (held, lease) = (Some((engine, id)), Lease::new(hold));
        Self { held, lease, on_lost, unfinished: false, durability: None, waited: Duration::ZERO }
    }

    /// Identifies the manager; see [`Engine::id`].
    pub(crate) fn manager(&self) -> Option<usize> {
        self.engine().map(|engine| engine.id())
    }

    /// The engine, for as long as the lease was neither released nor handed over.
    pub(crate) fn engine(&self) -> Option<&Arc<Engine>> {
        self.held.as_ref().map(|(engine, _)| engine)
    }

    /// Has its lease end at `latest`, however long it is renewed.
    pub(crate) fn end_by(&self, latest: Moment) {
        if let Some((engine, id)) = &self.held {
            engine.with(|state| state.queues.tenures.end_by(*id, latest));
        }
    }

    /// Whether the lease is held; the error of an `attempt` if not.
    pub(crate) fn check(&self, attempt: &'static str) -> Result<(), Error> {
        let hold = self.lease.hold();
        hold.check().map_err(|end| hold.error(attempt, end))
    }

    /// The request, to be sent `now`, that shows whether replicas have the key. `None` if they are known to have it, or if the
    /// lease is over.
    pub(crate) fn confirmation(&self, replicas: Replicas, now: Moment) -> Option<Renewing> {
        let (engine, id) = self.held.as_ref()?;
        engine.with(|state| state.queues.tenures.confirmation(*id, replicas, now))
    }

    /// Ends the lease because the key no longer holds its token, and returns how it ended.
    pub(crate) fn taken(&self) -> End {
        if let Some((engine, id)) = &self.held {
            engine.taken(*id);
        }
        self.lease.hold().finish(End::Lost(LossReason::Taken))
    }

    /// Completes when the lease has ended, and says how; see [`Lease::ended`]. The future may outlive the guard.
    ///
    /// # Cancel safety
    /// Cancel safe: a later future completes at once if the lease has ended meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// tokio::select! {
    ///     biased;
    ///     end = guard.ended() => println!("stop everything: {end}"),
    ///     () = async { println!("working") } => {}
    /// }
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn ended(&self) -> impl Future<Output = End> + use<> {
        self.lease.ended()
    }

    /// Polls for the end of the lease, and registers the task to be woken when it ends; see [`Lease::poll_ended`].
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.lease.poll_ended(cx)
    }

    /// Releases the lease and waits for the answer.
    ///
    /// # Errors
    /// * [`ErrorKind::Lost`] if the lease was lost before: another holder may have had the key meanwhile.
    /// * [`ErrorKind::Backend`] if the backend did not answer: the release is retried in the background until it is
    ///   confirmed or the ttl has expired.
    ///
    /// # Cancel safety
    /// Dropping the future, polled or not, releases the lease in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// guard.release().await?;
    /// assert!(!manager.is_locked("goods:1").await?);
    /// # Ok(()) }
    /// ```
    ///
    /// A lease cannot be released twice:
    ///
    /// ```compile_fail,E0382
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// let guard = lock_core::LockManager::in_memory().lock("goods:1").await?;
    /// guard.release().await?;
    /// guard.release().await?; // error: use of moved value
    /// # Ok(()) }
    /// ```
    pub fn release(mut self) -> Release {
        let Some((engine, id)) = self.held.take() else { unreachable!("a guard is consumed once") };
        let (hold, now) = (self.lease.hold(), engine.now());
        // The hold ends before the engine passes the key on or releases it. Otherwise a clone of the lease in another task could still
        // count as held when the next holder has begun.
        match hold.release_at(now) {
            Ok(()) => Release::new(&engine, &hold.key, id, now),
            Err(reason) => {
                // The engine releases what an expired lease may have left. Others may have the key by now: it is not kept.
                engine.with(|state| {
                    state.queues.tenures.keep_no_longer(id);
                    state.queues.abandon(id, now);
                });
                Release::lost(hold, reason)
            }
        }
    }

    /// Releases the lease and frees the key at once, even if [`at_least`](crate::LockRequest::at_least) would keep it busy: the
    /// job has failed, and another machine or a retry may do it. Waits for the answer. Without `at_least` it does what
    /// [`release`](Self::release) does.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Cancel safety
    /// Dropping the future, polled or not, releases the lease in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// # async fn clean_up() -> Result<(), std::io::Error> { Err(std::io::Error::other("the disk is full")) }
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("jobs:nightly:2026-11-24").at_least(Duration::from_secs(7 * 24 * 3600)).await?;
    /// match clean_up().await {
    ///     Ok(()) => guard.release().await?,
    ///     Err(error) => {
    ///         println!("another machine may try: {error}");
    ///         guard.release_at_once().await?;
    ///     }
    /// }
    /// assert!(!manager.is_locked("jobs:nightly:2026-11-24").await?);
    /// # Ok(()) }
    /// ```
    pub fn release_at_once(self) -> Release {
        if let Some((engine, id)) = &self.held {
            engine.state().queues.tenures.keep_no_longer(*id);
        }
        self.release()
    }

    /// Turns the lease into one that another process can [`take_up`](crate::LockManager::take_up).
    ///
    /// The engine no longer renews the lease, so it must be taken up within [`remaining`](Lease::remaining). That may be less
    /// than a second if the lease was waited for: a renewal for the full ttl is then sent at once, but its answer is not awaited.
    /// Call [`extend`](Self::extend) first if delivery may take longer.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lease was lost before.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::{Handover, LockManager};
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("import:7").await?;
    /// let text = guard.hand_over()?.reveal();
    ///
    /// // elsewhere, with a manager of the same backend
    /// let handover: Handover = text.parse()?;
    /// let guard = manager.take_up(handover).await?;
    /// assert!(guard.is_held());
    /// # Ok(()) }
    /// ```
    pub fn hand_over(mut self) -> Result<Handover, Error> {
        self.check(HAND_OVER)?;
        let hold = Arc::clone(self.lease.hold());
        let left = self.held.take().and_then(|(engine, id)| {
            let now = engine.now();
            engine.with(|state| state.queues.hand_over(id, now))
        });
        let left = left.ok_or_else(|| hold.error(HAND_OVER, hold.finish(End::Lost(LossReason::Taken))))?;
        hold.finish(End::HandedOver);
        Ok(Handover { key: left.key().clone(), token: left.token, ttl: left.ttl })
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some((engine, id)) = self.held.take() {
            let now = engine.now();
            // First, as in `release`. A lease that was lost before keeps its reason.
            let released = self.lease.hold().release_at(now);
            engine.with(|state| {
                // A panic before the work has a future, as in a closure that prepares it, is one of unfinished work, too.
                if self.unfinished || thread::panicking() || released.is_err() {
                    state.queues.tenures.keep_no_longer(id);
                }
                state.queues.abandon(id, now);
            });
        }
    }
}

shows!(LockGuard, lease);
