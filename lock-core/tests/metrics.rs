//! What the `metrics` facade gets to see.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;

use lock_core::{ErrorKind, Replicas};
use metrics::Unit;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tokio::time::{sleep, timeout};

use crate::{
    durability::{self, Replicated},
    support::{self, Fate, ms, secs},
};

/// Runs a scenario in virtual time with a recorder of its own.
fn recorded(scenario: impl Future<Output = ()>) -> Snapshotter {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(scenario);
    });
    snapshotter
}

/// The metrics as text: counters and gauges with their value, histograms with the number of their records.
fn shown(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let snapshot = snapshotter.snapshot().into_vec().into_iter();
    snapshot
        .map(|(key, unit, description, value)| {
            let key = key.key();
            assert!(unit.is_some() && description.is_some(), "{} is not described", key.name());
            assert_eq!(key.name().ends_with("_seconds"), unit == Some(Unit::Seconds), "{}", key.name());
            let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => f64::from(u32::try_from(count).unwrap()),
                DebugValue::Gauge(gauge) => gauge.into_inner(),
                DebugValue::Histogram(records) => f64::from(u32::try_from(records.len()).unwrap()),
            };
            (format!("{}{{{}}}", key.name(), labels.join(",")), value)
        })
        .collect()
}

#[test]
fn each_key_of_several_counts_however_the_request_for_all_of_them_ends() {
    let snapshotter = recorded(async {
        let (manager, backend) = support::counted();
        let both = || manager.lock_all(["goods:1", "goods:2"]).label("goods").ttl(secs(3));
        backend.next([Fate::Fail]);
        assert_eq!(both().await.unwrap_err().kind(), ErrorKind::Backend);
        let held = both().await.unwrap();
        assert!(both().try_acquire().await.unwrap().is_none());
        held.release().await.unwrap();
        backend.next([Fate::Hold]);
        assert!(timeout(ms(50), both()).await.is_err());
        let (manager, _) = Replicated::new(durability::Fate::TooFew);
        let durable = manager.lock_all(["a", "b"]).label("durable").durability(Replicas::new(2, ms(300)));
        assert_eq!(durable.await.unwrap_err().kind(), ErrorKind::NotReplicated);
    });
    let shown = shown(&snapshotter);
    let outcome = |lock: &str, name: &str| {
        shown.get(&format!("lock_acquires_total{{lock={lock},outcome={name}}}")).copied().unwrap_or_default()
    };
    let outcomes = ["backend", "acquired", "dropped"].map(|name| outcome("goods", name));
    assert_eq!(outcomes, [2.0, 2.0, 2.0], "{shown:#?}");
    assert!(outcome("goods", "busy") > 0.0, "{shown:#?}");
    assert_eq!(shown["lock_waiting{lock=goods}"], 0.0);
    assert_eq!(["acquired", "not_replicated"].map(|name| outcome("durable", name)), [2.0, 1.0], "{shown:#?}");
}

#[test]
fn metrics_count_outcomes_waits_holds_and_losses_under_the_label_and_never_the_key() {
    let snapshotter = recorded(async {
        let (manager, backend) = support::counted();
        let request = |key: &str| manager.lock(key).label("goods:<id>").ttl(secs(3));
        let held = request("goods:1").await.unwrap();
        assert!(request("goods:1").wait(ms(50)).await.is_err());
        assert!(timeout(ms(50), request("goods:1")).await.is_err());
        sleep(secs(2)).await;
        held.release().await.unwrap();
        let forced = request("goods:2").await.unwrap();
        manager.force_release("goods:2").await.unwrap();
        drop(forced);
        let _held = request("goods:3").await.unwrap();
        sleep(ms(10)).await;
        backend.next([Fate::Fail]);
        sleep(ms(1_200)).await;
        let _unnamed = manager.lock("unnamed").await.unwrap();
    });
    let shown = shown(&snapshotter);
    let value = |name: &str| *shown.get(name).unwrap_or_else(|| panic!("{name} is not among {shown:#?}"));
    assert_eq!(value("lock_acquires_total{lock=goods:<id>,outcome=acquired}"), 3.0);
    assert_eq!(value("lock_acquires_total{lock=goods:<id>,outcome=busy}"), 1.0);
    assert_eq!(value("lock_acquires_total{lock=goods:<id>,outcome=dropped}"), 1.0);
    assert_eq!(value("lock_wait_seconds{lock=goods:<id>}"), 4.0);
    assert_eq!(value("lock_waiting{lock=goods:<id>}"), 0.0);
    assert_eq!(value("lock_hold_seconds{lock=goods:<id>}"), 3.0, "the third ended with its runtime");
    assert_eq!(value("lock_held{lock=goods:<id>}"), 0.0);
    assert_eq!(value("lock_lost_total{lock=goods:<id>,reason=forced}"), 1.0);
    assert_eq!(value("lock_renewal_failures_total{}"), 1.0);
    assert!(value("lock_renewal_slack_seconds{lock=goods:<id>}") >= 2.0);
    assert_eq!(value("lock_acquires_total{lock=,outcome=acquired}"), 1.0);
    assert!(!format!("{shown:?}").contains("goods:1"), "a key in a label: {shown:#?}");
}
