//! The connection to a real Redis, where it is slow, silent or refuses: every request ends within its limit.

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
    let pauses = pauses_of_one(21, false).await;
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
    eventually(SOON, "it connects anew", async || manager.lock("k").await.is_ok()).await;
}

#[tokio::test]
async fn identity_is_the_run_of_the_server_whatever_its_name_is_in_the_url() {
    let (server, other) = (RedisServer::start().await, RedisServer::start().await);
    let run = server.info("run_id").await.trim().to_owned();
    let urls = [server.url(), server.url().replace("127.0.0.1", "localhost"), other.url()];
    let mut identities = Vec::new();
    for url in urls {
        let backend = RedisBackend::from_url(&url, "identity", LIMIT).expect("a sound URL");
        assert_eq!(backend.identity(), None, "there is no connection yet");
        with_upkeep(&backend, async {
            backend.call(Batch::new()).await.expect("the server answers");
            identities.push(backend.identity().expect("the server tells"));
        })
        .await;
    }
    assert_eq!(&*identities[0], run);
    assert_eq!(identities[0], identities[1]);
    assert_ne!(identities[0], identities[2]);
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

/// A proxy before `server` that answers HELLO with `refusal`, or closes the connection on it.
async fn without_hello(server: &RedisServer, refusal: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let (address, server) = (listener.local_addr().expect("it is bound").to_string(), server.address());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let mut buffer = vec![0; 16_384];
                let read = client.read(&mut buffer).await?;
                if String::from_utf8_lossy(&buffer[..read]).contains("HELLO") {
                    let Some(refusal) = refusal else { return Ok(()) };
                    // Two more commands come along.
                    client.write_all(format!("-{refusal}\r\n+OK\r\n+OK\r\n").as_bytes()).await?;
                    let _until_it_hangs_up = client.read(&mut buffer).await?;
                    return Ok(());
                }
                let mut upstream = tokio::net::TcpStream::connect(server).await?;
                upstream.write_all(&buffer[..read]).await?;
                tokio::io::copy_bidirectional(&mut client, &mut upstream).await.map(drop)
            });
        }
    });
    address
}

