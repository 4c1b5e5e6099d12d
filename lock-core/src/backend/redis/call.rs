//! Calls: a batch as commands, repeated over the next connection if one breaks.
//!
//! The commands are written when the call is made, before the returned future is polled, so calls leave in the order of the engine. An
//! answer says what a repetition may have changed: `repeated` if the batch may have been executed twice, `out_of_order` if later
//! calls may have come before it. The engine keeps tokens in doubt by these two.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::atomic::Ordering,
    time::Duration,
};

use futures_util::future::{BoxFuture, join, join_all};
use redis::{RedisError, Value};
use tokio::{task::coop::unconstrained, time::Instant};

use super::{
    cluster::Redirection,
    connection::{Connection, Sent},
    connector::{Connector, Unanswered},
    failure,
    free::{self, Taken},
    renewals,
    script::{self, By},
    way::Way,
};
use crate::{
    backend::{Acquire, Answer, BackendError, Batch, BusyReason, Operation, Outcome, Replied},
    error::ErrorKind,
};

/// Executes a batch. A connection that breaks under it is replaced, and the batch repeated, until the limit; but not if it
/// releases by force.
pub(super) async fn call(mut way: Way, batch: Batch, within: Duration) -> Replied<Answer> {
    let limit = limit(&way, within);
    let mut waited = false;
    let connected = {
        let mut connection = pin!(way.connection(limit));
        poll_fn(|cx| {
            let connected = connection.as_mut().poll(cx);
            waited |= connected.is_pending();
            connected
        })
        .await
    };
    match connected {
        Ok(connection) => {
            let mut answer = put(way, connection, batch, limit).await?;
            // Others that have waited for it, too, may have gone first.
            answer.out_of_order |= waited;
            Ok(answer)
        }
        Err(error) => {
            let failed = Err(error);
            way.note(&failed);
            failed
        }
    }
}

/// Puts a batch on the wire of a connection, as commands that are written together. Then the answer is waited for as by [`call`].
pub(super) fn put(
    way: Way,
    connection: Connection,
    mut batch: Batch,
    limit: Instant,
) -> BoxFuture<'static, Replied<Answer>> {
    let takes_free = connection.takes_transactions() && !way.connector().stuck.load(Ordering::Relaxed);
    let begin = if takes_free { free::begin(&batch) } else { batch.len() };
    // An answer that has arrived counts, however much else the task has done.
    if begin == batch.len() {
        return Box::pin(unconstrained(execute(way, connection, batch, limit)));
    }
    if begin == 0 {
        return Box::pin(unconstrained(acquire_free(way, connection, batch, limit)));
    }
    // Both leave at once, in this order.
    let last: Batch = batch.drain(begin..).collect();
    let counts = [batch.len(), last.len()];
    let first = execute(way.clone(), connection.clone(), batch, limit);
    let second = acquire_free(way, connection, last, limit);
    Box::pin(unconstrained(async move {
        let (first, second) = join(first, second).await;
        let mut answer = Answer::of(first, counts[0]);
        let second = Answer::of(second, counts[1]);
        answer.by = answer.by.or_else(|| second.by.clone());
        // If one part was sent again, the whole counts as sent again, which is the safe side.
        answer.append(second);
        Ok(answer)
    }))
}

/// The time in which the answer to a batch is useful.
pub(super) fn within(batch: &[Operation]) -> Duration {
    batch.iter().filter_map(Operation::as_renew).map(|renew| renew.within).min().unwrap_or(Duration::MAX)
}

/// Until when to wait for an answer that is useful `within` that time from now.
pub(super) fn limit(way: &Way, within: Duration) -> Instant {
    Instant::now() + way.connector().limit().min(within.max(way.least_silence()))
}

/// The history of a batch.
#[derive(Clone, Default)]
struct Tried {
    /// Why the last connection that carried it did not answer, if one was lost.
    unanswered: Option<BackendError>,
    /// Whether it was sent again though nothing was lost, so that others may have come before it.
    late: bool,
}

