//! How processes share a key over time: managers on one store, in virtual time, which no busy machine can stretch.

use std::time::Duration;

use lock_core::{LockManager, backend::MemoryBackend};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::support::{ms, secs};

/// For how long a process passes a key on inside itself while others wait.
const BUDGET: Duration = ms(100);

/// What the tasks of one manager had.
#[derive(Clone, Copy, Debug, Default)]
struct Had {
    holds: u32,
    longest_wait: Duration,
}

/// Has managers contend for one key, with some tasks each that hold it over and over, for ten seconds.
async fn contend(managers: usize, tasks: usize, hold: Duration) -> Vec<Had> {
    let store = MemoryBackend::new();
    let end = Instant::now() + secs(10);
    let mut running = JoinSet::new();
    for index in 0..managers as u64 {
        let manager = LockManager::builder().backend(store.clone()).__seed(index).build().expect("a sound backend");
        for _ in 0..tasks {
            let manager = manager.clone();
            running.spawn(async move {
                let mut had = Had::default();
                while Instant::now() < end {
                    let asked = Instant::now();
                    let guard = manager.lock("k").wait(secs(60)).await.expect("its turn comes");
                    had.longest_wait = had.longest_wait.max(asked.elapsed());
                    sleep(hold).await;
                    guard.release().await.expect("held");
                    had.holds += 1;
                }
                (index, had)
            });
        }
    }
    let mut all = vec![Had::default(); managers];
    for (index, had) in running.join_all().await {
        all[index as usize].holds += had.holds;
        all[index as usize].longest_wait = all[index as usize].longest_wait.max(had.longest_wait);
    }
    all
}

#[tokio::test(start_paused = true)]
async fn processes_that_contend_have_fair_shares() {
    let had = contend(4, 4, ms(1)).await;
    let holds = had.iter().map(|had| had.holds);
    let (least, most) = (holds.clone().min().unwrap_or(0), holds.max().unwrap_or(0));
    assert!(least * 10 >= most * 8, "{had:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_place_in_line_times_the_hold_and_the_budget() {
    const PROCESSES: u32 = 4;
    const HOLD: Duration = ms(20);
    // With three tasks each, all who wait in a process are served in one turn of it.
    for had in contend(4, 3, HOLD).await {
        assert!(had.longest_wait <= PROCESSES * (HOLD + BUDGET), "{had:?}");
        assert!(had.holds > 5, "{had:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn process_that_is_alone_on_a_key_is_not_slowed() {
    let had = contend(1, 4, ms(1)).await[0];
    // A process that made room for others at the end of each budget would stand still for as long again.
    assert!(had.holds >= 9_000, "{had:?}");
}
