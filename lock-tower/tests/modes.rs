//! Requests that share a key, that take permits, and that have several keys.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::support::{
    self, Floor, limit, lock_error, poll_once, serve, soon, until, until_free, until_waited_for, works_forever,
};
use axum::{
    Router,
    body::Body,
    extract::State,
    routing::{any, get, post},
};
use http::{Method, Request};
use lock_core::{LockManager, Mode, backend::MemoryBackend};
use lock_tower::{
    BoxError, Held, HeldAll, Http, LockLayer,
    key::{path_param, scoped},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Semaphore, mpsc},
    task::JoinHandle,
};
use tower::{Layer, ServiceExt};

/// Handlers that say which lease they have, and wait until they may end.
#[derive(Clone)]
struct Desk {
    served: mpsc::UnboundedSender<(String, Mode)>,
    may_end: Arc<Semaphore>,
}

impl Desk {
    fn new() -> (Self, mpsc::UnboundedReceiver<(String, Mode)>) {
        let (served, seen) = mpsc::unbounded_channel();
        (Self { served, may_end: Arc::new(Semaphore::new(0)) }, seen)
    }

    fn service<K>(self, layer: LockLayer<K, Http>) -> Router
    where
        K: lock_tower::KeyExtractor<Request<Body>> + Clone + Send + Sync + 'static,
    {
        async fn work(State(desk): State<Desk>, Held(lease): Held, request: Request<Body>) -> &'static str {
            let name = request.headers()["x-name"].to_str().unwrap().to_owned();
            desk.served.send((name, lease.mode())).unwrap();
            desk.may_end.acquire().await.unwrap().forget();
            "done"
        }
        Router::new().route("/{goods}", any(work)).route_layer(layer).with_state(self)
    }
}

/// Sends a request and returns the status line.
fn ask(address: SocketAddr, method: &str, path: &str, name: &str) -> JoinHandle<String> {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: shop\r\nx-name: {name}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    tokio::spawn(async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    })
}

const OK: &str = "HTTP/1.1 200 OK";

#[tokio::test]
async fn readers_are_served_together_and_a_writer_alone_in_the_order_in_which_they_came() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let layer = LockLayer::http(manager.clone(), scoped("goods", path_param::<u64>("goods"))).shared_for([Method::GET]);
    let (desk, mut served) = Desk::new();
    let may_end = Arc::clone(&desk.may_end);
    let address = serve(desk.service(layer)).await;
    let shared = |name: &str| (name.to_owned(), Mode::Shared);

    let mut calls = vec![ask(address, "GET", "/1", "a")];
    assert_eq!(soon(served.recv()).await, Some(shared("a")));
    calls.push(ask(address, "HEAD", "/1", "b"));
    assert_eq!(soon(served.recv()).await, Some(shared("b")), "two at once");
    calls.push(ask(address, "POST", "/1", "writer"));
    until_waited_for(&manager, "goods:1").await;
    calls.push(ask(address, "GET", "/1", "late"));
    // Another key is free meanwhile.
    calls.push(ask(address, "POST", "/2", "elsewhere"));
    assert_eq!(soon(served.recv()).await, Some(("elsewhere".to_owned(), Mode::Exclusive)));
    assert!(served.try_recv().is_err(), "a reader passed a writer, or a writer was not alone");

    may_end.add_permits(3);
    assert_eq!(soon(served.recv()).await, Some(("writer".to_owned(), Mode::Exclusive)));
    assert!(served.try_recv().is_err(), "the writer is not alone");
    may_end.add_permits(1);
    assert_eq!(soon(served.recv()).await, Some(shared("late")));
    may_end.add_permits(1);
    for call in calls {
        assert_eq!(soon(call).await.unwrap(), OK);
    }
    until_free(&manager, "goods:1").await;
}

