//! Calls that stream: for how long they hold their lease, and what becomes of their trailers.

use std::time::Duration;

use lock_core::{LeaseOptions, LockManager};
use lock_tests::{SOON, eventually};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request};

use crate::grpc::{
    layer,
    proto::{End, Order},
    service::{Floor, client, with_key},
    soon, until, until_free,
};

/// A request of orders that are still to come.
pub(crate) fn orders(key: &str) -> (mpsc::Sender<Order>, Request<ReceiverStream<Order>>) {
    let (sender, orders) = mpsc::channel(1);
    (sender, with_key(key, ReceiverStream::new(orders)))
}

#[tokio::test]
async fn a_download_holds_its_key_until_the_last_message_if_asked_to() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let order = Order { replies: 3, ..Order::default() };
    let mut replies = soon(client.download(with_key("a", order))).await.unwrap().into_inner();
    let first = soon(replies.message()).await.unwrap().unwrap();
    assert_eq!((&*first.key, first.number), ("a", 1));
    assert_eq!(soon(replies.message()).await.unwrap().unwrap().number, 2);
    assert_eq!(soon(replies.message()).await.unwrap().unwrap().number, 3);
    assert!(soon(replies.message()).await.unwrap().is_none());
    assert!(!manager.is_locked("a").await.unwrap(), "released before the trailers went out");
    assert!(soon(replies.trailers()).await.unwrap().is_some(), "the end came in trailers");
    assert_eq!(floor.inside(), 0);
}

#[tokio::test]
async fn a_download_that_is_under_way_keeps_others_out() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end().try_only(), &floor).await;
    let hang = Order { replies: 1, end: End::Hang.into() };
    let mut replies = soon(client.download(with_key("a", hang))).await.unwrap().into_inner();
    soon(replies.message()).await.unwrap().unwrap();
    assert_eq!(soon(client.ask(with_key("a", Order::default()))).await.unwrap_err().code(), Code::Aborted);
    assert_eq!(floor.begun(), 1);
}

#[tokio::test]
async fn bad_input_76_a_failed_download_keeps_code_message_and_metadata_of_its_trailers() {
    let manager = LockManager::in_memory();
    let order = Order { replies: 2, end: End::Fail.into() };
    let mut held = client(layer(&manager).until_body_end(), &Floor::default()).await;
    let mut not_held = client(layer(&manager), &Floor::default()).await;
    for client in [&mut held, &mut not_held] {
        let mut replies = soon(client.download(with_key("a", order))).await.unwrap().into_inner();
        soon(replies.message()).await.unwrap().unwrap();
        soon(replies.message()).await.unwrap().unwrap();
        let status = soon(replies.message()).await.unwrap_err();
        let page = status.metadata().get("page").map(|page| page.to_str().unwrap());
        assert_eq!((status.code(), status.message(), page), (Code::DataLoss, "a page is missing", Some("3")));
        assert!(!manager.is_locked("a").await.unwrap());
    }
}

#[tokio::test]
async fn a_download_that_fails_before_its_first_message_releases() {
    let manager = LockManager::in_memory();
    let mut client = client(layer(&manager).until_body_end(), &Floor::default()).await;
    let fail = Order { end: End::Fail.into(), ..Order::default() };
    let status = match soon(client.download(with_key("a", fail))).await {
        Ok(replies) => soon(replies.into_inner().message()).await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(status.code(), Code::DataLoss);
    assert!(!manager.is_locked("a").await.unwrap());
}

#[tokio::test]
async fn a_download_streams_on_without_its_key_unless_asked_to_hold_it() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let hang = Order { replies: 1, end: End::Hang.into() };
    let mut replies = soon(client.download(with_key("a", hang))).await.unwrap().into_inner();
    assert!(!manager.is_locked("a").await.unwrap(), "the method has returned");
    assert_eq!(soon(replies.message()).await.unwrap().unwrap().key, "a");
    assert_eq!(floor.inside(), 1, "and its stream goes on");
}

