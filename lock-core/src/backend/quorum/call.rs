//! Calls to a quorum: all nodes are asked at once, and their votes counted as they come.

use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    pin::Pin,
    sync::{Arc, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{
    ballot::{Ballot, WriteBack, is_share},
    places::Places,
    request::Request,
    shared::Quorum,
    verdict::Certainty,
    voters::same_server,
};
use crate::backend::{Answer, BackendError, Batch, Operation, Replied, Token};
use smallvec::SmallVec;

impl Quorum {
    /// Executes a batch. It is split before an operation that needs a key which an earlier one acquires. A majority has to decide the
    /// acquire before the next part is sent; otherwise nodes that refused it would execute the rest for a lease that does not exist.
    pub(super) async fn call(self: Arc<Self>, mut batch: Batch) -> Replied<Answer> {
        if batch.is_empty() {
            return self.ping().await;
        }
        let _asking = Asking::begin(&self, &batch);
        let Some(mut end) = end_of_part(&batch) else { return self.decide(batch).await };
        let mut whole = Answer::new([]);
        while !batch.is_empty() {
            let rest = batch.drain(end..).collect();
            let mut part = std::mem::replace(&mut batch, rest);
            // A token that was released while the parts before were decided is not acquired: no release would follow.
            let over: Vec<_> = (0..part.len()).filter(|item| self.ledger().is_over(&part[*item])).collect();
            for item in over.iter().rev() {
                part.remove(*item);
            }
            let items = part.len();
            let mut answer = if part.is_empty() { Answer::new([]) } else { Answer::of(self.decide(part).await, items) };
            for item in over {
                answer.outcomes.insert(item, Err(released().did_not_happen()));
            }
            whole.append(answer);
            end = end_of_part(&batch).unwrap_or(batch.len());
        }
        whole.out_of_order = true;
        Ok(whole)
    }

    /// Asks all nodes at once, and answers as soon as a majority has decided and all nodes that are not slower than others have
    /// answered.
    async fn decide(self: &Arc<Self>, mut batch: Batch) -> Replied<Answer> {
        let (places, mut ballot) = {
            let (ledger, now) = (self.ledger(), self.clock.now());
            ledger.aim.set(&mut batch, now);
            let (places, placed) = (ledger.places(), ledger.placed(&batch, now));
            let ballot = Ballot::new(batch, self.nodes.len(), places.queue_node).with_placed(placed);
            let nodes = &ledger.nodes;
            let ballot =
                ballot.in_turn(places, |node| nodes[node].slow, |node, token| nodes[node].may_take(token, now));
            (places, ballot)
        };
        let mut requests = Vec::new();
        let mut begun = false;
        let mut patience = None;
        // How long the queue node may take to say whose turn it is.
        let mut turn =
            ballot.has_later().then(|| self.clock.sleep(self.ledger().patience([places.queue_node].into_iter())));
        let mut is_late = false;
        poll_fn(|cx| {
            count(&mut ballot, &mut requests, cx);
            if turn.as_mut().is_some_and(|turn| turn.as_mut().poll(cx).is_ready()) {
                // A timer may be polled until it is ready, and no longer.
                (turn, is_late) = (None, true);
            }
            loop {
                // The lease is chosen and the request sent under one lock. A release of the same token that came in between would be
                // followed by this renewal, whose answer would then look like that of a lease which was never released.
                let order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                let mut further = match std::mem::replace(&mut begun, true) {
                    false => (0..self.nodes.len()).map(|node| self.ask_first(node, places, &ballot)).collect(),
                    true => {
                        let mut further = self.ask_in_turn(&mut ballot, places, is_late);
                        further.extend(self.write_backs(&mut ballot, places));
                        if !further.is_empty() {
                            // They are waited for from now on.
                            patience = None;
                        }
                        further
                    }
                };
                let done = further.is_empty();
                count(&mut ballot, &mut further, cx);
                drop(order);
                requests.append(&mut further);
                if done {
                    break;
                }
            }
            self.tell_of_twins();
            for request in &requests {
                let node = request.asked.node;
                ballot.has_left(node, request.items.as_deref(), request.asked.has_left(self.nodes[node].epoch()));
            }
            // Signs of life are waited for as answers are, or their nodes would seem to be late.
            let is_settled =
                requests.iter().all(|request| !request.asked.batch.is_empty()) || ballot.operations().is_empty();
            let certainty = ballot.certainty().min(if is_settled { Certainty::Sure } else { Certainty::Likely });
            let timer = match certainty {
                Certainty::Open => return Poll::Pending,
                Certainty::Sure => None,
                Certainty::Likely if self.are_slow(&requests) => None,
                _ => Some(patience.take_if(|(of, _)| *of == certainty)),
            };
            if let Some(timer) = timer {
                let is_ping = ballot.operations().is_empty();
                let (_, timer) = patience.insert(timer.unwrap_or_else(|| {
                    // Where others have decided, nobody waits longer for a slow node. Else it may be the one that decides.
                    let is_worth = |node: &usize| certainty == Certainty::Doubtful || !self.ledger().nodes[*node].slow;
                    let waiting = requests.iter().map(|request| request.asked.node).filter(is_worth);
                    let waiting: SmallVec<[usize; 8]> = waiting.collect();
                    let patience = if is_ping { PING } else { self.ledger().patience(waiting.into_iter()) };
                    (certainty, self.clock.sleep(patience))
                }));
                ready!(timer.as_mut().poll(cx));
            }
            self.leave(&mut requests);
            Poll::Ready(ballot.answer())
        })
        .await
    }

    /// Whether only slow nodes have not answered these.
    fn are_slow(&self, requests: &[Request]) -> bool {
        let ledger = self.ledger();
        requests.iter().all(|request| ledger.nodes[request.asked.node].slow)
    }

    /// Leaves the answers of slow nodes to the driver: they come, though nobody waits for them.
    fn leave(&self, requests: &mut Vec<Request>) {
        let slow: Vec<_> = {
            let ledger = self.ledger();
            requests.extract_if(.., |request| ledger.nodes[request.asked.node].slow).collect()
        };
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for request in slow {
            // Without a driver it is dropped, as those to other nodes are.
            if let Some(left) = &left {
                let _ = left.send(self.hear_late(request.left()));
            }
        }
    }

    /// Asks a node for all but what it is asked for later; if that is nothing, for a sign of life: it shows whether the node is slow
    /// still. (Processes that do not know the same nodes to answer do not keep their places at the same nodes.)
    fn ask_first(self: &Arc<Self>, node: usize, places: Places, ballot: &Ballot) -> Request {
        let Some(items) = ballot.first_items(node) else { return self.ask(node, places, ballot.operations(), None) };
        let batch = items.iter().map(|item| ballot.operations()[*item].clone()).collect();
        self.ask(node, places, &batch, Some(items))
    }

    /// Asks nodes for what they were not asked for first, if the queue node has said that its turn has come, or did not answer in time.
    fn ask_in_turn(self: &Arc<Self>, ballot: &mut Ballot, places: Places, is_late: bool) -> Vec<Request> {
        if !ballot.has_later() {
            return Vec::new();
        }
        let later: Vec<_> = (0..self.nodes.len()).map(|node| ballot.later_items(node)).collect();
        let (over, turns): (Vec<_>, Vec<_>) =
            ballot.turns(is_late).into_iter().partition(|item| self.ledger().is_over(&ballot.operations()[*item]));
        let mut requests = Vec::new();
        for (node, later) in later.into_iter().enumerate() {
            let (over, turns): (Vec<_>, Vec<_>) = (only(&later, &over).collect(), only(&later, &turns).collect());
            ballot.vote_on(node, over, Err(released().did_not_happen()));
            if !turns.is_empty() {
                let batch = turns.iter().map(|item| ballot.operations()[*item].clone()).collect();
                requests.push(self.ask(node, places, &batch, Some(turns)));
            }
        }
        requests
    }

    /// Asks nodes to count further, so that a majority does.
    pub(super) fn write_backs(self: &Arc<Self>, ballot: &mut Ballot, places: Places) -> Vec<Request> {
        let mut of_node: BTreeMap<usize, (Batch, Vec<usize>)> = BTreeMap::new();
        for WriteBack { node, item, operation } in ballot.write_backs() {
            if self.ledger().is_over(&operation) {
                ballot.vote_on(node, [item], Err(released()));
                continue;
            }
            let (batch, items) = of_node.entry(node).or_default();
            batch.push(operation);
            items.push(item);
        }
        of_node.into_iter().map(|(node, (batch, items))| self.ask(node, places, &batch, Some(items))).collect()
    }

    /// Asks for a sign of life: of a majority, and of the others if they give one soon, so that it shows which of them
    /// have no vote.
    async fn ping(self: &Arc<Self>) -> Replied<Answer> {
        let answer = self.decide(Batch::new()).await?;
        let twins = self.voters().any_twins();
        match twins {
            Some((node, twin)) => Err(same_server(node, twin).did_not_happen()),
            None => Ok(answer),
        }
    }
}

fn only<'a>(items: &'a [usize], those: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    items.iter().copied().filter(|item| those.contains(item))
}