#[tokio::test(start_paused = true)]
async fn head_is_locked_as_get_is_since_a_route_answers_it_by_the_handler_of_get() {
    let _limit = limit();
    async fn mode(lease: Option<Held>) -> [(&'static str, String); 1] {
        [("x-mode", lease.map_or_else(|| "none".to_owned(), |lease| lease.mode().to_string()))]
    }
    let layer = || LockLayer::http(LockManager::in_memory(), "key");
    for (layer, expected) in [
        (layer(), "none"),
        (layer().methods([Method::GET]), "exclusive"),
        (layer().shared_for([Method::GET]), "shared"),
        (layer().methods([Method::GET]).permits(2), "1 of 2 permits"),
    ] {
        for method in [Method::GET, Method::HEAD] {
            let service = Router::new().route("/", get(mode)).route_layer(layer.clone());
            let request = Request::builder().method(method.clone()).uri("/").body(Body::empty()).unwrap();
            let answer = service.oneshot(request).await.unwrap();
            assert_eq!(answer.headers()["x-mode"], expected, "{method}");
        }
    }
}

#[tokio::test]
async fn no_more_than_the_permits_are_served_over_all_instances() {
    let _limit = limit();
    let store = MemoryBackend::new();
    let (desk, mut served) = Desk::new();
    let may_end = Arc::clone(&desk.may_end);
    let mut instances = Vec::new();
    for _ in 0..3 {
        let manager = LockManager::builder().backend(store.clone()).build().unwrap();
        let layer = LockLayer::http(manager, scoped("tenant", path_param::<u64>("goods"))).permits(2);
        instances.push(serve(desk.clone().service(layer)).await);
    }
    // GET counts, too.
    let calls: Vec<_> = (0..12).map(|n| ask(instances[n % 3], ["GET", "POST"][n % 2], "/7", "x")).collect();
    let is_permit =
        |served: Option<(String, Mode)>| matches!(served, Some((_, Mode::Permits { total: 2, take: 1, .. })));
    for _ in 0..2 {
        assert!(is_permit(soon(served.recv()).await));
    }
    for _ in 0..10 {
        assert!(served.try_recv().is_err(), "a third is inside");
        may_end.add_permits(1);
        assert!(is_permit(soon(served.recv()).await));
    }
    may_end.add_permits(2);
    for call in calls {
        assert_eq!(soon(call).await.unwrap(), OK);
    }
}

#[tokio::test]
async fn without_methods_that_are_named_a_permit_is_not_for_those_that_are_not() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _all = manager.lock("tenant:7").permits(1).await.unwrap();
    let layer = LockLayer::http(manager, scoped("tenant", path_param::<u64>("tenant")))
        .permits(1)
        .try_only()
        .methods([http::Method::POST]);
    let service = Router::new().route("/{tenant}", any(async || "done")).route_layer(layer);
    let address = serve(service).await;
    assert_eq!(soon(ask(address, "GET", "/7", "x")).await.unwrap(), OK);
    assert_eq!(soon(ask(address, "POST", "/7", "x")).await.unwrap(), "HTTP/1.1 429 Too Many Requests");
}

#[tokio::test]
async fn a_layer_with_permits_and_readers_is_misconfigured_and_so_is_one_without_permits() {
    let layer = || LockLayer::http(LockManager::in_memory(), "stock");
    type Asked = Request<Body>;
    let both = layer().permits(3).shared_for([http::Method::GET]).check_for::<Asked>().unwrap_err();
    assert!(both.to_string().contains("`permits` and `shared_for`"), "{both}");
    let none = layer().permits(0).check_for::<Asked>().unwrap_err();
    assert!(none.to_string().contains("`permits(0)` is not between 1 and 1000000"), "{none}");
    layer().shared_for([]).permits(3).check_for::<Asked>().unwrap();
    layer().shared_for([http::Method::GET]).check_for::<Asked>().unwrap();
}

#[tokio::test]
async fn another_total_is_waited_for_and_its_error_names_both() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let _one = manager.lock("tenant").permits(2).await.unwrap();
    let layer = LockLayer::new(manager, "tenant").permits(3).try_only();
    let refused = soon(layer.layer(works_forever(&Floor::default())).oneshot(1)).await.unwrap_err();
    let said = lock_error(&refused).to_string();
    assert!(said.contains("the key has 2") && said.contains("of 3 permits"), "{said}");
}

/// The accounts of `from * 10 + to`.
fn accounts(request: &u64) -> [String; 2] {
    [format!("account:{}", request / 10), format!("account:{}", request % 10)]
}

