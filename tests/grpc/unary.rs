//! Calls with one message each way.

use std::time::Duration;

use lock_core::{LeaseOptions, LockManager};
use lock_tower::key::{header, scoped};
use tokio::task::JoinSet;
use tonic::{Code, Request};

use crate::grpc::{
    layer,
    proto::{End, Order},
    service::{Floor, client, with_key},
    soon, until,
};

#[tokio::test]
async fn bad_input_79_a_method_finds_key_fence_and_deadline_of_its_lease() {
    let manager = LockManager::in_memory();
    let mut client =
        client(layer(&manager).options(LeaseOptions::new().ttl(Duration::from_secs(60))), &Floor::default()).await;
    let first = soon(client.ask(with_key("a", Order::default()))).await.unwrap().into_inner();
    let second = soon(client.ask(with_key("a", Order::default()))).await.unwrap().into_inner();
    assert_eq!((&*first.key, &*second.key), ("a", "a"));
    assert!(0 < first.fencing_token && first.fencing_token < second.fencing_token);
    assert!((1..=60_000).contains(&first.remaining_ms), "{}", first.remaining_ms);
}

#[tokio::test]
async fn a_call_without_a_lock_finds_no_lease() {
    let layer = lock_tower::LockLayer::grpc(LockManager::in_memory(), scoped("a", header::<String>("key").optional()));
    let mut client = client(layer, &Floor::default()).await;
    let reply = soon(client.ask(Request::new(Order::default()))).await.unwrap().into_inner();
    assert_eq!((reply.number, &*reply.key, reply.fencing_token), (1, "", 0));
}

#[tokio::test]
async fn calls_of_one_key_are_served_one_at_a_time() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let client = client(layer(&manager).options(LeaseOptions::new().wait(Duration::from_secs(60))), &floor).await;
    let mut calls = JoinSet::new();
    for _ in 0..50 {
        let mut client = client.clone();
        calls.spawn(
            async move { client.ask(with_key("a", Order::default())).await.unwrap().into_inner().fencing_token },
        );
    }
    let mut fences = soon(calls.join_all()).await;
    fences.sort_unstable();
    fences.dedup();
    assert_eq!((fences.len(), floor.begun(), floor.most()), (50, 50, 1));
}

#[tokio::test]
async fn a_call_does_not_wait_for_another_key() {
    let (manager, floor) = (LockManager::in_memory(), Floor::default());
    let mut client = client(layer(&manager), &floor).await;
    let hang = Order { end: End::Hang.into(), ..Order::default() };
    let mut other = client.clone();
    let hanging = tokio::spawn(async move { other.ask(with_key("a", hang)).await });
    until("the method works", || floor.inside() == 1).await;
    assert_eq!(soon(client.ask(with_key("b", Order::default()))).await.unwrap().into_inner().key, "b");
    assert_eq!(floor.most(), 2);
    hanging.abort();
}

#[tokio::test]
async fn the_key_is_free_when_the_answer_is_there() {
    let manager = LockManager::in_memory();
    let mut client = client(layer(&manager), &Floor::default()).await;
    soon(client.ask(with_key("a", Order::default()))).await.unwrap();
    assert!(!manager.is_locked("a").await.unwrap());
    let fail = Order { end: End::Fail.into(), ..Order::default() };
    let status = soon(client.ask(with_key("a", fail))).await.unwrap_err();
    assert!(!manager.is_locked("a").await.unwrap());
    let page = status.metadata().get("page").map(|page| page.to_str().unwrap());
    assert_eq!((status.code(), status.message(), page), (Code::DataLoss, "a page is missing", Some("3")));
}
