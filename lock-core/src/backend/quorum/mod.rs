//! Several independent nodes as one store: a lease is held where a majority of them says so.

mod aim;
mod ballot;
mod ledger;
mod request;
#[cfg(test)]
mod tests;
mod upkeep;
mod voters;

use std::{
    collections::{BTreeMap, HashSet},
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::Notify;

use self::{
    ballot::{Ballot, Standing, WriteBack, majority, too_few},
    ledger::{Asked, Ledger, Way},
    request::{Asking, Request},
    voters::Voters,
};
use super::{Answer, Backend, BackendError, Batch, Calls, Operation, Reply};
use crate::{
    clock::Clock,
    error::{BuildError, ErrorKind},
    health::NodeHealth,
    key::LockKey,
    mutants::Mutant,
};

/// A store of leases in several independent nodes, for which no single one has to live: Redlock, with fencing tokens.
///
/// A lease is held when a majority of the nodes has it, so it survives that the others fail; and it can be taken while a
/// majority answers. All are asked at once, and one that is slower than usual is not waited for. Fencing tokens keep rising
/// from holder to holder, whichever majority each had.
///
/// The nodes must not share anything: two databases of one server are one node, and so are a primary and its replica.
/// Nodes with the same [`identity`](Backend::identity) have one vote, and a manager does not connect to them.
/// They may be of any kind: `RedisBackend`s as a rule, which
/// [`LockManagerBuilder::quorum`](crate::LockManagerBuilder::quorum) makes of URLs; every process must name the same
/// ones, best in the same order. Three survive the loss of one, five of two; an even number survives no more than one less
/// would.
///
/// What it cannot do: a node that comes back *without its data* has forgotten what it promised, and may give it again. If
/// that makes a majority together with nodes that the first holder did not reach, there are two holders; and the second
/// one's fencing token is larger only if the nodes' clocks agree better than the node was away for. Let nodes write their
/// data (`appendfsync always`), or keep one that restarted empty out for as long as the longest ttl.
///
/// The set of nodes must not change while leases are held: majorities of the old and of the new one need not share a
/// node. Stop everybody first, or wait for the longest ttl. Clocks of the nodes that differ by more than 10 ms cost a second
/// round trip for an acquire.
///
/// A manager has a `QuorumBackend` of its own; nodes may be shared. When it is dropped or shut down while a node does not
/// answer, its task goes on telling that node what was released, until it has answered or what it has must have expired.
///
/// # Examples
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use lock_core::{LockManager, backend::{Backend, MemoryBackend, QuorumBackend}};
///
/// let nodes = (0..3).map(|_| Arc::new(MemoryBackend::new()) as Arc<dyn Backend>);
/// let manager = LockManager::builder().backend(QuorumBackend::new(nodes)?).build()?;
/// let guard = manager.lock("goods:1").await?;
/// # guard.release().await?; Ok(()) }
/// ```
pub struct QuorumBackend {
    quorum: Arc<Quorum>,
}

struct Quorum {
    nodes: Vec<Arc<dyn Backend>>,
    clock: Arc<dyn Clock>,
    ledger: Mutex<Ledger>,
    /// Which of the nodes are servers of their own.
    voters: Mutex<Voters>,
    /// Held while nodes are asked: what is entered first leaves first.
    order: Mutex<()>,
    /// Tells the upkeep that a node has to be told something.
    owing: Notify,
}

impl QuorumBackend {
    /// Makes the store of these nodes. One alone is as good as itself.
    ///
    /// # Errors
    /// [`BuildError`] for no node at all, and for two: they need each other, so that either one's failure stops both.
    pub fn new(nodes: impl IntoIterator<Item = Arc<dyn Backend>>) -> Result<Self, BuildError> {
        let nodes: Vec<_> = nodes.into_iter().collect();
        let Some(first) = nodes.first() else {
            return Err(BuildError::new("a quorum of no nodes holds nothing; name three or five independent ones"));
        };
        if nodes.len() == 2 {
            return Err(BuildError::new(
                "a quorum of two nodes needs both, and fails when either does; name one, or three",
            ));
        }
        let clock = first.clock();
        let ledger = Mutex::new(Ledger::new(nodes.len()));
        let voters = Mutex::new(Voters::new(nodes.len()));
        let quorum = Quorum { nodes, clock, ledger, voters, order: Mutex::default(), owing: Notify::new() };
        Ok(Self { quorum: Arc::new(quorum) })
    }
}

impl Backend for QuorumBackend {
    fn call(&self, batch: Batch) -> Reply<Answer> {
        let quorum = Arc::clone(&self.quorum);
        Reply::new(async move { quorum.call(batch).await })
    }

    fn list(&self, prefix: String) -> Reply<Vec<LockKey>> {
        let quorum = Arc::clone(&self.quorum);
        Reply::new(async move { quorum.list(prefix).await })
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.quorum.clock)
    }

    /// That of the nodes together.
    fn epoch(&self) -> u64 {
        self.quorum.nodes.iter().fold(0, |sum, node| sum.wrapping_add(node.epoch()))
    }

    fn time_limit(&self) -> Duration {
        self.quorum.nodes.iter().map(|node| node.time_limit()).max().unwrap_or(Duration::MAX)
    }

    /// Of all nodes. One that is another one's server has no vote, and counts as down.
    fn health(&self) -> Vec<NodeHealth> {
        let of_node = |(number, node): (usize, &Arc<dyn Backend>)| {
            let same = self.quorum.same_server(number, node.identity().as_deref());
            node.health().into_iter().map(move |health| match &same {
                Some(error) => health.without_vote(error.to_string()),
                None => health,
            })
        };
        self.quorum.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    fn is_settled(&self) -> bool {
        self.quorum.ledger().is_settled()
    }

    fn upkeep(&self, calls: Calls) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let quorum = Arc::clone(&self.quorum);
        Box::pin(async move { quorum.keep(calls).await })
    }
}

