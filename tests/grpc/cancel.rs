//! Clients that go before they have their answer, and connections that break.

use lock_core::LockManager;
use lock_tests::{FaultProxy, SOON, eventually};
use tonic::{Code, transport::Channel};

use crate::grpc::{
    layer,
    proto::{End, Order, calls_client::CallsClient},
    service::{Floor, channel, client, serve, with_key},
    soon,
    streams::orders,
    until, until_free,
};

const HANG: Order = Order { replies: 1, end: End::Hang as i32 };

#[tokio::test]
async fn bad_input_73_a_client_that_goes_while_it_waits_gives_up_its_place() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let client = client(layer(&manager).max_waiters(1), &floor).await;
    let guard = manager.lock("a").await.unwrap();
    let mut other = client.clone();
    let waiting = tokio::spawn(async move {
        // Until it does not meet those that look for a place below.
        while other
            .ask(with_key("a", Order::default()))
            .await
            .is_err_and(|status| status.code() == Code::ResourceExhausted)
        {}
    });
    let mut let_in = 0;
    eventually(SOON, "the only place is taken", async || !finds_a_place(&client, &mut let_in).await).await;
    waiting.abort();
    eventually(SOON, "the place is free", async || finds_a_place(&client, &mut let_in).await).await;
    guard.release().await.unwrap();
    until_free(&manager, "a").await;
    assert_eq!(floor.begun(), let_in, "the call that was given up never got to the method");
}

/// Asks with another key, which is free.
async fn finds_a_place(client: &CallsClient<Channel>, let_in: &mut usize) -> bool {
    match soon(client.clone().ask(with_key("b", Order::default()))).await {
        Ok(_) => *let_in += 1,
        Err(status) if status.code() == Code::ResourceExhausted => return false,
        Err(status) => panic!("{status}"),
    }
    true
}

#[tokio::test]
async fn bad_input_73_a_client_that_goes_while_a_method_works_stops_it() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let call = tokio::spawn(async move { client.ask(with_key("a", HANG)).await });
    until("the method works", || floor.inside() == 1).await;
    assert!(manager.is_locked("a").await.unwrap());
    call.abort();
    until("the method was dropped", || floor.inside() == 0).await;
    until_free(&manager, "a").await;
}

#[tokio::test]
async fn a_client_that_goes_while_it_downloads_frees_the_key() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let before_a_message = soon(client.download(with_key("a", HANG))).await.unwrap();
    assert!(manager.is_locked("a").await.unwrap());
    drop(before_a_message);
    until_free(&manager, "a").await;
    let mut replies = soon(client.download(with_key("b", HANG))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    assert!(manager.is_locked("b").await.unwrap());
    drop(replies);
    until_free(&manager, "b").await;
    until("the streams were dropped", || floor.inside() == 0).await;
}

#[tokio::test]
async fn a_client_that_goes_while_it_uploads_frees_the_key() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let (sender, orders) = orders("a");
    let call = tokio::spawn(async move { client.upload(orders).await });
    sender.send(Order::default()).await.unwrap();
    until("the first order has arrived", || floor.orders() == 1).await;
    assert!(manager.is_locked("a").await.unwrap());
    call.abort();
    until("the method was dropped", || floor.inside() == 0).await;
    until_free(&manager, "a").await;
}

#[tokio::test]
async fn a_client_that_goes_while_it_talks_frees_the_key() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let (sender, orders) = orders("a");
    let mut replies = soon(client.talk(orders)).await.unwrap().into_inner();
    sender.send(Order::default()).await.unwrap();
    soon(replies.message()).await.unwrap().unwrap();
    assert!(manager.is_locked("a").await.unwrap());
    // Both: to HTTP/2 a client that can still send has not gone.
    drop((replies, sender));
    until("the stream was dropped", || floor.inside() == 0).await;
    until_free(&manager, "a").await;
}

#[tokio::test]
async fn a_client_that_goes_when_it_has_its_answer_leaves_nothing() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let reply = soon(client.ask(with_key("a", Order::default()))).await.unwrap();
    drop((reply, client));
    until_free(&manager, "a").await;
    assert_eq!(floor.inside(), 0);
}

#[tokio::test]
async fn a_detached_method_goes_on_when_its_client_goes_and_keeps_its_key() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).detached(), &floor).await;
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.ask(with_key("a", HANG)).await });
    until("the method works", || floor.inside() == 1).await;
    call.abort();
    // The same connection carries both, so the server hears of the one before the other.
    soon(client.ask(with_key("b", Order::default()))).await.unwrap();
    assert!(manager.is_locked("a").await.unwrap());
    assert_eq!(floor.inside(), 1);
}

#[tokio::test]
async fn a_connection_that_breaks_frees_the_keys_of_all_calls_on_it() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let address = serve(layer(&manager).until_body_end(), &floor).await;
    let proxy = FaultProxy::start(address.to_string()).await;
    let mut client = CallsClient::new(channel(proxy.address()).await);
    let mut other = client.clone();
    let call = tokio::spawn(async move { other.ask(with_key("ask", HANG)).await });
    let mut replies = soon(client.download(with_key("download", HANG))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    let (_sender, orders) = orders("talk");
    let _talk = soon(client.talk(orders)).await.unwrap();
    until("all three work", || floor.inside() == 3).await;
    proxy.cut();
    until("their work was dropped", || floor.inside() == 0).await;
    for key in ["ask", "download", "talk"] {
        until_free(&manager, key).await;
    }
    soon(call).await.unwrap().unwrap_err();
    soon(replies.message()).await.unwrap_err();
}
