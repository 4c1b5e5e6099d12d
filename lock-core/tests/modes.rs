//! Shared leases and permits beside exclusive ones, through the public API.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lock_core::{
    Argument, End, Error, ErrorKind, Lease, LockManager, LockRequest, Mode,
    backend::{Backend, MemoryBackend, QuorumBackend},
    exclusive, permits, shared,
};
use tokio::{task::JoinSet, time::Instant};

use crate::support::log::Log;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Managers of one store, as in several processes.
fn managers<const N: usize>() -> [LockManager; N] {
    let store = MemoryBackend::new();
    [(); N].map(|()| LockManager::builder().backend(store.clone()).build().unwrap())
}

async fn is_free(request: LockRequest) -> bool {
    let guard = request.try_acquire().await.unwrap();
    let is_free = guard.is_some();
    if let Some(guard) = guard {
        guard.release().await.unwrap();
    }
    is_free
}

#[tokio::test(start_paused = true)]
async fn readers_share_a_key_and_a_writer_has_it_alone() {
    let [one, two] = managers();
    let readers = [one.lock("k").shared().await.unwrap(), one.lock("k").shared().await.unwrap()];
    let third = two.lock("k").shared().await.unwrap();
    assert_eq!(third.lease().mode(), Mode::Shared);
    assert_eq!(readers[0].fencing_token(), third.fencing_token());
    for manager in [&one, &two] {
        assert!(!is_free(manager.lock("k")).await, "a reader keeps writers out");
        assert!(manager.is_locked("k").await.unwrap());
    }
    for reader in readers {
        reader.release().await.unwrap();
    }
    assert!(!is_free(one.lock("k")).await, "one reader is left");
    third.release().await.unwrap();
    let writer = one.lock("k").try_acquire().await.unwrap().expect("the key is free");
    for manager in [&one, &two] {
        assert!(!is_free(manager.lock("k").shared()).await, "a writer keeps readers out");
    }
    writer.release().await.unwrap();
    assert!(!one.is_locked("k").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn shares_are_renewed_each_by_itself_and_end_with_their_own_ttl() {
    let [one, two] = managers();
    let renewed = one.lock("k").shared().ttl(ms(300)).await.unwrap();
    let fixed = two.lock("k").shared().ttl(ms(500)).fixed().await.unwrap();
    tokio::time::sleep(ms(2_000)).await;
    assert!(renewed.is_held() && !fixed.is_held());
    renewed.release().await.unwrap();
    assert!(is_free(two.lock("k")).await);
}

#[tokio::test(start_paused = true)]
async fn requests_of_all_modes_come_in_their_order_in_one_process_and_in_two() {
    for is_one_process in [true, false] {
        let [one, two, third] = managers();
        let managers = if is_one_process { [one.clone(), one.clone()] } else { [one.clone(), two] };
        let first = third.lock("k").await.unwrap();
        let served = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        for (number, is_shared) in [true, true, false, true, true, false, false, true].into_iter().enumerate() {
            let request = managers[number % 2].lock("k").wait_forever();
            let request = if is_shared { request.shared() } else { request };
            let served = Arc::clone(&served);
            tasks.spawn(async move {
                let guard = request.await.unwrap();
                served.lock().unwrap().push(number);
                tokio::time::sleep(ms(if is_shared { 100 } else { 10 })).await;
                guard.release().await.unwrap();
            });
            tokio::time::sleep(ms(5)).await;
        }
        first.release().await.unwrap();
        tasks.join_all().await;
        let mut served = Arc::into_inner(served).unwrap().into_inner().unwrap();
        // Those that share the key may come in any order.
        served[..2].sort_unstable();
        served[3..5].sort_unstable();
        assert_eq!(served, [0, 1, 2, 3, 4, 5, 6, 7], "in one process: {is_one_process}");
        assert!(is_free(one.lock("k")).await, "nothing is left");
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_is_not_kept_waiting_by_readers_that_come_after_it() {
    let [one, two] = managers();
    for writers in [&one, &two] {
        let reader = one.lock("k").shared().await.unwrap();
        let waiting = tokio::spawn(writers.lock("k").acquire());
        tokio::time::sleep(ms(10)).await;
        for manager in [&one, &two] {
            assert!(!is_free(manager.lock("k").shared()).await, "a writer waits");
        }
        reader.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        assert!(is_free(one.lock("k").shared()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn readers_go_on_when_the_writer_before_them_gives_up() {
    let [one, two] = managers();
    for (writers, readers) in [(&one, &one), (&two, &one), (&one, &two)] {
        let reader = one.lock("k").shared().await.unwrap();
        let writer = tokio::spawn(writers.lock("k").wait(ms(100)).acquire());
        tokio::time::sleep(ms(10)).await;
        let late = tokio::spawn(readers.lock("k").shared().acquire());
        let later = tokio::spawn(readers.lock("k").shared().acquire());
        assert_eq!(writer.await.unwrap().unwrap_err().kind(), ErrorKind::Busy);
        let gave_up = Instant::now();
        let readers = [late.await.unwrap().unwrap(), later.await.unwrap().unwrap()];
        assert!(gave_up.elapsed() < ms(10), "by its going, and not by their next check: {:?}", gave_up.elapsed());
        for guard in readers.into_iter().chain([reader]) {
            guard.release().await.unwrap();
        }
        assert!(is_free(one.lock("k")).await);
    }
}

async fn at_most(permits: u32, take: u32, managers: &[LockManager], tasks: usize) -> usize {
    let [inside, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut set = JoinSet::new();
    for number in 0..tasks {
        let (inside, most) = (Arc::clone(&inside), Arc::clone(&most));
        let request = managers[number % managers.len()].lock("k").permits(permits).take(take).wait_forever();
        set.spawn(async move {
            for _ in 0..5 {
                let work = async |_| {
                    most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::time::sleep(ms(3)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                };
                request.clone().run(work).await.unwrap();
            }
        });
    }
    set.join_all().await;
    most.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn never_are_more_permits_held_than_there_are() {
    let managers: [_; 2] = managers();
    assert_eq!(at_most(3, 1, &managers, 40).await, 3);
    assert_eq!(at_most(5, 2, &managers, 40).await, 2);
    assert_eq!(at_most(1, 1, &managers, 10).await, 1);
    assert_eq!(at_most(100, 1, &managers, 200).await, 100);
    assert!(is_free(managers[0].lock("k")).await, "nothing is left");
}

#[tokio::test(start_paused = true)]
async fn a_request_for_many_permits_is_not_passed_by_those_for_few() {
    let [one, two] = managers();
    let held = one.lock("k").permits(2).await.unwrap();
    let both = tokio::spawn(two.lock("k").permits(2).take(2).acquire());
    tokio::time::sleep(ms(10)).await;
    for manager in [&one, &two] {
        assert!(!is_free(manager.lock("k").permits(2)).await, "one is left, and another comes first");
    }
    held.release().await.unwrap();
    let both = both.await.unwrap().unwrap();
    assert_eq!(both.lease().mode().to_string(), "2 of 2 permits");
    both.release().await.unwrap();
}

fn refusal(result: Result<lock_core::LockGuard, Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Permits));
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn another_total_is_busy_and_names_both() {
    let [one, two] = managers();
    let held = one.lock("tenant:7").permits(3).await.unwrap();
    let (log, _logging) = Log::begin();
    for manager in [&one, &two] {
        let request = || manager.lock("tenant:7").permits(5).take(2);
        assert!(request().try_acquire().await.unwrap().is_none());
        let error = request().wait(ms(100)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let said = error.to_string();
        assert!(said.contains("tenant:7") && said.contains('3') && said.contains("2 of 5"), "{said}");
        let line = "another limit is in use for a key";
        assert_eq!(log.count(line), 1, "each manager says it once: {}", log.text());
        assert!(log.count("wanted=2 of 5 permits") == 1 && log.count("held=3") == 1, "{}", log.text());
        log.clear();
    }
    held.release().await.unwrap();
}

/// A deployment raises a limit: the old and the new instances ask for one key without a pause.
#[tokio::test(start_paused = true)]
async fn requests_for_two_totals_wait_for_each_other_in_one_queue() {
    let served: [Arc<AtomicU32>; 2] = Default::default();
    let inside: [Arc<AtomicU32>; 2] = Default::default();
    let mut fleets = JoinSet::new();
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    for (fleet, manager) in managers::<2>().into_iter().enumerate() {
        let total = [3, 5][fleet];
        for _ in 0..8 {
            let (manager, served, inside) = (manager.clone(), served.clone(), inside.clone());
            fleets.spawn(async move {
                while tokio::time::Instant::now() < until {
                    let permit = manager.lock("tenant:7").permits(total).wait(ms(60_000)).await.unwrap();
                    assert!(inside[fleet].fetch_add(1, Ordering::Relaxed) < total, "no more than the total");
                    assert_eq!(inside[1 - fleet].load(Ordering::Relaxed), 0, "one total at a time");
                    tokio::time::sleep(ms(10)).await;
                    served[fleet].fetch_add(1, Ordering::Relaxed);
                    inside[fleet].fetch_sub(1, Ordering::Relaxed);
                    permit.release().await.unwrap();
                }
            });
        }
    }
    fleets.join_all().await;
    let served = served.map(|served| served.load(Ordering::Relaxed));
    assert!(served.iter().all(|served| *served > 300), "both make progress: {served:?}");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_before_anything_is_sent() {
    let manager = LockManager::in_memory();
    let lock = || manager.lock("k");
    for (request, said) in [
        (lock().permits(0), "permits(0)"),
        (lock().permits(1_000_001), "1000000"),
        (lock().permits(3).take(0), "take(0)"),
        (lock().permits(3).take(4), "between 1 and 3"),
        (lock().take(1), "belongs to `permits`"),
        (lock().shared().take(1), "in place of `shared`"),
        (lock().shared().permits(3), "and not both"),
        (lock().permits(3).shared(), "and not both"),
    ] {
        let error = refusal(request.await);
        assert!(error.contains(said), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_or_guard_of_any_mode_leaves_nothing() {
    let [one, two] = managers();
    type InMode = fn(LockRequest) -> LockRequest;
    let modes: [InMode; 3] = [|request| request, LockRequest::shared, |request| request.permits(2).take(2)];
    for held in modes {
        for waiting in modes {
            let guard = held(one.lock("k")).await.unwrap();
            for manager in [&one, &two] {
                let request = tokio::time::timeout(ms(50), waiting(manager.lock("k")).acquire());
                let _shared_or_not_come = request.await;
            }
            drop(guard);
            tokio::time::sleep(ms(1)).await;
            assert!(is_free(two.lock("k")).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_lease_becomes_a_shared_one_with_nobody_in_between() {
    let [one, two] = managers();
    for (manager, other) in [(&one, &one), (&one, &two)] {
        let writer = manager.lock("k").ttl(ms(700)).await.unwrap();
        let (lease, fence) = (writer.lease().clone(), writer.fencing_token());
        let reads = tokio::spawn(other.lock("k").shared().acquire());
        tokio::time::sleep(ms(10)).await;
        let writes = tokio::spawn(other.lock("k").acquire());
        tokio::time::sleep(ms(10)).await;
        let reader = writer.downgrade().await.unwrap();
        assert_eq!(lease.ended().await, End::HandedOver);
        assert_eq!((reader.lease().mode(), reader.ttl()), (Mode::Shared, ms(700)));
        assert!(reader.fencing_token() > fence);
        let also = reads.await.unwrap().expect("the first in the queue reads, too");
        tokio::time::sleep(ms(2_000)).await;
        assert!(reader.is_held() && also.is_held() && !writes.is_finished());
        assert_eq!(reader.downgrade().await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Mode));
        also.release().await.unwrap();
        writes.await.unwrap().unwrap().release().await.unwrap();
        assert!(is_free(one.lock("k")).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_that_is_dropped_or_comes_too_late_leaves_nothing() {
    let manager = LockManager::in_memory();
    drop(manager.lock("k").await.unwrap().downgrade());
    tokio::time::sleep(ms(1)).await;
    assert!(is_free(manager.lock("k")).await);
    let writer = manager.lock("k").await.unwrap();
    manager.force_release("k").await.unwrap();
    assert!(matches!(writer.downgrade().await.unwrap_err().kind(), ErrorKind::Lost(_)));
    assert!(is_free(manager.lock("k")).await);
}

#[tokio::test(start_paused = true)]
async fn a_shared_lease_is_handed_over_and_taken_up() {
    let [one, two] = managers();
    let kept = one.lock("k").shared().await.unwrap();
    let text = one.lock("k").shared().await.unwrap().hand_over().unwrap().reveal();
    let taken = two.take_up(text.parse().unwrap()).await.unwrap();
    assert_eq!(taken.lease().mode(), Mode::Shared);
    assert_eq!(two.take_up(text.parse().unwrap()).await.unwrap_err().kind(), ErrorKind::NotHeld);
    kept.release().await.unwrap();
    assert!(!is_free(one.lock("k")).await);
    taken.release().await.unwrap();
    assert!(is_free(one.lock("k")).await);
}

#[tokio::test(start_paused = true)]
async fn a_share_is_taken_up_beside_one_of_the_same_task() {
    let manager = LockManager::in_memory();
    let handover = manager.lock("k").shared().await.unwrap().hand_over().unwrap();
    let taken = manager.lock("k").shared().run(async |_| manager.take_up(handover).await);
    assert!(taken.await.unwrap().is_ok_and(|taken| taken.is_held()), "nothing is waited for");
}

#[tokio::test(start_paused = true)]
async fn a_forced_release_ends_all_shares_of_this_manager() {
    let manager = LockManager::in_memory();
    let guards = [manager.lock("k").shared().await.unwrap(), manager.lock("k").shared().await.unwrap()];
    assert!(manager.force_release("k").await.unwrap());
    for guard in guards {
        assert!(guard.ended().await.loss().is_some());
    }
    assert!(is_free(manager.lock("k")).await);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_readers_of_one_process_come_at_once() {
    let [one, two] = managers();
    let writer = two.lock("k").await.unwrap();
    let mut readers = JoinSet::new();
    for _ in 0..1_000 {
        readers.spawn(one.lock("k").shared().acquire());
    }
    tokio::time::sleep(ms(10)).await;
    writer.release().await.unwrap();
    let guards: Vec<_> = readers.join_all().await.into_iter().map(Result::unwrap).collect();
    assert!(!is_free(two.lock("k")).await);
    drop(guards);
    tokio::time::sleep(ms(10)).await;
    assert!(is_free(two.lock("k")).await);
}

#[tokio::test(start_paused = true)]
async fn each_key_of_several_has_its_mode() {
    let [one, two] = managers();
    let all = one.lock_all([shared("a"), exclusive("b"), permits("c", 3).take(2)]).await.unwrap();
    let modes: Vec<_> = all.leases().iter().map(|lease| lease.mode().to_string()).collect();
    assert_eq!(modes, ["shared", "exclusive", "2 of 3 permits"]);
    for (request, free) in [
        (two.lock("a").shared(), true),
        (two.lock("a"), false),
        (two.lock("b").shared(), false),
        (two.lock("c").permits(3), true),
        (two.lock("c").permits(3).take(2), false),
    ] {
        assert_eq!(is_free(request).await, free);
    }
    all.release().await.unwrap();
    let twice = one.lock_all([shared("a"), exclusive("a"), shared("b"), shared("b")]).await.unwrap();
    let modes: Vec<_> = twice.leases().iter().map(Lease::mode).collect();
    assert_eq!(modes, [Mode::Exclusive, Mode::Shared], "a key that is named twice");
    let error = one.lock_all([permits("k", 2), permits("k", 3)]).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Invalid(Argument::Keys), Some("k")));
    assert!(error.to_string().contains("1 of 2 permits and as 1 of 3"), "{error}");
    let error = one.lock_all([permits("k", 2).take(3)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Permits));
}

#[tokio::test]
async fn a_task_that_shares_a_key_does_not_wait_for_itself_and_may_share_it_once_more_if_it_tries() {
    let manager = LockManager::in_memory();
    let request = || manager.lock("k").shared();
    request()
        .run(async |_| {
            for (request, remedy) in [(request(), "only try here"), (manager.lock("k"), "in the outer place")] {
                let error = request.await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::WouldDeadlock);
                assert!(error.to_string().contains(remedy), "{error}");
            }
            assert!(is_free(request()).await, "it need not wait");
            assert!(!is_free(manager.lock("k")).await, "that would not be shared");
        })
        .await
        .unwrap();
    manager.lock("k").run(async |_| assert!(!is_free(request()).await, "its task has it alone")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_quorum_do_not_pass_a_writer_that_waits() {
    // Fewer than a majority of them keep the places.
    let stores = [(); 5].map(|()| MemoryBackend::new());
    let [one, two, third] = [(); 3].map(|()| {
        let nodes = stores.iter().map(|store| Arc::new(store.clone()) as Arc<dyn Backend>);
        LockManager::builder().backend(QuorumBackend::new(nodes).unwrap()).build().unwrap()
    });
    let reader = one.lock("k").shared().await.unwrap();
    let writer = tokio::spawn(two.lock("k").acquire());
    tokio::time::sleep(ms(10)).await;
    for manager in [&one, &third] {
        assert!(!is_free(manager.lock("k").shared()).await, "a writer waits");
    }
    let late = tokio::spawn(third.lock("k").shared().acquire());
    tokio::time::sleep(ms(10)).await;
    reader.release().await.unwrap();
    let writer = writer.await.unwrap().unwrap();
    assert!(!late.is_finished());
    writer.release().await.unwrap();
    late.await.unwrap().unwrap().release().await.unwrap();
}

/// What a request is told that waits in vain, and one that tries: the message and the code.
async fn refusals(request: impl Fn() -> LockRequest) -> [(String, &'static str); 2] {
    let mut refusals = Vec::new();
    for wait in [ms(40), Duration::ZERO] {
        let error = request().wait(wait).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        refusals.push((error.to_string(), error.code()));
    }
    refusals.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_error_says_whether_a_holder_or_the_number_of_permits_or_others_that_wait_are_in_the_way() {
    let [holder, other] = managers();
    let held = [
        holder.lock("alone").await.unwrap(),
        holder.lock("read").shared().await.unwrap(),
        holder.lock("full").permits(3).take(2).await.unwrap(),
    ];
    for key in ["alone", "read"] {
        for (message, code) in refusals(|| other.lock(key).permits(3)).await {
            assert!(message.contains("held by someone else") && code == "lock_busy", "{message}, {code}");
        }
    }
    for (take, said) in [(2, "short of 2 permits (it has 3)"), (3, "short of 3 permits (it has 3)")] {
        for (message, code) in refusals(|| other.lock("full").permits(3).take(take)).await {
            assert!(message.contains(said) && code == "lock_full", "{message}, {code}");
        }
    }
    let last = other.lock("full").permits(3).await.unwrap();
    let told = refusals(|| other.lock("full").permits(3)).await;
    assert_eq!(
        told[0].0,
        "could not acquire \"full\": still out of permits (it has 3) after 40ms; raise `wait`, or try again later"
    );
    assert_eq!(told[1].0, "could not acquire \"full\": out of permits (it has 3); wait for it, or try again later");
    for (message, code) in refusals(|| other.lock("full").shared()).await {
        assert!(message.contains("held by someone else") && code == "lock_busy", "{message}, {code}");
    }
    let waits = tokio::spawn(holder.lock("read").wait(ms(10_000)).acquire());
    tokio::time::sleep(ms(20)).await;
    let told = refusals(|| other.lock("read").shared()).await;
    assert_eq!(
        told[0],
        (
            "could not acquire \"read\": still kept for others that came first after 40ms; raise `wait`, or try again later"
                .to_owned(),
            "lock_busy"
        )
    );
    waits.abort();
    drop((held, last));
}
