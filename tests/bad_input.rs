//! The rows of bad input that concern the core and need a server, or something that is none: each test names its rows.

use std::{error::Error as _, os::unix::fs::PermissionsExt, time::Duration};

use lock_core::{BuildError, Error, ErrorKind, LeaseOptions, LockManager};
use lock_tests::{LONG, Process, RedisServer, SOON, eventually, left_out, ms, role, within};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    time::Instant,
};

use crate::patient;

/// The error of connecting within a limit.
async fn connect(url: &str, limit: Duration) -> BuildError {
    let connecting = LockManager::builder().url(url).command_timeout(limit).connect();
    let error = within(SOON, connecting).await.expect_err("cannot connect");
    assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
    error
}

/// The cause of an error that the server's answer is: it is told long before the limit, which is ten minutes.
async fn cause(url: &str) -> Error {
    connect(url, LONG).await.cause().expect("the URL is sound").clone()
}

/// The cause of an error that is told at the end of the limit, since another attempt may succeed.
async fn cause_in_the_end(url: &str) -> Error {
    connect(url, ms(15_000)).await.cause().expect("the URL is sound").clone()
}

fn build(url: &str) -> String {
    let error = LockManager::builder().url(url).build().expect_err("a wrong URL");
    assert!(!format!("{error} {error:?}").contains("secret"), "no password in an error");
    assert!(error.cause().is_none());
    error.to_string()
}

#[test]
fn bad_input_23_and_24_a_url_that_is_none_is_refused_at_once_and_says_what_to_write() {
    assert!(build("").contains("empty"));
    assert!(build("localhost:6379").contains("no scheme"));
    for url in ["memory:/", "redis:/:secret@localhost", "redis+sentinel:secret@a/shop", "unix:/run/redis.sock"] {
        assert!(build(url).contains("lacks :// behind its scheme"), "{url}: {}", build(url));
    }
    assert!(build("http://localhost").contains("\"http\" is unknown"));
    assert!(build("redis://:secret@localhost:0").contains("port 0"));
    for url in ["redis://:secret@localhost:99999", "rediss://[::1]:99999", "redis://u:sec/secret@host"] {
        assert!(build(url).contains("not a number from 1 to 65535"), "{url}: {}", build(url));
    }
    for url in ["redis://:p@secret/word@host", "rediss://u:p@secret/1@host"] {
        assert!(build(url).contains("in a password, @ : / % # are written %40"), "{url}: {}", build(url));
    }
    for url in ["redis://a,b", "redis://:secret@a:1,b:2", "redis://a,redis://b"] {
        assert!(build(url).contains("several hosts are written redis+cluster://HOST,HOST"), "{url}: {}", build(url));
    }
    for url in ["redis://:secret@localhost:65536", "redis://:secret@host:abc", "redis://", "unix://"] {
        assert!(build(url).contains("the URL of the Redis server is wrong"), "{url}: {}", build(url));
    }
    assert!(
        LockManager::builder()
            .build()
            .unwrap_err()
            .to_string()
            .contains("call `url`, `quorum`, `client`, `connection_info`")
    );
}

#[test]
fn options_of_the_builder_out_of_range_are_refused() {
    let build = |builder: lock_core::LockManagerBuilder| builder.url("memory://").build().unwrap_err().to_string();
    assert!(build(LockManager::builder().defaults(LeaseOptions::new().ttl(ms(9)))).contains("10 ms"));
    assert!(build(LockManager::builder().prefix("{x}")).contains("brace"));
    assert!(build(LockManager::builder().client_name("a b")).contains("ASCII"));
    for (timeout, words) in [(Duration::ZERO, "zero"), (Duration::MAX, "one hour"), (ms(3_600_001), "one hour")] {
        assert!(build(LockManager::builder().command_timeout(timeout)).contains(words));
        assert!(build(LockManager::builder().connect_timeout(timeout)).contains(words));
    }
    assert!(build(LockManager::builder().prefix("p".repeat(1_024))).contains("no room for a key"));
    let longest = LockManager::builder().url("memory://").prefix("p".repeat(1_023)).build().expect("room for a byte");
    drop(longest);
}

