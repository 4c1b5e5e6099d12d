//! The connection to a real Redis, where it is slow, silent or refuses: every request ends within its limit.

mod attempts;
mod handshake;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use lock_core::{
    ErrorKind, LockManager,
    backend::{Acquire, Backend, Batch, Calls, Operation, Outcome, RedisBackend, Renew, Token},
    key::LockKey,
};
use lock_tests::{FaultProxy, RedisServer, SOON, eventually, ms};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, timeout},
};

const LIMIT: Duration = Duration::from_secs(1);

#[test]
fn manager_with_a_runtime_of_its_own_is_used_where_there_is_none() {
    let engine = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = engine.block_on(RedisServer::start());
    // Neither timers nor sockets: whatever needs them has to come from the engine's runtime.
    let bare = Builder::new_current_thread().build().expect("no threads needed");
    bare.block_on(async {
        let manager = LockManager::builder().url(server.url()).runtime(engine.handle().clone());
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

/// Runs `work` with a backend that has its upkeep.
async fn with_upkeep(backend: &RedisBackend, work: impl Future<Output = ()>) {
    tokio::select! {
        () = backend.upkeep(Calls::to_nobody()) => unreachable!("the upkeep goes on for as long as it is polled"),
        () = work => {}
    }
}

fn key(name: &str) -> LockKey {
    LockKey::new(name).expect("a sound key")
}

fn acquire(name: &str, token: u128) -> Batch {
    Batch::from([Operation::Acquire(Acquire::new(key(name), Token::from_random(token), 3 * SOON))])
}

#[tokio::test]
async fn request_that_is_polled_too_late_sends_nothing_and_keeps_the_connection() {
    let server = RedisServer::start().await;
    let limit = ms(300);
    let backend = RedisBackend::from_url(&server.url(), "late", limit).expect("a sound URL");
    let mut late = backend.call(acquire("late", 1));
    assert!((&mut late).now_or_never().is_none(), "there is no connection yet");
    with_upkeep(&backend, async {
        backend.call(acquire("k", 2)).await.expect("the server answers");
        let (epoch, connections) = (backend.epoch(), server.info("total_connections_received").await);
        tokio::time::sleep(limit + ms(50)).await;
        let error = late.await.expect_err("its time is over");
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(format!("{error:?}").contains("may_have_happened: false"), "{error:?}");
        backend.call(acquire("other", 3)).await.expect("the server answers");
        assert_eq!(backend.epoch(), epoch, "the connection is as healthy as before");
        let more = server.info("total_connections_received").await.parse::<u64>().expect("a number");
        assert!(more - connections.parse::<u64>().expect("a number") <= 2, "only those of this test");
        assert!(server.call(&["GET", "late"]).await.is_nil());
    })
    .await;
}

#[tokio::test]
async fn answer_that_is_there_counts_however_late_it_is_looked_for() {
    let server = RedisServer::start().await;
    let limit = ms(300);
    let backend = RedisBackend::from_url(&server.url(), "late", limit).expect("a sound URL");
    with_upkeep(&backend, async {
        backend.call(acquire("k", 1)).await.expect("the server answers");
        let mut late = backend.call(acquire("late", 2));
        assert!((&mut late).now_or_never().is_none(), "it is sent, and not answered yet");
        tokio::time::sleep(limit + ms(50)).await;
        let answer = late.await.expect("it was answered long ago");
        assert!(matches!(answer.outcomes[..], [Ok(Outcome::Held { .. })]), "{answer:?}");
    })
    .await;
}

/// The renewal has less time than a command, and the other request is repeated when its connection is replaced.
#[tokio::test]
async fn renewal_gives_a_silent_connection_up_in_time_and_others_are_repeated_over_the_next() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let limit = 4 * LIMIT;
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "silent", limit).expect("a sound URL");
    with_upkeep(&backend, async {
        backend.call(acquire("k", 1)).await.expect("the server answers");
        let epoch = backend.epoch();
        proxy.drop_requests();
        let begun = Instant::now();
        let mut renew = Renew::new(key("k"), Token::from_random(1), 3 * SOON);
        renew.within = ms(200);
        let renewal = async {
            let renewed = backend.call(Batch::from([Operation::Renew(renew)])).await;
            proxy.pass();
            (renewed, begun.elapsed())
        };
        let other = async { (backend.call(acquire("other", 2)).await, begun.elapsed()) };
        let ((renewed, gave_up), (acquired, answered)) = tokio::join!(renewal, other);
        println!("the renewal gave up after {gave_up:?}, the other was answered after {answered:?}");
        assert_eq!(renewed.expect_err("nobody answers").kind(), ErrorKind::Backend);
        assert!((ms(200)..LIMIT).contains(&gave_up), "{gave_up:?}");
        let acquired = acquired.expect("repeated over the next connection");
        assert!(acquired.repeated, "{acquired:?}");
        assert!(answered < 3 * LIMIT, "{answered:?}");
        assert!(backend.epoch() > epoch);
    })
    .await;
}

#[tokio::test]
async fn server_that_is_300_ms_away_is_connected_to_and_used_with_the_defaults() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    // The proxy accepts connections at once, so the round trip of TCP is spread over the others.
    proxy.delay(ms(180), Duration::ZERO);
    let begun = Instant::now();
    let manager = LockManager::connect(&server.url_at(&proxy.address())).await.expect("connects");
    println!("connected after {:?}, with {} connections", begun.elapsed(), proxy.accepted());
    drop(manager.lock("k").await.expect("the key is free"));
    // Also when the former connection has to be killed.
    proxy.reset();
    eventually(SOON, "it reconnects", async || manager.lock("k").await.is_ok()).await;
}

