//! The driver of the link: connects, listens for grants, watches the connection, and reconnects.
//!
//! What the server pushes is read by `watch`: a grant becomes a notice of [`Calls`](crate::backend::Calls), which the engine takes in
//! `handle_notice`.

use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    task::Poll,
    time::Duration,
};

use futures_util::future::join;
use rand::{RngExt, rngs::StdRng};
use redis::{PushKind, Value};
use tokio::time::{Instant, sleep};

use super::{
    attempts::Attempts,
    commands::Commands,
    connection::{About, Connection},
    connector::{Connector, Role, Unanswered},
    failure,
    former::Former,
    handshake::Connected,
    pauses::{HURRIED_PAUSE, jittered, pauses},
    provider::Logins,
    stream::Address,
    wire::Reader,
};
use crate::{
    backend::{Calls, Grant, Notice},
    caught::OnDrop,
    clock::Moment,
    key::LockKey,
    metrics,
};

/// Keeps a connection to the server, and to its sentinels if there are any, for as long as it is polled.
pub(super) async fn keep(connector: Arc<Connector>, calls: Calls) {
    let listeners = Arc::clone(&connector.listeners);
    listeners.add(calls.clone());
    let channel = Arc::clone(calls.channel());
    let _listener = OnDrop(move || listeners.remove(&channel));
    match connector.sentinels.clone() {
        Some(sentinels) => {
            join(sentinels.keep(), keep_server(connector, calls)).await;
        }
        None => keep_server(connector, calls).await,
    }
}

/// Keeps a connection to a server with locks, and waits for its replicas on behalf of requests, for as long as it is polled.
pub(super) async fn keep_server(connector: Arc<Connector>, calls: Calls) {
    join(keep_link(Arc::clone(&connector), calls), connector.replication.serve(&connector)).await;
}

/// Keeps a connection to one server for as long as it is polled.
pub(super) async fn keep_link(connector: Arc<Connector>, calls: Calls) {
    let mut end = EndOfDriver { connector: &connector, epoch: 0 };
    connector.keepers.fetch_add(1, Ordering::SeqCst);
    metrics::kept(&connector.name, true);
    let mut former = Former::default();
    let mut silent = Duration::ZERO;
    // How many connections in a row broke as soon as they were made.
    let mut short_lived = 0;
    // When a connection was lost, if that stands in the log.
    let mut lost: Option<Instant> = None;
    let mut random: StdRng = rand::make_rng();
    loop {
        let pause = match short_lived {
            // A first break is usually a restart or a failover, and the next connection works. Requests wait for it, so there is no
            // pause. Only a series of short connections (a proxy that accepts and closes, say) is slowed down.
            0 | 1 => Duration::ZERO,
            _ => jittered(pauses(short_lived - 2).0, random.random()),
        };
        let attempts = Attempts::new(&connector, silent, pause);
        let mut connected = attempts.connect(&former, &calls, &mut random).await;
        let shards = connector.role == Role::Node && connected.listening;
        let about = About::new(&mut connected, shards);
        let Connected { wire, mut reader, address, run, id, listening, logins, killed, .. } = connected;
        connector.tries_scripts.store(false, Ordering::Relaxed);
        let (connection, was_up) = connector.link.put_up(wire, about);
        metrics::connected(&connector.name, was_up, true);
        if let Some(lost) = lost.take() {
            log!(info, address = &*connector.address(), role = connector.role_in_log(), after = ?lost.elapsed(), "reconnected");
        }
        // `listening` makes the candidates ask again over this connection, whose channel is subscribed by now. `connected` has all leases
        // renewed, because this may be another server, or one that has lost its data.
        calls.listening(listening);
        calls.connected();
        let (epoch, since) = (connection.epoch, connection.about.since);
        end.epoch = epoch;
        // Requests of this engine may have gone over connections of another driver, and to other nodes of a cluster.
        let is_alone = connector.role == Role::Primary && !was_up;
        if former.follow(run, id, epoch, is_alone) {
            calls.pass_on(Notice::Moved);
        }
        if former.are_gone() {
            calls.settled(epoch);
        }
        let killed = async {
            if let Some(killed) = killed
                && killed.await
            {
                former.killed();
                if former.are_gone() {
                    calls.settled(epoch);
                }
            }
            pending::<()>().await;
        };
        let watched = watch(&connector, (connection, &address), &mut reader, logins, &calls);
        tokio::select! {
            biased;
            () = watched => {}
            () = killed => {}
        }
        former.ended();
        // The drop of the reader fails the requests that wait for an answer over this connection: nothing else would read their answers,
        // and they would wait for their whole limit.
        drop(reader);
        connector.status.note(&connector.lost(epoch));
        silent = connector.link.silence(epoch);
        short_lived = if since.elapsed() < SHORT_LIVED { short_lived + 1 } else { 0 };
        take_down(&connector, epoch);
        calls.listening(false);
        if short_lived <= 1 {
            log!(
                warn,
                address = &*connector.address(),
                role = connector.role_in_log(),
                "connection lost; reconnecting"
            );
            lost.get_or_insert_with(Instant::now);
        }
    }
}

