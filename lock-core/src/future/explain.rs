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
    engine::{Engine, Response, Timer, inquiry::Heard},
    info::{Answers, Holder},
    key::LockKey,
    trace,
};

/// Asks who holds the key of a request that has waited for long.
pub(super) enum Explain {
    /// To be asked when the timer ends.
    Later(Timer),
    Asking(Response<Heard>),
    /// The holder, and when it was named.
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
                    Poll::Ready(Ok(())) => match engine.explain(key) {
                        Ok(response) => Self::Asking(response),
                        Err(pause) => engine.timer(pause).map_or(Self::Done(None), Self::Later),
                    },
                },
                Self::Asking(response) => match Pin::new(response).poll(cx) {
                    Poll::Pending => return,
                    Poll::Ready(heard) => Self::Done(heard.ok().and_then(|heard| told(key, heard, span))),
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

/// Reads what was answered. Only the request that has asked logs it: thousands of waiters may share an answer.
fn told(key: &LockKey, heard: Heard, span: &Span) -> Option<(Moment, Box<Holder>)> {
    let (at, logs) = (heard.at, !heard.is_shared);
    let _entered = span.enter();
    let holders = Answers::of(Some(heard)).take(key.wire()).holders;
    let Some(holder) = holders.into_iter().max_by_key(|holder| holder.fencing_token()) else {
        if logs {
            log!(info, %key, "still waiting for the lock; no process says that it holds the key");
        }
        return None;
    };
    if logs {
        let (party, held) = (holder.party(), holder.held());
        log!(info, %key, holder = %party, ?held, "still waiting for the lock");
    }
    if let Some(context) = holder.trace_context() {
        trace::link(span, context);
    }
    Some((at, Box::new(holder)))
}

/// Polls a timer, whose runtime may have ended since: it then panics, and only the question is given up.
fn polled(timer: &mut Timer, cx: &mut Context<'_>) -> Poll<Result<(), BackendError>> {
    panic::catch_unwind(AssertUnwindSafe(|| Pin::new(timer).poll(cx)))
        .unwrap_or_else(|_| Poll::Ready(Err(BackendError::ended())))
}
