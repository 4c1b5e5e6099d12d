//! What requests are told when the store of answers is down, slow or full, or loses its answer.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{Extension, Router, response::Response, routing::post};
use bytes::Bytes;
use lock_core::{ErrorKind, LeaseOptions, LockManager};
use lock_tower::idempotency::{Answers, Attempt, MemoryAnswers};
use tokio::time::Instant;
use tower::Layer as _;

use super::{Bank, Down, ask, layer, request};
use crate::support::{Failing, Log, limit, soon, until};

#[tokio::test]
async fn attack_13_nothing_runs_if_locks_or_answers_are_down() {
    let (answers, bank) = (MemoryAnswers::new(), Bank::open());
    let down = LockManager::builder().backend(Failing(ErrorKind::Backend, "no Redis")).build().unwrap();
    let service = bank
        .routes()
        .route_layer(layer(&down, &answers).lock(|lock| lock.on_backend_error(lock_tower::OnBackendError::LetThrough)));
    let told = ask(&service, request("a", "1", "42")).await;
    told.is_refused(503, "lock_unavailable");
    let service = bank.routes().route_layer(layer(&LockManager::in_memory(), &Down));
    let told = ask(&service, request("a", "1", "42")).await;
    told.is_refused(503, "idempotency_unavailable");
    assert_eq!((&told.headers["retry-after"], bank.charges()), (&"1".parse().unwrap(), 0));
}

#[tokio::test]
async fn what_is_stored_and_cannot_be_read_does_not_run() {
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &answers));
    let good = async |key: &str| {
        // As another process has it, with a store of its own.
        let (answers, bank) = (MemoryAnswers::new(), Bank::open());
        let service = bank.routes().route_layer(layer(&LockManager::in_memory(), &answers));
        ask(&service, request("a", key, "42")).await.is(201, "charge 1");
        String::from_utf8(answers.get(&format!("payments:a:{key}")).await.unwrap().unwrap().into()).unwrap()
    };
    let wrong: [fn(&str) -> String; 7] = [
        |_| String::new(),
        |_| "\0".to_owned(),
        |good| good.replace("lock-tower 1 ", "lock-tower 2 "),
        |good| good.replace(" 201", " many"),
        |good| good.replace("location:", "location "),
        |good| good.replace("location:", "\u{e9}:"),
        |good| good.split_once("\n\n").unwrap().0.to_owned(),
    ];
    for (key, wrong) in wrong.into_iter().enumerate() {
        let key = key.to_string();
        let (stored, record) = (format!("payments:a:{key}"), wrong(&good(&key).await));
        answers.put_if_absent(&stored, record.into(), Duration::from_secs(60)).await.unwrap();
        ask(&service, request("a", &key, "42")).await.is_refused(503, "idempotency_unavailable");
    }
    assert_eq!(bank.charges(), 0);
}

#[tokio::test(start_paused = true)]
async fn attack_2_an_answer_in_hand_is_stored_though_the_lease_is_lost() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let (answers, doors) = (MemoryAnswers::new(), Bank::closed());
    let service = bank.routes().route_layer(layer(&manager, &Slow(answers, doors.clone())));
    let first = tokio::spawn({
        let service = service.clone();
        async move { ask(&service, request("a", "1", "42")).await }
    });
    until("the answer is to be stored", || doors.charges() == 1).await;
    manager.force_release("payments:a:1").await.unwrap();
    soon(first).await.unwrap().is_refused(500, "lock_lost");
    doors.open_doors();
    until("the answer is stored", || doors.done() == 1).await;
    ask(&service, request("a", "1", "42")).await.is(201, "charge 1");
    assert_eq!(bank.charges(), 1);
}

#[tokio::test]
async fn attack_2_an_answer_that_is_stored_is_told_though_the_lease_is_lost() {
    let _limit = limit();
    let (manager, answers, bank) = (LockManager::in_memory(), MemoryAnswers::new(), Bank::closed());
    let (store, inside) = (answers.clone(), bank.clone());
    let handler = move |Extension(attempt): Extension<Attempt>| async move {
        let paid = Response::new(Bytes::from("paid"));
        store.put_if_absent(attempt.key(), attempt.answer(&paid), Duration::from_secs(60)).await.unwrap();
        inside.charge().await; // for ever
    };
    let service = Router::new().route("/pay", post(handler)).route_layer(layer(&manager, &answers));
    let first = tokio::spawn(async move { ask(&service, request("a", "1", "42")).await });
    until("the answer is stored", || bank.charges() == 1).await;
    manager.force_release("payments:a:1").await.unwrap();
    soon(first).await.unwrap().is(200, "paid");
}

#[tokio::test]
async fn attack_7_an_answer_that_is_too_large_and_whose_lease_is_lost_counts_as_carried_out() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let (answers, service) = (MemoryAnswers::new(), bank.routes());
    let (store, locks) = (answers.clone(), manager.clone());
    // The lease is lost just when the mark is stored.
    let service = service.route_layer(layer(&manager, &Loses(store, locks)).limit(10));
    let mut large = request("a", "1", "42");
    large.headers_mut().insert("x-body", 11.into());
    soon(ask(&service, large)).await.is_refused(409, "idempotency_answer_not_kept");
    assert_eq!(bank.charges(), 1);
}