/// Records that the connection of an epoch, or the driver that kept it, has ended. A connection that another driver of this
/// backend has made stays.
fn take_down(connector: &Connector, epoch: u64) {
    if let Some(was_up) = connector.link.take_down(epoch) {
        metrics::connected(&connector.name, was_up, false);
    }
}

/// Returns when the connection is of no further use.
async fn watch(
    connector: &Connector,
    (connection, address): (Connection, &Address),
    reader: &mut Reader,
    logins: Option<Logins>,
    calls: &Calls,
) {
    let mut broken = pin!(connector.link.broken(connection.epoch));
    let mut logins = pin!(connector.stay_logged_in(connection.clone(), logins));
    let mut heartbeat = pin!(heartbeat(connector, connection));
    // Another driver of this backend had a newer one, and has ended.
    let mut down = pin!(connector.link.down());
    let mut moved = pin!(connector.moved_from(address));
    // Each once: a server that pushes without end must not keep the engine, which polls this, from its other work.
    poll_fn(|cx| {
        if broken.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        // Its end is looked at last: what came before it counts.
        let mut ended = reader.poll(cx).is_ready();
        for push in reader.take_pushes() {
            match push.kind {
                // Unasked: a slot has moved away. Waiters for its keys have to ask again, over a new connection.
                PushKind::SUnsubscribe => ended = true,
                PushKind::Message if connector.role == Role::Sentinel => connector.told.notify_one(),
                PushKind::Message => {
                    if let Some(grant) = grant(&push.data) {
                        calls.granted(grant);
                    } else if let Some(Value::BulkString(message)) = push.data.last()
                        && let Ok(message) = std::str::from_utf8(message)
                    {
                        calls.message(message);
                    }
                }
                PushKind::Invalidate => connector.listeners.changed(&changed(&push.data)),
                PushKind::SMessage => {
                    if let (Some(grant), Some(Value::BulkString(channel))) = (grant(&push.data), push.data.first()) {
                        connector.listeners.granted(channel, grant);
                    }
                }
                _ => {}
            }
        }
        if ended {
            return Poll::Ready(());
        }
        let _ = logins.as_mut().poll(cx);
        if heartbeat.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        if moved.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        down.as_mut().poll(cx)
    })
    .await;
}

/// Returns when the connection no longer answers.
async fn heartbeat(connector: &Connector, connection: Connection) {
    let ping = Commands::one(["PING"]);
    loop {
        sleep(HEARTBEAT).await;
        // Another manager that shares this backend may have made a newer connection. The messages for this manager's waiters still come
        // over this one, so this one has to be watched until it breaks.
        let (replaced, limit) = (pending(), Instant::now() + connector.limit());
        match connector.reply_unless(replaced, &mut connection.clone().send(&ping, limit)).await {
            Err(Unanswered::Broken(_) | Unanswered::Silent(_)) => return,
            // As when a transaction was left open.
            Ok(replies) if matches!(&replies[..], [Value::SimpleString(reply)] if reply != "PONG") => return,
            Err(Unanswered::Refused(error)) if failure::is_demotion(&error) => connector.demoted(&connection),
            _ if connection.is_demoted() => connector.demoted(&connection),
            _ => {}
        }
    }
}

/// Reads which keys have changed. Returns `None` if it may be any key.
fn changed(message: &[Value]) -> Option<Vec<LockKey>> {
    let Some(Value::Array(keys)) = message.first() else { return None };
    let key = |value: &Value| match value {
        Value::BulkString(key) => LockKey::new(std::str::from_utf8(key).ok()?).ok(),
        _ => None,
    };
    Some(keys.iter().filter_map(key).collect())
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

/// Takes the link down when the runtime has ended: its connections ended with it.
struct EndOfDriver<'a> {
    connector: &'a Connector,
    /// The epoch of the last connection that this driver has made.
    epoch: u64,
}

impl Drop for EndOfDriver<'_> {
    fn drop(&mut self) {
        take_down(self.connector, self.epoch);
        metrics::kept(&self.connector.name, false);
        self.connector.keepers.fetch_sub(1, Ordering::SeqCst);
    }
}

const HEARTBEAT: Duration = Duration::from_secs(1);
/// A connection that broke sooner than this may be the first of many.
const SHORT_LIVED: Duration = HURRIED_PAUSE;
