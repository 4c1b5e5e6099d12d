//! Keys with the mode in which each is asked for.

use crate::{
    error::{Argument, Error},
    key::LockKey,
    mode::Mode,
};

/// A key and the mode in which [`lock_all`](crate::LockManager::lock_all) asks for it: made by [`exclusive`], [`shared`] or
/// [`permits`], or from a string, which is exclusive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[must_use = "a key with its mode does nothing unless `lock_all` gets it"]
pub struct KeyInMode {
    pub(crate) key: String,
    pub(crate) mode: Mode,
}

/// Asks for a key exclusively, as a string alone does.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{LockManager, exclusive, shared};
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock_all([shared("price:1"), exclusive("goods:1")]).await?;
/// assert!(manager.lock("price:1").shared().try_acquire().await?.is_some());
/// assert!(manager.lock("goods:1").shared().try_acquire().await?.is_none());
/// # guard.release().await }
/// ```
pub fn exclusive(key: impl Into<String>) -> KeyInMode {
    KeyInMode { key: key.into(), mode: Mode::Exclusive }
}

/// Shares a key with others who do; see [`LockRequest::shared`](crate::LockRequest::shared) and [`exclusive`] for an example.
pub fn shared(key: impl Into<String>) -> KeyInMode {
    KeyInMode { key: key.into(), mode: Mode::Shared }
}

/// Takes one of `total` permits of a key; see [`LockRequest::permits`](crate::LockRequest::permits).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
/// use lock_core::{LockManager, permits, shared};
///
/// let manager = LockManager::in_memory();
/// let guard = manager.lock_all([permits("tenant:7", 3).take(2), shared("report:1")]).await?;
/// assert!(manager.lock("tenant:7").permits(3).take(2).try_acquire().await?.is_none());
/// # guard.release().await }
/// ```
pub fn permits(key: impl Into<String>, total: u32) -> KeyInMode {
    KeyInMode { key: key.into(), mode: Mode::Permits { total, take: 1 } }
}

impl KeyInMode {
    /// Takes so many of the [`permits`] of the key: at least one, and at most their total. Default: 1. Changes nothing for a key
    /// that is exclusive or shared.
    pub fn take(mut self, permits: u32) -> Self {
        if let Mode::Permits { take, .. } = &mut self.mode {
            *take = permits;
        }
        self
    }
}

impl<K: AsRef<str>> From<K> for KeyInMode {
    fn from(key: K) -> Self {
        exclusive(key.as_ref())
    }
}

/// Makes one request of those for the same key, which follow one another.
pub(crate) fn merge(keys: Vec<(LockKey, Mode)>) -> Result<Vec<(LockKey, Mode)>, Error> {
    let mut merged: Vec<(LockKey, Mode)> = Vec::with_capacity(keys.len());
    for (key, mode) in keys {
        match merged.last_mut().filter(|(last, _)| *last == key) {
            None => merged.push((key, mode)),
            Some((_, last)) if *last == mode => {}
            Some((_, last)) if !matches!((*last, mode), (Mode::Permits { .. }, _) | (_, Mode::Permits { .. })) => {
                *last = Mode::Exclusive;
            }
            Some((_, last)) => {
                let detail = format!("the key is asked for twice, as {last} and as {mode}; name it once");
                return Err(Error::invalid(Argument::Keys, "lock", detail).on(&key));
            }
        }
    }
    Ok(merged)
}
