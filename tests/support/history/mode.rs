//! In which mode a lease is asked for.

use lock_core::LockRequest;
use serde::{Deserialize, Serialize};

/// The mode of a lease: `shared`, or `{"permits":{"total":3,"take":1}}`; left out if it is exclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Nobody else holds the key.
    #[default]
    Exclusive,
    /// Any number hold it.
    Shared,
    /// So many of `total` are taken.
    Permits {
        /// How many there are.
        total: u32,
        /// How many of them the lease takes.
        take: u32,
    },
}

impl Mode {
    pub(super) fn is_exclusive(&self) -> bool {
        *self == Self::Exclusive
    }

    /// Whether leases in the two modes may be valid at once, if there are permits enough.
    pub fn goes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Permits { total, .. }, Self::Permits { total: others, .. }) => total == others,
            _ => self == Self::Shared && other == Self::Shared,
        }
    }

    /// Whether both are exclusive, shared, or of one total.
    pub(super) fn is_of_kind(self, other: Self) -> bool {
        self == other || self.goes_with(other)
    }

    /// How many permits it takes of how many, if it takes any.
    pub(super) fn permits(self) -> Option<(u32, u32)> {
        match self {
            Self::Permits { total, take } => Some((take, total)),
            _ => None,
        }
    }

    /// Asks for the key in this mode.
    pub(crate) fn ask(self, request: LockRequest) -> LockRequest {
        match self {
            Self::Exclusive => request,
            Self::Shared => request.shared(),
            Self::Permits { total, take } => request.permits(total).take(take),
        }
    }
}
