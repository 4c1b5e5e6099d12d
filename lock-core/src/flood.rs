//! Rate-limits log lines that an outage would repeat for every request.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::error::Case;

/// Lets one line a second through, and counts the others.
#[derive(Debug, Default)]
pub struct Flood(Mutex<Option<Written>>);

/// One [`Flood`] for each case that an operator has to act on.
#[derive(Debug, Default)]
pub struct Floods([Flood; Case::COUNT]);

/// The last line.
#[derive(Debug)]
struct Written {
    at: Instant,
    /// How many have been left out since.
    others: u64,
}

impl Flood {
    /// Lets the first line through.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns how many lines were left out since the one before, if a line is to be written now.
    pub fn line(&self) -> Option<u64> {
        self.line_at(Instant::now())
    }

    fn line_at(&self, now: Instant) -> Option<u64> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Written { at, others }) = &mut *written
            && now.saturating_duration_since(*at) < SPAN
        {
            *others += 1;
            return None;
        }
        Some(written.replace(Written { at: now, others: 0 }).map_or(0, |last| last.others))
    }
}

impl Floods {
    /// Lets a line of any case through.
    #[must_use]
    pub const fn new() -> Self {
        Self([const { Flood::new() }; Case::COUNT])
    }

    /// Returns how many lines about a case were left out since the one before, if a line is to be written now. A case that clients
    /// cause, or that every busy request meets, has no lines in production.
    pub fn line(&self, case: Case) -> Option<u64> {
        if case.alarms() { self.0[case as usize].line() } else { None }
    }
}

const SPAN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_line_and_the_next_one_says_how_many_others_there_were() {
        let flood = Flood::default();
        let begin = Instant::now();
        assert_eq!(flood.line_at(begin), Some(0));
        assert_eq!(flood.line_at(begin), None);
        assert_eq!(flood.line_at(begin + SPAN - Duration::from_nanos(1)), None);
        assert_eq!(flood.line_at(begin + SPAN), Some(2));
        assert_eq!(flood.line_at(begin + SPAN), None);
        assert_eq!(flood.line_at(begin + 5 * SPAN), Some(1));
        assert_eq!(flood.line_at(begin + 6 * SPAN), Some(0));
    }
}
