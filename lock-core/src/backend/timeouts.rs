//! The time limits of a connection.

use std::time::Duration;

use crate::error::BuildError;

/// The time limits of a connection to a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeouts {
    /// The limit of one command, reconnecting included.
    pub(crate) command: Duration,
    /// The limit of one attempt to connect.
    pub(crate) connect: Duration,
}

impl Timeouts {
    /// Checks both against their range.
    pub(crate) fn new(command: Duration, connect: Duration) -> Result<Self, BuildError> {
        check("command timeout", command)?;
        check("connect timeout", connect)?;
        Ok(Self { command, connect })
    }
}

/// Refuses a timeout out of range.
fn check(name: &str, timeout: Duration) -> Result<(), BuildError> {
    if timeout.is_zero() {
        return Err(BuildError::new(format!("a {name} of zero leaves no time for an answer; use a few seconds")));
    }
    if timeout > MAX_TIMEOUT {
        return Err(BuildError::new(format!("a {name} of {timeout:?} is too long; the most is one hour")));
    }
    Ok(())
}

/// The default limit of one attempt to connect.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Small enough that adding it to a moment does not overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);
