//! One answer for all requests of one idempotency key, on real servers: one for the locks, another for the answers. Numbers of
//! attacks are those of `lock_tower::idempotency`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    routing::post,
};
use bytes::Bytes;
use http::StatusCode;
use lock_core::{LeaseOptions, LockManager};
use lock_tests::{LONG, RedisServer, SOON, eventually};
use lock_tower::{
    BoxError,
    idempotency::{Answers, IdempotencyLayer, RedisAnswers},
    key::{Header, header, scoped},
};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use tokio::{sync::mpsc, task::JoinSet};
use tower::ServiceExt;

use crate::patient;

type Store = RedisAnswers<ConnectionManager>;

async fn store(server: &RedisServer) -> Store {
    let client = redis::Client::open(server.url()).expect("a URL");
    // The layer tries again itself.
    let config = ConnectionManagerConfig::new().set_number_of_retries(0).set_response_timeout(Some(SOON));
    let config = config.set_connection_timeout(Some(SOON));
    let connection = ConnectionManager::new_with_config(client.clone(), config).await.expect("the server listens");
    RedisAnswers::new(&client, connection)
}

fn layer<A: Answers>(manager: &LockManager, answers: &A) -> IdempotencyLayer<Header<String>, A> {
    IdempotencyLayer::http(manager.clone(), scoped("payments", header::<String>("x-account")), answers.clone())
        .wait(SOON)
        .store_timeout(SOON)
}

