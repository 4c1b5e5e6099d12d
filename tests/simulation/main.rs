//! The real engine in a simulated world; see `lock_tests::sim` for what is simulated and how to replay a schedule.
//!
//! The same schedules each time: two runs of one commit give one answer. `tests/simulation/search.rs` looks for others.

mod held;
mod memory;
mod node;
mod variables;

use std::{ops::Range, time::Instant};

use lock_tests::sim::{self, Store};

use self::variables::{lines, number};

/// The first seed of all runs. Any would do.
const BASE: u64 = 20_261_124_000;
/// How many schedules of one node are tried; of other stores a part of them, as they cost more, or differ less from it. Without
/// optimisation one takes 85 ms. `.ci/nightly` tries twenty times as many.
const SCHEDULES: u64 = 160;

/// The seeds to try: one to replay, or as many as are asked for, or else `count` from `base` on.
fn seeds(base: u64, count: u64) -> Range<u64> {
    match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let base = number("SIM_BASE").unwrap_or(base);
            base..base + number("SIM_SEEDS").unwrap_or(count)
        }
    }
}

/// Tests of the schedules of a store, each of which tries a part of them, so that threads share them evenly.
macro_rules! every_schedule {
    ($(#[$why:meta])* $name:ident, $store:expr, one in $one_in:literal, $($part:ident $number:literal),+ of $parts:literal) => {
        $(#[$why])*
        mod $name {
            use super::*;

            $(
                #[test]
                fn $part() {
                    all_keep_every_rule($store, part($number, $parts, one_in($one_in, seeds(BASE, SCHEDULES))));
                }
            )+
        }
    };
}

every_schedule!(every_schedule_keeps_every_rule, Store::Single, one in 1, first 1, second 2, third 3, fourth 4 of 4);
every_schedule!(
    /// It has the messages of three.
    every_schedule_of_a_quorum_keeps_every_rule, Store::Quorum, one in 4, first 1, second 2, third 3, fourth 4 of 4
);
every_schedule!(every_schedule_of_failovers_keeps_every_rule, Store::Replicated, one in 4, whole 1 of 1);
every_schedule!(every_schedule_of_slots_that_move_keeps_every_rule, Store::Slots, one in 4, whole 1 of 1);
every_schedule!(every_schedule_of_modes_keeps_every_rule, Store::Modes, one in 2, first 1, second 2, third 3 of 3);
every_schedule!(
    every_schedule_of_modes_of_a_quorum_keeps_every_rule, Store::ModesOfQuorum, one in 8, first 1, second 2 of 2
);

/// One of so many seeds, and one at least.
fn one_in(many: u64, seeds: Range<u64>) -> Range<u64> {
    seeds.start..seeds.end.min(seeds.start + (seeds.end - seeds.start).div_ceil(many))
}

/// One part of several, counted from 1. A single seed is in the last.
fn part(number: u64, parts: u64, seeds: Range<u64>) -> Range<u64> {
    let bound = |number| seeds.start + (seeds.end - seeds.start) * number / parts;
    bound(number - 1)..bound(number)
}

fn all_keep_every_rule(store: Store, seeds: Range<u64>) {
    let start = Instant::now();
    let (base, count) = (seeds.start, seeds.end - seeds.start);
    let (mut acquired, mut events, mut failed) = (0, 0, Vec::new());
    for seed in seeds {
        let report = sim::run_on(store, seed, false);
        acquired += report.acquired;
        events += report.events;
        if !report.breaches.is_empty() {
            println!("seed {seed}: {}", report.breaches[0].0);
            failed.push(report);
        }
    }
    let took = start.elapsed();
    println!("{count} schedules from {base} on a store {store:?} in {took:?}: {acquired} leases, {events} events");
    if let Some(first) = failed.first() {
        panic!("{} of {count} schedules from {base} break a rule; {}", failed.len(), first.tell(lines()));
    }
}

#[test]
fn parts_are_all_of_the_seeds() {
    for (seeds, parts) in [(7..107, 4), (7..8, 4), (7..7, 2), (7..10, 1)] {
        let all: Vec<_> = (1..=parts).flat_map(|number| part(number, parts, seeds.clone())).collect();
        assert_eq!(all, seeds.collect::<Vec<_>>());
    }
}

#[test]
fn one_seed_is_one_run_to_the_byte() {
    for (store, seed) in Store::ALL.into_iter().flat_map(|store| (0..3).map(move |seed| (store, seed))) {
        let (one, two) = (sim::run_on(store, seed, true), sim::run_on(store, seed, true));
        assert!(one.log.len() > 20, "seed {seed} of {store:?} does something");
        assert_eq!(one.log, two.log, "seed {seed} of {store:?}");
    }
}
