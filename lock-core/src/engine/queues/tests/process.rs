//! A process whose time and whose backend the test is.

use std::task::{Poll, Waker};

use rand::SeedableRng;

use crate::{
    backend::{self, BackendError, Batch, Grant, Operation, Outcome},
    clock::Clock,
    engine::{
        fixture::{Manual, key, terms},
        hold::Hold,
        queues::{in_flight::*, line::*, *},
        responder::Responder,
        tenure::{HoldId, Offer},
        terms::Terms,
    },
    error::{Error, ErrorKind},
};

pub(super) fn newcomer(key: &LockKey, terms: Terms, tries: bool) -> Newcomer<'_> {
    Newcomer { key, terms, tries }
}

/// How long a request may go unanswered.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// Queues with a clock, and with the answers of a backend where every key is free.
pub(super) struct Process {
    pub(super) queues: Queues,
    pub(super) clock: Arc<Manual>,
    pub(super) fence: u64,
}

impl Process {
    pub(super) fn new() -> Self {
        Self::limited(usize::MAX, usize::MAX)
    }

    pub(super) fn limited(per_key: usize, in_all: usize) -> Self {
        let clock = Arc::<Manual>::default();
        let random = StdRng::seed_from_u64(1);
        let queues = Queues::new(
            Pulse::new(Arc::clone(&clock) as Arc<dyn Clock>, None),
            random,
            Limits { per_key, in_all, answer: ANSWER },
            Looks { service: "test".into(), explain_after: None },
        );
        Self { queues, clock, fence: 100 }
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(super) fn pass_time(&mut self, ms: u64) {
        self.clock.advance(ms);
        let now = self.now();
        self.queues.handle_timeout(now);
    }

    pub(super) fn arrive(&mut self, newcomer: Newcomer<'_>) -> Result<WaiterId, Error> {
        let now = self.now();
        self.queues.arrive(newcomer, now)
    }

    pub(super) fn join(&mut self, newcomer: Newcomer<'_>) -> WaiterId {
        self.arrive(newcomer).unwrap()
    }

    /// A request that is in flight.
    pub(super) fn ask(&mut self, newcomer: Newcomer<'_>) -> (WaiterId, backend::Acquire) {
        let id = self.join(newcomer);
        let (mut operations, _) = self.send();
        match operations.pop() {
            Some(Operation::Acquire(request)) if operations.is_empty() => (id, request),
            other => panic!("{other:?}, {operations:?}"),
        }
    }

    pub(super) fn wait_on(&mut self, terms: Terms) -> WaiterId {
        self.join(newcomer(&key(), terms, false))
    }

    pub(super) fn wait(&mut self) -> WaiterId {
        self.wait_on(terms(9_000))
    }

    pub(super) fn try_it(&mut self) -> WaiterId {
        self.join(newcomer(&key(), terms(9_000), true))
    }

    pub(super) fn trip(&self) -> RoundTrip {
        RoundTrip { sent: self.now(), now: self.now(), epoch: 1, repeated: false }
    }

    pub(super) fn send(&mut self) -> (Batch, Vec<Purpose>) {
        let now = self.now();
        let mut batch = Batch::new();
        let purposes = self.queues.send(&mut batch, now, 1);
        (batch, purposes)
    }

    /// Sends what is to be sent, and has each request for the key granted.
    pub(super) fn grant(&mut self) -> Vec<&'static str> {
        self.answer(|process, acquire| {
            let first = process.fence;
            process.fence += u64::from(acquire.block);
            Ok(Outcome::Held { fence: first, block: acquire.block, was_free: true })
        })
    }

    pub(super) fn answer(
        &mut self,
        mut acquired: impl FnMut(&mut Self, &backend::Acquire) -> Result<Outcome, BackendError>,
    ) -> Vec<&'static str> {
        let (operations, purposes) = self.send();
        let mut kinds = Vec::new();
        for (operation, purpose) in operations.iter().zip(purposes) {
            let (kind, outcome) = match operation {
                Operation::Acquire(acquire) => ("acquire", acquired(self, acquire)),
                Operation::Renew(renew) => {
                    let (first, remaining) = (self.fence, Duration::from_secs(9));
                    self.fence += u64::from(renew.block);
                    ("renew", Ok(Outcome::Renewed { remaining, fence: Some(first), block: renew.block }))
                }
                _ => ("release", Ok(Outcome::Released)),
            };
            kinds.push(kind);
            self.queues.answered(purpose, outcome, self.trip());
        }
        kinds
    }

    pub(super) fn poll(&mut self, id: WaiterId) -> Poll<Result<Offer, Error>> {
        let now = self.now();
        self.queues.poll(id, Waker::noop(), now)
    }

    pub(super) fn hold(&mut self, id: WaiterId) -> (HoldId, Arc<Hold>) {
        match self.poll(id) {
            Poll::Ready(Ok(offer)) => offer,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn error(&mut self, id: WaiterId) -> ErrorKind {
        match self.poll(id) {
            Poll::Ready(Err(error)) => error.kind(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn release(&mut self, (id, hold): (HoldId, Arc<Hold>)) -> Departure<()> {
        let now = self.now();
        hold.release_at(now).unwrap();
        self.queues.release(id, now, || (Responder::new(now), ()))
    }

    /// A grant is told whose fencing token is older than that of any tenure.
    pub(super) fn granted(&mut self, key: LockKey, token: Token, now: Moment) {
        self.granted_with(0, key, token, now);
    }

    pub(super) fn granted_with(&mut self, fence: u64, key: LockKey, token: Token, now: Moment) {
        self.queues.granted(Grant::new(key, token, now, Duration::from_millis(100), (fence, 1)), now);
    }

    pub(super) fn leave(&mut self, id: WaiterId) {
        let now = self.now();
        self.queues.leave(id, now);
    }

    /// Takes the releases of the clean-up list that are due.
    pub(super) fn cleaned_up(&mut self) -> Vec<backend::Release> {
        let now = self.now();
        let due = self.queues.cleanup.due(now, 256);
        due.into_iter()
            .map(|due| {
                self.queues.cleanup.tried(due.entry, Some(1), now, now);
                due.release
            })
            .collect()
    }
}

impl Drop for Process {
    /// Checks at the end of each test that those are counted who wait, and no others: a waiter that is still counted after it has left
    /// would take the place of another for as long as the process lives.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let lines = &mut self.queues.lines;
        let waiting = lines.ids().into_iter().filter(|id| lines.waiter(*id).waits).count();
        assert_eq!(lines.waiting(), waiting, "waiters that are counted, and waiters that wait");
    }
}
