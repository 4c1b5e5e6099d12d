//! Many processes that wait for one key and read late what they are told, as on a machine that is short of CPU; virtual time.

use std::time::Duration;

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::*;
use crate::LockManager;

/// A store whose answers and messages come late.
#[derive(Clone, Debug)]
struct Late {
    store: MemoryBackend,
    answers: Duration,
    messages: Duration,
}

impl Backend for Late {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let (reply, late) = (self.store.call(batch), self.answers);
        Reply::new(async move {
            sleep(late).await;
            reply.await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.store.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store.clock()
    }

    fn grants_leases(&self) -> bool {
        true
    }

    fn driver(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (told, mut notices) = Calls::new(Arc::clone(calls.channel()));
        let (driver, late) = (self.store.driver(told), self.messages);
        Box::pin(async move {
            let passes = async {
                while let Some(notice) = notices.recv().await {
                    let (calls, at) = (calls.clone(), Instant::now() + late);
                    tokio::spawn(async move {
                        sleep_until(at).await;
                        match notice {
                            Notice::Granted(grant) => calls.granted(grant),
                            Notice::Listening(listening) => calls.listening(listening),
                            other => calls.pass_on(other),
                        }
                    });
                }
            };
            tokio::join!(driver, passes);
        })
    }
}

/// How many of so many processes had the key within a minute, each for a millisecond.
async fn served(processes: usize, answers: Duration, messages: Duration) -> (usize, Duration) {
    let late = Late { store: MemoryBackend::new(), answers, messages };
    let holder = LockManager::builder().backend(late.store.clone()).build().unwrap();
    let guard = holder.lock("k").await.unwrap();
    let mut waiting = JoinSet::new();
    for _ in 0..processes {
        let manager = LockManager::builder().backend(late.clone()).build().unwrap();
        waiting.spawn(async move {
            let guard = manager.lock("k").wait(Duration::from_secs(60)).await.ok()?;
            sleep(Duration::from_millis(1)).await;
            guard.release().await.ok()
        });
    }
    sleep(Duration::from_secs(5)).await;
    let begun = Instant::now();
    guard.release().await.unwrap();
    let served = waiting.join_all().await.into_iter().flatten().count();
    (served, begun.elapsed())
}

/// A waiter that comes too late for its turn costs the others no more than its own time: the rate falls with the lateness, and does not
/// collapse.
#[tokio::test(start_paused = true)]
async fn waiters_that_read_late_are_served_as_fast_as_they_read() {
    for (answers, messages) in [(1, 1), (1, 300), (1, 900), (1, 1_500), (300, 300), (900, 900), (1_500, 1_500)] {
        let late = |ms| Duration::from_millis(ms);
        let (served, took) = served(100, late(answers), late(messages)).await;
        println!("answers {answers} ms late, messages {messages} ms late: {served} of 100 in {took:?}");
        // One after the other, each as late as its answers: how many fit into the 55 s that are left of their wait. Two fifths of that.
        let least = (55_000 / answers * 2 / 5).min(100);
        assert!(served as u64 >= least, "{served} of {least}");
    }
}
