use std::{error, fmt, sync::Arc, time::Duration};

use crate::{error::ErrorKind, replicas::Replicas};

/// The error of a request that a backend could not execute.
///
/// A message says what happened and what to do, in one lower-case sentence without passwords or tokens. The request may
/// have been executed, unless [`did_not_happen`](Self::did_not_happen) says otherwise.
///
/// # Examples
///
/// ```
/// use lock_core::backend::BackendError;
///
/// let full = BackendError::unavailable("the store is full; make room").did_not_happen();
/// assert_eq!(full.to_string(), "the store is full; make room");
/// ```
#[derive(Clone, Debug)]
pub struct BackendError {
    kind: ErrorKind,
    message: String,
    source: Option<Arc<dyn error::Error + Send + Sync>>,
    /// Whether the request may have been, or may still be, executed.
    may_have_happened: bool,
}

impl BackendError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None, may_have_happened: true }
    }

    /// Makes an error of kind [`ErrorKind::Backend`]: the store gave no answer, or one that makes no sense.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Backend, message)
    }

    /// Makes an error of kind [`ErrorKind::WrongType`]: the key holds something that is not a lock.
    #[must_use]
    pub fn wrong_type(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::WrongType, message)
    }

    /// Makes an error of kind [`ErrorKind::Unsupported`]: the store lacks what the lock needs.
    #[must_use]
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Makes an error of kind [`ErrorKind::Denied`]: the store refused the user, or the access to the key.
    #[must_use]
    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Denied, message)
    }

    /// Makes an error of kind [`ErrorKind::NotReplicated`]: only `had` replicas had the lease in time.
    #[must_use]
    pub fn not_replicated(asked: Replicas, had: u32) -> Self {
        let (min, within) = (asked.min(), asked.timeout());
        Self::new(
            ErrorKind::NotReplicated,
            format!(
                "{had} of the {min} required replicas confirmed the lease within {within:?}, so it was released; check that the \
                 replicas are connected and keep up, or require fewer"
            ),
        )
    }

    /// The error of an operation that has no answer in the answer to its batch.
    pub(crate) fn missing() -> Self {
        Self::unavailable("the backend answered fewer operations than it received; report this as a bug of the backend")
    }

    /// The error of an answer that does not fit the request.
    pub(crate) fn unexpected(outcome: impl fmt::Debug) -> Self {
        Self::unavailable(format!("the backend's answer does not match the request: {outcome:?}"))
    }

    /// The error of a request at which the backend panicked.
    pub(crate) fn panicked() -> Self {
        Self::unavailable("the backend panicked, which is a bug in it; read the message of the panic")
    }

    /// The error of a request that was not answered within `limit`.
    pub(crate) fn unanswered(limit: Duration) -> Self {
        Self::unavailable(format!("the backend did not answer within {limit:?}; check that it runs and can keep up"))
    }

    /// The error of a request that the engine's task has not dealt with for `limit`.
    pub(crate) fn unattended(limit: Duration) -> Self {
        Self::unavailable(format!(
            "the engine's task did not run for {limit:?}; keep the runtime of the manager's first request running, or \
             give the manager another one with `LockManager::builder().runtime(..)`"
        ))
    }

    /// The error of a request that was in flight when the engine's task ended with its runtime.
    pub(crate) fn ended() -> Self {
        Self::unavailable("the engine's runtime ended before the answer came; whether it was executed is not known")
    }

    /// Says that the cause is that of another error.
    #[cfg(feature = "redis")]
    pub(crate) fn with_source_of(mut self, other: &Self) -> Self {
        self.source.clone_from(&other.source);
        self
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn may_have_happened(&self) -> bool {
        self.may_have_happened
    }

    pub(crate) fn into_parts(self) -> (ErrorKind, String, Option<Arc<dyn error::Error + Send + Sync>>) {
        (self.kind, self.message, self.source)
    }
}

sets! { BackendError =>
    /// Adds the cause. It may be dropped while the state of a manager is locked, so its `Drop` must not use one.
    #[must_use]
    pub with_source(source: impl error::Error + Send + Sync + 'static) => source = Some(Arc::new(source));
    /// Says that the request was surely not executed and never will be.
    #[must_use]
    pub did_not_happen() => may_have_happened = false;
    pub(crate) of_kind(kind: ErrorKind) => kind = kind;
    #[cfg(feature = "redis")]
    pub(crate) in_doubt() => may_have_happened = true;
}

says! { Display for BackendError: error => &error.message }

impl error::Error for BackendError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
