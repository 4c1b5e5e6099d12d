//! Waiting for replicas: renewals, and `WAIT` after them, over a connection of their own.
//!
//! `WAIT` blocks the connection that it is sent over, and looks at what was written over that connection. So requests and
//! renewals keep the first connection, and what is to be confirmed is written once more over the second. Replication is one
//! stream: a replica that has this write has all that came before it, the acquire among it.
//!
//! The connection has one `WAIT` at a time. What is to be confirmed meanwhile gathers, and joins when it is over.

mod open;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{
        Mutex as AsyncMutex,
        oneshot::{self, error::TryRecvError},
    },
    time::{Instant, timeout_at},
};

use self::open::Open;
use super::{
    connector::{Connector, Unanswered},
    failure,
    slot::Tag,
};
use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome},
    error::ErrorKind,
    replicas::{OTHERS_WAIT, Replicas},
};

/// All that waits for replicas of a node. Clones of a backend share it.
#[derive(Debug, Default)]
pub(super) struct Replication {
    /// Requests that join the line next.
    newcomers: Mutex<Vec<Asked>>,
    /// Worked on by one of the requests at a time, for all.
    line: AsyncMutex<Line>,
}

/// The connection, and what waits on it.
#[derive(Debug, Default)]
struct Line {
    /// Taken out while it is in use: a request that is dropped in the midst of it drops the connection, too.
    open: Option<Open>,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Asked {
    tag: Tag,
    batch: Batch,
    replicas: Replicas,
    sender: oneshot::Sender<Result<Answer, BackendError>>,
}

/// A request whose renewals were executed.
#[derive(Debug)]
struct Waiting {
    answer: Answer,
    replicas: Replicas,
    until: Instant,
    sender: oneshot::Sender<Result<Answer, BackendError>>,
}

impl Replication {
    /// Closes the connection, unless a request works on it.
    pub(super) fn close(&self) {
        if let Ok(mut line) = self.line.try_lock() {
            line.open = None;
        }
    }

    /// Executes a batch of renewals, all of which wait for the same replicas, and whose side keys have the tag.
    pub(super) async fn confirm(&self, connector: &Connector, tag: Tag, batch: Batch) -> Result<Answer, BackendError> {
        let Some(replicas) = replicas_of(&batch) else {
            let why = "renewals that wait for replicas share no call with others";
            return Err(BackendError::unsupported(why).did_not_happen());
        };
        let limit = Instant::now() + replicas.timeout() + OTHERS_WAIT + connector.limit();
        let (sender, mut receiver) = oneshot::channel();
        lock(&self.newcomers).push(Asked { tag, batch, replicas, sender });
        let answer = async {
            loop {
                let mut line = tokio::select! {
                    biased;
                    answer = &mut receiver => return answer.ok(),
                    line = self.line.lock() => line,
                };
                match receiver.try_recv() {
                    // Nobody else works on the line.
                    Err(TryRecvError::Empty) => line.step(connector, &self.newcomers).await,
                    answer => return answer.ok(),
                }
            }
        };
        match timeout_at(limit, answer).await {
            Ok(Some(answer)) => answer,
            // The request that worked on the line was dropped meanwhile, with the connection.
            Ok(None) => Err(broken_off(connector)),
            Err(_) => Err(connector.out_of_time()),
        }
    }
}

impl Line {
    /// Lets newcomers join, and waits for replicas once.
    async fn step(&mut self, connector: &Connector, newcomers: &Mutex<Vec<Asked>>) {
        self.waiting.retain(|waiting| !waiting.sender.is_closed());
        if self.open.is_none() {
            // Their writes went over a connection that is gone.
            self.fail(&broken_off(connector));
        }
        let newcomers = std::mem::take(&mut *lock(newcomers));
        let newcomers: Vec<_> = newcomers.into_iter().filter(|asked| !asked.sender.is_closed()).collect();
        let result = match self.usable(connector).await {
            Ok(open) => self.join_and_wait(connector, open, newcomers).await,
            Err(error) => {
                newcomers.into_iter().for_each(|asked| asked.answer(Err(error.clone())));
                Err(error)
            }
        };
        match result {
            Ok(open) => self.open = Some(open),
            Err(error) => self.fail(&error),
        }
    }

    /// Takes the connection, or makes one. A connection that was not used for long may have ended unnoticed, and is replaced.
    async fn usable(&mut self, connector: &Connector) -> Result<Open, BackendError> {
        match self.open.take() {
            Some(open) if !self.waiting.is_empty() => Ok(open),
            Some(open) if open.used.elapsed() < IDLE && open.is_beside(connector) => Ok(open),
            _ => Open::connect(connector).await,
        }
    }

