//! The link to the node: its connection, or since when and why there is none.
//!
//! The driver replaces connections, and requests take the newest one or wait for it. Connections are numbered by epoch, and each request
//! names the epoch in which it failed, so a late report about an old connection never takes a newer one down. Requests fail at once
//! while the server is known to be down; the first of a while waits for the attempt to connect that it causes.

use std::{
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout_at},
};

use super::{
    connection::{About, Connection, LEAST_SILENCE},
    wire::Wire,
};
use crate::{backend::BackendError, error::ErrorKind};

/// The link that requests take their connection from, and that the driver puts up and takes down.
pub(super) struct Link {
    state: watch::Sender<State>,
    /// The epoch of the newest connection: to this server, or to any node of its cluster.
    epoch: Arc<AtomicU64>,
    /// The epoch of the newest connection to this server.
    newest: AtomicU64,
    /// The newest epoch whose connection was found broken.
    broken: AtomicU64,
    /// That epoch again, and for how long its connection had been silent when it broke.
    silent: Mutex<(u64, Duration)>,
    found_broken: Notify,
    /// Told when a request waits for a connection.
    pub(super) wanted: Notify,
}

enum State {
    Up(Connection),
    Down(Down),
}

/// Since when and why the link is down.
pub(super) struct Down {
    pub(super) since: Instant,
    /// Why the last attempt failed, if there was one.
    pub(super) error: Option<BackendError>,
    /// Whether it has lasted for so long that requests do not wait for its end.
    pub(super) known: bool,
    /// How many attempts to connect have failed since.
    pub(super) failures: u32,
    pub(super) attempt: Attempt,
}

/// The latest attempt to connect.
#[derive(Clone, Copy)]
pub(super) enum Attempt {
    /// None is in flight, and the next may begin then.
    Due(Instant),
    InFlight {
        since: Instant,
    },
}

impl Link {
    /// Makes a link that is down: nothing was tried yet. Connections are numbered by `epoch`, which nodes of a cluster share.
    pub(super) fn new(epoch: Arc<AtomicU64>) -> Self {
        let (newest, broken, silent, found_broken, wanted) = Default::default();
        Self { state: watch::Sender::new(State::down()), epoch, newest, broken, silent, found_broken, wanted }
    }

