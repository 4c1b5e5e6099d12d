//! What a manager tells of itself without asking anybody.

use std::time::Duration;

use lock_core::{
    LockManager, LossReason,
    backend::{Backend, MemoryBackend},
};
use tokio::time::sleep;

use crate::support::{self, Fate, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_manager_counts_its_leases_and_is_up_until_it_is_shut_down() {
    let manager = LockManager::in_memory();
    assert!(manager.health().is_up());
    assert_eq!((manager.health().held(), manager.health().renewal_slack()), (0, None));
    let one = manager.lock("a").await.unwrap();
    let _two = manager.lock("b").await.unwrap();
    assert_eq!(manager.health().held(), 2);
    one.release().await.unwrap();
    assert_eq!(manager.health().held(), 1);
    assert_eq!(manager.health().nodes()[0].address(), "memory");
    manager.shutdown(Duration::ZERO).await;
    assert!(!manager.health().is_up());
    assert_eq!(manager.health().held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_manager_counts_what_it_has_acquired_and_the_requests_that_ended_because_the_key_was_busy() {
    let store = MemoryBackend::new();
    let build = || LockManager::builder().backend(store.clone()).client_name("shop").prefix("stock:").build().unwrap();
    let (manager, other) = (build(), build());
    assert_eq!((manager.service(), manager.prefix()), ("shop", "stock:"));
    let counts = || (manager.health().acquired(), manager.health().busy());
    let guard = manager.lock("a").await.unwrap();
    assert_eq!(counts(), (1, 0));
    assert!(manager.lock("a").try_acquire().await.unwrap().is_none());
    assert!(manager.lock("a").wait(ms(50)).await.unwrap_err().is_busy());
    assert!(manager.lock_all(["a", "b"]).try_acquire().await.unwrap().is_none());
    assert_eq!(counts(), (1, 3));
    // Passed on inside the process, and one for each key of several.
    let next = tokio::spawn(manager.lock("a").acquire());
    tokio::task::yield_now().await;
    drop(guard);
    let _next = next.await.unwrap().unwrap();
    let _both = manager.lock_all(["b", "c"]).await.unwrap();
    assert_eq!(counts(), (4, 3));
    // A request that was dropped has not found the key busy.
    let waits = manager.lock("a").wait_forever().acquire();
    assert!(tokio::time::timeout(ms(50), waits).await.is_err());
    assert_eq!(counts(), (4, 3));
    // Several keys that go in one call, since nobody in this process has one of them: one request.
    let _theirs = other.lock_all(["x", "y"]).await.unwrap();
    assert!(manager.lock_all(["x", "y", "z"]).try_acquire().await.unwrap().is_none());
    assert_eq!(counts(), (4, 4));
    assert_eq!((other.health().acquired(), other.health().busy()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn the_slack_is_what_renewals_left_and_zero_when_a_lease_was_not_renewed_in_time() {
    let (manager, backend) = support::counted();
    let _guard = manager.lock("a").ttl(secs(3)).await.unwrap();
    sleep(ms(1_100)).await;
    let slack = manager.health().renewal_slack().unwrap();
    assert!((ms(1_900)..=secs(2)).contains(&slack), "{slack:?}");
    backend.always(Fate::Fail);
    sleep(secs(4)).await;
    assert_eq!((manager.health().renewal_slack(), manager.health().held()), (Some(Duration::ZERO), 0));
    backend.always(Fate::Answer);
    sleep(secs(61)).await;
    assert_eq!(manager.health().renewal_slack(), None, "it was long ago");
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_expires_is_no_renewal_that_failed() {
    let manager = LockManager::in_memory();
    let _guard = manager.lock("a").ttl(ms(500)).fixed().await.unwrap();
    sleep(secs(1)).await;
    assert_eq!((manager.health().renewal_slack(), manager.health().held()), (None, 0));
}

/// How many leases a manager lost, for the reasons that there were.
fn losses(manager: &LockManager) -> Vec<(LossReason, u64)> {
    manager.health().losses().iter().copied().filter(|(_, number)| *number > 0).collect()
}

#[tokio::test(start_paused = true)]
async fn losses_are_counted_by_their_reason_and_releases_are_not() {
    let (manager, backend) = support::counted();
    manager.lock("released").await.unwrap().release().await.unwrap();
    drop(manager.lock("dropped").await.unwrap());
    assert_eq!(losses(&manager), []);

    let guards = manager.lock_all(["a", "b"]).max_hold(secs(2)).await.unwrap();
    sleep(secs(3)).await;
    drop(guards);
    let _forced = manager.lock("forced").await.unwrap();
    manager.force_release("forced").await.unwrap();
    let _taken = manager.lock("taken").ttl(secs(3)).await.unwrap();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    other.force_release("taken").await.unwrap();
    let _new = other.lock("taken").await.unwrap();
    sleep(secs(3)).await;
    let expected = [(LossReason::Taken, 1), (LossReason::MaxHold, 2), (LossReason::Forced, 1)];
    assert_eq!(losses(&manager), expected);
    assert_eq!(losses(&other), [], "a manager counts its own");

    let _held = manager.lock("held").await.unwrap();
    manager.shutdown(Duration::ZERO).await;
    assert_eq!(losses(&manager).last(), Some(&(LossReason::ShutDown, 1)));
}

#[tokio::test]
async fn a_loss_that_a_guard_finds_before_the_engine_is_counted() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("a").ttl(ms(50)).fixed().await.unwrap();
    let bounded = manager.lock("b").max_hold(ms(500)).await.unwrap();
    let waits = tokio::spawn(manager.lock("b").acquire());
    tokio::task::yield_now().await;
    // The only thread is blocked, so the engine's task is not polled before the guards are dropped.
    std::thread::sleep(ms(600));
    drop(guard);
    drop(bounded);
    let expected = [(LossReason::Expired, 1), (LossReason::MaxHold, 1)];
    assert_eq!(losses(&manager), expected);
    waits.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(losses(&manager), expected);
}

#[test]
fn a_manager_without_a_runtime_is_not_up_and_asking_does_not_panic() {
    assert!(!LockManager::in_memory().health().is_up());
}

#[test]
fn a_backend_that_says_nothing_more_is_one_node() {
    let (_, backend) = support::counted();
    assert_eq!(backend.health().len(), 1);
}