    /// Uses the connection, and gives it back if it still works.
    async fn join_and_wait(
        &mut self,
        connector: &Connector,
        mut open: Open,
        newcomers: Vec<Asked>,
    ) -> Result<Open, BackendError> {
        if !newcomers.is_empty() {
            open = self.join(connector, open, newcomers).await?;
        }
        let Some(soonest) = self.waiting.iter().map(|waiting| waiting.until).min() else { return Ok(open) };
        let least = self.waiting.iter().map(|waiting| waiting.replicas.min()).min().unwrap_or(1);
        // Newcomers should not wait for longer than this.
        let most = soonest.saturating_duration_since(Instant::now()).min(OTHERS_WAIT);
        let had = open.wait(connector, least, most).await?;
        let now = Instant::now();
        let mut late = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            if had >= waiting.replicas.min() {
                let _ = waiting.sender.send(Ok(waiting.answer));
            } else if now >= waiting.until {
                late.push(waiting);
            } else {
                self.waiting.push(waiting);
            }
        }
        if late.is_empty() {
            return Ok(open);
        }
        // Slow replicas differ from missing ones, so the error says how many are connected. Asking delays the answer by one command at
        // most.
        let connected = open.replicas(connector).await;
        for Waiting { answer, replicas, sender, .. } in late {
            let _ =
                sender.send(Ok(without_replicas(answer, replicas, had, connected.as_ref().ok().copied().flatten())));
        }
        connected.map(|_| open)
    }

    /// Executes the renewals of newcomers. Those that succeed then wait for replicas.
    async fn join(
        &mut self,
        connector: &Connector,
        mut open: Open,
        newcomers: Vec<Asked>,
    ) -> Result<Open, BackendError> {
        let mut renewed = renew(connector, &mut open, &newcomers).await;
        if let Err(Unanswered::Broken(error)) = &renewed {
            // It may have ended long ago, and a renewal may be repeated.
            self.fail(error);
            renewed = match Open::connect(connector).await {
                Ok(next) => {
                    open = next;
                    renew(connector, &mut open, &newcomers).await
                }
                Err(error) => Err(Unanswered::Broken(error)),
            };
        }
        let is_refused = matches!(renewed, Err(Unanswered::Refused(_)));
        let (answers, broken) = match renewed.map_err(|unanswered| connector.failed(unanswered)) {
            Ok(answers) => (answers, None),
            // Credentials that are over do not come back to life.
            Err(error) => {
                let is_over = !is_refused || error.kind() == ErrorKind::Denied;
                (newcomers.iter().map(|_| Err(error.clone())).collect(), is_over.then_some(error))
            }
        };
        let now = Instant::now();
        for (asked, answer) in newcomers.into_iter().zip(answers) {
            match answer.map(only_written) {
                Ok(answer) if answer.outcomes.iter().any(is_renewed) => {
                    let Asked { replicas, sender, .. } = asked;
                    self.waiting.push(Waiting { answer, replicas, until: now + replicas.timeout(), sender });
                }
                answer => asked.answer(answer),
            }
        }
        broken.map_or(Ok(open), Err)
    }

    /// Answers all that wait with an error.
    fn fail(&mut self, error: &BackendError) {
        for waiting in self.waiting.drain(..) {
            let _ = waiting.sender.send(Err(error.clone()));
        }
    }
}

impl Asked {
    fn answer(self, answer: Result<Answer, BackendError>) {
        // Its future may have been dropped.
        let _ = self.sender.send(answer);
    }
}

/// Executes the renewals of some requests, in as few calls as can be. A user may have lost the rights to one of the keys: then
/// each request has a call of its own.
async fn renew(
    connector: &Connector,
    open: &mut Open,
    asked: &[Asked],
) -> Result<Vec<Result<Answer, BackendError>>, Unanswered> {
    let Some(Asked { tag, .. }) = asked.first() else { return Ok(Vec::new()) };
    // Slots share no call.
    if asked.iter().all(|asked| asked.tag == *tag) {
        let whole = asked.iter().flat_map(|asked| asked.batch.iter().map(writing)).collect();
        match evaluate_all(connector, open, *tag, whole).await {
            Ok(answer) => {
                let mut outcomes = answer.outcomes.into_iter();
                let part = |asked: &Asked| Ok(Answer::new(outcomes.by_ref().take(asked.batch.len())));
                return Ok(asked.iter().map(part).collect());
            }
            Err(Unanswered::Refused(_)) if asked.len() > 1 => {}
            Err(unanswered) => return Err(unanswered),
        }
    }
    let mut answers = Vec::with_capacity(asked.len());
    for Asked { tag, batch, .. } in asked {
        answers.push(match evaluate_all(connector, open, *tag, batch.iter().map(writing).collect()).await {
            Ok(answer) => Ok(answer),
            Err(Unanswered::Refused(error)) => Err(connector.refusal(error)),
            Err(unanswered) => return Err(unanswered),
        });
    }
    Ok(answers)
}

