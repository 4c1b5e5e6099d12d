//! Sentinels that are dead, stopped, or name a former primary.

use lock_core::LockManager;
use lock_tests::{
    FaultProxy,
    history::{Recorded, Run, now},
};

use crate::topologies::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_45_leases_go_on_while_the_primary_lives_whatever_becomes_of_the_sentinels() {
    let (mut sentinels, run) = (Sentinels::start().await, Run::new("fault-45"));
    sentinels.be_patient().await;
    let url = sentinels.url();
    let one = client(&run, &url, "p1").await;
    let often = |request: lock_core::LockRequest| request.renew_every(ms(300));
    let mut held = one.acquire("k", LONG, often).await.expect("free");
    let other = Recorded::new(&manager(&url, "p2").await, &run.recorder("p2"), "");
    for dead in 1..=3 {
        sentinels.sentinels_mut()[dead - 1].stop();
        renewed(&held, 2).await;
        assert!(held.check(), "{dead} sentinels are dead");
        other.acquire("other", LONG, |request| request).await.expect("free").release().await.expect("held");
        // Those that are left answer long before the limit of connecting; if none is, that is over soon.
        let limit = if dead < 3 { LONG } else { LIMIT };
        let connect = LockManager::builder().url(&url).command_timeout(LIMIT).connect_timeout(limit).connect();
        let (begun, connected) = (Instant::now(), within(SOON, connect).await);
        figure(45, &format!("connect with {dead} of 3 sentinels dead"), begun.elapsed());
        match connected {
            Ok(manager) => assert!(dead < 3 && manager.is_locked("k").await.expect("the primary answers")),
            Err(error) => {
                assert_eq!(dead, 3, "{error}");
                let told = error.to_string();
                assert!(sentinels.sentinels().iter().all(|sentinel| told.contains(&sentinel.address())), "{told}");
            }
        }
    }
    // A connection that breaks now is not replaced until one of them is back.
    sentinels.servers()[0].kill_clients().await;
    let since = now();
    sentinels.sentinels_mut()[1].start_again().await;
    let back = Instant::now();
    eventually(SOON, "the lease is extended", async || held.extend(LONG).await.is_ok()).await;
    figure(45, "one sentinel back to extended", back.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    judged(&run);
}

/// One of them has heard of no switch, and names a former primary, which still takes writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_45_a_sentinel_that_names_a_former_primary_is_overruled_for_good() {
    let (mut sentinels, run) = (Sentinels::start().await, Run::new("fault-45-stale"));
    sentinels.be_patient().await;
    let former = RedisServer::start().await;
    let stale = Sentinels::alone(&former).await;
    switch_over(&sentinels).await;
    let primary = sentinels.primary().await;
    let addresses: Vec<_> = sentinels.sentinels()[1..].iter().map(RedisServer::address).collect();
    let url = format!("redis+sentinel://{},{}/{}", stale.address(), addresses.join(","), Sentinels::SERVICE);
    let manager = manager(&url, "p1").await;
    // On a busy machine the stale one may be heard alone at first, and is believed until another is heard.
    eventually(SOON, "the newer configuration counts", async || {
        let Ok(_guard) = manager.lock("first").ttl(LONG).await else { return false };
        sentinels.servers()[primary].keys("first").await == ["first"]
    })
    .await;
    let one = Recorded::new(&manager, &run.recorder("p1"), "");
    let mut held = one.acquire("k", LONG, |request| request).await.expect("free");
    assert_eq!(sentinels.servers()[primary].keys("k").await, ["k"], "and goes on to count");
    // Those that know better die. The one that is left is no reason to go back.
    for sentinel in &mut sentinels.sentinels_mut()[1..] {
        sentinel.stop();
    }
    let since = now();
    // What they have said last counts for the limit of a request.
    sleep(LIMIT * 3 / 2).await;
    sentinels.servers()[primary].kill_clients().await;
    let begun = Instant::now();
    while begun.elapsed() < ms(1_500) {
        assert_eq!(former.client_list().await.iter().filter(|client| client.name() == "p1").count(), 0);
        sleep(ms(50)).await;
    }
    let told = held.extend(LONG).await.expect_err("nobody is to be trusted").to_string();
    assert!(told.contains(&format!("{} names {}", stale.address(), former.address())), "{told}");
    sentinels.sentinels_mut()[1].start_again().await;
    eventually(SOON, "the lease is extended", async || held.extend(LONG).await.is_ok()).await;
    run.broken_since(since);
    held.release().await.expect("held");
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_45_sentinels_that_say_nothing_by_themselves_are_asked_each_second() {
    let sentinels = Sentinels::builder().sentinel_user("guard", "secret").start().await;
    sentinels.be_patient().await;
    for sentinel in sentinels.sentinels() {
        let rules = ["ACL", "SETUSER", "reader", "on", ">word", "resetchannels", "+@all", "-subscribe"];
        assert_eq!(sentinel.call(&rules).await.text().as_deref(), Some("OK"));
    }
    let url = format!("{}?sentinel_user=reader&sentinel_pass=word", sentinels.url());
    let manager = manager(&url, "p1").await;
    let mut guard = manager.lock("k").ttl(TTL).await.expect("free");
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    let begun = Instant::now();
    let switched = switch_over(&sentinels).await;
    let primary = &sentinels.servers()[sentinels.primary().await];
    eventually(SOON, "the new primary is connected to", async || {
        primary.client_list().await.iter().any(|client| client.name() == "p1")
    })
    .await;
    let followed = begun.elapsed().saturating_sub(switched);
    figure(45, "switched to followed, not told", followed);
    guard.extend(TTL).await.expect("held");
    guard.release().await.expect("held");
}

/// Each sentinel is asked once a second, and no more often while it does not answer.
#[tokio::test]
async fn fault_45_sentinels_are_asked_once_a_second() {
    let sentinels = Sentinels::builder().sentinels(1).replicas(0).start().await;
    let proxy = FaultProxy::start(sentinels.sentinels()[0].address()).await;
    let url = format!("redis+sentinel://{}/{}", proxy.address(), Sentinels::SERVICE);
    let manager = manager(&url, "p1").await;
    manager.lock("k").await.expect("free").release().await.expect("held");
    let asked = async || -> u64 {
        let info = sentinels.sentinels()[0].call(&["INFO"]).await.text().expect("is answered");
        let commands = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
        commands.expect("a line").parse().expect("a number")
    };
    let (begun, before, connections) = (Instant::now(), asked().await, proxy.accepted());
    sleep(ms(3_000)).await;
    let (calls, seconds) = ((asked().await - before) as f64, begun.elapsed().as_secs_f64());
    // Two questions and a sign of life each second, and what the harness asks.
    assert!(calls <= 7.0 * seconds, "{calls} in {seconds:.1} s");
    eventually(SOON, "it is asked still", async || {
        sleep(ms(500)).await;
        asked().await > before + 20
    })
    .await;
    assert_eq!(proxy.accepted(), connections);
    proxy.hole();
    let begun = Instant::now();
    sleep(ms(3_000)).await;
    let (connections, silent) = ((proxy.accepted() - connections) as f64, begun.elapsed().as_secs_f64());
    assert!(connections <= 6.0 * silent, "{connections} connections in {silent:.1} s of silence");
    println!("{calls} commands in {seconds:.1} s, {connections} connections in {silent:.1} s of silence");
}
