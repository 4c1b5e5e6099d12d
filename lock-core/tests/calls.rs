//! How many calls are in flight, and how requests share them: counted, on one thread, where the order of tasks is known.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use lock_core::{
    LockGuard, LockManager,
    backend::{Backend, QuorumBackend},
};
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::support::{self, Fate, Faulty, ms, secs};

async fn acquire(manager: LockManager, key: String) -> LockGuard {
    manager.lock(key).ttl(secs(600)).wait(secs(600)).await.unwrap()
}

/// Makes a request in a task, and then wakes another task. So the engine's task is woken before the other one.
pub(crate) fn ask_before<A, B>(
    first: impl Future<Output = A> + Send + 'static,
    other: impl Future<Output = B> + Send + 'static,
) -> (JoinHandle<A>, JoinHandle<B>)
where
    A: Send + 'static,
    B: Send + 'static,
{
    let is_asked = Arc::new(Notify::new());
    let asks = Arc::clone(&is_asked);
    let other = tokio::spawn(async move {
        asks.notified().await;
        other.await
    });
    let first = tokio::spawn(async move {
        let mut first = pin!(first);
        poll_fn(|cx| {
            assert!(first.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        is_asked.notify_one();
        first.await
    });
    (first, other)
}

fn two_requests(manager: &LockManager, key: &str) -> [JoinHandle<LockGuard>; 2] {
    let request = |number| acquire(manager.clone(), format!("{key}:{number}"));
    ask_before(request(1), request(2)).into()
}

/// How many operations the calls had, after the first `before` ones.
fn sizes(backend: &Faulty, before: usize) -> Vec<usize> {
    backend.log().iter().skip(before).map(Vec::len).collect()
}

#[tokio::test(start_paused = true)]
async fn as_many_calls_are_in_flight_as_the_backend_allows_at_the_time() {
    let (manager, backend) = support::counted();
    backend.always(Fate::HoldReply);
    let mut requests = JoinSet::new();
    for (allowed, in_flight) in [(2, 2), (8, 8), (3, 8), (64, 64)] {
        backend.allow(allowed);
        // Until the next step of the engine, which asks for the number.
        sleep(ms(300)).await;
        for number in 0..64 {
            requests.spawn(acquire(manager.clone(), format!("{allowed}:{number}")));
            sleep(ms(1)).await;
        }
        assert_eq!(backend.calls(), in_flight, "{allowed} are allowed");
    }
}

#[tokio::test(start_paused = true)]
async fn the_tasks_that_an_answer_wakes_share_a_call_with_the_requests_that_have_waited() {
    let (manager, backend) = support::counted();
    backend.allow(1);
    backend.next([Fate::HoldReply]);
    let mut tasks = JoinSet::new();
    for number in 0..8 {
        let manager = manager.clone();
        tasks.spawn(async move {
            let first = acquire(manager.clone(), format!("first:{number}")).await;
            [first, acquire(manager, format!("second:{number}")).await]
        });
    }
    sleep(ms(1)).await;
    let mut waiting = JoinSet::new();
    (0..8).for_each(|number| drop(waiting.spawn(acquire(manager.clone(), format!("waiting:{number}")))));
    sleep(ms(1)).await;
    backend.let_go();
    let guards = (tasks.join_all().await, waiting.join_all().await);
    assert_eq!(sizes(&backend, 0), [8, 16]);
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn all_answers_that_have_come_are_handled_before_the_tasks_that_they_wake_run() {
    let (manager, backend) = support::counted();
    backend.allow(64);
    backend.always(Fate::HoldReply);
    let mut tasks = JoinSet::new();
    for number in 0..16 {
        let manager = manager.clone();
        tasks.spawn(async move {
            let first = acquire(manager.clone(), format!("first:{number}")).await;
            [first, acquire(manager, format!("second:{number}")).await]
        });
        if number % 2 == 1 {
            sleep(ms(1)).await;
        }
    }
    backend.always(Fate::Answer);
    backend.let_go();
    let guards = tasks.join_all().await;
    assert_eq!(sizes(&backend, 0), [2, 2, 2, 2, 2, 2, 2, 2, 16]);
    drop(guards);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_alone_leaves_at_once_and_one_beside_a_call_in_flight_with_others() {
    let (manager, backend) = support::counted();
    backend.allow(64);
    let _held = acquire(manager.clone(), "held".into()).await;
    let alone = two_requests(&manager, "alone");
    sleep(ms(1)).await;
    assert_eq!(sizes(&backend, 1), [1, 1]);
    backend.next([Fate::HoldReply]);
    let in_flight = tokio::spawn(acquire(manager.clone(), "in flight".into()));
    sleep(ms(1)).await;
    let beside = two_requests(&manager, "beside");
    sleep(ms(1)).await;
    assert_eq!(sizes(&backend, 3), [1, 2]);
    backend.let_go();
    for request in alone.into_iter().chain([in_flight]).chain(beside) {
        request.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_leave_while_as_many_calls_of_requests_are_in_flight_as_may_be() {
    let (manager, backend) = support::counted();
    backend.allow(64);
    let held = manager.lock("held").ttl(secs(3)).await.unwrap();
    backend.always(Fate::Hold);
    let mut requests = JoinSet::new();
    for number in 0..64 {
        requests.spawn(acquire(manager.clone(), format!("{number}")));
        sleep(ms(1)).await;
    }
    assert_eq!(backend.calls(), 1 + 64);
    backend.always(Fate::Answer);
    sleep(secs(10)).await;
    let renewals = backend.log().iter().filter(|call| call.contains(&"renew")).count();
    assert!(held.is_held() && renewals >= 9, "{renewals} renewals");
}

#[test]
fn a_quorum_has_as_many_calls_in_flight_as_a_majority_of_its_nodes_allows() {
    let calls_at_once = |nodes: &[usize]| {
        let nodes = nodes.iter().map(|calls| {
            let node = Faulty::new();
            node.allow(*calls);
            Arc::new(node) as Arc<dyn Backend>
        });
        QuorumBackend::new(nodes).unwrap().calls_at_once()
    };
    assert_eq!(calls_at_once(&[2, 64, 2]), 2, "one that is far away is not waited for");
    assert_eq!(calls_at_once(&[64, 2, 12]), 12);
    assert_eq!(calls_at_once(&[2, 2, 12, 12, 64]), 12);
    assert_eq!(calls_at_once(&[5]), 5);
}
