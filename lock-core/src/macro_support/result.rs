//! How a locked function says that its body did not run, or not to its end.

use std::fmt;

use crate::{Error, ErrorKind};

/// `on_busy = error`, and a loss where `on_lost` is not named: returns the error.
#[must_use]
pub fn refused<R>(error: Error) -> R
where
    R: Outcome<Error: FromLockError>,
{
    R::from_error(R::Error::from_lock_error(error))
}

/// `on_busy = skip`: returns nothing for a busy key, and the error for every other failure.
#[must_use]
pub fn skipped<R>(error: Error) -> R
where
    R: Skip<Error: FromLockError>,
{
    if is_skipped(&error) {
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

/// `on_error = …`: takes the function or closure that makes the result of an error.
pub fn by<R, V: Answer<R>, F: OnError<V>>(on_error: F) -> By<F, R> {
    By { on_error, call: |on_error, error| on_error(error).answer() }
}

/// `on_error = …` with `on_busy = skip`: a busy key is nothing, and every other error goes to the function.
pub fn by_or_skip<R: Skip, V: Answer<R>, F: OnError<V>>(on_error: F) -> By<F, R> {
    let call = |on_error: F, error| if is_skipped(&error) { R::skip() } else { on_error(error).answer() };
    By { on_error, call }
}

/// The function of `on_error = …`, which makes results in a function that returns `R`.
///
/// Without a bound: a wrong function is one error, where it is taken.
pub struct By<F, R> {
    on_error: F,
    call: fn(F, Error) -> R,
}

impl<F, R> By<F, R> {
    /// Makes the result.
    #[must_use]
    pub fn answer(self, error: Error) -> R {
        (self.call)(self.on_error, error)
    }
}

impl<F, R> fmt::Debug for By<F, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By").finish_non_exhaustive()
    }
}

fn is_skipped(error: &Error) -> bool {
    if error.is_busy() {
        log!(debug, %error, "skipped: the key is busy");
    }
    error.is_busy()
}

/// The return type of a locked function that names no policy: a `Result`.
#[diagnostic::on_unimplemented(
    message = "a locked function returns a `Result` whose error is `From<lock_core::Error>`, not `{Self}`",
    label = "not a `Result`",
    note = "the error is how the function says that the lock could not be acquired, or was lost",
    note = "to return anything else write `on_error = path`, a function that makes a `{Self}` of a `lock_core::Error`; \
            `()` and `Option` may have `on_busy = skip` with an `on_lost` instead"
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

/// The return type of a function with `on_busy = skip`.
#[diagnostic::on_unimplemented(
    message = "`on_busy = skip` cannot make a `{Self}` for a busy key",
    label = "neither `()`, `Option`, `Result<(), _>`, nor `Result<Option<_>, _>`",
    note = "it returns `()`, `None`, `Ok(())`, or `Ok(None)`; to return anything else take `on_busy` out and write `on_error = path`"
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

/// The return type of a function that names `on_lost`. When the lease was lost it gives the error in a `Result`, or nothing.
#[diagnostic::on_unimplemented(
    message = "a locked function that returns `{Self}` cannot say that its lease was lost",
    label = "neither a `Result`, `Option`, nor `()`",
    note = "return a `Result` whose error is `From<lock_core::Error>`, or write `on_error = path`, a function that makes \
            a `{Self}` of a `lock_core::Error`"
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
///
/// Without a manager the work is never done, and on a server nobody may notice the line in the log: a debug build panics.
#[derive(Debug)]
pub struct Logged(());

impl From<Error> for Logged {
    fn from(error: Error) -> Self {
        log!(error, %error, "a locked function failed, and its return type cannot carry the error");
        debug_assert!(error.kind() != ErrorKind::NoManager, "{error}");
        Self(())
    }
}

/// The error type of a locked function.
#[diagnostic::on_unimplemented(
    message = "the error of a locked function, `{Self}`, cannot carry a `lock_core::Error`",
    label = "`{Self}` lacks `From<lock_core::Error>`",
    note = "return `lock_core::Error` itself, a `std::io::Error`, `anyhow::Error` or `Box<dyn Error + Send + Sync>`, or an \
            error type of your own with `impl From<lock_core::Error>`",
    note = "in axum `lock_core::Error` is a response with lock-core's feature `axum`, and `tonic::Status` is `From` it with \
            the feature `tonic`",
    note = "for a type of another crate write `on_error = path`, a function or closure that makes a `{Self}` of a \
            `lock_core::Error`"
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

/// The type of `on_error = …`.
#[diagnostic::on_unimplemented(
    message = "`on_error` is a function or closure of one `lock_core::Error`, not a `{Self}`",
    label = "neither a function nor a closure",
    note = "write the path of a function, as in `on_error = refused`, or a closure, as in `on_error = |error| ..`"
)]
pub trait OnError<V>: FnOnce(Error) -> V {}

#[diagnostic::do_not_recommend]
impl<F: FnOnce(Error) -> V, V> OnError<V> for F {}

/// The return type of the function of `on_error`, in a locked function that returns `R`.
#[diagnostic::on_unimplemented(
    message = "`on_error` gives a `{Self}`, but the locked function returns a `{R}`",
    label = "this gives a `{Self}`",
    note = "it gives what the function returns, or for a `Result` its error alone"
)]
pub trait Answer<R> {
    /// Makes the result of a function whose body did not run, or not to its end.
    fn answer(self) -> R;
}

#[diagnostic::do_not_recommend]
impl<R> Answer<R> for R {
    fn answer(self) -> R {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<T, E> Answer<Result<T, E>> for E {
    fn answer(self) -> Result<T, E> {
        Err(self)
    }
}
