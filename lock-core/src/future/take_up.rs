//! Taking up a lease that was handed over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use super::wanted::Wanted;
use crate::{
    backend::{
        Answer, BackendError, Batch, Operation, Outcome, Replied, Token,
        cleanup::{AT_ONCE, Doubt, PendingRelease},
    },
    clock::Moment,
    engine::{Engine, Response, tenure::Offer, terms::Terms},
    error::{Error, ErrorKind, TAKE_UP},
    key::LockKey,
};

/// A request to take a lease up.
pub(super) struct TakeUp {
    engine: Arc<Engine>,
    /// Declared before the token, and so dropped before it: a request that was not sent yet must not be sent after the release.
    response: Response,
    wanted: Wanted,
    /// The token that the lease had before, unless its owner releases it.
    left: Option<Token>,
}

impl TakeUp {
    /// Sends the request that takes the lease over from `from`.
    pub(super) fn new(engine: &Arc<Engine>, key: LockKey, terms: Terms, from: Token, now: Moment) -> Self {
        // A lease that is downgraded has begun already, and one that is handed over has not.
        let is_downgrade = from.mode() != terms.mode && !terms.at_least.is_zero();
        let keep_until = if is_downgrade { now + terms.at_least } else { AT_ONCE };
        let wanted = Wanted::new(engine, TAKE_UP, key, terms, keep_until, now);
        let response = engine.call(Batch::from([Operation::Acquire(wanted.request().from(from))]));
        let left = (from.mode() == wanted.terms.mode).then_some(from);
        Self { engine: Arc::clone(engine), response, wanted, left }
    }

    /// Waits for the answer; sets `now` when it is there.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, now: &mut Moment) -> Poll<Result<Offer, Error>> {
        let result = ready!(Pin::new(&mut self.response).poll(cx));
        *now = self.engine.now();
        let offer = self.wanted.taken_up(result, *now);
        if let Some(left) = self.left.filter(|_| offer.is_ok() && !self.engine.state().queues.trusts) {
            // Of several nodes, one that has missed that the lease was taken from it may have it, and would refuse the new one.
            let pending = PendingRelease::at_once(self.wanted.key.clone(), left).with_place().quietly();
            let until = self.wanted.terms.ttl.end(self.wanted.sent);
            self.engine.clean_up(pending, Doubt { until, unanswered_since: None });
        }
        Poll::Ready(offer)
    }
}

impl Wanted {
    fn taken_up(&mut self, result: Replied<Answer>, now: Moment) -> Result<Offer, Error> {
        let repeated = result.as_ref().is_ok_and(|answer| answer.repeated);
        let is_late = result.as_ref().is_ok_and(|answer| answer.out_of_order);
        match result.and_then(Answer::single) {
            Ok(Outcome::Held { fence, block, .. }) if now < self.terms.ttl.deadline(self.sent) => {
                self.held((fence, block), false, !repeated, now)
            }
            Ok(Outcome::Held { .. }) => {
                let detail = "the answer took longer than the lease had left";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(&self.key).detail(detail))
            }
            Ok(Outcome::Gone) => {
                // One of several nodes may have the token all the same.
                if !is_late {
                    self.doubt = None;
                }
                Err(Error::new(ErrorKind::NotHeld, TAKE_UP).on(&self.key))
            }
            // The token may stand somewhere, and is cleaned up.
            Ok(Outcome::Split { .. }) => {
                let detail = "too few nodes had the lease that was handed over, or another took it up; it may be lost";
                Err(Error::new(ErrorKind::Backend, TAKE_UP).on(&self.key).detail(detail))
            }
            Ok(outcome) => Err(Error::backend(TAKE_UP, Some(&self.key), BackendError::unexpected(outcome))),
            Err(error) => {
                if !error.may_have_happened() {
                    self.doubt = None;
                }
                Err(Error::backend(TAKE_UP, Some(&self.key), error))
            }
        }
    }
}
