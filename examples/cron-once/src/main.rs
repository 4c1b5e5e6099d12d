//! A job on a schedule that several machines have, and that is done once each time all the same.
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
//! When they look, the first is long done and has given the key back. A machine may also stand still: the third does, from before
//! the second report until the time of the third is over. So the key names the run, by the time for which it was *scheduled*, and not by
//! the clock of the machine that begins it. And `at_least` keeps the key busy for as long as a machine may be late: a minute here, a week for
//! a job of every night. With a fixed key, or a shorter `at_least`, the third machine writes reports once more.
//!
//! That is "once" for as long as Redis remembers the key. It forgets when it is restarted without its data, or when a failover leads to a
//! server that does not have the key; and a machine that dies in its run keeps the key for the ttl only. A machine that asks after that runs the
//! job again. *Exactly* once is a row: the job enters its run in a table whose primary key is the run, in the transaction in which it
//! writes ([`runs`]). Here Redis forgets the third run while the third machine stands still. It runs the job, and finds its run entered.
//!
//! A run that fails is tried again under its lease, because the key stays busy for `at_least` after a failure, too. If the last try fails, nobody
//! does the run: docs/cookbook.md says how to notice that. A machine that cannot reach Redis
//! does not run the job, and a run that no machine begins is not made up for.
//!
//! Exits with 1 when a report was written twice, or not at all.

mod runs;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use example_processes::{Child, redis_url};
use lock_core::{LockManager, distributed_lock};
use rusqlite::Connection;
use tokio::time::sleep;

const MACHINES: u32 = 3;
const TIMES: u32 = 3;
const EVERY: Duration = Duration::from_secs(3);
/// When the first run is due, from the beginning.
const OFFSET: Duration = Duration::from_millis(500);
/// Before a run that has failed is tried again.
const PAUSE: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, url, database, number] = &arguments[..]
        && flag == "--machine"
    {
        machine(url, Path::new(database), number.parse()?).await?;
        return Ok(ExitCode::SUCCESS);
    }

    let url = redis_url().await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("reports.db");
    let database = runs::open(&path)?;
    database.execute_batch(runs::SCHEMA)?;
    let runs = schedule(&url, path.to_str().context("the folder for temporary files has a strange name")?).await?;
    let mistakes = mistakes(&runs, &runs::written(&database)?);
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
async fn machine(url: &str, database: &Path, number: u32) -> Result<()> {
    // Where `#[distributed_lock]` finds it.
    LockManager::connect(url).await?.install()?;
    let mut database = runs::open(database)?;
    Child::tell_parent("ready")?;
    let begin = Child::hear_parent().await?.context("no schedule came")?.parse()?;

    for time in 0..TIMES {
        let run = run(begin, time);
        let clock = now() - late(number);
        sleep(Duration::from_millis(u64::try_from(run - clock).unwrap_or_default())).await;
        match report(run, number, &mut database).await {
            Ok(Some(true)) => Child::tell_parent(&format!("{time} written by machine {number}"))?,
            Ok(Some(false)) => Child::tell_parent(&format!("{time} machine {number} finds it done before"))?,
            Ok(None) => {} // another machine has it
            Err(error) => eprintln!("machine {number} cannot run its job: {error}"),
        }
    }
    Ok(())
}

/// The job: whether the report was written now, or before; `None` if another machine has this run. A job that has nothing to tell returns
/// `Result<(), _>`.
#[distributed_lock(key = "cron:report:<run>", on_busy = skip, at_least = "1m")]
async fn report(run: i64, machine: u32, database: &mut Connection) -> Result<Option<bool>> {
    // A run that has failed stays begun, so it is tried again while the lease is held.
    let mut left = 4;
    loop {
        sleep(Duration::from_millis(50)).await;
        match runs::write(database, run, &format!("written by machine {machine}")) {
            Err(error) if left > 0 => eprintln!("machine {machine} failed, {left} tries are left: {error}"),
            done => return done.map(Some),
        }
        left -= 1;
        sleep(PAUSE).await;
    }
}

/// Starts the machines, gives them the schedule, and says who did what at which time. Returns the runs.
async fn schedule(url: &str, database: &str) -> Result<Vec<i64>> {
    let mut machines = Vec::new();
    for number in 1..=MACHINES {
        machines.push(Child::start(["--machine", url, database, &number.to_string()])?);
    }
    for machine in &mut machines {
        machine.expect("ready").await?;
    }
    let begin = now();
    for machine in &mut machines {
        machine.say(&begin.to_string()).await?;
    }

    // The last machine stands still from before the second report until the time of the third is over.
    let last = machines.last().context("no machines")?;
    sleep(EVERY).await;
    last.pause()?;
    sleep(EVERY * 2).await;
    // As after a restart without data.
    let forgotten = format!("cron:report:{}", run(begin, 2));
    LockManager::connect(url).await?.force_release(&forgotten).await?;
    last.resume()?;

    let mut said: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for machine in &mut machines {
        while let Some(line) = machine.line().await? {
            let (time, what) = line.split_once(' ').with_context(|| format!("a machine said '{line}'"))?;
            said.entry(time.parse()?).or_default().push(what.to_owned());
        }
    }
    for (time, said) in &said {
        println!("report {}: {}", time + 1, said.join(", "));
    }
    Ok((0..TIMES).map(|time| run(begin, time)).collect())
}

/// Names a run: the time for which it is scheduled, in milliseconds of UTC since 1970, the same on all machines.
fn run(begin: i64, time: u32) -> i64 {
    begin + millis(OFFSET + EVERY * time)
}

/// Returns the mistakes in the reports, in sentences; empty if each report was written once.
fn mistakes(runs: &[i64], written: &[i64]) -> Vec<String> {
    let count = |run: &i64| written.iter().filter(|written| *written == run).count();
    let counts = runs.iter().map(count).enumerate();
    counts
        .filter(|(_, count)| *count != 1)
        .map(|(time, count)| format!("report {} was written {count} times", time + 1))
        .collect()
}

/// How far the clock of a machine is behind, in milliseconds.
fn late(machine: u32) -> i64 {
    100 * i64::from(machine - 1)
}

/// The milliseconds since the beginning of 1970.
fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_run_that_has_failed_is_tried_again_under_its_lease() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("reports.db");
        let mut database = runs::open(&path)?;
        // There are no tables until the first try has failed.
        let repair = async {
            sleep(Duration::from_millis(100)).await;
            runs::open(&path)?.execute_batch(runs::SCHEMA).map_err(anyhow::Error::from)
        };
        let manager = LockManager::in_memory();
        let (written, repaired) = tokio::join!(manager.scope(report(7, 1, &mut database)), repair);
        repaired?;
        assert_eq!(written?, Some(true));
        assert_eq!(runs::written(&database)?, [7]);
        Ok(())
    }

    #[test]
    fn reports_that_were_written_twice_or_not_at_all_are_mistakes() {
        assert!(mistakes(&[10, 20, 30], &[10, 30, 20]).is_empty());
        let mistakes = mistakes(&[10, 20, 30], &[10, 10, 30]);
        assert_eq!(mistakes, ["report 1 was written 2 times", "report 2 was written 0 times"]);
    }
}
