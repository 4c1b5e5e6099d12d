//! Bodies under the lock, over real sockets, in HTTP/1 and HTTP/2.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use crate::support::{Floor, limit, poll_once, serve, soon, until, until_free};
use axum::{Router, body::Body, extract::State, response::Response, routing::post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lock_core::{LeaseOptions, LockManager, OnLost};
use lock_tower::LockLayer;
use tokio::{
    net::TcpStream,
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};
use tower::{Layer, ServiceExt, service_fn};

/// A body whose frames a test gives.
struct Given(UnboundedReceiver<Frame<Bytes>>);

impl http_body::Body for Given {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

type Slot = Arc<Mutex<Option<Given>>>;

/// A service that streams what the test gives, under a lock.
async fn streams(manager: &LockManager) -> (SocketAddr, UnboundedSender<Frame<Bytes>>) {
    let (frames, given) = unbounded_channel();
    let slot: Slot = Arc::new(Mutex::new(Some(Given(given))));
    let handler = async |State(slot): State<Slot>| Response::new(Body::new(slot.lock().unwrap().take().unwrap()));
    let layer = LockLayer::http(manager.clone(), "key")
        .options(LeaseOptions::new().ttl(Duration::from_secs(30)))
        .until_body_end();
    (serve(Router::new().route("/", post(handler)).route_layer(layer).with_state(slot)).await, frames)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Version {
    One,
    Two,
}

/// Sends one request; the connection ends when the task is aborted.
async fn send(address: SocketAddr, version: Version) -> (hyper::Result<http::Response<Incoming>>, Connection) {
    let request = Request::post(format!("http://{address}/")).header("host", "shop").body(Full::<Bytes>::default());
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    if version == Version::One {
        let (mut sender, connection) = conn::http1::handshake(stream).await.unwrap();
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        (soon(sender.send_request(request.unwrap())).await, connection)
    } else {
        let (mut sender, connection) = conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = Connection(tokio::spawn(async move { drop(connection.await) }));
        (soon(sender.send_request(request.unwrap())).await, connection)
    }
}

struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn data(text: &'static str) -> Frame<Bytes> {
    Frame::data(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn the_key_is_held_until_the_body_has_ended_however_slow_it_is() {
    let _limit = limit();
    for version in [Version::One, Version::Two] {
        let manager = LockManager::in_memory();
        let (address, frames) = streams(&manager).await;
        let (response, _connection) = send(address, version).await;
        let mut body = response.unwrap().into_body();
        for text in ["one", "two", "three"] {
            frames.send(data(text)).unwrap();
            assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), text);
            // Longer in all than a lease that is not renewed; in virtual time, since nothing moves on the sockets.
            tokio::time::pause();
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert!(manager.is_locked("key").await.unwrap(), "{version:?}");
            }
            tokio::time::resume();
        }
        drop(frames);
        assert!(soon(body.collect()).await.unwrap().to_bytes().is_empty());
        assert!(!manager.is_locked("key").await.unwrap(), "{version:?}: the end of the body waits for the release");
    }
}

#[tokio::test]
async fn bad_input_73_and_76_a_client_that_hangs_up_in_the_middle_of_the_body_frees_the_key() {
    let _limit = limit();
    for version in [Version::One, Version::Two] {
        let manager = LockManager::in_memory();
        let (address, frames) = streams(&manager).await;
        let (response, connection) = send(address, version).await;
        let mut body = response.unwrap().into_body();
        frames.send(data("one")).unwrap();
        soon(body.frame()).await.unwrap().unwrap();
        assert!(manager.is_locked("key").await.unwrap());
        drop((body, connection));
        until_free(&manager, "key").await;
        until("the body was dropped", || frames.is_closed()).await;
    }
}

#[tokio::test]
async fn bad_input_76_a_cancelled_stream_of_http2_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let (address, frames) = streams(&manager).await;
    let (response, _connection) = send(address, Version::Two).await;
    frames.send(data("one")).unwrap();
    let mut body = response.unwrap().into_body();
    soon(body.frame()).await.unwrap().unwrap();
    drop(body);
    until_free(&manager, "key").await;
}

#[tokio::test]
async fn bad_input_73_a_client_of_http2_that_hangs_up_stops_the_handler() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let handler = async |State(floor): State<Floor>| floor.work_forever().await;
    for detached in [false, true] {
        let layer = LockLayer::http(manager.clone(), "key");
        let router = Router::new().route("/", post(handler));
        let router =
            if detached { router.route_layer(layer.detached()) } else { router.route_layer(layer.until_body_end()) };
        let address = serve(router.with_state(floor.clone())).await;
        let client = tokio::spawn(send(address, Version::Two));
        until("the handler works", || floor.inside() == 1).await;
        client.abort();
        if detached {
            assert!(manager.force_release("key").await.unwrap(), "it goes on without its client");
        }
        until("the handler was dropped", || floor.inside() == 0).await;
        until_free(&manager, "key").await;
    }
}

