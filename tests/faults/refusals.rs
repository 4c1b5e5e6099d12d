//! A server that answers, and says no.

use lock_core::{End, ErrorKind, LockManager, LossReason};
use lock_tests::{
    FaultProxy, RawClient, RedisServer, eventually, eventually_some, figure, free_port,
    history::{Held, Recorded, Run, now},
    within,
};
use tokio::time::{sleep, timeout};

use crate::{faults::*, patient};

#[tokio::test]
async fn fault_36_without_memory_to_spare_nothing_new_is_held_and_the_old_is_kept() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-36"));
    let (manager, client) = client(&run, &server.url(), "p0").await;
    let often = |request: lock_core::LockRequest| request.renew_every(OFTEN);
    let mut held = client.acquire("held", LONG, often).await.expect("the key is free");
    let since = now();
    server.call(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let other = Recorded::new(&manager, &run.recorder("p0"), "other");
    let error = other.acquire("new", TTL, |request| request.wait(3 * TTL)).await.expect_err("there is no memory");
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("out of memory"), "{error}");
    renewed(&held, 2).await;
    assert!(held.check());
    held.extend(2 * LONG).await.expect("needs no memory");
    held.release().await.expect("needs no memory");
    assert_eq!(server.call(&["EXISTS", "held", "new"]).await.integer(), Some(0));
    let restored = Instant::now();
    server.call(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let held = other.acquire("new", LONG, |request| request).await.expect("there is memory");
    figure(36, "memory to spare to next grant", restored.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

/// Asks while the server refuses with `kind`, until the lease that `held` stands for is over, whose renewals are refused,
/// too. All of that is no hot loop.
async fn asked_in_vain(server: &RedisServer, run: &Run, client: &Recorded, mut held: Held, kind: ErrorKind) {
    let (since, before) = (now(), server.script_calls().await);
    let start = Instant::now();
    let mut attempts = 0;
    eventually(SOON, "renewals are tried", async || server.script_calls().await >= before + 2).await;
    while held.check() || attempts == 0 {
        let error = client.acquire("k", TTL, |request| request.wait(TTL)).await.expect_err("it is refused");
        assert_eq!(error.kind(), kind, "{error}");
        println!("{error}");
        attempts += 1;
        // A user of the library would pause, too.
        sleep(ms(200)).await;
    }
    let calls = server.script_calls().await - before;
    let seconds = start.elapsed().as_secs_f64();
    run.broken_since(since);
    let rate = calls as f64 / seconds;
    println!("{calls} calls in {seconds:.1} s, {attempts} of them requests: {rate:.1} a second");
    assert!(rate <= 20.0, "{calls} calls in {seconds:.1} s");
    assert_eq!(held.guard().ended().await, End::Lost(LossReason::Expired));
    drop(held);
}

#[tokio::test]
async fn fault_38_replica_refuses_without_a_hot_loop() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-38-readonly"));
    let (manager, client) = client(&run, &server.url(), "p0").await;
    let other = Recorded::new(&manager, &run.recorder("p0"), "held");
    let mut held = other.acquire("held", LASTS, |request| request).await.expect("free");
    // The connection is old enough to be replaced when the server turns out to be no primary.
    sleep(TTL + ms(100)).await;
    let connections = async || server.info("total_connections_received").await.parse::<u64>().expect("a number");
    let (since, before, start) = (now(), connections().await, Instant::now());
    server.call(&["REPLICAOF", "127.0.0.1", &free_port().to_string()]).await;
    while held.check() {
        let error = client.acquire("k", TTL, |request| request.wait(TTL)).await.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("replica; connect to the primary"), "{error}");
        sleep(ms(100)).await;
    }
    let tried = connections().await - before - 2; // ours: the order to replicate, and this question
    let rate = tried as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.1} attempts to connect a second");
    // One a second, by the second: on a busy machine there are fewer.
    assert!(tried > 0 && rate <= 4.0, "{tried} attempts to connect in {:?}", start.elapsed());
    assert_eq!(held.guard().ended().await, End::Lost(LossReason::Expired));
    drop(held);
    server.call(&["REPLICAOF", "NO", "ONE"]).await;
    let promoted = Instant::now();
    let held = eventually_some(SOON, "it is a primary again", async || {
        client.acquire("k", LONG, |request| request).await.ok()
    })
    .await;
    figure(38, "promoted to next grant", promoted.elapsed());
    run.broken_since(since);
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

