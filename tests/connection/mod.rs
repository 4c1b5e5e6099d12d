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
use lock_tests::{FaultProxy, LONG, RedisServer, SOON, eventually, is_redis_7, ms};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::{Notify, mpsc, oneshot, watch},
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::patient;
use crate::trust::requests_of_a_handoff;

const LIMIT: Duration = Duration::from_secs(1);

#[test]
fn manager_with_a_runtime_of_its_own_is_used_where_there_is_none() {
    let engine = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = engine.block_on(RedisServer::start());
    // Neither timers nor sockets: whatever needs them has to come from the engine's runtime.
    let bare = Builder::new_current_thread().build().expect("no threads needed");
    bare.block_on(async {
        let manager = patient::builder().url(server.url()).runtime(engine.handle().clone());
        let manager = manager.connect().await.expect("connects");
        let mut guard = manager.lock("k").ttl(SOON).await.expect("the key is free");
        guard.extend(LONG).await.expect("held");
        assert!(manager.inspect("k").await.expect("answered").is_locked());
        assert_eq!(manager.lock("k").wait(Duration::from_millis(50)).await.expect_err("held").kind(), ErrorKind::Busy);
        guard.release().await.expect("held");
        let _held = manager.lock("other").await.expect("the key is free");
        assert_eq!(manager.force_release_all("").await.expect("answered"), 1);
        assert_eq!(manager.shutdown(SOON).await, 0);
    });
}

#[tokio::test]
async fn batch_that_is_refused_as_a_whole_ends_within_the_limit_of_one_call() {
    let server = RedisServer::start().await;
    let rules = ["ACL", "SETUSER", "some", "on", ">secret", "~{own}*", "~{0}lock-core:*", "&*", "+@all"];
    assert_eq!(server.call(&rules).await.text().as_deref(), Some("OK"));
    let proxy = FaultProxy::start(server.address()).await;
    let url = format!("redis://some:secret@{}", proxy.address());
    let backend = RedisBackend::from_url(&url, "refused", 40 * LIMIT).expect("a sound URL");
    let work = async {
        let acquire = |key: String| {
            let key = LockKey::new(key).expect("a sound key");
            Operation::Acquire(Acquire::new(key, Token::from_random(1), Duration::from_secs(60)))
        };
        // With that the server has the script.
        backend.call(Batch::from([acquire("{own}".to_owned())])).await.expect("the server answers");
        // One after the other, the items would take more than twice the limit, at the end of which the call is an error.
        proxy.delay(LIMIT / 2, Duration::ZERO);
        let theirs = (0..100).map(|number| format!("theirs:{number}"));
        let batch = std::iter::once("{own}".to_owned()).chain(theirs).map(acquire);
        let answer = backend.call(batch.collect()).await.expect("item by item");
        let mut kinds = answer.outcomes.iter().map(|outcome| outcome.as_ref().map_err(|error| error.kind()));
        assert!(matches!(kinds.next(), Some(Ok(_))), "{:?}", answer.outcomes[0]);
        assert!(kinds.clone().all(|kind| kind == Err(ErrorKind::Denied)), "{:?}", kinds.collect::<Vec<_>>());
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
        () = work => {}
    }
}

/// Runs `work` with a backend that has its driver.
async fn with_driver(backend: &RedisBackend, work: impl Future<Output = ()>) {
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on for as long as it is polled"),
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
    let limit = 10 * LIMIT;
    let backend = RedisBackend::from_url(&server.url(), "late", limit).expect("a sound URL");
    let mut late = backend.call(acquire("late", 1));
    assert!((&mut late).now_or_never().is_none(), "there is no connection yet");
    with_driver(&backend, async {
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
    let limit = 10 * LIMIT;
    let backend = RedisBackend::from_url(&server.url(), "late", limit).expect("a sound URL");
    with_driver(&backend, async {
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
    // So long that only the time of the renewal itself can end it before the deadline of the test.
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "silent", LONG).expect("a sound URL");
    with_driver(&backend, async {
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
        let other = backend.call(acquire("other", 2));
        let both = async { tokio::join!(renewal, other) };
        let ((renewed, gave_up), acquired) = timeout(SOON, both).await.expect("both end before the limit");
        assert_eq!(renewed.expect_err("nobody answers").kind(), ErrorKind::Backend);
        assert!(gave_up >= ms(200), "{gave_up:?}");
        let acquired = acquired.expect("repeated over the next connection");
        assert!(acquired.repeated, "{acquired:?}");
        assert!(backend.epoch() > epoch);
    })
    .await;
}

/// Passes all to a server. Counts the round trips of all connections, which is how often a client has spoken after it was answered
/// or for the first time, and the connections.
async fn counts_round_trips(server: String) -> (String, Arc<[AtomicUsize; 2]>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    let trips = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counted = Arc::clone(&trips);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a client");
            counted[1].fetch_add(1, Ordering::Relaxed);
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            let trips = Arc::clone(&counted);
            tokio::spawn(async move {
                let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                let mut was_answered = true;
                loop {
                    let passed = tokio::select! {
                        Ok(bytes) = client.read(&mut asked) => {
                            trips[0].fetch_add(usize::from(was_answered && bytes > 0), Ordering::Relaxed);
                            was_answered = false;
                            server.write_all(&asked[..bytes]).await.map(|()| bytes)
                        }
                        Ok(bytes) = server.read(&mut answered) => {
                            was_answered = true;
                            client.write_all(&answered[..bytes]).await.map(|()| bytes)
                        }
                        else => return,
                    };
                    if !matches!(passed, Ok(1..)) {
                        return;
                    }
                }
            });
        }
    });
    (address, trips)
}

