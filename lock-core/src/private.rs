//! What the code written by `#[distributed_lock]` calls. Not part of the public API, and free to change with it.

use std::{
    future::{self, Ready},
    ops::Deref,
};

use futures_util::future::Either;

use crate::{
    Error, ErrorKind, LockAllGuard, LockAllRequest, LockGuard, LockManager, LockRequest,
    future::{Acquire, AcquireAll},
};

pub use std::format;

/// Clones the manager out of whatever `manager = …` gave: a manager, or anything that points to one.
pub fn manager(given: &impl AsManager) -> LockManager {
    given.as_manager().clone()
}

/// Borrows one key of a list, so that all of them have one type.
pub fn key<K: AsKey + ?Sized>(key: &K) -> &str {
    key.as_key()
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
        Ok(manager) => Either::Left(options(keys.request(&manager)).acquire()),
        Err(error) => Either::Right(future::ready(Err(error))),
    }
}

/// `on_busy = error`, and a loss where `on_lost` is not named: returns the error.
#[must_use]
pub fn refused<R>(error: Error) -> R
where
    R: Outcome<Error: FromLockError>,
{
    R::from_error(R::Error::from_lock_error(error))
}

/// `on_busy = skip`: returns nothing for a busy key, and the error for every other failure.
pub fn skipped<R>(error: Error) -> R
where
    R: Skip<Error: FromLockError>,
{
    if error.kind() == ErrorKind::Busy {
        tracing::debug!(%error, "skipped: the key is busy");
        return R::skip();
    }
    R::from_error(R::Error::from_lock_error(error))
}

/// `on_lost = cancel` and `finish`: returns the error.
#[must_use]
pub fn lost<R>(error: Error) -> R
where
    R: Loses<Error: FromLockError>,
{
    R::from_error(R::Error::from_lock_error(error))
}

/// `on_lost = ignore`: there is no such error.
#[must_use]
pub fn not_lost<R>(error: Error) -> R {
    unreachable!("`OnLost::Ignore` does not look at the lease: {error}")
}

/// Gives the type of a body a name; called in code that is never reached.
#[must_use]
pub fn never<R>() -> R {
    unreachable!("the expansion calls this behind `if false`")
}

/// What a locked function returns that does not name its policies: a `Result`.
#[diagnostic::on_unimplemented(
    message = "a locked function returns a `Result` whose error is `From<lock_core::Error>`, not `{Self}`",
    label = "not a `Result`",
    note = "the error is how the function says that the lock could not be acquired, or was lost",
    note = "to return anything else name both policies: `on_busy = skip` or `on_busy = call(path)`, and `on_lost`"
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

/// What a function with `on_busy = skip` may return.
#[diagnostic::on_unimplemented(
    message = "`on_busy = skip` cannot make a `{Self}` for a busy key",
    label = "neither `()`, `Option`, `Result<(), _>`, nor `Result<Option<_>, _>`",
    note = "it returns `()`, `None`, `Ok(())`, or `Ok(None)`; to return anything else write `on_busy = call(path)`"
)]
pub trait Skip {
    /// Its error.
    type Error;

    /// Makes the result of a function whose body was skipped.
    fn skip() -> Self;

    /// Makes the result of a function whose body did not run for another reason.
    fn from_error(error: Self::Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl Skip for () {
    type Error = Logged;

    fn skip() -> Self {}

    fn from_error(_: Logged) -> Self {}
}

#[diagnostic::do_not_recommend]
impl<T> Skip for Option<T> {
    type Error = Logged;

    fn skip() -> Self {
        None
    }

    fn from_error(_: Logged) -> Self {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<E> Skip for Result<(), E> {
    type Error = E;

    fn skip() -> Self {
        Ok(())
    }

    fn from_error(error: E) -> Self {
        Err(error)
    }
}

#[diagnostic::do_not_recommend]
impl<T, E> Skip for Result<Option<T>, E> {
    type Error = E;

    fn skip() -> Self {
        Ok(None)
    }

    fn from_error(error: E) -> Self {
        Err(error)
    }
}

/// What a function that names `on_lost` may return when its lease was lost: the error in a `Result`, or nothing.
#[diagnostic::on_unimplemented(
    message = "a locked function that returns `{Self}` cannot say that its lease was lost",
    label = "neither a `Result`, `Option`, nor `()`",
    note = "return a `Result` whose error is `From<lock_core::Error>`, or write `on_lost = ignore`"
)]
pub trait Loses {
    /// Its error.
    type Error;

    /// Makes the result of a function that lost its lease.
    fn from_error(error: Self::Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E> Loses for Result<T, E> {
    type Error = E;

    fn from_error(error: E) -> Self {
        Err(error)
    }
}

#[diagnostic::do_not_recommend]
impl Loses for () {
    type Error = Logged;

    fn from_error(_: Logged) -> Self {}
}

#[diagnostic::do_not_recommend]
impl<T> Loses for Option<T> {
    type Error = Logged;

    fn from_error(_: Logged) -> Self {
        None
    }
}

/// An error that the return type has no place for: it goes to the log.
#[derive(Debug)]
pub struct Logged(());

impl From<Error> for Logged {
    fn from(error: Error) -> Self {
        tracing::error!(%error, "a locked function failed, and its return type cannot say so");
        Self(())
    }
}

/// The error type of a locked function.
#[diagnostic::on_unimplemented(
    message = "the error of a locked function, `{Self}`, cannot carry a `lock_core::Error`",
    label = "`{Self}` lacks `From<lock_core::Error>`",
    note = "return `lock_core::Error` itself, a `Box<dyn Error + Send + Sync>`, or an error type of your own with \
            `impl From<lock_core::Error>`; a type of another crate goes into one of your own",
    note = "to return `{Self}` all the same write `on_busy = call(path)` and `on_lost = ignore`"
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

/// What a key may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no key",
    label = "not a string",
    note = "a key is a string: write a template such as `\"goods:<id>\"`, or an expression whose type is `AsRef<str>`"
)]
pub trait AsKey {
    /// Borrows the key.
    fn as_key(&self) -> &str;
}

#[diagnostic::do_not_recommend]
impl<K: AsRef<str> + ?Sized> AsKey for K {
    fn as_key(&self) -> &str {
        self.as_ref()
    }
}

/// What `keys = …` may be.
///
/// It has no associated type: the compiler would look into that first, and say in its own words what it misses.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no collection of keys",
    label = "not a collection of strings",
    note = "`keys` takes a list such as `[\"goods:<from>\", \"goods:<to>\"]`, or whatever a `for` loop takes and gives \
            strings, such as `ids.iter().map(|id| format!(\"goods:{{id}}\"))`",
    note = "for one key write `key` in place of `keys`"
)]
pub trait AsKeys {
    /// Begins a request for all of them.
    fn request(self, manager: &LockManager) -> LockAllRequest;
}

#[diagnostic::do_not_recommend]
impl<C: IntoIterator<Item: AsKey>> AsKeys for C {
    #[track_caller]
    fn request(self, manager: &LockManager) -> LockAllRequest {
        manager.lock_all(self.into_iter().map(Rendered))
    }
}

/// A key on its way into the request.
struct Rendered<K>(K);

impl<K: AsKey> AsRef<str> for Rendered<K> {
    fn as_ref(&self) -> &str {
        self.0.as_key()
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
