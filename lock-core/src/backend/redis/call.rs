//! Calls: a batch as commands, repeated over the next connection if one breaks.

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::future::{join, join_all};
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::time::Instant;

use super::{
    cluster::Redirection,
    connection::{Ask, Connection},
    connector::{Connector, Unanswered},
    failure,
    free::{self, Taken},
    renewals, script,
    way::Way,
};
use crate::{
    backend::{Acquire, Answer, BackendError, Batch, BusyReason, Operation, Outcome},
    error::ErrorKind,
};

/// Executes a batch. A connection that breaks under it is replaced, and the batch repeated, until the limit; but not if it
/// releases by force.
pub(super) async fn call(way: Way<'_>, mut batch: Batch) -> Result<Answer, BackendError> {
    let within = way.connector().limit().min(of_use_within(&batch).max(way.least_silence()));
    let limit = Instant::now() + within;
    let begin = free::begin(&batch);
    if begin == batch.len() {
        return execute(way, batch, limit, Tried::default()).await;
    }
    if begin == 0 {
        return acquire_free(way, batch, limit).await;
    }
    // Both leave at once, in this order.
    let last: Batch = batch.drain(begin..).collect();
    let counts = [batch.len(), last.len()];
    let rest = Box::pin(execute(way.clone(), batch, limit, Tried::default()));
    let (first, second) = join(rest, acquire_free(way, last, limit)).await;
    let mut answer = answered(first, counts[0]);
    let second = answered(second, counts[1]);
    answer.by = answer.by.or_else(|| second.by.clone());
    // If one part was sent again, the whole counts as sent again, which is the safe side.
    answer.append(second);
    Ok(answer)
}

/// How long to wait for the answer to a batch so that its renewals can still be retried in time.
fn of_use_within(batch: &[Operation]) -> Duration {
    let within = batch.iter().map(|operation| match operation {
        Operation::Renew(renew) => renew.within,
        _ => Duration::MAX,
    });
    within.min().unwrap_or(Duration::MAX)
}

