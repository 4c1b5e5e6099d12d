//! What goes on between the calls to a quorum: the nodes' own upkeep, answers that come late, and releases that a node has
//! not answered.

use std::{
    future::{Future, pending, poll_fn},
    pin::Pin,
    sync::{Arc, PoisonError},
};

use super::{request::Request, shared::Quorum};
use crate::{
    backend::{Batch, Calls, Grant, Notice, Operation},
    clock::{Clock, Moment},
    engine::cleanup::Try,
};
use futures_util::{
    future::join_all,
    stream::{FuturesUnordered, SelectAll, StreamExt, unfold},
};

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Quorum {
    pub(super) async fn keep(self: Arc<Self>, calls: Calls) {
        self.ledger().restart(self.clock.now());
        let mut notices = SelectAll::new();
        let mut upkeeps = Vec::new();
        for (node, backend) in self.nodes.iter().enumerate() {
            let (told, notice) = Calls::new(Arc::clone(calls.channel()));
            upkeeps.push(backend.upkeep(told));
            let told = unfold(notice, |mut notice| async move { Some((notice.recv().await?, notice)) });
            notices.push(Box::pin(told.map(move |notice| (node, notice))));
        }
        let (mut upkeeps, mut ended) = (join_all(upkeeps), false);
        let mut endings = FuturesUnordered::<Ending>::new();
        loop {
            self.tell_of_twins();
            let now = self.clock.now();
            endings
                .extend((0..self.nodes.len()).flat_map(|node| [self.pay(node, now), self.look(node, now)]).flatten());
            let next = self.ledger().next();
            tokio::select! {
                biased;
                Some(()) = endings.next() => {}
                // Before the notices that it gives.
                _ = &mut upkeeps, if !ended => ended = true,
                Some((node, notice)) = notices.next() => match notice {
                    Notice::Granted(grant) => calls.granted(Grant { of_one_node: true, ..grant }),
                    Notice::Listening(listening) => {
                        let news = self.ledger().listens(node, listening);
                        news.into_iter().for_each(|any| calls.listening(any));
                    }
                },
                () = self.owing.notified() => {}
                () = until(&*self.clock, next, now) => {}
            }
        }
    }

    /// Tells a node what it has not answered, if that is due.
    fn pay(self: &Arc<Self>, node: usize, now: Moment) -> Option<Ending> {
        let tries = self.ledger().node(node).due(now, MOST)?;
        let this = Arc::clone(self);
        let backend = &self.nodes[node];
        let batch: Batch = tries.iter().map(|Try { release, .. }| Operation::Release(release.clone())).collect();
        let reply = backend.call(batch);
        Some(Box::pin(async move {
            let result = reply.await;
            let trip = (now, this.clock.now(), this.nodes[node].epoch());
            this.ledger().node(node).paid(tries, &result, trip);
        }))
    }

    /// Asks a node for leases that it may have, or for a sign of life, if that is due.
    fn look(self: &Arc<Self>, node: usize, now: Moment) -> Option<Ending> {
        if !self.ledger().node(node).looks(now) {
            return None;
        }
        let this = Arc::clone(self);
        Some(Box::pin(async move {
            let sent = this.clock.now();
            let mut request: Option<Request> = None;
            let result = poll_fn(|cx| {
                if let Some(request) = &mut request {
                    return Pin::new(request).poll(cx);
                }
                // Asked and sent in one go, so that no release comes between.
                let _order = this.order.lock().unwrap_or_else(PoisonError::into_inner);
                Pin::new(request.insert(this.look_at(node, MOST))).poll(cx)
            })
            .await;
            this.ledger().node(node).looked(result.is_ok(), sent, this.clock.now());
        }))
    }
}

async fn until(clock: &dyn Clock, next: Option<Moment>, now: Moment) {
    match next {
        Some(next) => clock.sleep(next.since(now)).await,
        None => pending().await,
    }
}

/// The most releases or leases in one call.
const MOST: usize = 256;
