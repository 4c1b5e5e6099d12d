//! One suite, mounted on every kind of store.

use std::sync::Arc;

use lock_core::backend::{Backend, MemoryBackend, QuorumBackend, RedisBackend};
use lock_test::conformance;
use lock_tests::{Cluster, RedisServer, SOON, Sentinels};

fn redis(url: &str) -> RedisBackend {
    RedisBackend::from_url(url, "conformance", SOON).expect("a valid URL")
}

#[tokio::test]
async fn memory_conforms() {
    conformance::run(MemoryBackend::new()).await;
}

#[tokio::test]
async fn one_server_conforms() {
    let server = RedisServer::start().await;
    conformance::run(redis(&server.url())).await;
}

#[tokio::test]
async fn the_primary_that_sentinels_name_conforms() {
    let sentinels = Sentinels::start().await;
    sentinels.be_patient().await;
    conformance::run(redis(&sentinels.url())).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let cluster = Cluster::builder().node_timeout(SOON).start().await;
    conformance::run(redis(&cluster.url())).await;
}

#[tokio::test]
async fn a_quorum_conforms() {
    // A node that is too slow to be heard gives its places up to another, and then the order may change, which is not promised. So the
    // suite has ten tries; with nodes in memory, which are never slow, it has one. (A breach that is one fails ten times.)
    for attempt in 1.. {
        let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
        let nodes = servers.iter().map(|server| Arc::new(redis(&server.url())) as Arc<dyn Backend>);
        let suite = tokio::spawn(conformance::run(QuorumBackend::new(nodes).expect("three nodes")));
        match suite.await {
            Ok(()) => return,
            Err(error) if attempt == 10 => std::panic::resume_unwind(error.into_panic()),
            Err(_) => {}
        }
    }
}
