//! The real engine in a simulated world; see `lock_tests::sim` for what is simulated and how to replay a schedule.

mod node;

use std::{
    ops::Range,
    time::{Instant, SystemTime},
};

use lock_tests::{
    Dice,
    sim::{self, Report, Store},
};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// The seeds to try: one to replay, or as many as are asked for. Each run begins elsewhere, unless it is told where.
fn seeds() -> Range<u64> {
    match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let base = number("SIM_BASE").unwrap_or_else(|| {
                let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                Dice::seeded(u64::from(since.subsec_nanos()) ^ since.as_secs()).below(1_000_000_000_000)
            });
            base..base + number("SIM_SEEDS").unwrap_or(2_000)
        }
    }
}

/// What to say of a schedule that breaks a rule: how to repeat it, its last events, and the rules.
fn tell(report: &Report) -> String {
    let again = sim::run_on(report.store, report.seed, None, true);
    let lines = usize::try_from(number("SIM_LINES").unwrap_or(60)).unwrap_or(usize::MAX);
    let last = &again.log[again.log.len().saturating_sub(lines)..];
    let rules: Vec<_> = report.breaches.iter().map(|(rule, message)| format!("{rule}: {message}")).collect();
    format!(
        "the schedule of seed {0} on a store {3:?} breaks a rule; SIM_SEED={0} repeats it, SIM_LINES=n shows more of it\n{1}\n\n{2}",
        report.seed,
        last.join("\n"),
        rules.join("\n"),
        report.store,
    )
}

#[test]
fn every_schedule_keeps_every_rule() {
    all_keep_every_rule(Store::Single, seeds());
}

#[test]
fn every_schedule_of_a_quorum_keeps_every_rule() {
    // It has the messages of three.
    all_keep_every_rule(Store::Quorum, one_in(4, seeds()));
}

#[test]
fn every_schedule_of_failovers_keeps_every_rule() {
    all_keep_every_rule(Store::Replicated, one_in(10, seeds()));
}

#[test]
fn every_schedule_of_slots_that_move_keeps_every_rule() {
    all_keep_every_rule(Store::Slots, one_in(10, seeds()));
}

#[test]
fn every_schedule_of_modes_keeps_every_rule() {
    all_keep_every_rule(Store::Modes, one_in(4, seeds()));
}

#[test]
fn every_schedule_of_modes_of_a_quorum_keeps_every_rule() {
    all_keep_every_rule(Store::ModesOfQuorum, one_in(20, seeds()));
}

/// One of so many seeds, and one at least.
fn one_in(many: u64, seeds: Range<u64>) -> Range<u64> {
    seeds.start..seeds.end.min(seeds.start + (seeds.end - seeds.start).div_ceil(many))
}

fn all_keep_every_rule(store: Store, seeds: Range<u64>) {
    let start = Instant::now();
    let (base, count) = (seeds.start, seeds.end - seeds.start);
    let (mut acquired, mut events, mut failed) = (0, 0, Vec::new());
    for seed in seeds {
        let report = sim::run_on(store, seed, None, false);
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
        panic!("{} of {count} schedules from {base} break a rule; {}", failed.len(), tell(first));
    }
}

#[test]
fn one_seed_is_one_run_to_the_byte() {
    for seed in 0..20 {
        let (one, two) = (sim::run(seed, None, true), sim::run(seed, None, true));
        assert!(one.log.len() > 20, "seed {seed} does something");
        assert_eq!(one.log, two.log, "seed {seed}");
    }
}
