//! Several keys in one call to the backend; virtual time.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use lock_core::{
    Argument, ErrorKind, LockManager,
    backend::{Answer, Backend, Batch, MemoryBackend, Reply},
    clock::Clock,
    exclusive,
    key::LockKey,
    shared,
};

use crate::support::{Fate, Faulty, counted, eventually_free, ms, secs};

const ACQUIRES: [&str; 2] = ["acquire"; 2];
const RELEASES: [&str; 2] = ["release"; 2];

/// Another process on the same store.
fn other(backend: &Faulty) -> LockManager {
    LockManager::builder().backend(backend.store.clone()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_free_take_one_call_and_so_does_their_release() {
    let (manager, backend) = counted();
    let all = manager.lock_all([shared("a"), exclusive("b")]).await.unwrap();
    assert_eq!(backend.log(), [ACQUIRES]);
    assert_eq!(all.leases().len(), 2);
    all.release().await.unwrap();
    assert_eq!(backend.log(), [ACQUIRES, RELEASES]);
    for key in ["a", "b"] {
        assert!(!manager.is_locked(key).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_takes_one_call_and_none_of_the_keys_if_one_is_busy() {
    let (manager, backend) = counted();
    let others = other(&backend);
    for busy in ["a", "b"] {
        let held = others.lock(busy).await.unwrap();
        let before = backend.calls();
        let error = manager.lock_all(["a", "b"]).wait(ms(0)).await.unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some(busy)));
        assert_eq!(backend.calls() - before, 1, "nothing is left to be given back");
        let free = if busy == "a" { "b" } else { "a" };
        assert!(!others.is_locked(free).await.unwrap());
        held.release().await.unwrap();
        // The key was busy lately: the next request for it goes through the line.
        tokio::time::sleep(secs(3)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_free_are_waited_for_in_their_order() {
    let (manager, backend) = counted();
    let others = other(&backend);
    let held = others.lock("b").await.unwrap();
    let all = tokio::spawn(manager.lock_all(["a", "b", "c"]).acquire());
    tokio::time::sleep(ms(100)).await;
    assert!(others.is_locked("a").await.unwrap(), "what comes before the busy key is held");
    assert!(!others.is_locked("c").await.unwrap(), "what comes after it is not");
    held.release().await.unwrap();
    let all = all.await.unwrap().unwrap();
    assert!(all.is_held() && all.waited() >= ms(100));
    all.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_that_this_process_has_or_wants_is_asked_for_in_its_line() {
    let (manager, backend) = counted();
    let held = manager.lock("b").await.unwrap();
    let all = tokio::spawn(manager.lock_all(["a", "b"]).acquire());
    tokio::time::sleep(ms(10)).await;
    let after = tokio::spawn(manager.lock("b").acquire());
    tokio::time::sleep(ms(10)).await;
    held.release().await.unwrap();
    let all = all.await.unwrap().unwrap();
    assert!(!after.is_finished(), "who came later waits");
    drop(all);
    drop(after.await.unwrap().unwrap());
    eventually_free(&manager, "b").await;
    assert!(backend.log().iter().all(|call| call.iter().filter(|name| **name == "acquire").count() < 2));
}

#[tokio::test(start_paused = true)]
async fn holds_follow_in_the_process_on_one_of_several_keys() {
    let (manager, backend) = counted();
    let all = manager.lock_all(["a", "b"]).await.unwrap();
    let next = tokio::spawn(manager.lock("b").acquire());
    tokio::time::sleep(ms(10)).await;
    let before = backend.calls();
    let fence = all.fencing_token("b").unwrap();
    drop(all);
    let next = next.await.unwrap();
    assert!(next.as_ref().is_ok_and(|next| next.fencing_token() > fence), "{next:?}");
    assert!(backend.calls() - before <= 2);
    drop(next);
    eventually_free(&manager, "b").await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_lost_or_dropped_leaves_nothing() {
    for fate in [Fate::Fail, Fate::LoseReply, Fate::HoldReply, Fate::Overtaken, Fate::GiveUp] {
        let (manager, backend) = counted();
        let request = || manager.lock_all([exclusive("a"), shared("b"), exclusive("c")]).wait(ms(50));
        backend.next([fate]);
        let request = tokio::spawn(tokio::time::timeout(ms(200), request().acquire()));
        tokio::time::sleep(ms(300)).await;
        backend.let_go();
        match request.await.unwrap() {
            Ok(Ok(guard)) => panic!("{fate:?}: {guard:?}"),
            Ok(Err(error)) => assert_eq!((error.kind(), error.key()), (ErrorKind::Backend, Some("a")), "{fate:?}"),
            Err(_) => {}
        }
        for key in ["a", "b", "c"] {
            eventually_free(&manager, key).await;
        }
    }
}

/// Their tokens would be released again and again, over each new connection, and a shutdown would wait for that.
#[tokio::test(start_paused = true)]
async fn keys_whose_only_request_came_out_of_order_are_released_once() {
    let (manager, backend) = counted();
    backend.next([Fate::Overtaken]);
    let request = tokio::spawn(manager.lock_all(["a", "b"]).ttl(secs(60)).acquire());
    tokio::time::sleep(ms(10)).await;
    backend.let_go();
    let all = request.await.unwrap().unwrap();
    backend.replace_connection();
    all.release().await.unwrap();
    tokio::time::sleep(secs(70)).await;
    assert_eq!(backend.log(), [ACQUIRES, RELEASES]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_when_the_ttl_or_half_of_it_is_over_holds_nothing() {
    // By the latter, a lease would have to be renewed at once, and might be lost all the same.
    for (late, wait) in [(150, 1_000), (60, 1_000), (60, 0)] {
        let (manager, backend) = counted();
        backend.next([Fate::HoldReply]);
        let all = tokio::spawn(manager.lock_all(["a", "b"]).ttl(ms(100)).wait(ms(wait)).acquire());
        tokio::time::sleep(ms(late)).await;
        backend.let_go();
        let all = all.await.unwrap().unwrap();
        assert!(all.is_held() && all.remaining() > ms(80), "the keys are acquired again");
        all.release().await.unwrap();
        for key in ["a", "b"] {
            eventually_free(&manager, key).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_is_named_if_the_answer_outlasts_the_wait() {
    let (manager, backend) = counted();
    let _held = other(&backend).lock("c").await.unwrap();
    let before = backend.calls();
    backend.next([Fate::HoldReply]);
    let all = tokio::spawn(manager.lock_all(["a", "b", "c"]).wait(ms(20)).acquire());
    tokio::time::sleep(ms(30)).await;
    backend.let_go();
    let error = all.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Busy, Some("c")), "{error}");
    assert_eq!(backend.calls() - before, 1, "no key is asked for again");
}

#[tokio::test(start_paused = true)]
async fn leases_that_are_not_renewed_are_held_for_what_is_left_of_them() {
    let (manager, backend) = counted();
    backend.next([Fate::HoldReply]);
    let all = tokio::spawn(manager.lock_all(["a", "b"]).ttl(ms(100)).fixed().acquire());
    tokio::time::sleep(ms(60)).await;
    backend.let_go();
    let all = all.await.unwrap().unwrap();
    assert!(all.remaining() < ms(40), "{:?}", all.remaining());
    all.release().await.unwrap();
    assert_eq!(backend.log(), [ACQUIRES, RELEASES]);
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_a_call_takes_are_acquired_too() {
    let (manager, backend) = counted();
    let keys: Vec<_> = (0..300).map(|number| format!("k{number:03}")).collect();
    let all = manager.lock_all(&keys).await.unwrap();
    assert_eq!(all.leases().len(), 300);
    all.release().await.unwrap();
    assert!(backend.largest_batch() <= 256);
}

/// A store that takes a millisecond for each call.
#[derive(Clone, Debug, Default)]
struct Slow(MemoryBackend);

impl Backend for Slow {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let store = self.0.clone();
        Reply::new(async move {
            tokio::time::sleep(ms(1)).await;
            store.call(batch).await
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        self.0.list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_before_all_of_many_free_keys_are_asked_for_blames_no_holder() {
    let manager = LockManager::builder().backend(Slow::default()).build().unwrap();
    let keys = (0..300).map(|number| format!("k:{number}"));
    // More than one call takes are acquired one after the other.
    let begun = tokio::time::Instant::now();
    let error = manager.lock_all(keys).wait(ms(100)).await.unwrap_err();
    assert!(begun.elapsed() < ms(110), "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::Busy);
    let said = error.to_string();
    assert!(said.contains("the wait of 100ms was over before this key and ") && !said.contains("held by"), "{said}");
    tokio::time::sleep(secs(1)).await;
    assert!(!manager.is_locked("k:0").await.unwrap(), "those that it had are released");
    assert_eq!(
        manager.lock_all((0..300).map(|number| format!("k:{number}"))).wait(secs(1)).await.unwrap().leases().len(),
        300
    );
}

#[tokio::test(start_paused = true)]
async fn more_keys_than_wait_can_bound_are_refused_before_anything_is_sent() {
    let (manager, backend) = counted();
    let keys: Vec<_> = (0..5_001).map(|number| format!("k{number}")).collect();
    let error = manager.lock_all(&keys).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid(Argument::Keys));
    assert!(error.to_string().contains("5001 keys are more than 5000"), "{error}");
    assert!(backend.log().is_empty(), "nothing was sent");
    let all = manager.lock_all(keys[1..].iter().chain(&keys[1..])).await.unwrap();
    assert_eq!(all.leases().len(), 5_000, "a key that is named twice counts once");
    all.release().await.unwrap();
}
