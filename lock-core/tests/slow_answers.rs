//! Deadlines when the answer takes its time: they count from the sending of the request; virtual time.

use lock_core::{LockGuard, LockManager};
use tokio::{task::JoinHandle, time::sleep};

use crate::support::{self, Fate, ms, secs};

#[tokio::test(start_paused = true)]
async fn an_extended_deadline_counts_from_the_sending_of_the_extend() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(3)).fixed().await.unwrap();
    backend.next([Fate::HoldReply]);
    let answer = async {
        sleep(secs(1)).await;
        backend.let_go();
    };
    let (extended, ()) = tokio::join!(guard.extend(secs(10)), answer);
    extended.unwrap();
    let left = guard.remaining();
    assert!(ms(8_800) < left && left < secs(9), "10 s from the sending, which was 1 s ago, not {left:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_a_refill_of_fencing_tokens_raises_counts_from_its_sending() {
    let (manager, backend) = support::counted();
    let wait = |count: usize| -> Vec<JoinHandle<LockGuard>> {
        let acquire = || manager.lock("k").ttl(secs(3)).acquire();
        (0..count).map(|_| acquire()).map(|acquire| tokio::spawn(async { acquire.await.unwrap() })).collect()
    };
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let first = other.lock("k").await.unwrap();
    let mut waiters = wait(2);
    sleep(ms(1)).await;
    first.release().await.unwrap();
    // The waiters share a tenure of two fencing tokens. More waiters come, so that it needs a refill.
    let second = waiters.remove(0).await.unwrap();
    waiters.extend(wait(8));
    sleep(ms(1)).await;
    backend.next([Fate::HoldReply]);
    second.release().await.unwrap();
    let third = waiters.remove(0).await.unwrap();
    sleep(ms(1)).await;
    assert_eq!(backend.log().last().unwrap(), &["renew"], "the refill is under way: {:?}", backend.log());
    sleep(ms(500)).await;
    backend.let_go();
    sleep(ms(1)).await;
    let left = third.remaining();
    assert!(third.is_held() && left < ms(2_500), "3 s from the sending, which was 0.5 s ago, not {left:?}");
    waiters.iter().for_each(JoinHandle::abort);
}