/// Executes a batch in calls of a size that the script can take.
async fn evaluate_all(
    connector: &Connector,
    open: &mut Open,
    tag: Tag,
    mut batch: Batch,
) -> Result<Answer, Unanswered> {
    let mut whole = Answer::new([]);
    while !batch.is_empty() {
        let rest = batch.split_off(batch.len().min(BATCH));
        let part = std::mem::replace(&mut batch, rest);
        whole.append(open.evaluate(connector, tag, &part).await?);
    }
    Ok(whole)
}

/// A renewal that always writes. Redis does not replicate an expiry that stays the same, so there would be nothing to wait for.
/// The fencing token that is drawn is not used.
fn writing(operation: &Operation) -> Operation {
    let mut operation = operation.clone();
    if let Operation::Renew(renew) = &mut operation {
        renew.block = renew.block.max(1);
    }
    operation
}

/// Whether a batch waits for replicas.
pub(super) fn are_asked(batch: &[Operation]) -> bool {
    batch.first().is_some_and(|operation| operation.replicas().is_some())
}

/// The replicas that all operations of a batch wait for.
fn replicas_of(batch: &[Operation]) -> Option<Replicas> {
    let replicas = batch.first()?.replicas()?;
    batch.iter().all(|operation| operation.replicas() == Some(replicas)).then_some(replicas)
}

fn is_renewed(outcome: &Result<Outcome, BackendError>) -> bool {
    matches!(outcome, Ok(Outcome::Renewed { .. }))
}

/// The answer to renewals of which one may have written nothing, since no fencing token could be drawn: then there is nothing
/// to wait for.
fn only_written(mut answer: Answer) -> Answer {
    for outcome in &mut answer.outcomes {
        if matches!(outcome, Ok(Outcome::Renewed { fence: None, .. })) {
            *outcome = Err(BackendError::unavailable(
                "the server could not draw a fencing token; check whether it is out of memory",
            ));
        }
    }
    answer
}

/// The answer to renewals that only `had` replicas have, of those that are `connected`, if that is known.
fn without_replicas(mut answer: Answer, replicas: Replicas, had: u32, connected: Option<u32>) -> Answer {
    let error = match connected {
        Some(connected) if connected < replicas.min() => BackendError::few_replicas(replicas, connected),
        _ => BackendError::not_replicated(replicas, had),
    };
    for outcome in answer.outcomes.iter_mut().filter(|outcome| is_renewed(outcome)) {
        *outcome = Err(error.clone());
    }
    answer
}

fn broken_off(connector: &Connector) -> BackendError {
    failure::closed(&connector.address())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many renewals one call has at most.
const BATCH: usize = 256;
/// How long a connection that is not used counts as usable.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{Renew, Token},
        key::LockKey,
    };

    const TTL: Duration = Duration::from_secs(30);

    fn renewal(min: u32) -> Operation {
        let renew = Renew::new(LockKey::new("k").expect("a valid key"), Token::from_random(1), TTL);
        Operation::Renew(renew.on_replicas(Replicas::new(min, TTL / 3)))
    }

    #[test]
    fn what_is_waited_for_always_writes_also_where_the_expiry_does_not_change() {
        let Operation::Renew(sent) = writing(&renewal(1)) else { panic!("it stays a renewal") };
        assert_eq!(sent.block, 1, "a number is drawn, and that is told to replicas");
    }

    #[test]
    fn operations_that_wait_for_other_replicas_or_for_none_share_no_call() {
        let plain = Operation::Inspect { key: LockKey::new("k").expect("a valid key") };
        assert_eq!(replicas_of(&[renewal(1), renewal(1)]).map(Replicas::min), Some(1));
        for mixed in [vec![renewal(1), renewal(2)], vec![renewal(1), plain.clone()], vec![plain, renewal(1)], vec![]] {
            assert_eq!(replicas_of(&mixed), None, "{mixed:?}");
        }
    }

    #[test]
    fn only_what_was_renewed_is_without_replicas() {
        let renewed = Outcome::Renewed { remaining: TTL, fence: Some(1), block: 1 };
        for (connected, words) in [
            (None, "1 of the 2 required replicas"),
            (Some(2), "1 of the 2 required replicas"),
            (Some(1), "the server has one replica; 2 had to"),
            (Some(0), "the server has no replicas; 2 had to"),
        ] {
            let answer = Answer::new([Ok(renewed), Ok(Outcome::Gone)]);
            match &without_replicas(answer, Replicas::new(2, TTL), 1, connected).outcomes[..] {
                [Err(error), Ok(Outcome::Gone)] => assert!(error.to_string().contains(words), "{error}"),
                outcomes => panic!("{outcomes:?}"),
            }
        }
    }
}