/// Where a batch goes on with a key that it has acquired before.
fn end_of_part(batch: &Batch) -> Option<usize> {
    if batch.len() < 2 {
        return None;
    }
    let mut acquired = HashSet::new();
    batch.iter().position(|operation| {
        let goes_on = acquired.contains(operation.key());
        if let Operation::Acquire(acquire) = operation {
            acquired.insert(&acquire.key);
        }
        goes_on
    })
}

fn same_server(node: usize, twin: usize) -> BackendError {
    let (node, twin) = (node + 1, twin + 1);
    let message = format!("node {node} is the same server as node {twin} under another name; name independent servers");
    BackendError::new(ErrorKind::Unsupported, message)
}

async fn answer_within(limit: impl Future<Output = ()>, reply: Reply<Answer>) -> Result<Answer, BackendError> {
    tokio::select! {
        biased;
        answer = reply => answer,
        () = limit => Err(BackendError::new(ErrorKind::Backend, "a node did not take a lease back in time")),
    }
}

fn released() -> BackendError {
    BackendError::new(ErrorKind::Backend, "the token was released while the nodes were asked")
}

impl Quorum {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the request of a batch to one node.
    fn ask(self: &Arc<Self>, node: usize, queue_node: usize, batch: &Batch, items: Option<Vec<usize>>) -> Request {
        let asked = self.ledger().ask(node, queue_node, batch, self.clock.now(), self.way_to(node));
        self.request(asked, items)
    }

    /// Makes the request that asks a node for the leases that it is to be asked for.
    fn look_at(self: &Arc<Self>, node: usize, most: usize) -> Request {
        let asked = self.ledger().look(node, self.clock.now(), self.way_to(node), most);
        self.request(asked, None)
    }

    fn request(self: &Arc<Self>, asked: Asked, items: Option<Vec<usize>>) -> Request {
        let node = &self.nodes[asked.node];
        let same = node.identity().and_then(|server| self.same_server(asked.node, Some(&server)));
        let reply = match same {
            Some(error) => Reply::ready(Err(error.did_not_happen())),
            None => node.call(asked.batch.clone()),
        };
        let reply = match asked.within {
            Duration::MAX => reply,
            within => Reply::new(answer_within(self.clock.sleep(within), reply)),
        };
        Request { quorum: Arc::downgrade(self), asked, items, reply, answered: false }
    }

    /// The error of a node that is another one's server, which has one vote.
    fn same_server(&self, node: usize, server: Option<&str>) -> Option<BackendError> {
        let twin = self.voters().sees(node, server)?;
        Some(same_server(node, twin))
    }

    fn voters(&self) -> MutexGuard<'_, Voters> {
        self.voters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says in the log which nodes have lost their votes. No lock is held meanwhile: a log writer may use this store.
    fn tell_of_twins(&self) {
        let news = self.voters().take_news();
        for (node, twin) in news {
            tracing::warn!(error = %same_server(node, twin), "a node of the quorum has no vote");
        }
    }

    /// Asks for a sign of life: of a majority, and of the others if they give one soon, so that it shows which of them
    /// have no vote.
    async fn ping(self: &Arc<Self>) -> Result<Answer, BackendError> {
        let answer = self.decide(Batch::new()).await?;
        let twins = self.voters().any_twins();
        match twins {
            Some((node, twin)) => Err(same_server(node, twin).did_not_happen()),
            None => Ok(answer),
        }
    }

    fn way_to(&self, node: usize) -> Way {
        let backend = &self.nodes[node];
        Way { epoch: backend.epoch(), open: backend.is_reachable() }
    }

