//! Ready-made keys, in an axum router.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::fmt;

use crate::support::{Log, limit};
use axum::{Router, body::Body, extract::Path, routing::post};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use lock_core::LockManager;
use lock_tower::{
    Held, KeyExtractor, LockLayer,
    key::{Header, Scoped, extension, header, method_and_path, path_param, scoped},
};
use tower::{Layer, ServiceExt};

/// Shows the key that is held, or that none is.
async fn key_of(lease: Option<Held>) -> String {
    lease.map_or_else(|| "no lock".to_owned(), |lease| lease.key().to_owned())
}

async fn ask(service: Router, request: Request<Body>) -> (StatusCode, String) {
    let response = service.oneshot(request).await.unwrap();
    let status = response.status();
    (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
}

fn locked<K>(key: K) -> Router
where
    K: KeyExtractor<Request<Body>> + Clone + Send + Sync + 'static,
{
    let layer = LockLayer::http(LockManager::in_memory(), key);
    Router::new().route("/goods/{id}", post(key_of)).route_layer(layer)
}

fn to(path: &str) -> Request<Body> {
    Request::post(path).body(Body::empty()).unwrap()
}

fn with(value: impl TryInto<HeaderValue, Error: fmt::Debug>) -> Request<Body> {
    let mut request = to("/goods/1");
    request.headers_mut().append("x-account", value.try_into().unwrap());
    request
}

#[tokio::test(start_paused = true)]
async fn bad_input_67_a_missing_or_empty_header_is_refused_or_passes_where_it_is_optional() {
    let _limit = limit();
    for request in [|| to("/goods/1"), || with("")] {
        let (status, text) = ask(locked(scoped("account", header::<String>("x-account"))), request()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(text.contains("the header x-account is"), "{text}");
        let (status, text) = ask(locked(scoped("account", header::<String>("x-account").optional())), request()).await;
        assert_eq!((status, text.as_str()), (StatusCode::OK, "no lock"));
    }
}

#[tokio::test(start_paused = true)]
async fn bad_input_68_a_header_that_is_no_key_is_refused_also_where_it_is_optional() {
    let _limit = limit();
    let twice = || {
        let mut request = with("7");
        request.headers_mut().append("x-account", HeaderValue::from_static("7"));
        request
    };
    let cases: [(&str, &dyn Fn() -> Request<Body>); 4] = [
        ("not visible ASCII", &|| with("ä".as_bytes())),
        ("not visible ASCII", &|| with(&b"\xff\xfe"[..])),
        ("too long", &|| with("k".repeat(1025))),
        ("more than once", &twice),
    ];
    for (what, request) in cases {
        for service in [
            locked(scoped("account", header::<String>("x-account"))),
            locked(scoped("account", header::<String>("x-account").optional())),
        ] {
            let (status, text) = ask(service, request()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{what}");
            assert!(text.contains(what), "{what}: {text}");
        }
    }
    let (status, text) = ask(locked(scoped("account", header::<String>("x-account"))), with("k".repeat(1016))).await;
    assert_eq!((status, text.len()), (StatusCode::OK, 1024));
}

#[tokio::test(start_paused = true)]
async fn a_path_parameter_is_decoded_once() {
    let _limit = limit();
    for (path, key) in [
        ("/goods/1", "goods:1"),
        ("/goods/%31", "goods:1"),
        ("/goods/a%2Fb", "goods:a/b"),
        ("/goods/a%252Fb", "goods:a%252Fb"),
        ("/goods/a:b", "goods:a%3Ab"),
        ("/goods/50%25", "goods:50%25"),
        ("/goods/%F0%9F%A6%80%20x", "goods:\u{1f980} x"),
    ] {
        let (status, text) = ask(locked(scoped("goods", path_param::<String>("id"))), to(path)).await;
        assert_eq!((status, text.as_str()), (StatusCode::OK, key), "{path}");
    }
    let (status, text) = ask(locked(scoped("goods", path_param::<String>("id"))), to("/goods/%ff")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("UTF-8"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_path_parameter_asked_for_before_routing_is_an_error_with_the_remedy_in_the_log() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let router: Router = Router::new().route("/goods/{id}", post(key_of));
    let around =
        LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<String>("id").optional())).layer(router);
    assert_eq!(around.oneshot(to("/goods/1")).await.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    let (status, _) = ask(locked(scoped("goods", path_param::<String>("name"))), to("/goods/1")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let lines = log.lines().join("\n");
    assert!(lines.contains("Router::route_layer") && lines.contains("/goods/{name}"), "{lines}");
    let (status, text) = ask(locked(scoped("goods", path_param::<String>("name").optional())), to("/goods/1")).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "no lock"));
}

#[tokio::test(start_paused = true)]
async fn unknown_paths_are_answered_with_404_and_no_handler_runs_without_its_lock() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let layer = LockLayer::http(LockManager::in_memory(), scoped("goods", path_param::<u64>("unknown_paths")));
    let routes = || Router::new().route("/goods/{unknown_paths}", post(key_of));
    let service = routes().layer(layer.clone());
    for path in ["/nothing", "/", "/goods/1/more"] {
        let (status, text) = ask(service.clone(), to(path)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(text.contains("no route of the service has this path"), "{path}: {text}");
    }
    let (status, text) = ask(service, to("/goods/7")).await;
    assert_eq!((status, text.as_str()), (StatusCode::OK, "goods:7"));

    // Here the router comes behind the layer, and the request is the same.
    let optional = scoped("goods", path_param::<u64>("unknown_paths").optional());
    let optional = LockLayer::http(LockManager::in_memory(), optional);
    for router in [
        Router::new().fallback_service(layer.layer(routes())),
        Router::new().fallback_service(routes()).layer(layer.clone()),
        Router::new().fallback(key_of).layer(layer.clone()),
        Router::new().fallback_service(optional.layer(routes())),
    ] {
        let (status, text) = ask(router, to("/goods/7")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    }
    let lines: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("ERROR")).collect();
    assert!(lines.len() == 1 && lines[0].contains("`Router::route_layer`"), "{lines:?}");

    // Around a nested service, too: axum tells nobody that its prefix was matched.
    for router in [
        Router::new().nest_service("/shop", routes()).layer(layer.clone()),
        Router::new().nest_service("/shop", routes()).route_layer(layer.clone()),
    ] {
        assert_eq!(ask(router, to("/shop/goods/7")).await.0, StatusCode::NOT_FOUND);
    }
    // A nested service surely is behind the layer.
    for service in [
        Router::new().nest_service("/shop", layer.layer(routes())),
        Router::new().nest_service("/shop", optional.layer(routes())),
    ] {
        assert_eq!(ask(service, to("/shop/goods/7")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    }
    // With `route_layer` the fallback is that of the router.
    let service = routes().route_layer(layer).fallback(key_of);
    assert_eq!(ask(service, to("/nothing")).await, (StatusCode::OK, "no lock".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn two_path_parameters_of_one_name_are_an_error_with_the_remedy_in_the_log() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let nested = Router::new().nest_service("/shops/{id}", locked(scoped("goods", path_param::<u64>("id"))));
    assert_eq!(ask(nested, to("/shops/7/goods/1")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let lines = log.lines().join("\n");
    assert!(lines.contains("two path parameters id"), "{lines}");
}

#[tokio::test(start_paused = true)]
async fn method_and_path_are_one_key_however_they_are_spelt_and_nested() {
    let _limit = limit();
    for path in ["/goods/1?a=b", "/goods/%31"] {
        let (_, text) = ask(locked(scoped("shop", method_and_path())), to(path)).await;
        assert_eq!(text, "shop:POST /goods/1");
    }
    for (plain, encoded) in [("a@b", "a%40b"), ("a!b", "a%21b"), ("100%", "100%25")] {
        let router = || Router::new().route("/goods/{id}", post(async |Path(id): Path<String>| id));
        let read = async |id| ask(router(), to(&format!("/goods/{id}"))).await;
        let key = async |id| ask(locked(scoped("shop", method_and_path())), to(&format!("/goods/{id}"))).await;
        assert_eq!(read(plain).await, read(encoded).await, "one id to the handler");
        assert_eq!(key(plain).await, key(encoded).await, "and one key");
    }
    let key = |method| {
        scoped("shop", method_and_path()).extract(&Request::builder().method(method).uri("/x").body(()).unwrap())
    };
    let keys = ["GET", "HEAD", "OPTIONS"].map(|method| format!("{:?}", key(method)));
    assert_eq!(
        keys,
        ["GET", "GET", "OPTIONS"].map(|method| format!("Lock(\"shop:{method} /x\")")),
        "one handler is one key"
    );
    let nested = Router::new().nest("/north", locked(scoped("shop", method_and_path())));
    assert_eq!(ask(nested, to("/north/goods/1")).await.1, "shop:POST /north/goods/1");
}

#[tokio::test(start_paused = true)]
async fn an_extension_is_a_key() {
    let _limit = limit();
    #[derive(Clone)]
    struct Account(u64);

    impl fmt::Display for Account {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}", self.0)
        }
    }

    let authenticated = || locked(scoped("account", extension::<Account>())).layer(axum::Extension(Account(7)));
    assert_eq!(ask(authenticated(), to("/goods/1")).await.1, "account:7");
    let (status, text) = ask(locked(scoped("account", extension::<Account>())), to("/goods/1")).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(text.contains("lock_misconfigured"), "{text}");
    assert_eq!(ask(locked(scoped("account", extension::<Account>().optional())), to("/goods/1")).await.1, "no lock");
}

#[tokio::test(start_paused = true)]
async fn parts_of_a_key_do_not_run_into_each_other() {
    let _limit = limit();
    let key = |account: &'static str, goods: &'static str| async move {
        let parts = scoped("sale", (header::<String>("x-account"), path_param::<String>("id")));
        let mut request = to(&format!("/goods/{goods}"));
        request.headers_mut().insert("x-account", HeaderValue::from_static(account));
        ask(locked(parts), request).await.1
    };
    assert_eq!(key("7", "1").await, "sale:7:1");
    assert_ne!(key("a:b", "c").await, key("a", "b:c").await);
    assert_ne!(key("a%3A", "b").await, key("a:", "b").await);
    let (status, _) =
        ask(locked(scoped("sale", (header::<String>("x-account"), path_param::<String>("id")))), to("/goods/1")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "one part refuses all");
    let (_, text) = ask(
        locked(scoped("sale", (header::<String>("x-account").optional(), path_param::<String>("id")))),
        to("/goods/1"),
    )
    .await;
    assert_eq!(text, "no lock", "one part lets all through");
}

#[tokio::test(start_paused = true)]
async fn held_without_a_lease_is_an_error_of_the_server() {
    let _limit = limit();
    let service = Router::new().route("/", post(async |Held(lease): Held| lease.key().to_owned()));
    assert_eq!(ask(service, to("/")).await.0, StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_can_never_work_is_found_by_the_check_and_told_once_before_the_first_request() {
    let _limit = limit();
    let (log, _logging) = Log::watch();
    let broken = |key: Scoped<Header>, remedy: &'static str| async move {
        let layer = LockLayer::http(LockManager::in_memory(), key).name("sell");
        let found = layer.check().unwrap_err().to_string();
        assert!(found.starts_with("the lock layer \"sell\"") && found.contains(remedy), "{found}");
        let mut service = layer.layer(Router::new().route("/", post(key_of)));
        ServiceExt::<Request<Body>>::ready(&mut service).await.unwrap();
        ServiceExt::<Request<Body>>::ready(&mut service.clone()).await.unwrap();
        for _ in 0..2 {
            let response = service.clone().oneshot(to("/")).await.unwrap();
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        }
        // As a router does for each connection.
        let mut again = layer.layer(Router::new().route("/", post(key_of)));
        ServiceExt::<Request<Body>>::ready(&mut again).await.unwrap();
    };
    broken(scoped("goods", header::<String>("x account")), "cannot be the name of a header").await;
    broken(scoped("", header::<String>("x-account")), "name what is locked").await;
    broken(scoped("50%", header::<String>("x-account")), "`%25`").await;
    let told = log.lines().iter().filter(|line| line.contains("every request will be refused")).count();
    assert_eq!(told, 3, "{:?}", log.lines());
    let optional = scoped("goods", header::<String>("x account").optional());
    let found = LockLayer::http(LockManager::in_memory(), optional).check().unwrap_err();
    assert!(found.to_string().contains("cannot be the name of a header"), "also where it is optional: {found}");
    LockLayer::http(LockManager::in_memory(), scoped("50%25", header::<String>("x-account"))).check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_cannot_name_the_key_of_another_scope() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _job = manager.lock("jobs:nightly").await.unwrap();
    let layer = LockLayer::http(manager, scoped("account", header::<String>("x-account"))).try_only();
    let service: Router = Router::new().route("/goods/{id}", post(key_of)).route_layer(layer);
    let answer = ask(service.clone(), with("jobs:nightly")).await;
    assert_eq!(answer, (StatusCode::OK, "account:jobs%3Anightly".to_owned()));
    let answer = ask(service, with("7:jobs")).await;
    assert_eq!(answer, (StatusCode::OK, "account:7%3Ajobs".to_owned()));
}

#[tokio::test]
async fn texts_of_one_value_are_one_key_and_other_texts_are_refused() {
    for path in ["/goods/7", "/goods/07", "/goods/%37", "/goods/+7"] {
        let (status, text) = ask(locked(scoped("goods", path_param::<u64>("id"))), to(path)).await;
        assert_eq!((status, text.as_str()), (StatusCode::OK, "goods:7"), "{path}");
    }
    let (status, text) = ask(locked(scoped("goods", path_param::<u64>("id"))), to("/goods/a%3Ab")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("the path parameter id is not valid"), "{text}");
    let account = |value| Request::post("/goods/1").header("x-account", value).body(Body::empty()).unwrap();
    let (_, text) = ask(locked(scoped("account", header::<u64>("x-account"))), account("007")).await;
    assert_eq!(text, "account:7");
    let (status, _) = ask(locked(scoped("account", header::<u64>("x-account").optional())), account("7a")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "what is there and cannot be used does not pass");
}
