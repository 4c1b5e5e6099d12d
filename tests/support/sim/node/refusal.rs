//! What a node refuses to write.

use lock_core::backend::BackendError;

/// What a node refuses to write at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sim) enum Refuses {
    #[default]
    Nothing,
    /// It is out of memory: SET, XADD and HSET are refused; DEL, HDEL and PEXPIRE are not. (Redis lets a script go on
    /// with everything once it has written something; here all of them are refused, which leaves more undone.)
    Memory,
    /// It is a replica, and refuses every write.
    Writes,
    /// The counter of fencing tokens cannot be written, as when something else stands there.
    Numbers,
}

impl Refuses {
    /// Whether it takes a write that may need memory.
    pub(super) fn more(self) -> Result<(), BackendError> {
        match self {
            Self::Nothing | Self::Numbers => Ok(()),
            Self::Memory => Err(BackendError::unavailable("it is out of memory")),
            Self::Writes => Err(read_only()),
        }
    }

    /// Whether it takes a write that needs none.
    pub(super) fn less(self) -> Result<(), BackendError> {
        if self == Self::Writes { Err(read_only()) } else { Ok(()) }
    }

    /// Whether it draws a fencing token.
    pub(super) fn number(self) -> Result<(), BackendError> {
        match self {
            Self::Numbers => Err(BackendError::unavailable("it does not count")),
            _ => self.more(),
        }
    }
}

fn read_only() -> BackendError {
    BackendError::unavailable("it is a read-only replica")
}