    /// Executes a batch, in parts where it goes on with a key that it acquires: only what is decided can be gone on with.
    async fn call(self: Arc<Self>, mut batch: Batch) -> Result<Answer, BackendError> {
        if batch.is_empty() {
            return self.ping().await;
        }
        let Some(end) = end_of_part(&batch) else { return self.decide(batch).await };
        let mut whole = Answer::new([]);
        let mut end = Some(end);
        while !batch.is_empty() {
            let rest = end.map_or_else(Batch::new, |end| batch.split_off(end));
            let items = batch.len();
            let part = std::mem::replace(&mut batch, rest);
            match self.decide(part).await {
                Ok(answer) => whole.append(answer),
                Err(error) => whole.outcomes.extend((0..items).map(|_| Err(error.clone()))),
            }
            end = end_of_part(&batch);
        }
        whole.out_of_order = true;
        Ok(whole)
    }

    /// Asks all nodes at once, and answers as soon as they have decided: on a majority, and when those that are not
    /// slower than others have been heard.
    async fn decide(self: &Arc<Self>, batch: Batch) -> Result<Answer, BackendError> {
        let _asking = Asking::begin(self, &batch);
        let queue_node = self.ledger().queue_node();
        let mut ballot = Ballot::new(batch, self.nodes.len(), queue_node);
        let mut requests = Vec::new();
        let mut begun = false;
        let mut patience = None;
        poll_fn(|cx| {
            ballot.count(&mut requests, cx);
            loop {
                // Asked and sent in one go, so that no release comes between.
                let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                let mut further = match std::mem::replace(&mut begun, true) {
                    false => (0..self.nodes.len())
                        .map(|node| self.ask(node, queue_node, ballot.operations(), None))
                        .collect(),
                    true => self.write_backs(&mut ballot, queue_node),
                };
                let done = further.is_empty();
                ballot.count(&mut further, cx);
                drop(order);
                requests.append(&mut further);
                if done {
                    break;
                }
            }
            self.tell_of_twins();
            for request in &requests {
                let node = request.asked.node;
                ballot.has_left(node, request.asked.has_left(self.nodes[node].epoch()));
            }
            match ballot.standing() {
                Standing::Open => Poll::Pending,
                Standing::Sure => Poll::Ready(ballot.answer()),
                Standing::Likely => {
                    let waiting = requests.iter().map(|request| request.asked.node);
                    let timer = patience.get_or_insert_with(|| {
                        let is_ping = ballot.operations().is_empty();
                        self.clock.sleep(if is_ping { PING } else { self.ledger().patience(waiting) })
                    });
                    timer.as_mut().poll(cx).map(|()| ballot.answer())
                }
            }
        })
        .await
    }

    /// Asks nodes to count further, so that a majority does.
    fn write_backs(self: &Arc<Self>, ballot: &mut Ballot, queue_node: usize) -> Vec<Request> {
        let mut of_node: BTreeMap<usize, (Batch, Vec<usize>)> = BTreeMap::new();
        for WriteBack { node, item, operation } in ballot.write_backs() {
            if self.ledger().is_over(&operation) && !Mutant::WriteBackAfterRelease.is_on() {
                ballot.vote_on(node, [item], Err(released()));
                continue;
            }
            let (batch, items) = of_node.entry(node).or_default();
            batch.push(operation);
            items.push(item);
        }
        of_node.into_iter().map(|(node, (batch, items))| self.ask(node, queue_node, &batch, Some(items))).collect()
    }

    /// The keys that a majority may have.
    async fn list(self: Arc<Self>, prefix: String) -> Result<Vec<LockKey>, BackendError> {
        let lists = join_all(self.nodes.iter().map(|node| node.list(prefix.clone()))).await;
        let most = majority(self.nodes.len());
        let mut found = Vec::new();
        let mut failed = Vec::new();
        for (node, list) in lists.into_iter().enumerate() {
            match self.same_server(node, self.nodes[node].identity().as_deref()).map_or(list, Err) {
                Ok(keys) => found.extend(keys),
                Err(error) => failed.push(error),
            }
        }
        self.tell_of_twins();
        if failed.len() > self.nodes.len() - most {
            return Err(too_few(self.nodes.len(), &failed, false));
        }
        found.sort_unstable();
        let listed = found.chunk_by(PartialEq::eq).filter(|same| same.len() + failed.len() >= most);
        Ok(listed.filter_map(|same| same.first().cloned()).collect())
    }
}

/// How long a ping waits for nodes that are not needed: they may have to be connected first.
const PING: Duration = Duration::from_millis(100);

impl fmt::Debug for QuorumBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumBackend").field("nodes", &self.quorum.nodes).finish_non_exhaustive()
    }
}

impl Ballot {
    /// Counts the answers that have come.
    fn count(&mut self, requests: &mut Vec<Request>, cx: &mut Context<'_>) {
        requests.retain_mut(|request| match Pin::new(&mut *request).poll(cx) {
            Poll::Ready(result) => {
                match request.items.take() {
                    None => self.vote(request.asked.node, result),
                    Some(items) => self.vote_on(request.asked.node, items, result),
                }
                false
            }
            Poll::Pending => true,
        });
    }
}