/// Two servers behind one address that keeps open connections where they are: `a` is demoted and `b` promoted.
async fn switched_over(user: Option<&str>) {
    let (a, b) = (RedisServer::start().await, RedisServer::start().await);
    let credentials = user.map_or(String::new(), |rules| {
        println!("a user with {rules}");
        "shop:secret@".to_owned()
    });
    for server in [&a, &b] {
        let mut command = vec!["ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all"];
        command.extend(user);
        assert_eq!(server.call(&command).await.text().as_deref(), Some("OK"));
    }
    let port = |server: &RedisServer| server.port().to_string();
    b.call(&["REPLICAOF", "127.0.0.1", &port(&a)]).await;
    eventually(SOON, "it follows", async || b.info("master_link_status").await == "up").await;
    let proxy = FaultProxy::start(a.address()).await;
    let url = format!("redis://{credentials}{}", proxy.address());
    let manager = patient::connect(&url).await.expect("connects");
    manager.lock("k").await.expect("free").release().await.expect("held");
    // As old as the connection of a service is.
    sleep(TTL + ms(100)).await;
    b.call(&["REPLICAOF", "NO", "ONE"]).await;
    a.call(&["REPLICAOF", "127.0.0.1", &port(&b)]).await;
    // For a while the address leads to the former primary, whoever connects anew.
    let demoted = Instant::now();
    while demoted.elapsed() < 2 * TTL {
        let error = manager.lock("k").wait(Duration::ZERO).await.expect_err("it is no primary");
        assert!(
            error.retry_after().is_some() && error.to_string().contains("replica; connect to the primary"),
            "{error}"
        );
        sleep(ms(20)).await;
    }
    proxy.lead_to(b.address());
    let promoted = Instant::now();
    let guard =
        eventually_some(SOON, "the new primary grants", async || manager.lock("k").wait(Duration::ZERO).await.ok())
            .await;
    let took = promoted.elapsed();
    figure(38, if user.is_some() { "switchover to next grant, no INFO" } else { "switchover to next grant" }, took);
    assert!(!b.call(&["GET", "k"]).await.is_nil(), "the new primary has the lease");
    guard.release().await.expect("held");
}

#[tokio::test]
async fn fault_38_switchover_behind_one_address_is_followed_though_the_old_connection_stays_open() {
    switched_over(None).await;
}

#[tokio::test]
async fn fault_38_switchover_is_followed_by_a_user_who_may_not_ask_for_the_role() {
    switched_over(Some("-info")).await;
}

/// All that it is asked is whether the key is free, and that it can say.
#[tokio::test]
async fn fault_38_waiter_leaves_a_demoted_server_though_its_key_is_busy_and_the_old_connection_stays_open() {
    let (a, b) = (RedisServer::start().await, RedisServer::start().await);
    let port = |server: &RedisServer| server.port().to_string();
    b.call(&["REPLICAOF", "127.0.0.1", &port(&a)]).await;
    let proxy = FaultProxy::start(a.address()).await;
    let manager = LockManager::connect(format!("redis://{}", proxy.address())).await.expect("connects");
    a.call(&["SET", "k", "lock-core:1:00000000000000000000000000000007"]).await;
    eventually(SOON, "it is replicated", async || !b.call(&["GET", "k"]).await.is_nil()).await;
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move { manager.lock("k").wait_forever().ttl(LONG).await }
    });
    // As old as the connection of a service is.
    sleep(TTL + ms(100)).await;
    b.call(&["REPLICAOF", "NO", "ONE"]).await;
    a.call(&["REPLICAOF", "127.0.0.1", &port(&b)]).await;
    proxy.lead_to(b.address());
    eventually(SOON, "the waiter asks the new primary", async || {
        let asked = b.call(&["INFO", "commandstats"]).await.text();
        asked.is_some_and(|asked| asked.contains("cmdstat_eval"))
    })
    .await;
    let operator = LockManager::connect(&b.url()).await.expect("connects");
    assert!(operator.force_release("k").await.expect("is answered"));
    let guard = within(SOON, waiter).await.expect("no panic").expect("it is granted");
    guard.release().await.expect("held");
}

/// It knows no keys, and must not say that they are gone.
#[tokio::test]
async fn fault_38_replica_without_data_costs_no_lease_where_the_role_is_not_told() {
    let (primary, replica, nobody) = (RedisServer::start().await, RedisServer::start().await, free_port());
    for server in [&primary, &replica] {
        server.call(&["ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all", "-info"]).await;
    }
    replica.call(&["REPLICAOF", "127.0.0.1", &nobody.to_string()]).await;
    let proxy = FaultProxy::start(primary.address()).await;
    let manager = patient::connect(format!("redis://shop:secret@{}", proxy.address())).await.expect("connects");
    let mut guard = manager.lock("k").ttl(LONG).await.expect("free");
    let dropped = manager.lock("dropped").ttl(LONG).await.expect("free");
    // The address leads to it for a moment.
    proxy.lead_to(replica.address());
    proxy.cut();
    drop(dropped);
    eventually(SOON, "the replica is asked", async || {
        let asked = replica.call(&["INFO", "commandstats"]).await.text();
        asked.is_some_and(|asked| asked.contains("cmdstat_eval:"))
    })
    .await;
    proxy.lead_to(primary.address());
    proxy.cut();
    eventually(SOON, "the lease is extended", async || guard.extend(LONG).await.is_ok()).await;
    assert!(guard.is_held());
    eventually(SOON, "what was dropped is released", async || {
        primary.call(&["EXISTS", "dropped"]).await.integer() == Some(0)
    })
    .await;
    guard.release().await.expect("held");
}

