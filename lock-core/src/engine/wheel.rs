//! A hierarchical timing wheel (Varghese and Lauck, 1987); pure.
//!
//! Six levels of 64 slots at a resolution of one millisecond reach 2.1 years; what lies further ahead fires then, and
//! is set again by its owner. Setting and removing a timer cost the same however many there are. Timers are named by
//! small numbers of the owner's (slab indexes) and linked through them, so there is no allocation per timer and no
//! pointer.

use crate::clock::Moment;

#[derive(Debug)]
pub(crate) struct Wheel {
    /// The present tick: no timer in the wheel is due before it.
    elapsed: u64,
    levels: [Level; LEVELS],
    /// By timer number.
    nodes: Vec<Node>,
}

#[derive(Debug, Clone, Copy)]
struct Level {
    /// One bit per slot that has timers.
    occupied: u64,
    /// The first timer of each slot.
    heads: [u32; SLOTS],
}

#[derive(Debug, Clone, Copy)]
struct Node {
    /// The tick at which the timer fires.
    at: u64,
    previous: u32,
    next: u32,
    /// Where the timer is, or [`NONE`] when it is not set.
    level: u32,
    slot: u32,
}

/// In nanoseconds.
const TICK: u64 = 1_000_000;
const LEVELS: usize = 6;
const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const NONE: u32 = u32::MAX;
/// How far ahead a timer can be set, in ticks: all slots of the highest level but the present one.
const LONGEST: u64 = (1 << (BITS * LEVELS as u32)) - (1 << (BITS * (LEVELS as u32 - 1)));

impl Wheel {
    pub(crate) fn new() -> Self {
        Self { elapsed: 0, levels: [Level { occupied: 0, heads: [NONE; SLOTS] }; LEVELS], nodes: Vec::new() }
    }

    /// Sets a timer, or moves it if it was set before. It fires at the first tick that is not before `at`.
    pub(crate) fn set(&mut self, timer: usize, at: Moment) {
        self.unset(timer);
        // A moment that has passed counts as the present tick: its own slot lies behind, and would fire a whole turn later.
        let at = at.nanoseconds().div_ceil(TICK).clamp(self.elapsed, self.elapsed.saturating_add(LONGEST));
        if timer >= self.nodes.len() {
            self.nodes.resize(timer + 1, Node { at: 0, previous: NONE, next: NONE, level: NONE, slot: 0 });
        }
        self.nodes[timer].at = at;
        self.link(timer as u32);
    }

    /// Takes a timer out; it may not be set.
    pub(crate) fn unset(&mut self, timer: usize) {
        let Some(&Node { previous, next, level, slot, .. }) = self.nodes.get(timer) else { return };
        if level == NONE {
            return;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
        } else {
            let level = &mut self.levels[level as usize];
            level.heads[slot as usize] = next;
            if next == NONE {
                level.occupied &= !(1 << slot);
            }
        }
        self.nodes[timer].level = NONE;
    }

    /// Moves on to `now` and hands out every timer that is due, in no particular order within a tick.
    pub(crate) fn advance(&mut self, now: Moment, mut fire: impl FnMut(usize)) {
        let now = now.nanoseconds() / TICK;
        while let Some((level, slot, tick)) = self.next_slot() {
            if tick > now {
                break;
            }
            // Time moves on before the slot is spread out: `link` chooses the level by the distance to `elapsed`. With the old time the
            // timers would fall back into this slot, and the loop would not end.
            self.elapsed = self.elapsed.max(tick);
            let mut timer = self.levels[level].heads[slot];
            self.levels[level].heads[slot] = NONE;
            self.levels[level].occupied &= !(1 << slot);
            while timer != NONE {
                let next = self.nodes[timer as usize].next;
                self.nodes[timer as usize].level = NONE;
                if self.nodes[timer as usize].at <= self.elapsed {
                    fire(timer as usize);
                } else {
                    self.link(timer);
                }
                timer = next;
            }
        }
        self.elapsed = self.elapsed.max(now);
    }

