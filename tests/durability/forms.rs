//! All ways to ask for it, and what it costs those who do not ask.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use http::{Request, Response, StatusCode, header::RETRY_AFTER};
use lock_core::{Error, ErrorKind, LeaseOptions, LockManager, distributed_lock};
use lock_tests::{LONG, SOON, eventually, eventually_some, ms};
use lock_tower::{LockLayer, OnBackendError};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    durability::group::{Group, one},
    patient,
};

#[tokio::test]
async fn several_keys_are_waited_for_together() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let waits = group.waits().await;
    let keys: Vec<_> = (0..300).map(|number| format!("k{number:03}")).collect();
    // One key after the other, each of which takes a round trip: on a busy machine longer than the default wait.
    let all = manager.lock_all(&keys).ttl(LONG).wait(LONG).durability(one(SOON)).await.expect("the replica confirms");
    for key in &keys {
        assert_eq!(group.replicas[0].value(key).await, group.value(key).await);
    }
    all.release().await.expect("all are held");
    // Once, and again for each second that the replica needs on a busy machine; not for each key.
    let waits = group.waits().await - waits;
    assert!((1..100).contains(&waits), "{waits}");

    group.replicas[0].server.pause();
    let error = manager.lock_all(["a", "b"]).ttl(LONG).durability(one(ms(100))).await.expect_err("no replica");
    assert_eq!((error.kind(), error.key()), (ErrorKind::NotReplicated, Some("a")));
    assert_eq!(group.primary.left().await, Vec::<String>::new(), "none or all");
}

#[tokio::test]
async fn try_and_run_and_a_lease_that_is_taken_up_are_waited_for_too() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let within = |timeout| manager.lock("k").ttl(LONG).durability(one(timeout));
    let replicated = || within(SOON);
    let held = replicated().try_acquire().await.expect("it answers").expect("it is free");
    assert!(replicated().try_acquire().await.expect("a busy key is not waited for").is_none());
    held.release().await.expect("it is held");
    let ran = replicated().run(async |_| group.replicas[0].value("k").await).await.expect("the replica confirms");
    assert!(ran.is_some(), "the replica had it while the work ran");
    assert!(replicated().try_run(async |_| ()).await.expect("the replica confirms").is_some());

    let handover = replicated().await.expect("the replica confirms").hand_over().expect("it is held");
    let taken = manager.take_up(handover).durability(one(SOON)).await.expect("the replica confirms");
    assert_eq!(group.replicas[0].value("k").await, group.value("k").await);
    let handover = taken.hand_over().expect("it is held");

    group.replicas[0].server.pause();
    let error = manager.take_up(handover).durability(one(ms(1_000))).await.expect_err("no replica");
    assert_eq!(error.kind(), ErrorKind::NotReplicated);
    let mut begun = false;
    let error = within(ms(1_000)).run(async |_| begun = true).await.expect_err("no replica");
    assert_eq!((error.kind(), begun), (ErrorKind::NotReplicated, false), "the work did not begin");
    assert_eq!(within(ms(1_000)).try_acquire().await.expect_err("no replica").kind(), ErrorKind::NotReplicated);
    assert_eq!(group.primary.left().await, Vec::<String>::new());
}

#[tokio::test]
async fn default_of_a_manager_counts_unless_the_request_says_otherwise() {
    let group = Group::start(1).await;
    let by_default = async |timeout| {
        let defaults = LeaseOptions::new().ttl(LONG).durability(one(timeout));
        patient::builder().url(group.primary.url()).defaults(defaults).connect().await.expect("connects")
    };
    let manager = by_default(SOON).await;
    manager.lock("k").await.expect("the replica confirms").release().await.expect("it is held");
    let manager = by_default(ms(1_000)).await;
    group.replicas[0].server.pause();
    assert_eq!(manager.lock("k").await.expect_err("no replica").kind(), ErrorKind::NotReplicated);
    let held = manager.lock("k").durability(None).await.expect("the primary alone");
    held.release().await.expect("it is held");
}