/// Counts the effects of each key, and compares all answers.
#[derive(Clone, Debug, Default)]
struct Judge {
    effects: Arc<AtomicUsize>,
    /// The answers with a status below 400, and how often each was given.
    answers: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Judge {
    /// A service that charges after `before`, and says how often it has.
    fn service<A: Answers>(&self, layer: IdempotencyLayer<Header<String>, A>, pauses: Duration) -> Router {
        let effects = Arc::clone(&self.effects);
        let pay = move || async move {
            let number = effects.fetch_add(1, SeqCst) + 1;
            tokio::time::sleep(pauses).await;
            (StatusCode::CREATED, format!("charge {number}"))
        };
        Router::new().route("/pay", post(pay)).route_layer(layer)
    }

    async fn ask(&self, service: &Router) -> (StatusCode, String) {
        let request = Request::post("/pay").header("x-account", "a").header("idempotency-key", "1");
        let response = service.clone().oneshot(request.body(Body::from("42")).expect("a request")).await;
        let (head, body) = response.expect("an answer").into_parts();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let text = String::from_utf8(body.into()).expect("text");
        if head.status.as_u16() < 400 {
            *self.answers.lock().expect("no panic").entry(text.clone()).or_default() += 1;
        }
        (head.status, text)
    }

    /// Fails unless there was one answer, given so often, and the effect happened so often.
    #[track_caller]
    fn rules(&self, effects: usize, answers: usize) {
        let given = self.answers.lock().expect("no panic");
        assert_eq!((self.effects.load(SeqCst), given.len()), (effects, 1), "{given:?}");
        assert_eq!(given.values().sum::<usize>(), answers);
    }
}

#[tokio::test]
async fn attack_11_answers_in_the_redis_of_the_locks_are_refused_unless_told_to() {
    let (locks, answers) = (RedisServer::start().await, RedisServer::start().await);
    let manager = patient::connect(locks.url()).await.expect("a manager");
    let beside = layer(&manager, &store(&locks).await);
    let error = beside.check_for::<Body>().expect_err("it would fill the server of the locks");
    assert!(
        error.to_string().contains(&format!("the answers would fill {}, which has the locks", locks.address())),
        "{error}"
    );
    let judge = Judge::default();
    let (status, text) = judge.ask(&judge.service(beside.clone(), Duration::ZERO)).await;
    assert_eq!((status.as_u16(), text.contains("lock_misconfigured")), (500, true), "{text}");

    let told_to = judge.service(beside.beside_the_locks(), Duration::ZERO);
    let elsewhere = judge.service(layer(&manager, &store(&answers).await), Duration::ZERO);
    for (service, charge) in [(told_to, "charge 1"), (elsewhere, "charge 2")] {
        for _ in 0..2 {
            assert_eq!(judge.ask(&service).await, (StatusCode::CREATED, charge.to_owned()));
        }
    }
    // Attack 12: how long a server keeps an answer is said by its time to live.
    for server in [&locks, &answers] {
        let ttl = server.call(&["PTTL", "answer:payments:a:1"]).await.integer().expect("it is there");
        assert!((1..=24 * 3600 * 1000).contains(&ttl), "{ttl}");
    }
    manager.shutdown(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_14_a_thousand_duplicates_of_one_key_get_one_answer() {
    get_one_answer(1_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes twelve seconds of a processor; run by .ci/run"]
async fn attack_14_ten_thousand_duplicates_of_one_key_get_one_answer() {
    get_one_answer(10_000).await;
}

async fn get_one_answer(duplicates: usize) {
    let (locks, answers) = (RedisServer::start().await, RedisServer::start().await);
    let judge = Judge::default();
    let mut managers = Vec::new();
    let mut instances = Vec::new();
    for _ in 0..2 {
        // Ten thousand requests at once are more than a busy machine answers within a second.
        let manager = patient::connect(locks.url()).await.expect("a manager");
        let options = LeaseOptions::new().ttl(LONG);
        let layer = layer(&manager, &store(&answers).await).wait(LONG).lock(|lock| lock.options(options));
        instances.push(judge.service(layer, Duration::from_secs(1)));
        managers.push(manager);
    }
    let mut asked = JoinSet::new();
    for service in instances.iter().cycle().take(duplicates) {
        let (judge, service) = (judge.clone(), service.clone());
        asked.spawn(async move { judge.ask(&service).await });
    }
    while let Some(told) = asked.join_next().await {
        assert_eq!(told.expect("no panic"), (StatusCode::CREATED, "charge 1".to_owned()));
    }
    judge.rules(1, duplicates);
    let (read, stored) = (answers.calls_of("get").await, answers.calls_of("set").await);
    // Two looks as a rule: before the lease, and under it. Among ten thousand tasks the first may not be polled for 100 ms after its turn
    // has come: then it misses the turn, and those that share the key come in before anybody has run. They look a third time, before they
    // would run. (With turns of 3 ms, 300 to 1,400 do in each run; with turns of 100 ms, none unless the machine is busy.) And once more if
    // the process stands still so long that the lease is lost.
    assert!(read <= 4 * duplicates as u64, "{read}");
    assert_eq!(stored, 1);
    for manager in managers {
        manager.shutdown(SOON).await;
    }
}

/// A store that tells the test of each step, and waits until it may go on.
#[derive(Clone, Debug)]
struct Stepped {
    store: Store,
    steps: mpsc::UnboundedSender<(&'static str, tokio::sync::oneshot::Sender<()>)>,
}

impl Stepped {
    async fn step(&self, name: &'static str) {
        let (go, may_go) = tokio::sync::oneshot::channel();
        if self.steps.send((name, go)).is_ok() {
            let _ = may_go.await;
        }
    }
}

impl Answers for Stepped {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, BoxError> {
        self.step("get").await;
        self.store.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, BoxError> {
        self.step("put").await;
        let held = self.store.put_if_absent(key, answer, keep).await?;
        self.step("stored").await;
        Ok(held)
    }
}

/// What a killed server leads to: the status that the first client is told, and the effects after a retry.
async fn kill(which: &str, at: usize) -> (u16, usize) {
    // Both keep what they have been told: this is about a server that dies, and not about one that forgets.
    let durable = || RedisServer::builder().option("--appendonly", "yes").option("--appendfsync", "always").start();
    let (mut locks, mut answers) = (durable().await, durable().await);
    let losses = Arc::new(AtomicUsize::new(0));
    let lost = Arc::clone(&losses);
    let builder = patient::builder().url(locks.url()).on_lost(move |_| _ = lost.fetch_add(1, SeqCst));
    let manager = builder.connect().await.expect("a manager");
    let (steps, mut arrivals) = mpsc::unbounded_channel();
    let stepped = Stepped { store: store(&answers).await, steps };
    // Only the lease of a server that stays away is to be lost. It is renewed every three seconds until then.
    let options = LeaseOptions::new().ttl(if which == "locks" { Duration::from_secs(9) } else { LONG });
    let judge = Judge::default();
    let service = judge.service(layer(&manager, &stepped).lock(|lock| lock.options(options)), Duration::ZERO);
    let first = {
        let (judge, service) = (judge.clone(), service.clone());
        tokio::spawn(async move { judge.ask(&service).await.0.as_u16() })
    };
    let mut held_up = None;
    for step in 0.. {
        let (_, go) = tokio::time::timeout(SOON, arrivals.recv()).await.expect("a step").expect("a store");
        if step == at {
            held_up = Some(go);
            break;
        }
        let _ = go.send(());
    }
    let server = if which == "locks" { &mut locks } else { &mut answers };
    server.stop();
    let steps = tokio::spawn(async move {
        while let Some((_, go)) = arrivals.recv().await {
            let _ = go.send(());
        }
    });
    if which == "locks" && at > 0 {
        eventually(SOON, "the lease is lost", async || losses.load(SeqCst) > 0).await;
    }
    drop(held_up);
    let told = if which == "answers" && at >= 2 {
        // It tries until the server is there again.
        server.start_again().await;
        first.await
    } else {
        let told = first.await;
        server.start_again().await;
        told
    };
    let told = told.expect("no panic");
    // A retry, which may meet connections that are not there again.
    eventually(SOON, "a retry is answered", async || judge.ask(&service).await.0 == StatusCode::CREATED).await;
    let effects = judge.effects.load(SeqCst);
    let answers = judge.answers.lock().expect("no panic").values().sum();
    judge.rules(effects, answers);
    manager.shutdown(SOON).await;
    steps.abort();
    (told, effects)
}

#[tokio::test]
async fn attack_13_a_redis_that_is_killed_at_any_step_leads_to_one_answer() {
    // The steps: 0 first look, 1 look under the lease, 2 store, 3 stored.
    for (which, at, told, effects) in [
        ("answers", 0, 503, 1),
        ("answers", 1, 503, 1),
        ("answers", 2, 201, 1),
        ("answers", 3, 201, 1),
        ("locks", 0, 503, 1),
        ("locks", 1, 500, 1),
        // Attack 2: the effect has happened, and its answer is stored though the lease is lost.
        ("locks", 2, 500, 1),
        // It was stored, and its client is told so.
        ("locks", 3, 201, 1),
    ] {
        assert_eq!(kill(which, at).await, (told, effects), "{which} killed at step {at}");
    }
}
