//! The code of the documents that stands on crates which nothing else here needs. `.ci/nightly` compiles it; a test holds that it is what
//! the pages show, line by line.
#![allow(dead_code, reason = "it is compiled, and not run")]

use std::{error::Error, time::Duration};

use lock_core::LockManager;

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

// These two are in tests/tour/cookbook.rs.
fn tick(_: Duration, _: Duration) -> String {
    unimplemented!()
}

async fn done_tonight(_: &LockManager, _: &str) -> Result {
    unimplemented!()
}

mod otlp {
    use opentelemetry_sdk::trace::SpanExporter;

    use super::Result;

    /// As in examples/observe.
    fn observe(_: impl SpanExporter + 'static) -> Result<((), ())> {
        unimplemented!()
    }

    async fn start() -> Result {
        let (traces, metrics) = observe(opentelemetry_otlp::SpanExporter::builder().with_tonic().build()?)?;
        let _ = (traces, metrics);
        Ok(())
    }
}

mod tokio_cron_scheduler_ {
    use tokio_cron_scheduler::{Job, JobScheduler};

    use super::*;

    async fn start(manager: LockManager) -> Result {
        let job = Job::new_async("0 30 2 * * *", move |_, _| {
            let manager = manager.clone();
            Box::pin(async move {
                let run = tick(Duration::from_secs(24 * 3600), Duration::from_secs(149 * 60)); // 02:30, less a minute
                if let Err(error) = done_tonight(&manager, &run).await {
                    tracing::error!("the job failed: {error}");
                }
            })
        })?;
        let scheduler = JobScheduler::new().await?;
        scheduler.add(job).await?;
        scheduler.start().await?; // in the background
        Ok(())
    }
}

mod apalis_ {
    use apalis::prelude::*;
    use apalis_cron::{CronScheduler, Tick};
    use cron::Schedule;

    use super::{LockManager, Result, done_tonight};

    async fn start(manager: LockManager) -> Result {
        use std::str::FromStr as _;

        async fn handle(tick: Tick, manager: Data<LockManager>) -> Result {
            done_tonight(&manager, &tick.get_timestamp().to_string()).await
        }

        let schedule = Schedule::from_str("0 30 2 * * *")?;
        let worker = WorkerBuilder::new("nightly").backend(CronScheduler::new(schedule)).data(manager).build(handle);
        worker.run().await?;
        Ok(())
    }
}
