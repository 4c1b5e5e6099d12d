//! When a waiter tries again; pure.

use std::time::Duration;

/// The pace of one waiter: quick at first, then slower, with jitter so that waiters do not march in step.
#[derive(Debug, Default)]
pub(crate) struct Polling {
    tries: u32,
}

/// The first pause.
const FIRST: Duration = Duration::from_millis(5);
/// The longest pause between own holders.
const LONGEST: Duration = Duration::from_millis(80);
/// The longest pause while a foreign holder has the key: it neither calls nor queues.
const LONGEST_FOREIGN: Duration = Duration::from_millis(250);

impl Polling {
    /// Returns the pause after a try that found the key busy.
    ///
    /// `remaining` is what the holder's ttl has left: when it ends sooner than the pause, the waiter comes just after
    /// it. `jitter` lies in 0.0..1.0.
    pub(crate) fn pause(&mut self, remaining: Option<Duration>, foreign: bool, jitter: f64) -> Duration {
        let longest = if foreign { LONGEST_FOREIGN } else { LONGEST };
        let pause = FIRST.saturating_mul(1 << self.tries.min(6)).min(longest);
        self.tries = self.tries.saturating_add(1);
        let pause = pause.mul_f64(0.5 + jitter / 2.0);
        match remaining {
            Some(remaining) => pause.min(remaining + Duration::from_millis(1)),
            None => pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_keep_half_of_it_as_jitter() {
        let mut polling = Polling::default();
        let pauses: Vec<_> = (0..10).map(|_| polling.pause(None, false, 1.0)).collect();
        assert_eq!(pauses[0], FIRST);
        assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(pauses[9], LONGEST);
        assert_eq!(polling.pause(None, false, 0.0), LONGEST / 2);
    }

    #[test]
    fn bad_input_18_a_holder_without_ttl_is_polled_at_the_longest_pause() {
        let mut polling = Polling::default();
        let last = (0..20).map(|_| polling.pause(None, true, 1.0)).last();
        assert_eq!(last, Some(LONGEST_FOREIGN));
    }

    #[test]
    fn a_waiter_comes_just_after_the_end_of_a_ttl() {
        let mut polling = Polling { tries: 9 };
        let left = Duration::from_millis(3);
        assert_eq!(polling.pause(Some(left), false, 0.5), left + Duration::from_millis(1));
    }
}
