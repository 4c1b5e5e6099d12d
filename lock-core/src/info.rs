use std::time::Duration;

/// What [`LockManager::inspect`](crate::LockManager::inspect) saw: whether a key is held at this moment, by the backend.
///
/// It is out of date as soon as it is there: good for a status page, not for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyInfo {
    holder: Option<Holder>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    remaining: Option<Duration>,
    foreign: bool,
}

impl KeyInfo {
    pub(crate) fn free() -> Self {
        Self { holder: None }
    }

    pub(crate) fn held(remaining: Option<Duration>, foreign: bool) -> Self {
        Self { holder: Some(Holder { remaining, foreign }) }
    }

    /// Returns whether somebody holds the key.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.holder.is_some()
    }

    /// Returns the time until the key expires unless it is renewed. Returns `None` if it is free, or was locked by another
    /// library without a ttl.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.holder.and_then(|holder| holder.remaining)
    }

    /// Returns whether the holder is another library (its token does not have the form of ours).
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.holder.is_some_and(|holder| holder.foreign)
    }
}
