use std::{error, fmt, io, panic::Location, sync::Arc, time::Duration};

use crate::{answer::Case, backend::BackendError, end::End, key::LockKey};

pub use self::build::{AlreadyInstalled, BuildError};

mod build;

/// What went wrong with a request for a lease.
///
/// One opaque type for the whole crate: [`kind`](Self::kind) says what happened, [`key`](Self::key) to which key,
/// and the message names the key, what was tried and what to do about it. The cause, where there is one, is in
/// [`source`](error::Error::source) and is not repeated in the message. Tokens and passwords never appear.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{ErrorKind, LockManager};
/// use std::time::Duration;
///
/// let manager = LockManager::in_memory();
/// let first = manager.lock("goods:1").await?;
/// let second = manager.lock("goods:1").wait(Duration::ZERO).await;
/// let error = second.expect_err("the first guard holds the key");
/// assert_eq!(error.kind(), ErrorKind::Busy);
/// assert_eq!(error.key(), Some("goods:1"));
/// # drop(first); Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// The verb of the request, as in "could not acquire".
    attempt: &'static str,
    /// The key as the user gave it; absent where the request had none.
    key: Option<LockKey>,
    /// What only this occurrence knows; replaces the general sentence of the kind.
    detail: Option<String>,
    /// When a busy key is free at the latest, unless its holder renews.
    remaining: Option<Duration>,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
}

/// The kinds of [`Error`], for a `match`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another holder kept the key for the whole wait; nothing is held.
    Busy,
    /// The lease was held and is gone; scoped work was dropped.
    Lost(LossReason),
    /// The backend did not answer in time or could not be reached. Whatever may have been set is released in the
    /// background.
    Backend,
    /// The key holds something that is no lock (a hash, a list); it was left untouched.
    WrongType,
    /// The server lacks, or its ACL forbids, a command that the lock needs.
    Unsupported,
    /// The server refused the user, the password, or the access to the key.
    Denied,
    /// An argument is out of its range; nothing was sent.
    Invalid(Argument),
    /// More waiters than the configured limit.
    Overloaded,
    /// The same task holds the key already inside a scoped form, and would have waited for itself.
    WouldDeadlock,
    /// The lease that was to be taken up is not there any more, or another process has taken it up.
    NotHeld,
    /// No manager was given, scoped or installed.
    NoManager,
    /// The request was made outside a tokio runtime, or the runtime given to the builder has ended.
    NoRuntime,
    /// The manager was shut down.
    ShutDown,
}

/// The argument that an [`ErrorKind::Invalid`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Argument {
    /// A key: 1 to 1,024 bytes of UTF-8, prefix included.
    Key,
    /// The collection given to [`lock_all`](crate::LockManager::lock_all): at least one key.
    Keys,
    /// A ttl: 10 ms to 100 years.
    Ttl,
    /// The interval of renewal: at least 10 ms, and at most half of the ttl.
    RenewEvery,
    /// The longest hold: above zero.
    MaxHold,
    /// The least time that the key stays busy: at most 100 years.
    AtLeast,
    /// The text of a [`Handover`](crate::Handover).
    Handover,
    /// The configuration of a manager; see [`BuildError`].
    Settings,
}

