//! A body under the lock, frame by frame: what goes out when, and what it says of itself meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    collections::VecDeque,
    convert::Infallible,
    future::ready,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::support::{limit, poll_once, soon, until_free};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use lock_core::{
    LeaseOptions, LockManager,
    backend::{Answer, Backend, Batch, MemoryBackend, Operation, Reply},
    key::LockKey,
};
use lock_tower::{LockLayer, ResponseBody};
use tower::{Layer, ServiceExt, service_fn};

/// A body of frames that are there, which knows its end only where it is told to.
struct Ready {
    frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
    knows_its_end: bool,
}

impl Ready {
    fn new(frames: impl Into<VecDeque<Result<Frame<Bytes>, &'static str>>>, knows_its_end: bool) -> Self {
        Self { frames: frames.into(), knows_its_end }
    }
}

impl Body for Ready {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.knows_its_end && self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let sizes = self.frames.iter().flatten().filter_map(Frame::data_ref).map(|data| data.len() as u64);
        SizeHint::with_exact(sizes.sum())
    }
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

fn trailers() -> Frame<Bytes> {
    let end = (HeaderName::from_static("x-end"), HeaderValue::from_static("yes"));
    Frame::trailers(HeaderMap::from_iter([end]))
}

/// Gives the body that comes out of a layer that holds the lease to the end of it.
async fn held(manager: &LockManager, body: Ready) -> ResponseBody<Ready> {
    let service = service_fn(async |request: Request<Ready>| Ok::<_, Infallible>(Response::new(request.into_body())));
    let layer = LockLayer::http(manager.clone(), "key").until_body_end();
    soon(layer.layer(service).oneshot(Request::post("/").body(body).unwrap())).await.unwrap().into_body()
}

#[tokio::test(start_paused = true)]
async fn at_least_counts_also_for_an_answer_without_a_body_and_for_an_error() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    for fails in [false, true] {
        let service = service_fn(move |request: Request<Ready>| {
            ready(if fails { Err("it failed") } else { Ok(Response::new(request.into_body())) })
        });
        let options = LeaseOptions::new().at_least(Duration::from_secs(5));
        let layer = LockLayer::http(manager.clone(), "key").options(options).until_body_end();
        let request = Request::post("/").body(Ready::new([], true)).unwrap();
        assert_eq!(soon(layer.layer(service).oneshot(request)).await.is_err(), fails);
        assert!(manager.is_locked("key").await.unwrap(), "fails: {fails}");
        until_free(&manager, "key").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_frame_goes_out_when_the_key_is_free_and_none_before_it() {
    let _limit = limit();
    let bodies = [
        ("data, and a body that knows its end", vec![data("one"), data("two")], true),
        ("trailers, and a body that does not know its end", vec![data("one"), trailers()], false),
        ("trailers, and a body that knows its end", vec![data("one"), trailers()], true),
    ];
    for (what, frames, knows_its_end) in bodies {
        let manager = LockManager::in_memory();
        let frames: VecDeque<_> = frames.into_iter().map(Ok).collect();
        let mut body = held(&manager, Ready::new(frames, knows_its_end)).await;
        soon(body.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert!(manager.is_locked("key").await.unwrap() && !body.is_end_stream(), "{what}");
        // Not "soon": the frame waits for the release.
        soon(body.frame()).await.unwrap().unwrap();
        assert!(!manager.is_locked("key").await.unwrap(), "{what}");
        assert!(body.is_end_stream(), "{what}");
        assert_eq!(body.size_hint().exact(), Some(0), "{what}");
        assert!(soon(body.frame()).await.is_none(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_know_its_end_ends_when_the_key_is_free() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let mut body = held(&manager, Ready::new([Ok(data("one"))], false)).await;
    soon(body.frame()).await.unwrap().unwrap();
    assert!(manager.is_locked("key").await.unwrap());
    assert!(soon(body.frame()).await.is_none());
    assert!(!manager.is_locked("key").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_body_goes_through_and_frees_the_key_while_the_body_is_still_there() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let mut body = held(&manager, Ready::new([Err("broken"), Ok(data("never"))], false)).await;
    assert_eq!(soon(body.frame()).await.unwrap().unwrap_err().to_string(), "broken");
    until_free(&manager, "key").await;
    assert!(body.is_end_stream());
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_body_that_waits_for_the_release_has_not_ended_and_keeps_its_length() {
    let _limit = limit();
    for (frames, length) in [(vec![Ok(data("four"))], 4), (vec![Ok(trailers())], 0)] {
        let manager = LockManager::builder().backend(SlowRelease::default()).build().unwrap();
        let mut body = held(&manager, Ready::new(frames, true)).await;
        assert_eq!(body.size_hint().exact(), Some(length));
        assert!(poll_once(&mut body.frame()).is_pending(), "the release has no answer yet");
        assert!(!body.is_end_stream());
        assert_eq!(body.size_hint().exact(), Some(length));
        soon(body.frame()).await.unwrap().unwrap();
        assert!(body.is_end_stream());
    }
    let manager = LockManager::builder().backend(SlowRelease::default()).build().unwrap();
    let mut body = held(&manager, Ready::new([], false)).await;
    assert!(poll_once(&mut body.frame()).is_pending());
    assert!(!body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_lost_ends_the_body_with_an_error_and_nothing_after_it() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let mut body = held(&manager, Ready::new([Ok(data("one")), Ok(data("two"))], true)).await;
    soon(body.frame()).await.unwrap().unwrap();
    assert!(manager.force_release("key").await.unwrap());
    let error = soon(body.frame()).await.unwrap().unwrap_err();
    assert!(error.is::<lock_core::Error>(), "{error}");
    assert!(body.is_end_stream());
    assert!(soon(body.frame()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_replaced_by_nothing_has_no_frame() {
    let _limit = limit();
    let service = service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new())));
    let layer = LockLayer::http(LockManager::in_memory(), |_: &Request<()>| "");
    let layer = layer.answer(|_, answer| answer.map(|_| Bytes::new()));
    let mut body = soon(layer.layer(service).oneshot(Request::post("/").body(()).unwrap())).await.unwrap().into_body();
    assert!(body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(0));
    assert!(soon(body.frame()).await.is_none());
}

/// A backend that takes a second to answer a release.
#[derive(Debug, Default)]
struct SlowRelease(MemoryBackend);

impl Backend for SlowRelease {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let slow = batch.iter().any(|operation| matches!(operation, Operation::Release(_)));
        let answer = self.0.call(batch);
        Reply::new(async move {
            if slow {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            answer.await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }
}