/// By default a request may take a second, and so may each step of an attempt to connect, which may take five seconds in all. So
/// what counts is how many round trips they take: one for the handshake, and one for the trial of `connect`.
#[tokio::test]
async fn server_that_is_300_ms_away_can_be_connected_to_and_used_with_the_defaults() {
    let server = RedisServer::start().await;
    let (address, trips) = counts_round_trips(server.address()).await;
    let begun = Instant::now();
    let manager = patient::connect(&server.url_at(&address)).await.expect("connects");
    // A connection that is not answered soon is followed by another one, and one that is up is asked for a sign of life each second.
    let [connected, connections] = trips.each_ref().map(|count| count.load(Ordering::Relaxed));
    let signs = || usize::try_from(begun.elapsed().as_secs()).expect("a short test");
    assert!(connected <= 2 * connections + signs(), "{connected} round trips of {connections} connections");
    let guard = manager.lock("k").await.expect("the key is free");
    let used = trips[0].load(Ordering::Relaxed) - connected;
    assert!(used <= 3 + signs(), "{used} round trips");
    guard.release().await.expect("held");
    // Also when the former connection has to be killed.
    server.kill_clients().await;
    eventually(SOON, "it reconnects", async || manager.lock("k").await.is_ok()).await;
}

/// The clock of the test stands still while the server's goes on; so whatever waits for the server must not see it.
#[tokio::test(start_paused = true)]
async fn paused_clock_is_of_no_matter_to_a_manager_with_a_runtime_of_its_own() {
    let engine = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = engine.spawn(RedisServer::start()).await.expect("no panic");
    let manager = patient::builder().url(server.url()).runtime(engine.handle().clone());
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
    let backend = RedisBackend::from_url(&server.url(), "shared", SOON).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    for first_ends in [true, false] {
        let (one, other) = (manager(), manager());
        one.lock("one").await.expect("the key is free").release().await.expect("held");
        other.lock("other").await.expect("the key is free").release().await.expect("held");
        let (ends, stays) = if first_ends { (one, other) } else { (other, one) };
        assert_eq!(ends.shutdown(SOON).await, 0);
        drop(ends);
        eventually(SOON, "one connection is left", async || server.client_list().await.len() == 1).await;
        // One of them is that of the question itself.
        let connections = async || server.info("total_connections_received").await.parse::<u64>().expect("a number");
        let before = connections().await;
        let guard = stays.lock("k").await.expect("the server answers");
        guard.release().await.expect("held");
        assert_eq!(connections().await - before, 1, "it goes over the connection that is left");
        assert!(backend.is_reachable());
        assert_eq!(stays.shutdown(SOON).await, 0);
    }
}

