//! What `/metrics` shows, of the shop and of its locks.

use std::time::Duration;

use lock_core::LockManager;
use reqwest::{Client, StatusCode};
use tokio::time::{Instant, sleep};

use super::serve;
use crate::metrics;
use crate::shop::{Order, Shop};

/// The recorder is this thread's alone, where all tasks of the test run: other tests count as well.
#[tokio::test]
async fn metrics_show_the_shop_the_core_the_attribute_and_the_layer_and_never_a_key() {
    let recorder = metrics::builder().unwrap().build_recorder();
    let handle = recorder.handle();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let manager = LockManager::in_memory();
    let shop = Shop::open("sqlite::memory:").await.unwrap();
    shop.lay_out().await.unwrap();
    let url = serve(manager.clone(), shop, handle).await;
    let client = Client::new();
    let post = async |path: &str| client.post(format!("{url}{path}")).send().await.unwrap().status();
    let shown = async || client.get(format!("{url}/metrics")).send().await.unwrap().text().await.unwrap();

    assert_eq!(post("/goods/1/sell").await, StatusCode::OK);
    assert_eq!(post("/goods/9/sell").await, StatusCode::NOT_FOUND);
    let order = client.post(format!("{url}/orders")).json(&Order::from([(2, 3), (3, 1)]));
    assert_eq!(order.send().await.unwrap().status(), StatusCode::OK);
    let nothing = client.post(format!("{url}/orders")).json(&Order::new());
    assert_eq!(nothing.send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    let (first, second) = tokio::join!(post("/orders/7/pay"), post("/orders/7/pay"));
    assert_eq!(u16::min(first.as_u16(), second.as_u16()), 200);
    assert_eq!(u16::max(first.as_u16(), second.as_u16()), 409);
    assert_eq!(post("/orders/seven/pay").await, StatusCode::BAD_REQUEST);

    // One lease that lives long enough to be renewed, one that is lost, and one that waits.
    let renewed = manager.lock("renewed").label("renewed").ttl(Duration::from_millis(30)).await.unwrap();
    let lost = manager.lock("lost").label("lost").await.unwrap();
    manager.force_release("lost").await.unwrap();
    lost.ended().await;
    let waiter = tokio::spawn(manager.lock("renewed").label("waiter").acquire());
    let shown = eventually(shown, |shown| {
        has(shown, r#"lock_waiting{lock="waiter"} 1"#) && shown.contains("lock_renewal_slack_seconds_bucket")
    });
    let shown = shown.await;

    for line in [
        // The shop.
        r#"shop_units_sold_total{by="sell"} 1"#,
        r#"shop_units_sold_total{by="order"} 4"#,
        r#"shop_refusals_total{why="no_such_good"} 1"#,
        r#"shop_refusals_total{why="nothing_ordered"} 1"#,
        // The attribute, by the template of its key.
        r#"lock_acquires_total{lock="goods:<good>",outcome="acquired"} 2"#,
        r#"lock_wait_seconds_count{lock="goods:<good>"} 2"#,
        r#"lock_hold_seconds_count{lock="goods:<good>"} 2"#,
        r#"lock_held{lock="goods:<good>"} 0"#,
        // The core, by the label of the request: two keys.
        r#"lock_acquires_total{lock="goods of an order",outcome="acquired"} 2"#,
        // The layer, by its name.
        r#"lock_acquires_total{lock="payment",outcome="acquired"} 1"#,
        r#"lock_acquires_total{lock="payment",outcome="busy"} 1"#,
        r#"lock_layer_refusals_total{lock="payment",reason="key"} 1"#,
        r#"lock_layer_refusals_total{lock="payment",reason="not_acquired"} 1"#,
        r#"lock_hold_seconds_bucket{lock="payment",le="0.3"} 0"#,
        r#"lock_hold_seconds_count{lock="payment"} 1"#,
        r#"lock_waiting{lock="payment"} 0"#,
        // The engine.
        r#"lock_held{lock="renewed"} 1"#,
        r#"lock_lost_total{lock="lost",reason="forced"} 1"#,
    ] {
        assert!(has(&shown, line), "{line} is missing from:\n{shown}");
    }
    for key in ["goods:1", "goods:2", "goods:9", "orders:7"] {
        assert!(!shown.contains(key), "the key {key} is in:\n{shown}");
    }
    drop(renewed);
    drop(waiter.await.unwrap().unwrap());
}

fn has(shown: &str, line: &str) -> bool {
    shown.lines().any(|shown| shown == line)
}

async fn eventually(shown: impl AsyncFn() -> String, condition: impl Fn(&str) -> bool) -> String {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = shown().await;
        if condition(&shown) {
            return shown;
        }
        assert!(Instant::now() < deadline, "it never came: {shown}");
        sleep(Duration::from_millis(10)).await;
    }
}
