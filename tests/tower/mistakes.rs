//! Handlers that panic, and a layer that stands twice before one handler.

use http_body_util::BodyExt;
use hyper::StatusCode;

use crate::tower::shop::{BOTH, Client, Shop, nothing, soon};

#[tokio::test]
async fn bad_input_74_a_handler_that_panics_frees_the_key() {
    let shop = Shop::open().await;
    for version in BOTH {
        let mut client = Client::connect(&shop, version).await;
        client.post("/panic", nothing()).await.expect_err("the panic goes on");
        shop.until_idle("it panicked").await;
        shop.until_free("it panicked").await;
        shop.serves_the_next(version).await;
    }
    assert_eq!(shop.floor.begun(), 2);
}

#[tokio::test]
async fn bad_input_74_a_body_that_panics_frees_the_key() {
    let shop = Shop::open().await;
    for version in BOTH {
        let mut client = Client::connect(&shop, version).await;
        if let Ok(answer) = client.post("/panic/body", nothing()).await {
            soon(answer.into_body().collect()).await.expect_err("no end as if all were there");
        }
        shop.until_idle("it panicked").await;
        shop.until_free("it panicked").await;
        shop.serves_the_next(version).await;
    }
}

#[tokio::test]
async fn bad_input_77_a_layer_that_stands_twice_with_one_key_is_an_error_with_the_remedy_at_once() {
    let shop = Shop::open().await;
    for version in BOTH {
        for path in ["/twice", "/twice/held"] {
            // It would wait for ten minutes.
            let mut client = Client::connect(&shop, version).await;
            let answer = client.post(path, nothing()).await.expect("an answer, and no hanging");
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{path}");
            assert_eq!(answer.headers()["content-type"], "application/problem+json");
            let text = soon(answer.into_body().collect()).await.expect("a body").to_bytes();
            let text = String::from_utf8_lossy(&text);
            assert!(text.contains("lock_misconfigured"), "{path}: {text}");
            shop.until_free("the outer layer has released").await;
        }
        shop.serves_the_next(version).await;
    }
}
