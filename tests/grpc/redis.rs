//! The same on a real Redis: two servers that know nothing of each other, and a Redis that goes away.

use lock_core::LeaseOptions;
use lock_tests::{LONG, RedisServer, SOON, eventually};
use lock_tower::OnBackendError;
use tokio::task::JoinSet;
use tonic::Code;

use crate::grpc::{
    layer,
    proto::{End, Order, calls_client::CallsClient},
    service::{Floor, channel, client, serve, with_key},
    soon,
    streams::orders,
    until, until_free,
};
use crate::patient;

#[tokio::test]
async fn two_servers_on_one_redis_serve_one_call_per_key_at_a_time() {
    const CALLS: usize = 200;
    let redis = RedisServer::start().await;
    let floor = Floor::default();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let manager = patient::connect(&redis.url()).await.unwrap();
        clients.push(client(layer(&manager).options(LeaseOptions::new().wait(LONG)), &floor).await);
    }
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let mut client = clients[number % 2].clone();
        calls.spawn(async move {
            if number % 4 < 2 {
                return client.ask(with_key("a", Order::default())).await.unwrap().into_inner().fencing_token;
            }
            let (sender, orders) = orders("a");
            let upload = tokio::spawn(async move { client.upload(orders).await });
            sender.send(Order::default()).await.unwrap();
            drop(sender);
            upload.await.unwrap().unwrap().into_inner().fencing_token
        });
    }
    let mut fences = tokio::time::timeout(LONG, calls.join_all()).await.unwrap();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!((fences.len(), floor.begun(), floor.most()), (CALLS, CALLS, 1));
    assert!(!redis.keys("*").await.contains(&"a".to_owned()));
}

#[tokio::test]
async fn a_client_that_goes_leaves_no_key_in_redis() {
    let redis = RedisServer::start().await;
    let manager = patient::connect(&redis.url()).await.unwrap();
    let floor = Floor::default();
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let hang = Order { replies: 1, end: End::Hang.into() };
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.ask(with_key("ask", hang)).await });
    let mut replies = soon(client.download(with_key("download", hang))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    until("both work", || floor.inside() == 2).await;
    let held = ["ask".to_owned(), "download".to_owned()];
    let keys = redis.keys("*").await;
    assert!(held.iter().all(|key| keys.contains(key)), "{keys:?}");
    call.abort();
    drop(replies);
    eventually(SOON, "both keys are gone", async || {
        let keys = redis.keys("*").await;
        !held.iter().any(|key| keys.contains(key))
    })
    .await;
}

#[tokio::test]
async fn bad_input_70_a_redis_that_is_gone_is_unavailable_until_it_is_back() {
    let mut redis = RedisServer::start().await;
    let manager = patient::connect(redis.url()).await.unwrap();
    let floor = Floor::default();
    let strict = layer(&manager);
    let open = layer(&manager).on_backend_error(OnBackendError::LetThrough);
    let strict_client = CallsClient::new(channel(serve(strict, &floor).await).await);
    let mut open_client = CallsClient::new(channel(serve(open.clone(), &floor).await).await);
    let ask = || with_key("a", Order::default());
    soon(strict_client.clone().ask(ask())).await.unwrap();
    redis.stop();

    let status = soon(strict_client.clone().ask(ask())).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(!status.message().contains("127.0.0.1"), "where Redis is is nobody's business: {status}");
    assert_eq!(floor.begun(), 1, "fails closed");
    let reply = soon(open_client.ask(ask())).await.unwrap().into_inner();
    assert_eq!((&*reply.key, open.let_through()), ("", 1), "fails open only where that is spelled out");

    redis.start_again().await;
    eventually(SOON, "calls are served again", async || strict_client.clone().ask(ask()).await.is_ok()).await;
    until_free(&manager, "a").await;
}
