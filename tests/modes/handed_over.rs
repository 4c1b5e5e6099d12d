//! A share that is handed over, by requests that come late and twice: the script by itself.

use std::sync::Arc;

use lock_core::{
    backend::{Acquire, Backend, Batch, Calls, Operation, Outcome, Place, RedisBackend, Release, TOKEN_MARK, Token},
    clock::Moment,
    key::LockKey,
};

use crate::modes::*;

fn token(number: u32, mode: &str) -> Token {
    format!("{TOKEN_MARK}{number:032x}{mode}").parse().expect("a sound token")
}

fn acquire(token: Token) -> Acquire {
    Acquire::new(LockKey::new("k").expect("a sound key"), token, LONG)
}

async fn execute(backend: &RedisBackend, operation: Operation) -> Outcome {
    let answer = backend.call(Batch::from(vec![operation])).await.expect("the server answers");
    answer.outcomes.into_iter().next().expect("an outcome for each item").expect("nothing is refused")
}

async fn is_held(backend: &RedisBackend, acquire: Acquire) -> bool {
    matches!(execute(backend, Operation::Acquire(acquire)).await, Outcome::Held { .. })
}

/// The tokens that have shares when a share was handed over, its former token has taken one once more by a late copy of its request,
/// and the request that took it over was repeated. A waiter that did not fit meanwhile has a place.
async fn shares_when_taken_over_twice(
    (server, backend): (&RedisServer, &RedisBackend),
    channel: &Arc<str>,
    [former, next, waiter]: [Token; 3],
) -> Vec<String> {
    server.call(&["FLUSHALL"]).await;
    assert!(is_held(backend, acquire(former)).await);
    assert!(is_held(backend, acquire(next).from(former)).await);
    assert_eq!(shares(server, "k").await.into_keys().collect::<Vec<_>>(), [next.reveal()]);
    assert!(is_held(backend, acquire(former)).await, "the late copy takes a share");
    let place = Place::new(Arc::clone(channel), LONG, LONG, Moment::from_origin(LONG));
    let waits = execute(backend, Operation::Acquire(acquire(waiter).or_wait(place))).await;
    assert!(matches!(waits, Outcome::Busy { position: Some(1), .. }), "{waits:?}");
    assert!(is_held(backend, acquire(next).from(former)).await);
    shares(server, "k").await.into_keys().collect()
}

#[tokio::test]
async fn a_share_that_is_handed_over_ends_also_if_it_was_taken_again_before_the_repeat() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "handed-over", SOON).expect("a sound URL");
    let calls = Calls::to_nobody();
    let channel = Arc::clone(calls.channel());
    let work = async {
        backend.call(Batch::new()).await.expect("the server answers");
        for mode in [":shared", ":1/3"] {
            let [former, next, writer] = [token(1, mode), token(2, mode), token(3, "")];
            let left = shares_when_taken_over_twice((&server, &backend), &channel, [former, next, writer]).await;
            assert_eq!(left, [next.reveal()], "one holder has one share");
            let release = Release::new(LockKey::new("k").expect("a sound key"), next);
            assert_eq!(execute(&backend, Operation::Release(release)).await, Outcome::Released);
            let held = server.call(&["GET", "k"]).await;
            assert_eq!(held.text(), Some(writer.reveal()), "nobody else has the key any more");
        }
        let [former, next, waiter] = [token(1, ":2/4"), token(2, ":2/4"), token(3, ":1/4")];
        let left = shares_when_taken_over_twice((&server, &backend), &channel, [former, next, waiter]).await;
        assert_eq!(left, [next.reveal(), waiter.reveal()], "two permits are free, and a waiter wants one");
    };
    tokio::select! {
        () = backend.driver(calls) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}