#[tokio::test]
async fn leases_that_follow_in_the_process_on_one_that_replicas_have_are_not_waited_for() {
    const HOLDERS: u64 = 50;
    let group = Group::start(1).await;
    let manager = group.manager().await;
    // On a busy machine few may follow before the process gives the key up to others, but not each time.
    for round in 0.. {
        let held = manager.lock("k").ttl(LONG).wait(LONG).await.expect("it is free");
        let holders = (0..HOLDERS).map(|_| {
            let request = manager.lock("k").ttl(LONG).wait(LONG).durability(one(SOON)).acquire();
            tokio::spawn(async move {
                request.await.expect("the replica confirms").release().await.expect("it is held");
            })
        });
        let holders: Vec<_> = holders.collect();
        let waits = group.waits().await;
        held.release().await.expect("it is held");
        for holder in holders {
            holder.await.expect("no panic");
        }
        let waits = group.waits().await - waits;
        println!("{waits} WAITs for {HOLDERS} holders");
        if (1..HOLDERS / 2).contains(&waits) {
            break;
        }
        assert!(round < 20, "{waits}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_is_granted_to_a_waiter_is_waited_for_too() {
    let group = Group::start(1).await;
    let (one_manager, another) = (group.manager().await, group.manager().await);
    let waited = async |has_replica: bool| {
        let before = one_manager.lock("k").ttl(LONG).wait(LONG).await.expect("it is free");
        let timeout = if has_replica { SOON } else { ms(1_000) };
        let waiter = tokio::spawn(another.lock("k").ttl(LONG).wait(LONG).durability(one(timeout)).acquire());
        let places = async || group.primary.call(&["EXISTS", "{0}lock-core:queue:k"]).await.integer();
        eventually(SOON, "it has a place", async || places().await == Some(1)).await;
        if !has_replica {
            group.replicas[0].server.pause();
        }
        before.release().await.expect("it is held");
        let granted = waiter.await.expect("no panic");
        // It has what the grant left, a second at most, and a busy machine may need that to renew it.
        let is_lost = granted.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::Lost(_)));
        (!is_lost).then_some(granted)
    };
    for has_replica in [true, false] {
        let granted = eventually_some(LONG, "the lease is not lost", async || waited(has_replica).await).await;
        if has_replica {
            let held = granted.expect("the replica confirms");
            assert_eq!(group.replicas[0].value("k").await, group.value("k").await);
            held.release().await.expect("it is held");
        } else {
            assert_eq!(granted.expect_err("no replica").kind(), ErrorKind::NotReplicated);
            assert_eq!(group.value("k").await, None);
        }
    }
}

#[tokio::test]
async fn nothing_is_sent_and_no_connection_made_for_those_who_do_not_ask() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let waits = group.waits().await;
    manager.lock("k").await.expect("it is free").release().await.expect("it is held");
    eventually(SOON, "there is one connection", async || group.clients().await == 1).await;
    assert_eq!(group.waits().await, waits);
    for _ in 0..3 {
        let held = manager.lock("k").ttl(LONG).durability(one(SOON)).await.expect("the replica confirms");
        held.release().await.expect("it is held");
    }
    let named = async || {
        let clients = group.primary.client_list().await;
        clients.iter().filter(|client| client.name() == "lock-core").count()
    };
    eventually(SOON, "there is a second connection", async || named().await == 2).await;
    assert!(group.waits().await >= waits + 3, "each is waited for");
    manager.shutdown(SOON).await;
    eventually(SOON, "both are closed", async || group.clients().await == 0).await;
}

#[tokio::test]
async fn fencing_tokens_rise_from_holder_to_holder_that_replicas_have() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    let mut last = None;
    for _ in 0..20 {
        let held = manager.lock("k").ttl(LONG).durability(one(SOON)).await.expect("the replica confirms");
        let fence = Some(held.fencing_token());
        assert!(last < fence, "{last:?}, {fence:?}");
        last = fence;
        held.release().await.expect("it is held");
    }
}

