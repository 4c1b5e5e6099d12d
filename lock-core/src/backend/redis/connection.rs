//! One ordered connection to one node, replaced when it breaks or falls silent.
//!
//! The `redis` crate's own `ConnectionManager` keeps a connection that fell silent and forgets the client's name on a
//! reconnect; this one replaces the connection as soon as a command or a heartbeat runs out of time. No lock is held
//! while it connects: a request that needs the connection waits for it, until its own limit or until the server is known
//! to be down.

use std::{
    error::Error as _,
    fmt, mem,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use rand::{RngExt, rngs::StdRng};
use redis::{
    Cmd, ErrorKind as RedisErrorKind, PushInfo, PushKind, RedisConnectionInfo, RedisError, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    sync::{Notify, mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use super::{
    advice::Advice,
    failure,
    handshake::{Connected, Driver, Failure, Former},
    status::Status,
    stream::{Place, Resolver},
};
use crate::{
    backend::{BackendError, Calls, Token},
    engine::metrics,
    error::ErrorKind,
    health::NodeHealth,
    key::LockKey,
};

/// What requests and upkeep share.
pub(super) struct Connector {
    pub(super) settings: Settings,
    pub(super) resolver: Resolver,
    link: watch::Sender<Link>,
    /// The epoch of the newest connection.
    epoch: AtomicU64,
    /// The newest epoch that somebody found broken.
    broken: AtomicU64,
    /// That epoch again, and for how long its connection had been silent by then.
    silent: Mutex<(u64, Duration)>,
    found_broken: Notify,
    /// Somebody asks, and there is no connection.
    wanted: Notify,
    /// When the server last answered an attempt to connect that may still succeed.
    heard: Mutex<Option<Instant>>,
    /// Whether the server knows no later protocol.
    pub(super) resp2: AtomicBool,
    /// How many attempts in a row ended when the server closed the connection on HELLO.
    pub(super) closed_at_hello: AtomicU32,
    pub(super) advice: Advice,
    pub(super) status: Status,
}

/// How to reach the node.
pub(super) struct Settings {
    pub(super) place: Place,
    /// Whether the connection is encrypted.
    pub(super) tls: bool,
    /// User, password and database.
    pub(super) redis: RedisConnectionInfo,
    /// Whether the URL asks for RESP2.
    pub(super) resp2: bool,
    /// Host and port, or the path of the socket: for messages.
    pub(super) address: String,
    pub(super) client_name: String,
    /// The limit of one command, reconnecting included.
    pub(super) limit: Duration,
    /// The limit of one attempt to connect.
    pub(super) connect_limit: Duration,
}

/// Whether there is a connection.
enum Link {
    Up(Connection),
    Down {
        since: Instant,
        /// Why the last attempt failed, if there was one.
        error: Option<BackendError>,
        /// Whether it has lasted for so long that requests do not wait for its end.
        known: bool,
        /// How many attempts to connect have failed since.
        failures: u32,
        attempt: Attempt,
    },
}

/// The latest attempt to connect.
#[derive(Clone, Copy)]
enum Attempt {
    /// None is in flight, and the next may begin then.
    Due(Instant),
    InFlight {
        since: Instant,
    },
}

impl Attempt {
    /// Until when a request looks at it that does not wait for the server: not for long, nor for one that began before and
    /// has met silence.
    fn glance(self, now: Instant) -> Option<Instant> {
        let from = match self {
            Self::Due(due) => (due <= now).then_some(now)?,
            Self::InFlight { since } => since,
        };
        Some(from + GLANCE).filter(|until| *until > now)
    }
}

#[derive(Clone)]
pub(super) struct Connection {
    inner: MultiplexedConnection,
    pub(super) epoch: u64,
    about: Arc<About>,
}

/// The state of a connection.
struct About {
    since: Instant,
    /// The shortest time in which it has answered, in µs: how far away the server is.
    round_trip: AtomicU64,
    /// Whether the server refused to write when the connection was too young to be replaced.
    demoted: AtomicBool,
    /// The run of the server.
    run: Option<Arc<String>>,
    _driver: Driver,
}

impl Connection {
    /// Returns the run of the server, if the server tells.
    pub(super) fn run(&self) -> Option<Arc<String>> {
        self.about.run.clone()
    }
}

impl Link {
    /// Not yet tried, or just broken.
    fn down() -> Self {
        let since = Instant::now();
        Self::Down { since, error: None, known: false, failures: 0, attempt: Attempt::Due(since) }
    }
}

impl Connector {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            resolver: Resolver::new(ATTEMPTS),
            link: watch::Sender::new(Link::down()),
            epoch: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            silent: Mutex::default(),
            found_broken: Notify::new(),
            wanted: Notify::new(),
            heard: Mutex::default(),
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

    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether there is a connection that is not known to be broken.
    pub(super) fn is_up(&self) -> bool {
        let broken = self.broken.load(Ordering::Acquire);
        matches!(&*self.link.borrow(), Link::Up(connection) if connection.epoch > broken)
    }

    /// Says how the node is doing, as far as is known.
    pub(super) fn health(&self) -> NodeHealth {
        let broken = self.broken.load(Ordering::Acquire);
        let (up, since) = match &*self.link.borrow() {
            Link::Up(connection) if connection.epoch > broken => (true, connection.about.since),
            Link::Up(_) => (false, Instant::now()),
            Link::Down { since, .. } => (false, *since),
        };
        self.status.health(self.address(), up, since)
    }

    /// Returns the run of the server that the connection leads to.
    pub(super) fn run(&self) -> Option<Arc<String>> {
        match &*self.link.borrow() {
            Link::Up(connection) => connection.run(),
            Link::Down { .. } => None,
        }
    }

    /// Returns the least time without an answer that counts as silence.
    pub(super) fn least_silence(&self) -> Duration {
        match &*self.link.borrow() {
            Link::Up(connection) => connection.about.least_silence(),
            Link::Down { .. } => LEAST_SILENCE,
        }
    }

    /// Returns the connection, waiting until `limit` for one that is newer than `after` and not known to be broken.
    ///
    /// Fails at once while the server is known to be down, or refuses in a way that waiting cannot mend (a wrong password,
    /// a server that is too old). But if nobody has looked for a while, it looks, for a moment.
    pub(super) async fn connection(&self, after: u64, limit: Instant) -> Result<Connection, BackendError> {
        let is_fit = |connection: &Connection| connection.epoch > after.max(self.broken.load(Ordering::Acquire));
        if let Link::Up(connection) = &*self.link.borrow()
            && is_fit(connection)
        {
            return Ok(connection.clone());
        }
        let now = Instant::now();
        let glance = match &*self.link.borrow() {
            Link::Down { known: true, failures, attempt, .. } => attempt.glance(now).map(|until| (*failures, until)),
            _ => None,
        };
        let (glance, limit) = glance.map_or((None, limit), |(failures, until)| (Some(failures), limit.min(until)));
        self.wanted.notify_one();
        let mut found = None;
        let mut link = self.link.subscribe();
        let settled = link.wait_for(|link| {
            found = match link {
                Link::Up(connection) => is_fit(connection).then(|| Ok(connection.clone())),
                Link::Down { failures, .. } if glance == Some(*failures) => None,
                Link::Down { error: Some(error), known, .. } if *known || error.kind() != ErrorKind::Backend => {
                    Some(Err(error.clone()))
                }
                Link::Down { known, .. } => known.then(|| Err(self.out_of_time())),
            };
            found.is_some()
        });
        let _ = timeout_at(limit, settled).await.map(drop);
        let found = found.unwrap_or_else(|| match &*self.link.borrow() {
            Link::Down { error: Some(error), .. } => Err(error.clone()),
            _ => Err(self.out_of_time()),
        });
        found.map_err(BackendError::did_not_happen)
    }

    /// Runs one command until `limit`. A connection that breaks or stays silent is replaced.
    pub(super) async fn send(
        &self,
        mut connection: Connection,
        command: &Cmd,
        limit: Instant,
    ) -> Result<Value, Unanswered> {
        let begun = Instant::now();
        if begun >= limit {
            // The caller was not polled in time. That says nothing about the connection, which others use.
            return Err(Unanswered::Unsent(self.out_of_time().did_not_happen()));
        }
        let epoch = connection.epoch;
        let mut link = self.link.subscribe();
        // A command that is sent while the connection ends may get no answer at all, not even that it has ended.
        let replaced = async {
            let _ = link.wait_for(|link| !matches!(link, Link::Up(up) if up.epoch == epoch)).await.map(drop);
        };
        let out_of_time = async {
            sleep_until(limit).await;
            // If all threads of the runtime stood still, the answer may be there, and not have been read yet. That takes
            // longer where the machine is so busy that this comes late, too.
            sleep(limit.elapsed().clamp(TO_READ, LATE_TO_READ)).await;
        };
        tokio::select! {
            // An answer that is there counts, however late it is looked for.
            biased;
            reply = connection.inner.send_packed_command(command) => match reply {
                Ok(reply) => {
                    connection.about.answered_within(begun.elapsed());
                    reply.extract_error().map_err(Unanswered::Refused)
                }
                Err(error) if is_broken(&error) => {
                    self.replace(epoch, Duration::ZERO);
                    Err(Unanswered::Broken(failure::of(error, self.address())))
                }
                Err(error) => Err(Unanswered::Refused(error)),
            },
            () = replaced => Err(Unanswered::Broken(self.lost(epoch))),
            () = out_of_time => {
                let silent = begun.elapsed();
                // A request that had little time left, or a server that is far away, says nothing about the connection.
                if silent >= connection.about.least_silence().min(self.settings.limit) {
                    self.replace(epoch, silent);
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

    /// Why a connection was replaced under a command.
    fn lost(&self, epoch: u64) -> BackendError {
        if self.silence(epoch).is_zero() { failure::closed(self.address()) } else { self.out_of_time() }
    }

    /// Says that the connection of an epoch is of no use any more, and for how long it had been silent, if it was.
    fn replace(&self, epoch: u64, silent: Duration) {
        {
            let mut newest = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            if epoch > newest.0 {
                *newest = (epoch, silent);
            }
        }
        self.broken.fetch_max(epoch, Ordering::AcqRel);
        self.found_broken.notify_waiters();
    }

    /// For how long the connection of an epoch had been silent when it was found to be broken.
    fn silence(&self, epoch: u64) -> Duration {
        let newest = *self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if newest.0 == epoch { newest.1 } else { Duration::ZERO }
    }

    /// Replaces the connection to a server that has become a replica, or has begun to load its data: its name may lead to
    /// another server by now.
    ///
    /// Only once a second: a connection that is younger shows that another one does not help.
    pub(super) fn demoted(&self, connection: &Connection) {
        if connection.about.since.elapsed() > DEMOTED_AGAIN {
            self.replace(connection.epoch, Duration::ZERO);
        } else {
            // The next heartbeat replaces it, lest the next request finds out once more.
            connection.about.demoted.store(true, Ordering::Relaxed);
        }
    }

    /// Takes note that the server has answered an attempt to connect.
    pub(super) fn heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    fn forget_heard(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Connects, listens for calls, watches the connection, and connects anew, for as long as it is polled.
    pub(super) async fn keep(self: Arc<Self>, calls: Calls) {
        let mut end = EndOfUpkeep { connector: &self, epoch: 0 };
        if !self.is_up() {
            metrics::connected(self.address(), false, false);
        }
        let mut former: Option<Former> = None;
        let mut silent = Duration::ZERO;
        // How many connections in a row broke as soon as they were made.
        let mut short_lived = 0;
        // When a connection was lost, if that stands in the log.
        let mut lost: Option<Instant> = None;
        let mut random: StdRng = rand::make_rng();
        loop {
            let pause = match short_lived {
                // As a rule the next connection works, and nobody should wait for it.
                0 | 1 => Duration::ZERO,
                _ => jittered(pauses(short_lived - 2).0, random.random()),
            };
            let Connected { inner, driver, mut pushes, run, id, listening, round_trip } =
                self.connect_anew(&former, &calls, (silent, pause), &mut random).await;
            former = run.clone().zip(id).map(|(run, id)| Former { run, id });
            let about = About {
                since: Instant::now(),
                round_trip: AtomicU64::new(u64::MAX),
                demoted: AtomicBool::new(false),
                run,
                _driver: driver,
            };
            about.answered_within(round_trip);
            let about = Arc::new(about);
            let mut connection = Connection { inner, epoch: 0, about };
            // In one step, for those who ask whether there is a connection, and since when.
            let mut was_up = false;
            self.link.send_modify(|link| {
                connection.epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
                was_up = matches!(mem::replace(link, Link::Up(connection.clone())), Link::Up(_));
            });
            metrics::connected(self.address(), was_up, true);
            if let Some(lost) = lost.take() {
                tracing::info!(address = self.address(), after = ?lost.elapsed(), "connected again");
            }
            calls.listening(listening);
            let (epoch, since) = (connection.epoch, connection.about.since);
            end.epoch = epoch;
            self.watch(connection, &mut pushes, &calls).await;
            self.status.note(&self.lost(epoch));
            silent = self.silence(epoch);
            short_lived = if since.elapsed() < SHORT_LIVED { short_lived + 1 } else { 0 };
            self.has_ended(epoch);
            calls.listening(false);
            if short_lived <= 1 {
                tracing::warn!(address = self.address(), "connection lost; connecting anew");
                lost.get_or_insert_with(Instant::now);
            }
        }
    }

    /// Takes note that the connection of an epoch has ended, or the upkeep that kept it. One that another upkeep of this
    /// backend has made stays.
    fn has_ended(&self, epoch: u64) {
        let mut ended = None;
        self.link.send_if_modified(|link| {
            if matches!(link, Link::Up(connection) if connection.epoch != epoch) {
                return false;
            }
            ended = Some(mem::replace(link, Link::down()));
            true
        });
        if let Some(ended) = &ended {
            metrics::connected(self.address(), matches!(ended, Link::Up(_)), false);
        }
        drop(ended);
    }

    /// Attempts to connect until that works. `silent` is for how long the former connection had been silent, and `pause` is
    /// how long to wait with the first attempt.
    ///
    /// The server is known to be down when there has been no sign of it for the limit of a command; but a connection that
    /// fell silent gets a moment, since another one may work at once.
    async fn connect_anew(
        &self,
        former: &Option<Former>,
        calls: &Calls,
        (silent, pause): (Duration, Duration),
        random: &mut StdRng,
    ) -> Connected {
        let Settings { limit, connect_limit, .. } = self.settings;
        let begun = Instant::now();
        let mut known_at = begun + limit.saturating_sub(silent).max(MOMENT.min(limit / 4));
        let mut known = false;
        // When the next attempt begins, and when it may begin if somebody asks.
        let (mut next, mut soonest) = (begun + pause, begun + pause);
        // When the latest attempt began, if one did.
        let mut latest = begun;
        let mut failures = 0;
        // An attempt that met a hole in the network is not waited for: others follow it.
        let mut attempts = FuturesUnordered::new();
        self.forget_heard();
        loop {
            let failure = tokio::select! {
                biased;
                Some(attempt) = attempts.next() => match attempt {
                    Ok(Ok(connected)) => return connected,
                    Ok(Err(failure)) => failure,
                    Err(_) => self.out_of_time().into(),
                },
                () = sleep_until(next), if attempts.len() < ATTEMPTS => {
                    attempts.push(timeout(connect_limit, self.connect(former.clone(), calls)));
                    let since = Instant::now();
                    latest = since;
                    next = since + limit / ATTEMPTS as u32;
                    soonest = next;
                    // For those who look next; for those who wait already it is no news.
                    self.link.send_if_modified(|link| {
                        if let Link::Down { attempt, .. } = link {
                            *attempt = Attempt::InFlight { since };
                        }
                        false
                    });
                    continue;
                }
                () = sleep_until(known_at), if !known => {
                    // A server that is slow but answers an attempt is not down.
                    let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(heard) = heard && heard + limit > known_at {
                        known_at = heard + limit;
                    } else {
                        known = true;
                        self.link.send_modify(|link| if let Link::Down { known, .. } = link { *known = true });
                    }
                    continue;
                }
                () = self.wanted.notified() => {
                    next = next.min(soonest);
                    continue;
                }
            };
            self.forget_heard();
            let Failure { error, refused } = failure;
            self.status.note(&error);
            if failures == 0 {
                tracing::warn!(address = self.address(), %error, cause = error.source(), "could not connect; trying again");
            }
            let (hurried, idle) = if refused { (REFUSED_PAUSE, REFUSED_PAUSE) } else { pauses(failures) };
            let chance = random.random();
            let now = Instant::now();
            soonest = now + jittered(hurried, chance);
            // Requests that wait, or have a command in flight, look at the link.
            next = if self.link.receiver_count() > 0 { soonest } else { now + jittered(idle, chance) };
            failures += 1;
            let attempt = if attempts.is_empty() { Attempt::Due(soonest) } else { Attempt::InFlight { since: latest } };
            let error = Some(error.did_not_happen());
            let down = Link::Down { since: begun, error, known, failures, attempt };
            self.link.send_if_modified(|link| {
                // One that is up is another upkeep's.
                let is_down = matches!(link, Link::Down { .. });
                if is_down {
                    *link = down;
                }
                is_down
            });
        }
    }

    /// Returns when the connection is of no use any more.
    async fn watch(&self, connection: Connection, pushes: &mut mpsc::UnboundedReceiver<PushInfo>, calls: &Calls) {
        let epoch = connection.epoch;
        let mut heartbeat = pin!(self.heartbeat(connection));
        let mut link = self.link.subscribe();
        let mut down = pin!(link.wait_for(|link| matches!(link, Link::Down { .. })));
        let mut pushed = true;
        loop {
            // Before the look, so that nothing is missed that is found after it.
            let found_broken = self.found_broken.notified();
            if self.broken.load(Ordering::Acquire) >= epoch {
                return;
            }
            tokio::select! {
                biased;
                () = found_broken => {}
                push = pushes.recv(), if pushed => match push {
                    Some(push) if push.kind == PushKind::Disconnection => return,
                    Some(push) if push.kind == PushKind::Message => {
                        if let Some((key, token)) = call(&push.data) {
                            calls.called(key, token);
                        }
                    }
                    Some(_) => {}
                    // No pushes over this protocol; the heartbeat has to notice.
                    None => pushed = false,
                },
                () = &mut heartbeat => return,
                // Another upkeep of this backend had a newer one, and has ended.
                _ = &mut down => return,
            }
        }
    }

    /// Returns when the connection does not answer any more.
    async fn heartbeat(&self, connection: Connection) {
        let ping = redis::cmd("PING");
        loop {
            sleep(HEARTBEAT).await;
            match self.send(connection.clone(), &ping, Instant::now() + self.settings.limit).await {
                Err(Unanswered::Broken(_) | Unanswered::Silent(_)) => return,
                Err(Unanswered::Refused(error)) if failure::is_demotion(&error) => self.demoted(&connection),
                _ if connection.about.demoted.load(Ordering::Relaxed) => self.demoted(&connection),
                _ => {}
            }
        }
    }
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

/// Says that the runtime has ended: the connection ended with it.
struct EndOfUpkeep<'a> {
    connector: &'a Connector,
    /// The epoch of the last connection that this upkeep has made.
    epoch: u64,
}

impl Drop for EndOfUpkeep<'_> {
    fn drop(&mut self) {
        self.connector.has_ended(self.epoch);
    }
}

impl About {
    fn answered_within(&self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
        // As a rule it is no news, and others look at it.
        if micros < self.round_trip.load(Ordering::Relaxed) {
            self.round_trip.fetch_min(micros, Ordering::Relaxed);
        }
    }

    /// How long it takes at least until silence says anything.
    fn least_silence(&self) -> Duration {
        LEAST_SILENCE.max(Duration::from_micros(self.round_trip.load(Ordering::Relaxed).saturating_mul(2)))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("address", &self.settings.address).finish_non_exhaustive()
    }
}

/// Reads a message on the channel of calls: its last part is token and key, with a space between.
pub(super) fn call(message: &[Value]) -> Option<(LockKey, Token)> {
    let Some(Value::BulkString(payload)) = message.last() else { return None };
    let (token, key) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    Some((LockKey::new(key).ok()?, token.parse().ok()?))
}

/// Errors of the connection, as opposed to answers of the server.
pub(super) fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), RedisErrorKind::Io | RedisErrorKind::Parse)
}

/// The longest pauses after so many failed attempts: while somebody waits, and while nobody does.
fn pauses(failures: u32) -> (Duration, Duration) {
    let pause = Duration::from_millis(10 << failures.min(7)).min(IDLE_PAUSE);
    (pause.min(HURRIED_PAUSE), pause)
}

/// From half of `longest` to all of it, as `chance` from 0 to 1 decides, so that a fleet does not come back in step.
fn jittered(longest: Duration, chance: f64) -> Duration {
    longest.mul_f64(0.5 + chance / 2.0)
}

/// How old an attempt to connect may become while requests wait for it, if the server is known to be down.
const GLANCE: Duration = Duration::from_millis(15);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The least time without an answer that counts as silence, however soon a renewal has to be tried again.
const LEAST_SILENCE: Duration = Duration::from_millis(100);
/// The longest pause between attempts to connect while somebody waits for the connection.
const HURRIED_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause while nobody does: a fleet of idle processes must not wear a server out that comes up.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause after the server refused us: somebody has to mend that first.
const REFUSED_PAUSE: Duration = Duration::from_millis(750);
/// How old a connection must be to be replaced because its server is not a primary.
const DEMOTED_AGAIN: Duration = Duration::from_secs(1);
/// How long a new connection may take after the former one fell silent, until the server counts as down.
const MOMENT: Duration = Duration::from_millis(100);
/// A connection that broke sooner than this may be the first of many.
const SHORT_LIVED: Duration = HURRIED_PAUSE;
/// How long it takes a runtime that goes on to read what has come.
const TO_READ: Duration = Duration::from_millis(1);
/// How long it may take one that has stood still.
const LATE_TO_READ: Duration = Duration::from_millis(25);
/// How many attempts to connect may be under way: they follow one another by this part of the limit of a command.
const ATTEMPTS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_grow_to_a_tenth_of_a_second_or_to_a_second_and_differ() {
        let (hurried, idle): (Vec<_>, Vec<_>) = (0..40).map(pauses).unzip();
        for (pauses, longest) in [(hurried, HURRIED_PAUSE), (idle, IDLE_PAUSE)] {
            assert!(pauses.is_sorted() && pauses[0] == Duration::from_millis(10), "{pauses:?}");
            assert!(pauses[3] >= HURRIED_PAUSE / 2 && pauses[39] == longest, "{pauses:?}");
        }
        let pauses = [0.0, 0.25, 0.5, 1.0].map(|chance| jittered(HURRIED_PAUSE, chance).as_millis());
        assert_eq!(pauses, [50, 62, 75, 100]);
    }
}