#[tokio::test]
async fn bad_input_25_and_31_a_server_out_of_reach_is_named_within_the_limit() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    // Accepts connections in its backlog and never answers.
    let hole = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("redis://{}", hole.local_addr().unwrap());
    let refused = format!("redis://:secret@{free}");
    let (refused, unknown, silent, missing) = tokio::join!(
        cause_in_the_end(&refused),
        cause_in_the_end("redis://no-such-host.invalid:6379"),
        cause_in_the_end(&silent),
        cause_in_the_end("unix:///no/such/socket"),
    );
    assert_eq!(refused.kind(), ErrorKind::Backend);
    assert!(refused.to_string().contains(&free.to_string()), "{refused}");
    let source = refused.source().expect("the cause is there").to_string();
    assert!(source.contains("refused") && !refused.to_string().contains("os error"), "told once: {refused}: {source}");

    assert_eq!(unknown.kind(), ErrorKind::Backend);
    let said = unknown.to_string();
    assert!(said.contains("no-such-host.invalid:6379") && said.contains("host name not found"), "{said}");

    assert_eq!(silent.kind(), ErrorKind::Backend);
    assert!(silent.to_string().contains("did not answer within 15s"), "{silent}");
    assert!(silent.to_string().contains(&hole.local_addr().unwrap().to_string()), "{silent}");

    assert_eq!(missing.kind(), ErrorKind::Backend);
    assert!(missing.to_string().contains("/no/such/socket"), "{missing}");
}

#[tokio::test]
async fn bad_input_31_a_socket_works_and_one_without_permission_is_an_error() {
    let server = RedisServer::builder().unix_socket().start().await;
    let manager = patient::connect(&server.socket_url()).await.unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();

    let path = server.socket_url().replace("unix://", "");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if tokio::net::UnixStream::connect(&path).await.is_ok() {
        left_out("a socket without permission in bad_input_31", "root may connect all the same", false);
        return;
    }
    let denied = cause_in_the_end(&server.socket_url()).await;
    assert_eq!(denied.kind(), ErrorKind::Backend);
    assert!(denied.to_string().contains(&path), "{denied}");
}

#[tokio::test]
async fn bad_input_26_a_wrong_password_is_denied_at_once_and_not_shown() {
    let server = RedisServer::builder().password("secret right").start().await;
    // One of them is that of the question itself.
    let connections = async || server.info("total_connections_received").await.parse::<u32>().unwrap();
    for url in [
        format!("redis://{}", server.address()),
        format!("redis://:secret-wrong@{}", server.address()),
        format!("redis://nobody:secret-wrong@{}", server.address()),
    ] {
        let before = connections().await;
        let denied = cause(&url).await;
        let tried = connections().await - before - 1;
        // A connection that is not answered soon is followed by another one.
        assert!(tried <= 2, "{url}: {tried} connections");
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(denied.retry_after().is_none());
        assert_eq!(denied.to_string().contains("none was given"), !url.contains("secret"), "{url}: {denied}");
    }
    // However often it is asked, the server is not.
    let url = format!("redis://:secret-wrong@{}", server.address());
    let manager = patient::builder().url(&url).build().unwrap();
    let (start, before) = (Instant::now(), connections().await);
    while start.elapsed() < ms(1_500) {
        assert_eq!(manager.lock("k").await.unwrap_err().kind(), ErrorKind::Denied);
        tokio::time::sleep(ms(5)).await;
    }
    let tried = connections().await - before - 1;
    // From half of 750 ms to all of it between two of them; the first may have been followed by another one.
    let most = 2 + start.elapsed().div_duration_f64(ms(375)).ceil() as u32;
    assert!(tried <= most, "{tried} connections in {:?}", start.elapsed());
    drop(manager);

    let manager = patient::connect(&server.url()).await.unwrap();
    assert!(!format!("{manager:?}").contains("secret"));
    assert!(!format!("{:?}", LockManager::builder().url(server.url())).contains("secret"));
}

#[tokio::test]
async fn bad_input_27_a_password_may_hold_any_character_percent_encoded() {
    let server = RedisServer::builder().password("@:/%# \u{e9}").start().await;
    let manager = patient::connect(&server.url()).await.unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn bad_input_28_a_database_that_does_not_exist_is_an_error_that_says_so() {
    let server = RedisServer::start().await;
    let missing = cause(&format!("{}/99", server.url())).await;
    assert!(missing.to_string().contains("no database with that number"), "{missing}");
    assert!(missing.retry_after().is_none());
    assert!(build("redis://localhost/text").contains("the database is not a number; write one"));
    assert!(build("redis://localhost/-1").contains("not negative"));
    let cluster = RedisServer::builder().option("--cluster-enabled", "yes").start().await;
    let refused = cause(&format!("{}/1", cluster.url())).await;
    // Since Valkey 9 a cluster may have several databases.
    let select = format!("{:?}", cluster.call(&["SELECT", "1"]).await);
    let words =
        if select.contains("out of range") { "no database with that number" } else { "is a node of a Redis Cluster" };
    assert!(refused.to_string().contains(words), "{refused}");
    assert!(refused.to_string().contains(&cluster.address()), "{refused}");
    assert!(refused.retry_after().is_none());
    let rules = ["ACL", "SETUSER", "other", "on", ">secret", "~*", "&*", "+@all", "-select"];
    assert_eq!(server.call(&rules).await.text().as_deref(), Some("OK"));
    let refused = cause(&format!("redis://other:secret@{}/3", server.address())).await;
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("select"), "{refused}");
    let other = patient::connect(&format!("{}/3", server.url())).await.unwrap();
    let _held = other.lock("k").await.unwrap();
    assert!(server.keys("*").await.is_empty(), "database 0 is left alone");
}