#[tokio::test]
async fn fault_38_replica_that_takes_writes_is_refused() {
    let (primary, replica) = (RedisServer::start().await, RedisServer::start().await);
    replica.call(&["CONFIG", "SET", "replica-read-only", "no"]).await;
    replica.call(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    let error = LockManager::builder().url(replica.url()).command_timeout(LIMIT).connect().await;
    let error = error.expect_err("its writes are lost").cause().expect("the URL is sound").clone();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(error.retry_after().is_some() && error.to_string().contains("is a replica"), "{error}");
}

#[tokio::test]
async fn fault_38_too_few_replicas_refuse_without_a_hot_loop() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-38-noreplicas"));
    let (manager, client) = client(&run, &server.url(), "p0").await;
    let other = Recorded::new(&manager, &run.recorder("p0"), "held");
    let held = other.acquire("held", LASTS, |request| request).await.expect("free");
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "2"]).await;
    asked_in_vain(&server, &run, &client, held, ErrorKind::Backend).await;
    server.call(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let restored = Instant::now();
    let held = client.acquire("k", LONG, |request| request).await.expect("it takes writes again");
    figure(38, "replicas enough to next grant", restored.elapsed());
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_39_too_many_clients_are_an_error_and_no_storm() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-39"));
    let (manager, client) = client(&run, &server.url(), "p0").await;
    let mut held = client.acquire("held", LONG, |request| request).await.expect("free");
    // One for the harness, besides ours.
    let mut harness = server.connect().await.expect("connects");
    let since = now();
    harness.call(&["CONFIG", "SET", "maxclients", "2"]).await.expect("is answered");
    let error = LockManager::builder().url(server.url()).command_timeout(LIMIT).connect().await;
    let error = error.expect_err("there is no room");
    println!("{error}");
    assert_eq!(error.cause().map(lock_core::Error::kind), Some(ErrorKind::Backend), "{error}");
    // Ours is killed, and its place is taken.
    harness.call(&["CONFIG", "SET", "maxclients", "1"]).await.expect("is answered");
    kill_all(&mut harness).await;
    let rejected = async |harness: &mut RawClient| {
        let info = harness.call(&["INFO", "stats"]).await.expect("is answered").text().unwrap_or_default();
        let field = info.lines().find_map(|line| line.strip_prefix("rejected_connections:")?.parse::<u64>().ok());
        field.expect("INFO has it")
    };
    let before = rejected(&mut harness).await;
    let other = Recorded::new(&manager, &run.recorder("p0"), "other");
    let asked = Instant::now();
    let refused = other.acquire("k", TTL, |request| request.wait(TTL)).await.expect_err("there is no room");
    println!("{refused}, after {:?}", asked.elapsed());
    assert_eq!(refused.kind(), ErrorKind::Backend, "{refused}");
    assert!(refused.retry_after().is_some(), "{refused}");
    sleep(TTL).await;
    let tries = rejected(&mut harness).await - before;
    let seconds = asked.elapsed().as_secs_f64();
    println!("{:.1} tries to connect a second", tries as f64 / seconds);
    assert!(tries > 0, "it does not try to connect");
    assert!(tries as f64 / seconds <= 25.0, "{tries} tries to connect in {seconds:.1} s");
    harness.call(&["CONFIG", "SET", "maxclients", "100"]).await.expect("is answered");
    let restored = Instant::now();
    eventually(SOON, "it is let in again", async || held.extend(LONG).await.is_ok()).await;
    figure(39, "room to next answer", restored.elapsed());
    run.broken_since(since);
    assert!(held.check(), "the lease outlived it");
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_40_password_asked_for_at_run_time_is_a_permanent_error_without_a_secret() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-40-password"));
    let (_manager, client) = client(&run, &server.url(), "p0").await;
    let mut harness = server.connect().await.expect("connects");
    client.acquire("k", LONG, |request| request).await.expect("free").release().await.expect("held");
    harness.call(&["CONFIG", "SET", "requirepass", "hush-hush"]).await.expect("is answered");
    kill_all(&mut harness).await;
    let mut error = client.acquire("k", TTL, |request| request.wait(5 * TTL)).await.expect_err("it has no password");
    if error.kind() == ErrorKind::Backend {
        // That one was on its way when the connection was killed, so nobody knows what became of it.
        error = client.acquire("k", TTL, |request| request.wait(5 * TTL)).await.expect_err("it has no password");
    }
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.retry_after().is_none(), "{error}");
    assert!(!format!("{error} {error:?}").contains("hush-hush"));
    harness.call(&["CONFIG", "SET", "requirepass", ""]).await.expect("is answered");
    let restored = Instant::now();
    eventually(SOON, "it is let in again", async || match client.acquire("k", TTL, |request| request).await {
        Ok(held) => held.release().await.is_ok(),
        Err(_) => false,
    })
    .await;
    figure(40, "password gone to next grant", restored.elapsed());
    run.settle(&server).await;
    judged(&run);
}

