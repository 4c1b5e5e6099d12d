//! The driver between the calls to a quorum: the nodes' own driver, answers that come late, and releases that a node has
//! not answered.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, PoisonError},
};

use super::{
    request::Request,
    shared::{Ending, Quorum},
};
use crate::{
    backend::{Answer, Batch, Calls, Grant, Notice, Operation, Outcome, cleanup::Try},
    clock::Moment,
    key::LockKey,
};
use futures_util::{
    future::{FutureExt, join_all, select},
    stream::{FuturesUnordered, SelectAll, StreamExt, unfold},
};
use tokio::sync::mpsc::unbounded_channel;

impl Quorum {
    pub(super) async fn keep(self: Arc<Self>, calls: Calls) {
        self.ledger().restart(self.clock.now());
        let (leaves, mut left) = unbounded_channel();
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(leaves);
        let mut notices = SelectAll::new();
        let mut drivers = Vec::new();
        for (node, backend) in self.nodes.iter().enumerate() {
            let (told, notice) = Calls::new(Arc::clone(calls.channel()));
            drivers.push(backend.driver(told));
            let told = unfold(notice, |mut notice| async move { Some((notice.recv().await?, notice)) });
            notices.push(Box::pin(told.map(move |notice| (node, notice))));
        }
        let (mut drivers, mut ended) = (join_all(drivers), false);
        let mut endings = FuturesUnordered::<Ending>::new();
        loop {
            self.tell_of_twins();
            let now = self.clock.now();
            let asks =
                (0..self.nodes.len()).flat_map(|node| [self.send_pending(node, now), self.look(node, now, &calls)]);
            endings.extend(asks.flatten());
            let next = self.ledger().next();
            tokio::select! {
                biased;
                Some(()) = endings.next() => {}
                // Before the notices that it gives.
                _ = &mut drivers, if !ended => ended = true,
                Some((node, notice)) = notices.next() => match notice {
                    Notice::Granted(grant) => {
                        endings.extend(self.pass_on(node, Grant { of_one_node: true, ..grant }, &calls));
                    }
                    // What one node has forgotten, the others have not.
                    Notice::Moved => {}
                    Notice::Settled(epoch) => self.ledger().node(node).pending.settle(epoch, self.clock.now()),
                    Notice::Listening(listening) => {
                        let news = self.ledger().listens(node, listening);
                        news.into_iter().for_each(|any| calls.listening(any));
                    }
                    notice => calls.pass_on(notice),
                },
                Some(ending) = left.recv() => endings.push(ending),
                () = self.release_pending.notified() => {}
                () = async { self.clock.sleep(next.unwrap_or(now).since(now)).await }, if next.is_some() => {}
            }
        }
    }

    /// Hears what a slow node answers, which nobody waits for, for as long as that is worth it.
    pub(super) fn hear_late(&self, request: Request) -> Ending {
        let patience = self.ledger().patience([request.asked.node].into_iter());
        Box::pin(select(request, self.clock.sleep(patience)).map(drop))
    }

    /// Passes a grant on to the engine: at once if it is the queue node's. Else that node is asked first whether another has
    /// the key, since a waiter that comes out of turn takes votes from the one whose turn it is.
    fn pass_on(self: &Arc<Self>, node: usize, grant: Grant, calls: &Calls) -> Option<Ending> {
        let queue_node = self.ledger().places().queue_node;
        if node == queue_node {
            calls.granted(grant);
            return None;
        }
        let (this, calls) = (Arc::clone(self), calls.clone());
        Some(Box::pin(async move {
            let out_of_turn = this.is_busy_at(queue_node, grant.key.clone()).await;
            calls.granted(Grant { out_of_turn, ..grant });
        }))
    }

    /// Whether a node says, as soon as it usually answers, that a key is held.
    async fn is_busy_at(&self, node: usize, key: LockKey) -> bool {
        let reply = self.nodes[node].call(Batch::from([Operation::Inspect { key }]));
        let patience = self.ledger().patience([node].into_iter());
        tokio::select! {
            biased;
            answer = reply => {
                matches!(answer.and_then(Answer::single), Ok(Outcome::Busy { .. } | Outcome::Shared { .. }))
            }
            () = self.clock.sleep(patience) => {
                self.ledger().node(node).was_late(self.clock.now());
                false
            }
        }
    }

    /// Sends a node the releases that are pending, if that is due.
    fn send_pending(self: &Arc<Self>, node: usize, now: Moment) -> Option<Ending> {
        let tries = self.ledger().node(node).due(now, MOST)?;
        let this = Arc::clone(self);
        let backend = &self.nodes[node];
        let batch: Batch = tries.iter().map(|Try { release, .. }| Operation::Release(release.clone())).collect();
        let reply = backend.call(batch);
        Some(Box::pin(async move {
            let result = reply.await;
            let trip = (now, this.clock.now(), this.nodes[node].epoch());
            this.ledger().node(node).releases_answered(tries, &result, trip);
        }))
    }

    /// Asks a node for leases that it may have, or for a sign of life, if that is due.
    fn look(self: &Arc<Self>, node: usize, now: Moment, calls: &Calls) -> Option<Ending> {
        if !self.ledger().node(node).looks(now) {
            return None;
        }
        let (this, calls) = (Arc::clone(self), calls.clone());
        Some(Box::pin(async move {
            let sent = this.clock.now();
            let mut request: Option<Request> = None;
            let result = poll_fn(|cx| {
                if let Some(request) = &mut request {
                    return Pin::new(request).poll(cx);
                }
                // The lease is chosen and the request sent under one lock. A release of the same token that came in between would be
                // followed by this renewal, whose answer would then look like that of a lease which was never released.
                let _order = this.order.lock().unwrap_or_else(PoisonError::into_inner);
                Pin::new(request.insert(this.look_at(node, MOST))).poll(cx)
            })
            .await;
            let mut ledger = this.ledger();
            if ledger.node(node).looked(result.is_ok(), sent, this.clock.now()) && ledger.any_listens() {
                // The node answers again after an outage, so all waiters ask again: one of them may have the key there from a request that
                // was executed late, and would keep it from the others until it knows.
                calls.listening(true);
            }
        }))
    }
}

/// The most releases or leases in one call.
const MOST: usize = 256;