#[tokio::test]
async fn cluster_and_sentinel_are_told_at_connect_and_never_retried() {
    let cluster = RedisServer::builder().option("--cluster-enabled", "yes").start().await;
    let refused = cause(&cluster.url()).await;
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(refused.to_string().contains("node of a Redis Cluster; write redis+cluster://"), "{refused}");
    // A user who may not ask what the server is learns it from the first request.
    cluster.call(&["ACL", "SETUSER", "other", "on", ">secret", "~*", "&*", "+@all", "-info"]).await;
    let slots: Vec<_> = (0..16_384).map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    cluster.call(&["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect::<Vec<_>>()).await;
    eventually(SOON, "the cluster is up", async || {
        cluster.call(&["CLUSTER", "INFO"]).await.text().is_some_and(|info| info.contains("cluster_state:ok"))
    })
    .await;
    let manager = patient::connect(&format!("redis://other:secret@{}", cluster.address())).await.unwrap();
    let error = manager.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("node of a Redis Cluster"), "{error}");
}

#[tokio::test]
async fn missing_password_is_told_as_such_over_resp2_with_and_without_a_database() {
    let server = RedisServer::builder().password("secret right").start().await;
    for path in ["", "/3"] {
        let error = cause(&format!("redis://{}{path}?protocol=resp2", server.address())).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{path}: {error}");
        assert!(error.to_string().contains("requires a password"), "{path}: {error}");
    }
}

#[tokio::test]
async fn schemes_of_valkey_are_those_of_redis() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url().replace("redis://", "valkey://")).await.unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();
    assert!(LockManager::builder().url("valkeys://localhost").build().is_ok());
}

#[test]
fn options_of_a_url_that_would_be_passed_over_are_refused() {
    for url in ["rediss://localhost#insecure", "rediss://localhost/#insecure"] {
        assert!(build(url).contains("`#insecure` is not supported; use `.tls(..)`"), "{}", build(url));
    }
    assert!(build("redis://localhost#x").contains("fragment"));
    // The locks would be in another database than the user thinks.
    for url in ["redis://localhost?db=3", "redis://localhost/?protcol=resp2", "valkey://localhost?user=a&pass=hunter2"]
    {
        let error = build(url);
        assert!(error.contains("redis://HOST/3") && !error.contains("hunter2"), "{error}");
    }
    assert!(build("unix:///tmp/redis.sock?ttl=3").contains("`ttl`, an option other than `db`"));
}

#[tokio::test]
async fn bad_input_30_tls_to_a_plain_port_ends_within_the_limit() {
    let server = RedisServer::start().await;
    let error = cause_in_the_end(&format!("rediss://{}", server.address())).await;
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
}

/// Serves every connection with the same bytes, over and over.
async fn serve(bytes: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while connection.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                    if connection.write_all(bytes).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn bad_input_32_what_is_no_redis_is_an_error_within_the_limit_and_memory() {
    for bytes in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"\x00\xff\x00\xff garbage\r\n".as_slice(),
        b"$1073741824\r\n".as_slice(),
        b"*1073741824\r\n".as_slice(),
        b"%2147483647\r\n".as_slice(),
    ] {
        let address = serve(bytes).await;
        // Whatever it makes of the bytes, and however slowly, it ends.
        let error = connect(&format!("redis://{address}"), ms(500)).await;
        let error = error.cause().expect("the URL is sound");
        assert_eq!(error.kind(), ErrorKind::Backend, "{bytes:?}: {error}");
        assert!(error.to_string().contains(&address), "{error}");
    }
    let peak = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = peak.lines().find_map(|line| line.strip_prefix("VmHWM:")).and_then(|rest| rest.trim().split(' ').next());
    let peak: u64 = peak.and_then(|kilobytes| kilobytes.parse().ok()).unwrap_or_default();
    assert!(peak < 500_000, "{peak} KiB");
}

