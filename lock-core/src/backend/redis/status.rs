//! The status of a node, known without a request: whether there is a connection, and the last error.

use std::{
    error::Error as _,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

use crate::{
    backend::{Answer, BackendError, Replied},
    error::ErrorKind,
    health::{Fault, NodeHealth},
};

/// The last error, and when it was.
#[derive(Default)]
pub(super) struct Status {
    fault: Mutex<Option<(Instant, String)>>,
}

impl Status {
    /// Records what went wrong with a batch or an item of it.
    pub(super) fn note_all(&self, answer: &Replied<Answer>) {
        let of_items = answer.iter().flat_map(|answer| &answer.outcomes).filter_map(|outcome| outcome.as_ref().err());
        answer.as_ref().err().into_iter().chain(of_items).for_each(|error| self.note(error));
    }

    /// Records an error, unless it is about one key only.
    pub(super) fn note(&self, error: &BackendError) {
        if error.kind() == ErrorKind::WrongType {
            return;
        }
        let message = match error.source() {
            Some(source) => format!("{error} ({source})"),
            None => error.to_string(),
        };
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), message));
    }

    /// How a node is doing that has been up, or down, since a moment.
    pub(super) fn health(&self, address: &str, up: bool, since: Instant) -> NodeHealth {
        let node = NodeHealth::new(address, up).with_age(since.elapsed());
        match &*self.fault.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((at, message)) => node.with_error(Fault::new(message.as_str(), at.elapsed())),
            None => node,
        }
    }
}
