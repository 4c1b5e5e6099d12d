//! The attribute: `#[distributed_lock]`.

use crate::tour::Result;

use lock_core::{ErrorKind, LockManager};

mod basic {
    use lock_core::distributed_lock;

    use crate::tour::Result;

    #[distributed_lock(key = "goods:<id>", ttl = "3s", wait = "2s")]
    async fn sell(id: u64) -> Result<(), lock_core::Error> {
        println!("no other process on any machine is selling {id} right now");
        Ok(())
    }

    async fn program() -> Result {
        use lock_core::LockManager;

        LockManager::connect("redis://127.0.0.1").await?.install()?;
        sell(7).await?;

        Ok(())
    }

    #[tokio::test]
    async fn one_call_at_a_time() -> Result {
        use lock_core::LockManager;

        let manager = LockManager::in_memory();
        manager.scope(sell(7)).await?;

        Ok(())
    }
}

mod templates {
    use lock_core::distributed_lock;

    struct Order {
        id: u64,
        tenant: String,
    }

    #[distributed_lock(key = "{<order.tenant>}:order:<order.id>:line:<line + 1>")]
    async fn change(order: Order, line: usize) -> Result<Order, lock_core::Error> {
        Ok(order)
    }

    const NIGHTLY: &str = "jobs:nightly";

    #[distributed_lock(key = NIGHTLY)]
    async fn nightly() -> Result<(), lock_core::Error> {
        Ok(())
    }

    #[tokio::test]
    async fn keys() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        let order = manager.scope(change(Order { id: 1, tenant: "north".into() }, 2)).await?;
        assert_eq!((order.id, order.tenant.as_str()), (1, "north"));
        manager.scope(nightly()).await
    }
}

mod several {
    use std::collections::BTreeMap;

    use lock_core::distributed_lock;

    #[distributed_lock(keys = ["account:<from>", "account:<to>"])]
    async fn transfer(from: u64, to: u64, amount: u64) -> Result<(), lock_core::Error> {
        println!("{amount} from {from} to {to}");
        Ok(())
    }

    #[distributed_lock(keys = order.keys().map(|id| format!("goods:{id}")))]
    async fn buy(order: BTreeMap<u64, u32>) -> Result<u32, lock_core::Error> {
        Ok(order.values().sum())
    }

    #[tokio::test]
    async fn all_or_none() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        manager.scope(transfer(1, 2, 3)).await?;
        assert_eq!(manager.scope(buy([(1, 1), (2, 4)].into())).await?, 5);
        Ok(())
    }
}

mod once {
    use lock_core::distributed_lock;

    #[distributed_lock(key = "jobs:nightly:<run>", on_busy = skip, at_least = "7d")]
    async fn nightly(run: &str) -> Result<Option<u64>, lock_core::Error> {
        Ok(Some(1)) // None: another machine has begun this run, or has failed in it
    }

    #[tokio::test]
    async fn second_machine_skips() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        for done in [Some(1), None] {
            assert_eq!(manager.scope(nightly("2026-11-24")).await?, done);
        }
        assert_eq!(manager.scope(nightly("2026-11-25")).await?, Some(1));
        Ok(())
    }
}

mod call {
    use axum::http::StatusCode;
    use lock_core::distributed_lock;

    #[distributed_lock(key = "goods:<id>", wait = "0s", on_error = status)]
    async fn sell(id: u64) -> Result<String, StatusCode> {
        Ok(format!("sold {id}"))
    }

    fn status(error: lock_core::Error) -> StatusCode {
        match error.nothing_was_done() {
            _ if error.is_busy() => StatusCode::LOCKED,
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::INTERNAL_SERVER_ERROR, // lost: part of the work may be done
        }
    }

    #[distributed_lock(key = "goods:<id>", wait = "0s", on_error = move |error| format!("{id}: {}", error.public_message()))]
    async fn describe(id: u64) -> String {
        format!("{id}: sold")
    }

    #[tokio::test]
    async fn any_type() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        assert_eq!(manager.scope(describe(7)).await, "7: sold");
        let _guard = manager.lock("goods:7").await?;
        assert_eq!(manager.scope(sell(7)).await, Err(StatusCode::LOCKED));
        assert!(manager.scope(describe(7)).await.starts_with("7: locked by another request"));
        let lost = manager.lock("goods:8").await?;
        manager.force_release("goods:8").await?;
        let error = lost.release().await.expect_err("it was released by force");
        assert_eq!(status(error), StatusCode::INTERNAL_SERVER_ERROR);
        Ok(())
    }
}

mod durations {
    use std::time::Duration;

    use lock_core::distributed_lock;

    const TTL: Duration = Duration::from_secs(3);

    #[distributed_lock(key = "import:<shop>", ttl = TTL, wait = forever, max_hold = limit)]
    async fn import(shop: &str, limit: Duration) -> Result<(), lock_core::Error> {
        println!("importing {shop}");
        Ok(())
    }

    #[tokio::test]
    async fn from_constants_and_arguments() -> Result<(), lock_core::Error> {
        lock_core::LockManager::in_memory().scope(import("north", Duration::from_secs(60))).await
    }
}

mod modes {
    use lock_core::distributed_lock;

    const IMPORTS: u32 = 3;

    #[distributed_lock(key = "price:<id>", mode = shared)]
    async fn offer(id: u64) -> Result<u64, lock_core::Error> {
        Ok(100 + id) // other offers are made at the same time
    }

