//! How processes share a key over time: managers on one store, in virtual time, which no busy machine can stretch.

use std::{pin::Pin, sync::Arc, time::Duration};

use lock_core::{
    LockManager,
    backend::{Answer, Backend, Batch, Calls, MemoryBackend, Notice, Reply},
    clock::Clock,
    key::LockKey,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
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

/// The way of a process that is short of processor time to its store: requests, answers and messages each take so long.
#[derive(Clone, Debug)]
struct Slow(MemoryBackend, Duration);

impl Backend for Slow {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let Self(store, late) = self.clone();
        Reply::new(async move {
            sleep(late).await;
            let answer = store.call(batch).await;
            sleep(late).await;
            answer
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let Self(store, late) = self.clone();
        let (early, mut notices) = Calls::new(Arc::clone(calls.channel()));
        let driver = store.driver(early);
        Box::pin(async move {
            let pass_on = async {
                let mut under_way = JoinSet::new();
                while let Some(notice) = notices.recv().await {
                    let (calls, due) = (calls.clone(), Instant::now() + late);
                    under_way.spawn(async move {
                        sleep_until(due).await;
                        match notice {
                            Notice::Granted(grant) => calls.granted(grant),
                            Notice::Listening(is_listening) => calls.listening(is_listening),
                            _ => {}
                        }
                    });
                }
            };
            tokio::join!(driver, pass_on);
        })
    }
}

#[tokio::test(start_paused = true)]
async fn slow_processes_pass_a_key_on_as_fast_as_their_messages() {
    const PROCESSES: u32 = 60;
    for latest in [ms(20), ms(200), ms(600), ms(3_000)] {
        let (store, begun) = (MemoryBackend::new(), Instant::now());
        let (mut running, mut messages) = (JoinSet::new(), Duration::ZERO);
        for index in 0..PROCESSES {
            let late = latest * index / PROCESSES;
            // The message of the grant, the request that confirms it, its answer, and the release.
            messages += 4 * late;
            let builder = LockManager::builder().backend(Slow(store.clone(), late)).__seed(index.into());
            let manager = builder.build().expect("a sound backend");
            running.spawn(async move {
                manager.lock("k").wait(secs(3_600)).await.expect("its turn comes").release().await.expect("held");
            });
        }
        running.join_all().await;
        // A grant that is over before its process comes would cost all that it lasted, and the process its place.
        let took = begun.elapsed();
        assert!(took <= messages + 5 * latest, "late by up to {latest:?}: {took:?}, {messages:?} of it for messages");
    }
}
