//! What happens while the backend does not answer.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::{LockLayer, options::OnBackendError};
use crate::shared::Shared;

impl<K, P, U> LockLayer<K, P, U> {
    /// Sets what happens to a request when the backend does not answer
    /// ([`ErrorKind::Backend`](lock_core::ErrorKind::Backend)). Default: [`OnBackendError::Refuse`].
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, OnBackendError};
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "shop").on_backend_error(OnBackendError::LetThrough);
    /// assert_eq!(layer.let_through(), 0);
    /// ```
    #[must_use]
    pub fn on_backend_error(mut self, policy: OnBackendError) -> Self {
        self.options.on_backend_error = policy;
        self
    }

    /// Returns how many requests passed without a lock because the backend did not answer, in this layer, its
    /// clones and their services; see [`on_backend_error`](Self::on_backend_error).
    ///
    /// # Examples
    ///
    /// ```
    /// use lock_core::LockManager;
    /// use lock_tower::{LockLayer, OnBackendError};
    ///
    /// let layer = LockLayer::new(LockManager::in_memory(), "shop").on_backend_error(OnBackendError::LetThrough);
    /// let watched = layer.clone(); // `layer` goes into the stack
    /// assert_eq!(watched.let_through(), 0);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn let_through(&self) -> u64 {
        self.shared.let_through.load(Relaxed)
    }

    /// Where to count what is let through, if anything is.
    pub(crate) fn lets_through(&self) -> Option<Arc<Shared>> {
        (self.options.on_backend_error == OnBackendError::LetThrough).then(|| Arc::clone(&self.shared))
    }
}
