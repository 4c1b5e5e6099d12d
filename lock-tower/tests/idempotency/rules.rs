//! Which answer a request is given.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Extension, Router,
    body::Body,
    extract::{Request, State},
    response::Response,
    routing::post,
};
use bytes::Bytes;
use http_body::Frame;
use lock_core::{Lease, LeaseOptions, LockManager};
use lock_tower::{
    LockLayer,
    idempotency::{Answers as _, Attempt, IdempotencyLayer, MemoryAnswers},
    key::{extension, scoped},
};
use tokio::{
    sync::mpsc::{self, UnboundedReceiver},
    time::Instant,
};
use tower::{Layer as _, ServiceExt, service_fn};

use super::{Bank, ask, layer, request, told};
use crate::support::{limit, poll_once, soon, until, until_waited_for};

#[tokio::test]
async fn attack_5_a_retry_is_given_the_first_answer() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    let first = ask(&service, request("a", "1", "42")).await;
    first.is(201, "charge 1");
    assert!(!first.is_replayed());
    let retry = ask(&service, request("a", "1", "42")).await;
    retry.is(201, "charge 1");
    assert!(retry.is_replayed());
    ask(&service, request("a", "2", "42")).await.is(201, "charge 2");
    assert_eq!(bank.charges(), 2);
}

#[tokio::test]
async fn a_duplicate_waits_for_the_first_and_is_given_its_answer() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    let ask_one = |body| {
        let service = service.clone();
        tokio::spawn(async move { ask(&service, request("a", "1", body)).await })
    };
    let first = ask_one("42");
    until("the handler runs", || bank.charges() == 1).await;
    let (duplicate, other) = (ask_one("42"), ask_one("43"));
    until_waited_for(&manager, "payments:a:1").await;
    bank.open_doors();
    soon(first).await.unwrap().is(201, "charge 1");
    soon(duplicate).await.unwrap().is(201, "charge 1");
    // Attack 4: it learns of its mistake when the first is done.
    soon(other).await.unwrap().is_refused(422, "idempotency_key_reused");
    assert_eq!(bank.charges(), 1);
}

#[tokio::test]
async fn a_duplicate_that_has_waited_for_long_enough_is_told_when_to_come_back() {
    let _limit = limit();
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &answers).wait(Duration::ZERO));
    let first = tokio::spawn({
        let service = service.clone();
        async move { ask(&service, request("a", "1", "42")).await }
    });
    until("the handler runs", || bank.charges() == 1).await;
    let short = bank.routes().route_layer(layer(&manager, &answers).wait(Duration::from_millis(20)));
    for service in [&service, &short] {
        let told = ask(service, request("a", "1", "42")).await;
        told.is_refused(409, "idempotency_in_progress");
        let seconds: u64 = told.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=30).contains(&seconds), "{seconds}");
    }
    bank.open_doors();
    soon(first).await.unwrap().is(201, "charge 1");
}

#[tokio::test]
async fn a_key_is_of_one_request() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    ask(&service, request("a", "1", "42")).await.is(201, "charge 1");
    ask(&service, request("a", "1", "43")).await.is_refused(422, "idempotency_key_reused");
    let mut other = request("a", "1", "42");
    *other.uri_mut() = "/refund".parse().unwrap();
    ask(&service, other).await.is_refused(422, "idempotency_key_reused");
    let mut other = request("a", "1", "42");
    *other.uri_mut() = "/pay?twice".parse().unwrap();
    ask(&service, other).await.is_refused(422, "idempotency_key_reused");
    // Text that runs into the principal is another key all the same.
    ask(&service, request("a:1", "1", "42")).await.is(201, "charge 2");
    ask(&service, request("a", "1:1", "42")).await.is(201, "charge 3");
    assert_eq!(bank.charges(), 3);
}