/// Makes an answer of a failure: each of the `count` operations has failed with the error. A failure of one part of a batch
/// says nothing of the other.
pub(super) fn answered(answer: Result<Answer, BackendError>, count: usize) -> Answer {
    answer.unwrap_or_else(|error| Answer::new((0..count).map(|_| Err(error.clone()))))
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
async fn acquire_free(mut way: Way<'_>, batch: Batch, limit: Instant) -> Result<Answer, BackendError> {
    let connection = way.connection(limit).await?;
    if !connection.takes_transactions() || way.connector().stuck.load(Ordering::Relaxed) {
        return Box::pin(execute(way, batch, limit, Tried::default())).await;
    }
    let (count, commands) = (batch.len(), free::transaction(way.tag(), &batch));
    let mut in_part = false;
    match way.connector().send(connection.clone(), Ask::Each(&commands), limit).await {
        Ok(replies) => match free::read(&batch, &replies) {
            Taken::Whole(mut answer) => {
                answer.by = connection.run();
                return Ok(answer);
            }
            Taken::Nothing => {}
            Taken::Part => {
                connection.note_no_transactions();
                in_part = true;
            }
            Taken::Open => {
                // Another connection has none open.
                way.connector().stuck.store(true, Ordering::Relaxed);
                way.connector().link.replace(connection.epoch, Duration::ZERO);
                way.lost(&connection);
            }
        },
        Err(Unanswered::Broken(error)) => {
            way.lost(&connection);
            let tried = Tried { unanswered: Some(error), late: false };
            return Box::pin(execute(way, batch, limit, tried)).await;
        }
        Err(unanswered) => return Err(way.connector().failed(unanswered)),
    }
    // The script is sent only after the transaction has failed. Requests that were sent in between are executed before it, among them
    // perhaps the release of one of its tokens, so the answer counts as out of order (`late`).
    let tried = Tried { unanswered: None, late: true };
    let answer = answered(Box::pin(execute(way, batch, limit, tried)).await, count);
    Ok(if in_part { answer.in_doubt() } else { answer })
}

/// Executes a batch by the script.
async fn execute(way: Way<'_>, batch: Batch, limit: Instant, mut tried: Tried) -> Result<Answer, BackendError> {
    let count = batch.len();
    match run(way, batch, limit, &mut tried).await {
        // The engine has to know that a release which it sent meanwhile may have been executed first: it keeps the tokens in doubt.
        Err(error) if tried.late => {
            let mut answer = answered(Err(error), count);
            (answer.out_of_order, answer.repeated) = (true, tried.unanswered.is_some());
            Ok(answer)
        }
        result => result,
    }
}

async fn run(mut way: Way<'_>, mut batch: Batch, limit: Instant, tried: &mut Tried) -> Result<Answer, BackendError> {
    loop {
        let connection = match way.connection(limit).await {
            Ok(connection) => connection,
            // The error of an earlier connection is returned instead: over that one the batch was sent and may have been executed, while
            // this error alone would say that nothing happened.
            Err(error) => return Err(tried.unanswered.clone().unwrap_or(error)),
        };
        match evaluate(&mut way, connection.clone(), &mut batch, limit, tried).await {
            Ok((reply, seen)) => {
                let mut answer = answer(&way, &connection, &batch, reply, tried)?;
                renewals::see(&batch, &seen, &mut answer);
                return Ok(answer);
            }
            // A forced release names no token. Sent again, it would remove the next holder.
            Err(Unanswered::Broken(error)) if batch.iter().any(|item| matches!(item, Operation::Force { .. })) => {
                return Err(error);
            }
            Err(Unanswered::Broken(error)) => {
                way.lost(&connection);
                tried.unanswered = Some(error);
            }
            Err(Unanswered::Unsent(error)) => return Err(tried.unanswered.clone().unwrap_or(error)),
            Err(Unanswered::Silent(error)) => return Err(error),
            Err(Unanswered::Refused(error)) => match way.redirected(&error, limit).await {
                Some(Redirection::Apart) if without_side_keys(&mut batch) => {
                    return Box::pin(one_by_one(way, batch, limit, tried.clone())).await;
                }
                Some(Redirection::Again | Redirection::Apart) => tried.late = true,
                Some(Redirection::TooLate) => return too_late(&way, &batch, &error, tried),
                None => return Box::pin(refused(way, connection, batch, limit, tried.clone(), error)).await,
            },
        }
    }
}

/// Reads the reply to a batch.
fn answer(
    way: &Way<'_>,
    connection: &Connection,
    batch: &[Operation],
    reply: Value,
    tried: &Tried,
) -> Result<Answer, BackendError> {
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
    answer.by = connection.run();
    if answer.calls_refused {
        connector.advice.no_publish(&connector.address());
    }
    Ok(answer)
}

/// Handles a batch that the server has refused as a whole.
async fn refused(
    way: Way<'_>,
    connection: Connection,
    batch: Batch,
    limit: Instant,
    tried: Tried,
    error: RedisError,
) -> Result<Answer, BackendError> {
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

/// Runs the script by its hash, or by its source if the server does not have it. Returns the reply, and the values of the keys
/// afterwards if they are watched from then on.
async fn evaluate(
    way: &mut Way<'_>,
    connection: Connection,
    batch: &mut Batch,
    limit: Instant,
    tried: &mut Tried,
) -> Result<(Value, Value), Unanswered> {
    let around = Around { before: way.prepare(&connection, batch), after: renewals::watch(batch, &connection) };
    let (tag, connector) = (way.tag(), way.connector());
    let mut result = around.run(connector, connection.clone(), script::evalsha(tag, batch), limit).await;
    if matches!(&result, Err(Unanswered::Refused(error)) if failure::is_no_script(error)) {
        // Between `EVALSHA` and `EVAL` another request may load the script and be executed first, so the order is broken.
        tried.late = true;
        result = around.run(connector, connection.clone(), script::eval(tag, batch), limit).await;
    }
    if result.is_err() {
        way.not_executed(&connection);
    }
    result
}

/// Commands that are sent in the same write as another one.
struct Around {
    before: Vec<Cmd>,
    after: Vec<Cmd>,
}

impl Around {
    /// Sends all of it. Returns the replies to the command and to the last one after it, if there is any.
    async fn run(
        &self,
        connector: &Connector,
        connection: Connection,
        command: Cmd,
        limit: Instant,
    ) -> Result<(Value, Value), Unanswered> {
        let Self { before, after } = self;
        if before.is_empty() && after.is_empty() {
            return connector.send(connection, &command, limit).await.map(|reply| (reply, Value::Nil));
        }
        let mut commands = Pipeline::with_capacity(before.len() + 1 + after.len());
        for command in before.iter().chain([&command]).chain(after) {
            commands.add_command(command.clone());
        }
        let listens = connection.clone();
        let Value::Array(mut replies) = connector.send(connection, Ask::Each(&commands), limit).await? else {
            return Ok((Value::Nil, Value::Nil));
        };
        let refused = replies.iter().take(before.len()).filter_map(|reply| match reply {
            Value::ServerError(error) => Some(error.code() == "NOPERM"),
            _ => None,
        });
        if let Some(is_forbidden) = refused.max() {
            listens.note_refused_channels(is_forbidden);
        }
        let seen = if after.is_empty() { Value::Nil } else { replies.pop().unwrap_or(Value::Nil) };
        let reply = replies.into_iter().nth(before.len()).unwrap_or(Value::Nil);
        Ok((reply.extract_error().map_err(Unanswered::Refused)?, seen))
    }
}

/// Runs each operation by itself.
async fn one_by_one(way: Way<'_>, batch: Batch, limit: Instant, tried: Tried) -> Result<Answer, BackendError> {
    let mut whole = Answer::new([]);
    whole.out_of_order = true;
    whole.repeated = tried.unanswered.is_some();
    // All are sent at once and take one round trip together. Their order is not kept, which `late` reports.
    let late = Tried { unanswered: None, late: true };
    let calls = batch
        .into_iter()
        .map(|operation| Box::pin(execute(way.clone(), Batch::from([operation]), limit, late.clone())));
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
fn too_late(way: &Way<'_>, batch: &[Operation], error: &RedisError, tried: &Tried) -> Result<Answer, BackendError> {
    let address = way.connector().address();
    let code = error.code().unwrap_or("ERR");
    let detail = failure::sentence(error.detail().unwrap_or_default());
    let message = format!(
        "{address} kept answering {code} ({detail}) until the time limit; inspect the cluster (redis-cli --cluster check)"
    );
    let failed = tried.judge(BackendError::new(ErrorKind::Backend, message).did_not_happen());
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
