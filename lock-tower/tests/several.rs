//! Several keys of a request: extractors of which only some have a key, and layers around layers.

use crate::support::limit;
use lock_core::LockManager;
use lock_tower::{BoxError, Choice, IntoChoice, KeyExtractor, LockLayer};
use tower::{Layer, ServiceExt, service_fn};

/// Every key that the extractors below can give for the requests of these tests.
const KEYS: [&str; 5] = ["odd:7", "odd:11", "small", "small:6", "small:7"];

type Part = fn(&u64) -> Choice;

fn odd(request: &u64) -> Choice {
    (request % 2 == 1).then(|| format!("odd:{request}")).into_choice()
}

fn small(request: &u64) -> Choice {
    (*request < 10).then(|| ["small".to_owned(), format!("small:{request}")]).into_choice()
}

/// Returns the keys that are held while a request is served.
async fn held_for<K>(key: K, request: u64) -> Vec<&'static str>
where
    K: KeyExtractor<u64> + Clone + Send + Sync + 'static,
{
    let manager = LockManager::in_memory();
    let service = service_fn({
        let manager = manager.clone();
        move |_: u64| {
            let manager = manager.clone();
            async move {
                let mut held = Vec::new();
                for key in KEYS {
                    if manager.is_locked(key).await? {
                        held.push(key);
                    }
                }
                Ok::<_, BoxError>(held)
            }
        }
    });
    LockLayer::new(manager, key).layer(service).oneshot(request).await.expect("it is served")
}

#[tokio::test(start_paused = true)]
async fn of_several_extractors_one_without_a_key_leaves_those_of_the_others() {
    let _limit = limit();
    let both: [Part; 2] = [odd, small];
    for parts in [both, [both[1], both[0]]] {
        assert_eq!(held_for(parts, 7).await, ["odd:7", "small", "small:7"]);
        assert_eq!(held_for(parts, 6).await, ["small", "small:6"]);
        assert_eq!(held_for(parts, 11).await, ["odd:11"]);
        assert!(held_for(parts, 12).await.is_empty(), "it passes without a lock: none of them has a key");
        // Arrays in an array.
        let never: Part = |_| Choice::Pass;
        for nested in [[[never; 2], parts], [parts, [never; 2]]] {
            assert_eq!(held_for(nested, 6).await, ["small", "small:6"]);
            assert_eq!(held_for(nested, 11).await, ["odd:11"]);
            assert!(held_for(nested, 12).await.is_empty());
        }
    }
}

#[cfg(feature = "axum")]
mod in_axum {
    use super::*;
    use crate::support::Failing;
    use axum::{Router, body::Body, routing::post};
    use http::{Method, Request};
    use http_body_util::BodyExt;
    use lock_core::ErrorKind;
    use lock_tower::{
        Held, HeldAll, Http, OnBackendError,
        key::{header, scoped},
    };

    /// Shows the leases that a handler sees: of all keys, and that of a request with one.
    async fn leases(all: Option<HeldAll>, one: Option<Held>) -> String {
        let keys = |all: &HeldAll| all.iter().map(|lease| lease.key().to_owned()).collect::<Vec<_>>().join(" ");
        let all = all.as_ref().map_or_else(|| "none".to_owned(), keys);
        format!("all: {all}, one: {}", one.as_ref().map_or("none", |one| one.key()))
    }