#[tokio::test]
async fn bad_input_33_a_user_who_may_not_run_scripts_is_told_which_command_is_missing() {
    let server = RedisServer::start().await;
    server.call(&["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "-eval", "-evalsha"]).await;
    let url = format!("redis://limited:secret@{}", server.address());
    let error = cause(&url).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().to_lowercase().contains("'eval'"), "{error}");
    // A manager that does not connect at the start is told by the first request.
    let manager = patient::builder().url(url).build().unwrap();
    let error = manager.lock("k").await.unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("k")));
    assert!(error.to_string().to_lowercase().contains("'evalsha'"), "{error}");
    assert!(error.retry_after().is_none());
}

#[tokio::test]
async fn bad_input_33_a_server_that_is_too_old_is_refused_by_its_version() {
    // HELLO is unknown to it; the rest of the handshake is answered by a script of replies.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4_096];
                while let Ok(read @ 1..) = connection.read(&mut buffer).await {
                    let text = String::from_utf8_lossy(&buffer[..read]).to_uppercase();
                    let commands = text.matches('*').count();
                    let mut replies = String::new();
                    for command in text.split('*').skip(1).take(commands) {
                        replies.push_str(if command.contains("HELLO") {
                            "-ERR unknown command `HELLO`\r\n"
                        } else if command.contains("INFO\r\n") && !command.contains("CLIENT") {
                            "$21\r\nredis_version:5.0.14\n\r\n"
                        } else if command.contains("\r\nID\r\n") {
                            ":7\r\n"
                        } else {
                            "+OK\r\n"
                        });
                    }
                    if connection.write_all(replies.as_bytes()).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    let error = cause(&format!("redis://{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let told = error.to_string().replace(&address, "");
    assert!(told.contains("5.0.14") && told.contains("version 6"), "{error}");
}

#[tokio::test]
async fn bad_input_17_a_key_that_holds_something_else_is_left_alone() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.unwrap();
    server.call(&["HSET", "k", "uuid:1", "1"]).await;
    for error in [
        // The first answer ends the wait, which is ten minutes long.
        within(SOON, manager.lock("k").wait(LONG).acquire()).await.unwrap_err(),
        within(SOON, manager.inspect("k")).await.unwrap_err(),
        within(SOON, manager.force_release("k")).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.key()), (ErrorKind::WrongType, Some("k")), "{error}");
    }
    assert_eq!(server.call(&["HGET", "k", "uuid:1"]).await.text().as_deref(), Some("1"));
}

