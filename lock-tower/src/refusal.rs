use std::{borrow::Cow, error, fmt, time::Duration};

use lock_core::{
    Error,
    answer::{Answer, Case},
};

use crate::{admission::Overloaded, error::BoxError, key::Mistake, misconfigured::Misconfigured};

/// The reason why the lock refused a request or its answer, which a [`Protocol`](crate::Protocol) converts to an answer.
///
/// A closure that replaces answers reads it with [`is_busy`](Self::is_busy), [`error`](Self::error),
/// [`code`](Self::code) and the other methods, which work for every variant as those of [`lock_core::Error`] do.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "http")]
/// # fn main() {
/// use http::StatusCode;
/// use lock_core::LockManager;
/// use lock_tower::LockLayer;
///
/// let export = LockLayer::http(LockManager::in_memory(), "export").answer(|refusal, mut answer| {
///     println!("refused: {}", refusal.code());
///     if refusal.nothing_was_done() && !refusal.is_busy() {
///         *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
///     }
///     answer
/// });
/// # let _ = export;
/// # }
/// # #[cfg(not(feature = "http"))] fn main() {}
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The [`KeyExtractor`](crate::KeyExtractor) refused the request. The service was not called.
    Key(BoxError),
    /// The layer has options that can never work. The service was not called.
    Misconfigured(Misconfigured),
    /// The lease could not be acquired; mostly, the key was [`Busy`](lock_core::ErrorKind::Busy). The service was not
    /// called.
    NotAcquired(Error),
    /// More requests wait than the layer allows. The service was not called.
    Overloaded(Overloaded),
    /// The time that the caller itself allows was over before the lease was acquired. The service was not called.
    OutOfTime(OutOfTime),
    /// The lease was lost while the service worked. The work was cancelled, and part of it may be done. With
    /// [`OnLost::Finish`](lock_core::OnLost::Finish) it ran to its end, and all of it is done.
    Lost(Error),
}

impl Refusal {
    /// Returns a stable word for programs, such as `lock_busy`; [`lock_core::answer`] has the table.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.case().code()
    }

    /// Returns the error of the lock, of a failed acquire or a lost lease. Returns `None` if the layer itself refused the request.
    #[must_use]
    pub fn error(&self) -> Option<&Error> {
        match self {
            Self::NotAcquired(error) | Self::Lost(error) => Some(error),
            _ => None,
        }
    }

    /// Returns whether another request has the key, after a wait or without one.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.error().is_some_and(Error::is_busy)
    }

    /// Returns whether the lease was lost while the service worked.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost(_))
    }

    /// Returns whether the service was not called, so that the request may be retried. The service was called only in case of a
    /// [loss](Self::is_lost).
    #[must_use]
    pub fn nothing_was_done(&self) -> bool {
        !self.is_lost()
    }

    /// Returns a message for clients: what happened and what to do, without the key and without anything about the
    /// backend. If the [`KeyExtractor`](crate::KeyExtractor) refused the request, it is the text of its error.
    #[must_use]
    pub fn public_message(&self) -> Cow<'static, str> {
        match (self.case(), self) {
            (Case::Key, Self::Key(error)) => error.to_string().into(),
            (case, _) => case.public_message().into(),
        }
    }

    /// Returns after which time the request may be retried, or `None` if a retry makes no sense. See
    /// [`Error::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.error().and_then(Error::retry_after).or_else(|| self.case().retry_after())
    }

    /// Returns the inner error: a boxed [`lock_core::Error`], the error of the [`KeyExtractor`](crate::KeyExtractor),
    /// [`Misconfigured`], [`Overloaded`] or [`OutOfTime`].
    #[must_use]
    pub fn into_error(self) -> BoxError {
        match self {
            Self::Key(error) => error,
            Self::Misconfigured(error) => error.into(),
            Self::NotAcquired(error) | Self::Lost(error) => error.into(),
            Self::Overloaded(error) => error.into(),
            Self::OutOfTime(error) => error.into(),
        }
    }

    pub(crate) fn case(&self) -> Case {
        match self {
            Self::Key(error) if error.is::<Mistake>() => Case::Misconfigured,
            Self::Key(_) => Case::Key,
            Self::Misconfigured(_) => Case::Misconfigured,
            Self::Overloaded(_) => Case::Overloaded,
            Self::OutOfTime(_) => Case::OutOfTime,
            // The service was not called: it was one of several keys, or its replicas were waited for.
            Self::NotAcquired(error) if error.case() == Case::Lost => Case::Unavailable,
            Self::NotAcquired(error) | Self::Lost(error) => error.case(),
        }
    }
}

impl From<&Refusal> for Answer {
    fn from(refusal: &Refusal) -> Self {
        let answer = Self::new(refusal.case()).detail(refusal.public_message()).retry_after(refusal.retry_after());
        #[cfg(feature = "axum")]
        if matches!(refusal, Refusal::Key(error) if error.is::<crate::key::NoRoute>()) {
            return answer.status(http::StatusCode::NOT_FOUND);
        }
        answer
    }
}

/// The time that the caller itself allows was over before the lease was acquired; nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfTime(pub(crate) ());

impl fmt::Display for OutOfTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the lock was busy for as long as the caller waits; allow more time, or try again later")
    }
}

impl error::Error for OutOfTime {}
