//! Timers in the order in which they fire, at a resolution of one millisecond; pure.
//!
//! Timers are named by small numbers of the owner's (slab indexes).

use std::collections::BTreeSet;

use crate::clock::Moment;

#[derive(Debug, Default)]
pub(crate) struct Wheel {
    set: BTreeSet<(Moment, usize)>,
    /// When each timer fires, by its number, or did when it was last set.
    positions: Vec<Moment>,
}

/// In nanoseconds.
const TICK: u64 = 1_000_000;

impl Wheel {
    /// Sets a timer, or moves it if it was set before. It fires at the first tick that is not before `at`.
    pub(crate) fn set(&mut self, timer: usize, at: Moment) {
        self.unset(timer);
        let at = Moment::from_nanoseconds(at.nanoseconds().div_ceil(TICK).saturating_mul(TICK));
        if timer >= self.positions.len() {
            self.positions.resize(timer + 1, Moment::NEVER);
        }
        self.positions[timer] = at;
        self.set.insert((at, timer));
    }

    /// Takes a timer out; it may not be set.
    pub(crate) fn unset(&mut self, timer: usize) {
        if let Some(at) = self.positions.get(timer) {
            self.set.remove(&(*at, timer));
        }
    }

    /// Takes every timer out that is due `now`, in the order of ticks, and of numbers within a tick.
    pub(crate) fn advance(&mut self, now: Moment) -> Vec<usize> {
        let mut due = Vec::new();
        while let Some((at, timer)) = self.set.first().copied()
            && at <= now
        {
            self.set.pop_first();
            due.push(timer);
        }
        due
    }

    /// When the next timer fires.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.set.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn fired(wheel: &mut Wheel, now: Moment) -> Vec<usize> {
        let mut timers = wheel.advance(now);
        timers.sort_unstable();
        timers
    }

    #[test]
    fn a_timer_fires_at_its_tick_and_not_before() {
        let mut wheel = Wheel::default();
        wheel.set(0, Moment::from_origin(Duration::from_micros(4_999_500)));
        assert!(fired(&mut wheel, at(4_999)).is_empty());
        assert_eq!(fired(&mut wheel, at(5_000)), [0]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_timer_that_was_taken_out_or_set_anew_fires_only_where_it_stands() {
        let mut wheel = Wheel::default();
        for timer in 0..4 {
            wheel.set(timer, at(100));
        }
        wheel.unset(1);
        wheel.set(2, at(200));
        assert_eq!(fired(&mut wheel, at(100)), [0, 3]);
        assert_eq!(fired(&mut wheel, at(200)), [2]);
    }

    #[test]
    fn timers_fire_in_the_order_of_their_ticks_and_then_of_their_numbers() {
        let mut wheel = Wheel::default();
        for (timer, ms) in [(0, 7), (3, 6), (1, 7), (2, 5)] {
            wheel.set(timer, at(ms));
        }
        assert_eq!(wheel.advance(at(8)), [2, 3, 0, 1]);
        wheel.set(4, at(1));
        assert_eq!(wheel.advance(at(8)), [4], "its moment has passed");
    }

    #[test]
    fn a_timer_for_a_moment_that_never_comes_does_not_fire() {
        let mut wheel = Wheel::default();
        wheel.set(0, Moment::NEVER);
        assert!(wheel.advance(at(1 << 40)).is_empty());
    }

    #[test]
    fn it_agrees_with_a_sorted_map_on_random_timers() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut wheel, mut model) = (Wheel::default(), BTreeMap::<usize, u64>::new());
            let mut now = random.random_range(0..10_000_000);
            wheel.advance(at(now));
            for _ in 0..200 {
                let timer = random.random_range(0..40);
                match random.random_range(0..4) {
                    0 => {
                        wheel.unset(timer);
                        model.remove(&timer);
                    }
                    1 => {
                        let reach = 1 << random.random_range(1..24);
                        now += random.random_range(0..reach);
                        let due: Vec<_> = model.iter().filter(|(_, at)| **at <= now).map(|(k, _)| *k).collect();
                        model.retain(|_, at| *at > now);
                        assert_eq!(fired(&mut wheel, at(now)), due, "seed {seed}");
                    }
                    _ => {
                        let reach = 1 << random.random_range(1..24);
                        let tick = now + random.random_range(0..reach);
                        wheel.set(timer, at(tick));
                        model.insert(timer, tick);
                    }
                }
                let earliest = model.values().min().map(|tick| at(*tick));
                assert_eq!(wheel.next(), earliest, "seed {seed}");
            }
        }
    }
}
