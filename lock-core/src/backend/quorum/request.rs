//! Requests to the nodes of a quorum, and what their ends leave in the ledger.

use std::{
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{asked::Asked, places::Places, shared::Quorum};
use crate::backend::{Answer, BackendError, Batch, Replied, Reply};

/// A request to one node, which enters its answer in the ledger.
pub(super) struct Request {
    quorum: Weak<Quorum>,
    pub(super) asked: Asked,
    /// The items of the ballot that it is for; none for all.
    pub(super) items: Option<Vec<usize>>,
    reply: Reply<Answer>,
    answered: bool,
    /// Whether it is left to the driver.
    is_left: bool,
}

impl Request {
    /// The request, left to the driver. Until it ends, the quorum is not settled.
    pub(super) fn left(mut self) -> Self {
        if let Some(quorum) = self.quorum.upgrade() {
            quorum.ledger().left += 1;
            self.is_left = true;
        }
        self
    }
}

impl Quorum {
    /// Makes the request of a batch to one node.
    pub(super) fn ask(
        self: &Arc<Self>,
        node: usize,
        places: Places,
        batch: &Batch,
        items: Option<Vec<usize>>,
    ) -> Request {
        let asked = self.ledger().ask(node, places, batch, self.clock.now(), self.way_to(node));
        self.request(asked, items)
    }

    /// Makes the request that asks a node for the leases that it is to be asked for.
    pub(super) fn look_at(self: &Arc<Self>, node: usize, most: usize) -> Request {
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
        Request { quorum: Arc::downgrade(self), asked, items, reply, answered: false, is_left: false }
    }
}

impl Future for Request {
    type Output = Replied<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { quorum, asked, reply, answered, .. } = &mut *self;
        let mut result = ready!(Pin::new(reply).poll(cx));
        *answered = true;
        if let Some(quorum) = quorum.upgrade() {
            let (now, epoch) = (quorum.clock.now(), quorum.nodes[asked.node].epoch());
            if let Ok(answer) = &mut result {
                // By now the name may lead to another server, or to none.
                let error = match answer.by.take() {
                    Some(server) => quorum.same_server(asked.node, Some(&server)),
                    None => quorum.same_server(asked.node, quorum.nodes[asked.node].identity().as_deref()),
                };
                if let Some(error) = error {
                    result = Err(error);
                }
            }
            if quorum.ledger().answered(asked, &mut result, now, epoch) {
                quorum.release_pending.notify_one();
            }
        }
        Poll::Ready(result)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if self.answered && !self.is_left {
            return;
        }
        let Some(quorum) = self.quorum.upgrade() else { return };
        let epoch = quorum.nodes[self.asked.node].epoch();
        if !self.answered && quorum.ledger().unheard(&self.asked, quorum.clock.now(), epoch) {
            quorum.release_pending.notify_one();
        }
        if self.is_left {
            quorum.ledger().left -= 1;
        }
    }
}

async fn answer_within(limit: impl Future<Output = ()>, reply: Reply<Answer>) -> Replied<Answer> {
    tokio::select! {
        biased;
        answer = reply => answer,
        () = limit => Err(BackendError::unavailable("a node did not take a lease back in time")),
    }
}
