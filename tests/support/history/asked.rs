//! Modes as words, and requests in them.

use std::{fmt, str::FromStr};

use lock_core::LockRequest;

use super::mode::Mode;

impl Mode {
    /// Asks for the key in this mode.
    pub(crate) fn ask(self, request: LockRequest) -> LockRequest {
        match self {
            Self::Exclusive => request,
            Self::Shared => request.shared(),
            Self::Permits { total, take } => request.permits(total).take(take),
        }
    }
}

/// `exclusive`, `shared`, or `2/3` for two of three permits.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { total, take } => write!(f, "{take}/{total}"),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let permits = |text: &str| {
            let (take, total) = text.split_once('/')?;
            Some(Self::Permits { total: total.parse().ok()?, take: take.parse().ok()? })
        };
        match text {
            "exclusive" => Ok(Self::Exclusive),
            "shared" => Ok(Self::Shared),
            _ => permits(text).ok_or_else(|| format!("no such mode: {text:?}")),
        }
    }
}
