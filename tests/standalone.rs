//! One real Redis: the conformance suite, the wire format, the connection, and what is left behind.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use futures_util::future::join_all;
use lock_core::{
    End, ErrorKind, LeaseOptions, LockManager, LossReason,
    backend::{Backend, Batch, Calls, Operation, Outcome, RedisBackend, TOKEN_MARK},
    key::LockKey,
};
use lock_test::conformance;
use lock_tests::{FaultProxy, LONG, RedisServer, SOON, eventually, eventually_some, ms, until_free};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use crate::patient;

async fn manager(server: &RedisServer) -> LockManager {
    patient::connect(&server.url()).await.expect("the server answers")
}

#[tokio::test]
async fn the_redis_backend_conforms() {
    let server = RedisServer::start().await;
    conformance::run(RedisBackend::from_url(&server.url(), "conformance", SOON).expect("a valid URL")).await;
}

#[tokio::test]
async fn a_release_by_force_that_spares_other_libraries_leaves_their_key() {
    let server = RedisServer::start().await;
    let backend = RedisBackend::from_url(&server.url(), "ours", SOON).expect("a valid URL");
    server.call(&["SET", "k", "somebody else's"]).await;
    let key = LockKey::new("k").expect("a valid key");
    let force = |foreign| backend.call(Batch::from([Operation::Force { key: key.clone(), foreign }]));
    let calls = async {
        let spared = force(false).await.expect("answered").outcomes;
        assert!(matches!(spared[..], [Ok(Outcome::Gone)]), "{spared:?}");
        assert!(!server.call(&["GET", "k"]).await.is_nil());
        let freed = force(true).await.expect("answered").outcomes;
        assert!(matches!(freed[..], [Ok(Outcome::Released)]), "{freed:?}");
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on"),
        () = calls => {}
    }
}

/// Requests that wait for a connection leave in any order once it is there.
#[tokio::test]
async fn an_answer_says_whether_its_request_has_waited_for_the_connection() {
    let server = RedisServer::start().await;
    let key = LockKey::new("k").expect("a valid key");
    // The server knows the script now: nothing is sent a second time.
    assert!(!manager(&server).await.is_locked("k").await.unwrap());
    let backend = RedisBackend::from_url(&server.url(), "ours", SOON).expect("a valid URL");
    let ask = || backend.call(Batch::from([Operation::Inspect { key: key.clone() }]));
    let calls = async {
        let (first, second) = (ask().await.expect("answered"), ask().await.expect("answered"));
        assert!(first.out_of_order && !second.out_of_order, "{first:?} {second:?}");
    };
    tokio::select! {
        () = backend.driver(Calls::to_nobody()) => unreachable!("the driver goes on"),
        () = calls => {}
    }
}

#[tokio::test]
async fn a_refused_request_says_what_the_server_says_is_left_of_the_ttl() {
    let server = RedisServer::start().await;
    let (ours, theirs) = (manager(&server).await, manager(&server).await);
    let _held = theirs.lock("ours").ttl(LONG).fixed().await.unwrap();
    server.call(&["SET", "foreign", "x", "PX", "600000"]).await;
    server.call(&["SET", "endless", "x"]).await;
    let left = async |key: &str| ms(server.call(&["PTTL", key]).await.integer().unwrap().try_into().unwrap());
    for key in ["ours", "foreign"] {
        for wait in [Duration::ZERO, ms(300)] {
            let mut tried = Vec::new();
            // What is left counts from the moment when the answer was read, and a busy machine may read one late, but not each.
            let fits = 'tries: {
                for _ in 0..50 {
                    let before = left(key).await;
                    let said = ours.lock(key).wait(wait).await.unwrap_err().retry_after().unwrap();
                    let after = left(key).await;
                    tried.push((after, said, before));
                    // The server counts in whole milliseconds, and so may be off by one.
                    if after <= said + ms(2) && said + wait <= before + ms(2) {
                        break 'tries true;
                    }
                }
                false
            };
            assert!(fits, "{key}: {tried:?}");
        }
    }
    let several = ours.lock_all(["free", "ours"]).wait(Duration::ZERO).await.unwrap_err();
    assert!(several.retry_after().unwrap() > Duration::from_secs(1));
    let endless = ours.lock("endless").wait(Duration::ZERO).await.unwrap_err();
    assert_eq!(endless.retry_after(), Some(Duration::from_secs(1)));
}

