use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    vec,
};

use super::Acquire;
use crate::{
    clock::Moment,
    error::Error,
    guard::{LockAllGuard, LockGuard},
    key::LockKey,
    queue::ATTEMPT,
    request::{LockRequest, Wait},
};

/// The future of [`LockRequest::acquire`] for several keys: one after the other, in the order of their bytes.
///
/// # Cancel safety
/// Dropping the future releases what it has acquired and leaves nothing behind.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct AcquireAll {
    request: LockRequest<Vec<LockKey>>,
    keys: Keys,
    current: Option<Acquire>,
    guards: Vec<LockGuard>,
    give_up: Moment,
}

/// The keys that are still to be acquired.
#[derive(Debug)]
enum Keys {
    /// Those of the request.
    All,
    Left(vec::IntoIter<LockKey>),
    Finished,
}

impl AcquireAll {
    pub(crate) fn new(request: LockRequest<Vec<LockKey>>) -> Self {
        Self { request, keys: Keys::All, current: None, guards: Vec::new(), give_up: Moment::NEVER }
    }

    fn poll_inner(&mut self, cx: &mut Context<'_>) -> Poll<Result<LockAllGuard, Error>> {
        let Self { request, keys, current, guards, give_up } = self;
        let engine = &request.engine;
        if let Keys::All = keys {
            *give_up = engine.now() + request.options.wait.get();
            *keys = Keys::Left(request.keys.clone()?.into_iter());
        }
        let Keys::Left(keys) = keys else { panic!("`AcquireAll` polled after completion") };
        loop {
            if let Some(acquire) = current {
                let guard = ready!(Pin::new(acquire).poll(cx))?;
                *current = None;
                guards.push(guard);
            }
            let Some(key) = keys.next() else { break };
            // Waiting for this key while holding those before it in the order: two such requests never wait for each
            // other.
            let mut request = request.for_key(key);
            if let Wait::Atmost(_) = request.options.wait {
                request.options.wait = Wait::Atmost(give_up.since(engine.now()));
            }
            *current = Some(Acquire::new(request));
        }
        let guard = LockAllGuard::new(std::mem::take(guards));
        Poll::Ready(guard.check(ATTEMPT).map(|()| guard))
    }
}

impl Future for AcquireAll {
    type Output = Result<LockAllGuard, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(self.poll_inner(cx));
        self.keys = Keys::Finished;
        self.current = None;
        self.guards.clear();
        Poll::Ready(result)
    }
}
