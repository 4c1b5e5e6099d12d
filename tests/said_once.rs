//! What a manager says of its server in the log: once, however often it connects. One test, in a binary of its own:
//! which events are of interest is kept for the whole process.
#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::{
    io,
    sync::{Arc, Mutex},
};

use lock_core::LockManager;
use lock_tests::{RedisServer, SOON, eventually, ms};
use tokio::time::sleep;
use tracing_subscriber::fmt::MakeWriter;

/// Keeps what a subscriber writes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn count(&self, text: &str) -> usize {
        String::from_utf8_lossy(&self.0.lock().unwrap()).matches(text).count()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Has a manager connect four times, and use the lock each time.
async fn connects_often(server: &RedisServer, log: &Log, user: &str) {
    let url = format!("redis://{user}:secret@{}", server.address());
    let manager = LockManager::builder().url(&url).client_name("ours").connect().await.unwrap();
    for times in 1..4 {
        manager.lock("k").await.unwrap().release().await.unwrap();
        // Connections that break as soon as they are made are not all told of.
        sleep(ms(150)).await;
        server.kill_clients().await;
        eventually(SOON, "it connects anew", async || log.count("connecting anew") >= times).await;
    }
    // One waits, so that the one who releases has somebody to call.
    let held = manager.lock("k").await.unwrap();
    let other = LockManager::connect(&url).await.unwrap();
    let waits = tokio::spawn(async move { other.lock("k").wait(SOON).await.map(drop) });
    eventually(SOON, "it has a place", async || server.keys("*queue:k").await.len() == 1).await;
    held.release().await.unwrap();
    waits.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_amiss_with_a_server_is_said_once_however_often_it_is_connected_to() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
    let _default = tracing::subscriber::set_default(subscriber);

    let server = RedisServer::start().await;
    server.call(&["ACL", "SETUSER", "all", "on", ">secret", "~*", "&*", "+@all"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("evict") + log.count("drops keys") + log.count("polling") + log.count("PUBLISH"), 0);
    *log.0.lock().unwrap() = Vec::new();

    // It may forget what has a ttl, as locks have.
    server.call(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("drops keys"), 0, "there is no limit yet");
    *log.0.lock().unwrap() = Vec::new();
    server.call(&["CONFIG", "SET", "maxmemory", "1gb"]).await;
    connects_often(&server, &log, "all").await;
    assert_eq!(log.count("drops keys"), 2, "once by each of the two managers");
    assert!(log.count("policy=\"volatile-lru\"") == 2 && log.count("noeviction") == 2);
    *log.0.lock().unwrap() = Vec::new();

    // Where it may not be asked, nothing is said; and it cannot be told from others at a reconnect either.
    server.call(&["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "-info", "-client|id"]).await;
    connects_often(&server, &log, "mute").await;
    assert_eq!(log.count("drops keys"), 0);
    assert_eq!(log.count("may not SUBSCRIBE"), 2, "once by each of the two managers");
    *log.0.lock().unwrap() = Vec::new();

    // An older protocol, over which nobody can be called.
    let old = RedisServer::builder().without_command("HELLO").start().await;
    old.call(&["ACL", "SETUSER", "all", "on", ">secret", "~*", "&*", "+@all"]).await;
    connects_often(&old, &log, "all").await;
    assert_eq!(log.count("no RESP3"), 2, "once by each of the two managers");
    *log.0.lock().unwrap() = Vec::new();

    // Who may hear but not call.
    server.call(&["ACL", "SETUSER", "hears", "on", ">secret", "~*", "&*", "+@all", "-publish", "-info"]).await;
    connects_often(&server, &log, "hears").await;
    assert_eq!(log.count("may not PUBLISH"), 1, "by the one who releases while another waits");
    assert_eq!(log.count("secret"), 0);
}
