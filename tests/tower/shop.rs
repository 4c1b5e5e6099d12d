//! A web service behind the layer, and clients of it that can hang up.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{
    StatusCode,
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lock_core::{LeaseOptions, LockManager};
use lock_tests::{LONG, RedisServer, SOON, eventually, until_free, within};
use lock_tower::{Held, Http, LockLayer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutLayer};

use crate::patient;

/// The ttl of leases that are held while a body is read slowly: they are renewed meanwhile, every three seconds.
const TTL: Duration = Duration::from_secs(9);

/// The limit of requests that stall. On a busy machine one may come to its handler late.
const LIMIT: Duration = Duration::from_secs(6);

pub(crate) const KEY: &str = "goods:1";

/// A service in front of whose routes stands one layer each, all of one key.
pub(crate) struct Shop {
    pub(crate) redis: RedisServer,
    pub(crate) manager: LockManager,
    pub(crate) address: SocketAddr,
    pub(crate) floor: Floor,
    /// What `/stream` sends; its end is the end of the body.
    pub(crate) frames: Option<UnboundedSender<Frame<Bytes>>>,
}

/// Counts who is where. Each count goes down again when the future or body in question is dropped.
#[derive(Clone, Default)]
pub(crate) struct Floor(Arc<Counts>);

#[derive(Default)]
struct Counts {
    /// Requests that came and have no answer yet.
    arrived: AtomicUsize,
    /// Handlers that began, all in all.
    begun: AtomicUsize,
    /// Handlers and bodies at work.
    inside: AtomicUsize,
    /// Chunks that `/flood` has handed out.
    chunks: AtomicUsize,
    given: Mutex<Option<UnboundedReceiver<Frame<Bytes>>>>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let redis = RedisServer::start().await;
        let manager = patient::connect(&redis.url()).await.expect("it runs");
        let floor = Floor::default();
        let (frames, given) = unbounded_channel();
        *floor.0.given.lock().expect("nobody panicked") = Some(given);

        // A release that is missing shows, since nothing expires while a test looks. Only what is slow is renewed.
        let plain = layer(&manager).options(LeaseOptions::new().ttl(LONG));
        let held = plain.clone().until_body_end();
        let bounded = held.clone().options(LeaseOptions::new().max_hold(LIMIT));
        let timed = TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, LIMIT);
        let renewed = held.clone().options(LeaseOptions::new().ttl(TTL));
        let app = Router::new()
            .route("/work", post(work).route_layer(plain.clone()))
            .route("/upload", post(upload).route_layer(plain.clone()))
            .route(
                "/upload/bounded",
                post(upload).route_layer(plain.clone().options(LeaseOptions::new().max_hold(LIMIT))),
            )
            .route(
                "/upload/no_pause",
                post(upload).route_layer(plain.clone()).layer(RequestBodyTimeoutLayer::new(LIMIT)),
            )
            .route("/upload/timed", post(upload).route_layer(plain.clone()).layer(timed))
            .route("/fence", post(fence).route_layer(plain.clone()))
            .route("/panic", post(panics).route_layer(plain.clone()))
            .route("/twice", post(fence).route_layer(plain.clone()).route_layer(plain))
            .route("/stream", post(stream).route_layer(held.clone()))
            .route("/echo", post(echo).route_layer(held.clone()))
            .route("/flood", post(flood).route_layer(held.clone()))
            .route("/renewed/stream", post(stream).route_layer(renewed.clone()))
            .route("/renewed/echo", post(echo).route_layer(renewed))
            .route("/flood/bounded", post(flood).route_layer(bounded))
            .route("/panic/body", post(panicking_body).route_layer(held.clone()))
            .route("/twice/held", post(fence).route_layer(held.clone()).route_layer(held))
            .layer(middleware::from_fn_with_state(floor.clone(), arrive))
            .with_state(floor.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { redis, manager, address, floor, frames: Some(frames) }
    }

    pub(crate) fn give(&self, text: &'static str) {
        let frames = self.frames.as_ref().expect("the body has not ended");
        frames.send(Frame::data(Bytes::from_static(text.as_bytes()))).expect("somebody streams");
    }

    /// Asks Redis itself.
    pub(crate) async fn is_locked(&self) -> bool {
        self.redis.call(&["EXISTS", KEY]).await.integer() == Some(1)
    }

    pub(crate) async fn until_free(&self, why: &str) {
        until_free(why, async || self.is_locked().await).await;
    }

    pub(crate) async fn until_idle(&self, why: &str) {
        let idle = async || self.floor.inside() == 0 && self.floor.arrived() == 0;
        eventually(SOON, format!("nobody works: {why}"), idle).await;
    }

    /// A client that comes now is served, soon.
    pub(crate) async fn serves_the_next(&self, way: Version) {
        let mut next = Client::connect(self, way).await;
        let answer = next.post("/fence", nothing()).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK, "the next one is served");
        let fence = soon(answer.into_body().collect()).await.expect("a body").to_bytes();
        assert!(std::str::from_utf8(&fence).is_ok_and(|fence| fence.parse::<u64>().is_ok()), "{fence:?}");
    }
}

impl Floor {
    pub(crate) fn arrived(&self) -> usize {
        self.0.arrived.load(SeqCst)
    }

    pub(crate) fn begun(&self) -> usize {
        self.0.begun.load(SeqCst)
    }

