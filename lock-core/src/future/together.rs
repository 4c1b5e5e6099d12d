//! Several keys in one call: all of them if all are free, or none.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::{acquire::Watch, wanted::Wanted};
use crate::{
    backend::{Answer, Operation, Outcome, Replied, cleanup::AT_ONCE},
    clock::Moment,
    engine::{Response, terms::Terms},
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
    /// One for each key.
    watches: Vec<Watch>,
}

impl Together {
    /// Sends the call for keys that may be asked for, if it is worth one.
    pub(super) fn begin(request: &LockAllRequest, keys: &[(LockKey, Terms)]) -> Option<Self> {
        let engine = &request.engine;
        let now = engine.now();
        let is_quiet = |(key, terms): &(LockKey, Terms)| engine.state().queues.is_quiet(key, terms.mode, now);
        if !(2..=MOST).contains(&keys.len()) || !keys.iter().all(is_quiet) {
            return None;
        }
        let want = |(key, terms): &(LockKey, Terms)| Wanted::new(engine, ACQUIRE, key.clone(), *terms, AT_ONCE, now);
        let wanted: Vec<_> = keys.iter().map(want).collect();
        let batch = wanted.iter().map(|wanted| Operation::Acquire(wanted.request().with_all())).collect();
        let watch = |(key, terms): &(LockKey, Terms)| Watch::begin(&request.for_key(key.clone(), terms.mode), now);
        let watches = keys.iter().map(watch).collect();
        Some(Self { response: engine.call(batch), wanted, watches })
    }

    /// Waits for the answer: the guards of all keys, or `None` if one of them is not free, and the keys are to be waited for until
    /// `give_up`.
    pub(super) fn poll(
        &mut self,
        request: &LockAllRequest,
        give_up: Moment,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Vec<LockGuard>>, Error>> {
        let result = ready!(Pin::new(&mut self.response).poll(cx));
        let result = answered(&mut self.wanted, request, give_up, result);
        let (now, watches) = (request.engine.now(), mem::take(&mut self.watches).into_iter());
        Poll::Ready(match result {
            Ok(Some(guards)) => {
                let guards: Result<_, _> =
                    watches.zip(guards).map(|(watch, guard)| watch.end(Ok(guard), now)).collect();
                guards.map(Some)
            }
            // The request for each key has a watch of its own.
            Ok(None) => {
                watches.for_each(Watch::pass);
                Ok(None)
            }
            Err(error) => {
                watches.for_each(|watch| drop(watch.end(Err(error.clone()), now)));
                Err(error)
            }
        })
    }
}

/// The terms of each key, if none of them is refused: before anything is sent, and before the first is waited for.
pub(super) fn checked(request: &LockAllRequest, keys: &[(LockKey, Mode)]) -> Result<Vec<(LockKey, Terms)>, Error> {
    let checked = keys.iter().map(|(key, mode)| {
        let one = request.for_key(key.clone(), *mode);
        let (key, terms) = one.check()?;
        Ok((key.clone(), terms))
    });
    checked.collect()
}

fn answered(
    all: &mut [Wanted],
    request: &LockAllRequest,
    give_up: Moment,
    result: Replied<Answer>,
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
    let is_sure = !answer.repeated;
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
    let held = |(wanted, outcome): (&Wanted, &Replied<Outcome>)| match outcome {
        Ok(Outcome::Held { fence, block, .. }) if now < latest(wanted) => Some((*fence, *block)),
        _ => None,
    };
    let fences: Option<Vec<_>> = all.iter().zip(&answer.outcomes).map(held).collect();
    let Some(fences) = fences.filter(|fences| fences.len() == all.len()) else {
        if !request.tries_once() && now < give_up {
            return Ok(None);
        }
        engine.state().queues.busy += u64::from(busy.is_some());
        let failed = all.iter().zip(answer.outcomes).find_map(|(wanted, outcome)| Some((wanted, outcome.err()?)));
        let failed = failed.map(|(wanted, error)| Error::backend(ACQUIRE, Some(&wanted.key), error));
        return busy.or(failed).map_or(Ok(None), |error| Err(request.failed(error)));
    };
    // All of them, before the code of a subscriber runs: a hold without a guard would be renewed for ever.
    let mut guards = Vec::with_capacity(all.len());
    for (wanted, fences) in all.iter_mut().zip(fences) {
        let (id, hold) = wanted.held(fences, true, is_sure, now)?;
        let mut guard = LockGuard::new(Arc::clone(engine), id, hold, request.options.on_lost.unwrap_or_default());
        guard.unfinished = true;
        guards.push(guard);
    }
    Ok(Some(guards))
}

/// How many keys one call acquires at most. More are acquired one after the other.
const MOST: usize = 256;