impl Tried {
    /// Reads an error of the last connection, which says nothing of what an earlier one carried.
    fn judge(&self, error: BackendError) -> BackendError {
        if self.unanswered.is_some() { error.in_doubt() } else { error }
    }
}

/// Executes acquires of keys that are thought to be free, without the script. If the connection breaks or the server refuses,
/// the script executes them with the same tokens.
fn acquire_free(
    way: Way,
    connection: Connection,
    batch: Batch,
    limit: Instant,
) -> impl Future<Output = Replied<Answer>> + Send {
    let mut sent = connection.send(&free::transaction(way.tag(), &batch), limit);
    async move {
        let taken = way.connector().reply(&mut sent).await.map(|replies| free::read(&batch, &replies));
        if let Ok(Taken::Whole(mut answer)) = taken {
            answer.by = sent.connection.about.run.clone();
            return Ok(answer);
        }
        Box::pin(acquire_after(taken, way, sent.connection, batch, limit)).await
    }
}

/// Executes acquires by the script, after a transaction that has not.
async fn acquire_after(
    taken: Result<Taken, Unanswered>,
    mut way: Way,
    connection: Connection,
    batch: Batch,
    limit: Instant,
) -> Replied<Answer> {
    let count = batch.len();
    let mut in_part = false;
    match taken {
        Ok(Taken::Whole(_) | Taken::Nothing) => {}
        Ok(Taken::Part) => {
            connection.note_no_transactions();
            in_part = true;
        }
        Ok(Taken::Open) => {
            // Another connection has none open.
            way.connector().stuck.store(true, Ordering::Relaxed);
            way.connector().link.replace(connection.epoch, Duration::ZERO);
            way.lost(&connection);
        }
        Err(unanswered) => {
            return execute_after(Some((connection, unanswered)), way, batch, limit, Tried::default()).await;
        }
    }
    // The script is sent only after the transaction has failed. Requests that were sent in between are executed before it, among them
    // perhaps the release of one of its tokens, so the answer counts as out of order (`late`).
    let tried = Tried { unanswered: None, late: true };
    let answer = Answer::of(execute_after(None, way, batch, limit, tried).await, count);
    Ok(if in_part { answer.in_doubt() } else { answer })
}

/// Executes a batch by the script.
fn execute(
    mut way: Way,
    connection: Connection,
    mut batch: Batch,
    limit: Instant,
) -> impl Future<Output = Replied<Answer>> + Send {
    let mut call = Call::send(&mut way, connection, &mut batch, By::Hash, limit);
    async move {
        let tried = Tried::default();
        match call.reply(way.connector()).await {
            Ok(reply) => {
                let answer = answer(&way, &call.sent.connection, &batch, reply, &tried);
                way.note(&answer);
                answer
            }
            Err(unanswered) => {
                let last = Some((call.sent.connection, unanswered));
                Box::pin(execute_after(last, way, batch, limit, tried)).await
            }
        }
    }
}

/// Executes a batch by the script, after the `last` attempt if there was one.
async fn execute_after(
    last: Option<(Connection, Unanswered)>,
    mut way: Way,
    batch: Batch,
    limit: Instant,
    mut tried: Tried,
) -> Replied<Answer> {
    let count = batch.len();
    let answer = match until_answered(last, &mut way, batch, limit, &mut tried).await {
        // The engine has to know that a release which it sent meanwhile may have been executed first: it keeps the tokens in doubt.
        Err(error) if tried.late => {
            let mut answer = Answer::of(Err(error), count);
            (answer.out_of_order, answer.repeated) = (true, tried.unanswered.is_some());
            Ok(answer)
        }
        result => result,
    };
    way.note(&answer);
    answer
}

