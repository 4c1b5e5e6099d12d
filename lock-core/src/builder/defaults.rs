//! The defaults of requests.

use std::time::Duration;

use super::LockManagerBuilder;
use crate::{future::protected::OnLost, replicas::Replicas, request::Wait, ttl::Renewal};

impl LockManagerBuilder {
    /// Sets the default ttl of requests, for how long a silent holder blocks others: 10 ms to 100 years, in whole milliseconds.
    /// Default: 10 s. See [`LockRequest::ttl`](crate::LockRequest::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long requests wait for a busy key by default; zero means one try. Default: 10 s. See
    /// [`LockRequest::wait`](crate::LockRequest::wait).
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = Wait::Atmost(wait);
        self
    }

    /// Makes requests wait by default for as long as the key is busy. Default: 10 s. See
    /// [`LockRequest::wait_forever`](crate::LockRequest::wait_forever).
    pub fn wait_forever(mut self) -> Self {
        self.options.wait = Wait::Forever;
        self
    }

    /// Switches renewal off by default: a lease ends with its ttl unless it is extended. Default: renewed.
    pub fn fixed(mut self) -> Self {
        self.options.renewal = Renewal::Never;
        self
    }

    /// Sets the default interval of renewal: at least 10 ms, and at most half of the ttl of the request. Default: a third
    /// of the ttl.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.options.renewal = Renewal::Every(interval);
        self
    }

    /// Sets the default bound of a hold, above zero; see [`LockRequest::max_hold`](crate::LockRequest::max_hold). Default:
    /// no bound.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = Some(max_hold);
        self
    }

    /// Sets the default of the least time that a key stays busy, at most 100 years; see
    /// [`LockRequest::at_least`](crate::LockRequest::at_least). Default: zero.
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.options.at_least = at_least;
        self
    }

    /// Sets the default of what happens to scoped work when its lease is lost; see
    /// [`LockRequest::on_lost`](crate::LockRequest::on_lost). Default: [`OnLost::Cancel`].
    pub fn on_lost(mut self, policy: OnLost) -> Self {
        self.options.on_lost = policy;
        self
    }

    /// Sets the default of how many replicas must have a lease before it counts; see
    /// [`LockRequest::durability`](crate::LockRequest::durability). Default: none, the primary is enough.
    /// `memory://` ignores it.
    ///
    /// # Examples
    ///
    /// ```
    /// # fn main() -> Result<(), lock_core::BuildError> {
    /// # #[cfg(feature = "redis")] {
    /// use lock_core::{LockManager, Replicas};
    /// use std::time::Duration;
    ///
    /// let replicated = Replicas::new(1, Duration::from_millis(300));
    /// let manager = LockManager::builder().url("redis://127.0.0.1").durability(replicated).build()?;
    /// # let _ = manager; }
    /// # Ok(()) }
    /// ```
    pub fn durability(mut self, replicas: impl Into<Option<Replicas>>) -> Self {
        self.options.durability = replicas.into();
        self
    }
}
