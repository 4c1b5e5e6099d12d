//! Tower's contract of readiness, and other layers around and inside the lock.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    cell::Cell,
    future::pending,
    rc::Rc,
    sync::atomic::Ordering::SeqCst,
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::support::{Floor, Strict, limit, lock_error, poll_once, until, until_free, works, works_for, works_forever};
use lock_core::{ErrorKind, LeaseOptions, LockManager};
use lock_tower::{BoxError, LockLayer};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    buffer::BufferLayer,
    limit::{ConcurrencyLimit, ConcurrencyLimitLayer},
    load_shed::LoadShedLayer,
    service_fn,
    timeout::TimeoutLayer,
};

fn poll_ready<S: Service<u64>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    service.poll_ready(&mut Context::from_waker(Waker::noop()))
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_made_ready_is_the_one_called() {
    let _limit = limit();
    let strict = Strict::default();
    let calls = strict.calls();
    let mut service = LockLayer::new(LockManager::in_memory(), |_: &u64| "key").layer(strict);
    for request in 0..3 {
        assert_eq!(service.ready().await.unwrap().call(request).await.unwrap(), request);
    }
    assert_eq!(calls.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_lock_goes_to_the_ready_instance_too() {
    let _limit = limit();
    let mut service = LockLayer::new(LockManager::in_memory(), |_: &u64| None::<String>).layer(Strict::default());
    for request in 0..3 {
        assert_eq!(service.ready().await.unwrap().call(request).await.unwrap(), request);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clone_starts_unready_and_leaves_the_original_ready() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let mut service = LockLayer::new(manager.clone(), |_: &u64| "key").layer(Strict::default());
    service.ready().await.unwrap();
    let mut clone = service.clone();
    assert!(tokio::spawn(clone.call(1)).await.unwrap_err().is_panic(), "the clone was never made ready");
    assert_eq!(service.call(2).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn bad_input_71_a_call_without_readiness_panics_in_the_service_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let mut service = LockLayer::new(manager.clone(), |_: &u64| "key").layer(Strict::default());
    service.ready().await.unwrap().call(1).await.unwrap();
    assert!(tokio::spawn(service.call(2)).await.unwrap_err().is_panic());
    until_free(&manager, "key").await;
    assert_eq!(service.ready().await.unwrap().call(3).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn bad_input_71_a_call_without_readiness_works_where_the_service_allows_it() {
    let _limit = limit();
    let inner = service_fn(async |request: u64| Ok::<_, BoxError>(request));
    let mut service = LockLayer::new(LockManager::in_memory(), |_: &u64| "key").layer(inner);
    assert_eq!(service.call(1).await.unwrap(), 1);
    assert_eq!(service.call(2).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn readiness_is_that_of_the_service_and_acquires_nothing() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let inner = ConcurrencyLimit::new(service_fn(async |_: u64| pending::<Result<(), BoxError>>().await), 1);
    let mut first = LockLayer::new(manager.clone(), |_: &u64| "key").layer(inner);
    let mut second = first.clone();

    assert!(poll_ready(&mut first).is_ready());
    assert!(poll_ready(&mut first).is_ready(), "it stays ready");
    assert!(poll_ready(&mut second).is_pending(), "the one permit is taken");
    assert!(!manager.is_locked("key").await.unwrap());

    let work = tokio::spawn(first.call(1));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(poll_ready(&mut second).is_pending(), "the permit is at work");
    work.abort();
    until("the permit came back", || poll_ready(&mut second).is_ready()).await;
}

#[tokio::test(start_paused = true)]
async fn an_unready_service_says_why() {
    let _limit = limit();
    #[derive(Clone)]
    struct Broken;

    impl Service<u64> for Broken {
        type Response = ();
        type Error = &'static str;
        type Future = std::future::Ready<Result<(), &'static str>>;

        fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Err("broken"))
        }

        fn call(&mut self, _request: u64) -> Self::Future {
            unreachable!("it is never ready")
        }
    }

    let mut service = LockLayer::new(LockManager::in_memory(), |_: &u64| "key").layer(Broken);
    assert_eq!(service.ready().await.map(|_| ()).unwrap_err().to_string(), "broken");
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_gives_back_what_readiness_reserved() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _busy = manager.lock("busy").await.unwrap();
    let key = |request: &u64| if *request == 0 { Err("no key") } else { Ok("busy") };
    let inner = ConcurrencyLimit::new(service_fn(async |_: u64| Ok::<_, BoxError>(())), 1);
    let mut first = LockLayer::new(manager.clone(), key).try_only().layer(inner);
    let mut second = first.clone();

    for request in [0, 1] {
        assert!(poll_ready(&mut first).is_ready());
        assert!(poll_ready(&mut second).is_pending());
        first.call(request).await.unwrap_err();
        assert!(poll_ready(&mut second).is_ready(), "request {request} kept its permit");
        second.call(request).await.unwrap_err();
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_cannot_work_gives_back_what_readiness_reserved() {
    let _limit = limit();
    let inner = ConcurrencyLimit::new(service_fn(async |_: u64| Ok::<_, BoxError>(())), 1);
    let mut first = LockLayer::new(LockManager::in_memory(), |_: &u64| "key")
        .options(LeaseOptions::new().ttl(Duration::ZERO))
        .layer(inner);
    let mut second = first.clone();
    assert!(poll_ready(&mut first).is_ready());
    assert!(poll_ready(&mut second).is_pending());
    first.call(1).await.unwrap_err();
    assert!(poll_ready(&mut second).is_ready(), "it kept its permit");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_before_its_first_poll_leaves_nothing_behind() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let inner = ConcurrencyLimit::new(Strict::default(), 1);
    let mut first = LockLayer::new(manager.clone(), |_: &u64| "key").layer(inner);
    let mut second = first.clone();
    assert!(poll_ready(&mut first).is_ready());
    drop(first.call(1));
    assert!(poll_ready(&mut second).is_ready());
    assert!(!manager.is_locked("key").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn bad_input_78_other_layers_go_around_it_and_inside_it() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let inner = works(&floor);
    let lock = LockLayer::new(manager, |_: &u64| "key").options(LeaseOptions::new().wait(Duration::from_secs(600)));
    let time_out = TimeoutLayer::new(Duration::from_secs(600));
    let outside = ServiceBuilder::new()
        .layer(BufferLayer::new(8))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(8))
        .layer(time_out.clone())
        .layer(lock.clone())
        .service(inner.clone());
    let inside = ServiceBuilder::new()
        .layer(lock)
        .layer(BufferLayer::new(8))
        .layer(LoadShedLayer::new())
        .layer(ConcurrencyLimitLayer::new(8))
        .layer(time_out)
        .service(inner);
    let calls = (0..8).map(|request| {
        let (outside, inside) = (outside.clone(), inside.clone());
        tokio::spawn(async move {
            assert_eq!(outside.oneshot(request).await.unwrap(), request);
            assert_eq!(inside.oneshot(request).await.unwrap(), request);
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    assert_eq!((floor.finished(), floor.most()), (16, 1));
}

#[tokio::test(start_paused = true)]
async fn bad_input_78_a_thousand_clones_share_one_lock() {
    let _limit = limit();
    let floor = Floor::default();
    let lock = LockLayer::new(LockManager::in_memory(), |_: &u64| "key")
        .options(LeaseOptions::new().wait(Duration::from_secs(3600)));
    let service = lock.layer(works_for(&floor, Duration::from_millis(1)));
    let calls: Vec<_> = (0..1_000).map(|request| tokio::spawn(service.clone().oneshot(request))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((floor.finished(), floor.most()), (1_000, 1));
}

#[tokio::test(start_paused = true)]
async fn bad_input_78_a_time_out_around_it_frees_the_key_and_ends_the_waiting() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(Duration::from_secs(1)))
        .layer(LockLayer::new(manager.clone(), |_: &u64| "key"))
        .service(works_forever(&floor));
    let (working, waiting) = tokio::join!(service.clone().oneshot(1), service.clone().oneshot(2));
    for result in [working, waiting] {
        assert!(result.unwrap_err().is::<tower::timeout::error::Elapsed>());
    }
    assert_eq!((floor.begun(), floor.inside()), (1, 0));
    until_free(&manager, "key").await;
}

#[test]
fn outside_a_runtime_it_says_so() {
    let inner = service_fn(async |request: u64| Ok::<_, BoxError>(request));
    let mut service = LockLayer::new(LockManager::in_memory(), |_: &u64| "key").layer(inner);
    let Poll::Ready(Err(error)) = poll_once(&mut Box::pin(service.call(1))) else { panic!("there is no runtime") };
    assert_eq!(lock_error(&error).kind(), ErrorKind::NoRuntime);
}

#[tokio::test(start_paused = true)]
async fn neither_service_nor_request_need_be_send_or_static() {
    let _limit = limit();
    let text = "request".to_owned();
    let asked = Rc::new(Cell::new(0));
    let inner = service_fn(|request: &str| {
        let asked = Rc::clone(&asked);
        asked.set(asked.get() + request.len());
        std::future::ready(Ok::<_, BoxError>(asked))
    });
    let service = LockLayer::new(LockManager::in_memory(), |request: &&str| request.to_string()).layer(inner);
    assert_eq!(service.oneshot(text.as_str()).await.unwrap().get(), 7);
}

#[test]
fn it_is_send_sync_and_clone_as_the_service_is() {
    fn check<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn check_future<T: Send + 'static>(_: &T) {}

    let layer = LockLayer::new(LockManager::in_memory(), |_: &u64| "key");
    let mut service = layer.layer(Strict::default());
    check(&layer);
    check(&service);
    check_future(&service.call(1));
}
