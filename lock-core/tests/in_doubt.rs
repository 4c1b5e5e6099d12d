//! Calls that fail as a whole: each of their items may have happened; virtual time.

use lock_core::{ErrorKind, LockManager};
use tokio::task::JoinSet;

use crate::support::{self, Fate, ms, secs};

/// Asks for many keys at once, so that they share calls; returns how many are held at the end.
async fn asked_at_once(manager: &LockManager, keys: usize) -> Vec<Result<lock_core::LockGuard, lock_core::Error>> {
    let mut tasks = JoinSet::new();
    for key in 0..keys {
        let request = manager.lock(format!("k:{key}")).ttl(secs(3_600)).wait(ms(100));
        tasks.spawn(async move { request.await });
    }
    tasks.join_all().await
}

#[tokio::test(start_paused = true)]
async fn every_acquire_of_a_call_whose_reply_was_lost_is_cleaned_up() {
    let (manager, backend) = support::counted();
    backend.always(Fate::LoseReply);
    let outcomes = asked_at_once(&manager, 50).await;
    for outcome in outcomes {
        assert_eq!(outcome.expect_err("no answer came").kind(), ErrorKind::Backend);
    }
    assert!(backend.largest_batch() > 1, "they shared calls");
    backend.always(Fate::Answer);
    for key in 0..50 {
        support::eventually_free(&manager, &format!("k:{key}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_acquire_of_a_call_that_is_executed_late_over_an_old_connection_is_cleaned_up() {
    let (manager, backend) = support::counted();
    // They share a call.
    backend.next([Fate::GiveUp]);
    let asks = tokio::spawn({
        let manager = manager.clone();
        async move { asked_at_once(&manager, 20).await }
    });
    tokio::time::sleep(ms(50)).await;
    // Nothing passes what is held up on the same connection.
    backend.always(Fate::Fail);
    asks.abort();
    assert!(asks.await.is_err());
    let late = backend.steal_held_request();
    backend.replace_connection();
    backend.always(Fate::Answer);
    backend.let_go();
    tokio::time::sleep(secs(5)).await;
    late.execute().await;
    let mut set = 0;
    for key in 0..20 {
        set += usize::from(manager.is_locked(format!("k:{key}")).await.expect("is answered"));
    }
    assert_eq!(set, 20, "all were on their way");
    for key in 0..20 {
        for _ in 0..10 {
            if !manager.is_locked(format!("k:{key}")).await.expect("is answered") {
                break;
            }
            tokio::time::sleep(secs(1)).await;
        }
        support::eventually_free(&manager, &format!("k:{key}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_acquire_of_a_call_that_is_executed_after_its_release_is_cleaned_up() {
    let (manager, backend) = support::counted();
    // They share a call.
    backend.next([Fate::Overtaken]);
    let asks = tokio::spawn({
        let manager = manager.clone();
        async move { asked_at_once(&manager, 20).await }
    });
    tokio::time::sleep(ms(50)).await;
    asks.abort();
    assert!(asks.await.is_err());
    tokio::time::sleep(ms(200)).await;
    let released = backend.log().concat().iter().filter(|operation| **operation == "release").count();
    assert!(released >= 20, "{released} were released before");
    backend.let_go();
    tokio::time::sleep(ms(50)).await;
    for key in 0..20 {
        support::eventually_free(&manager, &format!("k:{key}")).await;
    }
    // Whoever comes next is not hurt by it.
    let next = manager.lock("k:1").ttl(secs(3)).await.expect("the key is free");
    tokio::time::sleep(secs(30)).await;
    assert!(next.is_held());
}
