//! The upkeep of the link: connects, listens for grants, watches the connection, and reconnects.

use std::{
    future::{Future, pending, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::FutureExt;
use rand::{RngExt, rngs::StdRng};
use redis::{PushInfo, PushKind, Value};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    attempts::Attempts,
    connection::{About, Connection, Driver},
    connector::{Connector, Unanswered},
    failure,
    handshake::{Connected, Former},
    pauses::{HURRIED_PAUSE, jittered, pauses},
};
use crate::{
    backend::{Calls, Grant},
    clock::Moment,
    engine::metrics,
    key::LockKey,
};

/// Keeps a connection to the node for as long as it is polled.
pub(super) async fn keep(connector: Arc<Connector>, calls: Calls) {
    let mut end = EndOfUpkeep { connector: &connector, epoch: 0 };
    if !connector.link.is_up() {
        metrics::connected(connector.address(), false, false);
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
        let attempts = Attempts::new(&connector, silent, pause);
        let Connected { inner, mut driver, mut pushes, run, id, listening, round_trip } =
            attempts.connect(&former, &calls, &mut random).await;
        former = run.clone().zip(id).map(|(run, id)| Former { run, id });
        let (connection, was_up) = connector.link.put_up(inner, About::new(run, round_trip));
        metrics::connected(connector.address(), was_up, true);
        if let Some(lost) = lost.take() {
            tracing::info!(address = connector.address(), after = ?lost.elapsed(), "connected again");
        }
        calls.listening(listening);
        let (epoch, since) = (connection.epoch, connection.since());
        end.epoch = epoch;
        watch(&connector, connection, &mut driver, &mut pushes, &calls).await;
        // What still waits for an answer over it is told that it has ended.
        drop(driver);
        connector.status.note(&connector.lost(epoch));
        silent = connector.link.silence(epoch);
        short_lived = if since.elapsed() < SHORT_LIVED { short_lived + 1 } else { 0 };
        take_down(&connector, epoch);
        calls.listening(false);
        if short_lived <= 1 {
            tracing::warn!(address = connector.address(), "connection lost; connecting anew");
            lost.get_or_insert_with(Instant::now);
        }
    }
}

/// Takes note that the connection of an epoch has ended, or the upkeep that kept it. One that another upkeep of this
/// backend has made stays.
fn take_down(connector: &Connector, epoch: u64) {
    if let Some(was_up) = connector.link.take_down(epoch) {
        metrics::connected(connector.address(), was_up, false);
    }
}

/// Returns when the connection is of no use any more.
async fn watch(
    connector: &Connector,
    connection: Connection,
    driver: &mut Driver,
    pushes: &mut mpsc::UnboundedReceiver<PushInfo>,
    calls: &Calls,
) {
    let mut broken = pin!(connector.link.broken(connection.epoch));
    let mut heartbeat = pin!(heartbeat(connector, connection));
    // Another upkeep of this backend had a newer one, and has ended.
    let mut down = pin!(connector.link.down());
    // Each once: a server that pushes without end must not keep the engine, which polls this, from its other work.
    poll_fn(|cx| {
        if broken.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // Before the pushes and answers that it reads. Its end shows in them.
        let _ = driver.poll_unpin(cx);
        // Nobody but the driver sends them, so there is nobody to be woken by. There are none over the older protocol; the
        // heartbeat has to notice its end.
        while let Ok(push) = pushes.try_recv() {
            match push.kind {
                PushKind::Disconnection => return Poll::Ready(()),
                PushKind::Message => {
                    if let Some(grant) = grant(&push.data) {
                        calls.granted(grant);
                    }
                }
                _ => {}
            }
        }
        if heartbeat.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        down.as_mut().poll(cx)
    })
    .await;
}

/// Returns when the connection does not answer any more.
async fn heartbeat(connector: &Connector, connection: Connection) {
    let ping = redis::cmd("PING");
    loop {
        sleep(HEARTBEAT).await;
        // Another upkeep of this backend may have a newer connection. The calls of this one's waiters come over this one.
        let (replaced, limit) = (pending(), Instant::now() + connector.limit());
        match connector.send_unless(replaced, connection.clone(), (&ping).into(), limit).await {
            Err(Unanswered::Broken(_) | Unanswered::Silent(_)) => return,
            // As when a transaction was left open.
            Ok(Value::SimpleString(reply)) if reply != "PONG" => return,
            Err(Unanswered::Refused(error)) if failure::is_demotion(&error) => connector.demoted(&connection),
            _ if connection.is_demoted() => connector.demoted(&connection),
            _ => {}
        }
    }
}

/// Reads a message on the channel of a manager: `token key sent T first-fence size`. The key may have spaces in it.
pub(super) fn grant(message: &[Value]) -> Option<Grant> {
    let Some(Value::BulkString(payload)) = message.last() else { return None };
    let (token, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
    let mut parts = rest.rsplitn(5, ' ');
    let block = parts.next()?.parse().ok()?;
    let fence = parts.next()?.parse().ok()?;
    let lasts = Duration::from_millis(parts.next()?.parse().ok()?);
    let sent = Moment::from_origin(Duration::from_micros(parts.next()?.parse().ok()?));
    let key = LockKey::new(parts.next()?).ok()?;
    Some(Grant::new(key, token.parse().ok()?, sent, lasts, (fence, block)))
}

/// Takes the link down when the runtime has ended: the connection ended with it.
struct EndOfUpkeep<'a> {
    connector: &'a Connector,
    /// The epoch of the last connection that this upkeep has made.
    epoch: u64,
}

impl Drop for EndOfUpkeep<'_> {
    fn drop(&mut self) {
        take_down(self.connector, self.epoch);
    }
}

const HEARTBEAT: Duration = Duration::from_secs(1);
/// A connection that broke sooner than this may be the first of many.
const SHORT_LIVED: Duration = HURRIED_PAUSE;