    /// The next moment at which [`advance`](Self::advance) has something to do. It is never later than the next timer
    /// and may be earlier, when a slot of a higher level has to be spread out.
    pub(crate) fn next(&self) -> Option<Moment> {
        self.next_slot().map(|(_, _, tick)| Moment::from_nanoseconds(tick.saturating_mul(TICK)))
    }

    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        // The lowest level that has timers has the earliest slot: its timers differ from the present tick in lower digits only, so
        // they are due before the next slot of any higher level begins.
        (0..LEVELS).find_map(|level| {
            let occupied = self.levels[level].occupied;
            if occupied == 0 {
                return None;
            }
            let shift = BITS * level as u32;
            let present = (self.elapsed >> shift) as u32 % SLOTS as u32;
            let ahead = occupied.rotate_right(present).trailing_zeros();
            let slot = (present + ahead) as usize % SLOTS;
            let tick = ((self.elapsed >> shift) + u64::from(ahead)) << shift;
            Some((level, slot, tick.max(self.elapsed)))
        })
    }

    /// Puts a timer into the slot for its tick: the level is that of the highest digit (base 64) in which the tick
    /// differs from the present one.
    fn link(&mut self, timer: u32) {
        let at = self.nodes[timer as usize].at;
        let differing = (at ^ self.elapsed) | (SLOTS as u64 - 1);
        let level = (((u64::BITS - 1 - differing.leading_zeros()) / BITS) as usize).min(LEVELS - 1);
        let slot = (at >> (BITS * level as u32)) as usize % SLOTS;
        let head = self.levels[level].heads[slot];
        if head != NONE {
            self.nodes[head as usize].previous = timer;
        }
        self.nodes[timer as usize] = Node { at, previous: NONE, next: head, level: level as u32, slot: slot as u32 };
        self.levels[level].heads[slot] = timer;
        self.levels[level].occupied |= 1 << slot;
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
        let mut timers = Vec::new();
        wheel.advance(now, |timer| timers.push(timer));
        timers.sort_unstable();
        timers
    }

    #[test]
    fn a_timer_fires_at_its_tick_and_not_before() {
        let mut wheel = Wheel::new();
        wheel.set(0, Moment::from_origin(Duration::from_micros(4_999_500)));
        assert!(fired(&mut wheel, at(4_999)).is_empty());
        assert_eq!(fired(&mut wheel, at(5_000)), [0]);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn a_timer_that_was_taken_out_or_set_anew_fires_only_where_it_stands() {
        let mut wheel = Wheel::new();
        for timer in 0..4 {
            wheel.set(timer, at(100));
        }
        wheel.unset(1);
        wheel.set(2, at(200));
        assert_eq!(fired(&mut wheel, at(100)), [0, 3]);
        assert_eq!(fired(&mut wheel, at(200)), [2]);
    }

    #[test]
    fn a_timer_beyond_the_reach_of_the_wheel_fires_at_its_end() {
        let mut wheel = Wheel::new();
        wheel.set(0, Moment::NEVER);
        assert!(fired(&mut wheel, at(LONGEST - 1)).is_empty());
        assert_eq!(fired(&mut wheel, at(LONGEST)), [0]);
    }

    #[test]
    fn a_timer_at_the_end_of_the_reach_does_not_spin_from_any_origin() {
        for origin in [0, 1, (1 << 30) - 1, (1 << 30) + 7, (1 << 36) - 1, (1 << 36) + 12_345] {
            let mut wheel = Wheel::new();
            wheel.advance(at(origin), |_| {});
            wheel.set(0, Moment::NEVER);
            assert!(fired(&mut wheel, at(origin + 1_000)).is_empty());
            assert_eq!(fired(&mut wheel, at(origin + LONGEST)), [0], "origin {origin}");
        }
    }

    #[test]
    fn it_agrees_with_a_sorted_map_on_random_timers() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut wheel, mut model) = (Wheel::new(), BTreeMap::<usize, u64>::new());
            let mut now = random.random_range(0..10_000_000);
            wheel.advance(at(now), |_| {});
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
                assert!(wheel.next() <= earliest || earliest.is_none(), "seed {seed}");
                assert_eq!(wheel.next().is_some(), earliest.is_some(), "seed {seed}");
            }
        }
    }
}
