//! The functions that the code written by `#[distributed_lock]` calls. They are not part of the public API, and may change at any
//! time.

mod key;
mod result;

use std::{
    future::{self, Ready},
    mem,
    ops::Deref,
    time::Duration,
};

use futures_util::future::Either;

pub use self::{
    key::{AsKey, AsKeys, AsPart, Key, key},
    result::{
        Answer, By, FromLockError, Logged, Loses, OnError, Outcome, Skip, by, by_or_skip, lost, not_lost, refused,
        skipped,
    },
};
use crate::{
    Error, LockAllGuard, LockAllRequest, LockGuard, LockManager, LockRequest,
    future::{Acquire, AcquireAll},
    mode::Mode,
    replicas::Replicas,
    ttl::Renewal,
};

/// Clones the manager out of the value of `manager = …`: a manager, or anything that points to one.
pub fn manager(given: &impl AsManager) -> LockManager {
    given.as_manager().clone()
}

/// Takes the value of `ttl = …` and the like.
pub fn duration(given: impl IsDuration) -> Duration {
    given.duration()
}

/// `renew = true`: renews the lease even if the manager's leases are fixed.
pub fn renewed<K>(mut request: LockRequest<K>) -> LockRequest<K> {
    if request.options.renewal == Some(Renewal::Never) {
        request.options.renewal = None;
    }
    request
}

/// `mode = shared`: asks for shared leases.
pub fn shared<K>(mut request: LockRequest<K>) -> LockRequest<K> {
    request.mode = Mode::Shared;
    request
}

/// `permits = …`: asks for so many of `total` permits as `take = …` says.
pub fn permits<K>(mut request: LockRequest<K>, total: u32, take: u32) -> LockRequest<K> {
    request.mode = Mode::Permits { total, take };
    request
}

/// `replicas = …`: waits for so many replicas, for as long as `replicas_timeout = …` says.
pub fn replicated<K>(request: LockRequest<K>, replicas: u32, timeout: Option<Duration>) -> LockRequest<K> {
    let (default, ttl) = (request.options.replicas(), request.options.usual_ttl());
    request.durability(Replicas::asked(replicas, timeout, default, ttl))
}

/// Asks for the lock, unless there is no manager.
#[track_caller]
pub fn acquire(
    manager: Result<LockManager, Error>,
    key: impl AsKey,
    options: impl FnOnce(LockRequest) -> LockRequest,
) -> Either<Acquire, Ready<Result<LockGuard, Error>>> {
    match manager {
        Ok(manager) => Either::Left(options(manager.lock(key.as_key())).acquire()),
        Err(error) => Either::Right(future::ready(Err(error))),
    }
}

/// Asks for all of several locks, unless there is no manager.
#[track_caller]
pub fn acquire_all(
    manager: Result<LockManager, Error>,
    keys: impl AsKeys,
    options: impl FnOnce(LockAllRequest) -> LockAllRequest,
) -> Either<AcquireAll, Ready<Result<LockAllGuard, Error>>> {
    match manager {
        Ok(manager) => Either::Left(all_in_one_mode(options(keys.request(&manager))).acquire()),
        Err(error) => Either::Right(future::ready(Err(error))),
    }
}

/// Gives each key the mode of the request: one attribute has one mode.
fn all_in_one_mode(mut request: LockAllRequest) -> LockAllRequest {
    let mode = mem::replace(&mut request.mode, Mode::Exclusive);
    request.keys.iter_mut().flatten().for_each(|(_, of_key)| *of_key = mode);
    request
}

/// Gives the type of a body a name; called in code that is never reached.
#[must_use]
pub fn never<R>() -> R {
    unreachable!("the expansion calls this behind `if false`")
}

/// The type of `ttl`, `wait`, `max_hold`, `at_least` and `replicas_timeout`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a `Duration`",
    label = "not a `Duration`",
    note = "write a string such as `\"3s\"`, or an expression of type `std::time::Duration`, as in `Duration::from_secs(3)`"
)]
pub trait IsDuration {
    /// Gives it.
    fn duration(self) -> Duration;
}

impl IsDuration for Duration {
    fn duration(self) -> Duration {
        self
    }
}

/// The type of `manager = …`.
#[diagnostic::on_unimplemented(
    message = "expected a `LockManager`, found `{Self}`",
    label = "neither a `LockManager` nor a pointer to one",
    note = "`manager` takes an expression of type `LockManager`, `&LockManager`, or `Arc<LockManager>`"
)]
pub trait AsManager {
    /// Borrows the manager.
    fn as_manager(&self) -> &LockManager;
}

impl AsManager for LockManager {
    fn as_manager(&self) -> &LockManager {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<P: Deref<Target: AsManager>> AsManager for P {
    fn as_manager(&self) -> &LockManager {
        self.deref().as_manager()
    }
}