/// Why a lease that was held is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Its deadline passed: it was not renewed, or no renewal was answered in time.
    Expired,
    /// The backend says that the key is free or somebody else's.
    Taken,
    /// It was held for as long as [`max_hold`](crate::LockRequest::max_hold) allows.
    MaxHold,
    /// This manager was asked to [`force_release`](crate::LockManager::force_release) the key.
    Forced,
    /// The manager was shut down, or the runtime that renewed the lease has ended.
    ShutDown,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, attempt: &'static str) -> Self {
        Self { inner: Box::new(Inner { kind, attempt, key: None, detail: None, remaining: None, source: None }) }
    }

    pub(crate) fn on(mut self, key: &LockKey) -> Self {
        self.inner.key = Some(key.clone());
        self
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.inner.detail = Some(detail.into());
        self
    }

    pub(crate) fn busy(attempt: &'static str, key: &LockKey, wait: Duration) -> Self {
        Self::new(ErrorKind::Busy, attempt).on(key).busy_for(wait)
    }

    /// Says for how long the key was busy.
    pub(crate) fn busy_for(self, wait: Duration) -> Self {
        self.detail(if wait.is_zero() {
            "another holder has it; wait for it, or try again later".to_owned()
        } else {
            format!("another holder kept it for the whole wait of {wait:?}; wait longer, or try again later")
        })
    }

    /// Says what is left of the holder's ttl, if that is known.
    pub(crate) fn free_in(mut self, remaining: Option<Duration>) -> Self {
        self.inner.remaining = remaining;
        self
    }

    /// Says how many keys were freed before.
    pub(crate) fn after(mut self, freed: u64) -> Self {
        let said = self.inner.detail.take().unwrap_or_else(|| self.inner.kind.to_string());
        self.detail(format!("{said} ({freed} keys were freed)"))
    }

    pub(crate) fn lost(attempt: &'static str, key: &LockKey, reason: LossReason) -> Self {
        Self::new(ErrorKind::Lost(reason), attempt).on(key)
    }

    /// Creates the error of a request about a lease that has ended. Only a loss is told as one.
    pub(crate) fn ended(attempt: &'static str, key: &LockKey, end: End) -> Self {
        match end {
            End::Lost(reason) => Self::lost(attempt, key, reason),
            End::Released | End::HandedOver => Self::new(ErrorKind::NotHeld, attempt).on(key),
        }
    }

    pub(crate) fn invalid(argument: Argument, attempt: &'static str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid(argument), attempt).detail(detail)
    }

    pub(crate) fn would_deadlock(key: &LockKey, here: &Location<'_>, held_since: &Location<'_>) -> Self {
        Self::new(ErrorKind::WouldDeadlock, "acquire").on(key).detail(format!(
            "asked for at {here}, but this task holds it since {held_since} and would wait for itself; \
             pass the lease on, or take the lock in one of the two places only"
        ))
    }

    pub(crate) fn backend(attempt: &'static str, key: Option<&LockKey>, error: BackendError) -> Self {
        let (kind, message, source) = error.into_parts();
        let mut this = Self::new(kind, attempt).detail(message);
        this.inner.key = key.cloned();
        this.inner.source = source;
        this
    }

    /// Returns what kind of failure this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns the key that the request was about, as it was given (without the manager's prefix).
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        self.inner.key.as_ref().map(LockKey::as_str)
    }

    /// Returns whether another holder has the key, and nothing else is wrong.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.kind() == ErrorKind::Busy
    }

    /// Returns whether a lease that was held is gone: part of the work may be done.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.kind(), ErrorKind::Lost(_))
    }

    /// Returns whether the protected work did not begin. It may have begun, or be done, if the lease was lost, and for
    /// every error of a guard: of a release that got no answer, for example.
    #[must_use]
    pub fn nothing_was_done(&self) -> bool {
        self.case() != Case::Lost
    }

    /// Returns the word that a program may go by, such as `lock_busy`; [`answer`](crate::answer) has the table.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.case().code()
    }

    /// Returns what a client may read: what happened and what to do, without key, address or place in the code.
    #[must_use]
    pub fn public_message(&self) -> &'static str {
        self.case().public_message()
    }

    pub(crate) fn case(&self) -> Case {
        // The work has begun by then, whatever the kind says of the request itself.
        if OF_HOLDERS.contains(&self.inner.attempt) {
            return Case::Lost;
        }
        match self.kind() {
            ErrorKind::Busy => Case::Busy,
            ErrorKind::Lost(_) => Case::Lost,
            ErrorKind::Overloaded => Case::Overloaded,
            ErrorKind::Backend | ErrorKind::ShutDown => Case::Unavailable,
            ErrorKind::Invalid(Argument::Key) => Case::Key,
            ErrorKind::NotHeld => Case::NotHeld,
            _ => Case::Misconfigured,
        }
    }

    /// Returns after which time a client may send the same request again; `None` if that makes no sense, or if part of the
    /// work may be done.
    ///
    /// For a busy key, the time is what was left of the holder's ttl when the request failed, if the backend said so. The
    /// key may be free before, when its holder releases it, or be busy for longer, when its holder renews it. The time is
    /// a second for a busy key without a ttl, and when too many requests wait, the backend does not answer, or the manager
    /// was shut down.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.inner.remaining.or_else(|| self.case().retry_after())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.inner.attempt)?;
        if let Some(key) = &self.inner.key {
            write!(f, " {key}")?;
        }
        f.write_str(": ")?;
        match &self.inner.detail {
            Some(detail) => f.write_str(detail),
            None => self.inner.kind.fmt(f),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &format_args!("{self}"))
            .field("source", &self.inner.source)
            .finish()
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as _)
    }
}