#[tokio::test]
async fn attack_10_a_stranger_s_key_is_another_key() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    ask(&service, request("a", "1", "42")).await.is(201, "charge 1");
    ask(&service, request("b", "1", "42")).await.is(201, "charge 2");
    let mut nobody = request("a", "1", "42");
    nobody.headers_mut().remove("x-account");
    ask(&service, nobody).await.is_refused(400, "lock_key");
    // The principal of a closure may not be left out either: a request would run without a lock.
    let whose = scoped("payments", |_: &Request| None::<String>);
    let service = bank.routes().route_layer(IdempotencyLayer::http(manager.clone(), whose, MemoryAnswers::new()));
    ask(&service, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    // Nor may it be empty: all clients without a name would be one.
    let routes = bank.routes().route_layer(IdempotencyLayer::http(
        manager.clone(),
        scoped("payments", |_: &Request| ""),
        MemoryAnswers::new(),
    ));
    ask(&routes, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    let first_of_two = scoped("payments", (|_: &Request| "", |_: &Request| "shop"));
    let routes = bank.routes().route_layer(IdempotencyLayer::http(manager.clone(), first_of_two, MemoryAnswers::new()));
    ask(&routes, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    let second_of_two = scoped("payments", (|_: &Request| "shop", |_: &Request| ""));
    let routes = bank.routes().route_layer(IdempotencyLayer::http(manager, second_of_two, MemoryAnswers::new()));
    ask(&routes, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    assert_eq!(bank.charges(), 2);
}

#[tokio::test]
async fn a_prefix_of_the_manager_separates_answers_too() {
    let (answers, bank) = (MemoryAnswers::new(), Bank::open());
    for (prefix, charge) in [("test:", "charge 1"), ("live:", "charge 2")] {
        let manager = LockManager::builder().url("memory://prefixes").prefix(prefix).build().unwrap();
        let service = bank.routes().route_layer(layer(&manager, &answers));
        for _ in 0..2 {
            ask(&service, request("a", "1", "42")).await.is(201, charge);
        }
        assert!(answers.get(&format!("{prefix}payments:a:1")).await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_key_is_required_unless_it_is_optional() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    let optional = bank.routes().route_layer(layer(&manager, &answers).optional());
    let without = || {
        let mut request = request("a", "1", "42");
        request.headers_mut().remove("idempotency-key");
        request
    };
    ask(&service, without()).await.is_refused(400, "idempotency_key_missing");
    ask(&optional, without()).await.is(201, "charge 1");
    ask(&optional, without()).await.is(201, "charge 2");
    for service in [&service, &optional] {
        let mut twice = request("a", "1", "42");
        twice.headers_mut().append("idempotency-key", "2".parse().unwrap());
        ask(service, twice).await.is_refused(400, "idempotency_key_unusable");
        for key in ["", "\u{e9}", &"k".repeat(256)] {
            let mut unusable = without();
            let key = http::HeaderValue::from_bytes(key.as_bytes()).unwrap();
            unusable.headers_mut().insert("idempotency-key", key);
            ask(service, unusable).await.is_refused(400, "idempotency_key_unusable");
        }
    }
    ask(&service, request("a", &"k".repeat(255), "42")).await.is(201, "charge 3");
    assert_eq!(bank.charges(), 3);
}

#[tokio::test]
async fn requests_that_only_read_pass() {
    let (manager, answers) = (LockManager::in_memory(), MemoryAnswers::new());
    let service = Router::new().fallback(async || "read").layer(layer(&manager, &answers));
    for method in ["GET", "HEAD", "OPTIONS"] {
        let request = Request::builder().method(method).uri("/pay").body(Body::empty()).unwrap();
        assert_eq!(ask(&service, request).await.status, 200, "{method}");
    }
    let request = Request::builder().method("PUT").uri("/pay").body(Body::empty()).unwrap();
    ask(&service, request).await.is_refused(400, "idempotency_key_missing");
}

#[tokio::test]
async fn attack_15_answers_that_invite_a_retry_are_not_kept_and_all_others_are() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    for (index, (status, is_kept)) in [
        (200, true),
        (204, true),
        (303, true),
        (400, true),
        (401, false),
        (402, true),
        (408, false),
        (425, false),
        (429, false),
        (499, true),
        (500, false),
        (503, false),
        (599, false),
    ]
    .into_iter()
    .enumerate()
    {
        let key = index.to_string();
        let (before, asked) = (bank.charges(), || {
            let mut request = request("a", &key, "42");
            request.headers_mut().insert("x-status", status.into());
            request
        });
        let first = ask(&service, asked()).await;
        let again = ask(&service, asked()).await;
        assert_eq!((first.status, again.status), (status, status));
        assert_eq!((again.is_replayed(), bank.charges() - before), (is_kept, if is_kept { 1 } else { 2 }), "{status}");
    }
}

#[tokio::test]
async fn refusals_of_a_lock_inside_are_not_kept() {
    let (manager, answers) = (LockManager::in_memory(), MemoryAnswers::new());
    let inner = LockLayer::http(manager.clone(), "account").try_only();
    let routes = Router::new().route("/pay", post(async || "paid")).route_layer(inner);
    let service = routes.route_layer(layer(&manager, &answers));
    let guard = manager.lock("account").await.unwrap();
    ask(&service, request("a", "1", "42")).await.is_refused(409, "lock_busy");
    guard.release().await.unwrap();
    ask(&service, request("a", "1", "42")).await.is(200, "paid");
    // Nor is what a handler marks as temporary.
    let busy = Router::new().route("/pay", post(async || (http::StatusCode::CONFLICT, [("retry-after", "1")])));
    let service = busy.route_layer(layer(&manager, &answers));
    assert_eq!(ask(&service, request("a", "2", "42")).await.status, 409);
    assert_eq!(answers.get("payments:a:2").await.unwrap(), None);
}

#[tokio::test]
async fn a_handler_that_charges_before_a_lock_that_is_busy_charges_again_and_one_that_locks_first_does_not() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let ledger = manager.clone();
    let charge = async move |State(bank): State<Bank>, headers: http::HeaderMap| {
        let lock = || ledger.lock("ledger").wait(Duration::ZERO).acquire();
        let (number, _guard) = if headers.contains_key("x-lock-first") {
            let guard = lock().await?;
            (bank.charge().await, guard)
        } else {
            (bank.charge().await, lock().await?)
        };
        Ok::<_, lock_core::Error>(format!("charge {number}"))
    };
    let routes = Router::new().route("/pay", post(charge)).with_state(bank.clone());
    let service = routes.route_layer(layer(&manager, &MemoryAnswers::new()));
    let locks_first = || {
        let mut request = request("a", "2", "42");
        request.headers_mut().insert("x-lock-first", "yes".parse().unwrap());
        request
    };
    let guard = manager.lock("ledger").await.unwrap();
    ask(&service, request("a", "1", "42")).await.is_refused(409, "lock_busy");
    ask(&service, locks_first()).await.is_refused(409, "lock_busy");
    assert_eq!(bank.charges(), 1);
    guard.release().await.unwrap();
    ask(&service, request("a", "1", "42")).await.is(200, "charge 2");
    assert_eq!(bank.charges(), 2, "the refusal was not kept, so the same request charged twice");
    for _ in 0..2 {
        ask(&service, locks_first()).await.is(200, "charge 3");
    }
}

#[tokio::test]
async fn an_answer_that_says_when_to_look_again_is_kept_unless_it_is_an_error() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let accept = {
        let bank = bank.clone();
        async move || (http::StatusCode::ACCEPTED, [("retry-after", "1")], format!("job {}", bank.charge().await))
    };
    let service = Router::new().route("/pay", post(accept)).route_layer(layer(&manager, &MemoryAnswers::new()));
    for _ in 0..2 {
        ask(&service, request("a", "1", "42")).await.is(202, "job 1");
    }
    assert_eq!(bank.charges(), 1);
}

#[tokio::test]
async fn attack_9_only_headers_of_the_content_are_kept() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    let first = ask(&service, request("a", "1", "42")).await;
    assert_eq!(first.headers["set-cookie"], "session=secret", "it is that of the first client");
    let names = |told: &super::Told| {
        let mut names: Vec<_> = told.headers.keys().map(ToString::to_string).collect();
        names.sort();
        names
    };
    let replayed = ask(&service, request("a", "1", "42")).await;
    assert_eq!(names(&replayed), ["content-length", "content-type", "idempotent-replayed", "location"]);
    assert_eq!(replayed.headers["location"], "/charges/1");
    let kept = answers.get("payments:a:1").await.unwrap().unwrap();
    assert!(!String::from_utf8(kept.into()).unwrap().contains("secret"));
}

#[tokio::test]
async fn attack_7_an_answer_that_is_too_large_runs_once_all_the_same() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers).limit(1_000));
    let of = |key, bytes: u16| {
        let mut request = request("a", key, "42");
        request.headers_mut().insert("x-body", bytes.into());
        request
    };
    assert_eq!(ask(&service, of("1", 1_000)).await.body.len(), 1_000);
    assert_eq!(ask(&service, of("1", 1_000)).await.body.len(), 1_000);
    assert_eq!(ask(&service, of("2", 1_001)).await.body.len(), 1_001, "the first client is given all of it");
    let told = ask(&service, of("2", 1_001)).await;
    told.is_refused(409, "idempotency_answer_not_kept");
    assert!(!told.headers.contains_key("retry-after"));
    let mut other = of("2", 1_001);
    *other.body_mut() = Body::from("43");
    ask(&service, other).await.is_refused(422, "idempotency_key_reused");
    assert_eq!(bank.charges(), 2);
}

