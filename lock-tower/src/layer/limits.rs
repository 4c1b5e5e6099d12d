//! How many requests may wait.

use super::LockLayer;
use crate::admission::{Overloaded, Place};

impl<K, P, U> LockLayer<K, P, U> {
    /// Sets how many requests may wait for a lease at a time, in this layer, its clones and their
    /// services; more are refused. Default: no limit.
    ///
    /// A request counts from the call until it has its lease, even if the key is free, so leave room for requests that
    /// arrive at the same moment.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "stock").max_waiters(10_000).max_waiters_per_key(100);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.options.limits.in_all = Some(most);
        self
    }

    /// Sets how many requests of *one key* may wait for its lease at a time; more are refused. Default: no limit.
    /// [`max_waiters`](Self::max_waiters) says which requests count.
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::LockLayer;
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), |order: &u64| format!("order:{order}")).max_waiters_per_key(100);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn max_waiters_per_key(mut self, most: usize) -> Self {
        self.options.limits.per_key = Some(most);
        self
    }

    pub(crate) fn admit(&self, keys: &[String]) -> Result<Option<Place>, Overloaded> {
        self.shared.admission.admit(self.options.limits, keys)
    }
}
