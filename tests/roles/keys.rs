//! One of several that pass over the same keys: `keys URL`.
//!
//! Says `ready` when it is connected. To `pass FIRST COUNT` it acquires and releases each of the keys `k:FIRST`, … once,
//! a hundred at a time, and answers `passed COUNT WAITED`: how many of them were had only after a wait of 1 ms or more.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lock_core::LockManager;
use tokio::{task::JoinSet, time::sleep};

pub(crate) async fn keys(url: &str) -> Result<(), Box<dyn Error>> {
    let mut lines = crate::input();
    // On a busy machine an answer takes its time, and that is not what is asked here.
    let manager = LockManager::builder().url(url).command_timeout(PATIENCE).connect().await?;
    println!("ready");
    while let Some(line) = lines.recv().await {
        let ["pass", first, count] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("can't do {line:?}").into());
        };
        let (first, count): (u64, u64) = (first.parse()?, count.parse()?);
        let (next, waited) = (Arc::new(AtomicU64::new(first)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for _ in 0..AT_ONCE {
            let (manager, next, waited) = (manager.clone(), Arc::clone(&next), Arc::clone(&waited));
            tasks.spawn(async move {
                loop {
                    let key = next.fetch_add(1, Ordering::Relaxed);
                    if key >= first + count {
                        return Ok::<_, lock_core::Error>(());
                    }
                    let asked = Instant::now();
                    let guard = manager.lock(format!("k:{key}")).wait(PATIENCE).await?;
                    waited.fetch_add(u64::from(asked.elapsed() >= HOLD), Ordering::Relaxed);
                    sleep(HOLD).await;
                    guard.release().await?;
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        println!("passed {count} {}", waited.load(Ordering::Relaxed));
    }
    Ok(())
}

const AT_ONCE: u64 = 100;
const HOLD: Duration = Duration::from_millis(1);
const PATIENCE: Duration = Duration::from_secs(60);
