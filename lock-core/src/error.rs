use std::{error, fmt, io, panic::Location, sync::Arc, time::Duration};

pub use self::{
    build::{AlreadyInstalled, BuildError},
    case::Case,
    kind::{Argument, ErrorKind, LossReason},
};

use crate::{backend::BusyReason, info::Holder, mode::Mode};

mod build;
mod case;
mod kind;
mod request;

/// The error of a request for a lease, or of a guard.
///
/// There is one opaque type for the whole crate: [`kind`](Self::kind) returns what happened, [`key`](Self::key) to which key,
/// and the message names the key, the operation and the remedy. The cause, if there is one, is in
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
    /// The text of the key, of which so many first bytes are the manager's prefix, or `None` if the request had none.
    key: Option<(Arc<str>, usize)>,
    /// The details of this occurrence; replaces the general sentence of the kind.
    detail: Option<String>,
    /// When a busy key is free at the latest, unless its holder renews.
    remaining: Option<Duration>,
    /// What is in the way of a request that finds the key busy, and the mode of the request.
    reason: (BusyReason, Mode),
    /// The holder of the busy key, if a process was asked, and how long ago.
    holder: Option<(Box<Holder>, Duration)>,
    /// Where this process acquired the busy key, if it did: the task may be waiting for itself.
    here: Option<&'static Location<'static>>,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
}

