//! What the code written by `#[distributed_lock]` calls. Not part of the public API, and free to change with it.

use std::{
    future::{self, Ready},
    ops::Deref,
};

use futures_util::future::Either;

use crate::{Acquire, Error, LockGuard, LockManager, LockRequest};

pub use std::format;

/// Clones the manager out of whatever `manager = …` gave: a manager, or anything that points to one.
pub fn manager(given: &impl AsManager) -> LockManager {
    given.as_manager().clone()
}

/// Asks for the lock, unless there is no manager.
#[track_caller]
pub fn acquire(
    manager: Result<LockManager, Error>,
    key: impl AsRef<str>,
    options: impl FnOnce(LockRequest) -> LockRequest,
) -> Either<Acquire, Ready<Result<LockGuard, Error>>> {
    match manager {
        Ok(manager) => Either::Left(options(manager.lock(key)).acquire()),
        Err(error) => Either::Right(future::ready(Err(error))),
    }
}

/// Gives the way in which a lock's error becomes the result of a function, if its return type has one.
#[must_use]
pub fn return_type<R>() -> fn(Error) -> R
where
    R: Outcome<Error: FromLockError>,
{
    |error| R::from_error(R::Error::from_lock_error(error))
}

/// Gives the type of a body a name; called in code that is never reached.
#[must_use]
pub fn never<R>() -> R {
    unreachable!("the expansion calls this behind `if false`")
}

/// What a locked function may return: a `Result`.
#[diagnostic::on_unimplemented(
    message = "a locked function returns a `Result` whose error is `From<lock_core::Error>`, not `{Self}`",
    label = "not a `Result`",
    note = "the error is how the function says that the lock could not be acquired, or was lost"
)]
pub trait Outcome {
    /// Its error.
    type Error;

    /// Makes the result of a function whose body did not run, or not to its end.
    fn from_error(error: Self::Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E> Outcome for Result<T, E> {
    type Error = E;

    fn from_error(error: E) -> Self {
        Err(error)
    }
}

/// The error type of a locked function.
#[diagnostic::on_unimplemented(
    message = "the error of a locked function, `{Self}`, cannot carry a `lock_core::Error`",
    label = "`{Self}` lacks `From<lock_core::Error>`",
    note = "write `impl From<lock_core::Error> for {Self}`, or return `lock_core::Error` itself"
)]
pub trait FromLockError {
    /// Converts by `From`.
    fn from_lock_error(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> FromLockError for E {
    fn from_lock_error(error: Error) -> Self {
        Self::from(error)
    }
}

/// What `manager = …` may give.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no `LockManager`",
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
