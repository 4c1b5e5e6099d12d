//! How many requests may wait.

use std::{
    collections::{HashMap, hash_map::Entry},
    error::Error,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts the requests that wait; shared by all clones of a layer.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    waiting: Mutex<Waiting>,
}

/// Above these, requests are refused.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) in_all: Option<usize>,
    pub(crate) per_key: Option<usize>,
}

#[derive(Debug, Default)]
struct Waiting {
    in_all: usize,
    /// Those of each key that has any.
    of_key: HashMap<Arc<str>, usize>,
}

impl Admission {
    /// Gives a place to a request that waits, unless too many wait. Without a limit, nothing is counted.
    pub(crate) fn admit(self: &Arc<Self>, limits: Limits, key: &str) -> Result<Option<Place>, Overloaded> {
        if limits.in_all.is_none() && limits.per_key.is_none() {
            return Ok(None);
        }
        let mut waiting = self.lock();
        if limits.in_all.is_some_and(|most| waiting.in_all >= most) {
            return Err(Overloaded(()));
        }
        let key: Arc<str> = key.into();
        let of_key = waiting.of_key.get(&key).copied().unwrap_or(0);
        if limits.per_key.is_some_and(|most| of_key >= most) {
            return Err(Overloaded(()));
        }
        waiting.in_all += 1;
        waiting.of_key.insert(Arc::clone(&key), of_key + 1);
        Ok(Some(Place { admission: Arc::clone(self), key }))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those that wait; given up on drop.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    key: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.admission.lock();
        waiting.in_all -= 1;
        if let Entry::Occupied(mut entry) = waiting.of_key.entry(Arc::clone(&self.key)) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

/// More requests wait for locks than the layer allows; see
/// [`LockLayer::max_waiters`](crate::LockLayer::max_waiters).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded(());

impl fmt::Display for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many requests wait for locks; try again later, or raise the limit of the layer")
    }
}

impl Error for Overloaded {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_counts_for_itself_and_places_come_back() {
        let admission = Arc::new(Admission::default());
        let limits = Limits { in_all: Some(3), per_key: Some(2) };
        let first = admission.admit(limits, "a").unwrap();
        let _second = admission.admit(limits, "a").unwrap();
        assert!(admission.admit(limits, "a").is_err(), "two of a key");
        let _third = admission.admit(limits, "b").unwrap();
        assert!(admission.admit(limits, "c").is_err(), "three in all");
        drop(first);
        let fourth = admission.admit(limits, "a").unwrap();
        drop((fourth, _second, _third));
        assert!(admission.lock().of_key.is_empty());
        assert_eq!(admission.lock().in_all, 0);
    }

    #[test]
    fn nothing_is_counted_without_a_limit() {
        let admission = Arc::new(Admission::default());
        assert!(admission.admit(Limits::default(), "a").unwrap().is_none());
    }
}
