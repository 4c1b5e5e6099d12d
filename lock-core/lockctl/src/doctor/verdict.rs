//! What a check says: how bad it is, what was found, and what to do.

/// How bad it is, from good to bad.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Level {
    /// As it should be.
    Green,
    /// Locks work, but a fault costs more than it has to; or it could not be checked.
    Amber,
    /// Locks fail, or are lost without a fault.
    Red,
}

impl Level {
    pub(super) const ALL: [Self; 3] = [Self::Red, Self::Amber, Self::Green];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Green => "green",
            Self::Amber => "amber",
            Self::Red => "red",
        }
    }
}

/// The answer of a check about one server, or about several together.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) found: String,
    /// `None` if there is nothing to do.
    pub(super) remedy: Option<String>,
}

impl Verdict {
    pub(super) fn green(found: impl Into<String>) -> Self {
        Self { level: Level::Green, found: found.into(), remedy: None }
    }

    pub(super) fn amber(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Amber, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn red(found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Red, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// A line of the report.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) check: &'static str,
    /// The server that it is about. `None` if it is about all.
    pub(super) server: Option<String>,
    pub(super) verdict: Verdict,
}

impl Row {
    /// A line about all servers.
    pub(super) fn of_all(check: &'static str, verdict: Verdict) -> Self {
        Self { check, server: None, verdict }
    }
}
