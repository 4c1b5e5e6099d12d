//! A former primary that comes back, and switches that show only in the former primary's answers.

use lock_core::{ErrorKind, LockManager};
use lock_tests::{
    FaultProxy,
    history::{Recorded, Run, now},
};

use crate::topologies::*;

/// The names of those who are connected to a server, but for the other servers and the sentinels.
async fn clients_of(server: &RedisServer) -> Vec<String> {
    // A server that becomes a replica closes its connections, also that of the question.
    let list = eventually_some(SOON, "it answers", async || server.ask(&["CLIENT", "LIST"]).await?.text()).await;
    let names = list.lines().filter_map(|client| client.split(' ').find_map(|field| field.strip_prefix("name=")));
    names.filter(|name| name.starts_with('p')).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_14_a_primary_that_stood_still_is_left_and_what_it_executes_late_harms_nobody() {
    let (sentinels, run) = (Sentinels::start().await, Run::new("fault-14-stopped"));
    sentinels.be_patient().await;
    let (first, two) = (manager(&sentinels.url(), "p1").await, client(&run, &sentinels.url(), "p2").await);
    let client = |task: &str| Recorded::new(&first, &run.recorder("p1"), task);
    // Its requests end before any other server can have become the primary. That may be too little to connect.
    let brief = LockManager::builder().url(sentinels.url()).client_name("p3").command_timeout(ms(2_000));
    let brief = brief.connect_timeout(SOON);
    let brief = eventually_some(SOON, "it connects", async || brief.clone().connect().await.ok()).await;
    let (one, another) = (client(""), Recorded::new(&brief, &run.recorder("p3"), "late"));
    let mut held = one.acquire("k", TTL, |request| request).await.expect("free");
    let waiter = waits(two, "k");
    queued(&sentinels.servers()[0], "k", 1).await;
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    sentinels_be_quick(&sentinels).await;
    let (since, stopped) = (now(), Instant::now());
    sentinels.servers()[0].pause();
    // These are in its socket, and it executes them when nobody knows of them any more.
    let late = another.acquire("late", TTL, |request| request.wait(Duration::ZERO));
    let (switched, late, renewed) = tokio::join!(sentinels.await_switch(0, stopped), late, async {
        eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
        stopped.elapsed()
    });
    recovered(14, "primary stopped to extended", switched, renewed);
    // Another switch would lead back to it.
    sentinels.be_patient().await;
    let error = late.map(|late| late.guard().is_held()).expect_err("nobody answers it in time");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    sentinels.servers()[0].resume();
    let resumed = Instant::now();
    eventually(SOON, "nobody is connected to the former primary", async || {
        clients_of(&sentinels.servers()[0]).await.is_empty()
    })
    .await;
    figure(14, "former primary goes on to left", resumed.elapsed());
    // Nobody goes back to it while it takes itself for the primary still.
    for _ in 0..40 {
        assert_eq!(clients_of(&sentinels.servers()[0]).await, [""; 0]);
        sleep(ms(50)).await;
    }
    run.broken_since(since);
    assert!(held.check());
    held.release().await.expect("held");
    served(waiter).await.release().await.expect("held");
    let primary = sentinels.primary().await;
    eventually(SOON, "nothing is left", async || sentinels.servers()[primary].left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_14_nobody_goes_back_to_a_primary_that_was_killed_and_comes_back_empty() {
    let (mut sentinels, run) = (Sentinels::start().await, Run::new("fault-14-empty"));
    sentinels.be_patient().await;
    let one = client(&run, &sentinels.url(), "p1").await;
    let mut held = one.acquire("k", TTL, |request| request).await.expect("free");
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    sentinels_be_quick(&sentinels).await;
    let (since, killed) = (now(), Instant::now());
    sentinels.servers_mut()[0].stop();
    sentinels.await_switch(0, killed).await;
    sentinels.be_patient().await;
    sentinels.servers_mut()[0].start_again().await;
    // It does not know better yet, unless the machine is so busy that the sentinels have told it by now.
    println!("the former primary is back as {:?}", sentinels.servers()[0].ask(&["ROLE"]).await);
    // One who comes now is told the right one, too.
    let two = client(&run, &sentinels.url(), "p2").await;
    assert!(two.try_acquire("k", TTL).await.expect("the primary answers").is_none());
    run.broken_since(since);
    for _ in 0..40 {
        assert_eq!(clients_of(&sentinels.servers()[0]).await, [""; 0]);
        assert!(held.check());
        sleep(ms(50)).await;
    }
    held.release().await.expect("held");
    let primary = sentinels.primary().await;
    eventually(SOON, "nothing is left", async || sentinels.servers()[primary].left().await.is_empty()).await;
    judged(&run);
}

/// The sentinels are out of reach while they switch: the former primary has to tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_14_a_switch_that_shows_only_as_readonly_is_followed_when_a_sentinel_is_reached() {
    let (sentinels, run) = (Sentinels::builder().sentinels(1).start().await, Run::new("fault-14-readonly"));
    sentinels.be_patient().await;
    let proxy = FaultProxy::start(sentinels.sentinels()[0].address()).await;
    let url = format!("redis+sentinel://{}/{}", proxy.address(), Sentinels::SERVICE);
    let one = client(&run, &url, "p1").await;
    let mut held = one.acquire("k", LONG, |request| request).await.expect("free");
    eventually(SOON, "all is replicated", async || sentinels.is_replicated().await).await;
    proxy.hole();
    let since = now();
    switch_over(&sentinels).await;
    let primary = &sentinels.servers()[sentinels.primary().await];
    let port = primary.port().to_string();
    // The sentinel may end the connection of the command.
    eventually(SOON, "the former primary follows", async || {
        sentinels.servers()[0].ask(&["REPLICAOF", "127.0.0.1", &port]).await.is_some()
    })
    .await;
    let error = held.extend(LONG).await.expect_err("the former primary is read-only, and no sentinel names another");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(held.check());
    // No hot loop meanwhile.
    let (begun, connections, requests) =
        (Instant::now(), proxy.accepted(), sentinels.servers()[0].script_calls().await);
    sleep(ms(1_000)).await;
    let connections = (proxy.accepted() - connections) as f64;
    let requests = (sentinels.servers()[0].script_calls().await - requests) as f64;
    let seconds = begun.elapsed().as_secs_f64();
    assert!(
        connections <= 10.0 * seconds && requests <= 20.0 * seconds,
        "{connections} connections and {requests} requests in {seconds:.1} s"
    );
    let passed = Instant::now();
    proxy.pass();
    eventually(SOON, "the lease is extended", async || held.extend(LONG).await.is_ok()).await;
    figure(14, "sentinel reached to extended", passed.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || primary.left().await.is_empty()).await;
    judged(&run);
}
