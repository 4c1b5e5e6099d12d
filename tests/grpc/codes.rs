//! What a client is told when its call does not get its lock.

use std::time::Duration;

use lock_core::{
    LeaseOptions, LockManager,
    backend::{Answer, Backend, BackendError, Batch, Reply},
};
use lock_tests::LONG;
use lock_tower::{
    LockLayer,
    key::{header, scoped},
};
use tonic::{Code, Request, Status, transport::Channel};
use tonic_types::StatusExt;
use tower::ServiceBuilder;

use crate::grpc::{
    layer,
    proto::{End, Order, calls_client::CallsClient},
    service::{Floor, client, with_key},
    soon,
    streams::orders,
    until, until_free,
};

/// The status that a unary call is refused with.
async fn refusal(client: &CallsClient<Channel>, key: &str) -> Status {
    soon(client.clone().ask(with_key(key, Order::default()))).await.unwrap_err()
}

#[tokio::test]
async fn bad_input_69_a_busy_key_aborts_at_once_and_after_waiting() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let _guard = manager.lock("a").await.unwrap();
    let tries = refusal(&client(layer(&manager).try_only(), &floor).await, "a").await;
    assert_eq!(tries.code(), Code::Aborted);
    let waits = refusal(
        &client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50))), &floor).await,
        "a",
    )
    .await;
    assert_eq!(waits.code(), Code::Aborted);
    for status in [tries, waits] {
        assert!(status.message().contains("nothing was done"), "{status}");
        assert!(!status.message().contains("\"a\""), "the key is for the log: {status}");
    }
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn every_kind_of_call_is_refused_before_a_message() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end().try_only(), &floor).await;
    let _guard = manager.lock("a").await.unwrap();
    let (_first, uploaded) = orders("a");
    let (_second, said) = orders("a");
    for code in [
        soon(client.ask(with_key("a", Order::default()))).await.map(drop).unwrap_err().code(),
        soon(client.download(with_key("a", Order::default()))).await.map(drop).unwrap_err().code(),
        soon(client.upload(uploaded)).await.map(drop).unwrap_err().code(),
        soon(client.talk(said)).await.map(drop).unwrap_err().code(),
    ] {
        assert_eq!(code, Code::Aborted);
    }
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn the_time_out_of_a_call_ends_its_wait_before_the_layer_s() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let client = client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_secs(600))), &floor).await;
    let _guard = manager.lock("a").await.unwrap();
    let mut codes = Vec::new();
    while codes.last() != Some(&Code::DeadlineExceeded) {
        let mut call = with_key("a", Order::default());
        call.set_timeout(Duration::from_millis(500));
        codes.push(soon(client.clone().ask(call)).await.unwrap_err().code());
        // The client's own clock can be quicker than the answer on a busy machine, though not each time.
        assert!(codes.len() <= 100, "{codes:?}");
    }
    assert!(codes.iter().rev().skip(1).all(|code| *code == Code::Cancelled), "{codes:?}");
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn a_time_out_that_is_longer_than_the_layer_s_wait_changes_nothing() {
    let manager = LockManager::in_memory();
    let mut client =
        client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50))), &Floor::default()).await;
    let _guard = manager.lock("a").await.unwrap();
    let mut call = with_key("a", Order::default());
    call.set_timeout(Duration::from_secs(60));
    assert_eq!(soon(client.ask(call)).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn bad_input_67_and_68_metadata_that_is_no_key_is_an_invalid_argument() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let client = client(LockLayer::grpc(manager, scoped("goods", header::<String>("key"))), &floor).await;
    let missing = Request::new(Order::default());
    let mut repeated = with_key("a", Order::default());
    repeated.metadata_mut().append("key", "a".parse().unwrap());
    let empty = with_key("", Order::default());
    let too_long = with_key(&"k".repeat(1_025), Order::default());
    for (call, what) in
        [(missing, "is missing"), (repeated, "more than once"), (empty, "is empty"), (too_long, "too long")]
    {
        let status = soon(client.clone().ask(call)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains(what), "{status}");
    }
    assert_eq!(floor.begun(), 0);
    let longest = "k".repeat(1_024 - "goods:".len());
    let reply = soon(client.clone().ask(with_key(&longest, Order::default()))).await.unwrap();
    assert_eq!(reply.into_inner().key, format!("goods:{longest}"));
}

