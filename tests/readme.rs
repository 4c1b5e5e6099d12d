//! The code in the README compiles: every block of it stands in here too, line by line.

#![allow(dead_code, reason = "compiled, not run")]

use std::error::Error;

use lock_core::FencingToken;
use lock_tests::text::compiled_blocks;

type ShopError = Box<dyn Error + Send + Sync>;

async fn core(sell: impl AsyncFn(FencingToken) -> Result<(), ShopError>) -> Result<(), ShopError> {
    use lock_core::LockManager;
    use std::time::Duration;

    let manager = LockManager::connect("redis://127.0.0.1").await?;

    // Held until the guard is released or dropped, renewed meanwhile.
    let guard = manager.lock("goods:1").ttl(Duration::from_secs(3)).await?;
    sell(guard.fencing_token()).await?;
    guard.release().await?;

    // Work that is dropped when the lease is lost: one `?` for the lock, one for the work.
    manager.lock("goods:1").run(async |lease| sell(lease.fencing_token()).await).await??;

    // Several keys: all or none, in one order everywhere, so that two such requests cannot deadlock.
    let order = manager.lock_all(["goods:1", "goods:2"]).await?;
    order.release().await?;
    Ok(())
}

mod attribute {
    use std::future::{Ready, ready};

    use lock_core::distributed_lock;

    #[distributed_lock(key = "goods:<id>", ttl = "3s")]
    async fn sell(id: u64, amount: u32) -> Result<u32, lock_core::Error> {
        // One caller per id at a time, in all processes.
        Ok(stock(id).take(amount).await)
    }

    struct Stock(u64);

    fn stock(id: u64) -> Stock {
        Stock(id)
    }

    impl Stock {
        fn take(&self, amount: u32) -> Ready<u32> {
            ready(if self.0 > 0 { amount } else { 0 })
        }
    }
}

mod layer {
    use std::time::Duration;

    use lock_core::LockManager;

    fn layer<H: axum::handler::Handler<(), ()>>(manager: LockManager, sell: H) -> impl Sized {
        use axum::{Router, routing::post};
        use lock_tower::LockLayer;
        use lock_tower::key::{path_param, scoped};

        let per_goods = LockLayer::http(manager, scoped("goods", path_param::<u64>("id"))).wait(Duration::from_secs(2));
        let app: Router = Router::new().route("/goods/{id}", post(sell)).route_layer(per_goods);

        app.into_make_service()
    }
}

#[test]
fn every_block_of_code_in_the_readme_is_compiled_here() {
    let blocks = compiled_blocks(include_str!("../README.md"), &[include_str!("readme.rs")]);
    assert!(blocks >= 3, "only {blocks} blocks of code were found in the README");
}