#[tokio::test]
async fn bad_input_72_an_upload_is_locked_before_its_first_message_and_until_its_answer() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let (sender, orders) = orders("a");
    let upload = tokio::spawn(async move { client.upload(orders).await });
    until("the method works", || floor.inside() == 1).await;
    assert!(manager.is_locked("a").await.unwrap());
    for number in 1..=3 {
        sender.send(Order::default()).await.unwrap();
        until("the order has arrived", || floor.orders() == number).await;
        assert!(manager.is_locked("a").await.unwrap());
    }
    drop(sender);
    let reply = soon(upload).await.unwrap().unwrap().into_inner();
    assert_eq!((&*reply.key, reply.number), ("a", 3));
    assert!(!manager.is_locked("a").await.unwrap());
}

#[tokio::test]
async fn bad_input_72_an_upload_that_takes_longer_than_the_ttl_is_renewed() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).options(LeaseOptions::new().ttl(Duration::from_secs(9))), &floor).await;
    let (sender, orders) = orders("a");
    let upload = tokio::spawn(async move { client.upload(orders).await });
    until("the method works", || floor.inside() == 1).await;
    let mut before = Duration::MAX;
    eventually(SOON, "the deadline has moved out", async || {
        let remaining = manager.inspect("a").await.unwrap().remaining().unwrap();
        std::mem::replace(&mut before, remaining) < remaining
    })
    .await;
    drop(sender);
    soon(upload).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_talk_holds_its_key_until_both_sides_have_ended_if_asked_to() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;
    let (sender, orders) = orders("a");
    let mut replies = soon(client.talk(orders)).await.unwrap().into_inner();
    for number in 1..=3 {
        sender.send(Order::default()).await.unwrap();
        let reply = soon(replies.message()).await.unwrap().unwrap();
        assert_eq!((&*reply.key, reply.number), ("a", number));
        assert!(manager.is_locked("a").await.unwrap());
    }
    drop(sender);
    assert!(soon(replies.message()).await.unwrap().is_none());
    assert!(!manager.is_locked("a").await.unwrap());
    assert!(soon(replies.trailers()).await.unwrap().is_some());
}

#[tokio::test]
async fn a_talk_is_without_its_key_once_it_has_begun_unless_asked_to_hold_it() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let (sender, orders) = orders("a");
    let mut replies = soon(client.talk(orders)).await.unwrap().into_inner();
    assert!(!manager.is_locked("a").await.unwrap());
    sender.send(Order::default()).await.unwrap();
    assert_eq!(soon(replies.message()).await.unwrap().unwrap().key, "a");
}

#[tokio::test]
async fn bad_input_75_whatever_streams_ends_with_unknown_when_its_lease_is_lost() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager).until_body_end(), &floor).await;

    let hang = Order { replies: 1, end: End::Hang.into() };
    let mut download = soon(client.download(with_key("download", hang))).await.unwrap().into_inner();
    soon(download.message()).await.unwrap().unwrap();
    let (_talker, orders_of_talk) = orders("talk");
    let mut talk = soon(client.talk(orders_of_talk)).await.unwrap().into_inner();
    let (_uploader, orders_of_upload) = orders("upload");
    let upload = tokio::spawn(async move { client.upload(orders_of_upload).await });
    until("all three work", || floor.inside() == 3).await;

    for key in ["download", "talk", "upload"] {
        assert!(manager.force_release(key).await.unwrap());
    }
    for status in [
        soon(download.message()).await.unwrap_err(),
        soon(talk.message()).await.unwrap_err(),
        soon(upload).await.unwrap().unwrap_err(),
    ] {
        assert_eq!(status.code(), Code::Unknown, "{status}");
        assert!(status.message().starts_with("the lock was lost"), "{status}");
    }
    until("their work was dropped", || floor.inside() == 0).await;
    until_free(&manager, "upload").await;
}
