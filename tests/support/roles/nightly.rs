//! A machine with a nightly job, as the tour has it: `nightly URL CALENDAR AT_LEAST_MS`. The file CALENDAR holds today's date.
//!
//! Says `ready`, and for each line `run DATE` either `ran DATE` or `skipped DATE`.

use std::{error::Error, fs, time::Duration};

use lock_core::{LockManager, distributed_lock};

pub(crate) async fn nightly(url: &str, calendar: &str, at_least_ms: &str) -> Result<(), Box<dyn Error>> {
    let mut lines = crate::input();
    crate::connected(LockManager::builder().url(url)).await?.install()?;
    let at_least = Duration::from_millis(at_least_ms.parse()?);
    println!("ready");
    while let Some(line) = lines.recv().await {
        let date = line.strip_prefix("run ").ok_or("not a date")?;
        match job(date, calendar, at_least).await.map_err(|error| error.to_string())? {
            Some(()) => println!("ran {date}"),
            None => println!("skipped {date}"),
        }
    }
    Ok(())
}

#[distributed_lock(key = "jobs:nightly:<date>", on_busy = skip, at_least = at_least)]
async fn job(date: &str, calendar: &str, at_least: Duration) -> Result<Option<()>, Box<dyn Error + Send + Sync>> {
    Ok((date == fs::read_to_string(calendar)?).then_some(()))
}
