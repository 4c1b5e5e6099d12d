//! The connection to a real Redis, where it is slow, silent or refuses: every request ends within its limit.

use std::time::Duration;

use lock_core::{
    ErrorKind, LockKey, LockManager, Token,
    backend::{Acquire, Backend, Batch, Calls, Operation, RedisBackend},
};
use lock_tests::{FaultProxy, RedisServer};
use tokio::{runtime::Builder, time::Instant};

const LIMIT: Duration = Duration::from_secs(1);

#[test]
fn manager_with_a_runtime_of_its_own_is_used_where_there_is_none() {
    let engine = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = engine.block_on(RedisServer::start());
    // Neither timers nor sockets: whatever needs them has to come from the engine's runtime.
    let bare = Builder::new_current_thread().build().expect("no threads needed");
    bare.block_on(async {
        let manager = LockManager::builder().url(&server.url()).runtime(engine.handle().clone());
        let manager = manager.connect().await.expect("connects");
        let mut guard = manager.lock("k").ttl(Duration::from_secs(3)).await.expect("the key is free");
        guard.extend(Duration::from_secs(30)).await.expect("held");
        assert!(manager.inspect("k").await.expect("answered").is_locked());
        assert_eq!(manager.lock("k").wait(Duration::from_millis(50)).await.expect_err("held").kind(), ErrorKind::Busy);
        guard.release().await.expect("held");
        let _held = manager.lock("other").await.expect("the key is free");
        assert_eq!(manager.force_release_all("").await.expect("answered"), 1);
        assert_eq!(manager.shutdown(LIMIT).await, 0);
    });
}

#[tokio::test]
async fn batch_that_is_refused_as_a_whole_ends_within_the_limit_of_one_call() {
    let server = RedisServer::start().await;
    let rules = ["ACL", "SETUSER", "some", "on", ">secret", "~{own}*", "~{0}lock-core:*", "&*", "+@all"];
    assert_eq!(server.call(&rules).await.text().as_deref(), Some("OK"));
    let proxy = FaultProxy::start(server.address()).await;
    let url = format!("redis://some:secret@{}", proxy.address());
    let backend = RedisBackend::from_url(&url, "refused", LIMIT).expect("a sound URL");
    let work = async {
        let acquire = |key| {
            let key = LockKey::new(key).expect("a sound key");
            Operation::Acquire(Acquire::new(key, Token::from_random(1), Duration::from_secs(60)))
        };
        // With that the server has the script.
        backend.call(Batch::from([acquire("{own}")])).await.expect("the server answers");
        proxy.delay(LIMIT / 5, Duration::ZERO);
        let batch = ["{own}", "theirs:1", "theirs:2", "theirs:3", "theirs:4", "theirs:5"].map(acquire);
        let begun = Instant::now();
        let answer = backend.call(batch.into_iter().collect()).await.expect("item by item");
        let took = begun.elapsed();
        println!("{took:?}: {:?}", answer.outcomes);
        assert!(took < 2 * LIMIT, "{took:?}");
        let kinds: Vec<_> =
            answer.outcomes.iter().map(|outcome| outcome.as_ref().map_err(|error| error.kind())).collect();
        assert!(matches!(kinds[..], [Ok(_), Err(ErrorKind::Denied | ErrorKind::Backend), ..]), "{kinds:?}");
        assert_eq!(kinds.last(), Some(&Err(ErrorKind::Backend)), "it had no time left");
    };
    tokio::select! {
        () = backend.upkeep(Calls::to_nobody()) => unreachable!("the upkeep goes on for as long as it is polled"),
        () = work => {}
    }
}
