//! Options with which a layer can never work.

use std::{error::Error, fmt, panic::Location};

use tokio::runtime::Handle;

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

impl Misconfigured {
    /// The error of a layer that works in tasks, outside a runtime. Returns `None` inside one.
    pub(crate) fn outside_runtime(name: &'static str, made_at: &'static Location<'static>) -> Option<Self> {
        let problem = "its requests are polled outside a tokio runtime, which has to run the handlers";
        Handle::try_current().err().map(|_| Self { name, made_at, problem: problem.to_owned() })
    }
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
