//! How many may wait, and for how long without an answer; pure.

use std::time::Duration;

use crate::error::{ACQUIRE, Error, ErrorKind};

/// How many waiters there may be, and how long they wait for a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_key: usize,
    pub(crate) in_all: usize,
    /// The time from asking within which a request that was never answered fails.
    pub(crate) answer: Duration,
}

impl Limits {
    /// Refuses one more in a line that has so many.
    pub(super) fn per_key(self, in_line: usize) -> Result<(), Error> {
        let detail = || {
            format!(
                "{in_line} requests already wait for the key, the limit of `max_waiters_per_key`; raise it, or try again later"
            )
        };
        if in_line < self.per_key { Ok(()) } else { Err(Self::overloaded(detail())) }
    }

    /// Refuses one more where so many wait.
    pub(super) fn in_all(self, waiting: usize) -> Result<(), Error> {
        let detail =
            || format!("{waiting} requests already wait, the limit of `max_waiters`; raise it, or try again later");
        if waiting < self.in_all { Ok(()) } else { Err(Self::overloaded(detail())) }
    }

    fn overloaded(detail: String) -> Error {
        Error::new(ErrorKind::Overloaded, ACQUIRE).detail(detail)
    }
}