#[tokio::test]
async fn an_extractor_of_one_s_own_refuses_with_its_own_words_of_whatever_letters() {
    let layer = LockLayer::grpc(LockManager::in_memory(), |call: &http::Request<tonic::body::Body>| {
        call.headers().get("key").and(None::<&str>).ok_or("goods are numbers: % \u{fc}\n")
    });
    let status = refusal(&client(layer, &Floor::default()).await, "a").await;
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "goods are numbers: % \u{fc}\n"));
}

#[tokio::test]
async fn more_waiters_than_allowed_exhaust_a_resource() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let client = client(layer(&manager).max_waiters_per_key(1), &floor).await;
    let guard = manager.lock("a").await.unwrap();
    // One of the two waits, and the other is refused.
    let calls = [client.clone(), client.clone()];
    let calls = calls.map(|mut client| tokio::spawn(async move { client.ask(with_key("a", Order::default())).await }));
    until("one was refused", || calls.iter().any(|call| call.is_finished())).await;
    soon(client.clone().ask(with_key("b", Order::default()))).await.unwrap();
    guard.release().await.unwrap();
    let mut codes = Vec::new();
    for call in calls {
        codes.push(soon(call).await.unwrap().map_or_else(|status| status.code(), |_| Code::Ok));
    }
    codes.sort_by_key(|code| i32::from(*code));
    assert_eq!(codes, [Code::Ok, Code::ResourceExhausted]);
}

#[tokio::test]
async fn bad_input_77_the_same_key_twice_in_one_stack_is_an_internal_error_at_once() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let twice = ServiceBuilder::new()
        .layer(LockLayer::grpc(manager.clone(), "a"))
        .layer(layer(&manager).options(LeaseOptions::new().wait(Duration::from_secs(600))))
        .into_inner();
    let client = client(twice, &floor).await;
    let status = refusal(&client, "a").await;
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().contains("the log says what to change"), "{status}");
    until_free(&manager, "a").await;
    let reply = soon(client.clone().ask(with_key("b", Order::default()))).await.unwrap();
    assert_eq!(reply.into_inner().key, "b", "the lease of the inner one of two");
}

#[tokio::test]
async fn an_option_out_of_range_is_an_internal_error_and_not_the_client_s() {
    let client =
        client(layer(&LockManager::in_memory()).options(LeaseOptions::new().ttl(Duration::ZERO)), &Floor::default())
            .await;
    assert_eq!(refusal(&client, "a").await.code(), Code::Internal);
}

#[tokio::test]
async fn a_manager_that_was_shut_down_is_unavailable() {
    let manager = LockManager::in_memory();
    let client = client(layer(&manager), &Floor::default()).await;
    manager.shutdown(Duration::ZERO).await;
    assert_eq!(refusal(&client, "a").await.code(), Code::Unavailable);
}

/// A backend that is down.
#[derive(Debug)]
struct Down;

impl Backend for Down {
    fn call(&self, _batch: Batch) -> Reply<Answer> {
        Reply::ready(Err(BackendError::unavailable("10.9.8.7 is down")))
    }

    fn list(&self, _prefix: String) -> Reply<Vec<lock_core::key::LockKey>> {
        Reply::ready(Ok(Vec::new()))
    }
}

/// What a status says to programs: code, reason, and whether to try again.
fn said(status: &Status) -> (Code, String, bool) {
    let details = status.get_error_details();
    let info = details.error_info().unwrap();
    assert_eq!((&*info.domain, info.metadata.len()), ("lock-core", 0));
    let retry = details.retry_info().map(|retry| retry.retry_delay.unwrap());
    assert!(retry.is_none_or(|delay| delay > Duration::ZERO), "{retry:?}");
    for secret in ["secret", "10.9.8.7", ".rs"] {
        assert!(!status.message().contains(secret), "{status}");
    }
    (status.code(), info.reason.clone(), retry.is_some())
}

