//! Requests that exclude each other, and how a lease ends.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{borrow::Cow, pin::pin, time::Duration};

use crate::support::{Floor, limit, lock_error, poll_once, soon, until, until_free, works, works_for, works_forever};
use lock_core::{ErrorKind, Lease, LeaseOptions, LockManager, LossReason};
use lock_tower::{BoxError, Choice, KeyExtractor, LockLayer, Plain, Protocol, Refusal};
use tower::{Layer, Service, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn key(request: &u64) -> String {
    format!("goods:{request}")
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_key_are_served_one_at_a_time() {
    let _limit = limit();
    let floor = Floor::default();
    let service = LockLayer::new(LockManager::in_memory(), key).layer(works(&floor));
    let (first, second) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(1));
    assert_eq!((first.unwrap(), second.unwrap()), (1, 1));
    assert_eq!((floor.finished(), floor.most()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn requests_of_different_keys_do_not_wait_for_each_other() {
    let _limit = limit();
    let floor = Floor::default();
    let service = LockLayer::new(LockManager::in_memory(), key).try_only().layer(works(&floor));
    let (first, second) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(2));
    assert_eq!((first.unwrap(), second.unwrap()), (1, 2));
    assert_eq!((floor.finished(), floor.most()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn the_key_is_held_while_the_service_works_and_free_when_it_has_answered() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let mut work = pin!(LockLayer::new(manager.clone(), key).layer(works(&floor)).oneshot(1));
    assert!(poll_once(&mut work).is_pending());
    assert_eq!(floor.inside(), 1);
    assert!(manager.is_locked("goods:1").await.unwrap());
    work.await.unwrap();
    // Not "soon": the response waits for the release.
    assert!(!manager.is_locked("goods:1").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn other_ways_to_the_key_are_excluded_too() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let guard = manager.lock("goods:1").await.unwrap();
    let service = LockLayer::new(manager.clone(), key).layer(works(&floor));
    let work = tokio::spawn(service.oneshot(1));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(floor.begun(), 0);
    guard.release().await.unwrap();
    work.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_an_extractor_may_return_is_a_key() {
    let _limit = limit();
    async fn held<K: KeyExtractor<u64>>(extractor: K) -> bool {
        let manager = LockManager::in_memory();
        let floor = Floor::default();
        let layer = LockLayer::new(manager.clone(), |request: &u64| extractor.extract(request));
        let mut work = pin!(layer.layer(works(&floor)).oneshot(1));
        assert!(poll_once(&mut work).is_pending());
        assert_eq!(floor.inside(), 1);
        manager.is_locked("goods:1").await.unwrap()
    }

    assert!(held(key).await);
    assert!(held(|_: &u64| "goods:1").await);
    assert!(held(|_: &u64| Cow::Borrowed("goods:1")).await);
    assert!(held(|request: &u64| Some(key(request))).await);
    assert!(held(|request: &u64| Ok::<_, BoxError>(Some(key(request)))).await);
    assert!(held(|_: &u64| Choice::Lock("goods:1".to_owned())).await);
    assert!(!held(|_: &u64| None::<String>).await, "this alone passes without a lock");
    assert!(!held(|_: &u64| Choice::Pass).await);
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_does_not_reach_the_service() {
    let _limit = limit();
    #[derive(Debug, PartialEq)]
    struct NoGoods;

    impl std::fmt::Display for NoGoods {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("no goods")
        }
    }

    impl std::error::Error for NoGoods {}

    let floor = Floor::default();
    let extractor = |_: &u64| Err::<String, _>(NoGoods);
    let refused = LockLayer::new(LockManager::in_memory(), extractor).layer(works(&floor)).oneshot(1).await;
    assert_eq!(refused.unwrap_err().downcast_ref(), Some(&NoGoods));
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_layer_was_told_goes_into_each_request() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let (leases, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let reports = Reports(leases);
    let floor = Floor::default();

    let layer =
        LockLayer::with_protocol(manager.clone(), key, reports.clone()).options(LeaseOptions::new().ttl(SECOND * 3));
    let held = tokio::spawn(layer.layer(works_forever(&floor)).oneshot(1));
    let lease: Lease = soon(seen.recv()).await.unwrap();
    assert!(lease.remaining() > SECOND * 2 && lease.remaining() < SECOND * 3, "{:?}", lease.remaining());

    // It waits for as long as it was told, and no longer.
    let begin = tokio::time::Instant::now();
    let refused =
        layer.clone().options(LeaseOptions::new().wait(SECOND * 4)).layer(works(&floor)).oneshot(1).await.unwrap_err();
    assert_eq!(lock_error(&refused).kind(), ErrorKind::Busy);
    assert!((SECOND * 4..SECOND * 5).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    held.abort();

    let begin = tokio::time::Instant::now();
    let ended = soon(layer.options(LeaseOptions::new().max_hold(SECOND * 7)).layer(works_forever(&floor)).oneshot(2))
        .await
        .unwrap_err();
    assert_eq!(lock_error(&ended).kind(), ErrorKind::Lost(LossReason::MaxHold));
    assert!((SECOND * 6..SECOND * 8).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_renewed_for_as_long_as_the_service_works() {
    let _limit = limit();
    let floor = Floor::default();
    let layer =
        LockLayer::new(LockManager::in_memory(), key).options(LeaseOptions::new().ttl(SECOND).wait(SECOND * 600));
    let service = layer.layer(works_for(&floor, SECOND * 60));
    let (first, second) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(1));
    first.unwrap();
    second.unwrap();
    assert_eq!(floor.most(), 1);
}

#[tokio::test(start_paused = true)]
async fn bad_input_73_a_dropped_response_stops_the_work_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = LockLayer::new(manager.clone(), key).layer(works_forever(&floor));
    let work = tokio::spawn(service.clone().oneshot(1));
    until("the work has begun", || floor.inside() == 1).await;
    let waits = tokio::spawn(service.clone().oneshot(1));
    tokio::task::yield_now().await;

    waits.abort();
    waits.await.unwrap_err();
    assert!(manager.is_locked("goods:1").await.unwrap(), "the waiter had nothing to release");
    work.abort();
    work.await.unwrap_err();
    assert_eq!((floor.begun(), floor.inside()), (1, 0));
    until_free(&manager, "goods:1").await;
}

#[tokio::test(start_paused = true)]
async fn bad_input_74_a_panic_goes_on_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let inner = service_fn(async |request: u64| {
        tokio::task::yield_now().await;
        assert_ne!(request, 1, "one is refused");
        Ok::<_, BoxError>(request)
    });
    let service = LockLayer::new(manager.clone(), |_: &u64| "key").layer(inner);
    let panic = tokio::spawn(service.clone().oneshot(1)).await.unwrap_err().into_panic();
    assert!(panic.downcast_ref::<String>().is_some_and(|message| message.contains("one is refused")));
    assert_eq!(service.oneshot(2).await.unwrap(), 2);
    until_free(&manager, "key").await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_goes_through_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let inner = service_fn(async |_: u64| Err::<(), _>("sold out"));
    let error = LockLayer::new(manager.clone(), key).layer(inner).oneshot(1).await.unwrap_err();
    assert_eq!(error.to_string(), "sold out");
    assert!(!manager.is_locked("goods:1").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn bad_input_75_work_is_dropped_when_its_lease_is_lost() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let work = tokio::spawn(LockLayer::new(manager.clone(), key).layer(works_forever(&floor)).oneshot(1));
    until("the work has begun", || floor.inside() == 1).await;
    assert!(manager.force_release("goods:1").await.unwrap());
    let error = soon(work).await.unwrap().unwrap_err();
    assert_eq!(lock_error(&error).kind(), ErrorKind::Lost(LossReason::Forced));
    assert_eq!((floor.inside(), floor.finished()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn bad_input_77_the_same_key_in_two_layers_is_refused_at_once() {
    let _limit = limit();
    let floor = Floor::default();
    let layer = LockLayer::new(LockManager::in_memory(), key);
    let begin = tokio::time::Instant::now();
    let error = layer.layer(layer.layer(works(&floor))).oneshot(1).await.unwrap_err();
    assert_eq!(lock_error(&error).kind(), ErrorKind::WouldDeadlock);
    assert_eq!((begin.elapsed(), floor.begun()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn different_keys_in_two_layers_are_both_held() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let inner = LockLayer::new(manager.clone(), key).layer(works(&floor));
    let mut work = pin!(LockLayer::new(manager.clone(), |_: &u64| "shop").layer(inner).oneshot(1));
    assert!(poll_once(&mut work).is_pending());
    assert!(manager.is_locked("shop").await.unwrap() && manager.is_locked("goods:1").await.unwrap());
    assert_eq!(work.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_is_at_hand_without_the_lock() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("goods:1").await.unwrap();
    let floor = Floor::default();
    let mut service = LockLayer::new(manager, key).layer(works(&floor));
    assert_eq!(service.get_ref().clone().oneshot(1).await.unwrap(), 1);
    assert_eq!(service.get_mut().call(1).await.unwrap(), 1);
    assert_eq!(service.into_inner().oneshot(1).await.unwrap(), 1);
}

/// Like [`Plain`], and reports the leases that it is given.
#[derive(Clone)]
struct Reports(tokio::sync::mpsc::UnboundedSender<Lease>);

impl Protocol<u64, u64, BoxError> for Reports {
    type Response = u64;
    type Error = BoxError;

    fn attach(&self, _request: &mut u64, lease: &Lease) {
        self.0.send(lease.clone()).unwrap();
    }

    fn done(&self, response: u64) -> u64 {
        response
    }

    fn fail(&self, error: BoxError) -> BoxError {
        error
    }

    fn refuse(&self, refusal: Refusal) -> Result<u64, BoxError> {
        <Plain as Protocol<u64, u64, BoxError>>::refuse(&Plain, refusal)
    }
}
