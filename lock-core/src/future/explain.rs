//! Why a request waits: after a while it asks once who holds the key.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
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
    Done(Option<Box<Holder>>),
}

impl Explain {
    pub(super) fn after(engine: &Engine, wait: Duration) -> Box<Self> {
        Box::new(Self::Later(engine.sleep(wait)))
    }

    /// Goes on, while the request waits. Has the task polled again when there is more to do.
    pub(super) fn poll(&mut self, engine: &Engine, key: &LockKey, cx: &mut Context<'_>) {
        loop {
            let next = match self {
                Self::Later(timer) => match Pin::new(timer).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(Err(_)) => Self::Done(None),
                    Poll::Ready(Ok(())) => match engine.inquire_at_times(Subject::Key(key.wire().to_owned())) {
                        Some(response) => Self::Asking(response),
                        None => Self::Later(engine.sleep(BETWEEN)),
                    },
                },
                Self::Asking(response) => match Pin::new(response).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(statements) => Self::told(key, statements.unwrap_or_default()),
                },
                Self::Done(_) => return,
            };
            *self = next;
        }
    }

    fn told(key: &LockKey, statements: Vec<Statement>) -> Self {
        let holder = Parties::of(statements).remove(key.wire()).and_then(|parties| parties.holder).map(Box::new);
        match &holder {
            Some(holder) => {
                let (party, held) = (holder.party(), holder.held());
                tracing::info!(%key, holder = %party, ?held, "still waiting for the lock");
                if let Some(context) = holder.trace_context() {
                    trace::link(&tracing::Span::current(), context);
                }
            }
            None => tracing::info!(%key, "still waiting for the lock; no process says that it holds the key"),
        }
        Self::Done(holder)
    }

    /// The holder that was found.
    pub(super) fn holder(self) -> Option<Box<Holder>> {
        match self {
            Self::Done(holder) => holder,
            _ => None,
        }
    }
}

/// How long to wait if this manager has just asked for another request.
const BETWEEN: Duration = Duration::from_secs(1);