#[tokio::test(start_paused = true)]
async fn attack_7_a_stream_goes_to_its_client_and_runs_once_all_the_same() {
    let _limit = limit();
    let (manager, answers) = (LockManager::in_memory(), MemoryAnswers::new());
    let (sender, receiver) = mpsc::unbounded_channel();
    let body = Arc::new(Mutex::new(Some(Fed(receiver))));
    let handler = move || async move { Response::new(Body::new(body.lock().unwrap().take().expect("runs once"))) };
    let service = Router::new().route("/pay", post(handler)).route_layer(layer(&manager, &answers));
    sender.send("one ").unwrap();
    let response = service.clone().oneshot(request("a", "1", "42")).await.unwrap();
    assert!(!manager.is_locked("payments:a:1").await.unwrap(), "a stream is not under the lease");
    ask(&service, request("a", "1", "42")).await.is_refused(409, "idempotency_answer_not_kept");
    sender.send("two").unwrap();
    drop(sender);
    told(response).await.is(200, "one two");
}

/// A body that is sent as it comes.
struct Fed(UnboundedReceiver<&'static str>);

impl http_body::Body for Fed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|text| text.map(|text| Ok(Frame::data(text.into()))))
    }
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let large =
        |mebibytes: usize, more| request("a", "1", "").map(|_| Body::from(vec![0; mebibytes * 1024 * 1024 + more]));
    // `pay` reads no body, so that axum has no limit of its own here.
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    ask(&service, large(2, 1)).await.is_refused(413, "idempotency_request_too_large");
    ask(&service, large(2, 0)).await.is(201, "charge 1");
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()).limit(3 * 1024 * 1024));
    ask(&service, large(3, 1)).await.is_refused(413, "idempotency_request_too_large");
    ask(&service, large(3, 0)).await.is(201, "charge 2");
}