#[tokio::test]
async fn a_key_of_another_type_spoils_nothing_for_those_that_share_a_call_with_it() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.unwrap();
    server.call(&["RPUSH", "list", "1"]).await;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..200 {
        let manager = manager.clone();
        tasks.spawn(async move {
            if index % 2 == 0 {
                assert_eq!(manager.lock("list").await.unwrap_err().kind(), ErrorKind::WrongType);
            } else {
                manager.lock(format!("k:{index}")).await.unwrap().release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    assert_eq!(server.keys("k:*").await, Vec::<String>::new());
    assert_eq!(server.call(&["LLEN", "list"]).await.integer(), Some(1));
}

/// Reads and checks come first, so that no error comes after a write.
#[tokio::test]
async fn side_keys_that_hold_something_else_leave_no_key_set_and_nobody_waiting() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.unwrap();
    let (counter, waiting) = (RedisServer::COUNTER, RedisServer::WAITING);
    for foreign in [["RPUSH", counter, "1"], ["SET", counter, "1750000000000000"], ["SET", counter, "no number"]] {
        server.call(&["DEL", counter]).await;
        server.call(&foreign).await;
        let error = manager.lock("k").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{foreign:?}: {error}");
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        assert!(cause.contains("lock-core:fence") && cause.contains("older version"), "{cause}");
        assert!(server.call(&["GET", "k"]).await.is_nil(), "{foreign:?}");
    }
    server.call(&["DEL", counter]).await;
    for foreign in ["no number", "-1", "nan", "inf", "1e300"] {
        server.call(&["SET", waiting, foreign]).await;
        manager.lock("k").await.unwrap().release().await.unwrap();
    }
    server.call(&["DEL", waiting]).await;
    server.call(&["RPUSH", waiting, "1"]).await;
    let too_far = format!("{}-0", 1_u64 << 60);
    server.call(&["XADD", counter, "MAXLEN", "0", &too_far, "", ""]).await;
    let error = manager.lock("k").wait(ms(50)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(server.call(&["GET", "k"]).await.is_nil());
    server.call(&["DEL", counter]).await;
    // A queue that is none: those who wait poll, and nobody is hurt.
    let held = manager.lock("k").ttl(LONG).await.unwrap();
    let other = patient::connect(&server.url()).await.unwrap();
    let waits = tokio::spawn({
        let other = other.clone();
        async move { other.lock("k").ttl(LONG).wait(SOON).await }
    });
    let queue = "{0}lock-core:queue:k";
    eventually(SOON, "it has a place", async || server.keys("*queue:k").await == [queue]).await;
    server.call(&["DEL", queue]).await;
    server.call(&["SET", queue, "no hash"]).await;
    held.release().await.unwrap();
    let next = waits.await.unwrap().unwrap();
    assert_eq!(manager.lock("k").wait(ms(50)).await.unwrap_err().kind(), ErrorKind::Busy);
    next.release().await.unwrap();
    assert!(server.call(&["GET", "k"]).await.is_nil());
}

/// How much memory a process has, in KiB; none where the system does not say.
fn memory_of(process: &Process) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok())
}

#[tokio::test]
#[ignore = "computes for half a minute; run by .ci/run"]
async fn bad_input_42_a_hundred_thousand_keys_leave_neither_memory_nor_anything_but_the_counter() {
    const KEYS: u64 = 100_000;
    const FIRST: u64 = KEYS / 10;
    let server = RedisServer::start().await;
    let mut clients = [role!("keys", server.url()), role!("keys", server.url())];
    for client in &mut clients {
        client.expect("ready", 2 * LONG).await;
    }
    // Both want the same keys at the same time, so that there are queues, too.
    let mut waited = 0;
    let mut pass = async |first: u64, count: u64| {
        for client in &mut clients {
            client.send(&format!("pass {first} {count}")).await;
        }
        for client in &mut clients {
            let passed = client.expect("passed ", 2 * LONG).await;
            let (_, after_a_wait) = passed.split_once(' ').unwrap();
            waited += after_a_wait.parse::<u64>().unwrap();
        }
        let counter = [RedisServer::COUNTER];
        eventually(SOON, "only the counter is left", async || server.keys("*").await == counter).await;
        (server.info("used_memory").await.parse::<i64>().unwrap(), clients.each_ref().map(memory_of))
    };
    let before = pass(0, FIRST).await;
    let after = pass(FIRST, KEYS - FIRST).await;
    println!(
        "{} bytes and {:?} KiB after {FIRST} keys, {} and {:?} after {KEYS}",
        before.0, before.1, after.0, after.1
    );
    println!("{waited} of {} were waited for", 2 * KEYS);
    assert!(waited > FIRST, "{waited} were waited for");
    assert!(after.0 - before.0 < 1_000_000, "{} bytes more in the server", after.0 - before.0);
    for (before, after) in before.1.into_iter().zip(after.1) {
        // 90,000 keys of which a hundred bytes each were kept would be 9 MB.
        let grown = after.unwrap_or_default().saturating_sub(before.unwrap_or_default());
        assert!(grown < 4_096, "{grown} KiB more in a client");
    }
}

#[tokio::test]
async fn bad_input_18_a_holder_without_ttl_is_waited_for_without_a_busy_loop() {
    let server = RedisServer::start().await;
    let manager = patient::connect(&server.url()).await.unwrap();
    server.call(&["SET", "k", "no ttl"]).await;
    assert_eq!(manager.inspect("k").await.unwrap().remaining(), None);
    let calls = async || server.calls_of("evalsha").await;
    let (start, before) = (Instant::now(), calls().await);
    let waits = tokio::spawn(manager.lock("k").wait(LONG).acquire());
    eventually(SOON, "it tries again and again", async || calls().await >= before + 5).await;
    tokio::time::sleep(ms(1_500)).await;
    let tries = calls().await - before;
    // The time is measured around all that is counted, so that a slow machine only makes the rate seem smaller.
    let most = 15.0 * start.elapsed().as_secs_f64() + 5.0;
    assert!(tries as f64 <= most, "{tries} tries in {:?}", start.elapsed());
    waits.abort();
    let error = manager.lock("k").wait(ms(100)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    server.call(&["DEL", "k"]).await;
    assert!(manager.lock("k").await.is_ok());
}
