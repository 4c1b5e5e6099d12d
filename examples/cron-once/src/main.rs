//! A job on a schedule that several machines have, and that runs once each time all the same.
//!
//! ```text
//! cargo run -p example-cron-once
//! cargo run -p example-cron-once -- redis://127.0.0.1:6379
//! ```
//!
//! Three processes, as on three machines, want to write a report every three seconds. The job is a function with
//! `#[distributed_lock]`. The first process runs it; the others find the key busy, and `on_busy = skip` lets them go on
//! without it. They do not stand in line either: a job that waited would run three times, one after another.
//!
//! The report takes 50 ms, and the clocks of the machines do not agree: the second is 100 ms late, the third 200 ms.
//! When they look, the first is long done and has given the key back. A machine may also stand still for seconds, as the third
//! does here before the second report. So the key names the run, and `at_least = "2800ms"` keeps it busy until the time
//! of that run is over: a late machine finds its run taken. `at_least` is shorter than the time between two runs (3 s), and longer than
//! what is left of the time of the run when the job starts (2.5 s) plus what the clocks differ. A machine that stood still
//! for even longer finds the key free, so the job looks again whether its run is still the present one. With a fixed
//! key and a short `at_least`, such a machine writes a report once more.
//!
//! "Once" is not "exactly once": a machine that dies in the middle of its report keeps the key for its ttl, and a machine
//! that asks later writes the report again. One that cannot reach Redis does not run. A job that must not be lost, or not be
//! repeated, writes down that it is done, and the next run looks for that.
//!
//! Exits with 1 when a report was written twice, or not at all.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use example_processes::{Child, redis_url};
use lock_core::{LockManager, distributed_lock};
use tokio::time::sleep;

const MACHINES: u32 = 3;
const TIMES: u32 = 3;
const EVERY: Duration = Duration::from_secs(3);
/// When the job runs, from the beginning of each time.
const OFFSET: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, number] = &arguments[..]
        && flag == "--machine"
    {
        machine(url, number.parse()?).await?;
        return Ok(ExitCode::SUCCESS);
    }

    let runs = schedule(&redis_url().await?).await?;
    let mistakes = mistakes(&runs);
    for mistake in &mistakes {
        eprintln!("{mistake}");
    }
    if !mistakes.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    println!("{TIMES} reports, each written once");
    Ok(ExitCode::SUCCESS)
}

/// One machine: at every time of the schedule, by its own clock, it runs the job unless somebody else has.
async fn machine(url: &str, number: u32) -> Result<()> {
    // Where `#[distributed_lock]` finds it.
    LockManager::connect(url).await?.install()?;
    Child::tell_parent("ready")?;
    let begin = Child::hear_parent().await?.context("no schedule came")?;
    let begin = Duration::from_millis(begin.parse()?);
    let clock = || now().saturating_sub(begin + late(number));

    for time in 0..TIMES {
        sleep((EVERY * time + OFFSET).saturating_sub(clock())).await;
        let is_present = || EVERY * time <= clock() && clock() < EVERY * (time + 1);
        match report(time, is_present, number).await {
            Ok(Some(report)) => Child::tell_parent(&format!("ran {time} {report}"))?,
            Ok(None) => {} // another machine has it
            Err(error) => eprintln!("machine {number} cannot run its job: {error}"),
        }
    }
    Ok(())
}

/// The job; `None` when it is another machine's this time. A job that has nothing to tell returns `Result<(), _>`.
#[distributed_lock(key = "cron:report:<time>", on_busy = skip, at_least = "2800ms")]
async fn report(time: u32, is_present: impl Fn() -> bool, machine: u32) -> Result<Option<String>, lock_core::Error> {
    if !is_present() {
        return Ok(None); // this machine stood still until the key of its run was free again
    }
    sleep(Duration::from_millis(50)).await;
    Ok(Some(format!("written by machine {machine}")))
}

/// Starts the machines, gives them the schedule, and notes who ran the job at which time.
async fn schedule(url: &str) -> Result<BTreeMap<u32, Vec<String>>> {
    let mut machines = Vec::new();
    for number in 1..=MACHINES {
        machines.push(Child::start(["--machine", url, &number.to_string()])?);
    }
    for machine in &mut machines {
        machine.expect("ready").await?;
    }
    let begin = now();
    for machine in &mut machines {
        machine.say(&begin.as_millis().to_string()).await?;
    }

    // The last machine stands still from before the second report until its time is over.
    let last = machines.last().context("no machines")?;
    sleep(EVERY).await;
    last.pause()?;
    sleep(EVERY + late(MACHINES)).await;
    last.resume()?;

    let mut runs: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for machine in &mut machines {
        while let Some(line) = machine.line().await? {
            let run = line.strip_prefix("ran ").and_then(|run| run.split_once(' '));
            let (time, report) = run.with_context(|| format!("a machine said '{line}'"))?;
            runs.entry(time.parse()?).or_default().push(report.to_owned());
        }
    }
    for (time, reports) in &runs {
        println!("report {}: {}", time + 1, reports.join(", "));
    }
    Ok(runs)
}

/// Returns the mistakes in the reports, in sentences; empty if each report was written once.
fn mistakes(runs: &BTreeMap<u32, Vec<String>>) -> Vec<String> {
    let written = (0..TIMES).map(|time| (time, runs.get(&time).map_or(0, Vec::len)));
    written
        .filter(|(_, count)| *count != 1)
        .map(|(time, count)| format!("report {} was written {count} times", time + 1))
        .collect()
}

/// How far the clock of a machine is behind.
fn late(machine: u32) -> Duration {
    Duration::from_millis(100) * (machine - 1)
}

/// The time since the beginning of 1970.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_that_were_written_twice_or_not_at_all_are_mistakes() {
        let by = |machines: &[&str]| machines.iter().map(|by| (*by).to_owned()).collect::<Vec<_>>();
        assert!(mistakes(&BTreeMap::from([(0, by(&["1"])), (1, by(&["3"])), (2, by(&["1"]))])).is_empty());
        let mistakes = mistakes(&BTreeMap::from([(0, by(&["1", "2"])), (2, by(&["1"]))]));
        assert_eq!(mistakes, ["report 1 was written 2 times", "report 2 was written 0 times"]);
    }
}
