//! The options of a request, beside the setters that [`LeaseOptions`] has, too.

use std::{panic::Location, time::Duration};

use super::LockRequest;
#[cfg(doc)]
use crate::ErrorKind;
use crate::{end::OnLost, options::LeaseOptions};

impl<K> LockRequest<K> {
    /// Sets the options that are set in `options`; all others stay as they are.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::{LeaseOptions, LockManager};
    /// use std::time::Duration;
    ///
    /// let careful = LeaseOptions::new().ttl(Duration::from_secs(3)).max_hold(Duration::from_secs(60));
    /// let manager = LockManager::in_memory();
    /// manager.lock("goods:1").options(careful).run(async |_| println!("sold")).await?;
    /// # Ok(()) }
    /// ```
    pub fn options(mut self, options: LeaseOptions) -> Self {
        self.options = options.or(self.options);
        self
    }

    /// Sets the label `lock` in metrics. Default: empty; the attribute sets its template, the layer its name.
    ///
    /// Use a template such as `goods:<id>`, never the key: one label per key would be unbounded.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
    /// use lock_core::LockManager;
    ///
    /// let manager = LockManager::in_memory();
    /// let guard = manager.lock("goods:7").label("goods:<id>").await?;
    /// # guard.release().await }
    /// ```
    pub fn label(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    /// Returns whether the request tries only once: its wait is zero.
    #[must_use]
    pub fn tries_once(&self) -> bool {
        self.options.patience().is_zero()
    }

    /// Makes the request one of a layer that was made at `place`, which [`ErrorKind::WouldDeadlock`] names. Caps the lease
    /// at `most`, unless `max_hold` is set or a loss does not cancel the work.
    #[doc(hidden)]
    pub fn of_layer(mut self, place: &'static Location<'static>, most: Option<Duration>) -> Self {
        if self.options.on_lost.unwrap_or_default() == OnLost::Cancel {
            self.options.max_hold = self.options.max_hold.or(most);
        }
        Self { since: place, ..self }
    }
}
