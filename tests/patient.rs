//! Managers whose requests may take long: on a busy machine a server may be silent for longer than the default limit, which is a
//! second, and no test whose subject is not the limit may fail of that.

use std::time::Duration;

use lock_core::{BuildError, LeaseOptions, LockManager, LockManagerBuilder};

/// The limit of their requests.
const LIMIT: Duration = Duration::from_secs(15);

pub(crate) fn builder() -> LockManagerBuilder {
    LockManager::builder().command_timeout(LIMIT).defaults(LeaseOptions::new().ttl(LIMIT))
}

pub(crate) async fn connect(url: impl Into<String>) -> Result<LockManager, BuildError> {
    builder().url(url).connect().await
}
