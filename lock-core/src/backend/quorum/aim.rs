//! The number that the nodes of a quorum are asked to begin with when they give out fencing tokens, so that most of
//! them answer the same; pure.

use std::time::Duration;

use crate::{
    backend::{Batch, Operation, store::micros},
    clock::Moment,
};

/// An estimate of what the clock of the fastest node shows.
///
/// It is made of the nodes' clocks and never of their counters, which an aim may have raised: else it would raise itself.
/// The estimate sinks a little all the time, more than clocks drift apart, so that it follows a clock that was set back.
#[derive(Debug, Default)]
pub(super) struct Aim {
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    /// How far that clock was ahead of the own one, in µs, plus the way of a request.
    ahead: u64,
    /// When it was.
    since: Moment,
}

impl Aim {
    /// The aim of a request that is sent `now`; 1 if nothing is known yet.
    pub(super) fn at(&self, now: Moment) -> u64 {
        let Some(Known { ahead, since }) = self.known else { return 1 };
        let sunk = now.since(since) / SINKS_BY_ONE_IN;
        micros(now.since_origin()).saturating_add(ahead).saturating_sub(micros(sunk)).max(1)
    }

    /// Names the number in a batch that draws fencing tokens, before any node is asked: if each were asked for another one, they
    /// would not answer the same.
    pub(super) fn set(&self, batch: &mut Batch, now: Moment) {
        let aim = self.at(now);
        for operation in batch {
            match operation {
                Operation::Acquire(acquire) => acquire.aim = aim,
                Operation::Renew(renew) if renew.block > 0 => renew.aim = aim,
                _ => {}
            }
        }
    }

    /// Records what a node's clock showed, in µs, while it executed a request that was sent at `sent` and answered
    /// `now`.
    pub(super) fn showed(&mut self, time: u64, sent: Moment, now: Moment) {
        // The next request may take as long on its way. But one slow answer must not have the tokens lead the clocks far.
        let counted_from = sent.max(now - LONGEST_WAY);
        let ahead = time.saturating_sub(micros(counted_from.since_origin()));
        let aim = micros(now.since_origin()).saturating_add(ahead);
        if aim > self.at(now) {
            self.known = Some(Known { ahead, since: now });
        }
    }
}

/// 200 parts in a million: a bad clock drifts by 100.
const SINKS_BY_ONE_IN: u32 = 5_000;

/// By how much an aim leads the clocks at most.
const LONGEST_WAY: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Moment {
        Moment::from_origin(Duration::from_micros(us))
    }

    #[test]
    fn the_aim_follows_the_fastest_clock_and_goes_on_with_the_own() {
        let mut aim = Aim::default();
        assert_eq!(aim.at(at(5)), 1, "nothing is known");
        aim.showed(1_000_200, at(10_100), at(10_300));
        aim.showed(1_000_100, at(10_100), at(10_300));
        assert_eq!(aim.at(at(10_300)), 1_000_400, "as late as a request may be executed");
        assert_eq!(aim.at(at(14_300)), 1_004_400);
    }

    #[test]
    fn the_aim_leads_no_clock_by_more_than_two_milliseconds_however_often_it_is_learned() {
        let mut aim = Aim::default();
        // A node whose clock is ahead by a second; ways of up to 30 ms.
        for round in 0..10_000_u64 {
            let (sent, way) = (1_000_000 + round * 700, 100 + round * 7_919 % 30_000);
            aim.showed(sent + way / 2 + 1_000_000, at(sent), at(sent + way));
            let now = sent + way;
            assert!(aim.at(at(now)) <= now + 1_000_000 + 2_000, "round {round}");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_followed() {
        let mut aim = Aim::default();
        aim.showed(2_000_000, at(0), at(100));
        aim.showed(1_000_000, at(0), at(100));
        assert!(aim.at(at(100)) > 2_000_000);
        assert!(aim.at(at(10_000_000)) < 12_000_000, "2 ms less after 10 s");
    }
}
