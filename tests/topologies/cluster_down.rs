//! A cluster of which a part is gone, and nodes that take the place of others.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use futures_util::future::join_all;
use tokio::{io::AsyncWriteExt, net::TcpListener};

use lock_core::{ErrorKind, LockManager};
use lock_tests::{
    FaultProxy, free_port,
    history::{Run, now},
};

use crate::topologies::{load::Load, *};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_cluster_that_has_lost_most_primaries_refuses_and_goes_on_when_they_are_back() {
    let keeps = Cluster::builder().replicas(0).option("--appendonly", "yes").option("--appendfsync", "always");
    let (mut cluster, run) = (keeps.start().await, Run::new("fault-46-down"));
    let slot = slot_of("k");
    let lives = cluster.primary_of(slot).await;
    let (one, two) = (client(&run, &cluster.url(), "p1").await, client(&run, &cluster.url(), "p2").await);
    let mut held = one.acquire("k", LONG, |request| request).await.expect("free");
    let waiter = waits(two, "k");
    queued(cluster.node(lives), "k", 1).await;
    let since = now();
    let others = [(lives + 1) % 3, (lives + 2) % 3];
    for node in others {
        cluster.node_mut(node).stop();
    }
    eventually(SOON, "the cluster is down", async || {
        let answer = cluster.node(lives).call(&["GET", "k"]).await;
        matches!(answer, Reply::Error(text) if text.starts_with("CLUSTERDOWN"))
    })
    .await;
    let begun = Instant::now();
    let before: u64 = cluster.node(lives).info("total_commands_processed").await.parse().expect("a number");
    let error = held.extend(LONG).await.expect_err("the cluster is down");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    sleep(ms(1_000)).await;
    let after: u64 = cluster.node(lives).info("total_commands_processed").await.parse().expect("a number");
    let rate = (after - before) as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} commands a second at a node of a cluster that is down, of two clients");
    assert!(rate < 400.0, "{rate} commands a second");
    for node in others {
        cluster.node_mut(node).start_again().await;
    }
    cluster.await_whole().await;
    let back = Instant::now();
    eventually(SOON, "the lease is extended", async || held.extend(LONG).await.is_ok()).await;
    figure(46, "cluster back to extended", back.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    served(waiter).await.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
}