async fn until_answered(
    mut last: Option<(Connection, Unanswered)>,
    way: &mut Way,
    mut batch: Batch,
    limit: Instant,
    tried: &mut Tried,
) -> Replied<Answer> {
    loop {
        let mut by = By::Hash;
        if let Some((connection, unanswered)) = last {
            way.not_executed(&connection);
            match unanswered {
                // A forced release names no token. Sent again, it would remove the next holder.
                Unanswered::Broken(error) if batch.iter().any(|item| matches!(item, Operation::Force { .. })) => {
                    return Err(error);
                }
                Unanswered::Broken(error) => {
                    way.lost(&connection);
                    tried.unanswered = Some(error);
                }
                Unanswered::Unsent(error) => return Err(tried.unanswered.clone().unwrap_or(error)),
                Unanswered::Silent(error) => return Err(error),
                Unanswered::Refused(error) if failure::is_no_script(&error) => {
                    // Between `EVALSHA` and `EVAL` another request may load the script and be executed first, so the order is broken.
                    tried.late = true;
                    by = By::Source;
                    way.ask_again();
                }
                Unanswered::Refused(error) => match way.redirected(&error, limit).await {
                    Some(Redirection::Apart) if without_side_keys(&mut batch) => {
                        return one_by_one(way, batch, limit, tried.clone()).await;
                    }
                    Some(Redirection::Again | Redirection::Apart) => tried.late = true,
                    Some(Redirection::TooLate) => return too_late(way, &batch, &error, tried),
                    None => return refused(way, connection, batch, limit, tried.clone(), error).await,
                },
            }
        }
        let connection = match way.connection(limit).await {
            Ok(connection) => connection,
            // The error of an earlier connection is returned instead: over that one the batch was sent and may have been executed, while
            // this error alone would say that nothing happened.
            Err(error) => return Err(tried.unanswered.clone().unwrap_or(error)),
        };
        let mut call = Call::send(way, connection, &mut batch, by, limit);
        match call.reply(way.connector()).await {
            Ok(reply) => return answer(way, &call.sent.connection, &batch, reply, tried),
            Err(unanswered) => last = Some((call.sent.connection, unanswered)),
        }
    }
}

/// Reads the reply to a batch, and what stood at the watched keys afterwards.
fn answer(
    way: &Way,
    connection: &Connection,
    batch: &[Operation],
    (reply, seen): (Value, Value),
    tried: &Tried,
) -> Replied<Answer> {
    let connector = way.connector();
    connection.note_script_run();
    if failure::tells_of_demotion(&reply) {
        connector.demoted(connection);
    }
    let mut answer = script::answer_to(batch, reply, &connector.address())?;
    answer.repeated = tried.unanswered.is_some();
    if answer.repeated {
        // This answer may say that nothing was done, but the batch was sent over an earlier connection too, where it may have been
        // executed.
        answer = answer.in_doubt();
    }
    answer.out_of_order = tried.late;
    answer.by = connection.about.run.clone();
    if answer.calls_refused {
        connector.advice.no_publish(&connector.address());
    }
    renewals::see(batch, &seen, &mut answer);
    Ok(answer)
}

/// Handles a batch that the server has refused as a whole.
async fn refused(
    way: &Way,
    connection: Connection,
    batch: Batch,
    limit: Instant,
    tried: Tried,
    error: RedisError,
) -> Replied<Answer> {
    let connector = way.connector();
    if failure::is_demotion(&error) {
        connector.demoted(&connection);
    }
    let error = connector.refusal(error);
    if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) {
        // A user who may not run the script could acquire by a transaction, but never release. So no transactions either.
        connection.note_no_transactions();
    }
    // A batch is refused as a whole if the user may not access one of its keys.
    if matches!(error.kind(), ErrorKind::Denied) && batch.len() > 1 {
        return one_by_one(way, batch, limit, tried).await;
    }
    Err(tried.judge(error))
}

/// A call of the script, with commands before and after it in the same write.
struct Call {
    sent: Sent,
    before: usize,
    /// Whether the last command reads the keys of renewals, which are watched from then on.
    is_watched: bool,
}

