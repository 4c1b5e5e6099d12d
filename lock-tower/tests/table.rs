//! The table of answers of [`Http`](lock_tower::Http), a row each, as it is on the wire.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::time::Duration;

use crate::support::{Failing, Floor, limit, serve, soon, until, until_free};
use axum::{Router, body::Body, routing::post};
use http::{Request, StatusCode};
use lock_core::{ErrorKind, LeaseOptions, LockManager};
use lock_tower::{Http, LockLayer, Refusal};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

type Key = fn(&Request<Body>) -> Result<String, &'static str>;

/// The key is what follows the slash.
fn layer(manager: &LockManager) -> LockLayer<Key, Http> {
    let key: Key = |request| match request.uri().path() {
        "/none" => Err("the goods are missing"),
        path => Ok(path.trim_start_matches('/').to_owned()),
    };
    LockLayer::http(manager.clone(), key)
}

/// An answer as it came: its status, what `Retry-After` says, and the body.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    retry_after: Option<u64>,
    body: String,
}

impl Answer {
    /// The answer of a problem, as RFC 9457 has it.
    fn problem(status: StatusCode, retry_after: Option<u64>, code: &str, detail: &str) -> Self {
        let (number, title) = (status.as_u16(), status.canonical_reason().unwrap());
        let body = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{number},"detail":"{detail}","code":"{code}"}}"#
        );
        Self { status: number, retry_after, body }
    }
}

/// Asks a service of whose route there are ten seconds left to its holder, if there is one.
async fn ask(layer: LockLayer<Key, Http>, path: &str, floor: &Floor) -> Answer {
    let floor = floor.clone();
    let work = async move || floor.work_forever().await;
    let service = Router::new().route("/{key}", post(work.clone())).route("/", post(work)).route_layer(layer);
    let mut stream = TcpStream::connect(serve(service).await).await.unwrap();
    let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/problem+json"), "{head}");
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    Answer {
        status: header("HTTP/1.1 ").unwrap()[..3].parse().unwrap(),
        retry_after: header("retry-after: ").map(|seconds| seconds.parse().unwrap()),
        body: body.to_owned(),
    }
}

const BUSY: &str = "locked by another request; nothing was done, try again later";
const FULL: &str = "too many requests at the same time; nothing was done, try again later";

#[tokio::test]
async fn bad_input_69_a_busy_key_is_409_with_what_is_left_of_the_holder_s_ttl_whether_it_waited_or_not() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    // Not renewed, so that the whole seconds that are left are known: more than 59 minutes.
    let _guard = manager.lock("busy").ttl(Duration::from_secs(3600)).fixed().await.unwrap();
    let waits = layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50)));
    for layer in [layer(&manager).try_only(), waits] {
        let answer = ask(layer, "/busy", &Floor::default()).await;
        let left = answer.retry_after.unwrap();
        assert!((3_540..=3_600).contains(&left), "{left}");
        assert_eq!(answer, Answer::problem(StatusCode::CONFLICT, Some(left), "lock_busy", BUSY));
    }
}

#[tokio::test]
async fn bad_input_69_a_busy_key_is_answered_with_the_status_that_the_layer_was_given() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    for status in [StatusCode::LOCKED, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE] {
        let layer = layer(&manager).try_only().busy_status(status);
        let answer = ask(layer, "/busy", &Floor::default()).await;
        assert_eq!(answer, Answer::problem(status, answer.retry_after, "lock_busy", BUSY));
        assert!(answer.retry_after.is_some());
    }
}

#[tokio::test]
async fn permits_that_are_all_taken_are_429_and_may_be_asked_for_in_a_second() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let request = || manager.lock("full").permits(2);
    let _guards = (request().await.unwrap(), request().await.unwrap());
    let layer = layer(&manager).permits(2);
    for layer in [layer.clone().try_only(), layer.clone().options(LeaseOptions::new().wait(Duration::from_millis(50)))]
    {
        let answer = ask(layer, "/full", &Floor::default()).await;
        assert_eq!(answer, Answer::problem(StatusCode::TOO_MANY_REQUESTS, Some(1), "lock_full", FULL));
    }
    let answer = ask(layer.try_only().busy_status(StatusCode::LOCKED), "/full", &Floor::default()).await;
    assert_eq!(answer, Answer::problem(StatusCode::LOCKED, answer.retry_after, "lock_full", FULL));
}

