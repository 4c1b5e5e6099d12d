//! The layer in a tonic server and around a tonic channel.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::support::{Floor, Log, limit, poll_once, soon, until, until_free};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use lock_core::{Lease, LeaseOptions, LockManager};
use lock_tower::{Grpc, LockLayer};
use tokio::net::TcpListener;
use tonic::{
    Code, Status,
    body::Body,
    transport::{Channel, Server, server::TcpIncoming},
};
use tonic_types::StatusExt;
use tower::{Layer, Service, ServiceExt, service_fn};

type Key = fn(&Request<Body>) -> String;

/// The metadata `x-goods` are the whole key.
fn layer(manager: &LockManager) -> LockLayer<Key, Grpc> {
    let key: Key = |call| call.headers()["x-goods"].to_str().unwrap().to_owned();
    LockLayer::grpc(manager.clone(), key)
}

/// A method that works forever, one that streams forever, and one that says which key it holds.
async fn method(floor: Floor, request: Request<Body>) -> Result<Response<Body>, std::convert::Infallible> {
    let key = request.extensions().get::<Lease>().map_or_else(String::new, |lease| lease.key().to_owned());
    match request.uri().path() {
        "/shop/forever" => floor.work_forever().await,
        "/shop/stream" => {
            let message = Frame::data(Bytes::from_static(&[0; 5]));
            let response = Response::builder().header("content-type", "application/grpc");
            return Ok(response.body(Body::new(Endless(Some(message)))).unwrap());
        }
        _ => {}
    }
    let mut response: Response<Body> = Status::new(Code::Ok, "").into_http();
    response.headers_mut().insert("x-key", key.parse().unwrap());
    Ok(response)
}

/// One message, and no end.
struct Endless(Option<Frame<Bytes>>);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.0.take().map_or(Poll::Pending, |frame| Poll::Ready(Some(Ok(frame))))
    }
}

async fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

macro_rules! serve {
    ($layer:expr, $floor:expr) => {{
        let floor = $floor.clone();
        let service = service_fn(move |request| method(floor.clone(), request));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().serve_with_incoming($layer.layer(service), TcpIncoming::from(listener));
        tokio::spawn(server);
        channel(address).await
    }};
}

fn call(path: &str, goods: &str) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
    request.header("x-goods", goods).body(Body::empty()).unwrap()
}

async fn status<S, B>(service: S, request: Request<Body>) -> (Code, Response<B>)
where
    S: Service<Request<Body>, Response = Response<B>, Error: std::fmt::Debug>,
{
    let response = soon(service.oneshot(request)).await.unwrap();
    let status = Status::from_header_map(response.headers()).expect("a refusal has its status in the head");
    (status.code(), response)
}

#[tokio::test]
async fn bad_input_79_a_method_finds_its_lease_in_the_extensions() {
    let _limit = limit();
    let channel = serve!(layer(&LockManager::in_memory()), Floor::default());
    let (code, response) = status(channel, call("/shop/key", "1")).await;
    assert_eq!((code, response.headers()["x-key"].to_str().unwrap()), (Code::Ok, "1"));
}

#[tokio::test]
async fn bad_input_67_to_70_each_refusal_has_its_code() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let _guard = manager.lock("busy").await.unwrap();
    let waits = layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50)));
    let full = layer(&manager).max_waiters(1);
    let mut waiter = Box::pin(
        full.layer(service_fn(|request| method(Floor::default(), request))).oneshot(call("/shop/key", "busy")),
    );
    assert!(poll_once(&mut waiter).is_pending());
    let cases = [
        (layer(&manager), call("/shop/key", ""), Code::InvalidArgument),
        (layer(&manager).try_only(), call("/shop/key", "busy"), Code::Aborted),
        (waits.clone(), call("/shop/key", "busy"), Code::Aborted),
        (waits.busy_code(Code::FailedPrecondition), call("/shop/key", "busy"), Code::FailedPrecondition),
        (full, call("/shop/key", "free"), Code::ResourceExhausted),
        (layer(&manager).options(LeaseOptions::new().ttl(Duration::ZERO)), call("/shop/key", "free"), Code::Internal),
        (layer(&manager).busy_code(Code::Ok), call("/shop/key", "free"), Code::Internal),
    ];
    for (layer, request, expected) in cases {
        let (code, response) = status(serve!(layer, floor), request).await;
        assert_eq!(code, expected);
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }
    manager.shutdown(Duration::ZERO).await;
    assert_eq!(status(serve!(layer(&manager), floor), call("/shop/key", "1")).await.0, Code::Unavailable);
}

