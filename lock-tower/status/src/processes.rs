//! Which processes did not answer; pure.
//!
//! The store says how many processes were asked, and those that answer say their names. So a silent process has a name only if it
//! has answered an earlier look of this page.

use std::{collections::BTreeMap, time::Duration};

use lock_core::{KeyInfo, Party};
use tokio::time::Instant;

/// The processes that have answered lately, and when they did so last.
#[derive(Debug, Default)]
pub(super) struct Known(BTreeMap<Party, Instant>);

/// A process that has answered before and did not answer now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    pub(super) party: Party,
    /// How long ago its last answer was.
    pub(super) ago: Duration,
}

impl Known {
    /// Records the processes that answered a look. Returns those that answered an earlier look and not this one, the latest first. If all
    /// that were asked have answered, the list is empty: the others have ended.
    ///
    /// All keys of a look have the same answers, so the first key stands for all.
    pub(super) fn look(&mut self, keys: &[KeyInfo], now: Instant) -> Vec<Missed> {
        let Some(info) = keys.first() else { return Vec::new() };
        if info.processes().unanswered() == Some(0) {
            self.0.clear();
        }
        self.0.retain(|_, at| now.duration_since(*at) < KEPT);
        self.0.extend(info.answered_by().iter().map(|party| (party.clone(), now)));
        let missed = self.0.iter().filter(|(_, at)| **at < now);
        let mut missed: Vec<_> =
            missed.map(|(party, at)| Missed { party: party.clone(), ago: now.duration_since(*at) }).collect();
        missed.sort_by_key(|missed| missed.ago);
        missed
    }
}

/// For how long a process that does not answer is remembered. Most have ended by then.
const KEPT: Duration = Duration::from_secs(3_600);
