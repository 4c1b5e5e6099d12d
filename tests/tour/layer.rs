//! The layer: `lock_tower`.

use std::time::Duration;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header::RETRY_AFTER},
    middleware::{Next, from_fn},
    response::Response,
    routing::{get, post},
};
use lock_core::{LeaseOptions, LockManager, OnLost, Replicas};
use lock_status::Status;
use lock_tower::{
    BoxError, Held, HeldAll, LockLayer, OnBackendError,
    idempotency::{Attempt, IdempotencyLayer, MemoryAnswers, RedisAnswers},
    key::{extension, header, method_and_path, path_param, scoped},
};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::tour::Result;

async fn sell() -> &'static str {
    "sold"
}

/// Sends a request through a service, and answers with its status.
async fn status(service: &Router, method: Method, path: &str) -> Result<StatusCode> {
    let request = Request::builder().method(method).uri(path).body(Body::empty())?;
    Ok(service.clone().oneshot(request).await?.status())
}

#[tokio::test]
async fn one_per_key() -> Result {
    let manager = LockManager::in_memory();
    let per_goods = LockLayer::http(manager, scoped("goods", path_param::<u64>("id")));
    let app = Router::new().route("/goods/{id}", post(sell)).route_layer(per_goods);

    assert_eq!(status(&app, Method::POST, "/goods/1").await?, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn ready_made() -> Result {
    let manager = LockManager::in_memory();
    let per_goods = LockLayer::http(manager.clone(), scoped("goods", path_param::<u64>("id")));
    let per_account = LockLayer::http(manager.clone(), scoped("account", header::<String>("x-account").optional()));
    let per_user = LockLayer::http(manager.clone(), scoped("user", extension::<u64>()));
    let per_route = LockLayer::http(manager.clone(), scoped("shop", method_and_path()));
    let per_shop = LockLayer::http(manager, scoped("goods", (header::<String>("x-shop"), path_param::<u64>("id"))));

    let app = Router::new().route("/goods/{id}", post(sell));
    assert_eq!(status(&app.clone().route_layer(per_goods), Method::POST, "/goods/1").await?, StatusCode::OK);
    assert_eq!(status(&app.clone().route_layer(per_account), Method::POST, "/goods/1").await?, StatusCode::OK);
    assert_eq!(
        status(&app.clone().route_layer(per_user), Method::POST, "/goods/1").await?,
        StatusCode::INTERNAL_SERVER_ERROR
    );
    assert_eq!(status(&app.clone().route_layer(per_route), Method::POST, "/goods/1").await?, StatusCode::OK);
    assert_eq!(status(&app.route_layer(per_shop), Method::POST, "/goods/1").await?, StatusCode::BAD_REQUEST);
    Ok(())
}

mod held {
    use super::*;

    async fn charge(Held(lease): Held) -> String {
        format!("charged under fencing token {}", lease.fencing_token())
    }

    #[tokio::test]
    async fn lease_in_the_handler() -> Result {
        let layer = LockLayer::http(LockManager::in_memory(), "till");
        let app = Router::new().route("/charge", post(charge)).route_layer(layer);
        assert_eq!(status(&app, Method::POST, "/charge").await?, StatusCode::OK);
        Ok(())
    }
}

mod several {
    use super::*;

    async fn transfer(HeldAll(leases): HeldAll) -> String {
        format!("transferred under {} leases", leases.len())
    }

    #[tokio::test]
    async fn together() -> Result {
        let manager = LockManager::in_memory();
        let account = |name| scoped("account", path_param::<u64>(name));
        let both = LockLayer::http(manager, [account("from"), account("to")]);
        let app = Router::new().route("/transfer/{from}/{to}", post(transfer)).route_layer(both);

        assert_eq!(status(&app, Method::POST, "/transfer/7/3").await?, StatusCode::OK);
        Ok(())
    }
}

#[tokio::test]
async fn readers() -> Result {
    let manager = LockManager::in_memory();
    let reader = manager.lock("goods:1").shared().await?;
    let per_goods = scoped("goods", path_param::<u64>("id"));
    let goods = LockLayer::http(manager, per_goods).shared_for([Method::GET]);

    let app = Router::new().route("/goods/{id}", get(sell).post(sell)).route_layer(goods.try_only());
    assert_eq!(status(&app, Method::GET, "/goods/1").await?, StatusCode::OK);
    assert_eq!(status(&app, Method::POST, "/goods/1").await?, StatusCode::CONFLICT);
    reader.release().await?;
    Ok(())
}

#[tokio::test]
async fn limit() -> Result {
    let manager = LockManager::in_memory();
    let _all = manager.lock("tenant:north").permits(8).take(8).await?;
    let tenant = scoped("tenant", header::<String>("x-tenant"));
    let limit = LockLayer::http(manager, tenant).permits(8).try_only();

    let app = Router::new().route("/", post(sell)).route_layer(limit);
    let request = Request::post("/").header("x-tenant", "north").body(Body::empty())?;
    assert_eq!(app.oneshot(request).await?.status(), StatusCode::TOO_MANY_REQUESTS);
    Ok(())
}

#[tokio::test]
async fn waiting() -> Result {
    let manager = LockManager::in_memory();
    let clicks = LockLayer::http(manager.clone(), scoped("order", path_param::<u64>("order"))).try_only();
    let sales = LockLayer::http(manager.clone(), scoped("goods", path_param::<u64>("id")))
        .options(LeaseOptions::new().ttl(Duration::from_secs(3)).wait(Duration::from_secs(2)))
        .max_waiters_per_key(100)
        .max_waiters(10_000);

    let app = Router::new().route("/pay/{order}", post(sell)).route_layer(clicks);
    let _guard = manager.lock("order:7").await?;
    assert_eq!(status(&app, Method::POST, "/pay/7").await?, StatusCode::CONFLICT);
    let app = Router::new().route("/goods/{id}", post(sell)).route_layer(sales);
    assert_eq!(status(&app, Method::POST, "/goods/8").await?, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn methods() -> Result {
    let manager = LockManager::in_memory();
    let writes = LockLayer::http(manager.clone(), "shop").methods([Method::PUT, Method::DELETE]);
    let everything = LockLayer::http(manager.clone(), "shop").all_methods();

    let _guard = manager.lock("shop").await?;
    let app = Router::new().route("/", post(sell));
    assert_eq!(status(&app.clone().route_layer(writes), Method::POST, "/").await?, StatusCode::OK);
    let refused = status(&app.route_layer(everything.try_only()), Method::POST, "/").await?;
    assert_eq!(refused, StatusCode::CONFLICT);
    Ok(())
}

#[tokio::test]
async fn failures() -> Result {
    let manager = LockManager::in_memory();
    let stubborn = LockLayer::http(manager, scoped("goods", path_param::<u64>("id")))
        .options(LeaseOptions::new().max_hold(Duration::from_secs(60)).on_lost(OnLost::Finish))
        .on_backend_error(OnBackendError::LetThrough);
    println!("{} requests went through without a lock", stubborn.let_through());

    let app = Router::new().route("/goods/{id}", post(sell)).route_layer(stubborn);
    assert_eq!(status(&app, Method::POST, "/goods/1").await?, StatusCode::OK);

    let manager = LockManager::in_memory();
    let replicated = LockLayer::http(manager, scoped("payout", path_param::<u64>("id")))
        .options(LeaseOptions::new().durability(Replicas::new(1, Duration::from_millis(300))));

    let app = Router::new().route("/payout/{id}", post(sell)).route_layer(replicated);
    assert_eq!(status(&app, Method::POST, "/payout/1").await?, StatusCode::OK, "a store in memory ignores it");
    Ok(())
}

#[tokio::test]
async fn uploads() -> Result {
    let manager = LockManager::in_memory();
    let upload = LockLayer::http(manager, scoped("goods", path_param::<u64>("id")))
        .options(LeaseOptions::new().max_hold(Duration::from_secs(60)));

    let app = Router::new().route("/goods/{id}", post(sell)).route_layer(upload);
    assert_eq!(status(&app, Method::POST, "/goods/1").await?, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn held_for_longer() -> Result {
    let manager = LockManager::in_memory();
    let bounded = LeaseOptions::new().max_hold(Duration::from_secs(600));
    let export = LockLayer::http(manager.clone(), "export").until_body_end().options(bounded);
    let import = LockLayer::http(manager, "import").detached().options(bounded);

    let app = Router::new().route("/", post(sell));
    assert_eq!(status(&app.clone().route_layer(export), Method::POST, "/").await?, StatusCode::OK);
    assert_eq!(status(&app.route_layer(import), Method::POST, "/").await?, StatusCode::OK);
    Ok(())
}

#[tokio::test]
async fn answers() -> Result {
    let manager = LockManager::in_memory();
    let clicks = scoped("order", path_param::<u64>("order"));
    let layer = LockLayer::http(manager.clone(), clicks).try_only().busy_status(StatusCode::LOCKED);
    let layer = layer.answer(|refusal, mut answer| {
        if refusal.is_busy() {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    });

    let app = Router::new().route("/pay/{order}", post(sell)).route_layer(layer);
    let _guard = manager.lock("order:7").await?;
    assert_eq!(status(&app, Method::POST, "/pay/07").await?, StatusCode::LOCKED);
    Ok(())
}

#[tokio::test]
async fn name() -> Result {
    let manager = LockManager::in_memory();
    let layer = LockLayer::http(manager, scoped("goods", path_param::<u64>("id"))).name("sell");

    let app = Router::new().route("/goods/{id}", post(sell)).route_layer(layer);
    assert_eq!(status(&app, Method::POST, "/goods/1").await?, StatusCode::OK);
    Ok(())
}

mod status_page {
    use super::*;

    async fn operators_only(request: Request, next: Next) -> Result<Response, StatusCode> {
        let user = request.headers().get("x-user");
        if user.is_some_and(|user| user == "operator") {
            Ok(next.run(request).await)
        } else {
            Err(StatusCode::FORBIDDEN)
        }
    }

    #[tokio::test]
    async fn mounted() -> Result {
        let manager = LockManager::in_memory();
        let status = Status::new(manager.clone())
            .environment("production")
            .trace_url("https://jaeger.example/trace/{trace_id}")
            .allow_force_release();
        let operators = Router::new().nest_service("/locks", status).layer(from_fn(operators_only));

        let request = Request::get("/locks").header("x-user", "operator").body(Body::empty())?;
        assert_eq!(operators.clone().oneshot(request).await?.status(), StatusCode::OK);
        assert_eq!(super::status(&operators, Method::GET, "/locks").await?, StatusCode::FORBIDDEN);
        Ok(())
    }
}

mod any_service {
    use super::*;

    struct Order {
        goods: Option<u64>,
    }

    #[tokio::test]
    async fn plain() -> Result {
        let manager = LockManager::in_memory();
        let layer = LockLayer::new(manager, |order: &Order| order.goods.map(|id| format!("goods:{id}")));
        let shop = ServiceBuilder::new()
            .timeout(Duration::from_secs(30))
            .layer(layer)
            .service(service_fn(async |_: Order| Ok::<_, BoxError>("sold")));

        assert_eq!(shop.clone().oneshot(Order { goods: Some(1) }).await?, "sold");
        assert_eq!(shop.oneshot(Order { goods: None }).await?, "sold");
        Ok(())
    }
}

fn grpc(manager: LockManager) -> impl Sized {
    let per_account = scoped("account", header::<String>("x-account"));
    let layer = LockLayer::grpc(manager, per_account)
        .options(LeaseOptions::new().wait(Duration::from_secs(2)).max_hold(Duration::from_secs(60)));

    let layer = layer.shared_for(["/bank.Accounts/Balance", "bank.Reports"]);

    [layer]
}

mod duplicates {
    use std::fmt;

    use axum::{Extension, body::Bytes};

    use super::*;

    #[derive(Clone)]
    struct Account(u64);

    impl fmt::Display for Account {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    struct Ledger;

    impl Ledger {
        async fn charge(&self, account: u64, key: &str, answer: &[u8]) -> Result<bool> {
            Ok(account == 7 && key == "payments:7:1" && answer.ends_with(b"charged"))
        }
    }

    async fn charge(Extension(attempt): Extension<Attempt>) -> Result<Response, String> {
        charge_once(7, &Ledger, &attempt).await.map_err(|error| error.to_string())
    }

    async fn charge_once(account: u64, ledger: &Ledger, attempt: &Attempt) -> Result<Response> {
        let receipt = Response::new(Bytes::from_static(b"charged"));
        let answer = attempt.answer(&receipt);
        // INSERT INTO charges …; INSERT INTO answers (key, answer, until) VALUES (…) ON CONFLICT (key) DO UPDATE
        //     SET answer = excluded.answer, until = excluded.until WHERE answers.until <= now();
        let is_first = ledger.charge(account, attempt.key(), &answer).await?; // no row: rolled back
        if !is_first {
            return Err("another key than that of the test".into());
        }
        Ok(receipt.map(Body::from))
    }

    async fn over_redis(manager: LockManager) -> Result<Router> {
        let client = redis::Client::open("redis://answers.internal")?;
        let answers = RedisAnswers::new(&client, client.get_connection_manager().await?);
        let whose = scoped("payments", extension::<Account>()); // `Account` has `Display`
        let once = IdempotencyLayer::http(manager, whose, answers)
            .keep(Duration::from_secs(24 * 3600))
            .wait(Duration::from_secs(2));
        once.check_for::<Body>()?;
        let app = Router::new().route("/payments", post(charge)).route_layer(once);
        Ok(app)
    }

    #[tokio::test]
    async fn a_duplicate_gets_the_first_answer() -> Result {
        let manager = LockManager::in_memory();
        let whose = scoped("payments", extension::<Account>());
        let once = IdempotencyLayer::http(manager, whose, MemoryAnswers::new());
        let app = Router::new().route("/payments", post(charge)).route_layer(once);

        for is_replayed in [false, true] {
            let request = Request::post("/payments").header("idempotency-key", "1").extension(Account(7));
            let response = app.clone().oneshot(request.body(Body::from("42"))?).await?;
            assert_eq!(response.status(), StatusCode::OK);
            assert_eq!(response.headers().contains_key("idempotent-replayed"), is_replayed);
        }
        Ok(())
    }
}
