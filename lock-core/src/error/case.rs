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
    pub(crate) const COUNT: usize = Self::Misconfigured as usize + 1;

    /// Returns the word for programs, such as `lock_busy`; the documentation of [`answer`](crate::answer) has the table.
    #[must_use]
    pub fn code(self) -> &'static str {
        self.row().code
    }

    /// Returns the message for people: what happened and what to do.
    #[must_use]
    pub fn public_message(self) -> &'static str {
        self.row().message
    }

    /// Returns after which time a client may retry the request, if nothing more is known: a second, or `None` if a retry makes no
    /// sense.
    #[must_use]
    pub fn retry_after(self) -> Option<Duration> {
        self.row().retries.then_some(A_SECOND)
    }

    /// Returns the status code of HTTP.
    #[must_use]
    pub fn http_status(self) -> u16 {
        self.row().http
    }

    /// Returns the status code of gRPC.
    #[must_use]
    pub fn grpc_code(self) -> i32 {
        self.row().grpc
    }

    /// Returns whether an operator has to act on it.
    pub(crate) fn alarms(self) -> bool {
        self.row().alarms
    }

    fn row(self) -> &'static Row {
        &CASES[self as usize]
    }
}

/// What follows from a case: for programs, for clients and proxies, for the log, and for people.
struct Row {
    code: &'static str,
    http: u16,
    grpc: i32,
    /// Whether a client may try again. It must not if part of the work may be done; so [`Case::Lost`] is neither 503 nor UNAVAILABLE
    /// nor ABORTED, which proxies and clients repeat.
    retries: bool,
    alarms: bool,
    message: &'static str,
}

const fn row(code: &'static str, http: u16, grpc: i32, retries: bool, alarms: bool, message: &'static str) -> Row {
    Row { code, http, grpc, retries, alarms, message }
}

/// The rows of all cases, in their order. The columns: code, HTTP, gRPC, whether to retry, whether to alarm, message.
#[rustfmt::skip]
static CASES: [Row; Case::COUNT] = [
    row("lock_busy", 409, 10, true, false, // ABORTED
        "locked by another request; nothing was done, try again later"),
    row("lock_full", 429, 8, true, false, // RESOURCE_EXHAUSTED
        "too many requests at the same time; nothing was done, try again later"),
    row("lock_overloaded", 429, 8, true, true, // RESOURCE_EXHAUSTED
        "too many requests wait for locks; nothing was done, try again later"),
    row("lock_unavailable", 503, 14, true, true, // UNAVAILABLE
        "the lock cannot be acquired at the moment; nothing was done, try again later"),
    row("lock_lost", 500, 2, false, true, // UNKNOWN
        "the lock was lost or failed while the work ran; part of it may have been done, or all of it"),
    row("lock_key", 400, 3, false, false, // INVALID_ARGUMENT
        "the requested item cannot be locked: its name is empty, too long or reserved; nothing was done"),
    row("lock_out_of_time", 409, 4, false, false, // DEADLINE_EXCEEDED
        "locked by another request until the caller's time limit; nothing was done, try again later"),
    row("lock_not_held", 409, 9, false, false, // FAILED_PRECONDITION
        "the lock that was handed over is no longer held; nothing was done"),
    row("lock_misconfigured", 500, 13, false, true, // INTERNAL
        "the lock of this service is misconfigured, and the log says what to change; nothing was done"),
];

/// The usual time after which to retry.
const A_SECOND: Duration = Duration::from_secs(1);
