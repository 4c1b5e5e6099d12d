//! An axum service behind real sockets.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::support::{Floor, limit, serve, soon, until, until_free};
use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::State,
    handler::Handler,
    response::Response,
    routing::{MethodRouter, get, post},
};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use lock_core::{Lease, LeaseOptions, LockManager};
use lock_tower::{Http, LockLayer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::{self, UnboundedReceiver},
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

type Key = fn(&Request<Body>) -> Result<String, &'static str>;

/// The key is the header `x-goods`.
fn layer(manager: &LockManager) -> LockLayer<Key, Http> {
    let key: Key = |request| {
        let goods = request.headers().get("x-goods").and_then(|goods| goods.to_str().ok());
        goods.map(|goods| format!("goods:{goods}")).ok_or("the header x-goods is missing")
    };
    LockLayer::http(manager.clone(), key).all_methods()
}

/// One connection.
struct Client {
    requests: SendRequest<Full<Bytes>>,
}

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self { requests }
    }

    async fn send(&mut self, method: Method, path: &str, body: Vec<u8>) -> hyper::Result<(StatusCode, String)> {
        self.requests.ready().await?;
        let request = Request::builder().method(method).uri(path).header(header::HOST, "shop").header("x-goods", "1");
        let response = self.requests.send_request(request.body(Full::new(body.into())).unwrap()).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec()).unwrap()))
    }

    async fn post(&mut self, path: &str) -> hyper::Result<(StatusCode, String)> {
        soon(self.send(Method::POST, path, Vec::new())).await
    }
}

/// A request for goods 1 as it is on the wire.
fn raw(path: &str, more: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: shop\r\nx-goods: 1\r\n{more}\r\n").into_bytes()
}

async fn fence(Extension(lease): Extension<Lease>) -> String {
    assert!(lease.is_held());
    assert_eq!(lease.key(), "goods:1");
    lease.fencing_token().to_string()
}

async fn forever(State(floor): State<Floor>) -> &'static str {
    floor.work_forever().await;
    "never"
}

#[tokio::test]
async fn bad_input_79_the_handler_sees_its_lease_wherever_the_layer_is_put() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let lock = layer(&manager);
    let routes = || Router::new().route("/", post(fence));
    let services = [
        ("Router::layer", routes().layer(lock.clone())),
        ("Router::route_layer", routes().route_layer(lock.clone())),
        ("MethodRouter::layer", Router::new().route("/", post(fence).layer(lock.clone()))),
        ("MethodRouter::route_layer", Router::new().route("/", post(fence).route_layer(lock.clone()))),
        ("Handler::layer", Router::new().route("/", post(fence.layer(lock.clone())))),
        ("ServiceBuilder", routes().layer(ServiceBuilder::new().layer(lock.clone()))),
        ("merged", Router::new().merge(routes().route_layer(lock.clone()))),
        ("nested", Router::new().nest("/shop", routes().route_layer(lock))),
    ];
    let mut last = 0;
    for (place, service) in services {
        let path = if place == "nested" { "/shop" } else { "/" };
        let (status, body) = Client::connect(serve(service).await).await.post(path).await.unwrap();
        assert_eq!(status, StatusCode::OK, "{place}: {body}");
        let fence: u64 = body.parse().unwrap();
        assert!(fence > last, "{place}: {fence} after {last}");
        last = fence;
        assert!(!manager.is_locked("goods:1").await.unwrap(), "{place}");
    }
}

#[tokio::test]
async fn what_was_not_routed_is_locked_by_layer_and_not_by_route_layer() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("goods:1").await.unwrap();
    let lock = layer(&manager).try_only();
    let routes = || Router::new().route("/", post(fence));
    for (service, expected) in
        [(routes().layer(lock.clone()), StatusCode::CONFLICT), (routes().route_layer(lock), StatusCode::NOT_FOUND)]
    {
        let (status, _) = Client::connect(serve(service).await).await.post("/elsewhere").await.unwrap();
        assert_eq!(status, expected);
    }
}

#[tokio::test]
async fn a_client_is_a_service_too() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let address = serve(Router::new().route("/", get(|| async { "answer" }))).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (requests, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let requests = Arc::new(tokio::sync::Mutex::new(requests));
    let client = service_fn(move |request: Request<Empty<Bytes>>| {
        let requests = Arc::clone(&requests);
        async move { requests.lock().await.send_request(request).await }
    });

    let client_lock = LockLayer::http(manager.clone(), |_: &Request<Empty<Bytes>>| "goods:1");
    let client = client_lock.all_methods().layer(client);
    let request = || Request::get("/").header(header::HOST, "shop").body(Empty::new()).unwrap();
    let answer = client.clone().oneshot(request()).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "answer");

    manager.shutdown(Duration::ZERO).await;
    let answer = client.oneshot(request()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.into_body().collect().await.unwrap().to_bytes().starts_with(b"{"));
}