/// Counts the answers that have come.
fn count(ballot: &mut Ballot, requests: &mut Vec<Request>, cx: &mut Context<'_>) {
    requests.retain_mut(|request| match Pin::new(&mut *request).poll(cx) {
        Poll::Ready(result) => {
            match request.items.take() {
                None => ballot.vote(request.asked.node, result),
                Some(items) => ballot.vote_on(request.asked.node, items, result),
            }
            false
        }
        Poll::Pending => true,
    });
}

/// Acquires whose votes are being counted.
pub(super) struct Asking<'a> {
    quorum: &'a Quorum,
    tokens: Vec<Token>,
}

impl<'a> Asking<'a> {
    pub(super) fn begin(quorum: &'a Quorum, batch: &Batch) -> Self {
        let tokens: Vec<_> = batch.iter().filter_map(Operation::as_acquire).map(|acquire| acquire.token).collect();
        quorum.ledger().begin(&tokens);
        Self { quorum, tokens }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.quorum.ledger().end(&self.tokens);
    }
}

/// Where a batch goes on with a key that it has acquired before. (Shares of a key do not depend on one another.)
fn end_of_part(batch: &Batch) -> Option<usize> {
    if batch.len() < 2 {
        return None;
    }
    let mut acquired = HashMap::new();
    batch.iter().position(|operation| {
        let is_share = is_share(operation);
        let goes_on = acquired.get(operation.key()).is_some_and(|only_shares| !(is_share && *only_shares));
        if let Operation::Acquire(acquire) = operation {
            acquired.insert(&acquire.key, is_share);
        }
        goes_on
    })
}

