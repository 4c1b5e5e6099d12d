//! Requests to the nodes of a quorum, and what their ends leave in the ledger.

use std::{
    future::Future,
    pin::Pin,
    sync::Weak,
    task::{Context, Poll, ready},
};

use super::{Quorum, ledger::Asked};
use crate::{
    backend::{Answer, BackendError, Batch, Operation, Reply},
    token::Token,
};

/// A request to one node, which enters its answer in the ledger.
pub(super) struct Request {
    pub(super) quorum: Weak<Quorum>,
    pub(super) asked: Asked,
    /// The items of the ballot that it is for; none for all.
    pub(super) items: Option<Vec<usize>>,
    pub(super) reply: Reply<Answer>,
    pub(super) answered: bool,
}

impl Future for Request {
    type Output = Result<Answer, BackendError>;

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
                quorum.owing.notify_one();
            }
        }
        Poll::Ready(result)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.answered
            && let Some(quorum) = self.quorum.upgrade()
        {
            let epoch = quorum.nodes[self.asked.node].epoch();
            if quorum.ledger().unheard(&self.asked, quorum.clock.now(), epoch) {
                quorum.owing.notify_one();
            }
        }
    }
}

/// Acquires whose votes are being counted.
pub(super) struct Asking<'a> {
    quorum: &'a Quorum,
    tokens: Vec<Token>,
}

impl<'a> Asking<'a> {
    pub(super) fn begin(quorum: &'a Quorum, batch: &Batch) -> Self {
        let token = |operation: &Operation| match operation {
            Operation::Acquire(acquire) => Some(acquire.token),
            _ => None,
        };
        let tokens: Vec<_> = batch.iter().filter_map(token).collect();
        quorum.ledger().begin(&tokens);
        Self { quorum, tokens }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.quorum.ledger().end(&self.tokens);
    }
}
