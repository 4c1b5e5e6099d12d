//! How many requests may wait.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
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
    /// Gives a place to a request that waits, unless too many wait. It counts for each of its keys. Without a limit, nothing is
    /// counted.
    pub(crate) fn admit(self: &Arc<Self>, limits: Limits, keys: &[String]) -> Result<Option<Place>, Overloaded> {
        if limits.in_all.is_none() && limits.per_key.is_none() {
            return Ok(None);
        }
        let mut waiting = self.lock();
        if limits.in_all.is_some_and(|most| waiting.in_all >= most) {
            return Err(Overloaded(()));
        }
        let are_many = |key: &String| {
            let of_key = waiting.of_key.get(&**key).copied().unwrap_or(0);
            limits.per_key.is_some_and(|most| of_key >= most)
        };
        if keys.iter().any(are_many) {
            return Err(Overloaded(()));
        }
        waiting.in_all += 1;
        // A key that was named twice counts once.
        let keys: BTreeSet<Arc<str>> = keys.iter().map(|key| key.as_str().into()).collect();
        for key in &keys {
            *waiting.of_key.entry(Arc::clone(key)).or_default() += 1;
        }
        Ok(Some(Place { admission: Arc::clone(self), keys }))
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among those that wait; given up on drop.
#[derive(Debug)]
pub(crate) struct Place {
    admission: Arc<Admission>,
    keys: BTreeSet<Arc<str>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.admission.lock();
        waiting.in_all -= 1;
        for key in &self.keys {
            if let Entry::Occupied(mut entry) = waiting.of_key.entry(Arc::clone(key)) {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                }
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

    fn keys<const N: usize>(keys: [&str; N]) -> [String; N] {
        keys.map(str::to_owned)
    }

    #[test]
    fn each_limit_counts_for_itself_and_places_come_back() {
        let admission = Arc::new(Admission::default());
        let limits = Limits { in_all: Some(3), per_key: Some(2) };
        let first = admission.admit(limits, &keys(["a"])).unwrap();
        let _second = admission.admit(limits, &keys(["a"])).unwrap();
        assert!(admission.admit(limits, &keys(["a"])).is_err(), "two of a key");
        let _third = admission.admit(limits, &keys(["b"])).unwrap();
        assert!(admission.admit(limits, &keys(["c"])).is_err(), "three in all");
        drop(first);
        let fourth = admission.admit(limits, &keys(["a"])).unwrap();
        drop(_third);
        let both = keys(["a", "b", "b"]);
        assert!(admission.admit(limits, &both).is_err(), "two of the first key");
        drop(fourth);
        let both = admission.admit(limits, &both).unwrap();
        assert_eq!(admission.lock().of_key["b"], 1, "it was named twice");
        assert_eq!(admission.lock().in_all, 2);
        drop((both, _second));
        assert!(admission.lock().of_key.is_empty());
        assert_eq!(admission.lock().in_all, 0);
    }

    #[test]
    fn nothing_is_counted_without_a_limit() {
        let admission = Arc::new(Admission::default());
        assert!(admission.admit(Limits::default(), &keys(["a"])).unwrap().is_none());
    }
}
