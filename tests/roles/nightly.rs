//! A machine with a nightly job, as the tour has it: `nightly URL RECORDS AT_LEAST_MS`. The folder RECORDS stands for the table of runs.
//!
//! Says `ready`, and for each line `run NAME` one of `ran NAME`, `skipped NAME` and `done before NAME`.

use std::{
    error::Error,
    fs::File,
    io::{self, ErrorKind},
    path::Path,
    time::Duration,
};

use lock_core::{LockManager, distributed_lock};

pub(crate) async fn nightly(url: &str, records: &str, at_least_ms: &str) -> Result<(), Box<dyn Error>> {
    let mut lines = crate::input();
    crate::connected(LockManager::builder().url(url)).await?.install()?;
    let at_least = Duration::from_millis(at_least_ms.parse()?);
    println!("ready");
    while let Some(line) = lines.recv().await {
        let run = line.strip_prefix("run ").ok_or("not a run")?;
        match job(run, records, at_least).await? {
            Some(Done::Now) => println!("ran {run}"),
            Some(Done::Before) => println!("done before {run}"),
            None => println!("skipped {run}"),
        }
    }
    Ok(())
}

enum Done {
    Now,
    Before,
}

#[distributed_lock(key = "jobs:nightly:<run>", on_busy = skip, at_least = at_least)]
async fn job(run: &str, records: &str, at_least: Duration) -> Result<Option<Done>, io::Error> {
    // As with a primary key, only one can create it.
    match File::create_new(Path::new(records).join(run)) {
        Ok(_) => Ok(Some(Done::Now)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(Some(Done::Before)),
        Err(error) => Err(error),
    }
}
