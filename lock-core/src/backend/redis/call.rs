//! Calls: a batch as commands, repeated over the next connection if one breaks.

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::future::{join, join_all};
use redis::Cmd;
use tokio::time::Instant;

use super::{
    connection::{Ask, Connection},
    connector::{Connector, Unanswered},
    failure,
    free::{self, Executed},
    script,
};
use crate::{
    backend::{Answer, BackendError, Batch, Operation},
    error::ErrorKind,
};

/// Executes a batch. A connection that breaks under it is replaced, and the batch repeated, until the limit; but not if it
/// releases by force.
pub(super) async fn call(connector: &Connector, mut batch: Batch) -> Result<Answer, BackendError> {
    let limit = connector.limit().min(of_use_within(&batch).max(connector.link.least_silence()));
    let limit = Instant::now() + limit;
    let begin = free::begin(&batch);
    if begin == batch.len() {
        return execute(connector, batch, limit, Tried::default()).await;
    }
    if begin == 0 {
        return acquire_free(connector, batch, limit).await;
    }
    // Both leave at once, in this order.
    let last = batch.split_off(begin);
    let counts = [batch.len(), last.len()];
    let rest = Box::pin(execute(connector, batch, limit, Tried::default()));
    let (first, second) = join(rest, acquire_free(connector, last, limit)).await;
    let mut answer = answered(first, counts[0]);
    let second = answered(second, counts[1]);
    answer.by = answer.by.or_else(|| second.by.clone());
    // If one part was sent again, so was the whole, as far as is told: that is the careful side.
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

/// The answer to `count` operations, of which each has failed with the error if there is one: what fails a part of a batch says
/// nothing of the other.
fn answered(answer: Result<Answer, BackendError>, count: usize) -> Answer {
    answer.unwrap_or_else(|error| Answer::new((0..count).map(|_| Err(error.clone()))))
}

/// What has become of a batch so far.
#[derive(Default)]
struct Tried {
    /// The epoch of the last connection.
    after: u64,
    /// Why that did not answer, if it was lost.
    unanswered: Option<BackendError>,
}

/// Executes acquires of keys that are thought to be free, without the script; but by the script, with the same tokens, if the
/// connection breaks or the server refuses.
async fn acquire_free(connector: &Connector, batch: Batch, limit: Instant) -> Result<Answer, BackendError> {
    let connection = connector.connection(0, limit).await?;
    if !connection.takes_transactions() || connector.stuck.load(Ordering::Relaxed) {
        return Box::pin(execute(connector, batch, limit, Tried::default())).await;
    }
    let (count, commands) = (batch.len(), free::transaction(&batch));
    let mut tried = Tried::default();
    let mut in_part = false;
    match connector.send(connection.clone(), Ask::Transaction(&commands), limit).await {
        Ok(replies) => match free::read(&batch, &replies) {
            Executed::Whole(mut answer) => {
                answer.by = connection.run();
                return Ok(answer);
            }
            Executed::Nothing => {}
            Executed::Part => {
                connection.refuses_transactions();
                in_part = true;
            }
            Executed::Open => {
                // Another connection has none open.
                connector.stuck.store(true, Ordering::Relaxed);
                connector.link.replace(connection.epoch, Duration::ZERO);
                tried.after = connection.epoch;
            }
        },
        Err(Unanswered::Broken(error)) => {
            let tried = Tried { after: connection.epoch, unanswered: Some(error) };
            return Box::pin(execute(connector, batch, limit, tried)).await;
        }
        Err(Unanswered::Unsent(error) | Unanswered::Silent(error)) => return Err(error),
        // Of a transaction it is an answer.
        Err(Unanswered::Refused(error)) => return Err(failure::of(error, connector.address())),
    }
    let mut answer = answered(Box::pin(execute(connector, batch, limit, tried)).await, count);
    if in_part {
        answer = answer.in_doubt();
    }
    // What was sent meanwhile came before it.
    answer.out_of_order = true;
    Ok(answer)
}

/// Executes a batch by the script.
async fn execute(connector: &Connector, batch: Batch, limit: Instant, tried: Tried) -> Result<Answer, BackendError> {
    let evalsha = script::evalsha(&batch);
    let Tried { mut after, mut unanswered } = tried;
    loop {
        let connection = match connector.connection(after, limit).await {
            Ok(connection) => connection,
            // What was sent over an earlier connection may have happened.
            Err(error) => return Err(unanswered.unwrap_or(error)),
        };
        after = connection.epoch;
        match evaluate(connector, connection.clone(), &evalsha, &batch, limit).await {
            Ok((reply, by_source)) => {
                connection.has_run_script();
                if failure::tells_of_demotion(&reply) {
                    connector.demoted(&connection);
                }
                let mut answer = script::answer_to(&batch, reply, connector.address())?;
                answer.repeated = unanswered.is_some();
                if answer.repeated {
                    // What this one refused an earlier one may have done.
                    answer = answer.in_doubt();
                }
                answer.out_of_order = by_source;
                answer.by = connection.run();
                if answer.calls_refused {
                    connector.advice.no_publish(connector.address());
                }
                return Ok(answer);
            }
            // By now the next holder may have the key.
            Err(Unanswered::Broken(error)) if batch.iter().any(|item| matches!(item, Operation::Force { .. })) => {
                return Err(error);
            }
            Err(Unanswered::Broken(error)) => unanswered = Some(error),
            Err(Unanswered::Unsent(error)) => return Err(unanswered.unwrap_or(error)),
            Err(Unanswered::Silent(error)) => return Err(error),
            Err(Unanswered::Refused(error)) => {
                if failure::is_demotion(&error) {
                    connector.demoted(&connection);
                }
                let error = failure::of(error, connector.address());
                if matches!(error.kind(), ErrorKind::Denied | ErrorKind::Unsupported) {
                    // What may not be released must not be taken.
                    connection.refuses_transactions();
                }
                // A batch is refused as a whole where the user may not touch one of its keys.
                if matches!(error.kind(), ErrorKind::Denied) && batch.len() > 1 {
                    return one_by_one(connector, batch, limit, unanswered.is_some()).await;
                }
                // A refusal says nothing of what an earlier connection carried.
                return Err(if unanswered.is_some() { error.in_doubt() } else { error });
            }
        }
    }
}

/// Runs the script by its hash, or by its source where the server does not have it; returns the reply, and whether it
/// came to the latter. What was sent meanwhile may have been executed first, if others have brought the script.
async fn evaluate(
    connector: &Connector,
    connection: Connection,
    evalsha: &Cmd,
    batch: &[Operation],
    limit: Instant,
) -> Result<(redis::Value, bool), Unanswered> {
    match connector.send(connection.clone(), evalsha, limit).await {
        Err(Unanswered::Refused(error)) if failure::is_no_script(&error) => {
            connector.send(connection, &script::eval(batch), limit).await.map(|reply| (reply, true))
        }
        result => result.map(|reply| (reply, false)),
    }
}

/// Runs each operation by itself; `repeated` says that an earlier connection may have carried them.
async fn one_by_one(
    connector: &Connector,
    batch: Batch,
    limit: Instant,
    repeated: bool,
) -> Result<Answer, BackendError> {
    let mut whole = Answer::new([]);
    whole.out_of_order = true;
    whole.repeated = repeated;
    // All at once, so that they take one round trip together.
    let calls = batch
        .into_iter()
        .map(|operation| Box::pin(execute(connector, Batch::from([operation]), limit, Tried::default())));
    for answer in join_all(calls).await {
        let outcome = answer.and_then(|answer| {
            whole.repeated |= answer.repeated;
            whole.calls_refused |= answer.calls_refused;
            answer.single()
        });
        whole.outcomes.push(outcome.map_err(|error| if repeated { error.in_doubt() } else { error }));
    }
    Ok(whole)
}