/// The clock of the test stands still while the server's goes on; so whatever waits for the server must not see it.
#[tokio::test(start_paused = true)]
async fn paused_clock_is_of_no_matter_to_a_manager_with_a_runtime_of_its_own() {
    let engine = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = engine.spawn(RedisServer::start()).await.expect("no panic");
    let manager = LockManager::builder().url(server.url()).runtime(engine.handle().clone());
    let manager = manager.connect().await.expect("connects");
    for _ in 0..20 {
        let guard = manager.lock("k").await.expect("the key is free");
        assert!(guard.is_held());
        guard.release().await.expect("held");
    }
    drop(manager);
    engine.shutdown_background();
}

/// Two managers may share a backend, also as a node of two quorums: one that ends leaves the other its connection.
#[tokio::test]
async fn manager_that_ends_leaves_another_of_the_same_backend_its_connection() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "shared", LIMIT).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    for first_ends in [true, false] {
        let (one, other) = (manager(), manager());
        one.lock("one").await.expect("the key is free").release().await.expect("held");
        other.lock("other").await.expect("the key is free").release().await.expect("held");
        let (ends, stays) = if first_ends { (one, other) } else { (other, one) };
        assert_eq!(ends.shutdown(LIMIT).await, 0);
        drop(ends);
        tokio::time::sleep(ms(50)).await;
        let begun = Instant::now();
        let guard = stays.lock("k").await.expect("the server answers");
        assert!(begun.elapsed() < LIMIT / 4, "{:?}", begun.elapsed());
        guard.release().await.expect("held");
        assert!(backend.is_reachable());
        assert_eq!(stays.shutdown(LIMIT).await, 0);
    }
}

#[tokio::test]
async fn manager_that_begins_breaks_off_no_request_of_another_of_the_same_backend() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "shared", LIMIT).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    let (one, other) = (manager(), manager());
    let guard = one.lock("k").await.expect("the key is free");
    // Writes wait, and handshakes do not.
    assert_eq!(server.call(&["CLIENT", "PAUSE", "400", "WRITE"]).await.text().as_deref(), Some("OK"));
    let (begun, before) = (Instant::now(), backend.epoch());
    let (released, acquired) = tokio::join!(guard.release(), other.lock("other"));
    assert!(backend.epoch() > before, "the other manager has a connection of its own");
    assert!(begun.elapsed() > ms(300), "they waited: {:?}", begun.elapsed());
    released.expect("its connection goes on");
    drop(acquired.expect("the key is free"));
    assert_eq!((one.shutdown(LIMIT).await, other.shutdown(LIMIT).await), (0, 0));
}

/// All threads of the runtime stand still (a process that is stopped, a container that gets no time) while the answer comes:
/// then it is there, and counts.
#[test]
fn answer_that_comes_while_the_runtime_stands_still_counts() {
    let outside = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = outside.block_on(RedisServer::start());
    let proxy = outside.block_on(FaultProxy::start(server.address()));
    let limit = ms(400);
    for threads in [1, 2] {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads");
        let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "still", limit).expect("a sound URL");
        let work = backend.clone();
        let task = runtime.spawn(async move {
            with_upkeep(&work.clone(), async move {
                work.call(acquire("k", 1)).await.expect("the server answers");
                let epoch = work.epoch();
                for round in 0..10 {
                    let call = work.call(acquire(&format!("k{threads}{round}"), 2));
                    let call = tokio::spawn(call);
                    tokio::time::sleep(ms(20)).await;
                    let still = || tokio::spawn(async move { std::thread::sleep(limit + ms(100)) });
                    let still: Vec<_> = (0..threads).map(|_| still()).collect();
                    call.await.expect("no panic").expect("the answer is there");
                    for standstill in still {
                        standstill.await.expect("no panic");
                    }
                    assert_eq!(work.epoch(), epoch, "the connection is as healthy as before");
                }
            })
            .await;
        });
        std::thread::sleep(ms(100));
        proxy.delay(ms(100), Duration::ZERO);
        outside.block_on(task).expect("the connection is kept");
        proxy.pass();
    }
}

