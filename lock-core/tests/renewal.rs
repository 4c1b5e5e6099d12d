//! Renewal and extension; virtual time.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use lock_core::{
    Argument, End, ErrorKind, LockManager, LossReason,
    backend::{Answer, Backend, Batch, MemoryBackend, Operation, Reply},
    clock::{Clock, Moment, Sleep, TokioClock},
    key::LockKey,
};
use tokio::time::{Instant, sleep};

use crate::{
    calls::ask_before,
    support::{self, Fate, Faulty, ms, secs},
};

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_every_third_of_its_ttl_for_as_long_as_it_is_held() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    let mut least = guard.remaining();
    for _ in 0..300 {
        sleep(ms(100)).await;
        least = least.min(guard.remaining());
    }
    assert!(guard.is_held());
    assert!(least > ms(1_900), "two thirds of the ttl are always left, not {least:?}");
    let renewals = backend.calls() - 1;
    assert!((29..=31).contains(&renewals), "30 s at one a second, not {renewals}");
    guard.release().await.unwrap();
    let calls = backend.calls();
    sleep(secs(30)).await;
    assert_eq!(backend.calls(), calls, "no renewal outlives its lock");
}

#[tokio::test(start_paused = true)]
async fn the_interval_can_be_chosen_and_renewal_switched_off() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).renew_every(ms(100)).await.unwrap();
    sleep(ms(1_050)).await;
    let renewals = backend.calls() - 1;
    assert!((9..=10).contains(&renewals), "{renewals}");
    drop(guard);
    let fixed = manager.lock("fixed").ttl(secs(3)).fixed().await.unwrap();
    sleep(ms(2_900)).await;
    assert!(fixed.is_held() && fixed.remaining() < ms(100));
    assert!(!backend.log().iter().skip(renewals + 2).flatten().any(|operation| *operation == "renew"));
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_due_together_share_a_call() {
    let (manager, backend) = support::counted();
    let mut guards = Vec::new();
    for key in 0..1_280 {
        guards.push(manager.lock(format!("k:{key}")).ttl(secs(3)).await.unwrap());
    }
    let calls = backend.calls();
    sleep(ms(2_500)).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    assert_eq!(backend.largest_batch(), 64);
    assert_eq!(backend.calls() - calls, 2 * 20, "1,280 leases twice, in calls of at most 64");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_fails_is_tried_again_faster_until_it_works() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    backend.next([Fate::Fail; 5]);
    sleep(ms(1_900)).await;
    let tries = backend.calls() - 1;
    assert!(tries >= 6, "five failures and a success within a second, not {tries}");
    assert!(guard.is_held() && guard.remaining() > secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_to_a_renewal_does_not_lengthen_the_lease() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    let deadline = Instant::now() + guard.remaining();
    backend.always(Fate::LoseReply);
    sleep(secs(2)).await;
    assert_eq!(Instant::now() + guard.remaining(), deadline);
    assert_eq!(guard.ended().await, End::Lost(LossReason::Expired));
    assert!(Instant::now() < deadline + ms(5));
    // The renewals did happen: what they left in the backend is cleaned up.
    backend.always(Fate::Answer);
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_deadline_does_not_revive_the_lease() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    backend.next([Fate::HoldReply]);
    sleep(ms(2_990)).await;
    assert!(!guard.is_held());
    backend.let_go();
    sleep(ms(10)).await;
    assert!(!guard.is_held());
    assert_eq!(guard.ended().await, End::Lost(LossReason::Expired));
    support::eventually_free(&manager, "k").await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_for_a_lease_that_is_over_touches_neither_it_nor_its_successor() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    backend.next([Fate::Hold]);
    sleep(ms(1_100)).await;
    guard.release().await.unwrap();
    let successor = manager.lock("k").ttl(secs(3)).await.unwrap();
    // Now the renewal of the first lease is executed, and answers that it is gone.
    backend.let_go();
    sleep(ms(10)).await;
    assert!(successor.is_held());
    sleep(secs(30)).await;
    assert!(successor.is_held());
}

#[tokio::test(start_paused = true)]
async fn bad_input_9_extend_replaces_what_is_left_and_extend_by_adds_to_it() {
    let manager = LockManager::in_memory();
    let mut guard = manager.lock("k").ttl(secs(10)).fixed().await.unwrap();
    let remaining = guard.extend_by(secs(5)).await.unwrap();
    assert!((ms(14_800)..ms(15_100)).contains(&remaining), "{remaining:?}");
    let remaining = guard.extend(secs(60)).await.unwrap();
    assert!((secs(59)..secs(60)).contains(&remaining), "{remaining:?}");
    let remaining = guard.extend(secs(1)).await.unwrap();
    assert!((ms(980)..secs(1)).contains(&remaining), "{remaining:?}");
    assert_eq!(remaining, guard.remaining());
    let before = Instant::now();
    assert_eq!(guard.ended().await, End::Lost(LossReason::Expired));
    assert!(before.elapsed() < ms(1_000), "a shortened lease ends sooner");
}

#[tokio::test(start_paused = true)]
async fn deadline_is_moved_by_a_renewal_and_now_once_the_lease_has_ended() {
    let (manager, backend) = support::counted();
    let guard = manager.lock("k").ttl(secs(9)).await.unwrap();
    let lease = guard.lease().clone();
    assert_eq!((lease.ttl(), guard.deadline()), (secs(9), Instant::now() + guard.remaining()));
    let first = lease.deadline();
    sleep(ms(3_500)).await;
    assert!(lease.deadline() >= first + ms(2_900), "it was renewed");
    backend.always(Fate::Fail);
    let end = lease.deadline();
    assert_eq!(tokio::time::timeout_at(end, std::future::pending::<()>()).await.ok(), None);
    assert!(!lease.is_held());
    sleep(secs(1)).await;
    assert_eq!((lease.deadline(), lease.ttl()), (Instant::now(), secs(9)));
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_lease_of_a_hundred_years_is_far_away() {
    let guard = LockManager::in_memory().lock("k").ttl(lock_core::MAX_TTL).await.unwrap();
    assert!(guard.deadline() > Instant::now() + secs(1_000_000));
}

#[tokio::test(start_paused = true)]
async fn several_leases_are_extended_in_one_call() {
    let (manager, backend) = support::counted();
    let mut all = manager.lock_all(["a", "b", "c"]).ttl(secs(3)).fixed().await.unwrap();
    let before = backend.calls();
    let remaining = all.extend(secs(60)).await.unwrap();
    assert_eq!((backend.calls() - before, backend.log().last().unwrap().len()), (1, 3));
    assert!((secs(59)..secs(60)).contains(&remaining) && remaining == all.remaining(), "{remaining:?}");
    let remaining = all.extend_by(secs(60)).await.unwrap();
    assert!((secs(118)..secs(121)).contains(&remaining), "{remaining:?}");
    assert_eq!(backend.calls() - before, 2);
    for lease in all.leases() {
        assert!(lease.remaining() > secs(118));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_between_two_calls_does_not_keep_others_from_being_extended() {
    let (manager, backend) = support::counted();
    let keys: Vec<_> = (0..300).map(|key| format!("k:{key:03}")).collect();
    let mut all = manager.lock_all(keys.iter().map(String::as_str)).ttl(secs(3)).fixed().await.unwrap();
    backend.next([Fate::HoldReply]);
    let loses_one = async {
        sleep(ms(10)).await;
        manager.force_release("k:280").await.unwrap();
        backend.let_go();
    };
    let (extended, ()) = tokio::join!(all.extend(secs(60)), loses_one);
    let error = extended.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost(LossReason::Forced), Some("k:280")));
    assert_eq!(all.leases().iter().filter(|lease| lease.remaining() > secs(59)).count(), 299);
}

#[tokio::test(start_paused = true)]
async fn extending_several_names_the_first_key_that_fails_and_extends_the_others() {
    let (manager, backend) = support::counted();
    let other = LockManager::builder().backend(backend.store.clone()).build().unwrap();
    let mut all = manager.lock_all(["a", "b", "c", "d"]).ttl(secs(3)).fixed().await.unwrap();
    for taken in ["b", "d"] {
        other.force_release(taken).await.unwrap();
    }
    let error = all.extend(secs(60)).await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Lost(LossReason::Taken), Some("b")));
    let held: Vec<_> = all.leases().iter().map(|lease| lease.remaining() > secs(59)).collect();
    assert_eq!(held, [true, false, true, false]);

    // What is lost already is not sent.
    let before = backend.calls();
    assert_eq!(all.extend(secs(90)).await.unwrap_err().key(), Some("b"));
    assert_eq!(backend.calls(), before);
    let mut all = manager.lock_all(["d", "e"]).ttl(secs(3)).fixed().await.unwrap();
    assert_eq!(all.extend(ms(1)).await.unwrap_err().kind(), ErrorKind::Invalid(Argument::Ttl));
    backend.always(Fate::Fail);
    assert_eq!(all.extend(secs(60)).await.unwrap_err().kind(), ErrorKind::Backend);
    assert!(all.is_held() && all.remaining() < secs(3), "held for as long as before");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_leaves_what_the_user_extended_and_mends_what_the_user_shortened() {
    let manager = LockManager::in_memory();
    let mut guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    guard.extend(secs(60)).await.unwrap();
    sleep(secs(20)).await;
    assert!(guard.remaining() > secs(38), "{:?}", guard.remaining());
    guard.extend(secs(1)).await.unwrap();
    assert!(guard.remaining() < secs(1));
    sleep(secs(5)).await;
    assert!(guard.is_held() && guard.remaining() > ms(1_500), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn an_older_answer_does_not_raise_a_deadline_that_was_lowered_after_its_request() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    backend.next([Fate::HoldReply, Fate::Answer]);
    // A renewal is under way, its answer held back.
    sleep(ms(1_050)).await;
    guard.extend(ms(100)).await.unwrap();
    backend.let_go();
    tokio::task::yield_now().await;
    sleep(ms(1)).await;
    assert!(guard.remaining() < ms(100), "{:?}", guard.remaining());
}

#[tokio::test(start_paused = true)]
async fn an_extension_that_is_not_answered_leaves_the_lease_as_it_was() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(3)).fixed().await.unwrap();
    backend.always(Fate::LoseReply);
    let error = guard.extend(secs(60)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(!error.nothing_was_done() && error.retry_after().is_none(), "the work has begun");
    assert!(guard.is_held() && guard.remaining() < secs(3));
}

#[tokio::test(start_paused = true)]
async fn an_extension_of_a_lease_that_was_taken_away_is_lost() {
    let (manager, backend) = support::counted();
    let mut guard = manager.lock("k").ttl(secs(3)).await.unwrap();
    LockManager::builder().backend(backend.store.clone()).build().unwrap().force_release("k").await.unwrap();
    assert_eq!(guard.extend(secs(60)).await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Taken));
    assert!(!guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn every_lease_has_a_ttl_of_its_own() {
    let manager = LockManager::in_memory();
    // What is left at the key, as any client would find it.
    let left = async |key: &str| manager.inspect(key).await.unwrap().remaining().expect("it has a ttl");
    let mut guards = Vec::new();
    for ttl in [10, 11, 50, 99, 1_000, 3_600_000] {
        let guard = manager.lock(format!("{ttl}")).ttl(ms(ttl)).await.unwrap();
        assert_eq!((guard.ttl(), left(guard.key()).await), (ms(ttl), ms(ttl)));
        guards.push((ttl, guard));
    }
    // Renewals give each the same ttl again.
    for _ in 0..200 {
        sleep(ms(97)).await;
        for (ttl, guard) in &guards {
            let left = left(guard.key()).await;
            assert!(guard.is_held() && ms(ttl / 2) < left && left <= ms(*ttl), "{left:?} of {ttl} ms");
        }
    }
}

/// The clock of a machine that can be suspended: it goes on meanwhile, timers do not.
#[derive(Debug)]
struct Suspended {
    clock: TokioClock,
    ms: AtomicU64,
}

impl Clock for Suspended {
    fn now(&self) -> Moment {
        self.clock.now() + ms(self.ms.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: std::time::Duration) -> Sleep {
        self.clock.sleep(duration)
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_acquired_after_a_suspend_is_renewed_in_time() {
    let store = MemoryBackend::new();
    let other = LockManager::builder().backend(store.clone()).build().unwrap();
    let _busy = other.lock("busy").await.unwrap();
    let clock = Arc::new(Suspended { clock: TokioClock::new(), ms: AtomicU64::new(0) });
    let manager = LockManager::builder().backend(store).clock(clock.clone()).build().unwrap();
    // The engine sleeps until the next check of a waiter, half a second and more of its timers.
    let waiter = tokio::spawn(manager.lock("busy").wait_forever().acquire());
    sleep(ms(10)).await;
    clock.ms.store(60_000, Ordering::SeqCst);
    let guard = manager.lock("k").ttl(ms(300)).await.unwrap();
    sleep(ms(1_000)).await;
    assert!(guard.is_held(), "it was renewed");
    waiter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_due_does_not_wait_until_requests_have_gathered() {
    let backend = Faulty::new();
    backend.allow(64);
    let clock = Arc::new(Suspended { clock: TokioClock::new(), ms: AtomicU64::new(0) });
    let manager = LockManager::builder().backend(backend.clone()).clock(clock.clone()).build().unwrap();
    let guard = manager.lock("held").ttl(secs(30)).await.unwrap();
    let other = manager.lock("other").ttl(secs(600)).await.unwrap();
    backend.next([Fate::HoldReply]);
    let in_flight = tokio::spawn(other.release());
    sleep(ms(1)).await;
    // The timer of the engine has not fired when a request wakes it.
    clock.ms.store(15_000, Ordering::SeqCst);
    let (request, other) = ask_before(manager.lock("beside").acquire(), async move { backend.log() });
    assert_eq!(other.await.unwrap()[3..], [["renew"]], "the request has waited for the other task");
    assert!(guard.is_held());
    in_flight.abort();
    request.abort();
}

#[tokio::test(start_paused = true)]
async fn as_many_leases_are_renewed_over_a_long_way_as_over_a_short_one() {
    let manager = LockManager::builder().backend(Far(MemoryBackend::new())).build().unwrap();
    let mut guards = Vec::new();
    for key in 0..8_000 {
        guards.push(manager.lock(format!("k:{key}")).ttl(secs(3)).await.unwrap());
    }
    sleep(secs(30)).await;
    assert_eq!(guards.iter().filter(|guard| guard.is_held()).count(), 8_000);
}

/// A store whose renewals take 100 ms.
#[derive(Debug)]
struct Far(MemoryBackend);

impl Backend for Far {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let is_far = batch.iter().any(|operation| matches!(operation, Operation::Renew(_)));
        let store = self.0.clone();
        Reply::new(async move {
            if is_far {
                sleep(ms(100)).await;
            }
            store.call(batch).await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}
