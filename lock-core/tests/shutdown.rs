//! What a shutdown waits for, ends and leaves; memory backend, virtual time.

mod support;

use std::time::Duration;

use lock_core::{ErrorKind, LockManager, LossReason};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use support::{ms, secs};

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_holders_then_ends_what_is_left() {
    let (manager, backend) = support::counted();
    let quick = manager.lock("quick").await.unwrap();
    let stuck = manager.lock("stuck").await.unwrap();
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("stuck").await }
    });
    tokio::spawn(async move {
        sleep(secs(1)).await;
        drop(quick);
    });
    let before = Instant::now();
    let shutdown = manager.shutdown(secs(3));
    assert_eq!(timeout(secs(5), shutdown).await.unwrap(), 1);
    assert!((secs(3)..ms(3_100)).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert_eq!(stuck.lost().await, LossReason::ShutDown);
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    assert_eq!(manager.lock("new").await.unwrap_err().kind(), ErrorKind::ShutDown);
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    for key in ["quick", "stuck"] {
        assert!(!other.is_locked(key).await.unwrap(), "{key} was released");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_holders_is_at_once() {
    let manager = LockManager::in_memory();
    manager.lock("k").await.unwrap().release().await.unwrap();
    let before = Instant::now();
    assert_eq!(manager.shutdown(secs(30)).await, 0);
    assert!(before.elapsed() < ms(10), "{:?}", before.elapsed());
    assert_eq!(LockManager::in_memory().shutdown(secs(30)).await, 0, "also where the engine never ran");
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_future_that_is_not_polled() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let _held = other.lock("k").await.unwrap();
    let mut waiter = manager.lock("k").acquire();
    assert!(timeout(ms(10), &mut waiter).await.is_err());
    let before = Instant::now();
    assert_eq!(manager.shutdown(secs(30)).await, 0);
    assert!(before.elapsed() < ms(100), "{:?}", before.elapsed());
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
    assert_eq!(waiter.await.unwrap_err().kind(), ErrorKind::ShutDown);
}