/// A renewal has less time than a command; but no connection answers sooner than the server is away.
#[tokio::test]
async fn lease_that_is_renewed_over_a_long_way_keeps_its_connection() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    proxy.delay(ms(150), Duration::ZERO);
    let manager = LockManager::connect(&server.url_at(&proxy.address())).await.expect("connects");
    // The first call of all takes two round trips, since the server does not have the script yet.
    assert!(!manager.is_locked("k").await.expect("is answered"));
    let guard = manager.lock("k").ttl(ms(900)).await.expect("the key is free");
    let accepted = proxy.accepted();
    for _ in 0..30 {
        tokio::time::sleep(ms(100)).await;
        assert!(guard.is_held(), "{guard:?}");
    }
    assert_eq!(proxy.accepted(), accepted, "the connection is as healthy as before");
    guard.release().await.expect("held");
}

/// The server has freed the key, and the next holder has it by the time of a repeat.
#[tokio::test]
async fn release_by_force_whose_answer_is_lost_does_not_strike_the_next_holder() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "force", LIMIT).expect("a sound URL");
    with_upkeep(&backend, async {
        backend.call(acquire("k", 1)).await.expect("the server answers");
        proxy.drop_replies();
        let mut force = backend.call(Batch::from([Operation::Force { key: key("k"), foreign: true }]));
        assert!((&mut force).now_or_never().is_none());
        eventually(SOON, "it is freed", async || server.call(&["GET", "k"]).await.is_nil()).await;
        server.call(&["SET", "k", "next"]).await;
        proxy.pass();
        proxy.reset();
        let error = force.await.expect_err("nobody knows whether it was done");
        assert!(format!("{error:?}").contains("may_have_happened: true"), "{error:?}");
        assert_eq!(server.call(&["GET", "k"]).await.text().as_deref(), Some("next"));
    })
    .await;
}

/// Passes all to a server, and pushes without end as long as it is told to.
async fn floods(server: String, on: Arc<AtomicBool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    let flood = format!(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1000\r\n{:1000}\r\n", "").repeat(64);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            let (on, flood) = (Arc::clone(&on), flood.clone());
            tokio::spawn(async move {
                let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                loop {
                    let pushed = async {
                        while !on.load(Ordering::Relaxed) {
                            tokio::time::sleep(ms(1)).await;
                        }
                    };
                    let result = tokio::select! {
                        biased;
                        Ok(bytes) = client.read(&mut asked) => match bytes {
                            0 => return,
                            _ => server.write_all(&asked[..bytes]).await,
                        },
                        Ok(bytes) = server.read(&mut answered) => match bytes {
                            0 => return,
                            _ => client.write_all(&answered[..bytes]).await,
                        },
                        () = pushed => client.write_all(flood.as_bytes()).await,
                    };
                    if result.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// As when somebody publishes to the channel as fast as he can.
#[test]
fn pushes_without_end_do_not_keep_answers_and_renewals_back() {
    let outside = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = outside.block_on(RedisServer::start());
    let on = Arc::new(AtomicBool::new(false));
    let address = outside.block_on(floods(server.address(), Arc::clone(&on)));
    let inside = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    inside.block_on(async {
        let manager = LockManager::connect(&server.url_at(&address)).await.expect("connects");
        let guard = manager.lock("k").ttl(ms(1_500)).await.expect("the key is free");
        on.store(true, Ordering::Relaxed);
        let (begun, mut answered) = (Instant::now(), 0);
        while begun.elapsed() < ms(3_000) {
            answered += u32::from(matches!(timeout(LIMIT, manager.is_locked("other")).await, Ok(Ok(false))));
            tokio::time::sleep(ms(10)).await;
        }
        on.store(false, Ordering::Relaxed);
        println!("{answered} answers");
        assert!(answered > 3, "{answered} answers");
        assert!(guard.is_held(), "{guard:?}");
    });
}

/// Each of them has its own connection, for the calls of its waiters, and the newest one carries the requests of all.
#[tokio::test]
async fn managers_of_one_backend_do_not_replace_each_others_connection() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "shared", LIMIT).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    let (one, other) = (manager(), manager());
    let _ours = one.lock("one").await.expect("the key is free");
    let held = other.lock("other").await.expect("the key is free");
    eventually(SOON, "both are connected", async || backend.epoch() == 2).await;
    tokio::time::sleep(ms(3_500)).await;
    assert_eq!(backend.epoch(), 2, "both connections are as healthy as before");
    let waits = tokio::spawn(async move { one.lock("other").await.map(drop) });
    tokio::time::sleep(ms(200)).await;
    let begun = Instant::now();
    held.release().await.expect("held");
    waits.await.expect("no panic").expect("it is released");
    assert!(begun.elapsed() < ms(150), "{:?}: the waiter was not called", begun.elapsed());
}
