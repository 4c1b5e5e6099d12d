//! Nodes that are one server under two names, which has one vote.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;

use super::nodes::{Node, TTL, a_while, manager, nodes, quorum};
use crate::{
    ErrorKind, LockManager,
    backend::{Backend, Batch, Operation, QuorumBackend, quorum::call::PING},
    key::LockKey,
};

/// Three nodes of which the first two are one server.
fn nodes_of_two_servers() -> [Node; 3] {
    let [one, two] = nodes::<2>();
    one.is_server("run 1");
    two.is_server("run 2");
    let again = one.again();
    again.is_server("run 1");
    [one, again, two]
}

#[tokio::test(start_paused = true)]
async fn a_server_under_two_names_has_one_vote() {
    let nodes = nodes_of_two_servers();
    nodes[2].is_silent(true);
    let manager = manager(&nodes);
    let error = manager.lock("k").await.unwrap_err();
    assert!(error.to_string().contains("node 2 is the same server as node 1 under another name"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Backend, "the other one may come back");
    a_while().await;
    assert!(!nodes[0].has("k").await, "what it got is released");
    assert!(manager.force_release_all("").await.unwrap_err().to_string().contains("node 2 is the same"));
    nodes[2].is_silent(false);
    let guard = manager.lock("k").await.expect("two servers");
    tokio::time::sleep(TTL * 2).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    a_while().await;
    assert!(!nodes[0].has("k").await && !nodes[2].has("k").await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_counts_for_the_server_that_gave_it_though_nobody_is_connected_any_more() {
    let nodes = nodes_of_two_servers();
    nodes[2].is_silent(true);
    for node in &nodes {
        node.hangs_up.store(true, Ordering::Relaxed);
    }
    let error = manager(&nodes).lock("k").await.expect_err("one server of two");
    assert!(error.to_string().contains("node 2 is the same server as node 1"), "{error}");
}

static TOLD_OF: OnceLock<QuorumBackend> = OnceLock::new();
static TOLD: AtomicU64 = AtomicU64::new(0);

/// A log writer that asks the store for something, as it could not under a lock of the store's.
struct Writer;

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if String::from_utf8_lossy(bytes).contains("has no vote") {
            TOLD.fetch_add(1, Ordering::Relaxed);
            let inspect = Operation::Inspect { key: LockKey::new("mine").unwrap() };
            drop(TOLD_OF.get().unwrap().call(Batch::from([inspect])).now_or_never());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nodes_without_a_vote_are_told_of_once_and_without_a_lock() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        // With one subscriber alone in the process, the first thread that logs an event decides for all of them whether it is of
        // interest: that may be a thread of another test, which has no subscriber, and this one would never be told.
        let _other = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish());
        let subscriber = tracing_subscriber::fmt().with_writer(|| Writer).with_ansi(false).finish();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tracing::subscriber::with_default(subscriber, || {
            runtime.block_on(async {
                let nodes = nodes::<3>();
                let quorum = TOLD_OF.get_or_init(|| quorum(&nodes));
                let inspect = || Batch::from([Operation::Inspect { key: LockKey::new("k").unwrap() }]);
                quorum.call(inspect()).await.expect("three servers");
                nodes[0].is_server("run 1");
                nodes[1].is_server("run 1");
                quorum.call(inspect()).await.expect("two servers");
                quorum.call(inspect()).await.expect("two servers");
            });
        });
        done.send(TOLD.load(Ordering::Relaxed)).unwrap();
    });
    let told = is_done.recv_timeout(Duration::from_secs(60)).expect("the writer does not wait for itself");
    assert_eq!(told, 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_under_two_names_is_refused_by_connect() {
    let nodes = nodes_of_two_servers();
    nodes[1].slow.store(50, Ordering::Relaxed);
    let connect = |nodes: &[Node]| LockManager::builder().backend(quorum(nodes)).connect();
    let error = connect(&nodes).await.unwrap_err();
    let cause = error.cause().expect("the details");
    assert_eq!(cause.kind(), ErrorKind::Unsupported);
    assert!(cause.to_string().contains("node 2 is the same server as node 1"), "{cause}");
    nodes[1].is_server("run 3");
    nodes[1].slow.store(0, Ordering::Relaxed);
    nodes[2].is_silent(true);
    let begun = tokio::time::Instant::now();
    connect(&nodes).await.expect("a majority answers");
    assert!(begun.elapsed() <= PING, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_under_two_names_that_forgets_makes_no_second_holder() {
    let nodes = nodes_of_two_servers();
    let (one, other) = (manager(&nodes), manager(&nodes));
    let guard = one.lock("k").await.unwrap();
    nodes[0].restart_empty();
    assert!(other.lock("k").try_acquire().await.unwrap().is_none(), "one server of two");
    assert!(guard.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_comes_to_lead_to_another_nodes_server_loses_its_vote_until_it_leads_back() {
    let [one, two, three] = nodes::<3>();
    for (node, server) in [(&one, "run 1"), (&two, "run 2"), (&three, "run 3")] {
        node.is_server(server);
    }
    let (first, second) = (one.store(), two.store());
    let nodes = [one, two, three];
    let manager = manager(&nodes);
    let guard = manager.lock("k").await.unwrap();
    *nodes[1].store.lock().unwrap() = first;
    nodes[1].is_server("run 1");
    nodes[2].is_silent(true);
    tokio::time::sleep(TTL * 2).await;
    assert!(!guard.is_held(), "one server of three");
    assert_eq!(manager.lock("k").await.unwrap_err().kind(), ErrorKind::Backend);
    *nodes[1].store.lock().unwrap() = second;
    nodes[1].is_server("run 2");
    drop(guard);
    manager.lock("k").await.expect("two servers").release().await.unwrap();
}
