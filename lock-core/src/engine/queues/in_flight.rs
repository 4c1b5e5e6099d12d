//! The types of calls to the backend: what waits to be sent, and what is in flight; pure. `requests.rs` moves them.

use smallvec::SmallVec;

use crate::{
    backend::{
        Batch, Operation, Token,
        cleanup::{Doubt, PendingRelease, Try},
    },
    clock::Moment,
    engine::{responder::Responder, schedule, tenure::Renewing},
    key::LockKey,
};

/// Names a call in flight.
pub(crate) type CallId = usize;

/// Calls to send.
pub(crate) type Transmits = SmallVec<[(CallId, Batch); 1]>;

/// A request that waits to be sent. Rare variants are boxed, since each variant makes all others as large.
#[derive(Debug)]
pub(crate) enum Item {
    /// The acquire of a candidate.
    Ask(LockKey, Token),
    Release(PendingRelease, Doubt, Responder),
    /// Another block of fencing tokens.
    Refill(Box<Renewing>),
    /// The last renewal of a lease that goes to another process.
    LastRenewal(Box<Renewing>),
    /// A call of its own.
    Call(Box<Batch>, Responder),
}

impl Item {
    /// The request, if a future waits for its answer.
    pub(super) fn responder(&self) -> Option<&Responder> {
        match self {
            Self::Release(_, _, responder) | Self::Call(_, responder) => Some(responder),
            Self::Ask(..) | Self::Refill(_) | Self::LastRenewal(_) => None,
        }
    }
}

/// A request for a list of keys.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) prefix: String,
    pub(crate) responder: Responder<Vec<LockKey>>,
}

/// The purpose of an operation in flight.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// The acquire of a candidate, and until when it can block others.
    Ask(LockKey, Token, Moment),
    /// With its entry in the clean-up list.
    Release(usize, Responder),
    Refill(Box<Renewing>),
}

impl Purpose {
    /// The request, if a future waits for its answer.
    fn responder(&self) -> Option<&Responder> {
        match self {
            Self::Release(_, responder) => Some(responder),
            Self::Ask(..) | Self::Refill(_) => None,
        }
    }
}

/// A call in flight.
#[derive(Debug)]
pub(super) struct SentCall {
    pub(super) sent: Moment,
    pub(super) work: Work,
}

impl SentCall {
    /// Whether it waits for replicas, perhaps for long, for a request that is gone. What it may have done is harmless.
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.work {
            Work::Call(batch, responder) => {
                responder.is_cancelled() && batch.iter().any(|item| item.replicas().is_some())
            }
            _ => false,
        }
    }
}

/// The purpose of a call.
#[derive(Debug)]
pub(super) enum Work {
    Renew(Vec<Renewing>),
    /// Clean-ups, then what waited to be sent.
    Send(Vec<Try>, Vec<Purpose>),
    /// With a copy of the batch.
    Call(Box<Batch>, Responder),
}

impl Work {
    /// The entries of the clean-up list whose first release is in it.
    pub(super) fn releases(&self) -> impl Iterator<Item = usize> {
        let purposes = if let Self::Send(_, purposes) = self { Some(purposes) } else { None };
        purposes.into_iter().flatten().filter_map(|purpose| match purpose {
            Purpose::Release(entry, _) => Some(*entry),
            Purpose::Ask(..) | Purpose::Refill(_) => None,
        })
    }

    /// Whether it acquires with a token.
    pub(super) fn acquires(&self, token: Token) -> bool {
        match self {
            Self::Renew(_) => false,
            Self::Send(_, purposes) => {
                purposes.iter().any(|purpose| matches!(purpose, Purpose::Ask(_, asked, _) if *asked == token))
            }
            Self::Call(batch, _) => {
                batch.iter().any(|operation| matches!(operation, Operation::Acquire(acquire) if acquire.token == token))
            }
        }
    }

    /// The requests in it whose futures wait for an answer.
    pub(super) fn responder(&self) -> impl Iterator<Item = &Responder> {
        let (shared, own) = match self {
            Self::Renew(_) => (None, None),
            Self::Send(_, purposes) => (Some(purposes), None),
            Self::Call(_, responder) => (None, Some(responder)),
        };
        shared.into_iter().flatten().filter_map(Purpose::responder).chain(own)
    }
}

/// How a call went, for the operations in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    pub(crate) sent: Moment,
    pub(crate) now: Moment,
    /// The backend's epoch when it was answered: if a request was sent in that one, no connection was replaced between.
    pub(crate) epoch: u64,
    /// Whether it was sent more than once.
    pub(crate) repeated: bool,
}

/// How many calls are in flight, by kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) renewing: usize,
    pub(super) sending: usize,
}

impl Counted {
    /// Whether another call that is shared is sent while so many requests wait for it. Of whole calls there are never so many in flight that a
    /// renewal behind them would come too late.
    pub(super) fn leaves_room(self, at_once: usize, waiting: usize) -> bool {
        let at_once = if waiting < BATCH { at_once } else { at_once.min(schedule::MOST_CALLS) };
        schedule::takes_another(self.sending, at_once, waiting, BATCH)
    }
}

/// Whether the backend alone limits the time of a call. A sign of life, an empty batch, may wait for a connection, and some
/// renewals wait for replicas: that may take longer than a request.
pub(super) fn is_limited_by_backend(batch: &[Operation]) -> bool {
    batch.first().is_none_or(|operation| operation.replicas().is_some())
}

/// The most operations in one call, except for renewals.
pub(super) const BATCH: usize = 256;
