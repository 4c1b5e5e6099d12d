//! Acquiring, waiting, trying, several keys, handing over; memory backend, virtual time.

use std::{
    future::{Ready, pending},
    time::Duration,
};

use lock_core::{Argument, End, ErrorKind, Handover, LockManager, LossReason};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{self, Fate, Faulty, ms, secs};

#[tokio::test(start_paused = true)]
async fn a_second_request_waits_until_the_first_holder_releases() {
    let manager = LockManager::in_memory();
    let first = manager.lock("k").await.unwrap();
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").await.unwrap() }
    });
    sleep(secs(5)).await;
    assert!(!waiter.is_finished());
    let fence = first.fencing_token();
    first.release().await.unwrap();
    let second = timeout(ms(200), waiter).await.expect("soon after the release").unwrap();
    assert!(second.fencing_token() > fence);
}

#[tokio::test(start_paused = true)]
async fn a_place_that_was_made_before_calls_could_come_is_made_anew_when_it_is_passed_on() {
    let backend = Faulty::new();
    let holder = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let manager = LockManager::builder().backend(backend.clone()).build().unwrap();
    let held = holder.lock("k").await.unwrap();
    // The first request leaves before the manager listens, and its answer comes when its wait is over.
    backend.next([Fate::HoldReply]);
    let first = tokio::spawn(manager.lock("k").wait(ms(10)).acquire());
    sleep(ms(1)).await;
    let second = tokio::spawn(manager.lock("k").acquire());
    sleep(ms(20)).await;
    backend.let_go();
    assert_eq!(first.await.unwrap().unwrap_err().kind(), ErrorKind::Busy);
    sleep(ms(20)).await;
    held.release().await.unwrap();
    let released = Instant::now();
    drop(second.await.unwrap().unwrap());
    assert!(
        released.elapsed() <= ms(10),
        "it is called, and need not wait for its next check: {:?}",
        released.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn bad_input_10_a_wait_of_zero_is_one_try() {
    let manager = LockManager::in_memory();
    let _held = manager.lock("k").await.unwrap();
    let before = Instant::now();
    let error = manager.lock("k").wait(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert!(manager.lock("k").try_acquire().await.unwrap().is_none());
    assert!(manager.lock("free").wait(Duration::ZERO).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn try_run_works_under_the_lease_or_does_not_begin() {
    let manager = LockManager::in_memory();
    let mut runs = 0;
    let fence = manager.lock("k").try_run(async |lease| (runs += 1, lease.fencing_token()).1).await.unwrap();
    assert!(fence.is_some());
    assert!(!manager.is_locked("k").await.unwrap(), "released");

    let held = manager.lock("k").await.unwrap();
    let before = Instant::now();
    assert_eq!(manager.lock("k").try_run(async |_| runs += 1).await.unwrap(), None);
    assert_eq!(manager.lock_all(["j", "k"]).try_run(async |_| runs += 1).await.unwrap(), None);
    assert_eq!((before.elapsed(), runs), (Duration::ZERO, 1));
    held.release().await.unwrap();
    sleep(ms(1)).await; // until "j" is given back, in the background

    let both = manager.lock_all(["j", "k"]).try_run(async |leases| leases.is_held());
    assert_eq!(both.await.unwrap(), Some(true));
    let stuck = manager.lock("k").max_hold(ms(50)).try_run(async |_| std::future::pending::<()>().await);
    assert_eq!(stuck.await.unwrap_err().kind(), ErrorKind::Lost(LossReason::MaxHold));
    assert!(manager.lock("").try_run(async |_| runs += 1).await.is_err(), "a bad key is no busy one");
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_when_it_is_over_and_says_so() {
    let manager = LockManager::in_memory();
    let (_held, line) = (manager.lock("k").await.unwrap(), line!());
    let before = Instant::now();
    let error = manager.lock("k").wait(ms(300)).await.unwrap_err().to_string();
    let told = format!(
        "could not acquire \"k\": still held by someone else after 300ms; raise `wait`, or try again later; \
         this process acquired it at {}:{line}:",
        file!()
    );
    assert!(error.starts_with(&told), "{error}");
    assert!((ms(300)..ms(320)).contains(&before.elapsed()), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn bad_input_11_a_wait_may_be_longer_than_the_ttl_or_without_end() {
    let manager = LockManager::in_memory();
    let held = manager.lock("k").ttl(ms(100)).await.unwrap();
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").ttl(ms(100)).wait_forever().await }
    });
    sleep(secs(300)).await;
    assert!(!waiter.is_finished(), "the holder is renewed for five minutes");
    drop(held);
    assert!(waiter.await.unwrap().is_ok());
    assert!(manager.lock("other").ttl(ms(100)).wait(Duration::MAX).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_is_not_renewed_blocks_others_for_its_ttl_only() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").ttl(secs(3)).fixed().await.unwrap();
    let before = Instant::now();
    let next = manager.lock("k").await.unwrap();
    // The key is given back as soon as its holder knows that the lease is lost, just before the ttl is over.
    assert!((ms(2_968)..ms(3_100)).contains(&before.elapsed()), "{:?}", before.elapsed());
    assert!(!guard.is_held());
    assert!(next.is_held());
    // The late release of the first holder does not touch the second.
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Expired));
    sleep(ms(100)).await;
    assert!(manager.is_locked("k").await.unwrap() && next.is_held());
}

#[tokio::test]
async fn bad_input_1_to_8_and_12_durations_out_of_range_are_invalid_before_anything_is_sent() {
    let (manager, backend) = support::counted();
    let ttls =
        [Duration::ZERO, Duration::from_micros(999), ms(9), Duration::from_millis(i64::MAX as u64), Duration::MAX];
    for ttl in ttls {
        let error = manager.lock("k").ttl(ttl).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Ttl), "{ttl:?}");
        assert_eq!(error.key(), Some("k"));
    }
    for interval in [Duration::ZERO, Duration::from_nanos(1), ms(9), ms(1_501), secs(3), secs(4)] {
        let error = manager.lock("k").ttl(secs(3)).renew_every(interval).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::RenewEvery), "{interval:?}");
    }
    let error = manager.lock("k").max_hold(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid(Argument::MaxHold));
    assert_eq!(backend.calls(), 0);

    let mut guard = manager.lock("k").await.unwrap();
    for ttl in ttls {
        assert_eq!(guard.extend(ttl).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Ttl), "{ttl:?}");
    }
    assert_eq!(guard.extend_by(Duration::MAX).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Ttl));
    assert!(guard.is_held(), "a refused extension changes nothing");
    assert_eq!(backend.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn bad_input_4_validity_is_never_above_what_the_backend_was_told() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").ttl(Duration::from_micros(20_999)).fixed().await.unwrap();
    let told = manager.inspect("k").await.unwrap().remaining().unwrap();
    assert!(guard.remaining() < told && told <= ms(20), "{:?} of {told:?}", guard.remaining());
}