/// Wraps the error for functions that return `std::io::Result`; `downcast` gives it back.
///
/// | io kind | kinds |
/// | --- | --- |
/// | `ResourceBusy` | [`Busy`](ErrorKind::Busy), [`Overloaded`](ErrorKind::Overloaded) |
/// | `NotConnected` | [`Backend`](ErrorKind::Backend), [`ShutDown`](ErrorKind::ShutDown) |
/// | `ConnectionAborted` | [`Lost`](ErrorKind::Lost) |
/// | `NotFound` | [`NotHeld`](ErrorKind::NotHeld) |
/// | `InvalidInput` | [`Invalid`](ErrorKind::Invalid) |
/// | `InvalidData` | [`WrongType`](ErrorKind::WrongType) |
/// | `PermissionDenied` | [`Denied`](ErrorKind::Denied) |
/// | `Unsupported` | [`Unsupported`](ErrorKind::Unsupported) |
/// | `Deadlock` | [`WouldDeadlock`](ErrorKind::WouldDeadlock) |
/// | `Other` | [`NoManager`](ErrorKind::NoManager), [`NoRuntime`](ErrorKind::NoRuntime) |
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
/// use lock_core::LockManager;
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("report").await?;
/// std::fs::write(std::env::temp_dir().join("report"), "only one writes")?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Busy | ErrorKind::Overloaded => io::ErrorKind::ResourceBusy,
            ErrorKind::Backend | ErrorKind::ShutDown => io::ErrorKind::NotConnected,
            ErrorKind::Lost(_) => io::ErrorKind::ConnectionAborted,
            ErrorKind::NotHeld => io::ErrorKind::NotFound,
            ErrorKind::Invalid(_) => io::ErrorKind::InvalidInput,
            ErrorKind::WrongType => io::ErrorKind::InvalidData,
            ErrorKind::Denied => io::ErrorKind::PermissionDenied,
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::WouldDeadlock => io::ErrorKind::Deadlock,
            ErrorKind::NoManager | ErrorKind::NoRuntime => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another holder has it; wait longer, or try again later"),
            Self::Lost(reason) => write!(f, "the lease was lost: {reason}"),
            Self::Backend => f.write_str("the backend did not answer; check that it runs and can be reached"),
            Self::WrongType => f.write_str("the key holds something that is no lock; use another key"),
            Self::Unsupported => f.write_str("the server lacks a command that the lock needs"),
            Self::Denied => f.write_str("the server denied access; check user, password and ACL"),
            Self::Invalid(argument) => write!(f, "{argument} is out of range"),
            Self::Overloaded => f.write_str("too many waiters; try again later, or raise the limit"),
            Self::WouldDeadlock => f.write_str("this task holds the key already and would wait for itself"),
            Self::NotHeld => f.write_str("the lease is not there any more; acquire the key anew"),
            Self::NoManager => f.write_str(
                "there is no lock manager; call `LockManager::install` once at start-up, wrap the call in \
                 `LockManager::scope`, or name a manager",
            ),
            Self::NoRuntime => f.write_str(
                "there is no tokio runtime to run on; call from inside one, or give one that lives to \
                 `LockManager::builder().runtime(..)`",
            ),
            Self::ShutDown => f.write_str("the lock manager was shut down"),
        }
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "the key",
            Self::Keys => "the set of keys",
            Self::Ttl => "the ttl",
            Self::RenewEvery => "the renewal interval",
            Self::MaxHold => "the longest hold",
            Self::AtLeast => "the least time that the key stays busy",
            Self::Handover => "the handover",
            Self::Settings => "the configuration of the manager",
        })
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its deadline passed before it was renewed; check the backend, or use a longer ttl",
            Self::Taken => "the key was deleted or taken by another holder",
            Self::MaxHold => "it was held for as long as its `max_hold` allows",
            Self::Forced => "it was released by force",
            Self::ShutDown => "the lock manager was shut down, or its runtime has ended",
        })
    }
}