#[tokio::test]
async fn the_key_is_a_string_with_our_token_and_the_ttl_and_the_counter_an_empty_stream() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let guard = manager.lock("goods:1").ttl(LONG).await.unwrap();
    let token = server.call(&["GET", "goods:1"]).await.text().unwrap();
    assert!(token.starts_with(TOKEN_MARK) && token.len() == TOKEN_MARK.len() + 32, "{token}");
    let pttl = server.call(&["PTTL", "goods:1"]).await.integer().unwrap();
    assert!((300_000..=600_000).contains(&pttl), "{pttl}");
    assert_eq!(server.last_fence().await, Some(guard.fencing_token().get()));
    assert_eq!(server.call(&["XLEN", RedisServer::COUNTER]).await.integer(), Some(0));
    assert_eq!(server.call(&["PTTL", RedisServer::COUNTER]).await.integer(), Some(-1), "the counter never expires");
    guard.release().await.unwrap();
    assert_eq!(server.keys("*").await, [RedisServer::COUNTER]);
    let next = manager.lock("goods:1").await.unwrap();
    assert_ne!(server.call(&["GET", "goods:1"]).await.text().unwrap(), token, "a token is drawn anew each time");
    assert_eq!(server.last_fence().await, Some(next.fencing_token().get()));
    let length = server.call(&["XLEN", RedisServer::COUNTER]).await.integer();
    assert_eq!(length, Some(0), "it is empty also after an acquire without the script, as this one was");
    drop(next);
}

/// Redis 7 brought the option `GT`; an older server says that there is no such option.
#[tokio::test]
async fn renewals_without_the_option_gt_push_out_and_never_in() {
    let script = include_str!("../lock-core/src/backend/redis/scripts/lock.lua");
    let without = script.replace("'GT'", "'NO'");
    assert_ne!(script, without);
    let server = RedisServer::start().await;
    for source in [script, &without] {
        for (key, ttl) in [("short", "100000"), ("long", "900000")] {
            server.call(&["SET", key, "mine", "PX", ttl]).await;
        }
        server.call(&["SET", "endless", "mine"]).await;
        server.call(&["SET", "other", "theirs", "PX", "100000"]).await;
        let keys = ["short", "long", "endless", "other", "free"];
        let mut call = vec!["EVAL", source, "5"];
        call.extend(keys);
        call.push("renew");
        call.extend(keys.iter().flat_map(|_| ["mine", "300000"]));
        let reply = server.call(&call).await;
        let said: Vec<_> = reply.items().iter().map(|item| item.integer().unwrap()).collect();
        assert!(matches!(said[..], [0, 800_000..=900_000, 0, -1, -1]), "{said:?}");
        let mut left = Vec::new();
        for key in keys {
            left.push(server.call(&["PTTL", key]).await.integer().unwrap());
        }
        let raised = 200_000..=300_000;
        assert!(raised.contains(&left[0]) && raised.contains(&left[2]), "{left:?}");
        assert!(matches!(left[1..], [800_000..=900_000, _, 0..=100_000, -2]), "{left:?}");
    }
}

#[tokio::test]
async fn fencing_tokens_rise_over_flushall_and_a_restart_without_persistence() {
    let mut server = RedisServer::start().await;
    // The numbers are the server's: each of two managers goes on where the other was.
    let managers = [manager(&server).await, manager(&server).await];
    let mut last = 0;
    for round in 0..3 {
        for pair in 0..50 {
            let guard = managers[pair % 2].lock("k").wait(SOON).await.unwrap();
            assert!(guard.fencing_token().get() > last, "round {round}");
            last = guard.fencing_token().get();
            guard.release().await.unwrap();
        }
        // In the millisecond of the last number those of an empty counter begin anew.
        eventually(SOON, "the next millisecond begins", async || server.clock().await > last / 1_000).await;
        if round == 0 {
            server.call(&["FLUSHALL"]).await;
        } else {
            server.restart().await;
        }
    }
}