#[tokio::test]
async fn calls_share_their_key_or_take_permits_by_the_name_of_their_method() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _reader = manager.lock("shared").shared().await.unwrap();
    let _all = manager.lock("full").permits(1).await.unwrap();
    let tries = layer(&manager).try_only();
    let reads = tries.clone().shared_for(["/shop/key"]);
    for (layer, path, key, code) in [
        (reads.clone(), "/shop/key", "shared", Code::Ok),
        (reads.clone(), "/shop/write", "shared", Code::Aborted),
        (tries.clone().shared_for(["shop"]), "/shop/write", "shared", Code::Ok),
        (tries.clone(), "/shop/key", "shared", Code::Aborted),
        // What shares is locked, whatever else is.
        (reads.clone().methods(["/shop/write"]), "/shop/key", "shared", Code::Ok),
        (reads.clone().methods(["/shop/write"]), "/shop/key", "full", Code::Aborted),
        (tries.clone().permits(1), "/shop/key", "full", Code::ResourceExhausted),
        (tries.clone().permits(1).busy_code(Code::Unavailable), "/shop/key", "full", Code::Unavailable),
        (tries.clone().permits(1), "/shop/key", "another", Code::Ok),
        (tries.clone().shared_for(["shop/key"]), "/shop/key", "shared", Code::Internal),
        (reads.permits(1), "/shop/key", "another", Code::Internal),
    ] {
        let (answered, response) = status(serve!(layer, Floor::default()), call(path, key)).await;
        assert_eq!(answered, code, "{layer:?} {path} {key}");
        if code == Code::Ok {
            assert_eq!(response.headers()["x-key"], key, "{path} is without its lease");
        }
    }
    let passes = tries.shared_for(["shop"]).except(["/shop/key"]);
    let (code, response) = status(serve!(passes, Floor::default()), call("/shop/key", "full")).await;
    assert_eq!((code, response.headers()["x-key"].to_str().unwrap()), (Code::Ok, ""), "it passes without a lease");
}

#[tokio::test]
async fn methods_that_are_not_named_and_health_checks_pass_without_a_lock() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    let floor = Floor::default();
    let tries = layer(&manager).try_only();
    let health = "/grpc.health.v1.Health/Check";
    for (layer, path, code) in [
        (tries.clone(), "/shop/key", Code::Aborted),
        (tries.clone(), health, Code::Ok),
        (tries.clone(), "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", Code::Ok),
        (tries.clone().methods(["/shop/key"]), "/shop/key", Code::Aborted),
        (tries.clone().methods(["/shop/key"]), "/shop/other", Code::Ok),
        (tries.clone().methods(["shop", "grpc.health.v1.Health"]), health, Code::Aborted),
        (tries.clone().methods(["shop"]).except(["/shop/key"]), "/shop/key", Code::Ok),
        (tries.clone().except(["shop"]), "/shop/key", Code::Ok),
        (tries.clone().methods([]), "/shop/key", Code::Internal),
        (tries.clone().methods(["shop/key"]), "/shop/key", Code::Internal),
        (tries.except(["/shop"]), "/shop/key", Code::Internal),
    ] {
        let (answered, response) = status(serve!(layer, floor), call(path, "busy")).await;
        assert_eq!(answered, code, "{layer:?} {path}");
        if code == Code::Ok {
            assert_eq!(response.headers()["x-key"], "", "{path} is without a lease");
        }
    }
}

#[tokio::test]
async fn a_method_that_wants_the_lease_of_a_call_without_one_is_an_error_of_the_server() {
    let (log, _logging) = Log::watch();
    let mut request = tonic::Request::new(());
    let status = Grpc::lease(&request).unwrap_err();
    assert_eq!(
        (status.code(), status.get_error_details().error_info().unwrap().reason.as_str()),
        (Code::Internal, "LOCK_MISCONFIGURED")
    );
    assert!(
        log.lines().iter().any(|line| line.starts_with("ERROR") && line.contains("`LockLayer`")),
        "{:?}",
        log.lines()
    );

    let guard = LockManager::in_memory().lock("1").await.unwrap();
    request.extensions_mut().insert(guard.lease().clone());
    assert_eq!(Grpc::lease(&request).unwrap().key(), "1");
}

