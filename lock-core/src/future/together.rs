//! Several keys in one call: all of them if all are free, or none.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{acquire::Watch, reentry, wanted::Wanted};
use crate::{
    backend::{Answer, BackendError, Operation, Outcome},
    engine::{Response, cleanup::AT_ONCE},
    error::{ACQUIRE, Error},
    guard::LockGuard,
    key::LockKey,
    mode::Mode,
    request::LockAllRequest,
};

/// A call that acquires all keys of a request. It passes no line: while this process has or wants one of the keys, there is none.
pub(super) struct Together {
    /// Declared before the tokens, and so dropped before them: a request that was not sent yet must not be sent after the release of
    /// its tokens.
    response: Response,
    wanted: Vec<Wanted>,
}

impl Together {
    /// Sends the call, if it is worth one.
    pub(super) fn begin(request: &LockAllRequest, keys: &[(LockKey, Mode)]) -> Result<Option<Self>, Error> {
        let engine = &request.engine;
        let now = engine.now();
        let is_quiet = |(key, mode): &(LockKey, Mode)| engine.state().queues.is_quiet(key, *mode, now);
        if !(2..=MOST).contains(&keys.len()) || !keys.iter().all(is_quiet) {
            return Ok(None);
        }
        let checked = keys.iter().map(|(key, mode)| {
            let one = request.for_key(key.clone(), *mode);
            let (key, terms) = one.check()?;
            one.check_backend().map_err(|error| error.on(key))?;
            engine.admit(ACQUIRE).map_err(|error| error.on(key))?;
            reentry::refuse(engine, key, terms.mode, request.since, request.tries_once())?;
            Ok((key.clone(), terms))
        });
        let checked = checked.collect::<Result<Vec<_>, Error>>()?;
        let want = |(key, terms)| Wanted::new(engine, key, terms, AT_ONCE, now);
        let wanted: Vec<_> = checked.into_iter().map(want).collect();
        let batch = wanted.iter().map(|wanted| Operation::Acquire(wanted.request().with_all())).collect();
        Ok(Some(Self { response: engine.call(batch), wanted }))
    }

    /// Waits for the answer: the guards of all keys, or `None` if one of them is not free, and the keys are to be waited for.
    pub(super) fn poll(
        &mut self,
        request: &LockAllRequest,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Vec<LockGuard>>, Error>> {
        let result = ready!(Pin::new(&mut self.response).poll(cx));
        Poll::Ready(answered(&mut self.wanted, request, result))
    }
}

fn answered(
    all: &mut [Wanted],
    request: &LockAllRequest,
    result: Result<Answer, BackendError>,
) -> Result<Option<Vec<LockGuard>>, Error> {
    let engine = &request.engine;
    let now = engine.now();
    let answer = match result {
        Ok(answer) => answer,
        Err(error) => {
            if !error.may_have_happened() {
                all.iter_mut().for_each(|wanted| wanted.doubt = None);
            }
            return Err(Error::backend(ACQUIRE, all.first().map(|wanted| &wanted.key), error));
        }
    };
    // An earlier sending may be executed late.
    let is_sure = !answer.repeated && !answer.out_of_order;
    let mut busy = None;
    for (wanted, outcome) in all.iter_mut().zip(&answer.outcomes) {
        let is_over = matches!(outcome, Ok(Outcome::Gone | Outcome::Busy { .. }));
        if is_over && is_sure {
            wanted.doubt = None;
        }
        if let Ok(Outcome::Busy { remaining, by, .. }) = outcome {
            engine.state().queues.found_busy(&wanted.key, now);
            busy.get_or_insert_with(|| Error::busy(ACQUIRE, &wanted.key, *by, wanted.terms.mode).free_in(*remaining));
        }
    }
    // They begin only now to be renewed, which may be too late when half of the ttl is over.
    let latest = |Wanted { terms, sent, .. }: &Wanted| {
        if terms.is_renewed() { *sent + terms.ttl.get() / 2 } else { terms.ttl.deadline(*sent) }
    };
    let held = |(wanted, outcome): (&Wanted, &Result<Outcome, BackendError>)| match outcome {
        Ok(Outcome::Held { fence, block, .. }) if now < latest(wanted) => Some((*fence, *block)),
        _ => None,
    };
    let fences: Option<Vec<_>> = all.iter().zip(&answer.outcomes).map(held).collect();
    let Some(fences) = fences.filter(|fences| fences.len() == all.len()) else {
        let busy = busy.filter(|_| request.tries_once());
        engine.state().queues.busy += u64::from(busy.is_some());
        return busy.map_or(Ok(None), Err);
    };
    let mut guards = Vec::with_capacity(all.len());
    for (wanted, fences) in all.iter_mut().zip(fences) {
        let (id, hold) = wanted.held(fences, true, is_sure, now)?;
        let watch = Watch::begin(&request.for_key(wanted.key.clone(), wanted.terms.mode), wanted.sent);
        let mut guard = LockGuard::new(Arc::clone(engine), id, hold, request.options.on_lost.unwrap_or_default());
        guard.set_unfinished(true);
        guards.push(watch.end(Ok(guard), now)?);
    }
    Ok(Some(guards))
}

/// How many keys one call acquires at most. More are acquired one after the other.
const MOST: usize = 256;
