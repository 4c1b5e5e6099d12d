//! Dropped futures and guards, lost answers, runtimes that end: nothing is left behind.

use std::{future::Future, pin::pin, task::Context, time::Instant};

use futures_util::task::noop_waker_ref;
use lock_core::{End, ErrorKind, LockManager, LossReason};
use tokio::{
    runtime,
    time::{sleep, timeout},
};

use crate::support::{self, Fate, Faulty, ms, secs};

/// Polls a future once, and drops it.
fn poll_once_and_drop(future: impl Future) {
    let mut future = pin!(future);
    assert!(future.as_mut().poll(&mut Context::from_waker(noop_waker_ref())).is_pending());
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_is_dropped_before_its_answer_leaves_nothing() {
    for fate in [Fate::Hold, Fate::HoldReply] {
        let (manager, backend) = support::counted();
        manager.lock("warm").await.unwrap().release().await.unwrap();
        backend.next([fate]);
        poll_once_and_drop(manager.lock("k").acquire());
        backend.let_go();
        sleep(ms(10)).await;
        assert!(!manager.is_locked("k").await.unwrap(), "{fate:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_was_never_polled_sends_nothing() {
    let (manager, backend) = support::counted();
    drop(manager.lock("k").acquire());
    drop(manager.lock_all(["k", "l"]).acquire());
    sleep(secs(1)).await;
    assert_eq!(backend.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_dropped_leaves_nothing() {
    let (manager, backend) = support::counted();
    let held = manager.lock("k").await.unwrap();
    assert!(timeout(secs(1), manager.lock("k")).await.is_err());
    held.release().await.unwrap();
    let calls = backend.calls();
    sleep(secs(5)).await;
    assert_eq!(backend.calls(), calls, "the dropped waiter asks no more");
    assert!(!manager.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn several_keys_that_are_dropped_half_way_are_all_released() {
    let manager = LockManager::in_memory();
    let held = manager.lock("b").await.unwrap();
    assert!(timeout(ms(100), manager.lock_all(["a", "b", "c"])).await.is_err());
    support::eventually_free(&manager, "a").await;
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_acquire_whose_answer_was_lost_is_released_until_its_deadline_after_a_reconnect() {
    let (manager, backend) = support::counted();
    // The first release waits for the new connection.
    backend.next([Fate::LoseReply, Fate::Hold]);
    let error = manager.lock("k").ttl(secs(2)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Backend, Some("k")));
    backend.replace_connection();
    backend.let_go();
    support::eventually_free(&manager, "k").await;
    sleep(secs(10)).await;
    let releases = backend.log().iter().filter(|call| **call == ["release"]).count();
    assert!((4..=5).contains(&releases), "at 0, 50, 300, 1,300 and 2,300 ms, not {releases} times");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_executed_late_over_an_old_connection_is_cleaned_up() {
    let (manager, backend) = support::counted();
    backend.next([Fate::Hold]);
    let late = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").ttl(secs(2)).await }
    });
    sleep(ms(10)).await;
    // The future is dropped and the connection replaced; the old request is still somewhere on its way.
    let token = backend.steal_held_request();
    late.abort();
    backend.replace_connection();
    sleep(ms(200)).await;
    token.execute().await;
    assert!(manager.is_locked("k").await.unwrap());
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_without_validity_left_is_no_acquire_and_is_released() {
    let (manager, backend) = support::counted();
    // The request, and the engine's repetition of it when the answer stayed away.
    backend.next([Fate::HoldReply, Fate::HoldReply]);
    let acquire = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").ttl(ms(300)).await.unwrap() }
    });
    sleep(ms(450)).await;
    backend.let_go();
    let guard = acquire.await.unwrap();
    assert!(guard.remaining() > ms(250), "held by another request with a token of its own");
    sleep(secs(2)).await;
    assert!(guard.is_held());
    assert!(backend.log().concat().contains(&"release"), "the token that came too late is released");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_is_released_and_tried_again_until_that_works() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").await.unwrap();
    backend.next([Fate::Fail, Fate::Fail]);
    drop(guard);
    support::eventually_free(&manager, "k").await;
    let releases = backend.log().concat().into_iter().filter(|operation| *operation == "release");
    assert_eq!(releases.count(), 3, "until the first that works");
}

#[tokio::test(start_paused = true)]
async fn guards_that_are_dropped_together_are_released_together() {
    let (manager, backend) = support::counted();
    let mut guards = Vec::new();
    for key in 0..200 {
        guards.push(manager.lock(format!("k:{key}")).await.unwrap());
    }
    let calls = backend.calls();
    drop(guards);
    sleep(ms(10)).await;
    assert_eq!(backend.calls() - calls, 1);
    assert_eq!(manager.force_release_all("").await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_dropped_at_any_point_is_finished_by_the_engine() {
    let (manager, backend) = support::counted();
    drop(manager.lock("never polled").await.unwrap().release());
    support::eventually_free(&manager, "never polled").await;
    let guard = manager.lock("half way").await.unwrap();
    backend.next([Fate::Hold]);
    poll_once_and_drop(guard.release());
    sleep(ms(1)).await;
    backend.let_go();
    support::eventually_free(&manager, "half way").await;
}

#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_answered_says_so_and_goes_on_in_the_background() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").await.unwrap();
    backend.next([Fate::Fail]);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Backend);
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn work_that_is_dropped_half_way_frees_its_key() {
    let manager = LockManager::in_memory();
    let run = manager.lock("k").run(async |_| sleep(secs(60)).await);
    assert!(timeout(secs(1), run).await.is_err());
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn bad_input_20_and_41_guards_release_after_the_last_manager_is_gone() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    drop(manager);
    sleep(secs(30)).await;
    assert!(guard.is_held(), "and are renewed until then");
    drop(guard);
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    support::eventually_free(&other, "k").await;
    let calls = backend.calls();
    sleep(secs(30)).await;
    assert_eq!(backend.calls(), calls, "then the engine has ended");
}

#[test]
fn bad_input_40_outside_a_runtime_there_is_an_error_and_no_panic() {
    let manager = LockManager::in_memory();
    let mut acquire = pin!(manager.lock("k").acquire());
    let polled = acquire.as_mut().poll(&mut Context::from_waker(noop_waker_ref()));
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("answered at once") };
    assert_eq!((error.kind(), error.key()), (ErrorKind::NoRuntime, Some("k")));
    // Nor for one that waits, which needs a timer, while the engine runs in a runtime elsewhere.
    let elsewhere = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _held = elsewhere.block_on(async { manager.lock("k").await.unwrap() });
    let mut waits = pin!(manager.lock("k").wait(secs(1)).acquire());
    let polled = waits.as_mut().poll(&mut Context::from_waker(noop_waker_ref()));
    let std::task::Poll::Ready(Err(error)) = polled else { panic!("answered at once") };
    assert_eq!((error.kind(), error.key()), (ErrorKind::NoRuntime, Some("k")));
}

#[test]
fn bad_input_40_the_next_request_starts_the_engine_again_when_its_runtime_has_ended() {
    let (manager, backend) = support::counted();
    let first = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = first.block_on(async { manager.lock("k").await.unwrap() });
    assert!(guard.is_held());
    drop(first);
    assert!(!guard.is_held(), "nobody renews it any more");
    let mut lost = pin!(guard.ended());
    let polled = lost.as_mut().poll(&mut Context::from_waker(noop_waker_ref()));
    assert_eq!(polled, std::task::Poll::Ready(End::Lost(LossReason::ShutDown)));
    drop(guard);

    let second = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    second.block_on(async {
        // What the first runtime left is released by the new engine.
        let guard = manager.lock("k").ttl(ms(90)).wait(secs(2)).await.unwrap();
        sleep(ms(300)).await;
        assert!(guard.is_held(), "it is renewed again");
        guard.release().await.unwrap();
    });
    assert!(backend.calls() > 4);
}

#[test]
fn a_runtime_of_the_builder_renews_while_the_callers_thread_is_blocked() {
    let engine = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let backend = Faulty::new();
    let manager = LockManager::builder().backend(backend.clone()).runtime(engine.handle().clone()).build().unwrap();
    let caller = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let guard = caller.block_on(async { manager.lock("k").ttl(secs(600)).renew_every(ms(100)).await.unwrap() });
    let limit = Instant::now() + secs(60);
    while !backend.log().concat().contains(&"renew") {
        assert!(Instant::now() < limit, "nobody renews it");
        std::thread::sleep(ms(5));
    }
    assert!(guard.is_held());
    // With a runtime of its own a request needs none of the caller's.
    futures_executor_block_on(async {
        let error = manager.lock("k").wait(secs(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
    });
    drop(engine);
    assert!(!guard.is_held());
    let error = caller.block_on(async { manager.lock("other").await.unwrap_err() });
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
}

#[test]
fn guards_can_be_dropped_anywhere() {
    let manager = LockManager::in_memory();
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let take = |key: &'static str| runtime.block_on(async { manager.lock(key).ttl(secs(600)).await.unwrap() });
    let free = |key: &'static str| support::really_free(&runtime, &manager, key);

    let guard = take("thread");
    std::thread::spawn(move || drop(guard)).join().unwrap();
    free("thread");

    let guard = take("blocking");
    runtime.block_on(runtime.spawn_blocking(move || drop(guard))).unwrap();
    free("blocking");

    let guard = take("unwinding");
    let unwinding = std::thread::spawn(move || {
        let _guard = guard;
        panic!("on purpose");
    });
    assert!(unwinding.join().is_err());
    free("unwinding");

    let guard = take("other runtime");
    runtime::Builder::new_current_thread().build().unwrap().block_on(async move { drop(guard) });
    free("other runtime");

    let guard = take("after the end");
    drop(runtime);
    drop(guard);
}

#[test]
fn a_forgotten_guard_is_only_a_lease_that_goes_on() {
    let runtime = runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let manager = LockManager::in_memory();
        std::mem::forget(manager.lock("k").ttl(secs(1)).max_hold(secs(5)).await.unwrap());
        assert!(manager.lock("k").wait(secs(4)).await.is_err());
        assert!(manager.lock("k").wait(secs(4)).await.is_ok(), "`max_hold` ends even that");
    });
}

/// Polls a future on a thread without a runtime.
fn futures_executor_block_on<F: Future>(future: F) -> F::Output {
    use std::{
        sync::Arc,
        task::{Poll, Wake},
        thread::{self, Thread},
    };
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}