getters! { error: Error =>
    /// Returns what kind of failure this is.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use lock_core::{ErrorKind, LockManager};
    ///
    /// let manager = LockManager::in_memory();
    /// match manager.lock("goods:1").run(async |_| "sold").await {
    ///     Ok(answer) => println!("{answer}"),
    ///     Err(error) => match error.kind() {
    ///         ErrorKind::Busy => println!("try again later"),
    ///         ErrorKind::Lost(reason) => println!("stopped halfway: {reason}"),
    ///         _ => println!("{error}"),
    ///     },
    /// }
    /// # }
    /// ```
    kind: ErrorKind = error.inner.kind;

    /// Returns the key that the request was about, as it was given (without the manager's prefix). Returns `None` if the request
    /// was about no key, or its key was invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:3").await?;
    /// let error = manager.lock_all(["goods:1", "goods:3"]).wait(Duration::ZERO).await.unwrap_err();
    /// assert_eq!(error.key(), Some("goods:3"));
    /// # Ok(()) }
    /// ```
    key: Option<&str> = error.inner.key.as_ref().map(|(wire, prefix)| &wire[*prefix..]);

    /// Returns the holder of a busy key, if the request waited long enough for the manager to
    /// [ask](crate::LockManagerBuilder::explain_waits_after) and a process answered. Another may hold the key by now; the message of the
    /// error says how long ago the answer was.
    holder: Option<&Holder> = error.inner.holder.as_ref().map(|(holder, _)| &**holder);

    /// Returns whether the only problem is that another holder has the key.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").await?;
    /// let error = manager.lock("goods:1").wait(Duration::ZERO).await.unwrap_err();
    /// assert!(error.is_busy() && error.nothing_was_done());
    /// # Ok(()) }
    /// ```
    is_busy: bool = error.kind() == ErrorKind::Busy;

    /// Returns whether a lease that was held is gone: part of the work may be done.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:1").await?;
    /// manager.force_release("goods:1").await?;
    /// let error = guard.release().await.unwrap_err();
    /// assert!(error.is_lost() && !error.nothing_was_done());
    /// # Ok(()) }
    /// ```
    is_lost: bool = matches!(error.kind(), ErrorKind::Lost(_));

    /// Returns whether the protected work did not begin.
    ///
    /// The work may have begun, or be done, if the lease was lost, and after every error of a guard: a release that got no
    /// answer, for example.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use lock_core::{ErrorKind, LockManager};
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// manager.shutdown(Duration::ZERO).await;
    /// let error = manager.lock("goods:1").run(async |_| println!("sold")).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::ShutDown);
    /// assert!(error.nothing_was_done());
    /// # }
    /// ```
    nothing_was_done: bool = error.case() != Case::Lost;

    /// Returns a stable word for programs, such as `lock_busy`; [`answer`](crate::answer) has the table.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let error = manager.lock("").await.unwrap_err();
    /// assert_eq!(error.code(), "lock_key");
    /// println!("{error}"); // for the log
    /// println!("{}", error.public_message()); // for the client
    /// # Ok(()) }
    /// ```
    code: &'static str = error.case().code();

    /// Returns a message for clients: what happened and what to do, without key, address or place in the code.
    public_message: &'static str = error.case().public_message();
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, attempt: &'static str) -> Self {
        Self {
            inner: Box::new(Inner {
                kind,
                attempt,
                key: None,
                detail: None,
                remaining: None,
                reason: (BusyReason::Holder, Mode::Exclusive),
                holder: None,
                here: None,
                source: None,
            }),
        }
    }

    /// Says what is in the way of a request in a mode.
    pub(crate) fn blocked(mut self, by: BusyReason, mode: Mode) -> Self {
        self.inner.reason = (by, mode);
        self
    }

    /// Says for how long the key was busy.
    pub(crate) fn busy_for(self, wait: Duration) -> Self {
        let held = match self.inner.reason {
            (BusyReason::Permits, Mode::Permits { total, take: 1 }) => format!("out of permits (it has {total})"),
            (BusyReason::Permits, Mode::Permits { total, take }) => format!("short of {take} permits (it has {total})"),
            (BusyReason::Waiters, _) => "kept for others that came first".to_owned(),
            (BusyReason::Foreign, _) => "held by another library".to_owned(),
            (BusyReason::OtherTotal { total }, mode) => {
                format!("held by permits of another total (the key has {total}, and the request is for {mode})")
            }
            (BusyReason::Holder | BusyReason::Permits, _) => "held by someone else".to_owned(),
        };
        self.detail(if wait.is_zero() {
            format!("{held}; wait for it, or try again later")
        } else {
            format!("still {held} after {wait:?}; raise `wait`, or try again later")
        })
    }

    /// Adds the holder of the busy key.
    pub(crate) fn held_by(mut self, holder: Box<Holder>, ago: Duration) -> Self {
        // Those that came first are in the way, and may wait for a holder that would not be.
        if self.is_busy() && self.inner.reason.0 != BusyReason::Waiters {
            self.inner.holder = Some((holder, ago));
        }
        self
    }

    /// Says how many keys were freed before.
    pub(crate) fn after(mut self, freed: u64) -> Self {
        let said = self.inner.detail.take().unwrap_or_else(|| self.inner.kind.to_string());
        self.detail(format!("{said} ({freed} keys were freed)"))
    }

    pub(crate) fn invalid(argument: Argument, attempt: &'static str, detail: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid(argument), attempt).detail(detail)
    }

    /// Returns the case that a client may know of: the row of the table in [`answer`](crate::answer).
    #[must_use]
    pub fn case(&self) -> Case {
        // An error of a holder: the work has begun, even if the kind is that of a failed request.
        if OF_HOLDERS.contains(&self.inner.attempt) {
            return Case::Lost;
        }
        match self.inner.reason.0 {
            BusyReason::Permits | BusyReason::OtherTotal { .. } if self.is_busy() => Case::Full,
            _ => self.kind().case(),
        }
    }

    /// Returns after which time a client may retry the request. Returns `None` if a retry makes no sense, or if part of the
    /// work may be done.
    ///
    /// For a busy key, it is the rest of the holder's ttl when the request failed, if the backend reported it. The
    /// key may be free sooner if its holder releases it, or busy for longer if its holder renews it.
    ///
    /// For permits that are all taken it is a second at most, because one of several holders is likely to be done soon.
    ///
    /// It is a second for a busy key without a ttl, and for the kinds `Overloaded`, `Backend`, `NotReplicated` and `ShutDown`.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    /// use std::time::Duration;
    ///
    /// let manager = LockManager::in_memory();
    /// let _guard = manager.lock("goods:1").ttl(Duration::from_secs(30)).await?;
    /// let error = manager.lock("goods:1").wait(Duration::ZERO).await.unwrap_err();
    /// assert!(error.retry_after().is_some_and(|rest| rest <= Duration::from_secs(30)));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let usual = self.case().retry_after();
        match self.case() {
            Case::Full => self.inner.remaining.min(usual).or(usual),
            _ => self.inner.remaining.or(usual),
        }
    }
}

