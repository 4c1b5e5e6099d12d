//! What the layer was told beside its key.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{task::Poll, time::Duration};

use crate::support::{
    Failing, Floor, Log, limit, lock_error, poll_once, soon, until, until_free, works, works_for, works_forever,
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use lock_core::{ErrorKind, Lease, LeaseOptions, LockManager, LossReason, OnLost};
use lock_tower::{BoxError, Http, LockLayer, Misconfigured, OnBackendError, Overloaded, Protocol, Refusal};
use tower::{Layer, Service, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

fn request(method: Method) -> Request<String> {
    Request::builder().method(method).uri("/").body(String::new()).unwrap()
}

/// Answers whether there is a lease.
fn shows() -> impl Service<Request<String>, Response = Response<String>, Error = BoxError, Future: Send> + Clone {
    service_fn(async |request: Request<String>| {
        Ok(Response::new(request.extensions().get::<Lease>().is_some().to_string()))
    })
}

#[tokio::test(start_paused = true)]
async fn only_methods_that_may_change_something_are_locked_unless_it_was_told_otherwise() {
    let _limit = limit();
    let locked = |layer: LockLayer<&'static str, Http>| async move {
        let mut locked = Vec::new();
        for method in [Method::GET, Method::HEAD, Method::OPTIONS, Method::POST, Method::PUT, Method::DELETE] {
            let answer = layer.layer(shows()).oneshot(request(method.clone())).await.unwrap();
            if answer.into_body().collect().await.unwrap().to_bytes() == "true" {
                locked.push(method);
            }
        }
        locked
    };
    let layer = || LockLayer::http(LockManager::in_memory(), "key");
    assert_eq!(locked(layer()).await, [Method::POST, Method::PUT, Method::DELETE]);
    assert_eq!(locked(layer().methods([Method::GET])).await, [Method::GET, Method::HEAD]);
    assert_eq!(locked(layer().methods([Method::HEAD])).await, [Method::HEAD]);
    assert_eq!(locked(layer().methods([Method::PUT])).await, [Method::PUT]);
    assert_eq!(locked(layer().all_methods()).await.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn bad_input_70_only_where_it_is_spelt_out_a_backend_that_is_down_lets_through() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let down = |kind| LockManager::builder().backend(Failing(kind, "down")).build().unwrap();
    let layer = |kind| LockLayer::new(down(kind), "key").on_backend_error(OnBackendError::LetThrough);
    let floor = Floor::default();

    let open = layer(ErrorKind::Backend);
    assert_eq!(open.layer(works(&floor)).oneshot(1).await.unwrap(), 1);
    assert_eq!((open.let_through(), floor.finished()), (1, 1));
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.starts_with("WARN") && line.contains("without its lock")), "{lines:?}");

    let denied = layer(ErrorKind::Denied);
    denied.layer(works(&floor)).oneshot(1).await.unwrap_err();
    assert_eq!((denied.let_through(), floor.begun()), (0, 1), "a wrong password is no failure of the backend");
}

