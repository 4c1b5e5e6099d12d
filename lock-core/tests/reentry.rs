//! Keys that a task holds already: refused to it inside a scope, and to it alone; memory backend, virtual time.

use std::task::{Context, Waker};

use lock_core::{ErrorKind, LockManager, LossReason, OnLost};
use tokio::time::sleep;

use crate::support::ms;

#[tokio::test(start_paused = true)]
async fn a_key_that_the_task_holds_is_refused_before_others_of_its_request_are_waited_for() {
    let manager = LockManager::in_memory();
    let _busy = manager.lock("a").await.unwrap();
    let waits = manager.lock("b").run(async |_| {
        let both = manager.lock_all(["a", "b"]).wait_forever().acquire();
        tokio::time::timeout(ms(1), both).await
    });
    let error = waits.await.unwrap().expect("it is refused at once").unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::WouldDeadlock, Some("b")), "{error}");
    let invalid = manager.lock_all([lock_core::exclusive("a"), lock_core::permits("b", 0)]).wait_forever().acquire();
    let error = tokio::time::timeout(ms(1), invalid).await.expect("it is refused at once").unwrap_err();
    assert_eq!(error.key(), Some("b"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_22_and_62_the_same_key_inside_a_scoped_form_would_deadlock_and_names_both_places() {
    let manager = LockManager::in_memory();
    let error = manager
        .lock("outer")
        .run(async |_| {
            let inner = manager.lock("inner").run(async |_| {
                assert!(manager.lock("third").await.is_ok());
                assert!(manager.lock("outer").try_acquire().await.unwrap().is_none(), "a try waits for nobody");
                assert!(manager.lock_all(["a", "inner"]).await.is_err());
                manager.lock("outer").await.unwrap_err()
            });
            inner.await.unwrap()
        })
        .await
        .unwrap();
    assert_eq!((error.kind(), error.key()), (ErrorKind::WouldDeadlock, Some("outer")));
    assert_eq!(error.to_string().matches("reentry.rs:").count(), 2, "{error}");

    let guard = manager.lock("lost").await.unwrap();
    let work = async {
        manager.force_release("lost").await.unwrap();
        tokio::task::yield_now().await;
        let again = manager.lock("lost").await.unwrap();
        again.release().await.unwrap();
        assert!(manager.lock("lost").try_acquire().await.unwrap().is_some());
    };
    let outcome = guard.protect(work).on_lost(OnLost::Finish).await;
    assert!(
        outcome.unwrap_err().kind() == ErrorKind::Lost(LossReason::Forced),
        "this task does not hold it any longer"
    );

    let other = LockManager::in_memory();
    manager.lock("k").run(async |_| drop(other.lock("k").await.unwrap())).await.unwrap();
    assert!(manager.lock("outer").wait(ms(100)).await.is_ok(), "after the scope the key is free to ask for");
}

/// What the task holds is what it holds where the work is polled, and not where that was begun.
#[tokio::test(start_paused = true)]
async fn work_may_move_into_a_scope_and_out_of_it() {
    let manager = LockManager::in_memory();
    let begun = async |inner: &'static str| {
        let (go, gate) = tokio::sync::oneshot::channel::<()>();
        let (guard, manager) = (manager.lock(format!("{inner} beside")).await.unwrap(), manager.clone());
        let work = guard.protect(async move {
            gate.await.unwrap();
            manager.lock(inner).await.map(drop)
        });
        (go, Box::pin(work))
    };
    let once = &mut Context::from_waker(Waker::noop());
    let (go, mut work) = begun("a").await;
    assert!(work.as_mut().poll(once).is_pending());
    let refused = manager.lock("a").run(async |_| {
        go.send(()).unwrap();
        work.await.unwrap().unwrap_err().kind()
    });
    assert_eq!(refused.await.unwrap(), ErrorKind::WouldDeadlock);

    let (go, mut work) = begun("b").await;
    let mut task = None;
    let outside = manager.lock("b").run(async |_| {
        assert!(work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        go.send(()).unwrap();
        task = Some(tokio::spawn(work));
        sleep(ms(10)).await;
    });
    outside.await.unwrap();
    assert!(task.unwrap().await.unwrap().unwrap().is_ok(), "a spawned task only waits");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_the_task_holds_twice_is_held_until_it_is_lost_twice() {
    let manager = LockManager::in_memory();
    let shared = || manager.lock("k").shared();
    let inner = shared().max_hold(ms(10)).on_lost(OnLost::Finish).try_acquire();
    let error = shared().run(async |_| {
        let work = async {
            sleep(ms(20)).await;
            manager.lock("k").await.unwrap_err().kind()
        };
        let mut kind = None;
        let lost = inner.await.unwrap().unwrap().protect(async { kind = Some(work.await) }).await;
        (lost.unwrap_err().kind(), kind)
    });
    let (lost, kind) = error.await.unwrap();
    assert_eq!((lost, kind), (ErrorKind::Lost(LossReason::MaxHold), Some(ErrorKind::WouldDeadlock)));
}