#[tokio::test]
async fn requests_of_one_key_are_served_one_at_a_time() {
    let _limit = limit();
    async fn work(State(floor): State<Floor>) {
        floor.work(Duration::from_millis(10)).await;
    }

    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = Router::new().route("/", post(work)).route_layer(layer(&manager)).with_state(floor.clone());
    let address = serve(service).await;
    let buyers = (0..8).map(|_| tokio::spawn(async move { Client::connect(address).await.post("/").await.unwrap().0 }));
    for buyer in buyers.collect::<Vec<_>>() {
        assert_eq!(buyer.await.unwrap(), StatusCode::OK);
    }
    assert_eq!((floor.finished(), floor.most()), (8, 1));
}

#[tokio::test]
async fn bad_input_73_a_client_that_hangs_up_stops_the_handler_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = Router::new().route("/", post(forever)).route_layer(layer(&manager)).with_state(floor.clone());
    let address = serve(service).await;

    let mut working = TcpStream::connect(address).await.unwrap();
    working.write_all(&raw("/", "content-length: 0\r\n")).await.unwrap();
    until("the handler works", || floor.inside() == 1).await;
    assert!(manager.is_locked("goods:1").await.unwrap());
    drop(working);
    until("the handler was dropped", || floor.inside() == 0).await;
    until_free(&manager, "goods:1").await;
}

/// Serves a handler that never ends, behind a layer that waits. Tells which requests have come, and which were dropped.
async fn watched(manager: &LockManager, floor: &Floor) -> (SocketAddr, UnboundedReceiver<()>, UnboundedReceiver<()>) {
    let (came, waiting) = mpsc::unbounded_channel();
    let (went, gone) = mpsc::unbounded_channel::<()>();
    let watch = axum::middleware::from_fn(move |request: axum::extract::Request, next: axum::middleware::Next| {
        let (came, went) = (came.clone(), went.clone());
        async move {
            let _went = DropTell(went);
            came.send(()).unwrap();
            next.run(request).await
        }
    });
    let service = Router::new()
        .route("/", post(forever))
        .route_layer(layer(manager).options(LeaseOptions::new().wait(Duration::from_secs(600))))
        .layer(watch)
        .with_state(floor.clone());
    (serve(service).await, waiting, gone)
}

#[tokio::test]
async fn bad_input_73_a_client_that_hangs_up_while_it_waits_never_gets_the_key() {
    let _limit = limit();
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let (address, mut waiting, mut gone) = watched(&manager, &floor).await;
    let guard = manager.lock("goods:1").await.unwrap();
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(&raw("/", "content-length: 0\r\n")).await.unwrap();
    soon(waiting.recv()).await.unwrap();
    drop(client);
    soon(gone.recv()).await.unwrap();
    guard.release().await.unwrap();
    // Nobody takes it from here on: the one that waited is gone.
    assert!(!manager.is_locked("goods:1").await.unwrap());
    assert_eq!(floor.begun(), 0);
}

/// The documentation of the crate says so, since a user may rely on the opposite.
#[tokio::test]
async fn a_client_of_http_1_that_hangs_up_while_it_waits_is_not_noticed_if_its_body_was_not_read() {
    let _limit = limit();
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let (address, mut waiting, mut gone) = watched(&manager, &floor).await;
    let guard = manager.lock("goods:1").await.unwrap();
    let mut clients = Vec::new();
    for (more, body) in [
        ("content-length: 1000000\r\n", &b"begins"[..]),
        ("transfer-encoding: chunked\r\n", b"2\r\n42\r\n0\r\n\r\n"),
        ("content-length: 2\r\n", b"42"),
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(&[&raw("/", more)[..], body].concat()).await.unwrap();
        soon(waiting.recv()).await.unwrap();
        clients.push(client);
    }
    drop(clients);
    soon(gone.recv()).await.unwrap();
    guard.release().await.unwrap();
    until("the handler runs for a client that is gone", || floor.begun() == 1).await;
    assert!(gone.try_recv().is_err(), "only the client whose body has come is known to be gone");
}

/// Tells when it is dropped.
struct DropTell(mpsc::UnboundedSender<()>);