#[tokio::test(start_paused = true)]
async fn work_that_may_not_be_broken_off_ends_and_is_no_success() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let layer = LockLayer::new(manager.clone(), "key");
    for (policy, succeeds) in [(OnLost::Finish, false), (OnLost::Ignore, true)] {
        let finished = floor.finished();
        let work =
            tokio::spawn(layer.clone().options(LeaseOptions::new().on_lost(policy)).layer(works(&floor)).oneshot(1));
        until("the work has begun", || floor.inside() == 1).await;
        assert!(manager.force_release("key").await.unwrap());
        let outcome = soon(work).await.unwrap();
        assert_eq!(floor.finished(), finished + 1);
        assert_eq!(outcome.is_ok(), succeeds);
        if let Err(error) = outcome {
            assert_eq!(lock_error(&error).kind(), ErrorKind::Lost(LossReason::Forced));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_manager_says_what_becomes_of_work_unless_the_layer_does() {
    let _limit = limit();
    let ignores = LeaseOptions::new().on_lost(OnLost::Ignore);
    let manager = LockManager::builder().url("memory://").defaults(ignores).build().unwrap();
    let floor = Floor::default();
    let layer = LockLayer::new(manager.clone(), "key");
    let cancels = layer.clone().options(LeaseOptions::new().on_lost(OnLost::Cancel));
    for (layer, succeeds) in [(layer, true), (cancels, false)] {
        let work = tokio::spawn(layer.layer(works(&floor)).oneshot(1));
        until("the work has begun", || floor.inside() == 1).await;
        assert!(manager.force_release("key").await.unwrap());
        assert_eq!(soon(work).await.unwrap().is_ok(), succeeds);
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters_are_refused_per_key_and_in_all_and_places_come_back() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _busy = (manager.lock("1").await.unwrap(), manager.lock("2").await.unwrap());
    let layer = LockLayer::new(manager, |request: &u64| request.to_string()).max_waiters(2).max_waiters_per_key(1);
    let service = layer.layer(works(&Floor::default()));
    let ask = |request| Box::pin(service.clone().oneshot(request));

    let mut first = ask(1);
    assert!(poll_once(&mut first).is_pending());
    assert!(ask(1).await.unwrap_err().is::<Overloaded>(), "one of a key");
    let mut second = ask(2);
    assert!(poll_once(&mut second).is_pending());
    assert!(ask(3).await.unwrap_err().is::<Overloaded>(), "two in all, though the key is free");
    drop(first);
    assert_eq!(ask(3).await.unwrap(), 3);
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn requests_that_hold_their_lease_do_not_count_as_waiters() {
    let _limit = limit();
    let floor = Floor::default();
    let layer = LockLayer::new(LockManager::in_memory(), |request: &u64| request.to_string()).max_waiters(1);
    let service = layer.layer(works(&floor));
    let works: Vec<_> = (0..8).map(|request| tokio::spawn(service.clone().oneshot(request))).collect();
    for work in works {
        work.await.unwrap().unwrap();
    }
    assert_eq!(floor.most(), 8);
}

#[tokio::test(start_paused = true)]
async fn too_many_waiters_are_429_and_a_closure_replaces_the_answer() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("key").await.unwrap();
    let layer = LockLayer::http(manager, "key").max_waiters(1);
    let mut waiter = Box::pin(layer.layer(shows()).oneshot(request(Method::POST)));
    assert!(poll_once(&mut waiter).is_pending());
    let response = layer.layer(shows()).oneshot(request(Method::POST)).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "1");

    let layer = layer.answer(|refusal, mut answer| {
        assert!(matches!(refusal, Refusal::Overloaded(_)));
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        answer.map(|_| Bytes::from_static(b"later"))
    });
    let response = layer.layer(shows()).oneshot(request(Method::POST)).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "later");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_does_not_wait_makes_a_layer_that_only_tries() {
    let _limit = limit();
    let tries = LeaseOptions::new().wait(Duration::ZERO);
    let manager = LockManager::builder().url("memory://").defaults(tries).build().unwrap();
    let _guard = manager.lock("key").await.unwrap();
    let response = LockLayer::http(manager, "key").layer(shows()).oneshot(request(Method::POST)).await.unwrap();
    assert_eq!(response.status(), StatusCode::CONFLICT);
}

#[tokio::test(start_paused = true)]
async fn try_only_does_not_wait() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("key").await.unwrap();
    let begin = tokio::time::Instant::now();
    let refused = LockLayer::new(manager, "key").try_only().layer(works(&Floor::default())).oneshot(1).await;
    assert_eq!(lock_error(&refused.unwrap_err()).kind(), ErrorKind::Busy);
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn bad_input_77_both_layers_are_named_with_the_line_that_made_them() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let outer = LockLayer::new(manager.clone(), "key");
    let inner = LockLayer::new(manager, "key");
    let line = line!();
    let error = outer.layer(inner.layer(works(&Floor::default()))).oneshot(1).await.unwrap_err().to_string();
    for line in [line - 2, line - 1] {
        assert!(error.contains(&format!("policies.rs:{line}:")), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn bad_input_77_a_layer_that_stands_twice_is_not_taken_for_one_waiter_too_many() {
    let _limit = limit();
    let layer = LockLayer::new(LockManager::in_memory(), "key").max_waiters(1).max_waiters_per_key(1);
    let error = layer.layer(layer.layer(works(&Floor::default()))).oneshot(1).await.unwrap_err();
    assert_eq!(lock_error(&error).kind(), ErrorKind::WouldDeadlock);
}

#[tokio::test(start_paused = true)]
async fn detached_work_goes_on_when_its_caller_has_gone() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = LockLayer::new(manager.clone(), "key").detached().layer(works_for(&floor, SECOND));
    let work = tokio::spawn(service.clone().oneshot(1));
    until("the work has begun", || floor.inside() == 1).await;
    let waits = tokio::spawn(service.oneshot(2));
    tokio::task::yield_now().await;
    work.abort();
    waits.abort();
    tokio::task::yield_now().await;
    assert!(manager.is_locked("key").await.unwrap());
    until_free(&manager, "key").await;
    assert_eq!((floor.begun(), floor.finished()), (1, 1), "who waited is given up");
}

/// The manager has a runtime of its own, so a lease can be acquired there.
#[test]
fn detached_layer_refuses_a_request_that_is_polled_outside_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let manager = LockManager::builder().url("memory://").runtime(runtime.handle().clone()).build().unwrap();
    let floor = Floor::default();
    let layer = LockLayer::new(manager.clone(), "key").name("import");
    let mut request = Box::pin(layer.clone().detached().layer(works(&floor)).oneshot(1));
    let error = loop {
        if let Poll::Ready(answer) = poll_once(&mut request) {
            break answer.unwrap_err();
        }
        runtime.block_on(tokio::task::yield_now());
    };
    let said = error.downcast_ref::<Misconfigured>().expect("it is the layer's").to_string();
    assert!(said.contains("\"import\"") && said.contains("outside a tokio runtime"), "{said}");
    assert_eq!(floor.begun(), 0);
    assert!(!runtime.block_on(manager.is_locked("key")).unwrap());
    assert_eq!(runtime.block_on(layer.detached().layer(works(&floor)).oneshot(1)).unwrap(), 1, "inside it is served");
}

#[tokio::test(start_paused = true)]
async fn detached_work_answers_panics_and_loses_its_lease_as_other_work_does() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let layer = LockLayer::new(manager.clone(), "key").detached();
    assert_eq!(layer.layer(works(&floor)).oneshot(1).await.unwrap(), 1);
    assert!(!manager.is_locked("key").await.unwrap());

    let panics = service_fn(async |request: u64| {
        assert_ne!(request, 1, "one is refused");
        Ok::<_, BoxError>(request)
    });
    assert!(tokio::spawn(layer.layer(panics).oneshot(1)).await.unwrap_err().is_panic());
    until_free(&manager, "key").await;

    let work = tokio::spawn(layer.layer(works_forever(&floor)).oneshot(1));
    until("the work has begun", || floor.inside() == 1).await;
    assert!(manager.force_release("key").await.unwrap());
    let error = soon(work).await.unwrap().unwrap_err();
    assert_eq!(lock_error(&error).kind(), ErrorKind::Lost(LossReason::Forced));
    until("the work was dropped", || floor.inside() == 0).await;
}

#[tokio::test(start_paused = true)]
async fn bad_input_72_a_request_that_stalls_keeps_the_key_for_five_minutes_unless_the_bound_is_lifted() {
    let _limit = limit();
    async fn ends_after<P>(layer: LockLayer<&'static str, P>) -> Option<Duration>
    where
        P: Protocol<Request<String>, Response<String>, BoxError, Error = BoxError> + Clone + Send + 'static,
        P::Response: Send,
    {
        let stalls = service_fn(|_: Request<String>| std::future::pending::<Result<Response<String>, BoxError>>());
        let begin = tokio::time::Instant::now();
        let ended =
            tokio::time::timeout(Duration::from_secs(3_600), layer.layer(stalls).oneshot(request(Method::POST)));
        ended.await.ok().map(|_| begin.elapsed())
    }

    let manager = LockManager::in_memory();
    let http = || LockLayer::http(manager.clone(), "key");
    let (minute, five) = (Duration::from_secs(60), Duration::from_secs(300));
    let least = |ended: Option<Duration>, bound: Duration| {
        let ended = ended.unwrap();
        assert!(bound <= ended && ended < bound + Duration::from_secs(1), "{ended:?}");
    };
    least(ends_after(http()).await, five);
    least(ends_after(http().options(LeaseOptions::new().max_hold(minute))).await, minute);
    let unbounded = LeaseOptions::new().max_hold(Duration::MAX);
    assert_eq!(ends_after(http().options(unbounded)).await, None);
    let finishes = http().options(LeaseOptions::new().on_lost(OnLost::Finish));
    assert_eq!(ends_after(finishes).await, None, "it would let another one in");
    assert_eq!(ends_after(LockLayer::new(manager.clone(), "key")).await, None);
    let bound = LeaseOptions::new().max_hold(minute);
    let bounded = || LockManager::builder().url("memory://").defaults(bound).build().unwrap();
    least(ends_after(LockLayer::http(bounded(), "key")).await, minute);
    assert_eq!(ends_after(LockLayer::http(bounded(), "key").options(unbounded)).await, None);
    #[cfg(feature = "grpc")]
    {
        least(ends_after(LockLayer::grpc(manager.clone(), "key")).await, five);
        assert_eq!(ends_after(LockLayer::grpc(manager.clone(), "key").options(unbounded)).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn options_that_can_never_work_refuse_every_request_and_name_the_layer_and_the_remedy() {
    let _limit = limit();
    let floor = Floor::default();
    let layer = |name| LockLayer::new(LockManager::in_memory(), "key").name(name);
    let line = line!() - 1;
    let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    let cases = [
        (
            layer("a").options(LeaseOptions::new().ttl(Duration::ZERO)),
            "a ttl of 0ns is below 10 ms, the least; 10 s is usual",
        ),
        (layer("b").options(LeaseOptions::new().ttl(Duration::from_nanos(9_999_999))), "is below 10 ms"),
        (layer("c").options(LeaseOptions::new().ttl(century + Duration::from_nanos(1))), "is above 100 years"),
        (layer("d").options(LeaseOptions::new().max_hold(Duration::ZERO)), "raise it; `Duration::MAX` is no bound"),
        (layer("e").max_waiters(0), "`try_only`"),
        (layer("f").max_waiters_per_key(0), "`try_only`"),
    ];
    for (layer, remedy) in cases {
        let found = layer.check_for::<u64>().unwrap_err();
        let refused = layer.layer(works(&floor)).oneshot(1).await.unwrap_err();
        assert_eq!(refused.downcast_ref(), Some(&found));
        let text = found.to_string();
        assert!(text.starts_with("the lock layer \"") && text.contains(remedy), "{text}");
        assert!(text.contains(&format!("policies.rs:{line}:")), "{text}");
    }
    assert_eq!(floor.begun(), 0);

    let least = layer("").options(LeaseOptions::new().ttl(Duration::from_millis(10)).max_hold(Duration::from_nanos(1)));
    least.max_waiters(1).max_waiters_per_key(1).check_for::<u64>().unwrap();
    layer("").options(LeaseOptions::new().ttl(century)).check_for::<u64>().unwrap();
    let often = LeaseOptions::new().renew_every(Duration::from_secs(2));
    let manager = LockManager::builder().url("memory://").defaults(often).build().unwrap();
    let with_ttl = |ttl| LeaseOptions::new().ttl(Duration::from_secs(ttl));
    let layer_of = |ttl| LockLayer::new(manager.clone(), "key").options(with_ttl(ttl)).check_for::<u64>();
    assert!(layer_of(3).unwrap_err().to_string().contains("`renew_every` of 2s is not between"));
    layer_of(4).unwrap();
    let unnamed =
        layer("").options(LeaseOptions::new().ttl(Duration::ZERO)).check_for::<u64>().unwrap_err().to_string();
    assert!(unnamed.starts_with("the lock layer made at "), "{unnamed}");
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_cannot_work_is_the_service_s_mistake_for_every_method_and_logged_when_it_is_put_around() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let layer = LockLayer::http(LockManager::in_memory(), "key").methods([]).name("sell");
    let service = layer.layer(shows());
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.starts_with("ERROR") && line.contains("\"sell\"")), "{lines:?}");
    for method in [Method::GET, Method::POST] {
        let response = service.clone().oneshot(request(method)).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let text = response.into_body().collect().await.unwrap().to_bytes();
        assert!(!String::from_utf8_lossy(&text).contains("sell"), "{text:?}");
    }
    let success = layer.clone().all_methods().busy_status(StatusCode::OK).check_for::<Request<String>>().unwrap_err();
    assert!(success.to_string().contains("choose the status of an error"), "{success}");
    layer.clone().all_methods().busy_status(StatusCode::LOCKED).check_for::<Request<String>>().unwrap();
    layer.clone().all_methods().check_for::<Request<String>>().unwrap();
    layer.methods([Method::GET]).check_for::<Request<String>>().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_of_text_that_is_none_is_the_service_s_mistake_and_not_the_client_s() {
    let _limit = limit();
    static LONG: [u8; 1025] = [b'k'; 1025];
    let long = std::str::from_utf8(&LONG).unwrap();
    for (key, status) in [("", 500), (long, 500), (&long[1..], 200)] {
        let layer = LockLayer::http(LockManager::in_memory(), key);
        let response = layer.layer(shows()).oneshot(request(Method::POST)).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
    }
}

#[tokio::test(start_paused = true)]
async fn detached_work_whose_lease_is_lost_goes_on_where_it_was_told_to() {
    let _limit = limit();
    for (policy, succeeds) in [(OnLost::Finish, false), (OnLost::Ignore, true)] {
        let manager = LockManager::in_memory();
        let floor = Floor::default();
        let layer = LockLayer::new(manager.clone(), "key").options(LeaseOptions::new().on_lost(policy)).detached();
        let work = tokio::spawn(layer.layer(works(&floor)).oneshot(1));
        until("the work has begun", || floor.inside() == 1).await;
        assert!(manager.force_release("key").await.unwrap());
        assert_eq!(soon(work).await.unwrap().is_ok(), succeeds);
        assert_eq!(floor.finished(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn limits_and_counts_are_those_of_all_clones_detached_ones_too() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("key").await.unwrap();
    let layer = LockLayer::new(manager, "key").max_waiters(1);
    let mut waiter = Box::pin(layer.clone().detached().layer(works(&Floor::default())).oneshot(1));
    assert!(poll_once(&mut waiter).is_pending());
    let refused = layer.layer(works(&Floor::default())).oneshot(1).await.unwrap_err();
    assert!(refused.is::<Overloaded>(), "{refused}");

    let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "down")).build().unwrap();
    let open = LockLayer::new(down, "key").on_backend_error(OnBackendError::LetThrough);
    soon(open.clone().detached().layer(works(&Floor::default())).oneshot(1)).await.unwrap();
    assert_eq!(open.let_through(), 1);
}
