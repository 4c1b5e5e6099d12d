//! The connection to a real Redis, where it is slow, silent or refuses: every request ends within its limit.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use lock_core::{
    ErrorKind, LockKey, LockManager, Token,
    backend::{Acquire, Backend, Batch, Calls, Operation, RedisBackend},
};
use lock_tests::{FaultProxy, RedisServer, eventually};
use tokio::{
    net::TcpListener,
    runtime::Builder,
    task::spawn_blocking,
    time::{Instant, timeout},
};

const LIMIT: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(20);

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
        let acquire = |key: String| {
            let key = LockKey::new(key).expect("a sound key");
            Operation::Acquire(Acquire::new(key, Token::from_random(1), Duration::from_secs(60)))
        };
        // With that the server has the script.
        backend.call(Batch::from([acquire("{own}".to_owned())])).await.expect("the server answers");
        // One after the other, the items would take forty times the limit.
        proxy.delay(LIMIT / 5, Duration::ZERO);
        let theirs = (0..100).map(|number| format!("theirs:{number}"));
        let batch = std::iter::once("{own}".to_owned()).chain(theirs).map(acquire);
        let begun = Instant::now();
        let answer = backend.call(batch.collect()).await.expect("item by item");
        let took = begun.elapsed();
        println!("{took:?} for {} items", answer.outcomes.len());
        assert!(took < 2 * LIMIT, "{took:?}");
        let mut kinds = answer.outcomes.iter().map(|outcome| outcome.as_ref().map_err(|error| error.kind()));
        assert!(matches!(kinds.next(), Some(Ok(_))), "{:?}", answer.outcomes[0]);
        assert!(kinds.clone().all(|kind| kind == Err(ErrorKind::Denied)), "{:?}", kinds.collect::<Vec<_>>());
    };
    tokio::select! {
        () = backend.upkeep(Calls::to_nobody()) => unreachable!("the upkeep goes on for as long as it is polled"),
        () = work => {}
    }
}

/// The pauses between the attempts of a new manager to connect to somebody who hangs up at once, but for the first ones,
/// which are shorter. A busy machine makes them seem longer, and none shorter. `asked` says that requests go on asking.
async fn pauses_of_one(count: usize, asked: bool) -> Vec<Duration> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let url = format!("redis://{}", listener.local_addr().expect("a listener has an address"));
    let manager = LockManager::builder().url(&url).build().expect("a sound URL");
    let asks = tokio::spawn(async move {
        loop {
            let _ = manager.inspect("k").await;
            tokio::time::sleep(if asked { ms(10) } else { 10 * SOON }).await;
        }
    });
    let mut attempts = Vec::new();
    while attempts.len() < count {
        timeout(SOON, listener.accept()).await.expect("there is another attempt").expect("a connection");
        attempts.push(Instant::now());
    }
    asks.abort();
    attempts.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[tokio::test]
async fn attempts_to_connect_are_a_tenth_of_a_second_apart_at_most_and_keep_no_step() {
    let (one, other) = tokio::join!(pauses_of_one(30, true), pauses_of_one(30, true));
    let (one, other) = (&one[8..], &other[8..]);
    for pauses in [one, other] {
        let mut sorted = pauses.to_vec();
        sorted.sort_unstable();
        println!("{sorted:?}");
        let (shortest, median, longest) = (sorted[0], sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
        assert!(shortest < ms(100) && median < ms(300), "{sorted:?}");
        assert!(longest - shortest > ms(10), "all the same: {sorted:?}");
    }
    // Of independent ones it is a third of the range that they have, 40 ms.
    let apart: Duration = one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).sum();
    let pairs = u32::try_from(one.len()).expect("a small number");
    assert!(apart / pairs > ms(4), "{:?} apart on average", apart / pairs);
}

#[tokio::test]
async fn attempts_to_connect_that_nobody_asks_for_come_to_be_a_second_apart() {
    // The request of the test itself waits for a second.
    let pauses = pauses_of_one(17, false).await;
    println!("{pauses:?}");
    let last = &pauses[pauses.len() - 2..];
    assert!(last.iter().all(|pause| *pause >= ms(450)), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_a_reconnect_longer_than_his_own_limit() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let url = format!("redis://{}", proxy.address());
    let manager = LockManager::builder().url(&url).command_timeout(LIMIT).connect().await.expect("connects");
    let other = LockManager::connect(&server.url()).await.expect("connects");
    let kept = manager.lock("kept").ttl(10 * SOON).await.expect("the key is free");
    let guards: Vec<_> = join_all((0..20).map(|key| manager.lock(format!("k:{key}")).ttl(10 * SOON).acquire()))
        .await
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("the keys are free");
    let before = proxy.accepted();
    proxy.hole();
    proxy.reset();
    eventually(SOON, "an attempt to connect that hears nothing", async || proxy.accepted() > before).await;

    // What needs no answer: if one of these waited, it would wait for all of the hole.
    let kept = Arc::new(kept);
    let looks = spawn_blocking({
        let (manager, kept) = (manager.clone(), Arc::clone(&kept));
        move || {
            for _ in 0..100 {
                assert!(kept.is_held() && kept.remaining() > SOON);
                assert!(!format!("{manager:?} {kept:?}").is_empty());
            }
            drop(guards);
        }
    });
    timeout(SOON, looks).await.expect("nothing in the way").expect("no panic");

    // What needs one: all at once, each to its own limit.
    let begun = Instant::now();
    let inspects = join_all((0..8).map(|_| manager.inspect("kept")));
    let acquires = join_all((0..8).map(|key| manager.lock(format!("new:{key}")).wait(Duration::ZERO).acquire()));
    let others = async {
        for _ in 0..20 {
            other.lock("other").await.expect("the key is free").release().await.expect("held");
        }
        begun.elapsed()
    };
    let all = async { tokio::join!(inspects, acquires, others) };
    let (inspected, acquired, of_other) = timeout(SOON, all).await.expect("everything has its limit");
    let took = begun.elapsed();
    println!("{took:?}, a manager that is connected {of_other:?}");
    // Twice the limit, where they stand behind a call under way; one after the other would take sixteen times as long.
    assert!(took < 6 * LIMIT && of_other < LIMIT, "{took:?}, a manager that is connected {of_other:?}");
    assert!(inspected.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Backend)));
    assert!(acquired.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Backend)));

    proxy.pass();
    let is_free = async || !other.is_locked("k:19").await.expect("answered");
    eventually(SOON, "what was dropped meanwhile is released", is_free).await;
    assert!(kept.is_held() && other.is_locked("kept").await.expect("answered"));
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