impl Drop for DropTell {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[tokio::test]
async fn bad_input_74_a_handler_that_panics_frees_the_key() {
    let _limit = limit();
    async fn panics() {
        tokio::task::yield_now().await;
        panic!("on purpose");
    }

    let manager = LockManager::in_memory();
    let service = Router::new().route("/panic", post(panics)).route("/", post(fence)).route_layer(layer(&manager));
    let address = serve(service).await;
    let answer = Client::connect(address).await.post("/panic").await;
    answer.expect_err("the panic goes on, and hyper closes the connection");
    let (status, _) = Client::connect(address).await.post("/").await.unwrap();
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn bad_input_69_and_70_a_refused_upload_gets_its_answer() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _guard = manager.lock("goods:1").await.unwrap();
    let service = Router::new().route("/", post(fence)).route_layer(layer(&manager).try_only());
    let address = serve(service).await;

    // Nobody reads this body: hyper reads on or closes, and the answer comes whole.
    let mut client = Client::connect(address).await;
    let (status, body) = client.send(Method::POST, "/", vec![b'x'; 64 << 10]).await.unwrap();
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(body.starts_with('{') && body.ends_with('}'), "{body}");

    // Without a body the connection goes on.
    let mut client = Client::connect(address).await;
    for _ in 0..2 {
        assert_eq!(client.post("/").await.unwrap().0, StatusCode::CONFLICT);
    }
}

#[tokio::test]
async fn bad_input_67_a_request_without_its_header_is_a_bad_request() {
    let _limit = limit();
    let service = Router::new().route("/", get(fence)).route_layer(layer(&LockManager::in_memory()));
    let mut stream = TcpStream::connect(serve(service).await).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 Bad Request"), "{answer}");
    assert!(answer.ends_with(r#""detail":"the header x-goods is missing","code":"lock_key"}"#), "{answer}");
}

#[tokio::test]
async fn bad_input_72_a_slow_upload_is_under_the_lock_and_the_lease_is_renewed() {
    let _limit = limit();
    async fn upload(Extension(lease): Extension<Lease>, body: String) -> String {
        format!("{} {body}", lease.is_held())
    }

    let ttl = Duration::from_secs(30);
    let manager = LockManager::in_memory();
    let service =
        Router::new().route("/", post(upload)).route_layer(layer(&manager).options(LeaseOptions::new().ttl(ttl)));
    let mut client = TcpStream::connect(serve(service).await).await.unwrap();
    client.write_all(&raw("/", "content-length: 4\r\nconnection: close\r\n")).await.unwrap();
    client.write_all(b"sl").await.unwrap();
    soon(async {
        while !manager.is_locked("goods:1").await.unwrap() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    // Twice as long as a lease that is not renewed; in virtual time, since nothing moves on the sockets.
    tokio::time::pause();
    for _ in 0..60 {
        tokio::time::sleep(ttl / 30).await;
        assert!(manager.is_locked("goods:1").await.unwrap());
    }
    tokio::time::resume();
    client.write_all(b"ow").await.unwrap();
    let mut answer = String::new();
    soon(client.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.ends_with("\r\n\r\ntrue slow"), "{answer}");
}

#[tokio::test]
async fn bad_input_76_head_has_the_length_of_get_and_no_body() {
    let _limit = limit();
    let handler: MethodRouter = get(|| async { "seven by" });
    let service = Router::new().route("/", handler).route_layer(layer(&LockManager::in_memory()));
    let mut stream = TcpStream::connect(serve(service).await).await.unwrap();
    stream.write_all(b"HEAD / HTTP/1.1\r\nhost: shop\r\nx-goods: 1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.contains("content-length: 8\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn bad_input_76_an_upgraded_connection_is_not_under_the_lock() {
    let _limit = limit();
    async fn echo(mut request: axum::extract::Request) -> Response {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            stream.write_all(&byte).await.unwrap();
        });
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        response.header(header::CONNECTION, "upgrade").header(header::UPGRADE, "echo").body(Body::empty()).unwrap()
    }

    let manager = LockManager::in_memory();
    let service = Router::new().route("/", post(echo)).route_layer(layer(&manager));
    let mut client = TcpStream::connect(serve(service).await).await.unwrap();
    client.write_all(&raw("/", "connection: upgrade\r\nupgrade: echo\r\n")).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(client.read_u8()).await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    assert!(!manager.is_locked("goods:1").await.unwrap(), "the head went out after the release");
    client.write_all(b"x").await.unwrap();
    assert_eq!(soon(client.read_u8()).await.unwrap(), b'x');
}