#[tokio::test]
async fn a_request_that_has_time_outlasts_a_cluster_that_is_down_for_a_moment() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let slot = slot_of("k");
    let lives = cluster.primary_of(slot).await;
    let node = cluster.node(lives);
    let mut others = [slot - 1, slot + 1].into_iter();
    let other = loop {
        let other = others.next().expect("the node has one of them");
        if cluster.primary_of(other).await == lives {
            break other.to_string();
        }
    };
    let manager = LockManager::builder().url(cluster.url()).command_timeout(LONG).connect().await.expect("connects");
    manager.lock("k").await.expect("free").release().await.expect("held");
    // The node takes no commands while a slot belongs to nobody, by its own map.
    assert!(matches!(node.call(&["CLUSTER", "DELSLOTS", &other]).await, Reply::Status(_)));
    let refused = async || {
        let text = node.call(&["INFO", "errorstats"]).await.text().unwrap_or_default();
        let count = text.split("errorstat_CLUSTERDOWN:count=").nth(1).and_then(|rest| rest.split_whitespace().next());
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let is_down =
        async || matches!(node.call(&["GET", "k"]).await, Reply::Error(text) if text.starts_with("CLUSTERDOWN"));
    eventually(SOON, "the cluster is down", is_down).await;
    let before = refused().await;
    let request = tokio::spawn(manager.lock("k").ttl(TTL).acquire());
    eventually(SOON, "it is refused", async || refused().await > before).await;
    assert!(matches!(node.call(&["CLUSTER", "ADDSLOTS", &other]).await, Reply::Status(_)));
    let held = request.await.expect("no panic").expect("it has time");
    held.release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_without_full_coverage_the_keys_of_other_slots_go_on() {
    let (mut cluster, run) =
        (Cluster::builder().replicas(0).without_full_coverage().start().await, Run::new("fault-46-coverage"));
    let gone = cluster.primary_of(slot_of("k")).await;
    let keys = (0..).map(|number| format!("o{number}")).filter(|key| usize::from(slot_of(key)) * 3 / 16_384 != gone);
    let keys: Vec<_> = keys.take(3).collect();
    let load = Load::start(&run, &cluster.url(), 2, &keys, TTL).await;
    let manager = manager(&cluster.url(), "p1").await;
    manager.lock("k").await.expect("free").release().await.expect("held");
    cluster.node_mut(gone).stop();
    let error = manager.lock("k").await.expect_err("its node is gone");
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    let address = &cluster.addresses()[gone];
    assert!(error.to_string().contains(address), "{error}");
    // Known to be down, it holds nobody up: fifty requests that waited for it would take longer than the limit of all.
    let asks = async {
        for _ in 0..50 {
            manager.lock("k").await.map(drop).expect_err("its node is gone");
        }
    };
    within(LONG / 2, asks).await;
    let other = (gone + 1) % 3;
    let asked = async || {
        let stats = cluster.node(other).call(&["INFO", "commandstats"]).await.text().unwrap_or_default();
        let calls = stats.lines().filter(|line| line.starts_with("cmdstat_cluster"));
        calls.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    let (begun, before) = (Instant::now(), asked().await);
    sleep(ms(2_000)).await;
    let rate = (asked().await - before) as f64 / begun.elapsed().as_secs_f64() / 3.0;
    println!("{rate:.0} questions about the cluster a second of each client while a node is lost");
    assert!(rate < 25.0, "{rate}");
    let done = load.stop().await;
    done.is_without_error();
    done.all_had(1);
    judged(&run);
}

/// The URL names nothing but the node that leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_the_only_node_that_the_url_names_leaves_while_clients_work() {
    let (mut cluster, run) = (Cluster::start().await, Run::new("fault-46-replaced"));
    let keys: Vec<_> = (0..6).map(|key| format!("k{key}")).collect();
    let old = cluster.primary_of(slot_of("k0")).await;
    let url = format!("redis+cluster://{}", cluster.addresses()[old]);
    let load = Load::start(&run, &url, 4, &keys, TTL).await;
    let mut held = client(&run, &url, "p1").await.acquire("{k0}held", TTL, |request| request).await.expect("free");
    sleep(ms(300)).await;
    let since = now();
    fail_over(&cluster, slot_of("k0")).await;
    cluster.await_whole().await;
    cluster.node_mut(old).stop();
    sleep(ms(700)).await;
    run.broken_since(since);
    let done = load.stop().await;
    done.is_without_error();
    done.all_had(1);
    assert!(held.check());
    // All connections break, and what the URL names is gone: the others are known from the map.
    for node in (0..6).filter(|node| *node != old) {
        cluster.node(node).kill_clients().await;
    }
    eventually(SOON, "the lease is extended", async || held.extend(TTL).await.is_ok()).await;
    held.release().await.expect("held");
    eventually(SOON, "nothing is left", async || cluster.left().await.is_empty()).await;
    judged(&run);
    let brief = LockManager::builder().url(&url).command_timeout(ms(5_000));
    let error = brief.connect().await.expect_err("nobody is there");
    assert!(error.to_string().contains(&cluster.addresses()[old]), "{error}");
}

#[tokio::test]
async fn fault_46_a_cluster_that_is_down_is_looked_for_less_often_while_nobody_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let url = format!("redis+cluster://{}", listener.local_addr().expect("an address"));
    let seen = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&seen);
    // Takes each connection, and closes it.
    let closes = tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let manager = LockManager::builder().url(url).command_timeout(ms(500)).build().expect("a valid URL");
    // It leaves nothing to be released, which would go on asking.
    manager.inspect("k").await.expect_err("nobody answers");
    let hurried = seen.load(Ordering::Relaxed);
    // The pauses have grown to half a second by then, and to a second at most.
    eventually(SOON, "it was looked for often", async || seen.load(Ordering::Relaxed) >= 12).await;
    let (begun, before) = (Instant::now(), seen.load(Ordering::Relaxed));
    let idle = || seen.load(Ordering::Relaxed) - before;
    eventually(SOON, "it is looked for still", async || begun.elapsed() > ms(3_000) && idle() >= 2).await;
    let (idle, seconds) = (f64::from(idle()), begun.elapsed().as_secs_f64());
    println!("{hurried} connections while a request waited, then {idle} in {seconds:.1} s");
    assert!(idle <= 1.0 + 2.0 * seconds, "{idle} connections in {seconds:.1} s");
    closes.abort();
}

