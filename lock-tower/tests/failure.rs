//! What a refusal becomes in HTTP.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    convert::Infallible,
    ops::RangeInclusive,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::support::{Failing, Floor, Log, limit, soon, until, until_waited_for};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use lock_core::{ErrorKind, Lease, LeaseOptions, LockManager, LossReason, OnLost};
use lock_tower::{BoxError, LockLayer, ResponseBody};
use tower::{Layer, Service, ServiceExt, service_fn};

type Sent = Request<String>;
type Received = Response<ResponseBody<String>>;

/// The key is what follows the slash.
fn goods(request: &Sent) -> String {
    request.uri().path().trim_start_matches('/').to_owned()
}

fn post(path: &str) -> Sent {
    Request::post(path).body(String::new()).unwrap()
}

/// A service that works forever on `/slow` and shows the lease elsewhere.
fn shop(
    floor: &Floor,
) -> impl Service<Sent, Response = Response<String>, Error = BoxError, Future: Send> + Clone + Send + use<> {
    let floor = floor.clone();
    service_fn(move |request: Sent| {
        let floor = floor.clone();
        async move {
            let lease = request.extensions().get::<Lease>().cloned();
            if request.uri().path() == "/slow" {
                floor.work_forever().await;
            }
            floor.work(Duration::ZERO).await;
            Ok(Response::new(lease.map_or_else(|| "no lease".to_owned(), |lease| lease.key().to_owned())))
        }
    })
}

