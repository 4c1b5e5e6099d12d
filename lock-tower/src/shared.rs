use std::{
    error::Error,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use lock_core::__log::Flood;

use crate::{admission::Admission, misconfigured::Misconfigured};

/// State that all clones of a layer and all its services share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) admission: Arc<Admission>,
    /// Requests that went through without a lock because the backend did not answer.
    pub(crate) let_through: AtomicU64,
    /// Limits the log to one line a second about them.
    told: Flood,
    /// What was logged last of a layer that can never work. A router may put its layer around a service for each connection.
    problem: Mutex<Option<String>>,
}

impl Shared {
    /// Logs that a layer can never work, unless the same was logged before.
    pub(crate) fn can_never_work(&self, error: &Misconfigured) {
        let problem = error.to_string();
        let mut last = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() == Some(&problem) {
            return;
        }
        *last = Some(problem);
        drop(last); // before a writer of the log runs, which may use the layer
        tracing::error!(%error, "every request will be refused");
    }

    /// Counts a request that goes through without its lock, and logs that at most once a second.
    pub(crate) fn let_through(&self, error: &lock_core::Error, name: &'static str) {
        self.let_through.fetch_add(1, Relaxed);
        warn(&self.told, error, name, "a request goes through without its lock");
    }
}

/// Logs a failure, which many requests may meet at once, at most once a second.
pub(crate) fn warn(told: &Flood, error: &(dyn Error + 'static), name: &'static str, what: &str) {
    let lock = shown(name);
    match told.line() {
        Some(others) => tracing::warn!(%error, lock, others = (others > 0).then_some(others), "{what}"),
        None => tracing::debug!(%error, lock, "{what}"),
    }
}

/// The name of a layer in the log, if it has one.
pub(crate) fn shown(name: &'static str) -> Option<&'static str> {
    (!name.is_empty()).then_some(name)
}
