//! The code in the README compiles: every line of it stands in here too.

#![allow(dead_code, reason = "compiled, not run")]

use std::{error::Error, time::Duration};

use axum::{Router, extract::Request, routing::post};
use lock_core::{FencingToken, LockManager, distributed_lock};
use lock_tower::LockLayer;

type ShopError = Box<dyn Error + Send + Sync>;

async fn core(sell: impl AsyncFn(FencingToken) -> Result<(), ShopError>) -> Result<(), ShopError> {
    let manager = LockManager::connect("redis://127.0.0.1").await?;

    // Held until the guard is released or dropped, renewed meanwhile.
    let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
    sell(guard.fencing_token()).await?;
    guard.release().await?;

    // Work that is dropped when the lease is lost.
    manager.lock("goods:1").run(async |lease| sell(lease.fencing_token()).await).await??;

    // Several keys: all or none, and no two such requests ever wait for each other.
    let order = manager.lock_all(["goods:1", "goods:2"]).await?;
    order.release().await?;
    Ok(())
}

#[distributed_lock(key = "goods:<id>", ttl = "3s")]
async fn sell(id: u64, amount: u32) -> Result<(), ShopError> {
    // one caller per id at a time, in all processes
    let _ = amount;
    Ok(())
}

fn layer<H: axum::handler::Handler<(), ()>>(manager: LockManager, sell: H) -> impl Sized {
    let app = Router::new()
        .route("/goods/{id}", post(sell))
        .layer(LockLayer::http(manager, |request: &Request| format!("path:{}", request.uri().path())));
    app.into_make_service()
}

#[test]
fn every_line_of_code_in_the_readme_is_compiled_here() {
    let here = include_str!("readme.rs");
    let mut code = false;
    let mut lines = 0;
    for line in include_str!("../README.md").lines() {
        match line {
            "```rust" => code = true,
            "```" => code = false,
            _ if code => {
                lines += 1;
                assert!(here.contains(line.trim()), "the README has a line that is not compiled: {line}");
            }
            _ => {}
        }
    }
    assert!(lines > 15, "only {lines} lines of code were found in the README");
}
