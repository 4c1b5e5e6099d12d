//! What a shutdown waits for, ends and leaves; memory backend, virtual time.

use std::time::Duration;

use lock_core::{End, ErrorKind, LockManager, LossReason};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use crate::support::{self, Fate, ms, secs};

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
    assert_eq!(stuck.ended().await, End::Lost(LossReason::ShutDown));
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
    assert!(!manager.is_shut_down());
    assert_eq!(manager.clone().shutdown(secs(30)).await, 0);
    assert!(manager.is_shut_down(), "with every clone");
    assert!(before.elapsed() < ms(10), "{:?}", before.elapsed());
    assert_eq!(LockManager::in_memory().shutdown(secs(30)).await, 0, "also where the engine never ran");
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_the_answer_to_a_release() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").await.unwrap();
    backend.next([Fate::Hold]);
    let release = tokio::spawn(guard.release());
    sleep(ms(10)).await;
    let before = Instant::now();
    let shutdown = tokio::spawn({
        let manager = manager.clone();
        async move { manager.shutdown(secs(3)).await }
    });
    sleep(ms(100)).await;
    assert!(!shutdown.is_finished(), "the release has not been executed yet");
    backend.let_go();
    assert_eq!(shutdown.await.unwrap(), 0);
    assert!(before.elapsed() < ms(200), "{:?}", before.elapsed());
    release.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_goes_out_before_the_end_though_its_future_is_not_polled() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let (dropped, awaited) = (manager.lock("dropped").await.unwrap(), manager.lock("awaited").await.unwrap());
    let (dropped, awaited) = (dropped.release(), awaited.release());
    assert_eq!(manager.shutdown(secs(30)).await, 0);
    for key in ["dropped", "awaited"] {
        assert!(!other.is_locked(key).await.unwrap(), "{key}");
    }
    drop(dropped);
    awaited.await.unwrap();
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_being_taken_up_during_the_shutdown_is_released() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let handover = manager.lock("k").await.unwrap().hand_over().unwrap();
    let mut take_up = manager.take_up(handover).acquire();
    backend.next([Fate::HoldReply]);
    assert!(timeout(Duration::ZERO, &mut take_up).await.is_err());
    shut_down_in_vain(&manager).await;
    assert!(other.is_locked("k").await.unwrap());
    drop(take_up);
    backend.let_go();
    support::eventually_free(&other, "k").await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
}

/// Shuts a manager down that waits in vain for somebody who is not polled.
async fn shut_down_in_vain(manager: &LockManager) {
    let before = Instant::now();
    assert_eq!(manager.shutdown(secs(30)).await, 0);
    assert!((secs(1)..ms(2_100)).contains(&before.elapsed()), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_a_future_that_is_not_polled() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let _held = other.lock("k").await.unwrap();
    let mut waiter = manager.lock("k").acquire();
    assert!(timeout(ms(10), &mut waiter).await.is_err());
    let before = Instant::now();
    assert!(!manager.is_shut_down());
    assert_eq!(manager.clone().shutdown(secs(30)).await, 0);
    assert!(manager.is_shut_down(), "with every clone");
    assert!(before.elapsed() < ms(100), "{:?}", before.elapsed());
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
    assert_eq!(waiter.await.unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn after_stop_waiting_waiters_and_new_requests_fail_and_holders_go_on() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let renewed = manager.lock("renewed").ttl(secs(3)).await.unwrap();
    let mut extended = manager.lock("extended").ttl(secs(3)).fixed().await.unwrap();
    let _theirs = other.lock("theirs").await.unwrap();
    // Behind a holder of this process, behind one of another process, and for several keys, one of which is acquired by then.
    let waiters = [
        tokio::spawn({
            let manager = manager.clone();
            async move { manager.lock("renewed").await.map(drop) }
        }),
        tokio::spawn({
            let manager = manager.clone();
            async move { manager.lock("theirs").wait_forever().await.map(drop) }
        }),
        tokio::spawn({
            let manager = manager.clone();
            async move { manager.lock_all(["a", "theirs"]).await.map(drop) }
        }),
    ];
    sleep(ms(100)).await;
    assert!(other.is_locked("a").await.unwrap(), "the third has one of its keys");
    let before = Instant::now();
    manager.clone().stop_waiting();
    for waiter in waiters {
        let result = timeout(secs(1), waiter).await.expect("it no longer waits");
        assert_eq!(result.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
    }
    assert!(before.elapsed() < ms(10), "{:?}", before.elapsed());
    support::eventually_free(&other, "a").await;
    assert_eq!(manager.lock("free").await.unwrap_err().kind(), ErrorKind::ShutDown);
    assert!(manager.is_shut_down() && !manager.health().is_up(), "a readiness probe has to fail");

    extended.extend(secs(60)).await.unwrap();
    sleep(secs(30)).await;
    assert!(renewed.is_held() && extended.is_held(), "ten times their ttl");
    assert!(other.is_locked("renewed").await.unwrap());
    renewed.release().await.unwrap();
    drop(extended);
    for key in ["renewed", "extended"] {
        support::eventually_free(&other, key).await;
    }
    manager.stop_waiting();
    assert_eq!(manager.shutdown(secs(30)).await, 0);
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
}

#[tokio::test(start_paused = true)]
async fn after_stop_waiting_a_lease_can_be_handed_over_and_not_be_downgraded() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let (handed, writer) = (manager.lock("handed").await.unwrap(), manager.lock("price").await.unwrap());
    manager.stop_waiting();
    let handover = handed.hand_over().unwrap();
    assert_eq!(manager.take_up(handover.clone()).await.unwrap_err().kind(), ErrorKind::ShutDown);
    let taken_up = other.take_up(handover).await.unwrap();
    assert!(taken_up.is_held());
    assert_eq!(writer.downgrade().await.unwrap_err().kind(), ErrorKind::ShutDown);
    support::eventually_free(&other, "price").await;
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_after_stop_waiting_still_waits_for_holders_and_ends_those_that_are_left() {
    let (manager, _) = support::counted();
    let (quick, stuck) = (manager.lock("quick").await.unwrap(), manager.lock("stuck").await.unwrap());
    manager.stop_waiting();
    tokio::spawn(async move {
        sleep(secs(1)).await;
        drop(quick);
    });
    let before = Instant::now();
    assert_eq!(manager.shutdown(secs(3)).await, 1);
    assert!(before.elapsed() >= secs(3), "{:?}", before.elapsed());
    assert_eq!(stuck.ended().await, End::Lost(LossReason::ShutDown));
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_after_stop_waiting_leaves_no_task() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let guard = manager.lock("k").await.unwrap();
    manager.stop_waiting();
    drop(manager);
    sleep(secs(60)).await;
    assert!(guard.is_held(), "its holder goes on");
    drop(guard);
    support::eventually_free(&other, "k").await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "only the engine of the other manager runs");
}
