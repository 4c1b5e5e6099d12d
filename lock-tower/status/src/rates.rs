//! How much this process did in the last minute; pure.
//!
//! The counters of a manager only grow. They are sampled with each look at the keys, so nothing runs while nobody asks, and a rate is
//! what a counter has grown by since a sample of about a minute ago. The first look has no such sample, and no rates.

use std::{collections::VecDeque, time::Duration};

use lock_core::Health;
use tokio::time::Instant;

/// The counters of a manager at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub(super) acquired: u64,
    pub(super) busy: u64,
    pub(super) lost: u64,
}

impl Counters {
    pub(super) fn of(health: &Health) -> Self {
        let lost = health.losses().iter().map(|(_, number)| number).sum();
        Self { acquired: health.acquired(), busy: health.busy(), lost }
    }
}

/// What the counters grew by, and in which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) span: Duration,
    pub(super) grown: Counters,
}

/// The samples of the last two minutes, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Samples(VecDeque<(Instant, Counters)>);

impl Samples {
    /// Takes a sample. Returns the rates since the one that is nearest to a minute ago: the newest that is a minute old, else the oldest.
    pub(super) fn take(&mut self, now: Instant, counters: Counters) -> Option<Rates> {
        let ages = |at: Instant| now.duration_since(at);
        while self.0.front().is_some_and(|(at, _)| ages(*at) > MINUTE * 2)
            || self.0.get(1).is_some_and(|(at, _)| ages(*at) >= MINUTE)
        {
            self.0.pop_front();
        }
        let rates = self.0.front().map(|(at, before)| Rates {
            span: ages(*at),
            grown: Counters {
                acquired: counters.acquired.saturating_sub(before.acquired),
                busy: counters.busy.saturating_sub(before.busy),
                lost: counters.lost.saturating_sub(before.lost),
            },
        });
        self.0.push_back((now, counters));
        rates
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_since_the_sample_that_is_nearest_to_a_minute_ago() {
        let (begin, mut samples) = (Instant::now(), Samples::default());
        let mut take = |second: u64, acquired| {
            let counters = Counters { acquired, busy: acquired / 2, lost: 0 };
            let rates = samples.take(begin + Duration::from_secs(second), counters);
            rates.map(|rates| (rates.span.as_secs(), rates.grown.acquired, rates.grown.busy))
        };
        assert_eq!(take(0, 100), None, "nothing is known of the time before");
        assert_eq!(take(5, 110), Some((5, 10, 5)));
        assert_eq!(take(58, 120), Some((58, 20, 10)));
        assert_eq!(take(61, 130), Some((61, 30, 15)));
        assert_eq!(take(66, 140), Some((61, 30, 15)), "the one of second 5 is a minute old now");
        assert_eq!(take(150, 200), Some((84, 60, 30)), "the one of second 66, since no younger one is a minute old");
        assert_eq!(take(300, 900), None, "a sample of long ago says nothing about the last minute");
        assert_eq!(take(301, 902), Some((1, 2, 1)));
    }
}
