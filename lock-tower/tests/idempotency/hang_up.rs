//! Clients that leave, over real sockets.

use std::net::SocketAddr;

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lock_core::LockManager;
use lock_tower::idempotency::MemoryAnswers;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use super::{Bank, ask, layer, request};
use crate::support::{limit, serve, soon, until, until_free};

const PAY: &[u8] =
    b"POST /pay HTTP/1.1\r\nhost: bank\r\nx-account: a\r\nidempotency-key: 1\r\ncontent-length: 2\r\n\r\n42";

async fn connect(address: SocketAddr, sends: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sends).await.unwrap();
    stream
}

#[tokio::test]
async fn attack_6_a_client_that_hangs_up_does_not_stop_the_work() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    let address = serve(service.clone()).await;
    let client = connect(address, PAY).await;
    until("the handler runs", || bank.charges() == 1).await;
    drop(client);
    // The server sees the end of the first connection before it is asked by another one that is answered.
    let mut other = connect(address, b"GET /none HTTP/1.1\r\nhost: bank\r\n\r\n").await;
    soon(other.read_u8()).await.unwrap();
    bank.open_doors();
    until("the handler is done", || bank.done() == 1).await;
    until_free(&manager, "payments:a:1").await;
    // Attack 5: the retry is given the answer that was lost on its way.
    let told = ask(&service, request("a", "1", "42")).await;
    told.is(201, "charge 1");
    assert!(told.is_replayed());
    assert_eq!(bank.charges(), 1);
}

#[tokio::test]
async fn a_duplicate_that_hangs_up_waits_no_longer() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    let address = serve(service.clone()).await;
    let first = tokio::spawn(async move { ask(&service, request("a", "1", "42")).await });
    until("the handler runs", || bank.charges() == 1).await;
    let duplicate = connect(address, PAY).await;
    crate::support::until_waited_for(&manager, "payments:a:1").await;
    drop(duplicate);
    while !manager.inspect("payments:a:1").await.unwrap().waiters().is_empty() {
        tokio::task::yield_now().await;
    }
    bank.open_doors();
    soon(first).await.unwrap().is(201, "charge 1");
    assert_eq!(bank.charges(), 1);
}

#[tokio::test]
async fn attack_8_an_upload_that_stalls_keeps_no_key() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()));
    let address = serve(service.clone()).await;
    let mut stalled = connect(address, &PAY[..PAY.len() - 1]).await;
    // Another request of the same key is served meanwhile, and the stalled one is a duplicate when it goes on.
    let mut quick = connect(address, PAY).await;
    assert_eq!(soon(quick.read_u8()).await.unwrap(), b'H');
    assert_eq!(bank.charges(), 1);
    stalled.write_all(b"2").await.unwrap();
    assert_eq!(soon(stalled.read_u8()).await.unwrap(), b'H');
    drop(connect(address, &PAY[..PAY.len() - 1]).await);
    assert_eq!(bank.charges(), 1, "it was a duplicate");
}

#[tokio::test]
async fn duplicates_of_one_http_2_connection_and_of_many_get_one_answer() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::closed());
    let address = serve(bank.routes().route_layer(layer(&manager, &MemoryAnswers::new()))).await;
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let mut answers = JoinSet::new();
    let request = |version| {
        let request = Request::post(format!("http://{address}/pay")).version(version).header("host", "bank");
        request.header("x-account", "a").header("idempotency-key", "1").body(Full::new(Bytes::from("42"))).unwrap()
    };
    for number in 0..40 {
        if number % 2 == 0 {
            let (mut sender, request) = (sender.clone(), request(http::Version::HTTP_2));
            answers.spawn(async move { sender.send_request(request).await.unwrap() });
        } else {
            let request = request(http::Version::HTTP_11);
            answers.spawn(async move {
                let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
                let (mut sender, connection) = http1::handshake(stream).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            });
        }
    }
    until("a handler runs", || bank.charges() == 1).await;
    bank.open_doors();
    let mut replayed = 0;
    while let Some(response) = soon(answers.join_next()).await {
        let response = response.unwrap();
        assert_eq!(response.status(), 201);
        replayed += usize::from(response.headers().contains_key("idempotent-replayed"));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "charge 1");
    }
    assert_eq!((bank.charges(), replayed), (1, 39));
}

#[tokio::test]
async fn a_request_that_breaks_off_does_nothing() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    let broken = http_body_util::StreamBody::new(tokio_stream::once(Err::<http_body::Frame<Bytes>, _>("reset")));
    let request = request("a", "1", "").map(|_| Body::new(broken));
    ask(&service, request).await.is_refused(400, "idempotency_request_unreadable");
    assert_eq!(bank.charges(), 0);
}
