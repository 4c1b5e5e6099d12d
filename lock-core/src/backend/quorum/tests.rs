//! A quorum of stores in the process, in virtual time, some of which fail.

use std::{
    io,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use super::*;
use crate::{
    ErrorKind, LockManager,
    backend::{Acquire, MemoryBackend, Outcome, Release, Renew},
    token::Token,
};

/// A node that can fail in several ways.
#[derive(Clone, Debug, Default)]
struct Node {
    store: Arc<Mutex<MemoryBackend>>,
    /// It executes nothing, and says so after a limit.
    silent: Arc<AtomicBool>,
    /// It executes nothing until it goes on, and then everything that it was asked; also what nobody waits for.
    stopped: Arc<Mutex<Option<Vec<Stopped>>>>,
    /// How long its answers take, in ms.
    slow: Arc<AtomicU64>,
    /// What it says it is, once it was asked for anything.
    identity: Arc<Mutex<Option<Arc<str>>>>,
    asked: Arc<AtomicBool>,
    /// Its connections break as soon as they have carried an answer.
    hangs_up: Arc<AtomicBool>,
    epoch: Arc<AtomicU64>,
}

type Stopped = (Batch, oneshot::Sender<Reply<Answer>>);

const LIMIT: Duration = Duration::from_millis(300);
const TTL: Duration = Duration::from_secs(2);

impl Backend for Node {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        if !self.silent.load(Ordering::Relaxed) {
            self.asked.store(true, Ordering::Relaxed);
            if let Some(stopped) = &mut *self.stopped.lock().unwrap() {
                let (sender, reply) = oneshot::channel();
                stopped.push((batch, sender));
                return Reply::new(async {
                    let silence = |_| BackendError::new(ErrorKind::Backend, "silence");
                    tokio::time::timeout(LIMIT, reply).await.map_err(silence)?.unwrap().await
                });
            }
            let reply = self.store().call(batch);
            let way = Duration::from_millis(self.slow.load(Ordering::Relaxed));
            let by = self.identity.lock().unwrap().as_deref().map(|by| Arc::new(by.to_owned()));
            let by = by.filter(|_| self.hangs_up.load(Ordering::Relaxed));
            return Reply::new(async move {
                tokio::time::sleep(way).await;
                reply.await.map(|answer| Answer { by, ..answer })
            });
        }
        Reply::new(async {
            tokio::time::sleep(LIMIT).await;
            Err(BackendError::new(ErrorKind::Backend, "silence"))
        })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        if self.silent.load(Ordering::Relaxed) {
            return Reply::ready(Err(BackendError::new(ErrorKind::Backend, "silence").did_not_happen()));
        }
        self.store().list(prefix)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.store().clock()
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    fn identity(&self) -> Option<Arc<str>> {
        let is_connected = self.asked.load(Ordering::Relaxed) && !self.hangs_up.load(Ordering::Relaxed);
        self.identity.lock().unwrap().clone().filter(|_| is_connected)
    }

    fn upkeep(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.store().upkeep(calls)
    }
}

impl Node {
    fn store(&self) -> MemoryBackend {
        self.store.lock().unwrap().clone()
    }

    fn stop(&self) {
        *self.stopped.lock().unwrap() = Some(Vec::new());
    }

    fn go_on(&self) {
        for (batch, sender) in self.stopped.lock().unwrap().take().unwrap() {
            let _ = sender.send(self.store().call(batch));
        }
    }

    fn is_server(&self, identity: &str) {
        *self.identity.lock().unwrap() = Some(identity.into());
    }

    fn restart_empty(&self) {
        *self.store.lock().unwrap() = MemoryBackend::new();
    }

    fn is_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    async fn has(&self, prefix: &str) -> bool {
        !self.store().list(prefix.to_owned()).await.unwrap().is_empty()
    }
}

fn nodes<const N: usize>() -> [Node; N] {
    std::array::from_fn(|_| Node::default())
}

fn quorum(nodes: &[Node]) -> QuorumBackend {
    QuorumBackend::new(nodes.iter().map(|node| Arc::new(node.clone()) as Arc<dyn Backend>)).unwrap()
}

fn manager(nodes: &[Node]) -> LockManager {
    LockManager::builder().backend(quorum(nodes)).ttl(TTL).build().unwrap()
}

async fn a_while() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

#[cfg(feature = "test-util")]
#[tokio::test(start_paused = true)]
async fn quorums_of_one_to_five_conform() {
    crate::conformance::run(quorum(&nodes::<1>())).await;
    crate::conformance::run(quorum(&nodes::<3>())).await;
    crate::conformance::run(quorum(&nodes::<4>())).await;
    crate::conformance::run(quorum(&nodes::<5>())).await;
}

#[tokio::test(start_paused = true)]
async fn fencing_tokens_rise_whichever_majority_a_holder_has() {
    let nodes = nodes::<3>();
    let managers = [manager(&nodes), manager(&nodes)];
    let mut last = None;
    for round in 0..60 {
        for (index, node) in nodes.iter().enumerate() {
            node.is_silent(round % 4 == index);
        }
        let guard = managers[round % 2].lock("k").await.unwrap();
        assert!(last < Some(guard.fencing_token()), "round {round}");
        last = Some(guard.fencing_token());
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_did_not_hear_a_release_is_told_again_until_it_has() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").ttl(TTL * 10).await.unwrap();
    assert!(nodes[2].has("k").await);
    nodes[2].is_silent(true);
    guard.release().await.unwrap();
    tokio::time::sleep(TTL).await;
    assert!(nodes[2].has("k").await && !nodes[0].has("k").await, "it has heard nothing");
    nodes[2].is_silent(false);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!nodes[2].has("k").await, "now it has");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_tells_its_nodes_first() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").ttl(TTL * 10).await.unwrap();
    a_while().await;
    nodes[0].is_silent(true);
    drop((guard, manager));
    tokio::time::sleep(LIMIT * 3).await;
    nodes[0].is_silent(false);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(!nodes[0].has("k").await);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "then its task ends");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_dropped_does_not_wait_for_ever_for_a_node() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").await.unwrap();
    nodes[0].is_silent(true);
    drop((guard, manager));
    tokio::time::sleep(TTL + LIMIT * 4).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_put_back_where_it_is_missing_by_its_next_renewal() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    nodes[1].is_silent(true);
    let guard = manager.lock("k").await.unwrap();
    nodes[1].is_silent(false);
    assert!(!nodes[1].has("k").await);
    tokio::time::sleep(TTL / 2).await;
    assert!(nodes[1].has("k").await, "it was renewed");
    guard.release().await.unwrap();
    a_while().await;
    assert!(!nodes[1].has("k").await, "and is released there, too");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_slower_than_the_others_counts_all_the_same() {
    let nodes = nodes::<3>();
    nodes[2].slow.store(30, Ordering::Relaxed);
    let (manager, other) = (manager(&nodes), manager(&nodes));
    let guard = manager.lock("k").await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("k").wait(TTL * 20).await.map(|guard| guard.fencing_token()) });
    tokio::time::sleep(TTL * 2).await;
    nodes[0].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_held(), "two of three have it");
    nodes[0].is_silent(false);
    tokio::time::sleep(TTL * 3).await;
    let first = guard.fencing_token();
    guard.release().await.unwrap();
    let released = tokio::time::Instant::now();
    assert!(waiting.await.unwrap().unwrap() > first);
    assert!(released.elapsed() < Duration::from_millis(200), "{:?}", released.elapsed());
}

