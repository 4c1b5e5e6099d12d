//! A network that loses, holds back and cuts.

use lock_core::{ErrorKind, LockManager};
use lock_tests::{
    FaultProxy, Namespace, RedisServer, actor, eventually, figure,
    history::{Op, Recorded, Run, now, validity},
    left_out,
};
use tokio::time::{sleep, timeout};

use crate::{faults::*, modes::state::give_back};

struct Wire {
    server: RedisServer,
    proxy: FaultProxy,
    run: Run,
    manager: LockManager,
    /// Behind the proxy.
    client: Recorded,
}

async fn behind_proxy(name: &str) -> Wire {
    behind_proxy_within(15 * TTL, name).await
}

/// With a limit for requests.
async fn behind_proxy_within(limit: Duration, name: &str) -> Wire {
    let (server, run) = (RedisServer::start().await, Run::new(name));
    let proxy = FaultProxy::start(server.address()).await;
    let (manager, client) = client_within(limit, &run, &server.url_at(&proxy.address()), "p0").await;
    // The server knows the scripts: else it is the question for them that gets lost.
    eventually(SOON, "the scripts are there", async || match manager.lock("warm").await {
        Ok(guard) => guard.release().await.is_ok(),
        Err(_) => false,
    })
    .await;
    Wire { server, proxy, run, manager, client }
}

