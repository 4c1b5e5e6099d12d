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
//! When they look, the first is long done and has given the key back. So `at_least = "1500ms"` keeps the key busy for
//! longer, counted from the acquire. When Redis is slow, that comes up to a `command_timeout` (1 s) after the asking. So
//! `at_least` has to be more than the clocks may differ plus the command timeout (1.2 s), or a report may be written
//! twice; and less than the time between two runs less the command timeout (2 s), or the next run may be skipped. With
//! `at_least` taken out, this example says that every report was written three times.
//!
//! "Once" is not "exactly once": a machine that dies in the middle of its report has had its turn, and one that cannot
//! reach Redis does not run. A job that must not be lost writes down that it is done, and the next run looks for that.
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
    let first = Child::hear_parent().await?.context("no schedule came")?;
    let first = Duration::from_millis(first.parse()?);

    for time in 0..TIMES {
        sleep_until(first + EVERY * time + late(number)).await?;
        match report(number).await {
            Ok(Some(report)) => Child::tell_parent(&format!("ran {time} {report}"))?,
            Ok(None) => {} // another machine has it
            Err(error) => eprintln!("machine {number} cannot run its job: {error}"),
        }
    }
    Ok(())
}

/// The job; `None` when it is another machine's this time. A job that has nothing to tell returns `Result<(), _>`.
#[distributed_lock(key = "cron:report", on_busy = skip, at_least = "1500ms")]
async fn report(machine: u32) -> Result<Option<String>, lock_core::Error> {
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
    let first = now()? + Duration::from_millis(500);
    for machine in &mut machines {
        machine.say(&first.as_millis().to_string()).await?;
    }

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

/// Sleeps until `time` after the beginning of 1970; not at all when that has passed.
async fn sleep_until(time: Duration) -> Result<()> {
    sleep(time.saturating_sub(now()?)).await;
    Ok(())
}

fn now() -> Result<Duration> {
    SystemTime::now().duration_since(UNIX_EPOCH).context("the clock of this machine is before 1970")
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
