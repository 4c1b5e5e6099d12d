use std::{fmt, io};

use super::Case;

/// The kinds of [`Error`](crate::Error), for a `match`; [`Error::kind`](crate::Error::kind) returns one and has an example.
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
    /// Too few replicas had the lease in time, or whether they had it is not known; see
    /// [`LockRequest::durability`](crate::LockRequest::durability). Nothing is held: the lease was released.
    NotReplicated,
    /// The key holds a value that is not a lock (a hash, a list); the value was left untouched.
    WrongType,
    /// The server lacks, or its ACL forbids, a command that the lock needs.
    Unsupported,
    /// The server refused the user, the password, or the access to the key.
    Denied,
    /// An argument is out of its range; nothing was sent.
    Invalid(Argument),
    /// As many requests wait as the manager allows; nothing is held. See
    /// [`LockManagerBuilder::max_waiters`](crate::LockManagerBuilder::max_waiters).
    Overloaded,
    /// The same task holds the key already inside a scoped form, and would wait for itself.
    WouldDeadlock,
    /// The lease to take up no longer exists, or another process has taken it up.
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
    /// The collection given to [`lock_all`](crate::LockManager::lock_all): 1 to 5,000 keys.
    Keys,
    /// A ttl: 10 ms to 100 years.
    Ttl,
    /// The interval of renewal: at least 10 ms, and at most half of the ttl.
    RenewEvery,
    /// The longest hold: above zero.
    MaxHold,
    /// The least time that the key stays busy: at most 100 years.
    AtLeast,
    /// The permits of a key, 1 to 1,000,000, and how many of them a lease takes: at least one and at most all.
    Permits,
    /// The mode of a lease, for a request that another mode cannot have.
    Mode,
    /// The replicas that must have a lease: at least one, within 1 ms to an hour, and at most half of the ttl.
    Durability,
    /// The text of a [`Handover`](crate::Handover).
    Handover,
    /// The configuration of a manager; see [`BuildError`](crate::BuildError).
    Settings,
}

/// The reason why a lease that was held is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Its deadline passed: it was not renewed, or no renewal was answered in time. If that is because the process stood still, the
    /// error says so, and for how long.
    Expired,
    /// The backend reported that the key is free, or that another holder has it.
    Taken,
    /// It was held for as long as [`max_hold`](crate::LockRequest::max_hold) allows.
    MaxHold,
    /// This manager [force-released](crate::LockManager::force_release) the key.
    Forced,
    /// The manager was shut down, or the runtime that renewed the lease has ended.
    ShutDown,
}

impl LossReason {
    pub(crate) const ALL: [Self; 5] = [Self::Expired, Self::Taken, Self::MaxHold, Self::Forced, Self::ShutDown];

    /// Returns the word for metrics and programs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Taken => "taken",
            Self::MaxHold => "max_hold",
            Self::Forced => "forced",
            Self::ShutDown => "shut_down",
        }
    }
}

impl ErrorKind {
    /// Returns the word for metrics.
    pub(crate) fn name(self) -> &'static str {
        self.row().0
    }

    /// Returns the kind of an `io::Error`.
    pub(super) fn io(self) -> io::ErrorKind {
        self.row().1
    }

    /// Returns what a client may know of a request that failed so before its work began.
    pub(super) fn case(self) -> Case {
        self.row().2
    }

    /// The table of kinds: the word for metrics, the kind of an `io::Error`, the case, and the sentence of an error without details.
    #[rustfmt::skip]
    fn row(self) -> (&'static str, io::ErrorKind, Case, &'static str) {
        match self {
            Self::Busy => ("busy", io::ErrorKind::ResourceBusy, Case::Busy,
                "held by someone else; wait longer, or try again later"),
            Self::Lost(_) => ("lost", io::ErrorKind::ConnectionAborted, Case::Lost,
                "the lease was lost"),
            Self::Backend => ("backend", io::ErrorKind::NotConnected, Case::Unavailable,
                "the backend did not answer; check that it runs and can be reached"),
            Self::NotReplicated => ("not_replicated", io::ErrorKind::TimedOut, Case::Unavailable,
                "too few replicas had the lease in time; check that they are connected and keep up"),
            Self::WrongType => ("wrong_type", io::ErrorKind::InvalidData, Case::Misconfigured,
                "the key holds a value that is not a lock and was left untouched; use another key"),
            Self::Unsupported => ("unsupported", io::ErrorKind::Unsupported, Case::Misconfigured,
                "the server lacks a command that the lock needs; use Redis 6 or later, and grant the rights in docs/protocol.md"),
            Self::Denied => ("denied", io::ErrorKind::PermissionDenied, Case::Misconfigured,
                "the server denied access; check user, password and ACL"),
            Self::Invalid(Argument::Key) => ("invalid", io::ErrorKind::InvalidInput, Case::Key, "is out of range"),
            Self::Invalid(_) => ("invalid", io::ErrorKind::InvalidInput, Case::Misconfigured, "is out of range"),
            Self::Overloaded => ("overloaded", io::ErrorKind::ResourceBusy, Case::Overloaded,
                "too many waiters; try again later, or raise the limit"),
            Self::WouldDeadlock => ("would_deadlock", io::ErrorKind::Deadlock, Case::Misconfigured,
                "this task already holds the key and would wait for itself; pass the lease on instead"),
            Self::NotHeld => ("not_held", io::ErrorKind::NotFound, Case::NotHeld,
                "the lease no longer exists; acquire the key again"),
            Self::NoManager => ("no_manager", io::ErrorKind::Other, Case::Misconfigured,
                "no lock manager is installed or in scope; call `LockManager::install` once at start-up, wrap the call in \
                 `LockManager::scope`, or name a manager"),
            Self::NoRuntime => ("no_runtime", io::ErrorKind::Other, Case::Misconfigured,
                "there is no tokio runtime to run on; call from inside one, or give one that lives to \
                 `LockManager::builder().runtime(..)`"),
            Self::ShutDown => ("shut_down", io::ErrorKind::NotConnected, Case::Unavailable,
                "the lock manager was shut down; build a new one"),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (.., sentence) = self.row();
        match self {
            Self::Lost(reason) => write!(f, "{sentence}: {reason}"),
            Self::Invalid(argument) => write!(f, "{argument} {sentence}"),
            _ => f.write_str(sentence),
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
            Self::Permits => "the number of permits",
            Self::Mode => "the mode",
            Self::Durability => "the durability",
            Self::Handover => "the handover",
            Self::Settings => "the configuration of the manager",
        })
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => {
                "its deadline passed before it was renewed or extended; check the backend, or raise the ttl"
            }
            Self::Taken => "the key was deleted or taken by another holder",
            Self::MaxHold => "it was held for as long as its `max_hold` allows",
            Self::Forced => "it was force-released",
            Self::ShutDown => "the lock manager was shut down, or its runtime has ended",
        })
    }
}