fn released() -> BackendError {
    BackendError::unavailable("the token was released while the nodes were asked")
}

/// How long a ping waits for nodes that are not needed: they may have to be connected first.
pub(super) const PING: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{Acquire, Release},
        key::LockKey,
        mode::Mode,
    };

    #[test]
    fn only_shares_of_a_key_are_acquired_in_one_part() {
        let key = || LockKey::new("k").unwrap();
        let acquire = |mode, number| {
            let token = Token::from_random(number).in_mode(mode);
            Operation::Acquire(Acquire::new(key(), token, Duration::from_secs(3)))
        };
        let (shared, alone) = (|number| acquire(Mode::Shared, number), |number| acquire(Mode::Exclusive, number));
        let release = || Operation::Release(Release::new(key(), Token::from_random(1)));
        let end = |operations: &[Operation]| end_of_part(&operations.iter().cloned().collect());
        assert_eq!(end(&[release(), shared(1), shared(2), shared(3)]), None);
        assert_eq!(end(&[shared(1), shared(2), alone(3)]), Some(2));
        assert_eq!(end(&[shared(1), shared(2), release()]), Some(2));
        assert_eq!(end(&[alone(1), shared(2)]), Some(1));
        assert_eq!(end(&[alone(1), alone(2)]), Some(1));
    }
}