pub(crate) const ACQUIRE: &str = "acquire";
/// Running protected work.
pub(crate) const KEEP: &str = "keep";

pub(crate) const EXTEND: &str = "extend";

pub(crate) const RELEASE: &str = "release";

pub(crate) const HAND_OVER: &str = "hand over";

/// What only the holder of a lease attempts.
const OF_HOLDERS: [&str; 4] = [KEEP, EXTEND, RELEASE, HAND_OVER];

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind, with its code and whether the work did not begin.
    const KINDS: [(ErrorKind, &str, bool); 18] = [
        (ErrorKind::Busy, "lock_busy", true),
        (ErrorKind::Lost(LossReason::Expired), "lock_lost", false),
        (ErrorKind::Lost(LossReason::ShutDown), "lock_lost", false),
        (ErrorKind::Backend, "lock_unavailable", true),
        (ErrorKind::WrongType, "lock_misconfigured", true),
        (ErrorKind::Unsupported, "lock_misconfigured", true),
        (ErrorKind::Denied, "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Key), "lock_key", true),
        (ErrorKind::Invalid(Argument::Keys), "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Ttl), "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Handover), "lock_misconfigured", true),
        (ErrorKind::Overloaded, "lock_overloaded", true),
        (ErrorKind::WouldDeadlock, "lock_misconfigured", true),
        (ErrorKind::NotHeld, "lock_not_held", true),
        (ErrorKind::NoManager, "lock_misconfigured", true),
        (ErrorKind::NoRuntime, "lock_misconfigured", true),
        (ErrorKind::ShutDown, "lock_unavailable", true),
        (ErrorKind::Invalid(Argument::MaxHold), "lock_misconfigured", true),
    ];

    #[test]
    fn each_kind_has_its_code_and_says_to_a_client_whether_something_was_done() {
        let key = LockKey::new("a-key").unwrap();
        for (kind, code, nothing_was_done) in KINDS {
            let error = Error::new(kind, "acquire").on(&key).detail("redis://10.0.0.7 said no");
            assert_eq!((error.code(), error.nothing_was_done()), (code, nothing_was_done), "{kind:?}");
            assert_eq!((error.is_busy(), error.is_lost()), (code == "lock_busy", code == "lock_lost"), "{kind:?}");
            let said = error.public_message();
            assert_eq!(said.contains("nothing was done"), nothing_was_done, "{kind:?}: {said}");
            assert!(!said.contains("a-key") && !said.contains("redis"), "{kind:?}: {said}");
            let passes = ["lock_busy", "lock_overloaded", "lock_unavailable"].contains(&code);
            assert_eq!(error.retry_after(), passes.then_some(Duration::from_secs(1)), "{kind:?}");
        }
    }
}