/// Another node fails when so many renewals have been sent.
async fn a_lease_whose_acquire_a_node_executed_late_outlives(renewals: u32, fail: fn(&Node)) {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    nodes[2].stop();
    let begun = tokio::time::Instant::now();
    let guard = manager.lock("k").await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(10), "a majority is there");
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert!(!nodes[2].has("k").await);
    nodes[2].go_on();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(nodes[2].has("k").await, "now all have it");
    tokio::time::sleep(TTL / 3 * renewals).await;
    fail(&nodes[0]);
    tokio::time::sleep(TTL * 4).await;
    assert!(guard.is_held(), "two of three had it all the time, {renewals} renewals before the third failed");
    guard.release().await.unwrap();
    a_while().await;
    assert!(!nodes[1].has("k").await && !nodes[2].has("k").await);
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_acquire_a_node_executed_late_outlives_any_other_node() {
    for renewals in 0..3 {
        a_lease_whose_acquire_a_node_executed_late_outlives(renewals, |node| node.is_silent(true)).await;
        a_lease_whose_acquire_a_node_executed_late_outlives(renewals, Node::restart_empty).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_costs_a_few_milliseconds_and_the_places_for_its_limit() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes);
    let ledger = Arc::clone(&quorum.quorum);
    let manager = LockManager::builder().backend(quorum).build().unwrap();
    manager.lock("k").await.unwrap().release().await.unwrap();
    nodes[0].stop();
    for _ in 0..10 {
        let begun = tokio::time::Instant::now();
        let guard = manager.lock("k").await.unwrap();
        assert!(begun.elapsed() <= Duration::from_millis(6), "{:?}", begun.elapsed());
        guard.release().await.unwrap();
    }
    tokio::time::sleep(LIMIT).await;
    assert_eq!(ledger.ledger().queue_node(), 1, "now the next one keeps the places");
    nodes[0].go_on();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_puts_a_lease_back_answers_while_it_can_be_tried_again() {
    let nodes = nodes::<3>();
    nodes[2].is_silent(true);
    let quorum = quorum(&nodes).quorum;
    let (key, token) = (LockKey::new("k").unwrap(), Token::from_random(7));
    quorum.clone().call(Batch::from([Operation::Acquire(Acquire::new(key.clone(), token, TTL))])).await.unwrap();
    nodes[2].is_silent(false);
    nodes[2].stop();
    let mut renew = Renew::new(key, token, TTL);
    renew.within = Duration::from_millis(40);
    let (within, begun) = (renew.within, tokio::time::Instant::now());
    let request = quorum.ask(2, 0, &Batch::from([Operation::Renew(renew)]), None);
    assert!(matches!(request.asked.batch[0], Operation::Acquire(_)), "it is put back");
    assert!(request.await.is_err());
    assert_eq!(begun.elapsed(), within);
}

#[tokio::test]
async fn an_order_that_one_node_broke_is_broken() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes);
    let mut epochs = HashSet::from([quorum.epoch()]);
    for node in &nodes {
        node.epoch.fetch_add(1, Ordering::Relaxed);
        assert!(epochs.insert(quorum.epoch()), "it was connected to anew");
    }
}

