//! What reaches one node: the one ordered connection that requests share, replaced when it breaks or falls silent.
//!
//! The `redis` crate's own `ConnectionManager` keeps a connection that fell silent and forgets the client's name on a
//! reconnect; this one replaces the connection as soon as a command or a heartbeat runs out of time. No lock is held
//! while it connects: a request that needs the connection waits for it, until its own limit or until the server is known
//! to be down.

use std::{
    fmt,
    pin::pin,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

use redis::{RedisError, Value};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    advice::Advice,
    connection::{Ask, Connection},
    failure,
    link::Link,
    settings::Settings,
    status::Status,
    stream::Resolver,
};
use crate::{backend::BackendError, error::ErrorKind, health::NodeHealth};

/// What requests and upkeep share.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) resolver: Resolver,
    pub(super) link: Link,
    /// When the server last answered an attempt to connect that may still succeed.
    heard: Mutex<Option<Instant>>,
    /// Whether a server has left a transaction open, because it refused to execute it: then none is sent any more.
    pub(super) stuck: AtomicBool,
    /// Whether the server knows no later protocol.
    pub(super) resp2: AtomicBool,
    /// How many attempts in a row ended when the server closed the connection on HELLO.
    pub(super) closed_at_hello: AtomicU32,
    pub(super) advice: Advice,
    pub(super) status: Status,
}

/// Why a command has no usable answer.
pub(super) enum Unanswered {
    /// It was not sent, since its time was over before.
    Unsent(BackendError),
    /// The server answered with an error.
    Refused(RedisError),
    /// The connection broke before the answer: the command may have been executed.
    Broken(BackendError),
    /// The time ran out before the answer: the command may have been, or may still be, executed.
    Silent(BackendError),
}

impl Connector {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            resolver: Resolver::new(ATTEMPTS),
            link: Link::new(),
            heard: Mutex::default(),
            stuck: AtomicBool::new(false),
            resp2: AtomicBool::new(false),
            closed_at_hello: AtomicU32::new(0),
            advice: Advice::default(),
            status: Status::default(),
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.settings.address
    }

    pub(super) fn limit(&self) -> Duration {
        self.settings.limit
    }

    /// Says how the node is doing, as far as is known.
    pub(super) fn health(&self) -> NodeHealth {
        let (up, since) = self.link.is_up_since();
        self.status.health(self.address(), up, since)
    }

    /// Returns the connection, waiting until `limit` for one that is newer than `after` and not known to be broken; see
    /// [`Link::connection`] for when it fails sooner.
    pub(super) async fn connection(&self, after: u64, limit: Instant) -> Result<Connection, BackendError> {
        let connection = self.link.connection(after, limit).await;
        connection.map_err(|error| error.unwrap_or_else(|| self.out_of_time()).did_not_happen())
    }

    /// Runs one command until `limit`. A connection that breaks or stays silent is replaced.
    pub(super) async fn send(
        &self,
        connection: Connection,
        ask: impl Into<Ask<'_>>,
        limit: Instant,
    ) -> Result<Value, Unanswered> {
        // A command that is sent while the connection ends may get no answer at all, not even that it has ended.
        let ended = self.link.ended(connection.epoch);
        self.send_unless(ended, connection, ask.into(), limit).await
    }

    /// The same, unless the connection has `ended` before the answer.
    pub(super) async fn send_unless(
        &self,
        ended: impl Future<Output = ()>,
        mut connection: Connection,
        ask: Ask<'_>,
        limit: Instant,
    ) -> Result<Value, Unanswered> {
        let begun = Instant::now();
        if begun >= limit {
            // The caller was not polled in time. That says nothing about the connection, which others use.
            return Err(Unanswered::Unsent(self.out_of_time().did_not_happen()));
        }
        let epoch = connection.epoch;
        let mut ended = pin!(ended);
        let out_of_time = async {
            sleep_until(limit).await;
            // If all threads of the runtime stood still, the answer may be there, and not have been read yet. That takes
            // longer where the machine is so busy that this comes late, too.
            sleep(limit.elapsed().clamp(TO_READ, LATE_TO_READ)).await;
        };
        tokio::select! {
            // An answer that is there counts, however late it is looked for.
            biased;
            reply = connection.send(ask) => match reply {
                Ok(reply) => {
                    connection.answered_within(begun.elapsed());
                    match ask {
                        Ask::Command(_) => reply.extract_error().map_err(Unanswered::Refused),
                        // Which of its replies are errors matters.
                        Ask::Transaction(_) => Ok(reply),
                    }
                }
                Err(error) if failure::is_broken(&error) => {
                    self.link.replace(epoch, Duration::ZERO);
                    Err(Unanswered::Broken(failure::of(error, self.address())))
                }
                Err(error) => Err(Unanswered::Refused(error)),
            },
            () = &mut ended => Err(Unanswered::Broken(self.lost(epoch))),
            () = out_of_time => {
                let silent = begun.elapsed();
                // A request that had little time left, or a server that is far away, says nothing about the connection.
                if silent >= connection.least_silence().min(self.limit()) {
                    self.link.replace(epoch, silent);
                }
                Err(Unanswered::Silent(self.out_of_time()))
            }
        }
    }

    pub(super) fn out_of_time(&self) -> BackendError {
        BackendError::new(
            ErrorKind::Backend,
            format!(
                "{} did not answer within {:?}; check that it runs and can be reached",
                self.address(),
                self.limit()
            ),
        )
    }

    /// Why the connection of an epoch was replaced.
    pub(super) fn lost(&self, epoch: u64) -> BackendError {
        if self.link.silence(epoch).is_zero() { failure::closed(self.address()) } else { self.out_of_time() }
    }

    /// Replaces the connection to a server that has become a replica, or has begun to load its data: its name may lead to
    /// another server by now.
    ///
    /// Only once a second: a connection that is younger shows that another one does not help.
    pub(super) fn demoted(&self, connection: &Connection) {
        if connection.since().elapsed() > DEMOTED_AGAIN {
            self.link.replace(connection.epoch, Duration::ZERO);
        } else {
            // The next heartbeat replaces it, lest the next request finds out once more.
            connection.mark_demoted();
        }
    }

    /// Takes note that the server has answered an attempt to connect.
    pub(super) fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Returns when the server last answered an attempt to connect that may still succeed.
    pub(super) fn last_heard(&self) -> Option<Instant> {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note that the attempt which the server answered has failed.
    pub(super) fn forget_heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.settings.address).finish_non_exhaustive()
    }
}

/// How many attempts to connect may be under way: they follow one another by this part of the limit of a command.
pub(super) const ATTEMPTS: usize = 4;
/// How old a connection must be to be replaced because its server is not a primary.
const DEMOTED_AGAIN: Duration = Duration::from_secs(1);
/// How long it takes a runtime that goes on to read what has come.
const TO_READ: Duration = Duration::from_millis(1);
/// How long it may take one that has stood still.
const LATE_TO_READ: Duration = Duration::from_millis(25);
