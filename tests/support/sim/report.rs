//! What became of a schedule, and how to say so.

use super::{plan::Store, run_on};

/// What became of one schedule.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Where its leases were kept.
    pub store: Store,
    /// The seed, which makes the same schedule again.
    pub seed: u64,
    /// What was breached: the rule, and how.
    pub breaches: Vec<(String, String)>,
    /// What happened, in order; only where that was asked for.
    pub log: Vec<String>,
    /// How many leases were acquired.
    pub acquired: usize,
    /// How many events the history has.
    pub events: usize,
}

impl Report {
    /// Says of a schedule that breaks a rule how to repeat it, its last events, and the rules. Runs it once more.
    pub fn tell(&self, lines: usize) -> String {
        let again = run_on(self.store, self.seed, true);
        let last = &again.log[again.log.len().saturating_sub(lines)..];
        let rules: Vec<_> = self.breaches.iter().map(|(rule, message)| format!("{rule}: {message}")).collect();
        format!(
            "the schedule of seed {0} on a store {3:?} breaks a rule; SIM_SEED={0} repeats it, SIM_LINES=n shows more of it\n{1}\n\n{2}",
            self.seed,
            last.join("\n"),
            rules.join("\n"),
            self.store,
        )
    }
}