#[tokio::test]
async fn a_redis_py_format_holder_excludes_us_and_we_exclude_it() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    // redis-py: SET name token NX PX ms
    let set = ["SET", "goods:1", "0d9ef7b8c1d011ee", "NX", "PX", "600000"];
    assert_eq!(server.call(&set).await.text().as_deref(), Some("OK"));
    let info = manager.inspect("goods:1").await.unwrap();
    assert!(info.is_locked() && info.is_foreign() && info.remaining().unwrap() <= LONG);
    assert!(manager.lock("goods:1").try_acquire().await.unwrap().is_none());
    let before = Instant::now();
    server.call(&["PEXPIRE", "goods:1", "1000"]).await;
    let guard = manager.lock("goods:1").ttl(LONG).wait(SOON).await.unwrap();
    // The server counts whole milliseconds.
    assert!(before.elapsed() >= ms(999), "{:?}", before.elapsed());
    assert!(server.call(&set).await.is_nil(), "we exclude it");
    // Nor does its release, a compare-and-delete with its own token, touch ours.
    let compare_and_delete =
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let deleted = server.call(&["EVAL", compare_and_delete, "1", "goods:1", "0d9ef7b8c1d011ee"]).await;
    assert_eq!(deleted.integer(), Some(0));
    guard.release().await.unwrap();
    assert_eq!(server.call(&set).await.text().as_deref(), Some("OK"));
    assert_eq!(manager.force_release_all("goods:").await.unwrap(), 0, "other libraries' locks stay");
    assert!(manager.force_release("goods:1").await.unwrap(), "unless they are named");
}

#[tokio::test]
async fn a_list_that_meets_another_server_is_an_error() {
    const KEYS: usize = 6_000;
    let (server, other) = (RedisServer::start().await, RedisServer::start().await);
    let proxy = FaultProxy::start(server.address()).await;
    let manager = patient::builder().url(format!("redis://{}", proxy.address())).connect().await.unwrap();
    let keys = (0..KEYS).flat_map(|key| [format!("k:{key}"), format!("{TOKEN_MARK}{key:032x}")]);
    let keys: Vec<_> = ["MSET".to_owned()].into_iter().chain(keys).collect();
    let set = server.call(&keys.iter().map(String::as_str).collect::<Vec<_>>()).await;
    assert_eq!(set.text().as_deref(), Some("OK"));
    let scans = server.calls_of("scan").await;
    // So slow that it is not at its end when it is broken.
    proxy.delay(ms(1_000), Duration::ZERO);
    let breaks = async {
        eventually(SOON, "the second page is asked for", async || server.calls_of("scan").await >= scans + 2).await;
        proxy.lead_to(other.address());
        proxy.pass();
        proxy.reset();
    };
    let error = tokio::join!(manager.list("k:"), breaks).0.expect_err("the other server has none of them");
    assert!(error.to_string().contains("while keys were listed"), "{error}");
}

#[tokio::test]
async fn force_release_all_frees_our_keys_under_the_prefix_and_nothing_else() {
    let server = RedisServer::start().await;
    let manager = patient::builder().url(server.url()).prefix("shop:").connect().await.unwrap();
    let guards = join_all((0..2_500).map(|key| manager.lock(format!("g*:{key}")).ttl(LONG).acquire())).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let other = manager.lock("gx:1").ttl(LONG).await.unwrap();
    server.call(&["SET", "shop:g*:data", "5"]).await;
    server.call(&["RPUSH", "shop:g*:list", "5"]).await;
    assert_eq!(manager.force_release_all("g*:").await.unwrap(), 2_500);
    assert!(guards.iter().all(|guard| !guard.is_held()));
    assert!(other.is_held());
    assert_eq!(server.call(&["EXISTS", "shop:g*:data", "shop:g*:list", "shop:gx:1"]).await.integer(), Some(3));
    drop(other);
}

#[tokio::test]
async fn a_script_flush_is_not_seen() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    let mut guard = manager.lock("k").ttl(3 * SOON).await.unwrap();
    for _ in 0..50 {
        server.call(&["SCRIPT", "FLUSH"]).await;
        guard.extend(3 * SOON).await.unwrap();
        server.call(&["SCRIPT", "FLUSH"]).await;
        let other = manager.lock("other").ttl(LONG).await.unwrap();
        server.call(&["SCRIPT", "FLUSH"]).await;
        other.release().await.unwrap();
    }
    assert!(guard.is_held());
}

