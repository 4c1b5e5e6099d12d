//! Code of the application that panics inside the layer: the panic is the caller's, and no other lease notices.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Request, Response};
use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Floor, limit, poll_once, until, until_free, works_forever};

#[tokio::test(start_paused = true)]
async fn key_extractor_answer_and_service_that_panic_end_no_lease() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let held = manager.lock("held").ttl(Duration::from_secs(1)).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let key = move |request: &Request<String>| {
        counted.fetch_add(1, SeqCst);
        assert!(request.body() != "key", "a bug of the extractor's");
        "key"
    };
    let layer = LockLayer::http(manager.clone(), key)
        .all_methods()
        .try_only()
        .answer(|_, _| -> Response<bytes::Bytes> { panic!("a bug of the answer's") });
    let service = layer.layer(service_fn(async |request: Request<String>| {
        assert!(request.body() != "service", "a bug of the service's");
        Ok::<_, BoxError>(Response::new(String::new()))
    }));
    let call = |body: &str| tokio::spawn(service.clone().oneshot(Request::new(body.to_owned())));
    for body in ["key", "service", "key"] {
        assert!(call(body).await.unwrap_err().is_panic(), "{body}");
        until_free(&manager, "key").await;
    }
    let busy = manager.lock("key").await.unwrap();
    assert!(call("answer").await.unwrap_err().is_panic());
    busy.release().await.unwrap();
    assert!(call("works").await.unwrap().is_ok());
    sleep(Duration::from_secs(3)).await;
    assert!(held.is_held() && calls.load(SeqCst) == 5);
}

#[test]
fn detached_work_may_be_polled_again_after_its_runtime_has_ended() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let floor = Floor::default();
    let service = LockLayer::new(LockManager::in_memory(), "key").detached().layer(works_forever(&floor));
    let mut response = Box::pin(service.oneshot(7));
    runtime.block_on(async {
        assert!(poll_once(&mut response).is_pending());
        until("the work has begun", || {
            let _ = poll_once(&mut response);
            floor.begun() == 1
        })
        .await;
    });
    drop(runtime);
    for _ in 0..2 {
        assert!(poll_once(&mut response).is_pending());
    }
}
