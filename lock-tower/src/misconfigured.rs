//! Options with which a layer can never work.

use std::{error::Error, fmt, panic::Location};

/// A [`LockLayer`](crate::LockLayer) has options with which no request could ever be served; see
/// [`LockLayer::check_for`](crate::LockLayer::check_for).
///
/// The message names the layer, the place in the code where it was made, and the option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misconfigured {
    /// The name of the layer, or nothing.
    pub(crate) name: &'static str,
    pub(crate) made_at: &'static Location<'static>,
    pub(crate) problem: String,
}

impl fmt::Display for Misconfigured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, made_at, problem } = self;
        f.write_str("the lock layer ")?;
        if !name.is_empty() {
            write!(f, "{name:?} ")?;
        }
        write!(f, "made at {made_at} cannot work: {problem}")
    }
}

impl Error for Misconfigured {}