#[tokio::test(start_paused = true)]
async fn the_log_of_a_refused_call_has_the_code_that_the_client_gets() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    let refusing = layer(&manager).try_only().answer(|_, status| Status::new(Code::Unavailable, status.message()));
    for (layer, code) in [(layer(&manager).try_only(), "Aborted"), (refusing, "Unavailable")] {
        let service = service_fn(|request| method(Floor::default(), request));
        layer.layer(service).oneshot(call("/shop/key", "busy")).await.unwrap();
        let lines = log.lines();
        let line = lines.iter().rfind(|line| line.contains("did not get its lock")).expect("it is logged");
        assert!(line.contains(&format!("grpc_code={code}")) && !line.contains("status_code"), "{line}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_caller_s_own_time_out_ends_the_wait_before_the_layer_s() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("busy").await.unwrap();
    let service = service_fn(|request| method(Floor::default(), request));
    // Without a channel, which ends the call of itself a little later.
    for (wait, time_out, code, waited) in [
        (Duration::from_secs(600), "400m", Code::DeadlineExceeded, Duration::from_millis(380)),
        (Duration::from_secs(600), "60S", Code::DeadlineExceeded, Duration::from_millis(59_950)),
        (Duration::from_secs(2), "60S", Code::Aborted, Duration::from_secs(2)),
    ] {
        let begin = tokio::time::Instant::now();
        let mut request = call("/shop/key", "busy");
        request.headers_mut().insert("grpc-timeout", time_out.parse().unwrap());
        let refused = layer(&manager).options(LeaseOptions::new().wait(wait)).layer(service).oneshot(request);
        let response = tokio::time::timeout(Duration::from_secs(700), refused).await.unwrap().unwrap();
        assert_eq!(Status::from_header_map(response.headers()).unwrap().code(), code);
        let close = waited..waited + Duration::from_millis(5);
        assert!(close.contains(&begin.elapsed()), "{time_out}: {:?}", begin.elapsed());
    }
}

#[tokio::test]
async fn bad_input_73_a_caller_that_gives_up_stops_the_method_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let channel = serve!(layer(&manager), floor);
    let work = tokio::spawn(channel.oneshot(call("/shop/forever", "1")));
    until("the method works", || floor.inside() == 1).await;
    work.abort();
    until("the method was dropped", || floor.inside() == 0).await;
    until_free(&manager, "1").await;
}

#[tokio::test]
async fn bad_input_75_a_stream_whose_lease_is_lost_ends_with_unknown() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let channel = serve!(layer(&manager).until_body_end(), Floor::default());
    let response = soon(channel.oneshot(call("/shop/stream", "1"))).await.unwrap();
    let mut body = response.into_body();
    soon(body.frame()).await.unwrap().unwrap().into_data().unwrap();
    assert!(manager.force_release("1").await.unwrap());
    let trailers = soon(body.frame()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(Status::from_header_map(&trailers).unwrap().code(), Code::Unknown);
}

#[tokio::test]
async fn it_stands_around_a_channel_too_and_in_the_builder_of_a_server() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = service_fn(move |request| method(floor.clone(), request));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().layer(layer(&LockManager::in_memory()));
    tokio::spawn(server.serve_with_incoming(service, TcpIncoming::from(listener)));

    let client = layer(&manager).try_only().layer(channel(address).await);
    let (code, response) = status(client.clone(), call("/shop/key", "1")).await;
    assert_eq!((code, response.headers()["x-key"].to_str().unwrap()), (Code::Ok, "1"));
    let _guard = manager.lock("1").await.unwrap();
    assert_eq!(status(client.clone(), call("/shop/key", "1")).await.0, Code::Aborted);
    let closure = layer(&manager).try_only().answer(|_, status| Status::already_exists(status.message()));
    assert_eq!(status(closure.layer(channel(address).await), call("/shop/key", "1")).await.0, Code::AlreadyExists);
}