impl Call {
    fn send(way: &mut Way, connection: Connection, batch: &mut Batch, by: By, limit: Instant) -> Self {
        let mut commands = way.prepare(&connection, batch);
        let before = commands.count();
        script::add_call(&mut commands, by, way.tag(), batch);
        let is_watched = renewals::watch(&mut commands, batch, &connection);
        Self { sent: connection.send(&commands, limit), before, is_watched }
    }

    /// Waits for the reply to the call, and for what stood at the watched keys after it.
    async fn reply(&mut self, connector: &Connector) -> Result<(Value, Value), Unanswered> {
        let mut replies = connector.reply(&mut self.sent).await?;
        if replies.len() < self.sent.count {
            return Err(Unanswered::Broken(connector.lost(self.sent.connection.epoch)));
        }
        let refused = replies.iter().take(self.before).filter_map(|reply| match reply {
            Value::ServerError(error) => Some(error.code() == "NOPERM"),
            _ => None,
        });
        if let Some(is_forbidden) = refused.max() {
            self.sent.connection.note_refused_channels(is_forbidden);
        }
        let seen = if self.is_watched { replies.pop().unwrap_or(Value::Nil) } else { Value::Nil };
        let reply = replies.into_iter().nth(self.before).unwrap_or(Value::Nil);
        Ok((reply.extract_error().map_err(Unanswered::Refused)?, seen))
    }
}

/// Runs each operation by itself.
async fn one_by_one(way: &Way, batch: Batch, limit: Instant, tried: Tried) -> Replied<Answer> {
    let mut whole = Answer::new([]);
    whole.out_of_order = true;
    whole.repeated = tried.unanswered.is_some();
    // All are sent at once and take one round trip together. Their order is not kept, which `late` reports.
    let late = Tried { unanswered: None, late: true };
    let calls = batch
        .into_iter()
        .map(|operation| Box::pin(execute_after(None, way.clone(), Batch::from([operation]), limit, late.clone())));
    for answer in join_all(calls).await {
        let outcome = answer.and_then(|answer| {
            whole.note(&answer);
            answer.single()
        });
        whole.outcomes.push(outcome.map_err(|error| tried.judge(error)));
    }
    Ok(whole)
}

/// Makes a batch ready to be run one by one while the keys of its slot are at two nodes. Returns whether that may help.
///
/// A command with one key is redirected to wherever the key is, so renewals give up their side keys. All other operations
/// wait until the slot has moved.
fn without_side_keys(batch: &mut Batch) -> bool {
    let mut may_help = batch.len() > 1;
    for operation in batch {
        if renewals::is_plain(std::slice::from_ref(operation)) {
            continue;
        }
        if let Operation::Renew(renew) = operation {
            (renew.block, renew.floor, renew.aim) = (0, 0, 0);
            may_help = true;
        }
    }
    may_help
}

/// The answer to a batch that was refused for all of its time, because the cluster was not ready for it.
///
/// A key whose slot moves counts as busy, so that waiters ask again.
fn too_late(way: &Way, batch: &[Operation], error: &RedisError, tried: &Tried) -> Replied<Answer> {
    let address = way.connector().address();
    let code = error.code().unwrap_or("ERR");
    let detail = failure::sentence(error.detail().unwrap_or_default());
    let message = format!(
        "{address} kept answering {code} ({detail}) until the time limit; inspect the cluster (redis-cli --cluster check)"
    );
    let failed = tried.judge(BackendError::unavailable(message).did_not_happen());
    let is_moving = matches!(code, "ASK" | "TRYAGAIN") && tried.unanswered.is_none();
    let mut answer = Answer::new(batch.iter().map(|operation| match operation {
        Operation::Acquire(Acquire { from: None, .. }) if is_moving => {
            Ok(Outcome::Busy { remaining: Some(SOON), by: BusyReason::Foreign, position: None })
        }
        _ => Err(failed.clone()),
    }));
    answer.out_of_order = true;
    Ok(answer)
}

/// When to ask again for a key whose slot moves.
const SOON: Duration = Duration::from_millis(50);