#[tokio::test]
async fn fault_40_rights_taken_at_run_time_are_a_permanent_error_without_a_secret() {
    let (server, run) = (RedisServer::start().await, Run::new("fault-40-rights"));
    server.call(&["ACL", "SETUSER", "shop", "on", ">hush-hush", "~*", "&*", "+@all"]).await;
    let (_manager, client) = client(&run, &format!("redis://shop:hush-hush@{}", server.address()), "p0").await;
    let mut held = client.acquire("held", 5 * TTL, |request| request).await.expect("free");
    server.call(&["ACL", "SETUSER", "shop", "-@all"]).await;
    let other = Recorded::new(&_manager, &run.recorder("p0"), "other");
    let error = other.acquire("k", TTL, |request| request.wait(5 * TTL)).await.expect_err("it may do nothing");
    assert!(matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported), "{error}");
    assert!(error.retry_after().is_none(), "{error}");
    assert!(!format!("{error} {error:?}").contains("hush-hush"));
    println!("{error}");
    // What cannot be renewed is lost at its deadline, and not before.
    let (asked, remaining) = (Instant::now(), held.guard().remaining());
    let end = timeout(SOON, held.guard().ended()).await.expect("it is told");
    assert_eq!(end, End::Lost(LossReason::Expired));
    let told = asked.elapsed();
    println!("told after {told:?}, with {remaining:?} left");
    assert!(told >= remaining, "told after {told:?}, with {remaining:?} left");
    assert!(!held.check());
    server.call(&["ACL", "SETUSER", "shop", "+@all"]).await;
    let held = other.acquire("held", LONG, |request| request).await.expect("it may again");
    held.release().await.expect("held");
    run.settle(&server).await;
    judged(&run);
}

/// Kills the connections of everybody else: one that hears calls counts as a subscriber.
async fn kill_all(harness: &mut RawClient) {
    let mut killed = 0;
    for class in ["normal", "pubsub"] {
        let answer = harness.call(&["CLIENT", "KILL", "TYPE", class, "SKIPME", "yes"]).await.expect("is answered");
        killed += answer.integer().expect("a number");
    }
    assert!(killed > 0, "there was nobody to kill");
}

#[tokio::test]
async fn fault_38_messages_of_grants_do_not_go_to_replicas() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let (primary, replica) = (RedisServer::start().await, RedisServer::start().await);
    replica.call(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).await;
    let one = patient::connect(primary.url()).await.expect("connects");
    let two = patient::connect(primary.url()).await.expect("connects");
    let held = one.lock("k").ttl(LONG).await.expect("free");
    let waiter = tokio::spawn(async move { two.lock("k").wait(SOON).await.expect("its turn comes").fencing_token() });
    let waits = async || primary.call(&["EXISTS", RedisServer::WAITING]).await.integer() == Some(1);
    eventually(SOON, "it has a place", waits).await;

    // Who still listens at a former primary hears what that is told as a replica.
    let mut former = tokio::net::TcpStream::connect(replica.address()).await.expect("it listens");
    former.write_all(b"PSUBSCRIBE *\r\n").await.expect("it listens");
    let mut heard = Vec::new();
    eventually(SOON, "the replica follows", async || {
        let told = replica.call(&["INFO", "replication"]).await.text().unwrap_or_default();
        told.contains("master_link_status:up") && replica.call(&["EXISTS", "k"]).await.integer() == Some(1)
    })
    .await;
    held.release().await.expect("held");
    waiter.await.expect("no panic");
    primary.call(&["PUBLISH", "over", "over"]).await;
    while !String::from_utf8_lossy(&heard).contains("over") {
        former.read_buf(&mut heard).await.expect("it is open");
    }
    let heard = String::from_utf8_lossy(&heard);
    assert!(!heard.contains("lock-core:calls:"), "{heard}");
}
