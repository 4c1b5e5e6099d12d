//! Why a request waits: after a while it asks once who holds the key.

use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tracing::Span;

use crate::{
    backend::BackendError,
    clock::Moment,
    engine::{
        Engine, Response, Timer,
        inquiry::{Statement, Subject},
    },
    info::{Holder, Parties},
    key::LockKey,
    trace,
};

/// Asks who holds the key of a request that has waited for long.
pub(super) enum Explain {
    /// To be asked when the timer ends.
    Later(Timer),
    Asking(Response<Vec<Statement>>),
    /// What was answered.
    Done(Option<(Moment, Box<Holder>)>),
}

impl Explain {
    /// Begins when a request has to wait. Without a runtime there is no timer, and the request does not ask.
    pub(super) fn after(engine: &Engine, wait: Duration) -> Box<Self> {
        Box::new(engine.timer(wait).map_or(Self::Done(None), Self::Later))
    }

    /// Goes on, while the request waits. Has the task polled again when there is more to do.
    pub(super) fn poll(&mut self, engine: &Engine, key: &LockKey, span: &Span, cx: &mut Context<'_>) {
        loop {
            let next = match self {
                Self::Later(timer) => match polled(timer, cx) {
                    Poll::Pending => return,
                    Poll::Ready(Err(_)) => Self::Done(None),
                    Poll::Ready(Ok(())) => match engine.inquire_at_times(Subject::Holder(key.wire().to_owned())) {
                        Some(response) => Self::Asking(response),
                        None => engine.timer(BETWEEN).map_or(Self::Done(None), Self::Later),
                    },
                },
                Self::Asking(response) => match Pin::new(response).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(statements) => {
                        let holder = span.in_scope(|| told(key, statements.unwrap_or_default(), span));
                        Self::Done(holder.map(|holder| (engine.now(), holder)))
                    }
                },
                Self::Done(_) => return,
            };
            *self = next;
        }
    }

    /// The holder that was found, and when.
    pub(super) fn found(self) -> Option<(Moment, Box<Holder>)> {
        match self {
            Self::Done(found) => found,
            _ => None,
        }
    }
}

/// Reads and logs what was answered.
fn told(key: &LockKey, statements: Vec<Statement>, span: &Span) -> Option<Box<Holder>> {
    let holder = Parties::of(statements).remove(key.wire()).and_then(|parties| parties.holder).map(Box::new);
    match &holder {
        Some(holder) => {
            let (party, held) = (holder.party(), holder.held());
            tracing::info!(%key, holder = %party, ?held, "still waiting for the lock");
            if let Some(context) = holder.trace_context() {
                trace::link(span, context);
            }
        }
        None => tracing::info!(%key, "still waiting for the lock; no process says that it holds the key"),
    }
    holder
}

/// Polls a timer, whose runtime may have ended since: it then panics, and only the question is given up.
fn polled(timer: &mut Timer, cx: &mut Context<'_>) -> Poll<Result<(), BackendError>> {
    panic::catch_unwind(AssertUnwindSafe(|| Pin::new(timer).poll(cx)))
        .unwrap_or_else(|_| Poll::Ready(Err(BackendError::ended())))
}

/// How long to wait if this manager has just asked for another request.
const BETWEEN: Duration = Duration::from_secs(1);