    pub(crate) fn inside(&self) -> usize {
        self.0.inside.load(SeqCst)
    }

    pub(crate) fn chunks(&self) -> usize {
        self.0.chunks.load(SeqCst)
    }

    fn enter(&self) -> Inside {
        self.0.begun.fetch_add(1, SeqCst);
        Inside::one_more(self, |counts| &counts.inside)
    }
}

/// One of a count, until it is dropped.
struct Inside(Floor, fn(&Counts) -> &AtomicUsize);

impl Inside {
    fn one_more(floor: &Floor, which: fn(&Counts) -> &AtomicUsize) -> Self {
        which(&floor.0).fetch_add(1, SeqCst);
        Self(floor.clone(), which)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        (self.1)(&self.0.0).fetch_sub(1, SeqCst);
    }
}

fn layer(manager: &LockManager) -> LockLayer<&'static str, Http> {
    LockLayer::http(manager.clone(), KEY).options(LeaseOptions::new().wait(10 * LONG)).name("shop")
}

async fn arrive(State(floor): State<Floor>, request: Request, next: Next) -> Response {
    let _arrived = Inside::one_more(&floor, |counts| &counts.arrived);
    next.run(request).await
}

async fn work(State(floor): State<Floor>) {
    let _inside = floor.enter();
    std::future::pending::<()>().await;
}

async fn upload(State(floor): State<Floor>, request: Request) -> Result<String, StatusCode> {
    let _inside = floor.enter();
    let body = request.into_body().collect().await.map_err(|_| StatusCode::BAD_REQUEST)?.to_bytes();
    Ok(String::from_utf8_lossy(&body).into_owned())
}

async fn fence(Held(lease): Held) -> String {
    lease.fencing_token().to_string()
}

async fn panics(State(floor): State<Floor>) {
    let _inside = floor.enter();
    tokio::task::yield_now().await;
    panic!("on purpose");
}

async fn stream(State(floor): State<Floor>) -> Body {
    let given = floor.0.given.lock().expect("nobody panicked").take().expect("one stream a test");
    Body::new(Watched { inside: floor.enter(), body: Given(given) })
}

async fn echo(State(floor): State<Floor>, request: Request) -> Body {
    Body::new(Watched { inside: floor.enter(), body: request.into_body() })
}

async fn flood(State(floor): State<Floor>) -> Body {
    Body::new(Watched { inside: floor.enter(), body: Flood(floor) })
}

async fn panicking_body(State(floor): State<Floor>) -> Body {
    Body::new(Watched { inside: floor.enter(), body: Panics })
}

/// A body that counts as somebody inside.
struct Watched<B> {
    #[allow(dead_code, reason = "it counts until it is dropped")]
    inside: Inside,
    body: B,
}

impl<B: http_body::Body + Unpin> http_body::Body for Watched<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

/// A body whose frames a test gives.
pub(crate) struct Given(pub(crate) UnboundedReceiver<Frame<Bytes>>);

impl http_body::Body for Given {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// A body without an end, of big chunks, as fast as they are taken.
struct Flood(Floor);

impl http_body::Body for Flood {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.0.chunks.fetch_add(1, SeqCst);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&CHUNK)))))
    }
}

static CHUNK: [u8; 65_536] = [b'x'; 65_536];

/// A body that panics instead of its first frame.
struct Panics;

impl http_body::Body for Panics {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("on purpose")
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    One,
    Two,
}

pub(crate) const BOTH: [Version; 2] = [Version::One, Version::Two];

/// One connection of a client. Dropping it closes the socket, whatever is under way.
pub(crate) struct Client {
    requests: Requests,
    address: SocketAddr,
    connection: JoinHandle<()>,
}

enum Requests {
    One(http1::SendRequest<BoxBody<Bytes, Infallible>>),
    Two(http2::SendRequest<BoxBody<Bytes, Infallible>>),
}

impl Client {
    pub(crate) async fn connect(shop: &Shop, version: Version) -> Self {
        let stream = TokioIo::new(TcpStream::connect(shop.address).await.expect("the shop listens"));
        let (requests, connection) = if version == Version::One {
            let (sender, connection) = http1::handshake(stream).await.expect("HTTP/1");
            (Requests::One(sender), tokio::spawn(async move { drop(connection.await) }))
        } else {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.expect("HTTP/2");
            (Requests::Two(sender), tokio::spawn(async move { drop(connection.await) }))
        };
        Self { requests, address: shop.address, connection }
    }

    /// Sends a request and waits for the head of its answer.
    pub(crate) async fn post(
        &mut self,
        path: &str,
        body: BoxBody<Bytes, Infallible>,
    ) -> hyper::Result<hyper::Response<Incoming>> {
        let request = hyper::Request::post(format!("http://{}{path}", self.address)).header("host", "shop");
        let request = request.body(body).expect("a request");
        match &mut self.requests {
            Requests::One(sender) => soon(sender.send_request(request)).await,
            Requests::Two(sender) => soon(sender.send_request(request)).await,
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.connection.is_finished()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

pub(crate) fn nothing() -> BoxBody<Bytes, Infallible> {
    BoxBody::new(Empty::new())
}

/// Waits for what should come soon.
#[track_caller]
pub(crate) fn soon<F: Future>(future: F) -> impl Future<Output = F::Output> {
    within(SOON, future)
}