#[tokio::test]
async fn manager_that_begins_breaks_off_no_request_of_another_of_the_same_backend() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "shared", LONG).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    let (one, other) = (manager(), manager());
    let guard = one.lock("k").ttl(LONG).await.expect("the key is free");
    // Writes wait, and handshakes do not.
    assert_eq!(server.call(&["CLIENT", "PAUSE", "600000", "WRITE"]).await.text().as_deref(), Some("OK"));
    let before = backend.epoch();
    let released = tokio::spawn(guard.release());
    let waits = async || server.client_list().await.iter().any(|client| client.field("flags").contains('b'));
    eventually(SOON, "the release waits at the server", waits).await;
    let acquired = tokio::spawn(async move { (other.lock("other").await, other) });
    eventually(SOON, "the other manager has a connection of its own", async || backend.epoch() > before).await;
    assert!(!released.is_finished() && !acquired.is_finished(), "they wait");
    server.call(&["CLIENT", "UNPAUSE"]).await;
    released.await.expect("no panic").expect("its connection goes on");
    let (acquired, other) = acquired.await.expect("no panic");
    drop(acquired.expect("the key is free"));
    assert_eq!((one.shutdown(SOON).await, other.shutdown(SOON).await), (0, 0));
}

/// Passes all to a server, and its answers only while they are let through. Returns its address.
async fn keeps_answers_back(server: String, lets: watch::Receiver<bool>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.expect("a client");
            let server = TcpStream::connect(&server).await.expect("the server is up");
            let mut lets = lets.clone();
            tokio::spawn(async move {
                let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                    (client.into_split(), server.into_split());
                let requests = tokio::io::copy(&mut from_client, &mut to_server);
                let answers = async {
                    let mut answered = vec![0; 65_536];
                    while let Ok(bytes @ 1..) = from_server.read(&mut answered).await {
                        let _ = lets.wait_for(|lets| *lets).await;
                        if to_client.write_all(&answered[..bytes]).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::join!(requests, answers)
            });
        }
    });
    address
}

/// All threads of the runtime stand still (a process that is stopped, a container that gets no time) while the answer comes:
/// then it is there, and counts.
#[test]
fn answer_that_comes_while_the_runtime_stands_still_counts() {
    let outside = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be had");
    let server = outside.block_on(RedisServer::start());
    let (lets, watched) = watch::channel(true);
    let address = outside.block_on(keeps_answers_back(server.address(), watched));
    let limit = 8 * LIMIT;
    for threads in [1, 2] {
        let runtime = Builder::new_multi_thread().worker_threads(threads).enable_all().build().expect("threads");
        let backend = RedisBackend::from_url(&server.url_at(&address), "still", limit).expect("a sound URL");
        let work = backend.clone();
        let (ask, mut asked) = mpsc::unbounded_channel();
        let task = runtime.spawn(async move {
            with_driver(&work.clone(), async move {
                work.call(acquire(&format!("k{threads}"), 1)).await.expect("the server answers");
                let epoch = work.epoch();
                while let Some((round, answered)) = asked.recv().await {
                    let answer = work.call(acquire(&format!("k{threads}{round}"), 2)).await;
                    answer.expect("the answer is there");
                    assert_eq!(work.epoch(), epoch, "the connection is as healthy as before");
                    let _: Result<_, ()> = oneshot::Sender::send(answered, ());
                }
            })
            .await;
        });
        for round in 0..2 {
            let key = format!("k{threads}");
            outside.block_on(eventually(SOON, "it is connected", async || !server.call(&["GET", &key]).await.is_nil()));
            lets.send_replace(false);
            let (answered, is_answered) = oneshot::channel();
            ask.send((round, answered)).expect("the task goes on");
            let key = format!("k{threads}{round}");
            let is_held = async || !server.call(&["GET", &key]).await.is_nil();
            outside.block_on(eventually(SOON, "the request is executed", is_held));
            let begun = std::time::Instant::now();
            let (stand, go_on) =
                (Arc::new(std::sync::Barrier::new(threads + 1)), Arc::new(std::sync::Barrier::new(threads + 1)));
            for _ in 0..threads {
                let (stand, go_on) = (Arc::clone(&stand), Arc::clone(&go_on));
                runtime.spawn(async move {
                    stand.wait();
                    go_on.wait();
                });
            }
            stand.wait();
            // Now nothing runs there. The answer comes, and its limit is over before anything goes on.
            lets.send_replace(true);
            std::thread::sleep((limit + ms(100)).saturating_sub(begun.elapsed()));
            go_on.wait();
            let is_answered = outside.block_on(async { timeout(SOON, is_answered).await });
            assert!(matches!(is_answered, Ok(Ok(()))), "the connection is kept, and its answer counts");
        }
        drop(ask);
        outside.block_on(task).expect("no panic");
    }
}