    async fn answer(service: Router, request: Request<Body>) -> String {
        let response = service.oneshot(request).await.expect("axum answers");
        let body = response.into_body().collect().await.expect("the body is there").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_is_optional_and_missing_leaves_the_key_of_the_other() {
        let _limit = limit();
        let part = |scope, name| scoped(scope, header::<String>(name).optional());
        let ask = async |names: &[&str]| {
            let layer = LockLayer::http(LockManager::in_memory(), [part("from", "x-from"), part("to", "x-to")]);
            let mut request = Request::post("/");
            for name in names {
                request = request.header(*name, "7");
            }
            let service = Router::new().route("/", post(leases)).route_layer(layer);
            answer(service, request.body(Body::empty()).unwrap()).await
        };
        assert_eq!(ask(&["x-from", "x-to"]).await, "all: from:7 to:7, one: none");
        assert_eq!(ask(&["x-from"]).await, "all: from:7, one: from:7");
        assert_eq!(ask(&["x-to"]).await, "all: to:7, one: to:7");
        assert_eq!(ask(&[]).await, "all: none, one: none");
    }

    #[tokio::test(start_paused = true)]
    async fn extractors_that_give_one_key_between_them_show_its_lease_as_one_extractor_does() {
        let _limit = limit();
        let account = |name| scoped("account", header::<String>(name));
        let layer = LockLayer::http(LockManager::in_memory(), [account("x-from"), account("x-to")]);
        let service = Router::new().route("/", post(leases)).route_layer(layer);
        let ask = async |from, to| {
            let request = Request::post("/").header("x-from", from).header("x-to", to);
            answer(service.clone(), request.body(Body::empty()).unwrap()).await
        };
        assert_eq!(ask("7", "7").await, "all: account:7, one: account:7");
        assert_eq!(ask("7", "8").await, "all: account:7 account:8, one: none");
    }

    /// Returns the leases that a handler sees inside two layers.
    async fn nested<O, I>(outer: O, inner: I) -> String
    where
        O: KeyExtractor<Request<Body>> + Clone + Send + Sync + 'static,
        I: KeyExtractor<Request<Body>> + Clone + Send + Sync + 'static,
    {
        let manager = LockManager::in_memory();
        let (outer, inner) = (LockLayer::http(manager.clone(), outer), LockLayer::http(manager, inner));
        let service = Router::new().route("/", post(leases)).route_layer(inner).route_layer(outer);
        answer(service, Request::post("/").body(Body::empty()).expect("a request")).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_sees_the_leases_of_the_innermost_layer_alone() {
        let _limit = limit();
        let (outer, inner) = (["outer:1", "outer:2"], ["inner:1", "inner:2"]);
        assert_eq!(nested("outer", "inner").await, "all: inner, one: inner");
        assert_eq!(nested(outer, "inner").await, "all: inner, one: inner");
        assert_eq!(nested("outer", inner).await, "all: inner:1 inner:2, one: none");
        assert_eq!(nested(outer, inner).await, "all: inner:1 inner:2, one: none");
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_whose_innermost_layer_passes_without_a_lock_sees_no_lease_of_an_outer_one() {
        let _limit = limit();
        const NONE: &str = "all: none, one: none";
        let without_a_key = |_: &Request<Body>| None::<String>;
        assert_eq!(nested("outer", without_a_key).await, NONE);
        assert_eq!(nested(["outer:1", "outer:2"], without_a_key).await, NONE);

        let outer = || LockLayer::http(LockManager::in_memory(), "outer");
        let inside = async |inner: LockLayer<&'static str, Http>| {
            let service = Router::new().route("/", post(leases)).route_layer(inner).route_layer(outer());
            answer(service, Request::post("/").body(Body::empty()).unwrap()).await
        };
        let inner = || LockLayer::http(LockManager::in_memory(), "inner");
        assert_eq!(inside(inner().methods([Method::PUT])).await, NONE);
        let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "down")).build().unwrap();
        let let_through = LockLayer::http(down, "inner").on_backend_error(OnBackendError::LetThrough);
        assert_eq!(inside(let_through).await, NONE);
    }

    #[cfg(feature = "idempotency")]
    #[tokio::test(start_paused = true)]
    async fn a_layer_for_duplicates_is_a_layer_among_others() {
        use lock_tower::idempotency::{IdempotencyLayer, MemoryAnswers};

        let _limit = limit();
        let manager = LockManager::in_memory();
        let routes = || Router::new().route("/", post(leases));
        let once = || {
            let whose = scoped("paid", header::<String>("x-account"));
            IdempotencyLayer::http(manager.clone(), whose, MemoryAnswers::new()).optional()
        };
        let request = |key: Option<&str>| {
            let request =
                key.into_iter().fold(Request::post("/"), |request, key| request.header("idempotency-key", key));
            request.header("x-account", "7").body(Body::empty()).unwrap()
        };
        let goods = || {
            LockLayer::http(manager.clone(), |request: &Request<Body>| {
                request.headers().contains_key("x-goods").then_some("goods")
            })
        };
        // Of a request that passes the innermost layer there is none.
        let service = routes().route_layer(goods()).route_layer(once());
        assert_eq!(answer(service, request(Some("1"))).await, "all: none, one: none");
        // It is the innermost itself.
        let service = routes().route_layer(once()).route_layer(LockLayer::http(manager.clone(), "goods"));
        assert_eq!(answer(service.clone(), request(Some("2"))).await, "all: paid:7:2, one: paid:7:2");
        assert_eq!(answer(service, request(None)).await, "all: none, one: none");
    }
}
