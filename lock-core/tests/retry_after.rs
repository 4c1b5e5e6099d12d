//! When a request that found its key busy is told to come again.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::time::Duration;

use lock_core::{Error, ErrorKind, LockGuard, LockManager, LockRequest, backend::MemoryBackend};

use crate::support::{ms, secs};

/// Two processes on one store.
fn two() -> (LockManager, LockManager) {
    let store = MemoryBackend::new();
    let manager = || LockManager::builder().backend(store.clone()).build().unwrap();
    (manager(), manager())
}

async fn hold(manager: &LockManager, key: &str) -> LockGuard {
    manager.lock(key).ttl(ms(6_500)).fixed().await.unwrap()
}

async fn refused(request: LockRequest) -> Error {
    let error = request.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    error
}

#[tokio::test(start_paused = true)]
async fn a_try_is_told_what_the_holder_has_left() {
    let (ours, theirs) = two();
    let _held = hold(&theirs, "a").await;
    tokio::time::sleep(secs(2)).await;
    assert_eq!(refused(ours.lock("a").wait(Duration::ZERO)).await.retry_after(), Some(ms(4_500)));
}

#[tokio::test(start_paused = true)]
async fn everybody_who_waited_is_told_what_is_left_when_the_wait_ends() {
    let (ours, theirs) = two();
    let _held = hold(&theirs, "a").await;
    // The second only hears what the first was answered.
    let both = (refused(ours.lock("a").wait(ms(1_230))), refused(ours.lock("a").wait(ms(1_230))));
    let both = tokio::join!(both.0, both.1);
    for error in [both.0, both.1] {
        assert_eq!(error.retry_after(), Some(ms(6_500 - 1_230)));
        assert!(error.to_string().contains("still held by someone else after 1.23s"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_own_process_has_left_counts_as_well() {
    let (ours, _) = two();
    let held = hold(&ours, "a").await;
    for wait in [Duration::ZERO, secs(1)] {
        let error = refused(ours.lock("a").wait(wait)).await;
        assert_eq!(error.retry_after(), Some(held.remaining()));
    }
    let _kept = ours.lock("b").ttl(secs(1)).at_least(secs(60)).await.unwrap();
    assert_eq!(refused(ours.lock("b").wait(Duration::ZERO)).await.retry_after(), Some(secs(60)));
    let tried = ours.lock("c").ttl(ms(6_500)).fixed().run(async |lease| {
        let again = refused(ours.lock("c").wait(Duration::ZERO)).await;
        assert_eq!(again.retry_after(), Some(lease.remaining()), "the task holds the key itself");
    });
    tried.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_for_several_keys_is_told_of_the_busy_one() {
    let (ours, theirs) = two();
    let _held = hold(&theirs, "b").await;
    for (wait, left) in [(Duration::ZERO, ms(6_500)), (secs(1), ms(5_500))] {
        let error = ours.lock_all(["a", "b"]).wait(wait).await.unwrap_err();
        assert_eq!((error.key(), error.retry_after()), (Some("b"), Some(left)));
    }
}