#[tokio::test]
async fn one_manager_has_one_connection_with_its_name_and_a_constant_number_of_tasks() {
    let server = RedisServer::start().await;
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    let manager = patient::builder().url(server.url()).client_name("shop-7").connect().await.unwrap();
    let one = manager.lock("one").ttl(LONG).await.unwrap();
    let with_one = tasks();
    assert_eq!(with_one - before, 1, "the engine's, which carries the connection");
    let lock = |key: usize| manager.clone().lock(format!("k:{key}")).ttl(LONG).renew_every(ms(1_000)).acquire();
    let guards: Vec<_> = join_all((0..1_000).map(lock)).await.into_iter().map(Result::unwrap).collect();
    let before_renewals: Vec<_> = guards.iter().map(|guard| guard.deadline()).collect();
    eventually(SOON, "all are renewed", async || {
        guards.iter().zip(&before_renewals).all(|(guard, before)| guard.deadline() > *before)
    })
    .await;
    assert!(one.is_held());
    assert_eq!(tasks(), with_one, "the same with 1 and with 1,000 held leases");
    eventually(SOON, "one connection of that name", async || {
        server.client_list().await.iter().filter(|client| client.name() == "shop-7").count() == 1
    })
    .await;
    drop((guards, one));
    drop(manager);
    eventually(SOON, "the engine ends", async || tasks() == before).await;
    eventually(SOON, "the keys are gone", async || server.left().await.is_empty()).await;
    // All leases were renewed, and all were released: no key has ever expired.
    assert_eq!(server.info("expired_keys").await, "0");
    eventually(SOON, "the connection is closed", async || {
        server.client_list().await.iter().all(|client| client.name() != "shop-7")
    })
    .await;
}