#[tokio::test]
async fn each_refusal_has_its_code_its_reason_and_a_time_to_retry_if_nothing_was_done() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let _guard = manager.lock("secret").await.unwrap();
    let ended = LockManager::in_memory();
    ended.shutdown(Duration::ZERO).await;
    let down = LockManager::builder().backend(Down).build().unwrap();
    let tries = layer(&manager).try_only();
    let cases = [
        (tries.clone(), Code::Aborted, "LOCK_BUSY", true),
        (tries.busy_code(Code::Unavailable), Code::Unavailable, "LOCK_BUSY", true),
        (
            layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50))),
            Code::Aborted,
            "LOCK_BUSY",
            true,
        ),
        (layer(&ended), Code::Unavailable, "LOCK_UNAVAILABLE", true),
        (layer(&down), Code::Unavailable, "LOCK_UNAVAILABLE", true),
        (layer(&manager).options(LeaseOptions::new().ttl(Duration::ZERO)), Code::Internal, "LOCK_MISCONFIGURED", false),
        (layer(&manager).busy_code(Code::Ok), Code::Internal, "LOCK_MISCONFIGURED", false),
    ];
    for (layer, code, reason, retry) in cases {
        let status = refusal(&client(layer, &floor).await, "secret").await;
        assert_eq!(said(&status), (code, reason.to_owned(), retry));
    }
    let client = client(layer(&manager), &floor).await;
    let status = refusal(&client, "").await;
    assert_eq!(said(&status), (Code::InvalidArgument, "LOCK_KEY".to_owned(), false));

    let hang = Order { end: End::Hang.into(), ..Order::default() };
    let mut other = client.clone();
    let lost = tokio::spawn(async move { other.ask(with_key("lost", hang)).await });
    until("the method works", || floor.inside() == 1).await;
    assert!(manager.force_release("lost").await.unwrap());
    let status = soon(lost).await.unwrap().unwrap_err();
    assert_eq!(said(&status), (Code::Unknown, "LOCK_LOST".to_owned(), false));
    assert_eq!(floor.begun(), 1);
}

#[tokio::test]
async fn a_refusal_by_limit_or_by_the_caller_s_time_out_has_its_reason() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let _guard = manager.lock("a").await.unwrap();
    let client = client(layer(&manager).options(LeaseOptions::new().wait(LONG)).max_waiters_per_key(1), &floor).await;
    let calls = [client.clone(), client.clone()];
    let mut calls = calls.map(|mut client| {
        tokio::spawn(async move {
            let mut call = with_key("a", Order::default());
            call.set_timeout(Duration::from_secs(8));
            client.ask(call).await.unwrap_err()
        })
    });
    until("one was refused", || calls.iter().any(|call| call.is_finished())).await;
    let [one, other] = &mut calls;
    let (first, second) = if one.is_finished() { (one, other) } else { (other, one) };
    let status = soon(first).await.unwrap();
    assert_eq!(said(&status), (Code::ResourceExhausted, "LOCK_OVERLOADED".to_owned(), true));
    let status = soon(second).await.unwrap();
    // The client's own clock can be quicker than the answer on a busy machine; it says so in other words.
    if status.code() != Code::Cancelled {
        assert_eq!(said(&status), (Code::DeadlineExceeded, "LOCK_OUT_OF_TIME".to_owned(), false));
    }
}

#[tokio::test]
async fn a_closure_may_replace_the_status() {
    let manager = LockManager::in_memory();
    let _guard = manager.lock("a").await.unwrap();
    let layer =
        layer(&manager).try_only().answer(|_, status| Status::already_exists(format!("was: {}", status.code())));
    let status = refusal(&client(layer, &Floor::default()).await, "a").await;
    assert_eq!(status.code(), Code::AlreadyExists);
    assert!(status.message().starts_with("was: "), "{status}");
}
