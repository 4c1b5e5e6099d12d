//! The attribute, the layer and plain code lock the same goods by the same key, whatever their ids hold: over real HTTP, in
//! two instances on one Redis.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    extract::{Path, State},
    routing::post,
};
use lock_core::{LeaseOptions, LockManager, distributed_lock, key};
use lock_tests::{LONG, RedisServer, SOON};
use lock_tower::{
    LockLayer,
    key::{path_param, scoped},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Barrier,
    task::JoinSet,
    time::timeout,
};

use crate::patient;

/// Where the sales of all instances meet.
#[derive(Clone, Default)]
struct Floor {
    /// How many sales of an id are under way, and how many were at most.
    inside: Arc<Mutex<HashMap<String, (usize, usize)>>>,
    /// Where sales wait for one another, if they do.
    meeting: Option<Arc<Barrier>>,
}

impl Floor {
    async fn sell(&self, id: &str) {
        self.count(id, |(inside, most)| {
            *inside += 1;
            *most = (*most).max(*inside);
        });
        match &self.meeting {
            Some(meeting) => {
                meeting.wait().await;
            }
            // Long enough for another to come in, if the lock lets it.
            None => tokio::time::sleep(Duration::from_millis(3)).await,
        }
        self.count(id, |(inside, _)| *inside -= 1);
    }

    fn count(&self, id: &str, change: impl FnOnce(&mut (usize, usize))) {
        change(self.inside.lock().expect("nobody panics in here").entry(id.to_owned()).or_default());
    }

    fn most(&self, id: &str) -> usize {
        self.inside.lock().expect("nobody panics in here").get(id).map_or(0, |(_, most)| *most)
    }
}

#[derive(Clone)]
struct App {
    locks: LockManager,
    floor: Floor,
}

async fn by_layer(Path(id): Path<String>, State(app): State<App>) {
    app.floor.sell(&id).await;
}

#[distributed_lock(key = "goods:<id>", manager = app.locks)]
async fn by_attribute(Path(id): Path<String>, State(app): State<App>) -> Result<(), lock_core::Error> {
    app.floor.sell(&id).await;
    Ok(())
}

#[distributed_lock(keys = ["goods:<id>", "till"], manager = app.locks)]
async fn by_list(Path(id): Path<String>, State(app): State<App>) -> Result<(), lock_core::Error> {
    app.floor.sell(&id).await;
    Ok(())
}

async fn by_join(Path(id): Path<String>, State(app): State<App>) -> Result<(), lock_core::Error> {
    app.locks.lock(key::join(["goods", &id])).run(async |_| app.floor.sell(&id).await).await
}

async fn by_part(Path(id): Path<String>, State(app): State<App>) -> Result<(), lock_core::Error> {
    let guard = app.locks.lock(format!("goods:{}", key::part(&id))).await?;
    app.floor.sell(&id).await;
    guard.release().await
}

const WAYS: [&str; 5] = ["layer", "attribute", "list", "join", "part"];

async fn serve(url: &str, floor: Floor) -> SocketAddr {
    // Without renewals no lease begins by the message of a grant, which may be over before a process that stands still can renew it.
    let options = LeaseOptions::new().ttl(LONG).wait(LONG).fixed();
    let locks = patient::builder().url(url).defaults(options).connect().await.expect("connects");
    let layer = LockLayer::http(locks.clone(), scoped("goods", path_param::<String>("id")));
    let app = Router::new()
        .route("/layer/{id}", post(by_layer).route_layer(layer))
        .route("/attribute/{id}", post(by_attribute))
        .route("/list/{id}", post(by_list))
        .route("/join/{id}", post(by_join))
        .route("/part/{id}", post(by_part))
        .with_state(App { locks, floor });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// Sends a request with a path as it stands, and returns status and body.
async fn post_to(address: SocketAddr, path: String) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("POST {path} HTTP/1.1\r\nhost: shop\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

/// Encodes every byte, or only those that a path cannot hold: a server decodes both to one id.
fn encoded(id: &str, every: bool) -> String {
    let plain = |byte: u8| !every && (byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte));
    id.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") }).collect()
}

/// Ids that a rule of joining might confuse with one another, or with more parts than they are.
const IDS: [&str; 16] = [
    "7",
    "1",
    "%31",
    "a:b",
    "a%3Ab",
    "a%3ab",
    "a%253Ab",
    "50%",
    "50%25",
    ":",
    "%",
    "a b",
    "<id>",
    "{id}",
    "\u{1f980}",
    "a/b",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_id_is_sold_once_at_a_time_whichever_way_it_is_locked() {
    let server = RedisServer::start().await;
    let floor = Floor::default();
    let instances = [serve(&server.url(), floor.clone()).await, serve(&server.url(), floor.clone()).await];
    for id in IDS {
        let mut sales = JoinSet::new();
        for (way, address) in WAYS.into_iter().flat_map(|way| instances.map(|address| (way, address))) {
            for every in [false, true] {
                sales.spawn(post_to(address, format!("/{way}/{}", encoded(id, every))));
            }
        }
        for (status, body) in sales.join_all().await {
            assert_eq!(status, 200, "{id}: {body}");
        }
        assert_eq!(floor.most(id), 1, "{id:?}: so many were inside at once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_ids_do_not_wait_for_each_other_whichever_way_they_are_locked() {
    let server = RedisServer::start().await;
    let floor = Floor { meeting: Some(Arc::new(Barrier::new(IDS.len()))), ..Floor::default() };
    let address = serve(&server.url(), floor).await;
    // Not the list: its second key is the same for all.
    for way in ["layer", "attribute", "join", "part"] {
        let mut sales = JoinSet::new();
        for id in IDS {
            sales.spawn(post_to(address, format!("/{way}/{}", encoded(id, false))));
        }
        let answers = timeout(SOON, sales.join_all()).await.expect("all of them meet inside");
        assert!(answers.iter().all(|(status, _)| *status == 200), "{way}: {answers:?}");
    }
}

#[tokio::test]
async fn an_id_that_is_too_long_is_refused_in_each_way_and_locks_nothing() {
    let server = RedisServer::start().await;
    let floor = Floor::default();
    let address = serve(&server.url(), floor.clone()).await;
    let id = "k".repeat(1_024);
    for way in WAYS {
        let (status, body) = post_to(address, format!("/{way}/{id}")).await;
        assert_eq!(status, 400, "{way}: {body}");
        assert!(!body.contains("kkkk") && !body.contains("127.0.0.1"), "{way} shows what is internal: {body}");
    }
    assert_eq!(floor.most(&id), 0, "it was sold");
}

#[tokio::test]
async fn an_empty_id_is_a_key_of_its_own_in_plain_code_and_in_the_attribute() {
    #[distributed_lock(key = "goods:<id>", wait = "0s")]
    async fn sell(id: &str) -> Result<(), lock_core::Error> {
        Ok(())
    }

    let manager = LockManager::in_memory();
    let guard = manager.lock(key::join(["goods", ""])).await.expect("free");
    let refused = manager.scope(sell("")).await.expect_err("the guard holds the key");
    assert!(refused.is_busy() && refused.key() == Some("goods:"), "{refused}");
    assert!(manager.lock("goods").try_acquire().await.expect("asked").is_some(), "one part is another key");
    guard.release().await.expect("held");
}
