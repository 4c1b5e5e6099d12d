//! Uploads that wait for a key, over one connection of HTTP/2.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{limit, soon, until};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    middleware::{Next, from_fn},
    response::IntoResponse,
    routing::get,
};
use http::StatusCode;
use hyper::{
    client::conn::http2::{self as client, SendRequest},
    server::conn::http2 as server,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use lock_core::{LeaseOptions, LockManager};
use lock_tower::LockLayer;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;

const PART: usize = 16 * 1024;

/// The window of a connection of hyper's server, unless set.
const WINDOW: usize = 1024 * 1024;

/// Makes a body of half a window, which counts what the connection takes of it.
fn half(taken: &Arc<AtomicUsize>) -> Body {
    let taken = Arc::clone(taken);
    Body::from_stream(tokio_stream::iter((0..WINDOW / 2 / PART).map(move |_| {
        taken.fetch_add(PART, SeqCst);
        Ok::<_, Infallible>(Bytes::from_static(&[0; PART]))
    })))
}

/// Serves one connection, with a window of its own if there is one.
async fn connect(service: Router, window: Option<u32>) -> SendRequest<Body> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let mut builder = server::Builder::new(TokioExecutor::new());
    if let Some(window) = window {
        builder.initial_connection_window_size(window);
    }
    tokio::spawn(builder.serve_connection(TokioIo::new(far), TowerToHyperService::new(service)));
    let (requests, connection) = client::handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    requests
}

#[tokio::test]
async fn uploads_that_wait_stall_that_of_the_holder_on_their_connection_unless_its_window_has_room_for_them() {
    let _limit = limit();
    for (window, stalls) in [(None, true), (Some(8 * 1024 * 1024), false)] {
        let (gives_up, given_up) = watch::channel(false);
        // Ends requests that wait, as a timeout does.
        let until_given_up = from_fn(move |request: Request, next: Next| {
            let mut given_up = given_up.clone();
            async move {
                if !request.headers().contains_key("x-gives-up") {
                    return next.run(request).await;
                }
                tokio::select! {
                    response = next.run(request) => response,
                    _ = given_up.wait_for(|given_up| *given_up) => StatusCode::REQUEST_TIMEOUT.into_response(),
                }
            }
        });
        let manager = LockManager::in_memory();
        let waits = LeaseOptions::new().wait(Duration::from_secs(600));
        let upload = get(async || "read").post(async |body: Bytes| body.len().to_string());
        let service: Router = Router::new()
            .route("/", upload)
            .route_layer(LockLayer::http(manager.clone(), "key").options(waits))
            .layer(until_given_up);
        let requests = connect(service, window).await;
        let send = |request: http::request::Builder, body| {
            let (mut requests, request) = (requests.clone(), request.uri("http://shop/").body(body).unwrap());
            tokio::spawn(async move { requests.send_request(request).await.map(|response| response.status()) })
        };

        let (sent, parts) = mpsc::unbounded_channel();
        sent.send(Ok::<_, Infallible>(Bytes::from_static(b"begins"))).unwrap();
        let holder = send(Request::post("/"), Body::from_stream(UnboundedReceiverStream::new(parts)));
        while !manager.is_locked("key").await.unwrap() {
            tokio::task::yield_now().await;
        }
        let taken = Arc::default();
        let waiters: Vec<_> =
            (0..3).map(|_| send(Request::post("/").header("x-gives-up", "yes"), half(&taken))).collect();
        until("the usual window is full", || taken.load(SeqCst) >= WINDOW).await;
        sent.send(Ok(Bytes::from_static(&[0; 4 * PART]))).unwrap();
        drop(sent);
        if stalls {
            // The connection itself goes on.
            for _ in 0..50 {
                assert_eq!(soon(send(Request::get("/"), Body::empty())).await.unwrap().unwrap(), StatusCode::OK);
            }
            assert!(!holder.is_finished(), "the window had room");
            gives_up.send(true).unwrap();
        }
        assert_eq!(soon(holder).await.unwrap().unwrap(), StatusCode::OK);
        waiters.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
