//! What clients get in place of an answer, through axum and through tonic.

use std::{error::Error as _, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, header},
    routing::post,
};
use http_body_util::BodyExt;
use lock_core::{Error, ErrorKind, LockManager};
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::ServiceExt;

use crate::support::{Fate, Faulty};

/// Fails in each way that a test can bring about, on a key that nobody else is to see.
async fn fail(way: &str) -> Result<String, Error> {
    let manager = LockManager::builder().url("memory://").max_waiters(1).build().expect("a manager");
    let key = "secret";
    match way {
        "busy" => {
            // What is left of it is 6.5 s, however the clocks drift.
            let _held = manager.lock(key).at_least(Duration::from_millis(6_500)).ttl(Duration::from_secs(3)).await?;
            drop(manager.lock(key).wait(Duration::ZERO).await?);
        }
        "full" => {
            let _held = manager.lock(key).permits(1).ttl(Duration::from_secs(3)).fixed().await?;
            drop(manager.lock(key).permits(1).wait(Duration::ZERO).await?);
        }
        "other total" => {
            let _held = manager.lock(key).permits(1).ttl(Duration::from_secs(3)).fixed().await?;
            drop(manager.lock(key).permits(2).wait(Duration::ZERO).await?);
        }
        "overloaded" => {
            let _held = manager.lock(key).await?;
            let _waits = tokio::spawn(manager.lock(key).acquire());
            tokio::task::yield_now().await;
            drop(manager.lock(key).await?);
        }
        "unavailable" => {
            manager.shutdown(Duration::ZERO).await;
            drop(manager.lock(key).await?);
        }
        "lost" => {
            let work = async |_lease| {
                manager.force_release(key).await?;
                std::future::pending::<Result<(), Error>>().await
            };
            manager.lock(key).run(work).await??;
        }
        "key" => drop(manager.lock("").await?),
        "not held" => {
            let handover = manager.lock(key).await?.hand_over()?;
            manager.force_release(key).await?;
            drop(manager.take_up(handover).await?);
        }
        "misconfigured" => drop(manager.lock(key).ttl(Duration::ZERO).await?),
        "done, release unanswered" => {
            let faulty = Faulty::new();
            let manager = LockManager::builder().backend(faulty.clone()).build().expect("a manager");
            let guard = manager.lock(key).await?;
            faulty.always(Fate::LoseReply);
            guard.release().await?;
        }
        "done, extension unanswered" => {
            let faulty = Faulty::new();
            let manager = LockManager::builder().backend(faulty.clone()).build().expect("a manager");
            let mut guard = manager.lock(key).await?;
            faulty.always(Fate::Fail);
            guard.extend(Duration::from_secs(1)).await?;
        }
        "done, extension out of range" => drop(manager.lock(key).await?.extend(Duration::ZERO).await?),
        _ => {}
    }
    Ok("done".to_owned())
}

async fn asked(way: &'static str) -> Response<Body> {
    let router = Router::new().route("/", post(move || fail(way)));
    router.oneshot(Request::post("/").body(Body::empty()).expect("a request")).await.expect("an answer")
}

/// The status code, `Retry-After` and the body, of which the type is checked.
async fn over_http(way: &'static str) -> (u16, Option<String>, String) {
    let response = asked(way).await;
    let header = |name| response.headers().get(name).map(|value| value.to_str().expect("text").to_owned());
    let (status, retry_after) = (response.status().as_u16(), header(header::RETRY_AFTER));
    if status != 200 {
        assert_eq!(header(header::CONTENT_TYPE).as_deref(), Some("application/problem+json"));
    }
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, retry_after, String::from_utf8(body.to_vec()).expect("text"))
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_returns_the_error_answers_by_the_table() {
    assert_eq!(over_http("none").await, (200, None, "done".to_owned()));
    for (way, status, retry_after, title, code) in [
        ("busy", 409, Some("7"), "Conflict", "lock_busy"),
        ("full", 429, Some("1"), "Too Many Requests", "lock_full"),
        ("other total", 429, Some("1"), "Too Many Requests", "lock_full"),
        ("overloaded", 429, Some("1"), "Too Many Requests", "lock_overloaded"),
        ("unavailable", 503, Some("1"), "Service Unavailable", "lock_unavailable"),
        ("lost", 500, None, "Internal Server Error", "lock_lost"),
        ("key", 400, None, "Bad Request", "lock_key"),
        ("not held", 409, None, "Conflict", "lock_not_held"),
        ("misconfigured", 500, None, "Internal Server Error", "lock_misconfigured"),
        ("done, release unanswered", 500, None, "Internal Server Error", "lock_lost"),
        ("done, extension unanswered", 500, None, "Internal Server Error", "lock_lost"),
        ("done, extension out of range", 500, None, "Internal Server Error", "lock_lost"),
    ] {
        let detail = fail(way).await.expect_err("it fails").public_message();
        let body = format!(
            r#"{{"type":"about:blank","title":"{title}","status":{status},"detail":"{detail}","code":"{code}"}}"#
        );
        assert_eq!(over_http(way).await, (status, retry_after.map(str::to_owned), body), "{way}");
        assert!(!detail.contains("secret"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_layer_further_out_finds_the_error_in_the_response() {
    let response = asked("busy").await;
    let error = response.extensions().get::<Error>().expect("the error");
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("secret")));
}

#[tokio::test(start_paused = true)]
async fn a_method_of_tonic_answers_by_the_table() {
    async fn method(way: &str) -> Result<tonic::Response<String>, Status> {
        Ok(tonic::Response::new(fail(way).await?))
    }
    assert_eq!(method("none").await.expect("no error").into_inner(), "done");
    for (way, code, reason, retry) in [
        ("busy", Code::Aborted, "LOCK_BUSY", Some(Duration::from_millis(6_500))),
        ("full", Code::ResourceExhausted, "LOCK_FULL", Some(Duration::from_secs(1))),
        ("other total", Code::ResourceExhausted, "LOCK_FULL", Some(Duration::from_secs(1))),
        ("overloaded", Code::ResourceExhausted, "LOCK_OVERLOADED", Some(Duration::from_secs(1))),
        ("unavailable", Code::Unavailable, "LOCK_UNAVAILABLE", Some(Duration::from_secs(1))),
        ("lost", Code::Unknown, "LOCK_LOST", None),
        ("key", Code::InvalidArgument, "LOCK_KEY", None),
        ("not held", Code::FailedPrecondition, "LOCK_NOT_HELD", None),
        ("misconfigured", Code::Internal, "LOCK_MISCONFIGURED", None),
    ] {
        let status = method(way).await.expect_err("it fails");
        let cause = status.source().and_then(|source| source.downcast_ref::<Error>()).expect("the error");
        let message = cause.public_message();
        // As a client gets it.
        let sent = status.into_http::<Body>();
        let got = Status::from_header_map(sent.headers()).expect("a status");
        assert_eq!((got.code(), got.message()), (code, message), "{way}");
        let details = got.get_error_details();
        let info = details.error_info().expect("an `ErrorInfo`");
        assert_eq!((info.reason.as_str(), info.domain.as_str(), info.metadata.len()), (reason, "lock-core", 0));
        assert_eq!(details.retry_info().and_then(|info| info.retry_delay), retry, "{way}");
        assert!(!format!("{:?}", sent.headers()).contains("secret"));
    }
}
