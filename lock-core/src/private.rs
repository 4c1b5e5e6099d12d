//! What the code written by `#[distributed_lock]` calls. Not part of the public API, and free to change with it.

use std::{
    fmt::{self, Display, Write},
    future::{self, Ready},
    ops::Deref,
    time::Duration,
};

use futures_util::future::Either;

use crate::{
    Error, ErrorKind, LockAllGuard, LockAllRequest, LockGuard, LockManager, LockRequest,
    future::{Acquire, AcquireAll},
    key,
    ttl::Renewal,
};

/// Clones the manager out of whatever `manager = …` gave: a manager, or anything that points to one.
pub fn manager(given: &impl AsManager) -> LockManager {
    given.as_manager().clone()
}

/// Takes the value of `ttl = …` and the like.
pub fn duration(given: impl IsDuration) -> Duration {
    given.duration()
}

/// `renew = true`: renews the lease also where the manager's leases are fixed.
pub fn renewed<K>(mut request: LockRequest<K>) -> LockRequest<K> {
    if request.options.renewal == Renewal::Never {
        request.options.renewal = Renewal::ThirdOfTtl;
    }
    request
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

/// What `on_error = …` makes results with in a function that returns `R`.
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
        tracing::debug!(%error, "skipped: the key is busy");
    }
    error.is_busy()
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

/// What a function with `on_busy = skip` may return.
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

/// What a function that names `on_lost` may return when its lease was lost: the error in a `Result`, or nothing.
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
        tracing::error!(%error, "a locked function failed, and its return type cannot say so");
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

/// What `on_error = …` may be.
#[diagnostic::on_unimplemented(
    message = "`on_error` is a function or closure of one `lock_core::Error`, not a `{Self}`",
    label = "neither a function nor a closure",
    note = "write the path of a function, as in `on_error = refused`, or a closure, as in `on_error = |error| ..`"
)]
pub trait OnError<V>: FnOnce(Error) -> V {}

#[diagnostic::do_not_recommend]
impl<F: FnOnce(Error) -> V, V> OnError<V> for F {}

/// What the function of `on_error` may give in a function that returns `R`.
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

/// A template with its values put in.
#[derive(Debug)]
pub struct Key(String);

impl Key {
    /// Begins with text, which goes in as it stands.
    #[must_use]
    pub fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Adds text, which goes in as it stands.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.0.push_str(text);
        self
    }

    /// Adds a value as a part of the key.
    #[must_use]
    pub fn value<T: AsPart + ?Sized>(mut self, value: &T) -> Self {
        value.add_to(&mut self.0);
        self
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// What may stand between `<` and `>`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a part of a key: it has no `Display`",
    label = "a value of type `{Self}`, which has no `Display`",
    note = "write a field or a call whose value has one, as in `<order.id>` or `<path.display()>`; for `Debug` or format \
            options write an expression, as in `key = format!(\"goods:{{id:?}}\")`"
)]
pub trait AsPart {
    /// Adds the value to the key as a part.
    fn add_to(&self, key: &mut String);
}

#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> AsPart for T {
    fn add_to(&self, key: &mut String) {
        write!(key, "{}", key::part(self)).expect("a `String` takes everything");
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

/// What `ttl`, `wait`, `max_hold` and `at_least` may be.
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
