//! Many duplicates at once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Router, routing::post};
use http::StatusCode;
use lock_core::LockManager;
use lock_tower::idempotency::MemoryAnswers;
use tokio::task::JoinSet;

use super::{Bank, Told, ask, layer, request};
use crate::support::{limit, soon, until, until_waited_for};

/// Sends duplicates to two instances in turn.
fn send(instances: &[Router; 2], count: usize) -> JoinSet<Told> {
    let mut answers = JoinSet::new();
    for service in instances.iter().cycle().take(count) {
        let service = service.clone();
        answers.spawn(async move { ask(&service, request("a", "1", "42")).await });
    }
    answers
}

/// Two instances with a manager each, over one store of locks.
async fn managers(store: &str) -> [LockManager; 2] {
    let connect = async || LockManager::connect(format!("memory://{store}")).await.unwrap();
    [connect().await, connect().await]
}

#[tokio::test]
async fn attack_14_four_thousand_duplicates_at_two_instances_are_given_one_answer() {
    let _limit = limit();
    let (managers, answers, bank) = (managers("storm").await, MemoryAnswers::new(), Bank::closed());
    let instances = managers.map(|manager| bank.routes().route_layer(layer(&manager, &answers)));
    let mut told = send(&instances, 4_000);
    until("a handler runs", || bank.charges() == 1).await;
    bank.open_doors();
    let (mut first, mut replayed) = (0, 0);
    while let Some(told) = soon(told.join_next()).await {
        let told = told.unwrap();
        told.is(201, "charge 1");
        if told.is_replayed() { replayed += 1 } else { first += 1 }
    }
    assert_eq!((bank.charges(), first, replayed), (1, 1, 3_999));
}

#[tokio::test]
async fn attack_14_duplicates_above_the_limit_are_refused() {
    let _limit = limit();
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &answers).lock(|lock| lock.max_waiters_per_key(3)));
    let instances = [service.clone(), service.clone()];
    let mut first = send(&instances, 1);
    until("a handler runs", || bank.charges() == 1).await;
    let mut waiting = send(&instances, 3);
    until_waited_for(&manager, "payments:a:1").await;
    let refused = loop {
        // Those that wait have come one after the other.
        let told = ask(&service, request("a", "1", "42"));
        if let Ok(told) = tokio::time::timeout(Duration::from_millis(50), told).await {
            break told;
        }
    };
    refused.is_refused(429, "lock_overloaded");
    bank.open_doors();
    soon(first.join_next()).await.unwrap().unwrap().is(201, "charge 1");
    while let Some(told) = soon(waiting.join_next()).await {
        told.unwrap().is(201, "charge 1");
    }
}

#[tokio::test]
async fn duplicates_of_a_request_that_fails_run_one_after_another_until_one_succeeds() {
    let _limit = limit();
    let (managers, answers) = (managers("fails").await, MemoryAnswers::new());
    let (runs, inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let runs = Arc::clone(&runs);
        move || async move {
            assert_eq!(inside.fetch_add(1, SeqCst), 0, "two at once");
            tokio::task::yield_now().await;
            inside.fetch_sub(1, SeqCst);
            match runs.fetch_add(1, SeqCst) {
                0..3 => (StatusCode::INTERNAL_SERVER_ERROR, "failed".to_owned()),
                run => (StatusCode::CREATED, format!("run {run}")),
            }
        }
    };
    let routes = Router::new().route("/pay", post(handler));
    let instances = managers.map(|manager| routes.clone().route_layer(layer(&manager, &answers)));
    let mut told = send(&instances, 200);
    let (mut failed, mut replayed) = (0, 0);
    while let Some(told) = soon(told.join_next()).await {
        let told = told.unwrap();
        match told.status {
            500 => failed += 1,
            _ => told.is(201, "run 3"),
        }
        replayed += usize::from(told.is_replayed());
    }
    assert_eq!((runs.load(SeqCst), failed, replayed), (4, 3, 196));
}