#[tokio::test]
async fn proxy_that_knows_only_resp2_is_spoken_to_in_resp2_whatever_its_words() {
    let server = RedisServer::start().await;
    for refusal in [
        Some("NOPROTO unsupported protocol version"),
        Some("ERR unknown command `HELLO`, with args beginning with: `3`"),
        Some("ERR unknown command 'hello'"),
        Some("ERR Unknown Command 'HELLO'"),
        Some("ERR unsupported command"),
        Some("ERR invalid request"),
        None,
    ] {
        let address = without_hello(&server, refusal).await;
        let manager = LockManager::connect(&format!("redis://{address}")).await;
        let manager = manager.unwrap_or_else(|error| panic!("{refusal:?}: {error}"));
        manager.lock("k").await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn resp2_is_spoken_by_choice() {
    let server = RedisServer::start().await;
    for (options, resp) in [("", "3"), ("?protocol=resp3", "3"), ("?protocol=resp2", "2"), ("/?protocol=2", "2")] {
        let manager = LockManager::connect(&format!("{}{options}", server.url())).await.unwrap();
        manager.lock("k").await.unwrap().release().await.unwrap();
        let clients = server.client_list().await;
        let ours: Vec<_> = clients.iter().map(|client| client.field("resp")).collect();
        assert_eq!(ours, [resp], "{options}");
        manager.shutdown(SOON).await;
        eventually(SOON, "it is disconnected", async || server.client_list().await.is_empty()).await;
    }
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

/// Passes all to a server but EVALSHA, on which it hangs up. Returns its address, and counts its connections.
async fn hangs_up_on_the_script(server: String) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    let accepted = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&accepted);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.expect("a client");
            counted.fetch_add(1, Ordering::Relaxed);
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            tokio::spawn(async move {
                let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                loop {
                    tokio::select! {
                        Ok(bytes) = client.read(&mut asked) => {
                            if bytes == 0 || asked[..bytes].windows(7).any(|word| word == b"EVALSHA") {
                                return;
                            }
                            server.write_all(&asked[..bytes]).await.expect("the server reads");
                        }
                        Ok(bytes) = server.read(&mut answered) => {
                            if bytes == 0 || client.write_all(&answered[..bytes]).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            });
        }
    });
    (address, accepted)
}

#[tokio::test]
async fn server_that_hangs_up_on_each_request_is_not_connected_to_without_a_pause() {
    let server = RedisServer::start().await;
    let (address, accepted) = hangs_up_on_the_script(server.address()).await;
    let manager = LockManager::connect(&server.url_at(&address)).await.expect("connects");
    for _ in 0..3 {
        let error = manager.lock("k").await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    }
    let accepted = accepted.load(Ordering::Relaxed);
    println!("{accepted} connections");
    assert!(accepted < 100, "{accepted} connections in 3 s");
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

/// Otherwise what the old connection still carries could be executed later.
#[tokio::test]
async fn connection_that_is_replaced_is_killed() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "killed", ms(300)).expect("a sound URL");
    with_upkeep(&backend, async {
        backend.call(acquire("k", 1)).await.expect("the server answers");
        let kills = async || server.call(&["INFO", "commandstats"]).await.text().unwrap_or_default();
        assert!(!kills().await.contains("client|kill"));
        proxy.drop_replies();
        assert!(backend.call(acquire("silence", 2)).await.is_err());
        proxy.pass();
        let answer = backend.call(acquire("other", 3)).await.expect("the server answers again");
        assert!(matches!(answer.outcomes[..], [Ok(Outcome::Held { .. })]), "{answer:?}");
        assert!(kills().await.contains("client|kill:calls=1,"), "{}", kills().await);
        // Its answer is nobody else's.
        for token in 4..20 {
            let answer = backend.call(acquire(&format!("k{token}"), token)).await.expect("the server answers");
            assert!(matches!(answer.outcomes[..], [Ok(Outcome::Held { .. })]), "{answer:?}");
        }
    })
    .await;
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

/// A balancer without a server hangs up at once; the server that comes then speaks the newer protocol.
#[tokio::test]
async fn server_that_comes_up_behind_a_balancer_is_not_taken_for_an_old_one() {
    let server = RedisServer::start().await;
    for hang_ups in 0..6 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
        let address = listener.local_addr().expect("a listener has an address").to_string();
        let real = server.address();
        tokio::spawn(async move {
            for _ in 0..hang_ups {
                let (mut client, _) = listener.accept().await.expect("a client");
                let _ = client.read(&mut [0; 1_024]).await;
            }
            loop {
                let (mut client, _) = listener.accept().await.expect("a client");
                let mut server = TcpStream::connect(&real).await.expect("the server is up");
                tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
            }
        });
        let name = format!("hung-up-{hang_ups}");
        let manager = LockManager::builder().url(server.url_at(&address)).client_name(&name);
        let manager = manager.connect().await.expect("connects");
        manager.lock("k").await.expect("the key is free").release().await.expect("held");
        let clients = server.call(&["CLIENT", "LIST"]).await.text().expect("a text");
        let ours = clients.lines().find(|client| client.contains(&format!("name={name} "))).expect("it is connected");
        assert!(ours.contains("resp=3"), "after {hang_ups} hang-ups: {ours}");
    }
}

/// Passes all to a server. Hangs up on the first client when told to, and on the second one with the last answer of its
/// handshake: answers and end come at once.
async fn hangs_up_after_the_handshake(server: String, told: Arc<Notify>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is a free port");
    let address = listener.local_addr().expect("a listener has an address").to_string();
    tokio::spawn(async move {
        for connection in 0.. {
            let (mut client, _) = listener.accept().await.expect("a client");
            let mut server = TcpStream::connect(&server).await.expect("the server is up");
            let told = Arc::clone(&told);
            tokio::spawn(async move {
                if connection == 1 {
                    let (mut asked, mut answered) = (vec![0; 65_536], vec![0; 65_536]);
                    for step in 0..2 {
                        let bytes = client.read(&mut asked).await.expect("the client asks");
                        server.write_all(&asked[..bytes]).await.expect("the server reads");
                        tokio::time::sleep(ms(100)).await;
                        let bytes = server.read(&mut answered).await.expect("the server answers");
                        // Nothing else runs on this thread between the two.
                        assert_eq!(client.try_write(&answered[..bytes]).expect("there is room"), bytes, "{step}");
                    }
                } else {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = told.notified(), if connection == 0 => {}
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn connection_that_ends_with_the_last_answer_of_its_handshake_is_replaced() {
    let server = RedisServer::start().await;
    let told = Arc::new(Notify::new());
    let address = hangs_up_after_the_handshake(server.address(), Arc::clone(&told)).await;
    let manager = LockManager::connect(&server.url_at(&address)).await.expect("connects");
    let guard = manager.lock("k").await.expect("the key is free");
    told.notify_one();
    tokio::time::sleep(ms(500)).await;
    assert!(!manager.is_locked("other").await.expect("connected again"));
    assert!(guard.is_held(), "{guard:?}");
    guard.release().await.expect("held");
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
