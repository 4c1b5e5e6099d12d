//! The keys that the present task holds in scoped forms, so that it does not wait for itself.

use std::{panic::Location, sync::Arc};

use smallvec::SmallVec;

use crate::{
    backend::BusyReason,
    engine::{Engine, hold::Hold},
    error::{ACQUIRE, Error},
    key::LockKey,
    mode::Mode,
};

tokio::task_local! {
    static HELD: Arc<Held>;
}

/// The keys that the present task holds in scoped forms, the innermost first.
pub(super) struct Held {
    manager: Option<usize>,
    holds: SmallVec<[Arc<Hold>; 1]>,
    outer: Option<Arc<Self>>,
}

impl Held {
    /// Adds the holds of a manager to what the present task holds.
    pub(super) fn enter<'a>(manager: Option<usize>, holds: impl Iterator<Item = &'a Arc<Hold>>) -> Arc<Self> {
        Arc::new(Self { manager, holds: holds.map(Arc::clone).collect(), outer: HELD.try_with(Arc::clone).ok() })
    }

    /// Whether it was made where it is polled now. A future may move into the scope of another, or out of it.
    pub(super) fn is_of_this_task(&self) -> bool {
        HELD.try_with(Arc::as_ptr).ok() == self.outer.as_ref().map(Arc::as_ptr)
    }

    /// Polls the work while the task holds these keys.
    pub(super) fn around<R>(self: &Arc<Self>, polls: impl FnOnce() -> R) -> R {
        HELD.sync_scope(Arc::clone(self), polls)
    }

    fn find(&self, manager: usize, key: &LockKey) -> Option<&Hold> {
        let is_it = |hold: &&Arc<Hold>| self.manager == Some(manager) && hold.key == *key && hold.check().is_ok();
        let found = self.holds.iter().find(is_it);
        match found {
            Some(hold) => Some(hold),
            None => self.outer.as_ref().and_then(|outer| outer.find(manager, key)),
        }
    }
}

/// Refuses a key that the present task holds in a scoped form: a request that waits would wait for itself, and one that
/// tries finds the key busy, unless others may hold it as well. A lease that is lost is not held.
pub(crate) fn refuse(
    engine: &Engine,
    key: &LockKey,
    mode: Mode,
    here: &Location<'_>,
    tries: bool,
) -> Result<(), Error> {
    match HELD.try_with(Arc::clone).ok().as_ref().and_then(|held| held.find(engine.id(), key)) {
        Some(hold) if tries && !mode.is_exclusive() && !hold.mode.is_exclusive() => Ok(()),
        Some(hold) if tries => {
            let busy = Error::busy(ACQUIRE, key, BusyReason::Holder, hold.mode);
            Err(busy.free_in(Some(hold.remaining())).held_since(Some(hold.since)))
        }
        Some(hold) => Err(Error::would_deadlock(key, [hold.mode, mode], here, hold.since)),
        None => Ok(()),
    }
}