    #[distributed_lock(key = "price:<id>")]
    async fn change_price(id: u64, price: u64) -> Result<(), lock_core::Error> {
        println!("{id} costs {price}, and nobody reads the old price now");
        Ok(())
    }

    #[distributed_lock(key = "tenant:<tenant>:imports", permits = IMPORTS)]
    async fn import_file(tenant: u64) -> Result<(), lock_core::Error> {
        Ok(()) // one of IMPORTS
    }

    #[distributed_lock(key = "tenant:<tenant>:imports", permits = IMPORTS, take = 2)]
    async fn import_archive(tenant: u64) -> Result<(), lock_core::Error> {
        Ok(()) // counts as two
    }

    #[tokio::test(start_paused = true)]
    async fn keep_out_only_what_they_exclude() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        let reader = manager.lock("price:1").shared().await?;
        assert_eq!(manager.scope(offer(1)).await?, 101);
        assert!(manager.scope(change_price(1, 100)).await.unwrap_err().is_busy());
        reader.release().await?;
        manager.scope(change_price(1, 100)).await?;

        let two = manager.lock("tenant:7:imports").permits(IMPORTS).take(2).await?;
        manager.scope(import_file(7)).await?;
        assert!(manager.scope(import_archive(7)).await.unwrap_err().is_busy());
        two.release().await?;
        manager.scope(import_archive(7)).await
    }
}

mod lost {
    use lock_core::distributed_lock;

    #[distributed_lock(key = "export", max_hold = "10m", on_lost = finish)]
    async fn export() -> Result<(), lock_core::Error> {
        Ok(()) // not cancelled; the caller gets the error if the lease was lost
    }

    #[distributed_lock(key = "payout:<id>", replicas = 1, replicas_timeout = "300ms")]
    async fn pay_out(id: u64) -> Result<u64, lock_core::Error> {
        Ok(id) // at least one replica has the lease
    }

    #[distributed_lock(key = "report", ttl = "30s", renew = false)]
    async fn thirty_seconds_at_most() -> Result<(), lock_core::Error> {
        Ok(())
    }

    #[tokio::test]
    async fn runs() -> Result<(), lock_core::Error> {
        let manager = lock_core::LockManager::in_memory();
        manager.scope(export()).await?;
        assert_eq!(manager.scope(pay_out(1)).await?, 1, "a store in memory ignores the replicas");
        manager.scope(thirty_seconds_at_most()).await
    }
}

mod methods {
    use lock_core::{LockManager, distributed_lock};

    struct Shop {
        tenant: String,
        locks: LockManager,
    }

    impl Shop {
        #[distributed_lock(key = "<self.tenant>:goods:<id>", manager = self.locks, lease = lease)]
        async fn sell(&mut self, id: u64) -> Result<i64, lock_core::Error> {
            println!("selling {id}, {:?} left", lease.remaining());
            Ok(lease.fencing_token().as_i64())
        }
    }

    #[tokio::test]
    async fn lease_in_the_body() -> Result<(), lock_core::Error> {
        let mut shop = Shop { tenant: "north".into(), locks: LockManager::in_memory() };
        assert!(shop.sell(7).await? > 0);
        Ok(())
    }
}

mod handlers {
    use axum::{
        extract::{Path, State},
        http::StatusCode,
    };
    use lock_core::{LockManager, distributed_lock};

    #[derive(Clone)]
    struct App {
        locks: LockManager,
    }

    #[distributed_lock(key = "goods:<id>", wait = "2s", manager = app.locks)]
    async fn sell(Path(id): Path<u64>, State(app): State<App>) -> Result<String, lock_core::Error> {
        Ok(format!("sold {id}"))
    }

    #[tokio::test]
    async fn handler() -> crate::tour::Result {
        use tower::ServiceExt as _;

        let app = App { locks: LockManager::in_memory() };
        let service = axum::Router::new().route("/sell/{id}", axum::routing::post(sell)).with_state(app);
        let request = axum::extract::Request::post("/sell/7").body(axum::body::Body::empty())?;
        assert_eq!(service.oneshot(request).await?.status(), StatusCode::OK);
        Ok(())
    }
}

mod tonic_methods {
    use lock_core::{LockManager, distributed_lock};

    struct Shop {
        locks: LockManager,
    }

    impl Shop {
        #[distributed_lock(key = "goods:<request.get_ref()>", wait = "2s", manager = self.locks)]
        async fn sell(&self, request: tonic::Request<u64>) -> Result<tonic::Response<u64>, tonic::Status> {
            Ok(tonic::Response::new(request.into_inner()))
        }
    }

    #[tokio::test]
    async fn method() -> Result<(), tonic::Status> {
        let shop = Shop { locks: LockManager::in_memory() };
        shop.sell(tonic::Request::new(7)).await.map(drop)
    }
}

#[tokio::test]
async fn manager_of_a_test() -> Result {
    use lock_core::distributed_lock;

    #[distributed_lock(key = "goods:<id>", wait = "0s")]
    async fn sell(id: u64) -> Result<u64, lock_core::Error> {
        Ok(id)
    }

    let manager = LockManager::in_memory();
    let guard = manager.lock("goods:7").await?;
    let refused = manager.scope(sell(7)).await;
    assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::Busy));

    drop(guard);
    Ok(())
}
