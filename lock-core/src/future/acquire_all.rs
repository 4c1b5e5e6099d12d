use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    vec,
};

use super::{
    Acquire,
    acquire::Watch,
    confirm::Confirm,
    together::{self, Together},
};
use crate::{
    clock::Moment,
    error::{ACQUIRE, Error, ErrorKind},
    guard::{LockAllGuard, LockGuard},
    key::LockKey,
    mode::Mode,
    request::LockAllRequest,
};

/// The future of [`LockAllRequest::acquire`](LockAllRequest#method.acquire-1), which acquires the keys together if all are free, and
/// else one after the other in the order of their bytes.
///
/// # Cancel safety
/// Dropping the future releases the leases that it has acquired, and leaves nothing behind.
#[must_use = "a future does nothing unless it is awaited"]
pub struct AcquireAll {
    request: LockAllRequest,
    keys: Keys,
    current: Option<Acquire>,
    guards: Vec<LockGuard>,
    /// Waits for the replicas of all keys, once they are acquired.
    confirm: Option<Confirm>,
    /// When it began, and when all keys were acquired.
    began: Moment,
    acquired: Option<Moment>,
    give_up: Moment,
}

/// The keys that are still to be acquired.
enum Keys {
    /// Those of the request.
    All,
    Together(Together),
    Left(vec::IntoIter<(LockKey, Mode)>),
    Finished,
}

impl LockAllRequest {
    /// Acquires all leases or none. `wait` bounds the total.
    ///
    /// Up to 256 keys that are free take one round trip: one call acquires all of them, or none. (In a cluster each slot is
    /// a part of that call; what one part has taken is given back if another cannot be had.) If one of the keys is busy, the keys are
    /// acquired one after the other in the order of their bytes. The request then waits for a key only while it holds smaller
    /// ones, so two such requests cannot deadlock.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`](crate::LockRequest::acquire); the error names the key that failed, and everything acquired before it is
    /// released. [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when there is no key, and when there are more than 5,000.
    ///
    /// # Cancel safety
    /// Dropping the future releases the leases that it has acquired, and leaves nothing behind. One that is kept without being polled
    /// keeps from others what it was given: for the ttl, if that was all keys in one call.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock_all(["account:7", "account:3"]).acquire().await?; // or: .await? on the request
    /// let keys: Vec<_> = guard.leases().iter().map(|lease| lease.key()).collect();
    /// assert_eq!(keys, ["account:3", "account:7"]);
    /// # guard.release().await }
    /// ```
    pub fn acquire(self) -> AcquireAll {
        AcquireAll::new(self)
    }

    /// The error of a request whose wait was over before it had asked for all its keys.
    fn too_long(&self, next: &LockKey, left: usize) -> Error {
        let detail = format!(
            "the wait of {:?} was over before this key and {} more were asked for; raise `wait`, or lock a key that stands for all \
             of them",
            self.options.patience(),
            left - 1
        );
        Error::new(ErrorKind::Busy, ACQUIRE).on(next).detail(detail)
    }
}

impl IntoFuture for LockAllRequest {
    type Output = <AcquireAll as Future>::Output;
    type IntoFuture = AcquireAll;

    fn into_future(self) -> AcquireAll {
        self.acquire()
    }
}

impl AcquireAll {
    fn new(request: LockAllRequest) -> Self {
        let (current, guards, confirm, acquired) = Default::default();
        let (began, give_up) = (Moment::NEVER, Moment::NEVER);
        Self { request, keys: Keys::All, current, guards, confirm, began, acquired, give_up }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockAllGuard, Error>> {
        let Self { request, keys, current, guards, confirm, began, acquired, give_up } = self;
        let engine = &request.engine;
        if let Keys::All = keys {
            *began = engine.now();
            *give_up = *began + request.options.patience();
            let all = request.keys.clone()?;
            request.check_backend()?;
            *keys = match Together::begin(request, &together::checked(request, &all)?) {
                Some(together) => Keys::Together(together),
                None => Keys::Left(all.into_iter()),
            };
        }
        if let Keys::Together(together) = keys {
            match ready!(together.poll(request, *give_up, cx))? {
                Some(held) => {
                    *guards = held;
                    *keys = Keys::Left(Vec::new().into_iter());
                }
                None => *keys = Keys::Left(request.keys.clone()?.into_iter()),
            }
        }
        let Keys::Left(keys) = keys else { panic!("`AcquireAll` polled after completion") };
        loop {
            if let Some(acquire) = current {
                let mut guard = ready!(Pin::new(acquire).poll(cx)).map_err(|error| request.failed(error))?;
                *current = None;
                // Nothing is done under it unless the other keys are acquired, too.
                guard.unfinished = true;
                guards.push(guard);
            }
            let Some((key, mode)) = keys.next() else { break };
            if !guards.is_empty() && !request.tries_once() && engine.now() >= *give_up {
                let left = keys.len() + 1;
                return Poll::Ready(Err(request.too_long(&key, left)));
            }
            // The request waits for this key while it holds only keys before it in the order, so two such requests cannot deadlock.
            let mut one = request.for_key(key, mode);
            if *give_up != Moment::NEVER {
                one.options.wait = Some(give_up.since(engine.now()));
            }
            *current = Some(Acquire::new(one));
        }
        let acquired = *acquired.get_or_insert_with(|| engine.now());
        if let Some(replicas) = request.options.replicas() {
            let confirm = confirm.get_or_insert_with(|| Confirm::new(std::mem::take(guards), replicas));
            let confirmed = ready!(confirm.poll(cx));
            // Each key was counted as acquired. That the request fails nevertheless is counted under the label, too.
            if let (Err(error), Ok(all)) = (&confirmed, &request.keys)
                && let Some((key, mode)) = all.first()
            {
                let watch = Watch::begin(&request.for_key(key.clone(), *mode), *began);
                drop(watch.end(Err(error.clone()), engine.now()));
            }
            *guards = confirmed?;
        }
        if let Some(max_hold) = request.options.max_hold {
            // From now on, since the work begins now: a key that was waited for takes nothing off.
            let latest = engine.now() + max_hold;
            guards.iter().for_each(|guard| guard.end_by(latest));
        }
        let mut guard = LockAllGuard::new(std::mem::take(guards), acquired.since(*began));
        guard.guards.iter().try_for_each(|guard| guard.check(ACQUIRE))?;
        guard.guards.iter_mut().for_each(|guard| guard.unfinished = false);
        Poll::Ready(Ok(guard))
    }
}

impl Future for AcquireAll {
    type Output = Result<LockAllGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.poll_inner(cx));
        self.keys = Keys::Finished;
        self.current = None;
        self.confirm = None;
        self.guards.clear();
        Poll::Ready(result)
    }
}

shows!(AcquireAll, request);
