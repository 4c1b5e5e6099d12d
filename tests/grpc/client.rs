//! The layer around a channel, on the client's side.

use std::{pin::pin, time::Duration};

use lock_core::{LeaseOptions, LockManager};
use lock_tower::{Grpc, LockLayer, LockService, Until};
use tokio::time::{Instant, timeout};
use tonic::{
    Code, Request,
    transport::{Channel, channel::ResponseFuture},
};
use tower::{ServiceBuilder, layer::util::Identity};

use crate::grpc::{
    Key, layer,
    proto::{End, Order, calls_client::CallsClient},
    service::{Floor, channel, serve, with_key},
    soon,
    streams::orders,
    until, until_free,
};

const HANG: Order = Order { replies: 1, end: End::Hang as i32 };

type Locked<U> = CallsClient<LockService<Channel, Key, Grpc, U>>;

/// A client behind a layer, of a server that has none.
async fn client<U: Until<ResponseFuture>>(layer: LockLayer<Key, Grpc, U>, floor: &Floor) -> Locked<U> {
    let channel = channel(serve(Identity::new(), floor).await).await;
    CallsClient::new(ServiceBuilder::new().layer(layer).service(channel))
}

#[tokio::test]
async fn a_client_s_lock_is_held_while_the_server_works_and_free_with_the_answer() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let reply = soon(client.ask(with_key("a", Order::default()))).await.unwrap().into_inner();
    assert_eq!((reply.number, &*reply.key), (1, ""), "the lease is the client's, and is not sent");
    assert!(!manager.is_locked("a").await.unwrap());
    let call = tokio::spawn(async move { client.ask(with_key("a", HANG)).await });
    until("the method works", || floor.inside() == 1).await;
    assert!(manager.is_locked("a").await.unwrap());
    call.abort();
    until_free(&manager, "a").await;
    until("the method was dropped", || floor.inside() == 0).await;
}

#[tokio::test]
async fn a_call_whose_key_is_busy_is_not_sent() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let _guard = manager.lock("a").await.unwrap();
    let mut tries = client(layer(&manager).try_only(), &floor).await;
    assert_eq!(soon(tries.ask(with_key("a", Order::default()))).await.unwrap_err().code(), Code::Aborted);
    let (_sender, uploaded) = orders("a");
    assert_eq!(soon(tries.upload(uploaded)).await.unwrap_err().code(), Code::Aborted);
    let mut waits = client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50))), &floor).await;
    assert_eq!(soon(waits.ask(with_key("a", Order::default()))).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(soon(waits.ask(Request::new(Order::default()))).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn a_call_s_own_time_out_ends_the_wait_at_the_client() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_secs(600))), &floor).await;
    let _guard = manager.lock("a").await.unwrap();
    let mut call = with_key("a", Order::default());
    call.set_timeout(Duration::from_millis(100));
    assert_eq!(soon(client.ask(call)).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn the_server_is_given_what_the_wait_has_left_of_the_call_s_time_out() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let guard = manager.lock("a").await.unwrap();
    let begun = Instant::now();
    let mut call = with_key("a", Order::default());
    call.set_timeout(Duration::from_secs(60));
    let mut call = pin!(client.ask(call));
    // Its time runs from the first poll.
    assert!(timeout(Duration::ZERO, &mut call).await.is_err());
    let waits = Instant::now();
    // Nobody else can end its wait, so that it waits for all of this time.
    assert!(timeout(Duration::from_millis(50), &mut call).await.is_err());
    let waited = waits.elapsed();
    guard.release().await.unwrap();
    let timeout = soon(call).await.unwrap().into_inner().grpc_timeout;
    let left = timeout.strip_suffix('u').and_then(|left| left.parse().ok()).map(Duration::from_micros).unwrap();
    let [most, least] = [waited, begun.elapsed()].map(|passed| Duration::from_secs(60).saturating_sub(passed));
    assert!(
        least <= left + Duration::from_millis(1) && left <= most,
        "{timeout} is not between {least:?} and {most:?}"
    );
}

#[tokio::test]
async fn a_client_s_lock_covers_what_it_reads_if_asked_to() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let mut replies =
        soon(client.download(with_key("a", Order { replies: 2, ..Order::default() }))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    assert!(manager.is_locked("a").await.unwrap());
    soon(replies.message()).await.unwrap().unwrap();
    assert!(soon(replies.message()).await.unwrap().is_none());
    assert!(!manager.is_locked("a").await.unwrap());

    let mut broken_off = soon(client.download(with_key("a", HANG))).await.unwrap().into_inner();
    soon(broken_off.message()).await.unwrap().unwrap();
    drop(broken_off);
    until_free(&manager, "a").await;
    until("the stream was dropped", || floor.inside() == 0).await;
}

#[tokio::test]
async fn a_client_whose_lease_is_lost_breaks_off_its_call() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let mut replies = soon(client.download(with_key("download", HANG))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    let call = tokio::spawn(async move { client.ask(with_key("ask", HANG)).await });
    until("both work", || floor.inside() == 2).await;
    for key in ["ask", "download"] {
        assert!(manager.force_release(key).await.unwrap());
    }
    assert_eq!(soon(call).await.unwrap().unwrap_err().code(), Code::Unknown);
    assert_eq!(soon(replies.message()).await.unwrap_err().code(), Code::Unknown);
    drop(replies);
    until("the server was told", || floor.inside() == 0).await;
}

#[tokio::test]
async fn one_key_on_both_sides_is_refused_when_the_server_has_waited() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let at_server = layer(&manager).options(LeaseOptions::new().wait(Duration::from_millis(50)));
    let channel = channel(serve(at_server, &floor).await).await;
    let mut client = CallsClient::new(ServiceBuilder::new().layer(layer(&manager)).service(channel));
    assert_eq!(soon(client.ask(with_key("a", Order::default()))).await.unwrap_err().code(), Code::Aborted);
    assert!(!manager.is_locked("a").await.unwrap());
    assert_eq!(floor.begun(), 0);
}