/// Checks what a refusal is made of, and gives its detail. A time to retry is in `retry_after` seconds.
async fn refusal(response: Received, status: StatusCode, code: &str, retry_after: RangeInclusive<u64>) -> String {
    assert_eq!(response.status(), status);
    let said = response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap().parse().unwrap());
    assert!(said.map_or_else(|| retry_after == NEVER, |said| retry_after.contains(&said)), "{said:?}");
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
    let text = text(response).await;
    let reason = status.canonical_reason().unwrap();
    let start = format!(r#"{{"type":"about:blank","title":"{reason}","status":{},"detail":""#, status.as_u16());
    let end = format!(r#"","code":"{code}"}}"#);
    let detail = text.strip_prefix(&start).and_then(|rest| rest.strip_suffix(&end));
    detail.unwrap_or_else(|| panic!("no problem as in RFC 9457: {text}")).to_owned()
}

/// No time to retry at all.
const NEVER: RangeInclusive<u64> = 0..=0;

async fn text(response: Received) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// It is among several keys, so the service has not been called: nothing was done, and proxies may repeat the request.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_before_the_service_is_called_is_no_loss_of_work() {
    let _limit = limit();
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let service = LockLayer::http(manager.clone(), |_: &Sent| ["a", "b"]).layer(shop(&floor));
    let other = manager.lock("b").await.unwrap();
    let response = tokio::spawn(service.oneshot(post("/a")));
    until_waited_for(&manager, "b").await;
    manager.force_release("a").await.unwrap();
    other.release().await.unwrap();
    let response = soon(response).await.unwrap().unwrap();
    refusal(response, StatusCode::SERVICE_UNAVAILABLE, "lock_unavailable", 1..=1).await;
    assert_eq!(floor.most(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_67_and_68_a_request_without_a_usable_key_is_a_bad_request() {
    let _limit = limit();
    let floor = Floor::default();
    let key = |request: &Sent| match request.uri().path() {
        "/none" => Err("the header \"x-goods\" is missing".to_owned()),
        "/empty" => Ok(String::new()),
        _ => Ok("k".repeat(1025)),
    };
    let service = LockLayer::http(LockManager::in_memory(), key).layer(shop(&floor));
    for (path, detail) in [("/none", r#"\"x-goods\" is missing"#), ("/empty", "empty"), ("/long", "too long")] {
        let response = service.clone().oneshot(post(path)).await.unwrap();
        let shown = refusal(response, StatusCode::BAD_REQUEST, "lock_key", NEVER).await;
        assert!(shown.contains(detail), "{path}: {shown}");
    }
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_69_a_busy_key_is_a_conflict_at_once_if_the_layer_only_tries() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let _guard = manager.lock("secret-account").await.unwrap();
    let service = LockLayer::http(manager, goods).try_only().layer(shop(&floor));
    let response = service.oneshot(post("/secret-account")).await.unwrap();
    let error = response.extensions().get::<lock_core::Error>().unwrap();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("secret-account")));
    let shown = refusal(response, StatusCode::CONFLICT, "lock_busy", 9..=10).await;
    assert!(shown.contains("nothing was done") && !shown.contains("secret"), "{shown}");
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_69_a_busy_key_is_a_conflict_after_waiting_too() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let _guard = manager.lock("secret-account").await.unwrap();
    let waits = LockLayer::http(manager.clone(), goods);
    for layer in [waits.clone(), waits.options(LeaseOptions::new().wait(Duration::from_secs(1)))] {
        let begin = tokio::time::Instant::now();
        let response = layer.layer(shop(&floor)).oneshot(post("/secret-account")).await.unwrap();
        assert!(begin.elapsed() >= Duration::from_secs(1));
        let shown = refusal(response, StatusCode::CONFLICT, "lock_busy", 1..=10).await;
        assert!(shown.contains("nothing was done") && !shown.contains("secret"), "{shown}");
    }
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_70_a_backend_that_is_down_refuses_and_shows_its_address_to_the_log_alone() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let floor = Floor::default();
    let down = Failing(ErrorKind::Backend, "could not reach 10.9.8.7:6379: refused");
    let manager = LockManager::builder().backend(down).build().unwrap();
    let response = LockLayer::http(manager, goods).layer(shop(&floor)).oneshot(post("/1")).await.unwrap();
    let shown = refusal(response, StatusCode::SERVICE_UNAVAILABLE, "lock_unavailable", 1..=1).await;
    assert!(shown.contains("nothing was done") && !shown.contains("10.9.8.7"), "{shown}");
    assert_eq!(floor.begun(), 0, "it fails closed");
    let lines = log.lines();
    let line = lines.iter().find(|line| line.contains("did not get its lock"));
    assert!(line.is_some_and(|line| line.starts_with("WARN") && line.contains("10.9.8.7:6379")), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_70_an_outage_writes_one_warning_a_second_and_counts_the_others() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "down")).build().unwrap();
    let layer = LockLayer::http(down, goods);
    let ask = async |times| {
        for _ in 0..times {
            layer.clone().layer(shop(&Floor::default())).oneshot(post("/1")).await.unwrap();
        }
    };
    let lines = |level| {
        let lines = log.lines().into_iter();
        lines.filter(|line| line.starts_with(level) && line.contains("did not get its lock")).collect::<Vec<_>>()
    };
    ask(100).await;
    assert_eq!((lines("WARN").len(), lines("DEBUG").len()), (1, 99));
    assert!(!lines("WARN")[0].contains("others"), "{:?}", lines("WARN"));
    tokio::time::advance(Duration::from_secs(1)).await;
    ask(10).await;
    assert_eq!((lines("WARN").len(), lines("DEBUG").len()), (2, 108));
    assert!(lines("WARN")[1].contains("others=99"), "{:?}", lines("WARN"));

    let open = layer.clone().on_backend_error(lock_tower::OnBackendError::LetThrough);
    for _ in 0..100 {
        open.layer(shop(&Floor::default())).oneshot(post("/1")).await.unwrap();
    }
    let through = log.lines().into_iter().filter(|line| line.contains("goes through without its lock"));
    let (warnings, others): (Vec<_>, Vec<_>) = through.partition(|line| line.starts_with("WARN"));
    assert_eq!((warnings.len(), others.len(), open.let_through()), (1, 99, 100));
}

#[tokio::test(start_paused = true)]
async fn what_an_operator_has_to_repair_is_an_error_of_the_server() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let floor = Floor::default();
    let denied = Failing(ErrorKind::Denied, "10.9.8.7:6379 refused the user or the password");
    let denied = LockLayer::http(LockManager::builder().backend(denied).build().unwrap(), goods);
    let no_ttl = LockLayer::http(LockManager::in_memory(), goods).options(LeaseOptions::new().ttl(Duration::ZERO));
    for (layer, secret) in [(denied, "10.9.8.7"), (no_ttl, "ttl")] {
        let response = layer.layer(shop(&floor)).oneshot(post("/1")).await.unwrap();
        let shown = refusal(response, StatusCode::INTERNAL_SERVER_ERROR, "lock_misconfigured", NEVER).await;
        assert!(!shown.contains(secret), "{shown}");
        let lines = log.lines();
        assert!(lines.iter().any(|line| line.starts_with("ERROR") && line.contains(secret)), "{lines:?}");
    }
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_was_shut_down_sends_clients_elsewhere() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    assert_eq!(manager.shutdown(Duration::ZERO).await, 0);
    let floor = Floor::default();
    let response = LockLayer::http(manager, goods).layer(shop(&floor)).oneshot(post("/1")).await.unwrap();
    refusal(response, StatusCode::SERVICE_UNAVAILABLE, "lock_unavailable", 1..=1).await;
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_stops_waiting_sends_waiters_and_newcomers_elsewhere_and_lets_the_service_finish() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let service = LockLayer::http(manager.clone(), goods).layer(service_fn(async |_: Sent| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, BoxError>(Response::new("sold".to_owned()))
    }));
    let stop = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        manager.stop_waiting();
        service.clone().oneshot(post("/2")).await.unwrap()
    };
    let begin = tokio::time::Instant::now();
    let ended = async |path| (service.clone().oneshot(post(path)).await.unwrap(), begin.elapsed().as_secs());
    let (holder, waiter, newcomer) = tokio::join!(ended("/1"), ended("/1"), stop);
    assert_eq!((holder.0.status(), holder.1, waiter.1), (StatusCode::OK, 5, 1));
    for refused in [waiter.0, newcomer] {
        refusal(refused, StatusCode::SERVICE_UNAVAILABLE, "lock_unavailable", 1..=1).await;
    }
    assert_eq!(manager.shutdown(Duration::ZERO).await, 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_75_a_lost_lease_is_no_success_and_no_invitation_to_repeat() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let work = tokio::spawn(LockLayer::http(manager.clone(), goods).layer(shop(&floor)).oneshot(post("/slow")));
    until("the work has begun", || floor.inside() == 1).await;
    assert!(manager.force_release("slow").await.unwrap());
    let response = soon(work).await.unwrap().unwrap();
    let error = response.extensions().get::<lock_core::Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Forced));
    let shown = refusal(response, StatusCode::INTERNAL_SERVER_ERROR, "lock_lost", NEVER).await;
    assert!(shown.contains("part of it may have been done"), "{shown}");
    assert_eq!((floor.inside(), floor.finished()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn bad_input_75_what_is_said_of_a_lost_lease_is_true_of_work_that_ran_to_its_end() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = service_fn({
        let floor = floor.clone();
        move |_: Sent| {
            let floor = floor.clone();
            async move {
                floor.work(Duration::from_secs(1)).await;
                Ok::<_, BoxError>(Response::new(String::new()))
            }
        }
    });
    let layer = LockLayer::http(manager.clone(), goods).options(LeaseOptions::new().on_lost(OnLost::Finish));
    let work = tokio::spawn(layer.layer(service).oneshot(post("/1")));
    until("the work has begun", || floor.inside() == 1).await;
    assert!(manager.force_release("1").await.unwrap());
    let shown = soon(work).await.unwrap().unwrap();
    let shown = refusal(shown, StatusCode::INTERNAL_SERVER_ERROR, "lock_lost", NEVER).await;
    assert_eq!(floor.finished(), 1);
    let lines = log.lines().join("\n");
    assert!(shown.contains("or all of it") && lines.contains("a request lost its lock"), "{shown} {lines}");
    assert!(!shown.contains("broken off") && !lines.contains("broken off"), "{shown} {lines}");
}

#[tokio::test(start_paused = true)]
async fn bad_input_77_the_same_key_in_two_layers_is_an_error_with_the_remedy_at_once() {
    let _limit = limit();
    let floor = Floor::default();
    let layer = LockLayer::http(LockManager::in_memory(), goods);
    let begin = tokio::time::Instant::now();
    let response = layer.layer(layer.layer(shop(&floor))).oneshot(post("/1")).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::ZERO);
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let shown = response.into_body().collect().await.unwrap().to_bytes();
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("lock_misconfigured"), "{shown}");
    assert!(shown.contains("the log says what to change") && !shown.contains(".rs"), "{shown}");
    assert_eq!(floor.begun(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_input_79_the_request_carries_its_lease() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let handler = service_fn(async |request: Sent| {
        let lease = request.extensions().get::<Lease>().ok_or("no lease")?;
        assert!(lease.is_held() && lease.remaining() > Duration::from_secs(2));
        Ok::<_, BoxError>(Response::new(lease.fencing_token().to_string()))
    });
    let service =
        LockLayer::http(manager, goods).options(LeaseOptions::new().ttl(Duration::from_secs(3))).layer(handler);
    let mut fences = Vec::new();
    for _ in 0..2 {
        let response = service.clone().oneshot(post("/1")).await.unwrap();
        fences.push(text(response).await.parse::<u64>().unwrap());
    }
    assert!(fences[0] < fences[1], "{fences:?}");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_lock_carries_no_lease() {
    let _limit = limit();
    let floor = Floor::default();
    let service = LockLayer::http(LockManager::in_memory(), |_: &Sent| None::<String>).layer(shop(&floor));
    assert_eq!(text(service.oneshot(post("/1")).await.unwrap()).await, "no lease");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_stays_what_it_is() {
    let _limit = limit();
    #[derive(Debug, PartialEq)]
    struct Closed;

    let handler = service_fn(async |_: Sent| Err::<Response<String>, _>(Closed));
    let service = LockLayer::http(LockManager::in_memory(), goods).layer(handler);
    assert_eq!(service.oneshot(post("/1")).await.unwrap_err(), Closed);
}

#[tokio::test(start_paused = true)]
async fn bad_input_76_length_and_trailers_of_a_body_go_through() {
    let _limit = limit();
    let handler = service_fn(async |request: Request<bool>| {
        let body = if request.into_body() { Trailing::new() } else { Trailing::default() };
        Ok::<_, BoxError>(Response::new(body))
    });
    let service = LockLayer::http(LockManager::in_memory(), |_: &Request<bool>| "key").layer(handler);

    let full = service.clone().oneshot(Request::new(true)).await.unwrap().into_body();
    assert_eq!(full.size_hint().exact(), Some(4));
    assert!(!full.is_end_stream());
    let collected = full.collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-end"], "yes");
    assert_eq!(collected.to_bytes(), "four");

    let empty = service.oneshot(Request::new(false)).await.unwrap().into_body();
    assert!(empty.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_a_length() {
    let _limit = limit();
    let service = LockLayer::http(LockManager::in_memory(), |_: &Sent| "").layer(shop(&Floor::default()));
    let body = service.oneshot(post("/")).await.unwrap().into_body();
    let length = body.size_hint().exact().unwrap();
    assert!(!body.is_end_stream());
    assert_eq!(body.collect().await.unwrap().to_bytes().len() as u64, length);
    assert!(ResponseBody::<String>::default().is_end_stream());
}

/// A body of four bytes and a trailer.
#[derive(Default)]
struct Trailing {
    left: Vec<Frame<Bytes>>,
}

impl Trailing {
    fn new() -> Self {
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("x-end"), HeaderValue::from_static("yes"))]);
        Self { left: vec![Frame::trailers(trailers), Frame::data(Bytes::from_static(b"four"))] }
    }
}

impl Body for Trailing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.left.pop().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(if self.left.len() == 2 { 4 } else { 0 })
    }
}
