//! What the `metrics` facade gets to see of a layer.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;

use http::{Request, Response};
use lock_core::LockManager;
use lock_tower::{BoxError, LockLayer};
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
            LockLayer::http(manager, key).layer(shop).oneshot(post("/goods/4")).await.unwrap();
        });
    });
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let key = key.key();
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
    assert!(!format!("{counted:?}").contains("goods"), "a key in a label: {counted:#?}");
}
