//! The errors of requests for a key: how each is made of what the request met.
//!
//! Apart from [`Error`] itself, since a [`LockKey`] is refused with one.

use std::{panic::Location, time::Duration};

use super::{Error, ErrorKind, LossReason};
use crate::{
    backend::{BackendError, BusyReason},
    end::End,
    key::LockKey,
    mode::Mode,
};

sets! { Error =>
    /// Says which key the request was about.
    pub(crate) on(key: &LockKey) => inner.key = Some(key.parts());
}

impl Error {
    pub(crate) fn busy(attempt: &'static str, key: &LockKey, by: BusyReason, mode: Mode) -> Self {
        Self::new(ErrorKind::Busy, attempt).on(key).blocked(by, mode).busy_for(Duration::ZERO)
    }

    pub(crate) fn lost(attempt: &'static str, key: &LockKey, reason: LossReason) -> Self {
        Self::new(ErrorKind::Lost(reason), attempt).on(key)
    }

    /// Creates the error of a request about a lease that has ended: a loss, or `NotHeld` if its holder ended it.
    pub(crate) fn ended(attempt: &'static str, key: &LockKey, end: End) -> Self {
        match end {
            End::Lost(reason) => Self::lost(attempt, key, reason),
            End::Released | End::HandedOver => Self::new(ErrorKind::NotHeld, attempt).on(key),
        }
    }

    /// `held` is the mode in which the task has the key, `wanted` that in which it asks again.
    pub(crate) fn would_deadlock(
        key: &LockKey,
        [held, wanted]: [Mode; 2],
        here: &Location<'_>,
        since: &Location<'_>,
    ) -> Self {
        let why = match (held.is_exclusive(), wanted.is_exclusive()) {
            (true, _) => "would wait for itself; pass the lease on, or take the lock in one of the two places only",
            (false, true) => "would wait for itself; acquire it exclusively in the outer place, and pass the lease on",
            (false, false) => "may wait for others who wait for this task; pass the lease on, or only try here",
        };
        Self::new(ErrorKind::WouldDeadlock, "acquire")
            .on(key)
            .detail(format!("requested at {here}, but this task has held it since {since} and {why}"))
    }

    pub(crate) fn backend(attempt: &'static str, key: Option<&LockKey>, error: BackendError) -> Self {
        let (kind, message, source) = error.into_parts();
        let mut this = Self::new(kind, attempt).detail(message);
        this.inner.source = source;
        match key {
            Some(key) => this.on(key),
            None => this,
        }
    }
}
