//! Fixtures for the tests of the queues.

use std::{
    panic::Location,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::terms::Terms;
use crate::{
    clock::{Clock, Moment, Sleep},
    key::LockKey,
    ttl::{Renewal, Ttl},
};

/// A clock that stands still until a test sets it.
#[derive(Debug, Default)]
pub(crate) struct Manual {
    ms: AtomicU64,
}

impl Manual {
    pub(crate) fn set(&self, ms: u64) {
        self.ms.store(ms, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self, ms: u64) {
        self.ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for Manual {
    fn now(&self) -> Moment {
        at(self.ms.load(Ordering::Relaxed))
    }

    fn sleep(&self, _: Duration) -> Sleep {
        Box::pin(std::future::pending())
    }
}

pub(crate) fn at(ms: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(ms))
}

pub(crate) fn key() -> LockKey {
    LockKey::new("k").unwrap()
}

/// A lease that is renewed, and nothing else.
pub(crate) fn terms(ttl_ms: u64) -> Terms {
    let ttl = Ttl::new(Duration::from_millis(ttl_ms)).unwrap();
    let (max_hold, at_least, label) = (None, Duration::ZERO, "");
    let mode = crate::Mode::Exclusive;
    Terms { mode, ttl, renewal: Renewal::ThirdOfTtl, max_hold, at_least, since: Location::caller(), label }
}
