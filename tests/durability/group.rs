//! A primary, its replicas, and the network between them.

use std::time::Duration;

use lock_core::{LockManager, Replicas};
use lock_tests::{FaultProxy, RedisServer, SOON, eventually};

use crate::patient;

/// Replicas that follow a primary, each through a proxy of its own.
pub(crate) struct Group {
    pub(crate) primary: RedisServer,
    pub(crate) replicas: Vec<Replica>,
}

pub(crate) struct Replica {
    pub(crate) server: RedisServer,
    /// Between the replica and its primary.
    pub(crate) network: FaultProxy,
}

impl Group {
    /// Starts a primary and replicas that are up to date.
    pub(crate) async fn start(replicas: usize) -> Self {
        let mut this = Self { primary: RedisServer::start().await, replicas: Vec::new() };
        for _ in 0..replicas {
            let server = RedisServer::start().await;
            let network = FaultProxy::start(this.primary.address()).await;
            let (host, port) = network
                .address()
                .split_once(':')
                .map(|(host, port)| (host.to_owned(), port.to_owned()))
                .expect("an address");
            server.call(&["REPLICAOF", &host, &port]).await;
            this.replicas.push(Replica { server, network });
        }
        let all = replicas.to_string();
        let reached = async || this.primary.call(&["WAIT", &all, "100"]).await.integer();
        eventually(SOON, "the replicas follow", async || reached().await == i64::try_from(replicas).ok()).await;
        this
    }

    pub(crate) async fn manager(&self) -> LockManager {
        patient::connect(self.primary.url()).await.expect("connects")
    }

    /// What stands at a key of the primary.
    pub(crate) async fn value(&self, key: &str) -> Option<String> {
        self.primary.call(&["GET", key]).await.text()
    }

    /// How often the primary was asked to wait for replicas, but by the harness.
    pub(crate) async fn waits(&self) -> u64 {
        self.primary.calls_of("wait").await
    }
}

impl Replica {
    /// What stands at a key of the replica.
    pub(crate) async fn value(&self, key: &str) -> Option<String> {
        self.server.call(&["GET", key]).await.text()
    }

    /// Makes it a primary, as an operator would by hand.
    pub(crate) async fn promote(&self) -> LockManager {
        self.server.call(&["REPLICAOF", "NO", "ONE"]).await;
        patient::connect(self.server.url()).await.expect("connects")
    }
}

/// One replica, within a time.
pub(crate) fn one(timeout: Duration) -> Replicas {
    Replicas::new(1, timeout)
}

impl Group {
    /// Whether a client of the primary waits for replicas.
    pub(crate) async fn waits_now(&self) -> bool {
        self.primary
            .client_list()
            .await
            .iter()
            .any(|client| client.field("cmd") == "wait" && client.field("flags").contains('b'))
    }

    /// How many clients the primary has, but replicas.
    pub(crate) async fn clients(&self) -> usize {
        let clients = self.primary.client_list().await;
        clients.iter().filter(|client| !client.field("flags").contains('S')).count()
    }
}
