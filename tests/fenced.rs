//! What the pages say of stores that keep a fencing token, and of tokens that fell.

use lock_core::LockManager;
use lock_tests::{Cluster, RedisServer, Reply, SOON, text::compiled_blocks};

use crate::patient;

const GUARANTEES: &str = include_str!("../docs/guarantees.md");

/// A hash in a Redis that is claimed and written by the scripts of the page.
struct Store<'a> {
    server: &'a RedisServer,
    scripts: [&'static str; 2],
}

impl<'a> Store<'a> {
    /// With two units.
    async fn new(server: &'a RedisServer) -> Self {
        let mut scripts = GUARANTEES.split("```lua\n").skip(1).filter_map(|rest| rest.split("```").next());
        let found = [scripts.next().expect("it claims"), scripts.next().expect("it writes")];
        assert_eq!(scripts.next(), None);
        server.call(&["DEL", "goods"]).await;
        server.call(&["HSET", "goods", "stock", "2"]).await;
        Self { server, scripts: found }
    }

    /// The stock and the number of the claim; `None` if a later holder has claimed.
    async fn claim_and_read(&self, fence: u64) -> Option<(i64, i64)> {
        let reply = self.server.call(&["EVAL", self.scripts[0], "1", "goods", &fence.to_string()]).await;
        match reply.items() {
            [stock, Reply::Integer(claim)] => Some((stock.text()?.parse().expect("a number"), *claim)),
            _ => {
                assert!(reply.is_nil(), "{reply:?}");
                None
            }
        }
    }

    /// Sells one of what was read; 1 if that was written.
    async fn sell(&self, fence: u64, (stock, claim): (i64, i64)) -> i64 {
        let [fence, claim, left] = [fence.to_string(), claim.to_string(), (stock - 1).to_string()];
        let reply = self.server.call(&["EVAL", self.scripts[1], "1", "goods", &fence, &claim, &left]).await;
        reply.integer().unwrap_or_else(|| panic!("{reply:?}"))
    }

    async fn left(&self) -> Option<String> {
        self.server.call(&["HGET", "goods", "stock"]).await.text()
    }
}

#[tokio::test]
async fn a_store_in_redis_that_is_claimed_first_loses_no_update() {
    let server = RedisServer::start().await;
    // As large as tokens are, and one apart.
    let [first, second] = [1_795_431_203_976_000, 1_795_431_203_976_001];

    let store = Store::new(&server).await;
    let (seen, seen_by_second) =
        (store.claim_and_read(first).await.unwrap(), store.claim_and_read(second).await.unwrap());
    assert_eq!([store.sell(first, seen).await, store.sell(second, seen_by_second).await], [0, 1]);
    assert_eq!(store.claim_and_read(first).await, None);
    assert_eq!(store.left().await.as_deref(), Some("1"));
    // One holder sells twice, by a claim for each.
    let seen = store.claim_and_read(second).await.unwrap();
    assert_eq!([store.sell(second, seen).await, store.sell(second, seen).await], [1, 0]);
    assert_eq!(store.left().await.as_deref(), Some("0"));

    // Two tasks with one token.
    let store = Store::new(&server).await;
    let (one, other) = (store.claim_and_read(first).await.unwrap(), store.claim_and_read(first).await.unwrap());
    assert_eq!([store.sell(first, one).await, store.sell(first, other).await], [0, 1]);
    assert_eq!(store.left().await.as_deref(), Some("1"));
}

#[test]
fn the_function_of_the_guarantees_is_compiled_in_an_example() {
    let example = include_str!("../examples/axum-shop/src/tests/sale.rs");
    assert_eq!(compiled_blocks(GUARANTEES, &[example]), 1);
}

/// A day ahead of the tokens, in the unit of a token.
const AHEAD: u64 = 24 * 3600 * 1_000_000;

async fn fence(manager: &LockManager, key: &str) -> u64 {
    let guard = manager.lock(key).wait(SOON).await.expect("it is free");
    let fence = guard.fencing_token().get();
    guard.release().await.expect("it is held");
    fence
}

/// Raises every counter of a server above a number, as the page for operators says; returns how many there are.
async fn raise(server: &RedisServer, number: u64) -> usize {
    let counters = server.keys("{*}lock-core:fence").await;
    let id = format!("{}-0", number / 1000 + 60_000);
    for counter in &counters {
        let reply = server.call(&["XADD", counter, "MAXLEN", "0", &id, "", ""]).await;
        assert_eq!(reply.text(), Some(id.clone()), "{counter}");
    }
    counters.len()
}

#[tokio::test]
async fn leases_that_begin_after_the_counter_was_raised_have_larger_fencing_tokens() {
    let server = RedisServer::start().await;
    let (one, other) = (
        patient::connect(server.url()).await.expect("connects"),
        patient::connect(server.url()).await.expect("connects"),
    );
    let kept = fence(&one, "goods:7").await + AHEAD;
    assert_eq!(raise(&server, kept).await, 1);
    let mut last = kept;
    for manager in [&one, &other, &one] {
        let next = fence(manager, "goods:7").await;
        assert!(next > last, "{next} follows {last}");
        last = next;
    }
    let reader = one.lock("goods:7").shared().await.expect("free");
    assert!(reader.fencing_token().get() > last);
}

#[tokio::test]
async fn a_quorum_counts_on_from_what_a_majority_was_raised_to() {
    let servers = [RedisServer::start().await, RedisServer::start().await, RedisServer::start().await];
    let builder = patient::builder().quorum(servers.iter().map(RedisServer::url));
    let manager = builder.connect().await.expect("all answer");
    let kept = fence(&manager, "goods:7").await + AHEAD;
    for server in &servers[1..] {
        assert_eq!(raise(server, kept).await, 1);
    }
    for _ in 0..5 {
        let next = fence(&manager, "goods:7").await;
        assert!(next > kept, "{next} follows {kept}");
    }
}

#[tokio::test]
async fn a_cluster_counts_on_from_what_the_counters_of_its_slots_were_raised_to() {
    let cluster = Cluster::builder().replicas(0).start().await;
    let manager = patient::connect(cluster.url()).await.expect("connects");
    let keys = ["goods:7", "goods:8", "goods:9"];
    let mut kept = 0;
    for key in keys {
        kept = fence(&manager, key).await + AHEAD;
    }
    let mut raised = 0;
    for node in cluster.nodes() {
        raised += raise(node, kept).await;
    }
    assert_eq!(raised, keys.len(), "one for each slot");
    for key in keys {
        let next = fence(&manager, key).await;
        assert!(next > kept, "{next} follows {kept}");
    }
}
