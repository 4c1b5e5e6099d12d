//! How often a connection is tried for, and what becomes of the one before.

use super::*;

use lock_tests::eventually_some;

use crate::patient;

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

/// That pauses grow to a tenth of a second, if requests wait, is proven in `lock-core/src/backend/redis/pauses.rs`.
#[tokio::test]
async fn attempts_to_connect_keep_no_step() {
    let (one, other) = tokio::join!(pauses_of_one(30, true), pauses_of_one(30, true));
    let (one, other) = (&one[8..], &other[8..]);
    for pauses in [one, other] {
        let mut sorted = pauses.to_vec();
        sorted.sort_unstable();
        println!("{sorted:?}");
        assert!(sorted[sorted.len() - 1] - sorted[0] > ms(10), "all the same: {sorted:?}");
    }
    // Of independent ones it is a third of the range that they have, 40 ms.
    let apart: Duration = one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).sum();
    let pairs = u32::try_from(one.len()).expect("a small number");
    assert!(apart / pairs > ms(4), "{:?} apart on average", apart / pairs);
}

#[tokio::test]
async fn attempts_to_connect_that_nobody_asks_for_come_to_be_a_second_apart() {
    // The request of the test itself waits for a second.
    let pauses = pauses_of_one(20, false).await;
    println!("{pauses:?}");
    // Each is from half a second to a second. An attempt that is seen late makes the next pause seem shorter, but not all.
    assert!(pauses[pauses.len() - 4..].iter().any(|pause| *pause >= ms(450)), "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_a_reconnect_longer_than_his_own_limit() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let url = format!("redis://{}", proxy.address());
    // One after the other, the requests below would take much longer than the deadline.
    let limit = SOON / 6;
    let manager = LockManager::builder().url(&url).command_timeout(limit).connect().await.expect("connects");
    let other = patient::connect(&server.url()).await.expect("connects");
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
    let inspects = join_all((0..8).map(|_| manager.inspect("kept")));
    let acquires = join_all((0..8).map(|key| manager.lock(format!("new:{key}")).wait(Duration::ZERO).acquire()));
    let others = async {
        for _ in 0..20 {
            other.lock("other").await.expect("the key is free").release().await.expect("held");
        }
    };
    let all = async { tokio::join!(inspects, acquires, others) };
    // Twice the limit, where they stand behind a call under way; one after the other would take sixteen times as long, which is
    // more than the deadline.
    let (inspected, acquired, ()) = timeout(2 * SOON, all).await.expect("everything has its limit");
    assert!(inspected.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Backend)));
    assert!(acquired.iter().all(|answer| answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Backend)));

    proxy.pass();
    let is_free = async || !other.is_locked("k:19").await.expect("answered");
    eventually(SOON, "what was dropped meanwhile is released", is_free).await;
    assert!(kept.is_held() && other.is_locked("kept").await.expect("answered"));
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
    let manager = LockManager::builder()
        .url(server.url_at(&address))
        .command_timeout(ms(5_000))
        .connect()
        .await
        .expect("connects");
    let begun = Instant::now();
    for _ in 0..3 {
        let error = manager.lock("k").await.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    }
    let accepted = accepted.load(Ordering::Relaxed);
    println!("{accepted} connections in {:?}", begun.elapsed());
    // The time is measured around all that is counted.
    let most = 10 + begun.elapsed().as_millis() / 30;
    assert!((accepted as u128) < most, "{accepted} connections in {:?}", begun.elapsed());
}

/// Otherwise what the old connection still carries could be executed later.
#[tokio::test]
async fn connection_that_is_replaced_is_killed() {
    if !is_redis_7("connection_that_is_replaced_is_killed") {
        return;
    }
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let backend = RedisBackend::from_url(&server.url_at(&proxy.address()), "killed", 10 * LIMIT).expect("a sound URL");
    with_driver(&backend, async {
        backend.call(acquire("k", 1)).await.expect("the server answers");
        let kills = async || server.call(&["INFO", "commandstats"]).await.text().unwrap_or_default();
        assert!(!kills().await.contains("client|kill"), "{}", kills().await);
        proxy.drop_replies();
        assert!(backend.call(acquire("silence", 2)).await.is_err());
        proxy.pass();
        // Known to be silent, it counts as down until it has answered.
        let calls = async || backend.call(acquire("other", 3)).await.ok();
        let answer = eventually_some(SOON, "the server answers again", calls).await;
        assert!(matches!(answer.outcomes[..], [Ok(Outcome::Held { .. })]), "{answer:?}");
        assert!(kills().await.contains("client|kill:calls="), "{}", kills().await);
        // Its answer is nobody else's.
        for token in 4..20 {
            let answer = backend.call(acquire(&format!("k{token}"), token)).await.expect("the server answers");
            assert!(matches!(answer.outcomes[..], [Ok(Outcome::Held { .. })]), "{answer:?}");
        }
    })
    .await;
}