#[tokio::test]
async fn a_handler_sees_its_lease_and_can_store_its_answer_itself() {
    let (manager, answers) = (LockManager::in_memory(), MemoryAnswers::new());
    let store = answers.clone();
    let handler = move |Extension(lease): Extension<Lease>, Extension(attempt): Extension<Attempt>| async move {
        assert_eq!(lease.key(), attempt.key());
        let response = Response::builder().header("x-other", "1").body(Bytes::from("from the transaction")).unwrap();
        store.put_if_absent(attempt.key(), attempt.answer(&response), Duration::from_secs(60)).await.unwrap();
        response.map(Body::from)
    };
    let service = Router::new().route("/pay", post(handler)).route_layer(layer(&manager, &answers));
    let first = ask(&service, request("a", "1", "42")).await;
    first.is(200, "from the transaction");
    assert!(!first.is_replayed(), "it is its own");
    let replayed = ask(&service, request("a", "1", "42")).await;
    replayed.is(200, "from the transaction");
    assert!(replayed.is_replayed());
}

#[tokio::test]
async fn an_answer_that_the_handler_has_stored_is_told_though_it_fails_after_that() {
    let (manager, answers) = (LockManager::in_memory(), MemoryAnswers::new());
    let store = answers.clone();
    // The header `x-error` asks for an error of the service in place of a 500.
    let inner = service_fn(move |request: Request| {
        let store = store.clone();
        async move {
            let attempt = request.extensions().get::<Attempt>().unwrap();
            let paid = Response::new(Bytes::from("paid"));
            store.put_if_absent(attempt.key(), attempt.answer(&paid), Duration::from_secs(60)).await?;
            if request.headers().contains_key("x-error") {
                return Err("failed".into());
            }
            Ok::<_, lock_tower::BoxError>(Response::builder().status(500).body(Body::from("failed"))?)
        }
    });
    let service = layer(&manager, &answers).layer(inner);
    for key in ["status", "error"] {
        let mut request = request("a", key, "42");
        if key == "error" {
            request.headers_mut().insert("x-error", 1.into());
        }
        let response = service.clone().oneshot(request).await.unwrap();
        told(response.map(Body::new)).await.is(200, "paid");
    }
}