    /// Returns the epoch of the newest connection, in a cluster to any of its nodes; zero before the first.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Returns the epoch of the newest connection to this server; zero before the first.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// Returns whether there is a connection that is not known to be broken.
    pub(super) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(connection) if self.is_newer(connection, 0))
    }

    /// Returns whether there is a connection that is not known to be broken, and since when that is so.
    pub(super) fn is_up_since(&self) -> (bool, Instant) {
        match &*self.state.borrow() {
            State::Up(connection) if self.is_newer(connection, 0) => (true, connection.about.since),
            State::Up(_) => (false, Instant::now()),
            State::Down(Down { since, .. }) => (false, *since),
        }
    }

    /// Returns the connection, if there is one that is not known to be broken.
    pub(super) fn up(&self) -> Option<Connection> {
        self.of_connection(|connection| self.is_newer(connection, 0).then(|| connection.clone())).flatten()
    }

    /// Returns the run of the server that the connection leads to.
    pub(super) fn run(&self) -> Option<Arc<String>> {
        self.of_connection(|connection| connection.about.run.clone()).flatten()
    }

    /// Returns the shortest time in which the connection has answered; zero without a connection.
    pub(super) fn round_trip(&self) -> Duration {
        self.of_connection(Connection::round_trip).unwrap_or_default()
    }

    /// Returns the least time without an answer that counts as silence.
    pub(super) fn least_silence(&self) -> Duration {
        self.of_connection(Connection::least_silence).unwrap_or(LEAST_SILENCE)
    }

    /// Returns a part of the connection that is up, even if it was found broken.
    fn of_connection<T>(&self, part: impl FnOnce(&Connection) -> T) -> Option<T> {
        match &*self.state.borrow() {
            State::Up(connection) => Some(part(connection)),
            State::Down(_) => None,
        }
    }

    /// Returns the connection, waiting until `limit` for one that is newer than `after` and not known to be broken.
    ///
    /// Fails at once while the server is known to be down, or refuses for a reason that waiting does not remove (a wrong password,
    /// a server that is too old). But the first request for a while waits a moment for an attempt. The error is `None` if it is
    /// only known that the time ran out.
    pub(super) async fn connection(&self, after: u64, limit: Instant) -> Result<Connection, Option<BackendError>> {
        if let State::Up(connection) = &*self.state.borrow()
            && self.is_newer(connection, after)
        {
            return Ok(connection.clone());
        }
        let now = Instant::now();
        let glance = match &*self.state.borrow() {
            State::Down(Down { known: true, failures, attempt, .. }) => {
                attempt.glance(now).map(|until| (*failures, until))
            }
            _ => None,
        };
        let (glance, limit) = glance.map_or((None, limit), |(failures, until)| (Some(failures), limit.min(until)));
        self.wanted.notify_one();
        let mut found = None;
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| {
            found = match state {
                State::Up(connection) => self.is_newer(connection, after).then(|| Ok(connection.clone())),
                State::Down(down) if glance == Some(down.failures) => None,
                State::Down(down) => down.refusal().map(Err),
            };
            found.is_some()
        });
        let _ = timeout_at(limit, settled).await.map(drop);
        found.unwrap_or_else(|| match &*self.state.borrow() {
            State::Down(down) => Err(down.error.clone()),
            State::Up(_) => Err(None),
        })
    }

    /// Returns when the connection of an epoch has ended, or nothing reads its answers. One that another driver of
    /// this backend has put a newer one beside goes on.
    pub(super) async fn ended(&self, epoch: u64) {
        let has_ended = |state: &State| match state {
            State::Up(up) => up.epoch != epoch && self.broken.load(Ordering::Acquire) >= epoch,
            State::Down(_) => true,
        };
        let _ = self.state.subscribe().wait_for(has_ended).await.map(drop);
    }

    /// Completes when the link is down.
    pub(super) async fn down(&self) {
        let _ = self.state.subscribe().wait_for(|state| matches!(state, State::Down(_))).await.map(drop);
    }

    /// Says that the connection of an epoch is of no further use, and for how long it had been silent, if it was.
    pub(super) fn replace(&self, epoch: u64, silent: Duration) {
        {
            let mut newest = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            if epoch > newest.0 {
                *newest = (epoch, silent);
            }
        }
        self.broken.fetch_max(epoch, Ordering::AcqRel);
        self.found_broken.notify_waiters();
    }

    /// Returns when the connection of an epoch, or a newer one, was found broken.
    pub(super) async fn broken(&self, epoch: u64) {
        loop {
            // Before the look, so that nothing is missed that is found after it.
            let found_broken = self.found_broken.notified();
            if self.broken.load(Ordering::Acquire) >= epoch {
                return;
            }
            found_broken.await;
        }
    }

    /// Returns for how long the connection of an epoch had been silent when it was found to be broken.
    pub(super) fn silence(&self, epoch: u64) -> Duration {
        let newest = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.0 == epoch { newest.1 } else { Duration::ZERO }
    }

    /// Puts a new connection up. Returns it, and whether another one was up.
    pub(super) fn put_up(&self, wire: Wire, about: About) -> (Connection, bool) {
        let mut connection = Connection::new(wire, 0, Arc::new(about));
        let mut was_up = false;
        // In one step, for those who ask whether there is a connection, and since when.
        self.state.send_modify(|state| {
            connection.epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
            self.newest.store(connection.epoch, Ordering::Release);
            was_up = matches!(mem::replace(state, State::Up(connection.clone())), State::Up(_));
        });
        (connection, was_up)
    }

    /// Takes down the connection of an epoch. Returns whether one was up, or `None` if another one is, which stays.
    pub(super) fn take_down(&self, epoch: u64) -> Option<bool> {
        let mut ended = None;
        self.broken.fetch_max(epoch, Ordering::AcqRel);
        // Sent even if a newer connection is up: requests in flight over the ended one watch the link.
        self.state.send_modify(|state| {
            if !matches!(state, State::Up(connection) if connection.epoch != epoch) {
                ended = Some(mem::replace(state, State::down()));
            }
        });
        // A connection is dropped here, outside of the lock.
        ended.map(|ended| matches!(ended, State::Up(_)))
    }

    /// Records that an attempt to connect has begun. Requests that look next see that; those that wait already are not
    /// woken for it.
    pub(super) fn note_attempt(&self, since: Instant) {
        self.if_down(false, |down| down.attempt = Attempt::InFlight { since });
    }

    /// Records that the server is known to be down.
    pub(super) fn note_known_down(&self) {
        self.if_down(true, |down| down.known = true);
    }

    /// Records that an attempt to connect has failed, unless another driver has put a connection up.
    pub(super) fn note_failure(&self, failed: Down) {
        self.if_down(true, |down| *down = failed);
    }

    fn if_down(&self, is_told: bool, change: impl FnOnce(&mut Down)) {
        self.state.send_if_modified(|state| match state {
            State::Down(down) => {
                change(down);
                is_told
            }
            State::Up(_) => false,
        });
    }

    /// Returns whether requests wait, or have a command in flight: those look at the link.
    pub(super) fn is_watched(&self) -> bool {
        self.state.receiver_count() > 0
    }

    /// Returns whether a connection is newer than an epoch, and not known to be broken.
    fn is_newer(&self, connection: &Connection, after: u64) -> bool {
        connection.epoch > after.max(self.broken.load(Ordering::Acquire))
    }
}

