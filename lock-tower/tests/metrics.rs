//! What the `metrics` facade gets to see of a layer.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::{collections::BTreeMap, time::Duration};

use crate::support::{Failing, poll_once};
use http::{Request, Response};
use lock_core::{ErrorKind, LeaseOptions, LockManager};
use lock_tower::{
    BoxError, LockLayer, OnBackendError,
    key::{header, scoped},
};
use metrics::Unit;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tower::{Layer, ServiceExt, service_fn};

#[test]
fn metrics_have_the_name_of_the_layer_and_never_the_key() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let manager = LockManager::in_memory();
            let shop = service_fn(async |_: Request<()>| Ok::<_, BoxError>(Response::new(String::new())));
            let post = |path| Request::post(path).body(()).unwrap();
            let key = |request: &Request<()>| request.uri().path().to_owned();
            let sell = LockLayer::http(manager.clone(), key).name("sell").layer(shop);
            sell.clone().oneshot(post("/goods/1")).await.unwrap();
            sell.clone().oneshot(post("/goods/2")).await.unwrap();
            let _guard = manager.lock("/goods/3").label("by hand").await.unwrap();
            sell.oneshot(post("/goods/3")).await.unwrap();
            refuse(&manager).await;
            LockLayer::http(manager, key).layer(shop).oneshot(post("/goods/4")).await.unwrap();
        });
    });
    let mut counted = BTreeMap::new();
    for (key, unit, description, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
        if key.name().starts_with("lock_layer_") {
            assert_eq!(unit, Some(Unit::Count), "{key}");
            assert!(description.is_some_and(|text| text.starts_with("requests that ")), "{key}");
        }
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let count = match value {
            DebugValue::Counter(count) => usize::try_from(count).unwrap(),
            DebugValue::Histogram(records) => records.len(),
            DebugValue::Gauge(_) => continue,
        };
        counted.insert(format!("{}{{{}}}", key.name(), labels.join(",")), count);
    }
    let count = |name: &str| *counted.get(name).unwrap_or_else(|| panic!("{name} is not among {counted:#?}"));
    assert_eq!(count("lock_acquires_total{lock=sell,outcome=acquired}"), 2);
    assert_eq!(count("lock_acquires_total{lock=sell,outcome=busy}"), 1);
    assert_eq!(count("lock_wait_seconds{lock=sell}"), 3);
    assert_eq!(count("lock_hold_seconds{lock=sell}"), 2);
    assert_eq!(count("lock_acquires_total{lock=,outcome=acquired}"), 1, "a layer without a name");
    for reason in ["key", "not_acquired", "overloaded", "out_of_time", "lost", "misconfigured"] {
        assert_eq!(count(&format!("lock_layer_refusals_total{{lock={reason},reason={reason}}}")), 1);
    }
    assert_eq!(count("lock_layer_refusals_total{lock=sell,reason=not_acquired}"), 1);
    assert_eq!(count("lock_layer_let_through_total{lock=open}"), 1);
    assert!(!format!("{counted:?}").contains("goods"), "a key in a label: {counted:#?}");
}

/// A layer for each reason to refuse, named after it, and one that lets through.
async fn refuse(manager: &LockManager) {
    let shop = service_fn(async |_: Request<()>| Ok::<_, BoxError>(Response::new(String::new())));
    let goods = || Request::post("/goods/3").header("grpc-timeout", "100m").body(()).unwrap();
    let layer = |name| LockLayer::http(manager.clone(), "/goods/3").name(name).try_only();

    layer("not_acquired").layer(shop).oneshot(goods()).await.unwrap();
    layer("misconfigured").options(LeaseOptions::new().ttl(Duration::ZERO)).layer(shop).oneshot(goods()).await.unwrap();
    let keyless = LockLayer::http(manager.clone(), scoped("goods", header::<String>("x-goods"))).name("key");
    keyless.layer(shop).oneshot(goods()).await.unwrap();

    let crowded =
        layer("overloaded").options(LeaseOptions::new().wait(Duration::from_secs(9))).max_waiters(1).layer(shop);
    let mut first = Box::pin(crowded.clone().oneshot(goods()));
    assert!(poll_once(&mut first).is_pending());
    crowded.oneshot(goods()).await.unwrap();
    drop(first);

    let grpc = LockLayer::grpc(manager.clone(), "/goods/3").name("out_of_time");
    grpc.layer(shop).oneshot(goods()).await.unwrap();

    let loses = service_fn(|_: Request<()>| async {
        manager.force_release("/goods/5").await?;
        tokio::task::yield_now().await;
        Ok::<_, BoxError>(Response::new(String::new()))
    });
    LockLayer::http(manager.clone(), "/goods/5").name("lost").layer(loses).oneshot(goods()).await.unwrap();

    let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "down")).build().unwrap();
    let open = LockLayer::http(down, "/goods/3").name("open").on_backend_error(OnBackendError::LetThrough);
    open.layer(shop).oneshot(goods()).await.unwrap();
}
