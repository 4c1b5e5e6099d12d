use std::time::Duration;

/// The reason why a request was not served, as far as a client may know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Case {
    /// Another holder has the key. Nothing was done.
    Busy,
    /// All permits of the key are taken. Nothing was done.
    Full,
    /// More requests wait than may. Nothing was done.
    Overloaded,
    /// The backend does not answer, too few replicas had the lease, or the manager was shut down. Nothing was done.
    Unavailable,
    /// The lease was lost while the work ran, or a guard could not extend, release or hand it over. Part of the work may be
    /// done, or all of it.
    Lost,
    /// The request names something that cannot be locked. Nothing was done.
    Key,
    /// The time that the caller itself allows was over before the lease was acquired. Nothing was done.
    OutOfTime,
    /// The lease that was handed over is no longer held. Nothing was done.
    NotHeld,
    /// The service uses the lock wrongly, or its backend refuses it. Nothing was done.
    Misconfigured,
}

impl Case {
    /// Returns the word for programs, such as `lock_busy`; the documentation of [`answer`](crate::answer) has the table.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Busy => "lock_busy",
            Self::Full => "lock_full",
            Self::Overloaded => "lock_overloaded",
            Self::Unavailable => "lock_unavailable",
            Self::Lost => "lock_lost",
            Self::Key => "lock_key",
            Self::OutOfTime => "lock_out_of_time",
            Self::NotHeld => "lock_not_held",
            Self::Misconfigured => "lock_misconfigured",
        }
    }

    /// Returns the message for people: what happened and what to do.
    #[must_use]
    pub fn public_message(self) -> &'static str {
        match self {
            Self::Busy => "locked by another request; nothing was done, try again later",
            Self::Full => "too many requests at the same time; nothing was done, try again later",
            Self::Overloaded => "too many requests wait for locks; nothing was done, try again later",
            Self::Unavailable => "the lock cannot be acquired at the moment; nothing was done, try again later",
            Self::Lost => "the lock was lost or failed while the work ran; part of it may have been done, or all of it",
            Self::Key => {
                "the requested item cannot be locked: its name is empty, too long or reserved; nothing was done"
            }
            Self::OutOfTime => {
                "locked by another request until the caller's time limit; nothing was done, try again later"
            }
            Self::NotHeld => "the lock that was handed over is no longer held; nothing was done",
            Self::Misconfigured => {
                "the lock of this service is misconfigured, and the log says what to change; nothing was done"
            }
        }
    }

    /// Returns after which time a client may retry the request, if nothing more is known: a second, or `None` if a retry makes no
    /// sense.
    #[must_use]
    pub fn retry_after(self) -> Option<Duration> {
        matches!(self, Self::Busy | Self::Full | Self::Overloaded | Self::Unavailable).then_some(A_SECOND)
    }
}

/// The usual time after which to retry.
const A_SECOND: Duration = Duration::from_secs(1);
