//! How a lease ends, and who is told; memory backend, virtual time.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use lock_core::{End, ErrorKind, LeaseOptions, LockManager, LossReason, OnLost};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{self, Fate, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_not_renewed_is_lost_at_its_deadline_without_a_question() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(1)).fixed().await.unwrap();
    let before = Instant::now();
    assert_eq!(guard.ended().await, End::Lost(LossReason::Expired));
    let validity = ms(1_000 - 10 - 2);
    assert!((validity..validity + ms(3)).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert!(!guard.is_held() && guard.remaining().is_zero());
    assert_eq!(backend.log()[0], ["acquire"]);
    assert!(backend.log()[1..].iter().flatten().all(|operation| *operation == "release"));
}

#[tokio::test(start_paused = true)]
async fn bad_input_21_after_the_deadline_nothing_is_asked_and_the_loss_is_named() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(ms(50)).fixed().await.unwrap();
    // The thread is blocked, so that the engine cannot have noticed.
    tokio::time::advance(ms(60)).await;
    backend.always(Fate::Fail);
    let calls = backend.calls();
    let error = guard.extend(secs(1)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost(LossReason::Expired), Some("k")));
    assert_eq!(guard.extend_by(secs(1)).await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Expired));
    assert_eq!(backend.calls() - calls, backend.log()[calls..].iter().filter(|call| call[0] == "release").count());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_is_lost_at_the_next_renewal() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    other.force_release("k").await.unwrap();
    let _successor = other.lock("k").await.unwrap();
    let before = Instant::now();
    assert_eq!(guard.ended().await, End::Lost(LossReason::Taken));
    assert!(before.elapsed() <= secs(1) + ms(250), "{:?}", before.elapsed());
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Taken));
    assert!(other.is_locked("k").await.unwrap(), "the successor is left alone");
}

#[tokio::test(start_paused = true)]
async fn every_clone_of_a_lease_is_woken_when_it_is_lost() {
    let manager = LockManager::in_memory();
    let mut guard = manager.lock("k").await.unwrap();
    let lost: Vec<_> = (0..5).map(|_| tokio::spawn(guard.ended())).collect();
    let mut clone = guard.lease().clone();
    let polled = tokio::spawn(async move { poll_fn(|cx| clone.poll_ended(cx)).await });
    tokio::task::yield_now().await;
    assert!(poll_fn(|cx| Poll::Ready(guard.poll_ended(cx))).await.is_pending());
    manager.force_release("k").await.unwrap();
    for lost in lost.into_iter().chain([polled]) {
        let woken = timeout(secs(1), lost).await.expect("each is woken");
        assert_eq!(woken.unwrap(), End::Lost(LossReason::Forced));
    }
    assert_eq!(poll_fn(|cx| guard.poll_ended(cx)).await, End::Lost(LossReason::Forced));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_outlives_its_guard_is_told_of_the_release() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    let (one, two) = (guard.lease().clone(), guard.lease().clone());
    let ended = tokio::spawn(async move { one.ended().await });
    tokio::task::yield_now().await;
    drop(guard);
    assert_eq!(ended.await.unwrap(), End::Released);
    assert!(!two.is_held());
}

#[tokio::test(start_paused = true)]
async fn hand_over_is_not_told_as_a_loss() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    let lease = guard.lease().clone();
    let ended = tokio::spawn(lease.ended());
    tokio::task::yield_now().await;
    let handover = guard.hand_over().unwrap();
    assert_eq!(ended.await.unwrap(), End::HandedOver);
    let guard = manager.take_up(handover).await.unwrap();
    assert!(guard.is_held() && !lease.is_held());
}