/// Three nodes of which the first two are one server.
fn nodes_of_two_servers() -> [Node; 3] {
    let [one, two] = nodes::<2>();
    one.is_server("run 1");
    two.is_server("run 2");
    let again = Node { store: Arc::clone(&one.store), ..Node::default() };
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
    let told = is_done.recv_timeout(Duration::from_secs(10)).expect("the writer does not wait for itself");
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

#[tokio::test(start_paused = true)]
async fn a_lease_is_lost_with_a_majority_and_not_with_less() {
    let nodes = nodes::<5>();
    let manager = manager(&nodes);
    let guard = manager.lock("k").await.unwrap();
    nodes[0].is_silent(true);
    nodes[4].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(guard.is_held());
    nodes[2].is_silent(true);
    tokio::time::sleep(TTL * 3).await;
    assert!(!guard.is_held());
    let error = manager.lock("k").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("3 of 5 nodes failed, and a lock needs 3: silence"), "{error}");
    let error = manager.force_release_all("").await.unwrap_err();
    assert!(error.to_string().contains("3 of 5 nodes failed"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_was_released_is_not_written_back() {
    let nodes = nodes::<3>();
    let quorum = quorum(&nodes).quorum;
    let (key, token) = (LockKey::new("k").unwrap(), Token::from_random(7));
    let acquire = Batch::from([Operation::Acquire(Acquire::new(key.clone(), token, TTL))]);
    let release = Batch::from([Operation::Release(Release::new(key, token))]);
    nodes[2].is_silent(true);
    let _asking = Asking::begin(&quorum, &acquire);
    let mut ballot = Ballot::new(acquire.clone(), 3, 0);
    for node in 0..3 {
        let request = quorum.ask(node, 0, &acquire, None);
        ballot.vote(node, request.await);
    }
    assert_eq!(ballot.standing(), Standing::Open, "two have it, and do not count alike");
    quorum.clone().call(release).await.unwrap();
    assert!(quorum.write_backs(&mut ballot, 0).is_empty(), "nobody would release it");
    assert_eq!(ballot.standing(), Standing::Sure, "but it is no lease");
    assert!(!matches!(ballot.answer().map(Answer::single), Ok(Ok(Outcome::Held { .. }))));
    assert!(!nodes[0].has("k").await && !nodes[1].has("k").await);
}

#[tokio::test(start_paused = true)]
async fn keys_are_listed_where_a_majority_has_them_and_released_by_force() {
    let nodes = nodes::<3>();
    let manager = manager(&nodes);
    let one = manager.lock("a:1").await.unwrap();
    let stray = manager_of_one(&nodes[1]).lock("a:2").await.unwrap();
    assert!(!manager.inspect("a:2").await.unwrap().is_locked(), "one node is no majority");
    assert_eq!(manager.force_release_all("a:").await.unwrap(), 1);
    assert!(!one.is_held() && stray.is_held());
    let one = manager.lock("a:1").await.unwrap();
    nodes[0].is_silent(true);
    assert!(manager.inspect("a:1").await.unwrap().is_locked());
    assert!(manager.inspect("a:2").await.unwrap().is_locked(), "with the one that is silent it may be");
    let error = manager.force_release("a:1").await.unwrap_err();
    assert!(error.to_string().contains("1 of 3 nodes failed"), "it may have it, and be told later: {error}");
    drop(one);
}

fn manager_of_one(node: &Node) -> LockManager {
    LockManager::builder().backend(node.clone()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_handed_over_once() {
    let nodes = nodes::<3>();
    let (from, to) = (manager(&nodes), manager(&nodes));
    for is_silent in [false, true] {
        let guard = from.lock("k").await.unwrap();
        let first = guard.fencing_token();
        let handover = guard.hand_over().unwrap();
        nodes[2].is_silent(is_silent);
        let taken = to.take_up(handover.clone()).await.unwrap();
        assert!(taken.fencing_token() > first);
        nodes[2].is_silent(false);
        // The node that did not hear of the first may give it to the second, who is told that this is not enough.
        let again = from.take_up(handover).await.unwrap_err().kind();
        assert_eq!(again, if is_silent { ErrorKind::Backend } else { ErrorKind::NotHeld });
        assert!(taken.is_held());
        taken.release().await.unwrap();
        a_while().await;
    }
}