impl State {
    /// Not yet tried, or just broken.
    fn down() -> Self {
        let since = Instant::now();
        Self::Down(Down { since, error: None, known: false, failures: 0, attempt: Attempt::Due(since) })
    }
}

impl Down {
    /// Returns the error of a request that does not wait, since the server is known to be down, or refuses in a way that
    /// waiting cannot mend. The inner `None` says that no attempt has failed with an error.
    fn refusal(&self) -> Option<Option<BackendError>> {
        let is_final = |error: &BackendError| error.kind() != ErrorKind::Backend;
        (self.known || self.error.as_ref().is_some_and(is_final)).then(|| self.error.clone())
    }
}

impl Attempt {
    /// Returns until when a request that does not wait for the server watches this attempt: not for long, and not at all if the
    /// attempt began before and has met silence.
    fn glance(self, now: Instant) -> Option<Instant> {
        let from = match self {
            Self::Due(due) => (due <= now).then_some(now)?,
            Self::InFlight { since } => since,
        };
        Some(from + GLANCE).filter(|until| *until > now)
    }
}

/// How old an attempt to connect may become while requests wait for it, if the server is known to be down.
const GLANCE: Duration = Duration::from_millis(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_watches_an_attempt_that_is_due_or_has_just_begun() {
        let now = Instant::now();
        let moment = Duration::from_millis(1);
        assert_eq!(Attempt::Due(now).glance(now), Some(now + GLANCE), "it begins because of the request");
        assert_eq!(Attempt::Due(now + moment).glance(now), None, "the last one has just failed");
        assert_eq!(Attempt::InFlight { since: now }.glance(now), Some(now + GLANCE));
        assert_eq!(Attempt::InFlight { since: now }.glance(now + GLANCE - moment), Some(now + GLANCE));
        assert_eq!(Attempt::InFlight { since: now }.glance(now + GLANCE), None, "it has met silence");
    }
}