#[tokio::test(start_paused = true)]
async fn attack_13_a_store_that_hangs_is_waited_for_ten_seconds() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let hangs = |times: [bool; 2]| {
        let store = Hangs { answers: MemoryAnswers::new(), gets: times[0], puts: Arc::new(AtomicBool::new(times[1])) };
        bank.routes().route_layer(layer(&manager, &store))
    };
    let begun = Instant::now();
    ask(&hangs([true, false]), request("a", "1", "42")).await.is_refused(503, "idempotency_unavailable");
    assert_eq!((begun.elapsed().as_secs(), bank.charges()), (10, 0));
    ask(&hangs([false, true]), request("a", "2", "42")).await.is(201, "charge 1");
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_stored_though_that_takes_longer_than_the_store_may() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let once = layer(&manager, &TakesLong(MemoryAnswers::new())).store_timeout(Duration::from_secs(3));
    let service = bank.routes().route_layer(once);
    for _ in 0..2 {
        ask(&service, request("a", "1", "42")).await.is(201, "charge 1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_written_ends_the_lease_at_its_longest_hold_and_a_duplicate_runs() {
    let _limit = limit();
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let once = layer(&manager, &NotWritten);
    let begun = Instant::now();
    ask(&bank.routes().route_layer(once.clone()), request("a", "1", "42")).await.is_refused(500, "lock_lost");
    assert_eq!((begun.elapsed().as_secs(), bank.charges()), (5 * 60, 1));
    let options = LeaseOptions::new().max_hold(Duration::from_secs(3600));
    let service = bank.routes().route_layer(once.lock(|lock| lock.options(options)));
    let begun = Instant::now();
    ask(&service, request("a", "1", "42")).await.is_refused(500, "idempotency_answer_not_stored");
    assert_eq!((begun.elapsed().as_secs(), bank.charges()), (5 * 60, 2));
}

#[tokio::test]
async fn what_is_wrong_with_a_store_is_told_before_the_first_request() {
    let (log, _logging) = Log::watch();
    let count = |what: &str| log.lines().iter().filter(|line| line.contains(what)).count();
    let elsewhere = LockManager::builder().backend(Failing(ErrorKind::Backend, "no Redis")).build().unwrap();
    for (manager, warnings) in [(LockManager::in_memory(), 0), (elsewhere, 1)] {
        let once = layer(&manager, &MemoryAnswers::new());
        let _services = [once.layer(Bank::open().routes()), once.clone().layer(Bank::open().routes())];
        assert_eq!(count("answers are in the memory of this process"), warnings, "{:?}", log.lines());
    }
    let _never =
        layer(&LockManager::in_memory(), &MemoryAnswers::new()).keep(Duration::ZERO).layer(Bank::open().routes());
    assert_eq!(count("every request will be refused"), 1, "{:?}", log.lines());
}

/// A table whose column folds case, as MySQL's do unless they are told otherwise.
#[derive(Clone, Debug)]
struct FoldsCase(MemoryAnswers);

impl Answers for FoldsCase {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        self.0.get(&key.to_lowercase()).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        self.0.put_if_absent(&key.to_lowercase(), answer, keep).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_takes_two_keys_for_one_gives_nobody_the_answer_of_another() {
    let (manager, bank) = (LockManager::in_memory(), Bank::open());
    let service = bank.routes().route_layer(layer(&manager, &FoldsCase(MemoryAnswers::new())));
    ask(&service, request("bob", "1", "42")).await.is(201, "charge 1");
    ask(&service, request("Bob", "1", "42")).await.is_refused(422, "idempotency_key_reused");
    ask(&service, request("bob", "1", "42")).await.is(201, "charge 1");
}

/// A store that has no room.
#[derive(Clone, Debug)]
struct NotWritten;

impl Answers for NotWritten {
    async fn get(&self, _key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        Ok(None)
    }

    async fn put_if_absent(&self, _key: &str, _answer: Bytes, _keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        Err("the store is full".into())
    }
}

/// A store that takes ten seconds for an answer, and nothing of one that is given up.
#[derive(Clone, Debug)]
struct TakesLong(MemoryAnswers);

impl Answers for TakesLong {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        self.0.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        tokio::time::sleep(Duration::from_secs(10)).await;
        self.0.put_if_absent(key, answer, keep).await
    }
}

/// A store that hangs at each look, or when the first answer is to be stored.
#[derive(Clone, Debug)]
struct Hangs {
    answers: MemoryAnswers,
    gets: bool,
    puts: Arc<AtomicBool>,
}

impl Answers for Hangs {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        if self.gets {
            pending::<()>().await;
        }
        self.answers.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        if self.puts.swap(false, SeqCst) {
            pending::<()>().await;
        }
        self.answers.put_if_absent(key, answer, keep).await
    }
}

/// A store that takes an answer when its doors are open.
#[derive(Clone, Debug)]
struct Slow(MemoryAnswers, Bank);

impl Answers for Slow {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        self.0.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        self.1.charge().await;
        self.0.put_if_absent(key, answer, keep).await
    }
}

/// A store that takes an answer, then the lock, and never says so.
#[derive(Clone, Debug)]
struct Loses(MemoryAnswers, LockManager);

impl Answers for Loses {
    async fn get(&self, key: &str) -> Result<Option<Bytes>, lock_tower::BoxError> {
        self.0.get(key).await
    }

    async fn put_if_absent(&self, key: &str, answer: Bytes, keep: Duration) -> Result<Bytes, lock_tower::BoxError> {
        self.0.put_if_absent(key, answer, keep).await?;
        self.1.force_release(key).await?;
        pending().await
    }
}