#[tokio::test]
async fn bad_input_13_to_15_a_key_out_of_range_is_invalid_and_shown_escaped() {
    let (manager, backend) = support::counted();
    for key in [String::new(), "k".repeat(1_025), "{x}lock-core:fence".to_owned()] {
        let error = manager.lock(&key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Key));
        assert_eq!(manager.inspect(&key).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Key));
        assert_eq!(manager.lock_all(["a", &key]).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Key));
    }
    assert_eq!(backend.calls(), 0);
    let _held = manager.lock("a\r\nb\0").await.unwrap();
    let error = manager.lock("a\r\nb\0").wait(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains(r#""a\r\nb\0""#), "{error}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_22_the_same_task_with_plain_guards_waits_until_its_wait_is_over() {
    let manager = LockManager::in_memory();
    let _first = manager.lock("k").await.unwrap();
    let start = Instant::now();
    assert_eq!(manager.lock("k").wait(secs(1)).await.unwrap_err().kind(), ErrorKind::Busy);
    assert!((secs(1)..ms(1_010)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_all_held_or_none() {
    let manager = LockManager::in_memory();
    let middle = manager.lock("b").await.unwrap();
    let error = manager.lock_all(["c", "b", "a"]).wait(ms(100)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("b")));
    assert!(manager.lock_all(["c", "b", "a"]).try_acquire().await.unwrap().is_none());
    support::eventually_free(&manager, "a").await;
    assert!(!manager.is_locked("c").await.unwrap());
    drop(middle);

    let all = manager.lock_all(["c", "b", "a", "b"]).await.unwrap();
    let keys: Vec<_> = all.leases().iter().map(lock_core::Lease::key).collect();
    assert_eq!(keys, ["a", "b", "c"]);
    let leases = all.leases().clone();
    assert_eq!(
        (leases.len(), leases.get("b").map(lock_core::Lease::key), leases.get("x").is_none()),
        (3, Some("b"), true)
    );
    assert_eq!(leases.get("b").map(lock_core::Lease::fencing_token), all.fencing_token("b"));
    assert_eq!(leases.into_iter().filter(lock_core::Lease::is_held).count(), 3);
    assert!(all.is_held() && all.remaining() > secs(9));
    assert!(all.fencing_token("b").is_some() && all.fencing_token("x").is_none());
    all.release().await.unwrap();
    for key in ["a", "b", "c"] {
        assert!(!manager.is_locked(key).await.unwrap(), "{key}");
    }
    assert_eq!(manager.lock_all::<&str>([]).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Keys));
}

#[tokio::test(start_paused = true)]
async fn guards_of_several_keys_can_be_taken_apart() {
    let manager = LockManager::in_memory();
    let guards = manager.lock_all(["a", "b"]).await.unwrap().into_guards();
    let [a, b] = <[_; 2]>::try_from(guards).unwrap();
    let handover = a.hand_over().unwrap();
    assert!(b.is_held());
    b.release().await.unwrap();
    assert!(manager.is_locked("a").await.unwrap() && !manager.is_locked("b").await.unwrap());
    assert_eq!(manager.take_up(handover).await.unwrap().key(), "a");
}

#[tokio::test(start_paused = true)]
async fn requests_for_the_same_keys_in_any_order_never_wait_for_each_other() {
    let manager = LockManager::in_memory();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..20 {
        let manager = manager.clone();
        tasks.spawn(async move {
            let mut keys = ["a", "b", "c", "d"];
            keys.rotate_left(task % 4);
            if task % 2 == 0 {
                keys.reverse();
            }
            for _ in 0..5 {
                let guard = manager.lock_all(&keys[..3]).wait_forever().await.unwrap();
                tokio::task::yield_now().await;
                assert!(guard.is_held());
            }
        });
    }
    timeout(secs(120), tasks.join_all()).await.expect("no deadlock");
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_lost_when_one_is_lost() {
    let manager = LockManager::in_memory();
    let all = manager.lock_all(["a", "b"]).await.unwrap();
    let ended = tokio::spawn(all.ended());
    sleep(ms(10)).await;
    assert!(!ended.is_finished());
    manager.force_release("b").await.unwrap();
    let (lease, end) = ended.await.unwrap();
    assert_eq!((lease.key(), end), ("b", End::Lost(LossReason::Forced)));
    assert!(!all.is_held() && all.remaining().is_zero());
    let error = all.release().await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost(LossReason::Forced), Some("b")));
    assert!(!manager.is_locked("a").await.unwrap(), "the other one is released all the same");
}

#[tokio::test(start_paused = true)]
async fn a_lease_moves_to_another_manager_once_with_a_larger_fencing_token() {
    let store = lock_core::backend::MemoryBackend::new();
    let one = LockManager::builder().backend(store.clone()).prefix("p:").build().unwrap();
    let two = LockManager::builder().backend(store).prefix("p:").build().unwrap();
    let guard = one.lock("k").ttl(secs(3)).await.unwrap();
    let (fence, lease) = (guard.fencing_token(), guard.lease().clone());
    let text = guard.hand_over().unwrap().reveal();
    assert!(!lease.is_held(), "the first holder is done with it");
    assert!(two.is_locked("k").await.unwrap());

    let handover: Handover = text.parse().unwrap();
    let taken = two.take_up(handover.clone()).await.unwrap();
    assert_eq!(taken.key(), "k");
    assert!(taken.fencing_token() > fence);
    let error = one.take_up(handover.clone()).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotHeld, Some("k")));
    sleep(secs(60)).await;
    assert!(taken.is_held(), "it is renewed by its new holder");
    taken.release().await.unwrap();
    assert_eq!(two.take_up(handover).await.unwrap_err().kind(), ErrorKind::NotHeld, "a free key is not taken up");
}

