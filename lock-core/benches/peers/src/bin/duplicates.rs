//! One answer for duplicates: the bare handler, axum-idempotent with its store in memory, and lock-tower with its store in memory and in
//! Redis: `cargo run --release --bin duplicates` in this folder. With `-- --json` it prints lines of JSON.
//!
//! For each: a first request, a request that is answered from the store, and 64 duplicates at once of a handler that takes 5 ms. How often
//! the handler ran says what the time was spent for. Of lock-tower on Redis also the commands that each server got.

#[path = "../../../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::HeaderValue,
    routing::post,
};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use lock_core::LockManager;
use lock_tower::{
    idempotency::{Answers, IdempotencyLayer, MemoryAnswers, RedisAnswers},
    key::{Header, header, scoped},
};
use ruts::{CookieOptions, Session, SessionLayer, store::moka::MokaStore};
use support::server::Server;
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_cookies::CookieManagerLayer;

const CALLS: usize = 2_000;
const ROUNDS: usize = 5;
const DUPLICATES: usize = 64;

#[tokio::main]
async fn main() {
    let is_json = std::env::args().any(|argument| argument == "--json");
    let (locks, answers) = (Server::start().await, Server::start().await);
    let client = redis::Client::open(&*answers.url).expect("a URL");
    let store = RedisAnswers::new(&client, answers.connect().await);
    let manager = LockManager::connect(&locks.url).await.expect("a manager");
    let mut sides = vec![
        Side::bare(),
        Side::peer().await,
        Side::ours("lock-tower, memory", LockManager::in_memory(), &MemoryAnswers::new()),
        Side::ours("lock-tower, Redis", manager, &store),
    ];
    for round in 0..=ROUNDS {
        for side in &mut sides {
            let first = side.calls(|call| format!("first-{round}-{call}")).await;
            let replay = side.calls(|_| format!("replay-{round}")).await;
            let burst = side.burst(round).await;
            if round > 0 {
                side.rounds.push([first, replay, burst]); // the first round warms up
            }
        }
    }
    for side in &mut sides {
        let runs = side.runs.swap(0, Relaxed);
        side.burst(ROUNDS + 1).await;
        let runs_of_burst = side.runs.swap(runs, Relaxed);
        let median = |of: usize| {
            let mut times: Vec<_> = side.rounds.iter().map(|round| round[of]).collect();
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e6
        };
        let (name, first, replay, burst) = (side.name, median(0), median(1), median(2));
        if is_json {
            println!(
                r#"{{"measure":"duplicates","side":"{name}","first_us":{first:.1},"replay_us":{replay:.1},"burst_us":{burst:.0},"runs":{runs_of_burst}}}"#
            );
        } else {
            println!(
                "{name}: first {first:.1} µs, replay {replay:.1} µs, 64 at once {burst:.0} µs, in which the handler ran {runs_of_burst} times"
            );
        }
    }
    let side = sides.last().expect("ours on Redis");
    for (what, calls) in [("first", 1), ("replay", 1), ("64 at once", DUPLICATES)] {
        let before = (commands(&locks).await, commands(&answers).await);
        if calls == 1 {
            side.call("counted".to_owned()).await;
        } else {
            side.burst(ROUNDS + 2).await;
        }
        // The release of the last share is in the background.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let after = (commands(&locks).await, commands(&answers).await);
        println!("{what}: locks {:?}, answers {:?}", difference(&before.0, &after.0), difference(&before.1, &after.1));
    }
}

/// What is measured.
struct Side {
    name: &'static str,
    service: Router,
    /// The session of axum-idempotent, which is its principal.
    cookie: HeaderValue,
    runs: Arc<AtomicUsize>,
    rounds: Vec<[Duration; 3]>,
}

impl Side {
    fn new(name: &'static str, wrap: impl FnOnce(Router) -> Router) -> Self {
        let runs = Arc::new(AtomicUsize::new(0));
        let pay = {
            let runs = Arc::clone(&runs);
            move |request: Request| async move {
                runs.fetch_add(1, Relaxed);
                if request.headers().contains_key("x-slow") {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                "charged"
            }
        };
        let service = wrap(Router::new().route("/pay", post(pay)));
        Self { name, service, cookie: HeaderValue::from_static("none"), runs, rounds: Vec::new() }
    }

    fn bare() -> Self {
        Self::new("bare handler", |routes| routes)
    }

    fn ours<A: Answers>(name: &'static str, manager: LockManager, answers: &A) -> Self {
        let whose: lock_tower::key::Scoped<Header<String>> = scoped("payments", header("x-account"));
        let layer = IdempotencyLayer::http(manager, whose, answers.clone()).wait(Duration::from_secs(60));
        Self::new(name, |routes| routes.route_layer(layer))
    }

    async fn peer() -> Self {
        let options = IdempotentOptions::default().use_idempotency_key_header(None, true);
        let login = async |session: Session<MokaStore>| {
            session
                .set("user", &1, ruts::store::Ttl::new(3600).expect("an hour"), None)
                .await
                .map_or(500, |_| 200)
                .to_string()
        };
        let store = Arc::new(MokaStore::builder().build());
        let cookies = CookieOptions::build().name("session").max_age(3600).path("/");
        let mut side = Self::new("axum-idempotent, memory", |routes| {
            let routes = routes.layer(IdempotentLayer::<MokaStore>::new(options)).route("/login", post(login));
            routes.layer(SessionLayer::new(store).with_cookie_options(cookies)).layer(CookieManagerLayer::new())
        });
        let request = Request::post("/login").body(Body::empty()).expect("a request");
        let response = side.service.clone().oneshot(request).await.expect("an answer");
        side.cookie = response.headers()["set-cookie"].clone();
        side
    }

    async fn call(&self, key: String) {
        self.send(key, false).await;
    }

    fn send(&self, key: String, is_slow: bool) -> impl Future<Output = ()> + Send + 'static {
        let mut request = Request::post("/pay").header("x-account", "a").header("idempotency-key", key);
        if is_slow {
            request = request.header("x-slow", "1");
        }
        let request = request.header("cookie", self.cookie.clone()).body(Body::from("42")).expect("a request");
        let service = self.service.clone();
        async move {
            let response = service.oneshot(request).await.expect("an answer");
            assert!(response.status().is_success(), "{}", response.status());
            let body = to_bytes(response.into_body(), 1_000).await.expect("a body");
            assert_eq!(body, "charged");
        }
    }

    /// Returns how long a call takes, one after another.
    async fn calls(&self, key: impl Fn(usize) -> String) -> Duration {
        let begun = Instant::now();
        for call in 0..CALLS {
            self.call(key(call)).await;
        }
        begun.elapsed() / CALLS as u32
    }

    /// Returns how long it takes until all duplicates are answered.
    async fn burst(&self, round: usize) -> Duration {
        let begun = Instant::now();
        let mut calls = JoinSet::new();
        for _ in 0..DUPLICATES {
            calls.spawn(self.send(format!("burst-{round}"), true));
        }
        calls.join_all().await;
        begun.elapsed()
    }
}

/// How often a server was given each command.
async fn commands(server: &Server) -> BTreeMap<String, u64> {
    let info: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut server.connect().await).await.expect("an answer");
    let count = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().ok()?))
    };
    info.lines().filter_map(count).collect()
}

fn difference(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let is_ours = |name: &str| !["info", "hello", "ping", "client|setinfo", "client|setname"].contains(&name);
    let since = after.iter().map(|(name, count)| (name.clone(), count - before.get(name).unwrap_or(&0)));
    since.filter(|(name, count)| *count > 0 && is_ours(name)).collect()
}
