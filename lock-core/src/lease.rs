use std::{
    fmt,
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use crate::{end::End, engine::hold::Hold, fencing::FencingToken, mode::Mode};

/// A view of a held lease for other tasks: key, fencing token, remaining time and end. It cannot release the lease.
///
/// A clone is cheap and can be sent to other tasks, which see the same lease and are notified when it is lost. All answers come
/// from this process's own clock, without a round trip: a lease whose deadline has passed is lost, even if the backend still has
/// it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::LockManager;
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("goods:1").await?;
/// let lease = guard.lease().clone();
/// assert!(lease.is_held());
/// // Claim with the token, then read, then write if the claim still stands: see `FencingToken`.
/// println!("write with fencing token {} within {:?}", lease.fencing_token(), lease.remaining());
/// guard.release().await?;
/// assert!(!lease.is_held());
/// # Ok(()) }
/// ```
pub struct Lease {
    hold: Arc<Hold>,
    /// Where this clone's waker is registered; taken out when the clone is dropped.
    waker: Option<usize>,
}

getters! { lease: Lease =>
    /// Returns the key as it was given to [`lock`](crate::LockManager::lock).
    key: &str = lease.hold.key.as_str();

    /// Returns the fencing token of this hold: larger than that of every holder of the key before it, except that those who
    /// [share](crate::LockRequest::shared) a key may have the same.
    fencing_token: FencingToken = lease.hold.fence;

    /// Returns for how long the holder may still rely on the lease if it is not renewed, by this process's clock.
    ///
    /// It is always less than the ttl, and zero once the lease is lost or released. A lease that was waited for may begin with
    /// much less, but at least 200 ms; its first renewal, sent 20 ms later, gives it the ttl.
    remaining: Duration = lease.hold.remaining();

    /// Returns the ttl that the lease was acquired with, and that each renewal restores.
    ttl: Duration = lease.hold.ttl.get();

    /// Returns the mode in which the key is held.
    mode: Mode = lease.hold.mode;

    /// Returns whether the lease is still held: neither lost nor released, and its deadline not passed.
    is_held: bool = lease.hold.check().is_ok();

    /// Returns whether the lease may soon be lost, or has ended: half of the time between its due renewal and its deadline has passed,
    /// and no renewal has succeeded.
    ///
    /// A worker that takes jobs under one lease asks before each job, and takes no more until the lease is renewed. With
    /// the defaults a lease is renewed after a third of its ttl, and in danger after two thirds, so that a third is left to finish.
    /// The answer is `false` again once a renewal has succeeded. It comes from this process's own clock, without a round trip.
    ///
    /// A lease that is not renewed ([`fixed`](crate::LockRequest::fixed)), and the approach of
    /// [`max_hold`](crate::LockRequest::max_hold), are not in danger, since their end is known: see [`remaining`](Self::remaining).
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use tokio::sync::mpsc;
    ///
    /// # let (jobs, mut queue) = mpsc::channel(8);
    /// # jobs.send("resize").await.expect("there is room");
    /// # drop(jobs);
    /// # let mut done = 0;
    /// let worker = LockManager::in_memory().lock("worker:3").await?;
    /// while let Some(job) = queue.recv().await {
    ///     if worker.lease().is_in_danger() {
    ///         break; // give the job back: another worker may soon have the lease
    ///     }
    ///     println!("{job} under fencing token {}", worker.fencing_token());
    ///     # done += 1;
    /// }
    /// # assert_eq!(done, 1);
    /// worker.release().await?;
    /// # Ok(()) }
    /// ```
    is_in_danger: bool = lease.hold.is_in_danger();
}

impl Lease {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { hold, waker: None }
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    /// Returns when the lease ends if it is not renewed, for [`timeout_at`](tokio::time::timeout_at) and the deadline of a
    /// call to another service.
    ///
    /// A renewal moves the deadline. Once the lease has ended, the deadline is the present moment. Use it with
    /// [`fixed`](crate::LockRequest::fixed) leases: a renewed one that was waited for may begin with less than a second.
    ///
    /// Tokio's timers do not count the time for which the machine was suspended; [`is_held`](Self::is_held) does.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use tokio::time::timeout_at;
    ///
    /// # async fn call_the_bank() {}
    /// let guard = LockManager::in_memory().lock("account:7").fixed().await?;
    /// let answer = timeout_at(guard.deadline(), call_the_bank()).await;
    /// # assert!(answer.is_ok()); Ok(()) }
    /// ```
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let (now, remaining) = (Instant::now(), self.remaining());
        // A hundred years may be more than the platform's clock can show.
        now.checked_add(remaining).unwrap_or_else(|| now + A_YEAR)
    }

    /// Completes when the lease has ended, and returns how: released, handed over, or lost.
    ///
    /// # Cancel safety
    /// Cancel safe: a later future completes at once if the lease has ended meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{End, LockManager};
    ///
    /// let guard = LockManager::in_memory().lock("report").await?;
    /// let lease = guard.lease().clone();
    /// let watch = tokio::spawn(async move {
    ///     match lease.ended().await {
    ///         End::Lost(reason) => println!("stop: {reason}"),
    ///         _ => println!("done"),
    ///     }
    /// });
    /// guard.release().await?;
    /// # watch.await.expect("no panic"); Ok(()) }
    /// ```
    pub fn ended(&self) -> impl Future<Output = End> + use<> {
        let mut lease = self.clone();
        poll_fn(move |cx| lease.poll_ended(cx))
    }

    /// Polls for the end of the lease, and registers the task to be woken when it ends.
    ///
    /// Each clone of a lease remembers one waker, that of its last poll.
    pub fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.hold.poll_ended(&mut self.waker, cx)
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.hold))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(registered) = self.waker {
            self.hold.unregister(registered);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("key", &self.hold.key)
            .field("mode", &self.mode())
            .field("fencing_token", &self.hold.fence.get())
            .field("remaining", &self.remaining())
            .finish()
    }
}

const A_YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