sets! { Error =>
    pub(crate) attempted(attempt: &'static str) => inner.attempt = attempt;
    pub(crate) detail(detail: impl Into<String>) => inner.detail = Some(detail.into());
    /// Says what is left of the holder's ttl, if that is known.
    pub(crate) free_in(remaining: Option<Duration>) => inner.remaining = remaining;
    /// Says where this process acquired the busy key.
    pub(crate) held_since(here: Option<&'static Location<'static>>) => inner.here = here;
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.inner.attempt)?;
        if let Some(key) = self.key() {
            write!(f, " \"{}\"", key.escape_debug())?;
        }
        f.write_str(": ")?;
        match &self.inner.detail {
            Some(detail) => f.write_str(detail),
            None => self.inner.kind.fmt(f),
        }?;
        if let Some(here) = self.inner.here {
            write!(f, "; this process acquired it at {here}")?;
        }
        match &self.inner.holder {
            Some((holder, ago)) => {
                write!(f, "; {ago:.1?} before, {} had held it for {:.1?}", holder.party(), holder.held())
            }
            None => Ok(()),
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

/// Wraps the error for functions that return `std::io::Result`; `downcast` returns the original.
///
/// | io kind | kinds |
/// | --- | --- |
/// | `ResourceBusy` | [`Busy`](ErrorKind::Busy), [`Overloaded`](ErrorKind::Overloaded) |
/// | `NotConnected` | [`Backend`](ErrorKind::Backend), [`ShutDown`](ErrorKind::ShutDown) |
/// | `TimedOut` | [`NotReplicated`](ErrorKind::NotReplicated) |
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
/// use std::io::Write;
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock("report").await?;
/// std::io::stdout().write_all(b"only one writes\n")?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind().io(), error)
    }
}

pub(crate) const ACQUIRE: &str = "acquire";

pub(crate) const KEEP: &str = "keep";

pub(crate) const EXTEND: &str = "extend";

pub(crate) const RELEASE: &str = "release";

pub(crate) const HAND_OVER: &str = "hand over";

pub(crate) const TAKE_UP: &str = "take up";

pub(crate) const DOWNGRADE: &str = "downgrade";

/// The attempts that only the holder of a lease makes.
const OF_HOLDERS: [&str; 5] = [KEEP, EXTEND, RELEASE, HAND_OVER, DOWNGRADE];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::LockKey;

    /// Every kind, with its code and whether the work did not begin.
    const KINDS: [(ErrorKind, &str, bool); 20] = [
        (ErrorKind::Busy, "lock_busy", true),
        (ErrorKind::Lost(LossReason::Expired), "lock_lost", false),
        (ErrorKind::Lost(LossReason::ShutDown), "lock_lost", false),
        (ErrorKind::Backend, "lock_unavailable", true),
        (ErrorKind::NotReplicated, "lock_unavailable", true),
        (ErrorKind::WrongType, "lock_misconfigured", true),
        (ErrorKind::Unsupported, "lock_misconfigured", true),
        (ErrorKind::Denied, "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Key), "lock_key", true),
        (ErrorKind::Invalid(Argument::Keys), "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Ttl), "lock_misconfigured", true),
        (ErrorKind::Invalid(Argument::Durability), "lock_misconfigured", true),
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