#[tokio::test]
async fn a_killed_connection_is_replaced_under_its_name_and_nothing_is_lost() {
    let server = RedisServer::start().await;
    let builder = LockManager::builder().url(server.url()).client_name("ours").command_timeout(SOON);
    let manager = builder.connect().await.unwrap();
    let guard = manager.lock("held").ttl(LONG).renew_every(ms(100)).await.unwrap();
    for round in 0..20 {
        let before = guard.deadline();
        let ours = server.client_list().await.into_iter().find(|client| client.name() == "ours");
        if let Some(ours) = ours {
            server.call(&["CLIENT", "KILL", "ID", ours.field("id")]).await;
        }
        let other = manager.lock("other").ttl(LONG).await.unwrap();
        other.release().await.unwrap();
        eventually(SOON, format!("it is renewed in round {round}"), async || guard.deadline() > before).await;
    }
    eventually(SOON, "one connection of that name", async || {
        server.client_list().await.iter().filter(|client| client.name() == "ours").count() == 1
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_reconnect_kills_the_connection_that_it_replaces_and_nobody_elses() {
    let mut server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let url = server.url_at(&proxy.address());
    let manager = patient::builder().url(&url).client_name("ours").connect().await.unwrap();
    // An attempt to connect that was not answered soon may have been followed by another, which is about to be closed.
    let id = async || {
        eventually_some(SOON, "one connection is left, one at a time", async || {
            let mut clients = server.client_list().await;
            clients.retain(|client| client.name() == "ours");
            let [ours] = &clients[..] else { return None };
            Some(ours.field("id").parse::<i64>().unwrap())
        })
        .await
    };
    let first = id().await;
    // Half-open: for the server the old connection lives on.
    proxy.hole();
    assert!(manager.lock("k").await.is_err());
    proxy.pass();
    drop(eventually_locked(&manager, "k").await);
    let second = id().await;
    assert!(second > first);

    // After a restart the same number is somebody else's.
    proxy.hole();
    server.restart().await;
    let mut others = Vec::new();
    loop {
        let mut other = server.connect().await.unwrap();
        let id = other.call(&["CLIENT", "ID"]).await.unwrap().integer().unwrap();
        others.push(other);
        if id > second {
            break;
        }
    }
    proxy.pass();
    drop(eventually_locked(&manager, "k").await);
    for other in &mut others {
        assert_eq!(other.call(&["PING"]).await.unwrap().text().as_deref(), Some("PONG"));
    }
}

#[tokio::test]
async fn a_restart_of_the_server_is_ridden_out() {
    let mut server = RedisServer::start().await;
    let manager = LockManager::builder().url(server.url()).command_timeout(ms(10_000)).connect().await.unwrap();
    drop(manager.lock("k").await.unwrap());
    server.stop();
    let down = Instant::now();
    // The request would wait for ten minutes if the command timeout did not end it.
    let error = timeout(SOON, manager.lock("k").wait(LONG).acquire()).await.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(down.elapsed() >= ms(9_800), "ended by the command timeout: {:?}", down.elapsed());
    assert!(error.to_string().contains(&server.address()), "{error}");
    server.start_again().await;
    // How soon it connects again is proven for the pauses between attempts, in `lock-core/src/backend/redis/pauses.rs`.
    drop(eventually_locked(&manager, "k").await);
}

#[tokio::test]
async fn a_server_that_falls_silent_costs_one_command_timeout_and_its_connection() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let url = server.url_at(&proxy.address());
    let manager = patient::connect(&url).await.unwrap();
    let held = manager.lock("held").await.unwrap();
    let lost = tokio::spawn(held.ended());
    let before = proxy.accepted();
    proxy.hole();
    let error = timeout(SOON, manager.lock("k").wait(LONG).acquire()).await.expect("it ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    // That the loss comes at the lease's own deadline, not later, is proven in virtual time, in `lock-core/tests/lost.rs`.
    assert_eq!(timeout(SOON, lost).await.unwrap().unwrap(), End::Lost(LossReason::Expired));
    eventually(SOON, "the connection is given up, and others are tried", async || proxy.accepted() > before).await;
    proxy.pass();
    let guard = eventually_locked(&manager, "k").await;
    guard.release().await.unwrap();
    eventually(SOON, "nothing is left", async || server.left().await.is_empty()).await;
}

async fn eventually_locked(manager: &LockManager, key: &str) -> lock_core::LockGuard {
    eventually_some(SOON, format!("{key} can be locked"), async || manager.lock(key).await.ok()).await
}

#[tokio::test]
async fn a_reply_that_is_lost_is_asked_for_again_within_the_limit() {
    let server = RedisServer::start().await;
    let proxy = FaultProxy::start(server.address()).await;
    let builder = LockManager::builder().url(server.url_at(&proxy.address())).command_timeout(SOON);
    let manager = builder.defaults(LeaseOptions::new().ttl(LONG).wait(SOON)).connect().await.unwrap();
    // So that the server has the script: else it is the question for it whose answer is lost.
    manager.lock("k").await.unwrap().release().await.unwrap();
    for round in 0..5 {
        // Over a connection that is up: else the request never leaves.
        eventually_locked(&manager, "k").await.release().await.unwrap();
        proxy.drop_replies();
        let acquire = tokio::spawn({
            let manager = manager.clone();
            async move { manager.lock("k").await }
        });
        eventually(SOON, "the request arrives", async || !server.call(&["GET", "k"]).await.is_nil()).await;
        proxy.pass();
        proxy.reset();
        let guard = acquire.await.unwrap().unwrap();
        assert!(guard.is_held(), "round {round}");

        proxy.drop_replies();
        let release = tokio::spawn(guard.release());
        eventually(SOON, "the release arrives", async || server.call(&["GET", "k"]).await.is_nil()).await;
        proxy.pass();
        proxy.reset();
        // Repeated, it finds nothing: neither success nor a loss that can be told.
        let error = release.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(error.to_string().contains("not known"), "{error}");
    }
}

#[tokio::test]
async fn futures_dropped_at_random_moments_leave_no_key() {
    let server = RedisServer::start().await;
    let manager = manager(&server).await;
    // On a slow machine all would be dropped before they are through.
    for span in [9_000, 90_000, 900_000, 9_000_000] {
        let dropped = dropped_within(&manager, span).await;
        until_free("all were dropped", async || !server.keys("k:*").await.is_empty()).await;
        if (50..1_000).contains(&dropped) {
            return;
        }
        println!("{dropped} were dropped half-way, within {span} us");
    }
    panic!("all were dropped half-way, or too few");
}

/// Has a thousand futures dropped, each at a moment of its own within so many microseconds; returns how many were not ready by
/// then.
async fn dropped_within(manager: &LockManager, span: u64) -> u32 {
    let mut dropped = 0;
    for first in (0..1_000_u64).step_by(20) {
        let mut tasks = tokio::task::JoinSet::new();
        for index in first..first + 20 {
            let manager = manager.clone();
            tasks.spawn(async move {
                let request = manager.lock(format!("k:{index}")).ttl(LONG);
                let mut run = pin!(request.run(async |_| tokio::task::yield_now().await));
                // Timers tick once a millisecond: with them, nearly all would be dropped at one moment.
                let end = Instant::now() + Duration::from_micros(index * 71 * (span / 9_000) % span);
                poll_fn(|cx| {
                    if run.as_mut().poll(cx).is_ready() {
                        return Poll::Ready(0);
                    }
                    cx.waker().wake_by_ref();
                    if Instant::now() < end { Poll::Pending } else { Poll::Ready(1) }
                })
                .await
            });
        }
        dropped += tasks.join_all().await.into_iter().sum::<u32>();
    }
    dropped
}

#[tokio::test]
async fn a_lease_is_handed_to_another_connection() {
    let server = RedisServer::start().await;
    let (one, two) = (manager(&server).await, manager(&server).await);
    let guard = one.lock("import:7").ttl(LONG).await.unwrap();
    let fence = guard.fencing_token();
    let handover = guard.hand_over().unwrap();
    let taken = two.take_up(handover.clone()).await.unwrap();
    assert!(taken.fencing_token() > fence);
    assert_eq!(one.take_up(handover).await.unwrap_err().kind(), ErrorKind::NotHeld);
    taken.release().await.unwrap();
    assert!(server.call(&["GET", "import:7"]).await.is_nil());
}

#[tokio::test]
async fn shutdown_releases_what_is_held_and_closes_the_connection() {
    let server = RedisServer::start().await;
    let manager = patient::builder().url(server.url()).client_name("ours").connect().await.unwrap();
    let guard = manager.lock("k").await.unwrap();
    assert_eq!(manager.shutdown(ms(50)).await, 1);
    assert_eq!(guard.ended().await, End::Lost(LossReason::ShutDown));
    assert!(server.call(&["GET", "k"]).await.is_nil());
    eventually(SOON, "the connection is closed", async || {
        server.client_list().await.iter().all(|client| client.name() != "ours")
    })
    .await;
    assert_eq!(manager.lock("k").await.unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test]
async fn keys_keep_their_names_however_often_they_are_handed_over_under_a_prefix() {
    const ROUNDS: usize = 100;
    let server = RedisServer::start().await;
    let mut managers = Vec::new();
    for _ in 0..2 {
        let builder = patient::builder().url(server.url()).prefix("shop:").defaults(LeaseOptions::new().ttl(LONG));
        managers.push(builder.connect().await.expect("connects"));
    }
    let contends = managers.iter().map(|manager| async move {
        for _ in 0..ROUNDS {
            let guard = manager.lock_all(["goods:1", "goods:2"]).wait(SOON).await.expect("its turn comes");
            for key in ["goods:1", "goods:2"] {
                assert!(guard.fencing_token(key).is_some(), "no fencing token of {key:?}: {guard:?}");
            }
            guard.release().await.expect("held");
            let guard = manager.lock("goods:1").wait(SOON).await.expect("its turn comes");
            assert_eq!(guard.key(), "goods:1");
            let again = manager.lock("goods:1").wait(Duration::ZERO).await.expect_err("it is held");
            assert_eq!(again.key(), Some("goods:1"), "{again}");
            guard.release().await.expect("held");
        }
    });
    join_all(contends).await;
    assert!(server.keys("goods:*").await.is_empty(), "the server knows them by the prefix only");
    let mut held = managers[0].lock("goods:1").await.expect("the key is free");
    assert_eq!(managers[0].force_release_all("goods:").await.expect("answered"), 1);
    assert_eq!(held.ended().await, End::Lost(LossReason::Forced));
    let error = held.extend(SOON).await.expect_err("it is lost");
    assert_eq!(error.key(), Some("goods:1"), "{error}");
}
