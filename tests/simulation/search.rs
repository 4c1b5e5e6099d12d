//! A search for schedules that break a rule: new ones each time, over all stores in turn, on all cores.
//!
//! ```text
//! SIM_SECONDS=600 cargo test -p lock-tests --test search
//! ```
//!
//! Prints the base, what was tried of each store, and each seed that fails with the rules, its last events and how to repeat it. Exits
//! with 1 if one failed. `SIM_BASE` begins where an earlier search did. A program of its own without a harness, which no
//! `cargo test` runs unless it is named: the answer of the tests is the same for everybody.

mod variables;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use lock_tests::{
    Dice,
    sim::{self, Store},
};

use self::variables::{lines, number};

/// How the tests of the simulation repeat a schedule of a store.
fn test_of(store: Store) -> &'static str {
    match store {
        Store::Single => "every_schedule_keeps_every_rule",
        Store::Replicated => "every_schedule_of_failovers_keeps_every_rule",
        Store::Quorum => "every_schedule_of_a_quorum_keeps_every_rule",
        Store::Slots => "every_schedule_of_slots_that_move_keeps_every_rule",
        Store::Modes => "every_schedule_of_modes_keeps_every_rule",
        Store::ModesOfQuorum => "every_schedule_of_modes_of_a_quorum_keeps_every_rule",
    }
}

/// What was tried of one store.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    schedules: u64,
    leases: usize,
    events: usize,
    failed: u64,
}

/// Tries the schedule of a seed; returns what to say of it if it fails.
fn fails(store: Store, seed: u64, tried: &mut Tried) -> Option<String> {
    tried.schedules += 1;
    let why = match catch_unwind(AssertUnwindSafe(|| sim::run_on(store, seed, false))) {
        Ok(report) => {
            tried.leases += report.acquired;
            tried.events += report.events;
            (!report.breaches.is_empty()).then(|| report.tell(lines()))
        }
        Err(_) => Some(format!("the schedule of seed {seed} on a store {store:?} panics, see above")),
    };
    tried.failed += u64::from(why.is_some());
    let test = test_of(store);
    why.map(|why| format!("{why}\n\nrepeat it: SIM_SEED={seed} cargo test -p lock-tests --test simulation {test}::\n"))
}

fn main() -> ExitCode {
    let Some(seconds) = number("SIM_SECONDS") else {
        eprintln!("search: for how long? Set SIM_SECONDS to a number of seconds");
        return ExitCode::from(2);
    };
    let base = number("SIM_BASE").unwrap_or_else(|| {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Dice::seeded(u64::from(since.subsec_nanos()) ^ since.as_secs()).below(1_000_000_000_000)
    });
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("search from {base} for {seconds} s on {cores} cores");
    let end = Instant::now() + Duration::from_secs(seconds);
    let next = AtomicU64::new(0);
    let all = Mutex::new([Tried::default(); Store::ALL.len()]);
    let failed = Mutex::new(Vec::new());
    let work = || {
        let mut mine = [Tried::default(); Store::ALL.len()];
        while Instant::now() < end {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let stores = Store::ALL.len() as u64;
            let (of, seed) = ((number % stores) as usize, base + number / stores);
            if let Some(why) = fails(Store::ALL[of], seed, &mut mine[of]) {
                println!("{why}");
                failed.lock().unwrap_or_else(PoisonError::into_inner).push((seed, Store::ALL[of]));
            }
        }
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        for (tried, mine) in all.iter_mut().zip(mine) {
            tried.schedules += mine.schedules;
            tried.leases += mine.leases;
            tried.events += mine.events;
            tried.failed += mine.failed;
        }
    };
    thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
    for (store, tried) in Store::ALL.into_iter().zip(*all.lock().unwrap_or_else(PoisonError::into_inner)) {
        let Tried { schedules, leases, events, failed } = tried;
        println!("{store:?}: {schedules} schedules from {base}, {leases} leases, {events} events, {failed} failed");
    }
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (seed, store) in &failed {
        println!("failed: SIM_SEED={seed} cargo test -p lock-tests --test simulation {}::", test_of(*store));
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
