//! The real engine in a simulated world; see `lock_tests::sim`.

use lock_tests::sim;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn every_schedule_keeps_every_rule() {
    let seeds = match (number("SIM_SEED"), number("SIM_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, seeds) => 0..seeds.unwrap_or(2_000),
    };
    let start = std::time::Instant::now();
    let (mut acquired, mut failed) = (0, Vec::new());
    let all = seeds.clone().count();
    for seed in seeds {
        let report = sim::run(seed, None, false);
        acquired += report.acquired;
        if !report.breaches.is_empty() {
            failed.push(report);
        }
    }
    println!("{all} schedules, {acquired} leases in {:?}; {} failed", start.elapsed(), failed.len());
    for report in failed.iter().take(number("SIM_SHOW").unwrap_or(10) as usize) {
        println!("seed {}: {:?}", report.seed, report.breaches[0]);
    }
    if let Some(first) = failed.first() {
        let again = sim::run(first.seed, None, true);
        let last = again.log.len().saturating_sub(number("SIM_LINES").unwrap_or(200) as usize);
        for line in &again.log[last..] {
            println!("{line}");
        }
        for (rule, message) in &again.breaches {
            println!("{rule}: {message}");
        }
        panic!("the schedule of seed {} breaks a rule; SIM_SEED={0} repeats it", first.seed);
    }
}
