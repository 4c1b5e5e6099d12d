//! Readers of a good, beside each other and beside those who write it.

use std::time::Duration;

use lock_core::{LockManager, Mode};
use reqwest::{Client, Method, StatusCode};
use tokio::time::sleep;

use super::instance;

#[tokio::test]
async fn readers_share_a_good_that_a_sale_and_a_count_have_alone() {
    let (url, _) = instance("sqlite::memory:", "readers").await;
    let manager = LockManager::connect("memory://readers").await.unwrap();
    let client = Client::new();
    let ask = |method, path: &str, body| {
        let json = "application/json";
        let request = client.request(method, format!("{url}{path}")).header("content-type", json).body(body);
        tokio::spawn(async move {
            let answer = request.send().await.unwrap();
            (answer.status(), answer.text().await.unwrap())
        })
    };

    let another_reader = manager.lock("goods:1").shared().await.unwrap();
    let (status, text) = ask(Method::GET, "/goods/1", "").await.unwrap();
    assert_eq!((status, text.as_str()), (StatusCode::OK, "good 1: 10 left, version 0\n"));
    assert_eq!(ask(Method::HEAD, "/goods/1", "").await.unwrap().0, StatusCode::OK);
    let count = ask(Method::PUT, "/goods/1", "8");
    until_in_line(&manager, &[Mode::Exclusive]).await;
    let sale = ask(Method::POST, "/goods/1/sell", "");
    until_in_line(&manager, &[Mode::Exclusive, Mode::Exclusive]).await;
    // It came after the sale, and is not let past it to the reader who is inside.
    let late = ask(Method::GET, "/goods/1", "");
    until_in_line(&manager, &[Mode::Exclusive, Mode::Exclusive, Mode::Shared]).await;
    another_reader.release().await.unwrap();

    assert_eq!(count.await.unwrap().1, "good 1: 8 left\n");
    assert_eq!(sale.await.unwrap().1, "sold one of good 1\n");
    assert_eq!(late.await.unwrap().1, "good 1: 7 left, version 2\n");
    assert_eq!(ask(Method::GET, "/goods/9", "").await.unwrap().0, StatusCode::NOT_FOUND);
}

/// Waits until requests for good 1 in these modes are in line, in this order.
async fn until_in_line(manager: &LockManager, modes: &[Mode]) {
    for _ in 0..4_000 {
        let good = manager.inspect("goods:1").await.unwrap();
        if good.waiters().iter().map(|waiter| waiter.mode()).eq(modes.iter().copied()) {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("they never stood in line: {modes:?}");
}