#[tokio::test]
async fn a_closure_that_changes_the_status_alone_gets_a_body_that_says_the_same() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    let layer = layer(&manager).try_only();
    let teapot = layer.clone().answer(|refusal, mut answer| {
        assert!(refusal.is_busy() && refusal.nothing_was_done() && !refusal.is_lost());
        assert_eq!((refusal.code(), &*refusal.public_message()), ("lock_busy", BUSY));
        assert_eq!(refusal.error().and_then(lock_core::Error::key), Some("busy"));
        *answer.status_mut() = StatusCode::IM_A_TEAPOT;
        answer.headers_mut().remove("retry-after");
        answer
    });
    let answer = ask(teapot, "/busy", &Floor::default()).await;
    assert_eq!(answer, Answer::problem(StatusCode::IM_A_TEAPOT, None, "lock_busy", BUSY));

    let own = layer.answer(|_, mut answer| {
        *answer.status_mut() = StatusCode::IM_A_TEAPOT;
        answer.map(|_| "short and stout".into())
    });
    assert_eq!(ask(own, "/busy", &Floor::default()).await.body, "short and stout", "a body of one's own stays");
}

#[tokio::test]
async fn a_request_too_many_is_429() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    let layer = layer(&manager).max_waiters_per_key(1).answer(|refusal, answer| {
        assert!(matches!(refusal, Refusal::Overloaded(_)) && refusal.error().is_none() && !refusal.is_busy());
        assert_eq!(refusal.retry_after(), Some(Duration::from_secs(1)));
        answer
    });
    let floor = Floor::default();
    let mut calls = [(); 2].map(|()| {
        let (layer, floor) = (layer.clone(), floor.clone());
        tokio::spawn(async move { ask(layer, "/busy", &floor).await })
    });
    until("one of the two was refused", || calls.iter().any(tokio::task::JoinHandle::is_finished)).await;
    let refused = calls.iter_mut().find(|call| call.is_finished()).unwrap();
    let detail = "too many requests wait for locks; nothing was done, try again later";
    let expected = Answer::problem(StatusCode::TOO_MANY_REQUESTS, Some(1), "lock_overloaded", detail);
    assert_eq!(refused.await.unwrap(), expected);
}

#[tokio::test]
async fn bad_input_70_a_backend_that_is_down_and_a_manager_that_was_shut_down_are_503() {
    let _limit = limit();
    let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "10.9.8.7 is down")).build().unwrap();
    let ended = LockManager::in_memory();
    ended.shutdown(Duration::ZERO).await;
    for manager in [down, ended] {
        let answer = ask(layer(&manager), "/1", &Floor::default()).await;
        let detail = "the lock cannot be acquired at the moment; nothing was done, try again later";
        let expected = Answer::problem(StatusCode::SERVICE_UNAVAILABLE, Some(1), "lock_unavailable", detail);
        assert_eq!(answer, expected);
    }
}

#[tokio::test]
async fn bad_input_75_a_lost_lease_is_500_without_an_invitation_to_repeat() {
    let _limit = limit();
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let layer = layer(&manager).answer(|refusal, answer| {
        assert!(refusal.is_lost() && !refusal.nothing_was_done() && refusal.retry_after().is_none());
        answer
    });
    let work = {
        let floor = floor.clone();
        tokio::spawn(async move { ask(layer, "/1", &floor).await })
    };
    until("the handler works", || floor.inside() == 1).await;
    assert!(manager.force_release("1").await.unwrap());
    let detail = "the lock was lost or failed while the work ran; part of it may have been done, or all of it";
    let expected = Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, None, "lock_lost", detail);
    assert_eq!(soon(work).await.unwrap(), expected);
    until_free(&manager, "1").await;
}

#[tokio::test]
async fn bad_input_67_and_68_a_request_without_a_usable_key_is_400() {
    let _limit = limit();
    let layer = layer(&LockManager::in_memory());
    let answer = ask(layer.clone(), "/none", &Floor::default()).await;
    assert_eq!(answer, Answer::problem(StatusCode::BAD_REQUEST, None, "lock_key", "the goods are missing"));
    for path in ["/".to_owned(), format!("/{}", "k".repeat(1025))] {
        let answer = ask(layer.clone(), &path, &Floor::default()).await;
        let detail = "the requested item cannot be locked: its name is empty, too long or reserved; nothing was done";
        assert_eq!(answer, Answer::problem(StatusCode::BAD_REQUEST, None, "lock_key", detail));
    }
}

#[tokio::test]
async fn what_an_operator_has_to_repair_is_500() {
    let _limit = limit();
    let denied = LockManager::builder().backend(Failing(ErrorKind::Denied, "10.9.8.7 refused")).build().unwrap();
    let memory = LockManager::in_memory();
    let not_an_error = layer(&memory).busy_status(StatusCode::OK);
    for layer in [layer(&denied), layer(&memory).options(LeaseOptions::new().ttl(Duration::ZERO)), not_an_error] {
        let answer = ask(layer, "/1", &Floor::default()).await;
        let detail = "the lock of this service is misconfigured, and the log says what to change; nothing was done";
        let expected = Answer::problem(StatusCode::INTERNAL_SERVER_ERROR, None, "lock_misconfigured", detail);
        assert_eq!(answer, expected);
    }
}