#[tokio::test]
async fn fault_21_holder_that_is_cut_off_knows_in_time_and_blocks_for_its_ttl() {
    let Wire { server, proxy, run, client, .. } = behind_proxy("fault-21").await;
    let mut waiter = actor!(run, server.url(), "waiter").await;
    let mut held = client.acquire("k", LASTS, |request| request).await.expect("the key is free");
    waiter.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let since = now();
    proxy.hole();
    timeout(SOON, held.guard().ended()).await.expect("it is told");
    let told = now();
    assert!(!held.check());
    // Its deadline was before that, as the history shows; it is told as soon as it has its turn.
    waiter.held(SOON).await;
    figure(21, "cut to lost, ttl 15 s", span(since, told));
    figure(21, "cut to next grant, ttl 15 s", span(since, now()));
    proxy.pass();
    run.broken_since(since);
    assert!(held.release().await.is_err());
    assert!(waiter.tell("check").await.starts_with("check held"), "its late release touches nobody");
    assert_eq!(waiter.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_22_waiter_that_is_cut_off_ends_in_time_costs_others_a_check_and_works_again() {
    let Wire { server, proxy, run, manager, client } = behind_proxy("fault-22").await;
    let mut holder = actor!(run, server.url(), "holder").await;
    let mut other = actor!(run, server.url(), "other").await;
    holder.acquire("k", LONG).await;
    // Long enough for both who wait to have their places: of them, the first is cut off.
    let wait = LASTS;
    let asked = Instant::now();
    let waits = tokio::spawn(async move { client.acquire("k", TTL, |request| request.wait(wait)).await.map(drop) });
    has_places(&server, 1).await;
    let kept = kept_for(&server).await;
    assert!(kept <= Some(1_025), "a key is kept for a waiter that is cut off for {kept:?} ms");
    other.begin("k", LONG, LONG).await;
    has_places(&server, 2).await;
    let since = now();
    proxy.hole();
    let error = timeout(SOON, waits).await.expect("it ends").expect("no panic").expect_err("nobody answers");
    assert!(matches!(error.kind(), ErrorKind::Busy | ErrorKind::Backend), "{error}");
    figure(22, "a wait of 15 s, cut off, ends after", asked.elapsed());
    let released = Instant::now();
    assert_eq!(holder.tell("release").await, "released");
    other.held(SOON).await;
    figure(22, "handoff past a waiter that is cut off", released.elapsed());
    give_back(&mut other).await;
    sleep((3 * TTL).saturating_sub(span(since, now()))).await;
    let healed = Instant::now();
    proxy.pass();
    let again = Recorded::new(&manager, &run.recorder("p0"), "again");
    eventually(SOON, "it works again", async || again.acquire("k", TTL, |request| request).await.is_ok()).await;
    figure(22, "healed to grant", healed.elapsed());
    run.broken_since(since);
    run.settle(&server).await;
    judged(&run);
}

/// For how many milliseconds the key is kept for the only waiter from a grant on, as its place says.
async fn kept_for(server: &RedisServer) -> Option<u64> {
    let queue = server.keys("*queue:k").await.pop()?;
    let fields = server.call(&["HGETALL", &queue]).await;
    let fields: Vec<_> = fields.items().iter().filter_map(lock_tests::Reply::text).collect();
    let place = fields.chunks(2).find(|field| field[0].starts_with('#'))?;
    // `TOKEN END LIFE LASTS …`
    place[1].split(' ').nth(3)?.parse().ok()
}

/// Needs root, for a network that no proxy can imitate: neither side is ever told that the other is gone.
#[tokio::test]
async fn fault_23_holder_behind_a_pulled_cable_knows_in_time_and_works_again() {
    let Some(namespace) = Namespace::new() else {
        left_out("fault_23", "no network namespace can be made", false);
        return;
    };
    let server = RedisServer::builder().option("--bind", "0.0.0.0").password("half-open").start().await;
    let run = Run::new("fault-23");
    let url = server.url_at(&format!("{}:{}", namespace.address(), server.port()));
    let mut holder = actor!(run, url, "holder", through namespace.command()).await;
    let mut waiter = actor!(run, server.url(), "waiter").await;
    holder.acquire("k", LASTS).await;
    waiter.begin("k", LONG, LONG).await;
    has_places(&server, 1).await;
    let since = now();
    namespace.unplug();
    let (reason, told) = holder.lost(SOON).await;
    assert_eq!(reason, "Expired");
    figure(23, "cable pulled to lost, ttl 15 s", span(since, told));
    waiter.held(SOON).await;
    figure(23, "cable pulled to next grant, ttl 15 s", span(since, now()));
    let asked = Instant::now();
    assert_eq!(holder.tell("release").await, "failed Lost(Expired)");
    assert_eq!(holder.tell("try other 60000").await, "refused Backend");
    figure(23, "time to error, limit 15 s", asked.elapsed());
    let plugged = Instant::now();
    namespace.plug();
    eventually(SOON, "it works again", async || holder.tell("try other 60000").await.starts_with("held ")).await;
    figure(23, "cable put in to grant", plugged.elapsed());
    run.broken_since(since);
    assert_eq!(holder.tell("release").await, "released");
    assert!(waiter.tell("check").await.starts_with("check held"));
    assert_eq!(waiter.tell("release").await, "released");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_24_slow_network_takes_off_the_validity_until_nothing_is_left() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-24"));
    let proxy = FaultProxy::start(server.address()).await;
    let manager = LockManager::builder().url(server.url_at(&proxy.address())).command_timeout(20 * TTL);
    let manager = manager.connect().await.expect("connects");
    let client = Recorded::new(&manager, &run.recorder("p0"), "");
    let first = client.acquire("k", LONG, |request| request).await.expect("the key is free");
    first.release().await.expect("held");
    for delay in [5, 50, 500].map(ms) {
        proxy.delay(delay, delay / 5);
        let held = client.acquire("k", LONG, |request| request.fixed()).await.expect("the key is free");
        let remaining = held.guard().remaining();
        assert!(remaining <= span(0.0, validity(LONG)) - 2 * delay, "{remaining:?} at {delay:?}");
        println!("delay {delay:?} each way: {remaining:?} of {LONG:?} are left");
        held.release().await.expect("held");
    }
    let (since, ttl) = (now(), 4 * TTL);
    let delay = ttl / 2 + ttl / 10;
    proxy.delay(delay, Duration::ZERO);
    let waits = client.acquire("k", ttl, |request| request.wait(2 * ttl));
    let error = timeout(SOON, waits).await.expect("it ends").expect_err("every answer comes too late");
    println!("delay {delay:?} each way: {error}");
    proxy.pass();
    run.broken_since(since);
    run.settle(&server).await;
    let history = judged(&run);
    let acquired = history.events().iter().filter(|event| event.op == Op::Acquire && event.succeeded());
    assert!(acquired.into_iter().all(|event| event.deadline > event.t_return));
}

#[tokio::test]
async fn fault_25_lost_request_is_repeated_and_grants_once() {
    let Wire { server, proxy, run, client, .. } = behind_proxy("fault-25").await;
    for _ in 0..5 {
        let since = now();
        let before = proxy.lost();
        proxy.drop_requests();
        let (acquired, ()) = tokio::join!(client.acquire("k", LONG, |request| request), async {
            eventually(SOON, "the request is lost", async || proxy.lost() > before).await;
            proxy.pass();
            proxy.reset();
        });
        run.broken_since(since);
        let held = acquired.expect("it is asked again");
        let token = server.call(&["GET", "k"]).await;
        assert!(!token.is_nil());
        held.release().await.expect("held");
        assert!(server.call(&["GET", "k"]).await.is_nil(), "one grant, and it was released");
    }
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_26_lost_reply_of_an_extend_does_not_lengthen_the_lease() {
    let Wire { server, proxy, run, client, .. } = behind_proxy("fault-26-extend").await;
    let mut held = client.acquire("k", LONG / 4, |request| request.fixed()).await.expect("the key is free");
    let since = now();
    proxy.drop_replies();
    let before = held.guard().remaining();
    let error = held.extend(LONG).await.expect_err("nobody answers");
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(held.guard().remaining() <= before);
    let pttl = server.call(&["PTTL", "k"]).await.integer();
    assert!(pttl > i64::try_from(LONG.as_millis() / 2).ok(), "the server has done it: {pttl:?}");
    proxy.pass();
    proxy.reset();
    run.broken_since(since);
    eventually(SOON, "it is extended", async || held.extend(LONG).await.is_ok()).await;
    assert!(held.guard().remaining() > LONG / 2);
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_26_lost_reply_of_a_release_frees_once_and_never_another_ones_lease() {
    let Wire { server, proxy, run, client, .. } = behind_proxy("fault-26-release").await;
    let mut other = actor!(run, server.url(), "other").await;
    for _ in 0..3 {
        let held = client.acquire("k", LONG, |request| request).await.expect("the key is free");
        let since = now();
        proxy.drop_replies();
        let release = tokio::spawn(held.release());
        eventually(SOON, "the release arrives", async || server.call(&["GET", "k"]).await.is_nil()).await;
        other.acquire("k", LONG).await;
        let calls = server.script_calls().await;
        proxy.pass();
        proxy.reset();
        // Repeated, it finds another one's lease, and leaves it alone.
        let error = timeout(SOON, release).await.expect("it ends").expect("no panic").expect_err("nobody knows");
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(error.to_string().contains("not known"), "{error}");
        run.broken_since(since);
        eventually(SOON, "it is repeated", async || server.script_calls().await > calls).await;
        assert!(other.tell("check").await.starts_with("check held"));
        assert_eq!(other.tell("release").await, "released");
    }
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_27_request_that_comes_two_seconds_late_makes_no_second_holder_and_is_cleaned_up() {
    let Wire { server, proxy, run, client, .. } = behind_proxy_within(LIMIT, "fault-27").await;
    let mut other = actor!(run, server.url(), "other").await;
    for other_holds in [true, false] {
        let since = now();
        proxy.hole(); // what is sent now is kept, and arrives when the network is whole again
        let error = client.acquire("k", LONG, |request| request.wait(TTL)).await.expect_err("nobody answers");
        assert!(matches!(error.kind(), ErrorKind::Backend | ErrorKind::Busy), "{error}");
        if other_holds {
            other.acquire("k", LONG).await;
        }
        sleep((2 * TTL).saturating_sub(span(since, now()))).await;
        let (calls, granted) = (server.script_calls().await, server.last_fence().await);
        let healed = Instant::now();
        proxy.pass();
        eventually(SOON, "the late request arrives", async || server.script_calls().await > calls).await;
        run.broken_since(since);
        if other_holds {
            sleep(TTL).await;
            assert!(other.tell("check").await.starts_with("check held"));
            assert_eq!(other.tell("release").await, "released");
        } else {
            eventually(SOON, "it takes the key", async || server.last_fence().await > granted).await;
            eventually(SOON, "nothing is left", async || server.call(&["GET", "k"]).await.is_nil()).await;
            figure(27, "a late request's key is gone after", healed.elapsed());
        }
        eventually(SOON, "the key can be had", async || {
            match client.acquire("k", TTL, |request| request.wait(Duration::ZERO)).await {
                Ok(held) => held.release().await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }
    run.settle(&server).await;
    judged(&run);
}