/// The handler fails, so that its duplicates run; none may keep the key from the next, though each keeps it for longer than it waits.
#[tokio::test(start_paused = true)]
async fn at_least_keeps_no_duplicate_from_running_for_ever() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let options = LeaseOptions::new().at_least(Duration::from_secs(5));
    let once = layer(&manager, &MemoryAnswers::new()).wait(Duration::from_secs(2)).lock(|lock| lock.options(options));
    let service = bank.routes().route_layer(once);
    for _ in 0..20 {
        let mut fails = request("a", "1", "42");
        fails.headers_mut().insert("x-status", 500.into());
        ask(&service, fails).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(bank.charges() > 5, "{} of 20 ran", bank.charges());
}

#[tokio::test(start_paused = true)]
async fn attack_8_an_upload_that_stalls_for_ever_is_refused_after_five_minutes() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    let stalls =
        request("a", "1", "42").map(|_| Body::from_stream(tokio_stream::pending::<Result<Bytes, Infallible>>()));
    let begun = Instant::now();
    ask(&service, stalls).await.is_refused(400, "idempotency_request_unreadable");
    assert_eq!((begun.elapsed().as_secs(), bank.charges()), (5 * 60, 0));
}

#[tokio::test]
async fn a_principal_that_no_layer_has_set_is_a_mistake_of_the_service() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let whose = scoped("payments", extension::<u64>());
    let once = IdempotencyLayer::http(manager, whose, MemoryAnswers::new());
    let service = bank.routes().route_layer(once);
    ask(&service, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    ask(&service.layer(Extension(7_u64)), request("a", "1", "42")).await.is(201, "charge 1");
}

#[tokio::test]
async fn a_duplicate_may_wait_for_ever() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()).wait(Duration::MAX));
    let ask_one = || {
        let service = service.clone();
        tokio::spawn(async move { ask(&service, request("a", "1", "42")).await })
    };
    let first = ask_one();
    until("the handler runs", || bank.charges() == 1 || first.is_finished()).await;
    assert!(!first.is_finished(), "it has panicked");
    let duplicate = ask_one();
    until_waited_for(&manager, "payments:a:1").await;
    bank.open_doors();
    soon(first).await.unwrap().is(201, "charge 1");
    soon(duplicate).await.unwrap().is(201, "charge 1");
}

#[tokio::test]
async fn a_layer_that_can_never_work_refuses_all() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let mistakes = [
        layer(&manager, &answers).keep(Duration::ZERO),
        layer(&manager, &answers).keep(Duration::MAX),
        layer(&manager, &answers).store_timeout(Duration::ZERO),
        layer(&manager, &answers).lock(|lock| lock.permits(2)),
        layer(&manager, &answers).lock(|lock| lock.options(LeaseOptions::new().ttl(Duration::ZERO))),
    ];
    for layer in mistakes {
        layer.check_for::<Body>().unwrap_err();
        let service = bank.routes().route_layer(layer);
        ask(&service, request("a", "1", "42")).await.is_refused(500, "lock_misconfigured");
    }
    layer(&manager, &answers).check_for::<Body>().unwrap();
    assert_eq!(bank.charges(), 0);
}

#[test]
fn outside_a_runtime_nothing_panics() {
    let manager = LockManager::in_memory();
    let inner = service_fn(async |_: Request| Ok::<_, Infallible>(Response::new(Body::empty())));
    let service = layer(&manager, &MemoryAnswers::new()).layer(inner);
    let mut response = Box::pin(service.oneshot(request("a", "1", "42")));
    let Poll::Ready(response) = poll_once(&mut response) else { panic!("pending") };
    assert_eq!(response.unwrap().status(), 500);
}
