//! What comes over the wire: headers that are no keys, and the corners of HTTP, with and without `until_body_end`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use crate::support::{limit, serve, soon, until, until_free};
use axum::{Router, body::Body, extract::Request, response::Response, routing::any};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use lock_core::LockManager;
use lock_tower::{
    Held, Http, KeyExtractor, LockLayer,
    key::{header, scoped},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::{Layer, service_fn, util::MapRequestLayer};

fn layer(manager: &LockManager) -> LockLayer<&'static str, Http> {
    LockLayer::http(manager.clone(), "key").all_methods()
}

/// Puts the layer around a route in both of its modes.
fn both(manager: &LockManager, routes: impl Fn() -> Router) -> [Router; 2] {
    [routes().route_layer(layer(manager)), routes().route_layer(layer(manager).until_body_end())]
}

/// Sends a request as it is on the wire and reads on to the end of the connection.
async fn raw(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    rest(stream).await
}

async fn rest(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    soon(stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Reads the head of an answer.
async fn head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Shows the key that is held, or that none is.
async fn key_of(lease: Option<Held>) -> String {
    lease.map_or_else(|| "no lock".to_owned(), |lease| lease.key().to_owned())
}

/// A service whose key is the header `x-account`.
async fn accounts<K>(key: K) -> SocketAddr
where
    K: KeyExtractor<Request> + Clone + Send + Sync + 'static,
{
    let layer = LockLayer::http(LockManager::in_memory(), key);
    serve(Router::new().route("/", any(key_of)).route_layer(layer)).await
}

/// Values of the header, each a line of its own, and what the text of the refusal says, or none where there is a key.
fn values() -> Vec<(Vec<Vec<u8>>, Option<&'static str>)> {
    vec![
        (vec![b"7".to_vec()], None),
        (vec![vec![b'k'; 1016]], None),
        (vec![], Some("is missing")),
        (vec![vec![]], Some("is empty")),
        (vec!["ä".into()], Some("is not visible ASCII")),
        (vec![b"\xe4".to_vec()], Some("is not visible ASCII")),
        (vec![b"\xff\xfe".to_vec()], Some("is not visible ASCII")),
        (vec![vec![b'k'; 1025]], Some("is too long")),
        (vec![vec![b'k'; 6000]], Some("is too long")),
        (vec![b"7".to_vec(), b"7".to_vec()], Some("is there more than once")),
        (vec![b"7".to_vec(), b"8".to_vec()], Some("is there more than once")),
        (vec![vec![], b"7".to_vec()], Some("is there more than once")),
    ]
}

/// What is to come of a value of the header.
fn expected(values: &[Vec<u8>], refusal: Option<&str>, optional: bool) -> (u16, String) {
    match refusal {
        None => (200, format!("account:{}", String::from_utf8_lossy(&values[0]))),
        Some("is missing" | "is empty") if optional => (200, "no lock".to_owned()),
        Some(what) => (400, format!(r#""detail":"the header x-account {what}","code":"lock_key"}}"#)),
    }
}

#[tokio::test]
async fn bad_input_67_and_68_each_header_that_is_no_key_is_a_bad_request_in_http1() {
    let _limit = limit();
    let must = accounts(scoped("account", header::<String>("x-account"))).await;
    let may = accounts(scoped("account", header::<String>("x-account").optional())).await;
    for (address, optional) in [(must, false), (may, true)] {
        for (values, refusal) in values() {
            let mut request = b"POST / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n".to_vec();
            for value in &values {
                request.extend([b"x-account: ", value.as_slice(), b"\r\n"].concat());
            }
            request.extend(b"\r\n");
            let answer = raw(address, &request).await;
            let (status, body) = expected(&values, refusal, optional);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{refusal:?}: {answer}");
            assert!(answer.ends_with(&body), "{refusal:?}: {answer}");
            assert_eq!(answer.contains("application/problem+json"), status == 400, "{answer}");
        }
    }
}

#[tokio::test]
async fn bad_input_67_and_68_each_header_that_is_no_key_is_a_bad_request_in_http2_and_the_connection_goes_on() {
    let _limit = limit();
    let must = accounts(scoped("account", header::<String>("x-account"))).await;
    let may = accounts(scoped("account", header::<String>("x-account").optional())).await;
    for (address, optional) in [(must, false), (may, true)] {
        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        for (values, refusal) in values() {
            let mut request = Request::post(format!("http://{address}/")).body(Empty::<Bytes>::new()).unwrap();
            for value in &values {
                request.headers_mut().append("x-account", HeaderValue::from_bytes(value).unwrap());
            }
            let answer = soon(sender.send_request(request)).await.unwrap();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let expected = expected(&values, refusal, optional);
            assert_eq!(status, expected.0, "{refusal:?}");
            assert!(body.ends_with(expected.1.as_bytes()), "{refusal:?}: {body:?}");
        }
    }
}

#[tokio::test]
async fn bad_input_76_head_has_the_length_of_get_and_no_body_and_frees_the_key() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    for service in both(&manager, || Router::new().route("/", any(async || "seven by"))) {
        let address = serve(service).await;
        let answer = raw(address, b"HEAD / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        assert!(answer.contains("content-length: 8\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        until_free(&manager, "key").await;

        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::head(format!("http://{address}/")).body(Empty::<Bytes>::new()).unwrap();
        let answer = soon(sender.send_request(request)).await.unwrap();
        assert_eq!((answer.status(), &answer.headers()["content-length"]), (StatusCode::OK, &HeaderValue::from(8)));
        assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
        until_free(&manager, "key").await;
    }
}

#[tokio::test]
async fn bad_input_76_a_refused_head_has_the_length_of_the_refusal_and_no_body() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _busy = manager.lock("key").await.unwrap();
    let service = Router::new().route("/", any(async || "")).route_layer(layer(&manager).try_only());
    let answer = raw(serve(service).await, b"HEAD / HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 409 Conflict"), "{answer}");
    assert!(answer.contains("content-length: ") && !answer.contains("content-length: 0"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[tokio::test]
async fn bad_input_76_a_body_is_asked_for_with_100_continue_only_under_the_lock() {
    let _limit = limit();
    fn upload(path: &str) -> Vec<u8> {
        let headers = "host: shop\r\nexpect: 100-continue\r\ncontent-length: 4\r\nconnection: close";
        format!("POST {path} HTTP/1.1\r\n{headers}\r\n\r\n").into_bytes()
    }

    let manager = LockManager::in_memory();
    let echo = async |lease: Held, body: String| format!("{} {body}", lease.is_held());
    for service in both(&manager, || Router::new().route("/", any(echo))) {
        let impatient = Router::new().route("/impatient", any(echo)).route_layer(layer(&manager).try_only());
        let arrived = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&arrived);
        let count = MapRequestLayer::new(move |request: Request| {
            count.fetch_add(1, SeqCst);
            request
        });
        let address = serve(service.merge(impatient).layer(count)).await;
        let guard = manager.lock("key").await.unwrap();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&upload("/")).await.unwrap();
        until("the server has read the head", || arrived.load(SeqCst) == 1).await;
        let answer = raw(address, &upload("/impatient")).await;
        assert!(answer.starts_with("HTTP/1.1 409 Conflict"), "no 100 before a refusal: {answer}");
        assert_eq!(stream.try_read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "no 100 yet");
        guard.release().await.unwrap();

        assert_eq!(head(&mut stream).await, "HTTP/1.1 100 Continue\r\n\r\n");
        assert!(manager.is_locked("key").await.unwrap());
        stream.write_all(b"body").await.unwrap();
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("true body"), "{answer}");
        until_free(&manager, "key").await;
    }
}

#[tokio::test]
async fn bad_input_76_an_upgraded_connection_is_not_under_the_lock_even_until_body_end() {
    let _limit = limit();
    /// Answers as a WebSocket's handshake does, and then sends back what comes.
    async fn handshake(mut request: Request) -> Response {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { echo(TokioIo::new(upgrade.await.unwrap())).await });
        let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        response.header(header::CONNECTION, "upgrade").header(header::UPGRADE, "websocket").body(Body::empty()).unwrap()
    }

    let manager = LockManager::in_memory();
    for service in both(&manager, || Router::new().route("/", any(handshake))) {
        let mut stream = TcpStream::connect(serve(service).await).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            .await
            .unwrap();
        assert!(head(&mut stream).await.starts_with("HTTP/1.1 101"));
        // The connection is in use, and the key free.
        until_free(&manager, "key").await;
        for byte in b"xy" {
            stream.write_u8(*byte).await.unwrap();
            assert_eq!(soon(stream.read_u8()).await.unwrap(), *byte);
            assert!(!manager.is_locked("key").await.unwrap());
        }
    }
}

#[tokio::test]
async fn bad_input_76_a_tunnel_through_http2_is_not_under_the_lock_even_until_body_end() {
    let _limit = limit();
    /// Answers to CONNECT, as a WebSocket over HTTP/2 begins, and then sends back what comes.
    async fn connect(
        mut request: http::Request<hyper::body::Incoming>,
    ) -> Result<http::Response<Empty<Bytes>>, hyper::Error> {
        assert_eq!(request.method(), Method::CONNECT);
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move { echo(TokioIo::new(upgrade.await.unwrap())).await });
        Ok(http::Response::new(Empty::new()))
    }

    async fn tunnel<S, B>(manager: &LockManager, service: S)
    where
        S: tower::Service<http::Request<hyper::body::Incoming>, Response = http::Response<B>, Error = hyper::Error>
            + Clone
            + Send
            + 'static,
        S::Future: Send,
        B: http_body::Body<Data = Bytes, Error = lock_tower::BoxError> + Send + 'static,
    {
        let (client, server) = tokio::io::duplex(4096);
        let serve = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(serve.serve_connection(TokioIo::new(server), TowerToHyperService::new(service)));
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::connect("shop:80").body(Empty::<Bytes>::new()).unwrap();
        let answer = soon(sender.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let mut stream = TokioIo::new(soon(hyper::upgrade::on(answer)).await.unwrap());
        until_free(manager, "key").await;
        for byte in b"xy" {
            stream.write_u8(*byte).await.unwrap();
            assert_eq!(soon(stream.read_u8()).await.unwrap(), *byte);
            assert!(!manager.is_locked("key").await.unwrap());
        }
    }

    let manager = LockManager::in_memory();
    tunnel(&manager, layer(&manager).layer(service_fn(connect))).await;
    tunnel(&manager, layer(&manager).until_body_end().layer(service_fn(connect))).await;
}

/// Sends back what comes, byte for byte.
async fn echo(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    while let Ok(byte) = stream.read_u8().await {
        stream.write_u8(byte).await.unwrap();
        stream.flush().await.unwrap();
    }
}

#[tokio::test]
async fn bad_input_76_trailers_of_both_versions_go_through_also_until_body_end() {
    let _limit = limit();
    /// A body of four bytes and a trailer.
    struct Trailing(Vec<Frame<Bytes>>);

    impl http_body::Body for Trailing {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Ready(self.0.pop().map(Ok))
        }
    }

    let trailing = async || {
        let end = HeaderMap::from_iter([(HeaderName::from_static("x-end"), HeaderValue::from_static("yes"))]);
        let frames = vec![Frame::trailers(end), Frame::data(Bytes::from_static(b"four"))];
        Response::builder().header(header::TRAILER, "x-end").body(Body::new(Trailing(frames))).unwrap()
    };
    let manager = LockManager::in_memory();
    for service in both(&manager, || Router::new().route("/", any(trailing))) {
        let address = serve(service).await;
        let request = b"POST / HTTP/1.1\r\nhost: shop\r\nte: trailers\r\nconnection: close, te\r\n\r\n";
        let answer = raw(address, request).await;
        assert!(answer.ends_with("4\r\nfour\r\n0\r\nx-end: yes\r\n\r\n"), "{answer}");
        assert!(!manager.is_locked("key").await.unwrap());

        let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        let request = Request::post(format!("http://{address}/")).body(Full::<Bytes>::default()).unwrap();
        let body = soon(soon(sender.send_request(request)).await.unwrap().into_body().collect()).await.unwrap();
        assert_eq!(body.trailers().unwrap()["x-end"], "yes");
        assert_eq!(body.to_bytes(), "four");
        assert!(!manager.is_locked("key").await.unwrap());
    }
    #[cfg(feature = "idempotency")]
    {
        use lock_tower::{
            idempotency::{IdempotencyLayer, MemoryAnswers},
            key::{header as of_header, scoped},
        };

        let key = scoped("trailers", of_header::<String>("x-account"));
        let layer = IdempotencyLayer::http(manager.clone(), key, MemoryAnswers::new());
        let address = serve(Router::new().route("/", any(trailing)).route_layer(layer)).await;
        // The answer, and its replay.
        for is_replayed in [false, true] {
            let request = b"POST / HTTP/1.1\r\nhost: shop\r\nx-account: a\r\nidempotency-key: k\r\nte: trailers\r\n\
                            connection: close, te\r\n\r\n";
            let answer = raw(address, request).await;
            assert!(answer.ends_with("4\r\nfour\r\n0\r\nx-end: yes\r\n\r\n"), "{answer}");
            assert_eq!(answer.contains("idempotent-replayed"), is_replayed, "{answer}");
        }
    }
}
