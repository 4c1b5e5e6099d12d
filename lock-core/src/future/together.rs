//! Several keys in one call: all of them if all are free, or none.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{acquire::Watch, reentry};
use crate::{
    backend::{self, Answer, BackendError, Batch, Operation, Outcome, Token},
    clock::Moment,
    engine::{
        Engine, Owed, Response,
        cleanup::{Doubt, Parting},
        tenure::{Acquired, Terms},
    },
    error::{ACQUIRE, Error},
    guard::LockGuard,
    key::LockKey,
    mode::Mode,
    request::LockAllRequest,
};

/// A call that acquires all keys of a request. It passes no line: while this process has or wants one of the keys, there is none.
pub(super) struct Together {
    engine: Arc<Engine>,
    wanted: Vec<Wanted>,
    sent: Moment,
    response: Response,
    /// Until then the engine stays.
    _owed: Owed,
}

struct Wanted {
    key: LockKey,
    terms: Terms,
    token: Token,
    /// `None` once it is known that the token is not set, or is in use.
    doubt: Option<Doubt>,
}

impl Together {
    /// Sends the call, if it is worth one.
    pub(super) fn begin(request: &LockAllRequest, keys: &[(LockKey, Mode)]) -> Result<Option<Self>, Error> {
        let engine = &request.engine;
        let now = engine.now();
        if !(2..=MOST).contains(&keys.len()) || !engine.are_quiet(keys, now) {
            return Ok(None);
        }
        let mut wanted = Vec::with_capacity(keys.len());
        for (key, mode) in keys {
            let one = request.for_key(key.clone(), *mode);
            let (key, terms) = one.check()?;
            one.check_backend().map_err(|error| error.on(key))?;
            engine.admit(ACQUIRE).map_err(|error| error.on(key))?;
            reentry::refuse(engine, key, terms.mode, request.since, request.tries_once())?;
            // The epoch is read before the request is registered: a connection that is replaced meanwhile leaves the token in doubt.
            let doubt = Some(Doubt { until: terms.ttl.end(now), unanswered_since: Some(engine.backend.epoch()) });
            wanted.push(Wanted { key: key.clone(), terms, token: engine.token().in_mode(*mode), doubt });
        }
        let acquire = |Wanted { key, terms, token, .. }: &Wanted| {
            Operation::Acquire(backend::Acquire::new(key.clone(), *token, terms.ttl.get()).with_all())
        };
        let batch: Batch = wanted.iter().map(acquire).collect();
        let _owed = engine.owe();
        let response = engine.call(batch);
        Ok(Some(Self { engine: Arc::clone(engine), wanted, sent: now, response, _owed }))
    }

    /// Waits for the answer: the guards of all keys, or `None` if one of them is not free, and the keys are to be waited for.
    pub(super) fn poll(
        &mut self,
        request: &LockAllRequest,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Vec<LockGuard>>, Error>> {
        let result = ready!(Pin::new(&mut self.response).poll(cx));
        Poll::Ready(self.answered(request, result))
    }

    fn answered(
        &mut self,
        request: &LockAllRequest,
        result: Result<Answer, BackendError>,
    ) -> Result<Option<Vec<LockGuard>>, Error> {
        let Self { engine, wanted, sent, .. } = self;
        let now = engine.now();
        let answer = result.map_err(|error| {
            if !error.may_have_happened() {
                wanted.clear();
            }
            Error::backend(ACQUIRE, request.keys.as_ref().ok().and_then(|keys| keys.first()).map(|(key, _)| key), error)
        })?;
        // An earlier sending may be executed late.
        let is_sure = !answer.repeated && !answer.out_of_order;
        let mut busy = None;
        for (wanted, outcome) in wanted.iter_mut().zip(&answer.outcomes) {
            let is_over = matches!(outcome, Ok(Outcome::Gone | Outcome::Busy { .. }));
            if is_over && is_sure {
                wanted.doubt = None;
            }
            if let Ok(Outcome::Busy { remaining, by, .. }) = outcome {
                engine.state().queues.found_busy(&wanted.key, now);
                busy.get_or_insert_with(|| {
                    Error::busy(ACQUIRE, &wanted.key, *by, wanted.terms.mode).free_in(*remaining)
                });
            }
        }
        // They begin only now to be renewed, which may be too late when half of the ttl is over.
        let latest = |Wanted { terms, .. }: &Wanted| {
            if terms.is_renewed() { *sent + terms.ttl.get() / 2 } else { terms.ttl.deadline(*sent) }
        };
        let held = |(wanted, outcome): (&Wanted, &Result<Outcome, BackendError>)| match outcome {
            Ok(Outcome::Held { fence, block, .. }) if now < latest(wanted) => Some((*fence, *block)),
            _ => None,
        };
        let fences: Option<Vec<_>> = wanted.iter().zip(&answer.outcomes).map(held).collect();
        let Some(fences) = fences.filter(|fences| fences.len() == wanted.len()) else {
            return busy.filter(|_| request.tries_once()).map_or(Ok(None), Err);
        };
        let epoch = (!is_sure).then(|| engine.backend.epoch());
        let mut guards = Vec::with_capacity(wanted.len());
        for (wanted, (fence, block)) in wanted.iter_mut().zip(fences) {
            let Wanted { key, terms, token, doubt } = wanted;
            let left = Doubt { until: terms.ttl.end(now), unanswered_since: epoch };
            let acquired =
                Acquired { token: *token, fence, block, sent: *sent, doubt: left, passes: true, granted: None };
            let (id, hold) = engine.take_up(key, terms, acquired, now)?;
            *doubt = None;
            let watch = Watch::begin(&request.for_key(key.clone(), terms.mode), *sent);
            let mut guard = LockGuard::new(Arc::clone(engine), id, hold, request.options.on_lost.unwrap_or_default());
            guard.set_unfinished(true);
            guards.push(watch.end(Ok(guard), now)?);
        }
        Ok(Some(guards))
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        if self.wanted.iter().all(|wanted| wanted.doubt.is_none()) {
            return;
        }
        // Cancelled first: a request that was not sent yet must not be sent after the release of its tokens.
        self.response.cancel();
        let now = self.engine.now();
        for Wanted { key, terms, token, doubt } in self.wanted.drain(..) {
            if let Some(doubt) = doubt {
                let until = terms.ttl.end(now);
                self.engine.clean_up(Parting::at_once(key, token), Doubt { until, ..doubt });
            }
        }
    }
}

/// How many keys one call acquires at most. More are acquired one after the other.
const MOST: usize = 256;