#[tokio::test(start_paused = true)]
async fn all_keys_of_a_request_are_held_while_it_is_served_and_free_when_it_has_answered() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let layer = LockLayer::new(manager.clone(), accounts);
    let mut work = std::pin::pin!(layer.layer(support::works(&floor)).oneshot(21));
    assert!(poll_once(&mut work).is_pending());
    assert_eq!(floor.inside(), 1);
    for key in ["account:1", "account:2"] {
        assert!(manager.is_locked(key).await.unwrap());
    }
    work.await.unwrap();
    for key in ["account:1", "account:2"] {
        assert!(!manager.is_locked(key).await.unwrap(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_have_one_key_in_common_are_served_one_at_a_time() {
    let _limit = limit();
    let floor = Floor::default();
    let service = LockLayer::new(LockManager::in_memory(), accounts).layer(support::works(&floor));
    // In both orders, which must not deadlock.
    let calls: Vec<_> = [12, 21, 13, 31].map(|request| tokio::spawn(service.clone().oneshot(request))).into();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((floor.finished(), floor.most()), (4, 1));
}

#[tokio::test]
async fn one_busy_key_of_several_refuses_the_request_and_keeps_no_other() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let _busy = manager.lock("account:2").await.unwrap();
    let layer = LockLayer::new(manager.clone(), accounts);
    let refused = layer.clone().try_only().layer(works_forever(&floor)).oneshot(12).await.unwrap_err();
    let error = lock_error(&refused);
    assert!(error.is_busy() && error.key() == Some("account:2"), "{error}");
    until_free(&manager, "account:1").await;

    // No key at all, and too many that wait for one of them.
    let nothing = LockLayer::new(manager.clone(), |_: &u64| Vec::<String>::new());
    let refused = nothing.layer(works_forever(&floor)).oneshot(1).await.unwrap_err();
    assert!(lock_error(&refused).to_string().contains("no key"), "{refused}");
    let limited = layer.max_waiters_per_key(1).layer(works_forever(&floor));
    let mut waiter = std::pin::pin!(limited.clone().oneshot(12));
    assert!(poll_once(&mut waiter).is_pending());
    let refused: BoxError = limited.oneshot(13).await.unwrap_err();
    assert!(refused.is::<lock_tower::Overloaded>(), "{refused}");
    assert_eq!(floor.begun(), 0);
}

#[tokio::test]
async fn a_dropped_request_leaves_none_of_its_keys_behind() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let floor = Floor::default();
    let service = LockLayer::new(manager.clone(), accounts).layer(works_forever(&floor));
    let work = tokio::spawn(service.clone().oneshot(12));
    until("it is served", || floor.inside() == 1).await;
    let waiter = tokio::spawn(service.oneshot(23));
    until_waited_for(&manager, "account:2").await;
    waiter.abort();
    work.abort();
    for key in ["account:1", "account:2", "account:3"] {
        until_free(&manager, key).await;
    }
}

#[tokio::test]
async fn an_axum_handler_sees_the_leases_of_all_its_keys() {
    let _limit = limit();
    let manager = LockManager::in_memory();
    let account = |name| scoped("account", path_param::<u64>(name));
    async fn transfer(HeldAll(leases): HeldAll, alone: Option<Held>) -> String {
        let keys: Vec<_> = leases.iter().map(|lease| format!("{}={}", lease.key(), lease.is_held())).collect();
        format!("{} {}", keys.join(" "), alone.is_some())
    }
    let one = LockLayer::http(manager.clone(), account("from"));
    let several = LockLayer::http(manager.clone(), [account("from"), account("to")]);
    let service = Router::new()
        .route("/transfer/{from}/{to}", post(transfer).route_layer(several.until_body_end()))
        .route("/close/{from}", post(transfer).route_layer(one));
    let address = serve(service).await;
    let body = async |path: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("POST {path} HTTP/1.1\r\nhost: bank\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        soon(stream.read_to_string(&mut answer)).await.unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    };
    assert_eq!(body("/transfer/7/3").await, "account:3=true account:7=true false");
    assert_eq!(body("/transfer/7/7").await, "account:7=true true", "one lease, as with one extractor");
    assert_eq!(body("/close/7").await, "account:7=true true");
    for key in ["account:3", "account:7"] {
        soon(async {
            while manager.is_locked(key).await.unwrap() {
                tokio::time::sleep(Duration::from_millis(5)).await
            }
        })
        .await;
    }
}