#[tokio::test(start_paused = true)]
async fn bad_input_19_a_handover_that_was_left_lying_is_not_held() {
    let manager = LockManager::in_memory();
    let handover = manager.lock("k").ttl(secs(1)).await.unwrap().hand_over().unwrap();
    sleep(ms(1_001)).await;
    let error = manager.take_up(handover).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotHeld);
    assert!(!manager.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn inspect_tells_what_is_held_and_force_release_frees_it() {
    let manager = LockManager::in_memory();
    assert!(!manager.inspect("k").await.unwrap().is_locked());
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    let info = manager.inspect("k").await.unwrap();
    assert!(info.is_locked() && !info.is_foreign() && info.remaining().unwrap() <= secs(3));
    assert!(manager.force_release("k").await.unwrap());
    assert!(!manager.force_release("k").await.unwrap());
    assert_eq!(guard.ended().await, End::Lost(LossReason::Forced));
    let keep: Vec<_> = [manager.lock("x:1").await.unwrap(), manager.lock("y:1").await.unwrap()].into();
    assert_eq!(manager.force_release_all("x:").await.unwrap(), 1);
    assert_eq!(keep.iter().map(|guard| guard.is_held()).collect::<Vec<_>>(), [false, true]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_up_is_told_that_it_was_released_by_force() {
    let manager = LockManager::in_memory();
    let handover = manager.lock("k").await.unwrap().hand_over().unwrap();
    let guard = manager.take_up(handover).await.unwrap();
    assert_eq!(manager.force_release_all("").await.unwrap(), 1);
    assert!(!guard.is_held());
    assert_eq!(guard.ended().await, End::Lost(LossReason::Forced));
}

#[tokio::test]
async fn the_manager_of_a_scope_comes_before_the_installed_one_which_is_installed_once() {
    let (installed, scoped) = (LockManager::in_memory(), LockManager::in_memory());
    assert_eq!(LockManager::current().unwrap_err().kind(), ErrorKind::NoManager);
    installed.install().unwrap();
    assert!(installed.install().unwrap_err().to_string().contains("already installed"));
    let _held = installed.lock("k").await.unwrap();
    assert!(LockManager::current().unwrap().is_locked("k").await.unwrap());
    scoped
        .scope(async {
            assert!(!LockManager::current().unwrap().is_locked("k").await.unwrap());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn managers_that_name_the_same_store_exclude_each_other_and_others_do_not() {
    let one = LockManager::connect("memory://shop").await.unwrap();
    let two = LockManager::connect("memory://shop").await.unwrap();
    let other = LockManager::connect("memory://").await.unwrap();
    let _held = one.lock("k").await.unwrap();
    assert!(two.lock("k").try_acquire().await.unwrap().is_none());
    assert!(other.lock("k").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_key_can_be_kept_busy_for_longer_than_the_work() {
    let (manager, backend) = support::counted();
    for (round, way) in ["release", "drop", "drop with a failure", "run"].into_iter().enumerate() {
        let key = format!("job:{round}");
        let request = manager.lock(&key).ttl(ms(500)).at_least(secs(60));
        let before = Instant::now();
        match way {
            "run" => request.run(async |_| sleep(secs(1)).await).await.unwrap(),
            "release" => request.await.unwrap().release().await.unwrap(),
            "drop" => drop(request.await.unwrap()),
            _ => {
                let guard = request.await.unwrap();
                backend.next([support::Fate::Fail]);
                drop(guard);
            }
        }
        sleep(secs(58)).await;
        assert!(manager.is_locked(&key).await.unwrap(), "{way}");
        let next = manager.lock(&key).wait(secs(30)).await.unwrap();
        assert!((secs(60)..secs(61)).contains(&before.elapsed()), "{way}: {:?}", before.elapsed());
        next.release().await.unwrap();
    }
    let longer = manager.lock("longer").at_least(ms(100)).await.unwrap();
    sleep(ms(200)).await;
    longer.release().await.unwrap();
    assert!(!manager.is_locked("longer").await.unwrap(), "a longer hold is released as ever");
    let error = manager.lock("k").at_least(Duration::MAX).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid(Argument::AtLeast));
}

#[tokio::test(start_paused = true)]
async fn a_key_is_kept_busy_for_work_that_failed_and_not_for_work_that_did_not_return() {
    let manager = LockManager::in_memory();
    let request = || manager.lock("job").at_least(secs(60));
    let is_busy = async || manager.is_locked("job").await.unwrap();

    assert!(timeout(secs(1), request().run(async |_| pending::<()>().await)).await.is_err());
    assert!(!is_busy().await, "dropped");
    drop(request().await.unwrap().protect(pending::<()>()));
    assert!(!is_busy().await, "dropped before it began");
    let guard = request().await.unwrap();
    assert!(tokio::spawn(guard.protect(async { panic!("on purpose") })).await.unwrap_err().is_panic());
    assert!(!is_busy().await, "panicked");
    let prepares = |_| -> Ready<()> { panic!("on purpose, before there is a future") };
    assert!(tokio::spawn(request().run(prepares)).await.unwrap_err().is_panic());
    assert!(!is_busy().await, "panicked before it began");
    let all = manager.lock_all(["job", "other"]).at_least(secs(60));
    assert!(timeout(secs(1), all.run(async |_| pending::<()>().await)).await.is_err());
    assert!(!is_busy().await && !manager.is_locked("other").await.unwrap(), "several keys");
    request().await.unwrap().release_at_once().await.unwrap();
    assert!(!is_busy().await, "released at once");

    let failed = request().run(async |_| Err::<(), _>("the disk is full")).await.unwrap();
    assert!(failed.is_err() && is_busy().await, "returned");
}

#[tokio::test]
async fn a_lease_that_was_lost_keeps_no_key_busy_also_if_its_guard_notices_first() {
    let manager = LockManager::in_memory();
    for way in ["drop", "release"] {
        let guard = manager.lock("job").max_hold(ms(10)).at_least(secs(60)).await.unwrap();
        // On the only thread of the runtime, so that the engine cannot look meanwhile.
        std::thread::sleep(ms(20));
        match way {
            "drop" => drop(guard),
            _ => assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost(LossReason::MaxHold)),
        }
        assert!(!manager.is_locked("job").await.unwrap(), "{way}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_fails_at_a_later_key_keeps_no_key_busy() {
    let manager = LockManager::in_memory();
    let _second = manager.lock("b").await.unwrap();
    let all = manager.lock_all(["a", "b"]).at_least(secs(60)).wait(secs(1));
    assert_eq!(all.await.unwrap_err().kind(), ErrorKind::Busy);
    assert!(!manager.is_locked("a").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn more_waiters_than_the_builder_allows_are_refused_at_once() {
    let manager = LockManager::builder().url("memory://").max_waiters_per_key(1).max_waiters(2).build().unwrap();
    let guard = manager.lock("k").await.unwrap();
    let other = manager.lock("other").await.unwrap();
    let waiting: Vec<_> = ["k", "other"].map(|key| tokio::spawn(manager.lock(key).wait(secs(5)).acquire())).into();
    tokio::task::yield_now().await;
    let before = Instant::now();
    for (key, option) in [("k", "`max_waiters_per_key`"), ("other", "`max_waiters_per_key`")] {
        let error = manager.lock(key).wait(secs(5)).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.key(), error.retry_after().is_some()),
            (ErrorKind::Overloaded, Some(key), true)
        );
        assert!(error.to_string().contains(option), "{error}");
    }
    let _third = manager.lock("third").await.expect("holders do not count");
    let error = manager.lock("third").wait(secs(5)).await.unwrap_err();
    assert!(error.to_string().contains("`max_waiters`"), "{error}");
    assert_eq!(before.elapsed(), Duration::ZERO);
    drop((guard, other));
    for waiter in waiting {
        drop(waiter.await.unwrap().expect("who was let in is served"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_kept_aside_when_its_turn_comes_costs_the_others_a_tenth_of_a_second() {
    let manager = LockManager::in_memory();
    let guard = manager.lock("k").await.unwrap();
    let mut aside = Box::pin(manager.lock("k").wait(secs(9)).acquire());
    assert!(timeout(ms(1), &mut aside).await.is_err());
    let next = tokio::spawn(manager.lock("k").wait(secs(9)).acquire());
    tokio::task::yield_now().await;
    let before = Instant::now();
    guard.release().await.unwrap();
    let next = next.await.unwrap().unwrap();
    assert!((ms(100)..ms(150)).contains(&before.elapsed()), "{:?}", before.elapsed());
    // It has lost its turn, not its wait.
    drop(next);
    assert!(aside.await.unwrap().is_held());
}
