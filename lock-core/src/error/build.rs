use std::{error, fmt};

use super::{Argument, Error, ErrorKind};

/// The error of a manager that could not be built or connected, at start-up.
///
/// [`cause`](Self::cause) returns the [`Error`] if the configuration is right and only
/// [`connect`](crate::LockManager::connect) failed: the server is out of reach, refuses the password, or is too old. The
/// message is then that of the cause.
///
/// It converts into an [`Error`]: into its cause, or into one of kind [`ErrorKind::Invalid`] for
/// [`Argument::Settings`]. So a function that returns an [`Error`] may use `?` on both.
///
/// # Examples
///
/// ```
/// use lock_core::{Argument, Error, ErrorKind, LockManager};
///
/// async fn start(url: &str) -> Result<LockManager, Error> {
///     let manager = LockManager::connect(url).await?;
///     manager.lock("migration").run(async |_| println!("the schema is changed")).await?;
///     Ok(manager)
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
///
/// assert!(start("memory://").await.is_ok());
/// let error = start("memory:/").await.expect_err("no URL");
/// assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Settings));
/// # }
/// ```
#[derive(Clone)]
pub struct BuildError {
    message: String,
    cause: Option<Error>,
}

impl BuildError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), cause: None }
    }

    pub(crate) fn connect(cause: Error) -> Self {
        Self { message: cause.to_string(), cause: Some(cause) }
    }
}

getters! { error: BuildError =>
    /// Returns the kind of the [`cause`](Self::cause), or [`ErrorKind::Invalid`] for [`Argument::Settings`] if the configuration
    /// itself is wrong.
    kind: ErrorKind = error.cause.as_ref().map_or(ErrorKind::Invalid(Argument::Settings), Error::kind);
    /// Returns the error of the connection, or `None` if the configuration itself is wrong.
    cause: Option<&Error> = error.cause.as_ref();
}

says! { Display for BuildError: error => &error.message }

impl fmt::Debug for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BuildError").field(&self.message).finish()
    }
}

impl error::Error for BuildError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        // Its message is this one's.
        self.cause.as_ref().and_then(error::Error::source)
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        let BuildError { message, cause } = error;
        cause.unwrap_or_else(|| Self::invalid(Argument::Settings, "build the lock manager", message))
    }
}

/// A manager is installed already; the first one stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlreadyInstalled;

says! { Display for AlreadyInstalled: _this =>
    "could not install the lock manager: one is already installed and stays; \
    use `LockManager::scope` to replace it for one future"
}

impl error::Error for AlreadyInstalled {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::BackendError;

    #[test]
    fn failed_connection_becomes_its_cause_whose_message_is_said_once() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let backend = BackendError::new(ErrorKind::Backend, "a:6379 could not be reached").with_source(io);
        let failed = BuildError::connect(Error::backend("connect to the backend", None, backend));
        assert_eq!(failed.cause().map(Error::kind), Some(ErrorKind::Backend));
        assert_eq!(failed.kind(), ErrorKind::Backend);
        assert!(error::Error::source(&failed).is_some_and(|source| source.is::<std::io::Error>()));
        let error = Error::from(failed);
        assert_eq!(error.to_string(), "could not connect to the backend: a:6379 could not be reached");
    }

    #[test]
    fn wrong_configuration_becomes_an_invalid_argument() {
        let wrong = BuildError::new("the URL is empty");
        assert!(error::Error::source(&wrong).is_none());
        assert_eq!(wrong.kind(), ErrorKind::Invalid(Argument::Settings));
        let error = Error::from(wrong);
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Settings));
        assert_eq!(error.to_string(), "could not build the lock manager: the URL is empty");
        assert_eq!((error.code(), error.retry_after()), ("lock_misconfigured", None));
    }
}