#[tokio::test(start_paused = true)]
async fn loss_among_several_is_told_although_the_others_are_released() {
    let manager = LockManager::in_memory();
    let guard = manager.lock_all(["a", "b", "c"]).await.unwrap();
    let leases = guard.leases().clone();
    manager.force_release("b").await.unwrap();
    drop(guard);
    let (lease, end) = leases.ended().await;
    assert_eq!((lease.key(), end), ("b", End::Lost(LossReason::Forced)));

    let guard = manager.lock_all(["a", "b", "c"]).await.unwrap();
    let ended = tokio::spawn(guard.ended());
    tokio::task::yield_now().await;
    drop(guard);
    assert_eq!(ended.await.unwrap().1, End::Released);
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_hold_and_not_from_the_wait_before_it() {
    let manager = LockManager::in_memory();
    let first = manager.lock("k").await.unwrap();
    let next = tokio::spawn(manager.lock("k").max_hold(secs(2)).wait(secs(9)).acquire());
    sleep(secs(5)).await;
    drop(first);
    let guard = next.await.unwrap().unwrap();
    sleep(ms(1_900)).await;
    assert!(guard.is_held());
    assert_eq!(guard.ended().await, End::Lost(LossReason::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn max_hold_of_several_keys_counts_from_the_last_of_them() {
    let manager = LockManager::in_memory();
    let busy = manager.lock("b").await.unwrap();
    let all = tokio::spawn(manager.lock_all(["a", "b"]).max_hold(secs(2)).wait(secs(9)).acquire());
    sleep(secs(5)).await;
    drop(busy);
    let all = all.await.unwrap().expect("`a` is held on while `b` is waited for");
    sleep(ms(1_900)).await;
    assert!(all.is_held());
    assert_eq!(timeout(secs(1), all.ended()).await.unwrap().1, End::Lost(LossReason::MaxHold));
    for key in ["a", "b"] {
        support::eventually_free(&manager, key).await;
    }
    let all = manager.lock_all(["a", "b"]).max_hold(secs(2)).await.unwrap();
    sleep(ms(1_900)).await;
    assert!(all.is_held());
    assert_eq!(timeout(secs(1), all.ended()).await.unwrap().1, End::Lost(LossReason::MaxHold));
    let none = manager.lock_all(["a", "b"]).max_hold(Duration::ZERO).await.unwrap_err();
    assert!(none.to_string().contains("max_hold"), "{none}");
}

#[tokio::test(start_paused = true)]
async fn max_hold_ends_a_hold_that_is_stuck_and_frees_the_key() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").ttl(secs(3)).max_hold(secs(20)).await.unwrap();
    let before = Instant::now();
    sleep(secs(19)).await;
    assert!(guard.is_held() && guard.remaining() <= secs(1));
    assert_eq!(guard.ended().await, End::Lost(LossReason::MaxHold));
    assert!((secs(20)..ms(20_010)).contains(&before.elapsed()), "{:?}", before.elapsed());
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn work_is_dropped_where_it_stands_when_its_lease_is_lost() {
    struct OnDrop(Arc<AtomicBool>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let (manager, backend) = support::counted();
    let dropped = Arc::new(AtomicBool::new(false));
    let on_drop = OnDrop(Arc::clone(&dropped));
    let mut reached = 0;
    let before = Instant::now();
    let result = manager
        .lock("k")
        .ttl(secs(3))
        .run(async |_| {
            let _on_drop = on_drop;
            loop {
                sleep(secs(1)).await;
                reached += 1;
                if reached == 5 {
                    backend.always(Fate::Fail);
                }
            }
        })
        .await;
    let error: lock_core::Error = match result {
        Err(error) => error,
        Ok(()) => unreachable!("the work does not end"),
    };
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Expired));
    assert!(error.to_string().contains("\"k\""), "{error}");
    assert!(dropped.load(Ordering::SeqCst));
    // The last success was at most a third of the ttl before the failures began, at 5 s.
    assert!((secs(6)..secs(8)).contains(&before.elapsed()), "{:?}", before.elapsed());
}

/// Lets time pass without giving the thread up: a stall of the whole process, in which no timer fires.
fn stall(duration: Duration) {
    let advance = pin!(tokio::time::advance(duration));
    assert!(advance.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[tokio::test(start_paused = true)]
async fn the_deadline_is_looked_at_before_every_poll_of_the_work() {
    let manager = LockManager::in_memory();
    let mut after = false;
    let result = manager
        .lock("k")
        .ttl(ms(30))
        .fixed()
        .run(async |_| {
            stall(ms(50));
            tokio::task::yield_now().await;
            after = true;
        })
        .await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost(LossReason::Expired));
    assert!(!after, "the work does not go on after its deadline");
}

#[tokio::test(start_paused = true)]
async fn work_that_completes_as_its_lease_ends_has_its_result_returned() {
    let manager = LockManager::in_memory();
    let result = manager
        .lock("k")
        .ttl(ms(30))
        .fixed()
        .run(async |_| {
            stall(ms(50));
            "done"
        })
        .await;
    assert_eq!(result.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_never_hides_the_result_of_the_work() {
    let (manager, backend) = support::counted();
    let result = manager.lock("k").run(async |_| backend.always(Fate::Fail)).await;
    assert!(result.is_ok());
    backend.always(Fate::Answer);
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_one_key_frees_no_other_sooner_than_at_least() {
    let manager = LockManager::in_memory();
    let guard = manager.lock_all(["a", "b"]).at_least(secs(60)).on_lost(OnLost::Finish).await.unwrap();
    let work = async {
        manager.force_release("a").await.unwrap();
        tokio::task::yield_now().await;
    };
    assert_eq!(guard.protect(work).await.unwrap_err().key(), Some("a"));
    sleep(secs(1)).await;
    assert!(manager.lock("a").try_acquire().await.unwrap().is_some());
    assert!(manager.lock("b").try_acquire().await.unwrap().is_none(), "its work has run to the end");
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_work_goes_on_and_releases_the_lease() {
    let manager = LockManager::in_memory();
    let task = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").run(async |_| panic!("on purpose")).await }
    });
    assert!(task.await.unwrap_err().is_panic());
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn work_may_be_let_finish_or_go_on_unwatched_when_its_lease_is_lost() {
    let manager = LockManager::in_memory();
    for (policy, expected) in [
        (OnLost::Cancel, (false, Err(ErrorKind::Lost(LossReason::Forced)))),
        (OnLost::Finish, (true, Err(ErrorKind::Lost(LossReason::Forced)))),
        (OnLost::Ignore, (true, Ok("done"))),
    ] {
        let mut finished = false;
        let guard = manager.lock("k").await.unwrap();
        let work = async {
            manager.force_release("k").await.unwrap();
            sleep(secs(1)).await;
            finished = true;
            "done"
        };
        let result = guard.protect(work).on_lost(policy).await.map_err(|error| error.kind());
        assert_eq!((finished, result), expected, "{policy:?}");
    }
    let kept = manager.lock("k").await.unwrap().protect(async { "done" }).on_lost(OnLost::Finish).await;
    assert_eq!(kept.unwrap(), "done");
}

#[tokio::test(start_paused = true)]
async fn policy_is_that_of_the_work_else_of_the_request_else_of_the_manager() {
    let manager =
        LockManager::builder().url("memory://").defaults(LeaseOptions::new().on_lost(OnLost::Ignore)).build().unwrap();
    let work = async || {
        manager.force_release("k").await.unwrap();
        tokio::task::yield_now().await;
        "done"
    };
    let lost = Err(ErrorKind::Lost(LossReason::Forced));
    let kind = |error: lock_core::Error| error.kind();
    let request = || manager.lock("k");
    assert_eq!(request().run(async |_| work().await).await.map_err(kind), Ok("done"));
    assert_eq!(request().on_lost(OnLost::Finish).run(async |_| work().await).await.map_err(kind), lost);
    assert_eq!(request().try_run(async |_| work().await).await.map_err(kind), Ok(Some("done")));
    let all = || manager.lock_all(["j", "k"]);
    assert_eq!(all().run(async |_| work().await).await.map_err(kind), Ok("done"));
    assert_eq!(all().on_lost(OnLost::Finish).run(async |_| work().await).await.map_err(kind), lost);
    let guard = request().on_lost(OnLost::Finish).await.unwrap();
    assert_eq!(guard.protect(work()).await.map_err(kind), lost);
    let guard = request().on_lost(OnLost::Finish).await.unwrap();
    assert_eq!(guard.protect(work()).on_lost(OnLost::Ignore).await.map_err(kind), Ok("done"));
}

/// Asks the manager for something while it is being woken, as an executor that polls in place does.
struct AsksInPlace(LockManager);

impl Wake for AsksInPlace {
    fn wake(self: Arc<Self>) {
        let mut acquire = pin!(self.0.lock("asked in place").acquire());
        let _ = acquire.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

#[test]
fn a_waker_may_use_the_manager_in_place() {
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let manager = LockManager::in_memory();
            let waker = Arc::new(AsksInPlace(manager.clone())).into();
            let mut cx = Context::from_waker(&waker);
            let mut expires = manager.lock("expires").ttl(ms(50)).fixed().await.unwrap();
            assert!(expires.poll_ended(&mut cx).is_pending());
            sleep(ms(100)).await;
            assert!(expires.poll_ended(&mut cx).is_ready());
            let mut forced = manager.lock("forced").await.unwrap();
            assert!(forced.poll_ended(&mut cx).is_pending());
            manager.force_release("forced").await.unwrap();
            assert!(forced.poll_ended(&mut cx).is_ready());
            let mut shut_down = manager.lock("shut down").await.unwrap();
            assert!(shut_down.poll_ended(&mut cx).is_pending());
            manager.shutdown(Duration::ZERO).await;
        });
        let _ = done.send(());
    });
    finished.recv_timeout(secs(60)).expect("the engine does not hold its lock while it wakes");
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_told_before_a_ttl_out_of_range() {
    let manager = LockManager::in_memory();
    let mut guard = manager.lock("k").await.unwrap();
    manager.force_release("k").await.unwrap();
    assert_eq!(guard.extend_by(ms(1)).await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
    assert_eq!(guard.extend(ms(1)).await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
}

#[tokio::test(start_paused = true)]
async fn a_fixed_lease_that_has_expired_says_that_nothing_renewed_it() {
    let manager = LockManager::in_memory();
    let request = manager.lock("k").ttl(secs(1)).fixed();
    let late = request.clone().run(async |_| sleep(secs(2)).await).await.expect_err("it has expired");
    let guard = request.clone().await.expect("it is free");
    let mut other = manager.lock("l").ttl(secs(1)).fixed().await.expect("it is free");
    sleep(secs(1)).await;
    let extended = other.extend(secs(1)).await.expect_err("it has expired");
    for error in [late, extended, guard.release().await.expect_err("it has expired")] {
        assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Expired));
        let said = error.to_string();
        assert!(said.contains("`fixed` switches renewal off") && !said.contains("check the backend"), "{said}");
    }
}

/// The time of the runtime jumps: its threads did not look at it in between.
#[tokio::test(start_paused = true)]
async fn a_lease_that_lapsed_while_the_process_stood_still_says_for_how_long() {
    let (log, _logs) = crate::support::log::Log::begin();
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").ttl(secs(1)).await.expect("it is free");
    let mut other = manager.lock("l").ttl(secs(1)).await.expect("it is free");
    let works = tokio::spawn(manager.lock("m").ttl(secs(1)).run(async |_| std::future::pending::<()>().await));
    sleep(ms(300)).await;
    tokio::time::advance(secs(5)).await;
    // Before the engine has looked, too.
    let extended = other.extend(secs(1)).await.expect_err("it has expired");
    let cancelled = works.await.expect("no panic").expect_err("it has expired");
    for error in [extended, cancelled, guard.release().await.expect_err("it has expired")] {
        assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Expired));
        let said = error.to_string();
        assert!(
            said.contains("this process stood still for 4.") || said.contains("this process stood still for 5.0"),
            "{said}"
        );
        assert!(!said.contains("check the backend"), "{said}");
    }
    sleep(ms(300)).await;
    assert!(log.count("this process stood still for") >= 1, "{}", log.text());
}

/// The table in guarantees.md, "What dropping does not stop".
#[tokio::test(start_paused = true)]
async fn what_lost_work_has_spawned_goes_on_unless_it_is_of_the_work_or_asks_the_lease() {
    let manager = LockManager::in_memory();
    let ends = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let [goes_on, in_a_set, asks] = ends.clone();
    let sets = |flag: Arc<AtomicBool>| async move {
        sleep(secs(60)).await;
        flag.store(true, Ordering::Relaxed);
    };
    let (told, is_told) = tokio::sync::oneshot::channel();
    let lost = manager.lock("k").run(async |lease| {
        tokio::spawn(sets(goes_on));
        let mut set = tokio::task::JoinSet::new();
        set.spawn(sets(in_a_set));
        let lease = lease.clone();
        tokio::spawn(async move {
            tokio::select! {
                end = lease.ended() => drop(told.send(end)),
                () = sets(asks) => {}
            }
        });
        manager.force_release("k").await.unwrap();
        set.join_all().await
    });
    assert_eq!(lost.await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Forced));
    assert_eq!(is_told.await, Ok(End::Lost(LossReason::Forced)));
    sleep(secs(61)).await;
    assert_eq!(ends.map(|flag| flag.load(Ordering::Relaxed)), [true, false, false]);
}

/// The thread is blocked, so that the engine cannot have noticed.
#[tokio::test]
async fn a_loss_that_its_holder_finds_out_before_the_engine_is_logged_once_too() {
    let (log, _logs) = crate::support::log::Log::begin();
    let manager = LockManager::in_memory();
    let blocked = |lease: &lock_core::Lease| {
        std::thread::sleep(ms(60));
        assert!(!lease.is_held());
    };
    let is_logged = |key: &str| assert_eq!(log.count(&format!("lease lost key={key:?}")), 1, "{key}: {}", log.text());
    let short = |key: &str| manager.lock(key).ttl(ms(50)).fixed();
    let guard = short("released").await.unwrap();
    blocked(guard.lease());
    guard.release().await.unwrap_err();
    is_logged("released");
    let guard = short("dropped").await.unwrap();
    blocked(guard.lease());
    drop(guard);
    is_logged("dropped");
    let work = async |lease: lock_core::Lease| {
        blocked(&lease);
        tokio::task::yield_now().await;
    };
    assert!(short("worked").run(work).await.unwrap_err().is_lost());
    is_logged("worked");
    // The next waiter's hold follows, since the ttl is not over.
    let guard = manager.lock("passed").max_hold(ms(50)).await.unwrap();
    let next = tokio::spawn(manager.lock("passed").acquire());
    tokio::task::yield_now().await;
    blocked(guard.lease());
    drop(guard);
    is_logged("passed");
    next.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(manager.health().losses().iter().map(|(_, count)| count).sum::<u64>(), 4);
    for key in ["released", "dropped", "worked", "passed"] {
        is_logged(key);
    }
}

/// A few have a line of their own, the others a number: also when the runtime ends, and no task follows that could say it later.
#[test]
fn losses_by_the_end_of_a_runtime_are_logged_as_a_number_too() {
    let (log, _logs) = crate::support::log::Log::begin();
    let ends = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let manager = LockManager::in_memory();
    let _guards: Vec<_> = ends.block_on(async {
        let mut guards = Vec::new();
        for key in 0..10 {
            guards.push(manager.lock(format!("k{key}")).await.unwrap());
        }
        guards
    });
    drop(ends);
    assert_eq!(log.count("lease lost key="), 5, "{}", log.text());
    assert_eq!(log.count("leases=5"), 1, "{}", log.text());
}