#[distributed_lock(key = "k", ttl = "10m", replicas = 1, replicas_timeout = "60s")]
async fn waited_for() -> Result<bool, Error> {
    Ok(true)
}

#[distributed_lock(key = "k", replicas = 1, replicas_timeout = "1s")]
async fn waited_for_in_vain() -> Result<(), Error> {
    Ok(())
}

#[distributed_lock(keys = ["k", "l"], ttl = "10m", replicas = count, replicas_timeout = timeout)]
async fn configured(count: u32, timeout: Duration) -> Result<u32, Error> {
    Ok(count)
}

#[distributed_lock(key = "k", ttl = "1900ms", replicas = 1)]
async fn half_of_the_ttl() -> Result<(), Error> {
    Ok(())
}

#[tokio::test]
async fn attribute_waits_for_replicas_and_does_not_run_the_body_without_them() {
    let group = Group::start(1).await;
    let manager = group.manager().await;
    assert!(manager.scope(waited_for()).await.expect("the replica confirms"));
    assert_eq!(manager.scope(configured(1, SOON)).await.expect("the replica confirms"), 1);
    let error = manager.scope(configured(0, ms(1_000))).await.expect_err("none are asked for");
    assert!(error.to_string().contains("zero replicas"), "{error}");
    group.replicas[0].server.pause();
    let error = manager.scope(waited_for_in_vain()).await.expect_err("no replica");
    assert!(error.kind() == ErrorKind::NotReplicated && error.to_string().contains("1s"), "{error}");
    let error = manager.scope(configured(1, ms(100))).await.expect_err("no replica");
    assert!(error.kind() == ErrorKind::NotReplicated && error.to_string().contains("100ms"), "{error}");
    // On a busy machine so short a lease may be lost first.
    eventually(SOON, "half of the ttl is waited for", async || {
        manager.scope(half_of_the_ttl()).await.expect_err("no replica").to_string().contains("950ms")
    })
    .await;
    eventually(SOON, "nothing is left", async || group.primary.left().await.is_empty()).await;
}

#[tokio::test]
async fn layer_answers_503_and_calls_no_service_without_replicas() {
    let group = Group::start(1).await;
    let within = |timeout| LeaseOptions::new().ttl(LONG).durability(one(timeout));
    let layer = LockLayer::http(group.manager().await, "k").options(within(SOON));
    // It is no answer that the backend owes, so nothing is let through.
    let layer = layer.on_backend_error(OnBackendError::LetThrough);
    let ask = async |layer: &LockLayer<_, _>| {
        let service =
            layer.layer(service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty()))));
        service.oneshot(Request::post("/").body(Body::empty()).expect("a request")).await.expect("an answer")
    };
    assert_eq!(ask(&layer).await.status(), StatusCode::OK);
    group.replicas[0].server.pause();
    let layer = layer.options(within(ms(1_000)));
    let refused = ask(&layer).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers().get(RETRY_AFTER).map(|value| value.as_bytes()), Some(&b"1"[..]));
    let error = refused.extensions().get::<Error>().map(Error::kind);
    assert_eq!((error, layer.let_through()), (Some(ErrorKind::NotReplicated), 0));
    let of_one = layer.clone().options(LeaseOptions::new().durability(None));
    assert_eq!(ask(&of_one).await.status(), StatusCode::OK);

    let in_memory =
        LockLayer::http(LockManager::in_memory(), "k").options(LeaseOptions::new().durability(one(ms(1_000))));
    in_memory.check_for::<Request<Body>>().expect("a store in memory ignores it");
    let quorum = LockManager::builder().quorum(["memory://"; 3]).build().expect("three stores");
    let quorum = LockLayer::http(quorum, "k").options(LeaseOptions::new().durability(one(ms(1_000))));
    let error = quorum.check_for::<Request<Body>>().expect_err("it has a majority instead");
    assert!(error.to_string().contains("leave `durability` out"), "{error}");
}