#[tokio::test]
async fn bad_input_74_a_body_that_panics_frees_the_key() {
    let _limit = limit();
    struct Panics;

    impl http_body::Body for Panics {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            panic!("on purpose")
        }
    }

    let manager = LockManager::in_memory();
    let layer = LockLayer::http(manager.clone(), "key").until_body_end();
    let address = serve(Router::new().route("/", post(async || Body::new(Panics))).route_layer(layer)).await;
    let (response, _connection) = send(address, Version::One).await;
    if let Ok(response) = response {
        response.into_body().collect().await.unwrap_err();
    }
    until_free(&manager, "key").await;
}

#[tokio::test]
async fn bad_input_75_a_lease_that_is_lost_breaks_the_body_off() {
    let _limit = limit();
    for version in [Version::One, Version::Two] {
        let manager = LockManager::in_memory();
        let (address, frames) = streams(&manager).await;
        let (response, _connection) = send(address, version).await;
        let mut body = response.unwrap().into_body();
        frames.send(data("one")).unwrap();
        soon(body.frame()).await.unwrap().unwrap();
        assert!(manager.force_release("key").await.unwrap());
        soon(body.frame()).await.unwrap().expect_err("no end as if all were there");
        until("the body was dropped", || frames.is_closed()).await;
    }
}

#[tokio::test]
async fn bad_input_76_trailers_go_through_after_the_release() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let (address, frames) = streams(&manager).await;
    let (response, _connection) = send(address, Version::Two).await;
    frames.send(data("one")).unwrap();
    let trailers = HeaderMap::from_iter([("x-end".parse().unwrap(), HeaderValue::from_static("yes"))]);
    frames.send(Frame::trailers(trailers)).unwrap();
    let body = soon(response.unwrap().into_body().collect()).await.unwrap();
    assert!(!manager.is_locked("key").await.unwrap());
    assert_eq!(body.trailers().unwrap()["x-end"], "yes");
    assert_eq!(body.to_bytes(), "one");
}

#[tokio::test]
async fn streams_both_ways_are_under_one_lease() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let echo = async |request: axum::extract::Request| Response::new(request.into_body());
    let layer = LockLayer::http(manager.clone(), "key").until_body_end();
    let address = serve(Router::new().route("/", post(echo)).route_layer(layer)).await;
    let (frames, given) = unbounded_channel();
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://{address}/")).body(Given(given)).unwrap();
    let mut body = soon(sender.send_request(request)).await.unwrap().into_body();
    for text in ["one", "two"] {
        frames.send(data(text)).unwrap();
        assert_eq!(soon(body.frame()).await.unwrap().unwrap().into_data().unwrap(), text);
        assert!(manager.is_locked("key").await.unwrap());
    }
    drop(frames);
    while soon(body.frame()).await.is_some() {}
    assert!(!manager.is_locked("key").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_body_keeps_its_length_and_an_empty_one_its_lease_not() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let service = service_fn(async |request: Request<&'static str>| {
        let body = Full::<Bytes>::from(request.into_body());
        Ok::<_, std::convert::Infallible>(http::Response::new(body))
    });
    let service = LockLayer::http(manager.clone(), "key").until_body_end().layer(service);
    let post = |text| Request::post("/").body(text).unwrap();

    let response = soon(service.clone().oneshot(post("seven by"))).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(http_body::Body::size_hint(response.body()).exact(), Some(8));
    assert!(manager.is_locked("key").await.unwrap());
    assert_eq!(soon(response.into_body().collect()).await.unwrap().to_bytes(), "seven by");
    assert!(!manager.is_locked("key").await.unwrap());

    let response = soon(service.oneshot(post(""))).await.unwrap();
    assert!(http_body::Body::is_end_stream(response.body()));
    until_free(&manager, "key").await;
}

#[tokio::test(start_paused = true)]
async fn what_becomes_of_a_body_whose_lease_is_lost_is_said_by_the_policy() {
    let _limit = limit();
    for (policy, error) in [(OnLost::Finish, true), (OnLost::Ignore, false)] {
        let manager = LockManager::in_memory();
        let (frames, given) = unbounded_channel();
        let given = Arc::new(Mutex::new(Some(Given(given))));
        let service = service_fn(move |_: Request<()>| {
            let body = given.lock().unwrap().take().unwrap();
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(body)) }
        });
        let layer =
            LockLayer::http(manager.clone(), "key").options(LeaseOptions::new().on_lost(policy)).until_body_end();
        let request = Request::post("/").body(()).unwrap();
        let mut body = soon(layer.layer(service).oneshot(request)).await.unwrap().into_body();
        assert!(poll_once(&mut body.frame()).is_pending());
        assert!(manager.force_release("key").await.unwrap());
        frames.send(data("one")).unwrap();
        soon(body.frame()).await.unwrap().unwrap();
        drop(frames);
        assert_eq!(soon(body.frame()).await.is_some_and(|frame| frame.is_err()), error);
        assert!(soon(body.frame()).await.is_none());
    }
}