/// Takes each connection, says `words` over it, and keeps it. Returns the address.
async fn says(words: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(words).await;
            kept.push(stream);
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_cluster_of_which_no_node_can_be_asked_is_down_after_one_limit_and_then_at_once() {
    let limit = ms(5_000);
    let empty = Cluster::empty_node().await;
    let (refuses, silent) = (format!("127.0.0.1:{}", free_port()), says(b"").await);
    let cases = [
        (refuses.clone(), "could not be reached"),
        (silent.clone(), "did not"),
        (format!("{refuses},{silent}"), "d not"),
        ("no-such-host.invalid:7000".to_owned(), "host name not found"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, "does not speak the Redis protocol"),
        (empty.address(), "has given none of its slots"),
    ];
    join_all(cases.map(|(address, what)| async move {
        let builder = || LockManager::builder().url(format!("redis+cluster://{address}")).command_timeout(limit);
        let begun = Instant::now();
        let error = builder().connect().await.expect_err("no node can be asked").to_string();
        let connect = begun.elapsed();
        assert!(error.contains(what), "{error}");
        // A request has the whole limit, and those that come later need not wait for what is known.
        let manager = builder().build().expect("a sound URL");
        let begun = Instant::now();
        manager.inspect("k").await.expect_err("no node can be asked");
        let first = begun.elapsed();
        assert!(first >= limit - ms(50), "{address}: {first:?}");
        // If each of them waited for the limit, all would take longer than the limit of this.
        let mut longest = Duration::ZERO;
        let asks = async {
            for _ in 0..100 {
                let begun = Instant::now();
                let error = manager.lock("k").wait(LONG).await.expect_err("no node can be asked");
                assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
                longest = longest.max(begun.elapsed());
                sleep(ms(5)).await;
            }
        };
        within(LONG / 2, asks).await;
        println!("{address}: connect {connect:?}, the first request {first:?}, then at most {longest:?}: {error}");
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_cluster_that_was_down_is_found_by_the_requests_that_come_when_it_is_back() {
    let cluster = Cluster::builder().replicas(0).start().await;
    // Only the node of the URL is behind it: the others are known from the map.
    let proxy = FaultProxy::start(cluster.addresses()[0].clone()).await;
    proxy.hole();
    let url = format!("redis+cluster://{}", proxy.address());
    let manager = LockManager::builder().url(&url).command_timeout(ms(5_000)).build().expect("a sound URL");
    manager.inspect("k").await.expect_err("nobody answers");
    // Nobody asks until the pauses are long.
    sleep(ms(3_000)).await;
    proxy.pass();
    proxy.reset();
    let back = Instant::now();
    eventually(SOON, "it is found", async || manager.inspect("k").await.is_ok()).await;
    figure(46, "cluster back to an answer", back.elapsed());
}

/// A deployment must not wait for a node of which the others can do without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_manager_connects_to_the_nodes_that_are_left_if_they_go_on_without_the_others() {
    let mut cluster = Cluster::builder().replicas(0).without_full_coverage().start().await;
    let gone = cluster.primary_of(slot_of("k")).await;
    let other = (0..).map(|number| format!("o{number}"));
    let other = other.into_iter().find(|key| usize::from(slot_of(key)) * 3 / 16_384 != gone).expect("one of them");
    cluster.node_mut(gone).stop();
    // From the first moment on, and when the others have noticed.
    for _ in 0..2 {
        // Long before the limit of connecting.
        let builder = LockManager::builder().url(cluster.url()).command_timeout(LIMIT).connect_timeout(LONG);
        let manager = within(SOON, builder.connect()).await.expect("two nodes are left");
        manager.lock(&other).await.expect("its node is there").release().await.expect("held");
        let error = manager.lock("k").await.expect_err("its node is gone");
        assert!(error.to_string().contains(&cluster.addresses()[gone]), "{error}");
        let noticed = async || {
            let seen = cluster.node((gone + 1) % 3).call(&["CLUSTER", "NODES"]).await.text().unwrap_or_default();
            seen.lines().any(|line| line.contains(&cluster.addresses()[gone]) && line.contains("fail "))
        };
        eventually(SOON, "the others have noticed", noticed).await;
    }
    for node in 0..3 {
        cluster.node_mut(node).stop();
    }
    let brief = LockManager::builder().url(cluster.url()).command_timeout(ms(5_000));
    let error = brief.connect().await.expect_err("nobody is left");
    assert!(error.to_string().contains("could not be reached"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_manager_that_connects_during_a_failover_waits_for_its_end() {
    let mut cluster = patient_cluster().await;
    let slot = slot_of("k");
    let gone = cluster.primary_of(slot).await;
    nodes_be_quick(&cluster).await;
    let killed = Instant::now();
    cluster.node_mut(gone).stop();
    // On a busy machine it may be over before that is seen.
    tokio::select! {
        () = until_down(cluster.node((gone + 1) % 3)) => {}
        _ = cluster.await_failover(slot, gone, killed) => {}
    }
    let builder = LockManager::builder().url(cluster.url()).command_timeout(LIMIT).connect_timeout(LONG);
    let (failed_over, manager) = tokio::join!(cluster.await_failover(slot, gone, killed), builder.connect());
    let manager = manager.expect("another node takes over");
    recovered(46, "primary killed to connected", failed_over, killed.elapsed());
    manager.lock("k").await.expect("free").release().await.expect("held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_46_a_manager_does_not_connect_to_a_cluster_that_refuses_without_a_node() {
    let mut cluster = Cluster::builder().replicas(0).start().await;
    let gone = cluster.primary_of(slot_of("k")).await;
    cluster.node_mut(gone).stop();
    until_down(cluster.node((gone + 1) % 3)).await;
    let begun = Instant::now();
    let builder = LockManager::builder().url(cluster.url()).command_timeout(ms(5_000)).connect_timeout(ms(10_000));
    let error = builder.connect().await.expect_err("it refuses all").to_string();
    assert!(error.contains(&cluster.addresses()[gone]), "{error}");
    let took = begun.elapsed();
    assert!(took >= ms(9_900), "the cluster may come back: {took:?}");
}

/// Waits until a node finds that slots are not served.
async fn until_down(node: &RedisServer) {
    eventually(SOON, "the cluster is down", async || {
        node.call(&["CLUSTER", "INFO"]).await.text().is_some_and(|info| info.contains("cluster_state:fail"))
    })
    .await;
}

/// It was cut off from the others for good, and lists the slots that they had.
#[tokio::test]
async fn fault_46_a_node_that_says_that_the_cluster_is_down_is_not_believed_alone() {
    let mut former = Cluster::builder().replicas(0).start().await;
    for node in [1, 2] {
        former.node_mut(node).stop();
    }
    until_down(former.node(0)).await;
    let cluster = Cluster::builder().replicas(0).start().await;
    let proxy = FaultProxy::start(cluster.addresses()[0].clone()).await;
    proxy.delay(ms(100), Duration::ZERO);
    let mixed = format!("redis+cluster://{},{}", former.addresses()[0], proxy.address());
    let builder = LockManager::builder().url(mixed).command_timeout(LIMIT).connect_timeout(SOON);
    let manager = builder.connect().await.expect("the other knows");
    manager.lock("k").await.expect("its slot is there").release().await.expect("held");
}

/// Nodes that have just started take no commands for two seconds, though they answer and have all slots.
#[tokio::test]
async fn fault_46_a_manager_does_not_connect_to_a_cluster_that_answers_and_takes_no_commands() {
    let mut cluster = Cluster::builder().replicas(0).start().await;
    for node in 0..cluster.nodes().len() {
        cluster.node_mut(node).restart().await;
    }
    let begun = Instant::now();
    let builder = LockManager::builder().url(cluster.url()).command_timeout(LIMIT).connect_timeout(SOON);
    let manager = builder.connect().await.expect("it waits until it does");
    figure(46, "connected after the start of all nodes", begun.elapsed());
    manager.lock("k").await.expect("it takes commands").release().await.expect("held");
}
