//! Attempts to connect: when the next begins, and when the server counts as down.

use std::{error::Error as _, pin::pin, time::Duration};

use futures_util::{
    future::{Fuse, FusedFuture, FutureExt},
    stream::{FuturesUnordered, StreamExt},
};
use rand::{RngExt, rngs::StdRng};
use tokio::time::{Instant, sleep_until};

use super::{
    connector::{ATTEMPTS, Connector},
    former::Former,
    handshake::{Connected, Failure},
    link::{Attempt, Down},
    pauses::{REFUSED_PAUSE, jittered, pauses},
};
use crate::backend::Calls;

/// The attempts that are made until one works.
///
/// The server is known to be down when there has been no sign of it for the limit of a command; but a connection that
/// fell silent gets a moment, since another one may work at once.
pub(super) struct Attempts<'a> {
    connector: &'a Connector,
    begun: Instant,
    /// When the server counts as down.
    known_at: Instant,
    known: bool,
    /// When the next attempt begins.
    next: Instant,
    /// When it may begin if a request asks.
    soonest: Instant,
    /// When the latest attempt began, if one did.
    latest: Instant,
    failures: u32,
}

impl<'a> Attempts<'a> {
    /// Begins. `silent` is for how long the former connection had been silent, and `pause` is how long to wait with the
    /// first attempt.
    pub(super) fn new(connector: &'a Connector, silent: Duration, pause: Duration) -> Self {
        let limit = connector.limit();
        let begun = Instant::now();
        let known_at = begun + limit.saturating_sub(silent).max(MOMENT.min(limit / 4));
        let next = begun + pause;
        Self { connector, begun, known_at, known: false, next, soonest: next, latest: begun, failures: 0 }
    }

    /// Attempts to connect until that works.
    pub(super) async fn connect(mut self, former: &Former, calls: &Calls, random: &mut StdRng) -> Connected {
        let connector = self.connector;
        // An attempt that met a hole in the network is not waited for: others follow it.
        let mut attempts = FuturesUnordered::new();
        // The provider of credentials is asked one question at a time.
        let mut login = pin!(Fuse::terminated());
        let is_elsewhere = |connected: &Connected| connector.is_elsewhere(&connected.address);
        connector.forget_heard();
        loop {
            let failure = tokio::select! {
                biased;
                Some(attempt) = attempts.next() => match attempt {
                    // It began before the sentinels named another server, to which a later one goes.
                    Ok(connected) if is_elsewhere(&connected) => {
                        self.next = Instant::now();
                        continue;
                    }
                    Ok(connected) => return connected,
                    Err(failure) => failure,
                },
                login = &mut login, if !login.is_terminated() => match login {
                    Ok(login) => {
                        attempts.push(connector.attempt(login, Some(former.clone()), Some(calls)));
                        self.note_attempt();
                        continue;
                    }
                    Err(failure) => failure,
                },
                () = begins(self.next), if attempts.len() < ATTEMPTS && login.is_terminated() => {
                    login.set(connector.log_in().fuse());
                    continue;
                }
                () = sleep_until(self.known_at), if !self.known => {
                    self.note_silence();
                    continue;
                }
                () = connector.moved() => {
                    // Attempts in flight go to a server that is no longer the right one.
                    attempts.clear();
                    connector.forget_aim();
                    self.next = Instant::now();
                    continue;
                }
                () = connector.link.wanted.notified() => {
                    self.next = self.next.min(self.soonest);
                    continue;
                }
            };
            self.note_failure(failure, attempts.is_empty(), random);
        }
    }

    /// Records that an attempt has begun, and plans the next.
    fn note_attempt(&mut self) {
        let since = Instant::now();
        self.latest = since;
        self.next = since + self.connector.limit() / ATTEMPTS as u32;
        self.soonest = self.next;
        self.connector.link.note_attempt(since);
    }

    /// Records that the server is down, unless it is slow but has answered an attempt.
    fn note_silence(&mut self) {
        let limit = self.connector.limit();
        if let Some(heard) = self.connector.last_heard()
            && heard + limit > self.known_at
        {
            self.known_at = heard + limit;
        } else {
            self.known = true;
            self.connector.link.note_known_down();
        }
    }

    /// Records that an attempt has failed, and plans the next; `is_last` says that no other is in flight.
    fn note_failure(&mut self, failure: Failure, is_last: bool, random: &mut StdRng) {
        let connector = self.connector;
        connector.forget_heard();
        let Failure { error, refused } = failure;
        connector.status.note(&error);
        if self.failures == 0 {
            // A `connect` that gives up drops the manager, and no attempt follows: the line does not promise one for ever.
            log!(warn, address = &*connector.address(), role = connector.role_in_log(), %error, cause = error.source(),
                "could not connect; retrying for as long as the manager lives");
        }
        let (hurried, idle) = if refused { (REFUSED_PAUSE, REFUSED_PAUSE) } else { pauses(self.failures) };
        let chance = random.random();
        let now = Instant::now();
        self.soonest = now + jittered(hurried, chance);
        self.next = if connector.link.is_watched() { self.soonest } else { now + jittered(idle, chance) };
        self.failures += 1;
        connector.link.note_failure(Down {
            since: self.begun,
            error: Some(error.did_not_happen()),
            known: self.known,
            failures: self.failures,
            attempt: if is_last { Attempt::Due(self.soonest) } else { Attempt::InFlight { since: self.latest } },
        });
    }
}

/// Returns at a moment, at once if that has come: a timer would take the rest of the millisecond.
async fn begins(at: Instant) {
    if Instant::now() < at {
        sleep_until(at).await;
    }
}

/// How long a new connection may take after the former one fell silent, until the server counts as down.
const MOMENT: Duration = Duration::from_millis(100);