/// A renewal has less time than a command; but no connection answers sooner than the server is away.
#[tokio::test]
async fn lease_that_is_renewed_over_a_long_way_keeps_its_connection() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    // A machine that is slow may add some seconds to each of the few renewals.
    let (delay, ttl) = (ms(2_000), ms(18_000));
    proxy.delay(delay, Duration::ZERO);
    let builder = LockManager::builder().url(server.url_at(&proxy.address())).command_timeout(SOON);
    let manager = builder.connect_timeout(SOON).connect().await.expect("connects");
    // The first call of all takes two round trips, since the server does not have the script yet.
    assert!(!manager.is_locked("k").await.expect("is answered"));
    // A third of its ttl is little more than a round trip.
    let guard = manager.lock("k").ttl(ttl).await.expect("the key is free");
    let accepted = proxy.accepted();
    for _ in 0..3 {
        let before = guard.deadline();
        eventually(SOON, "the lease is renewed", async || guard.deadline() > before).await;
    }
    assert!(guard.is_held(), "{guard:?}");
    assert_eq!(proxy.accepted(), accepted, "the connection is as healthy as before");
    guard.release().await.expect("held");
}

/// The server has freed the key, and the next holder has it by the time of a repeat.
#[tokio::test]
async fn release_by_force_whose_answer_is_lost_does_not_strike_the_next_holder() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "force", SOON).expect("a sound URL");
    with_driver(&backend, async {
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
        let builder = LockManager::builder().url(server.url_at(&address)).command_timeout(SOON);
        let manager = builder.connect().await.expect("connects");
        let guard = manager.lock("k").ttl(LONG).renew_every(ms(1_000)).await.expect("the key is free");
        on.store(true, Ordering::Relaxed);
        for _ in 0..4 {
            let answer = timeout(SOON, manager.is_locked("other")).await.expect("it is answered in the flood");
            assert!(!answer.expect("it is answered"));
        }
        for _ in 0..2 {
            // Only a renewal that was answered moves the deadline.
            let former = guard.deadline();
            eventually(SOON, "the lease is renewed in the flood", async || guard.deadline() > former).await;
        }
        on.store(false, Ordering::Relaxed);
        assert!(guard.is_held(), "{guard:?}");
    });
}

/// Each of them has its own connection, for the calls of its waiters, and the newest one carries the requests of all.
/// The connection of one manager carries the requests of the other, whose task has to hear of the answers.
#[test]
fn managers_of_one_backend_are_answered_over_each_others_connection() {
    let runtime = || Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be had");
    let runtimes = [runtime(), runtime()];
    let (server, backend) = runtimes[0].block_on(async {
        let server = RedisServer::start().await;
        let backend = RedisBackend::from_url(&server.url(), "shared", SOON).expect("a sound URL");
        (server, backend)
    });
    let managers = [0, 1].map(|runtime| {
        let handle = runtimes[runtime].handle().clone();
        LockManager::builder().backend(backend.clone()).runtime(handle).build().expect("a sound backend")
    });
    runtimes[0].block_on(async {
        for manager in &managers {
            drop(manager.lock("first").await.expect("it becomes free"));
        }
        eventually(SOON, "both are connected", async || backend.epoch() == 2).await;
        // A task that does not hear of an answer looks four times a second, so that two pairs of each manager would take a second. A busy
        // machine may need that for them, too, but not each time.
        let (mut quickest, mut round) = (Duration::MAX, 0);
        while round < 50 || quickest >= ms(500) {
            assert!(round < 250, "answers are not heard of when they come: {quickest:?}");
            let begun = Instant::now();
            for manager in managers.iter().chain(&managers) {
                manager.lock("k").await.expect("it is free").release().await.expect("it is held");
            }
            (quickest, round) = (quickest.min(begun.elapsed()), round + 1);
        }
    });
    drop((managers, server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managers_of_one_backend_do_not_replace_each_others_connection() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "shared", SOON).expect("a sound URL");
    let manager = || LockManager::builder().backend(backend.clone()).build().expect("a sound backend");
    let (one, other) = (manager(), manager());
    let _ours = one.lock("one").ttl(LONG).await.expect("the key is free");
    let _held = other.lock("other").ttl(LONG).await.expect("the key is free");
    eventually(SOON, "both are connected", async || backend.epoch() == 2).await;
    tokio::time::sleep(ms(3_500)).await; // some heartbeats
    assert_eq!(backend.epoch(), 2, "both connections are as healthy as before");
    // A waiter that is called needs no request of its own.
    assert_eq!(requests_of_a_handoff(&server, "0", [&other, &one], 2).await, 2, "the two releases");
}
