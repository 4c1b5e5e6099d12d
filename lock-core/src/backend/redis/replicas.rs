//! Waiting for replicas: renewals, and `WAIT` after them, over a connection of their own.
//!
//! `WAIT` blocks the connection that it is sent over, and looks at what was written over that connection. So requests and
//! renewals keep the first connection, and what is to be confirmed is written once more over the second. Replication is one
//! stream: a replica that has this write has all that came before it, the acquire among it.
//!
//! The driver does both for all requests. The connection has one `WAIT` at a time. What is to be confirmed meanwhile gathers, and joins
//! when it is over.

mod open;

use std::{
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::{
    sync::{Notify, oneshot},
    time::{Instant, timeout},
};

use self::open::Open;
use super::{
    connector::{Connector, Unanswered},
    failure,
    slot::Tag,
};
use crate::{
    backend::{Answer, BackendError, Batch, Operation, Outcome, Replied},
    error::ErrorKind,
    replicas::{OTHERS_WAIT, Replicas},
};

/// The requests that wait for replicas of a node, on their way to the driver. Clones of a backend share it.
#[derive(Default)]
pub(super) struct Replication {
    newcomers: Mutex<Newcomers>,
    /// Told when there are newcomers.
    wanted: Notify,
}

#[derive(Default)]
struct Newcomers {
    asked: Vec<Asked>,
    /// How many drivers answer them: one for each manager that shares the backend.
    servers: usize,
}

struct Asked {
    tag: Tag,
    batch: Batch,
    replicas: Replicas,
    /// When its time is over, once its renewals were executed.
    until: Option<Instant>,
    sender: oneshot::Sender<Replied<Answer>>,
}

/// A request whose renewals were executed.
struct Waiting {
    asked: Asked,
    answer: Answer,
    until: Instant,
}

/// The connection of one driver, and what waits on it.
struct Line<'a> {
    replication: &'a Replication,
    open: Option<Open>,
    newcomers: Vec<Asked>,
    waiting: Vec<Waiting>,
}

impl Replication {
    /// Executes a batch of renewals, all of which wait for the same replicas, and whose side keys have the tag.
    pub(super) async fn confirm(&self, connector: &Connector, tag: Tag, batch: Batch) -> Replied<Answer> {
        let Some(replicas) = replicas_of(&batch) else {
            let why = "renewals that wait for replicas share no call with others";
            return Err(BackendError::unsupported(why).did_not_happen());
        };
        let (sender, answer) = oneshot::channel();
        lock(&self.newcomers).asked.push(Asked { tag, batch, replicas, until: None, sender });
        // All of them, since the runtime of one may stand still; and if none of them waits now, the next one that does.
        self.wanted.notify_waiters();
        self.wanted.notify_one();
        match timeout(replicas.timeout() + OTHERS_WAIT + connector.limit(), answer).await {
            Ok(Ok(answer)) => answer,
            // The driver has ended, and the connection with it.
            Ok(Err(_)) => Err(failure::closed(&connector.address())),
            Err(_) => Err(connector.silent()),
        }
    }

    /// Answers the requests for as long as it is polled.
    pub(super) async fn serve(&self, connector: &Connector) {
        let mut line = Line::new(self);
        loop {
            line.waiting.retain(|waiting| !waiting.asked.sender.is_closed());
            if line.waiting.is_empty() {
                self.wanted.notified().await;
            }
            line.newcomers = mem::take(&mut lock(&self.newcomers).asked);
            line.newcomers.retain(|asked| !asked.sender.is_closed());
            if let Err(error) = line.step(connector).await {
                line.fail(&error);
            }
        }
    }
}

impl<'a> Line<'a> {
    fn new(replication: &'a Replication) -> Self {
        lock(&replication.newcomers).servers += 1;
        Self { replication, open: None, newcomers: Vec::new(), waiting: Vec::new() }
    }

    /// Lets newcomers join, and waits for replicas once. After an error, the connection is gone.
    async fn step(&mut self, connector: &Connector) -> Replied<()> {
        if self.newcomers.is_empty() && self.waiting.is_empty() {
            return Ok(());
        }
        let mut open = match self.open.take() {
            // What waits was written over it.
            Some(open) if self.newcomers.is_empty() || open.is_fit(connector) => open,
            // It leads to a server that others have left, or its login is over.
            _ => self.connect_anew(connector).await?,
        };
        let mut renewed = renew(connector, &mut open, &self.newcomers).await;
        if let Err(Unanswered::Broken(_)) = renewed {
            // It may have ended long ago, and a renewal may be repeated.
            open = self.connect_anew(connector).await?;
            renewed = renew(connector, &mut open, &self.newcomers).await;
        }
        let answers = renewed.map_err(|unanswered| connector.failed(unanswered))?;
        let now = Instant::now();
        for (asked, answer) in self.newcomers.drain(..).zip(answers) {
            match answer.map(only_written) {
                Ok(answer) if answer.outcomes.iter().any(is_renewed) => {
                    let until = asked.until.unwrap_or_else(|| now + asked.replicas.timeout());
                    self.waiting.push(Waiting { until, asked, answer });
                }
                answer => asked.answer(answer),
            }
        }
        let waited = self.wait(connector, &mut open).await;
        self.open = Some(open).filter(|open| !open.is_broken);
        waited
    }

    /// Makes another connection, over which what waits is written again.
    async fn connect_anew(&mut self, connector: &Connector) -> Replied<Open> {
        let open = Open::connect(connector).await?;
        self.again();
        Ok(open)
    }

    /// Makes newcomers of the requests that wait.
    fn again(&mut self) {
        let waiting = self.waiting.drain(..);
        self.newcomers.extend(waiting.map(|Waiting { asked, until, .. }| Asked { until: Some(until), ..asked }));
    }

    /// Waits for replicas, and answers the requests that have them or whose time is over.
    async fn wait(&mut self, connector: &Connector, open: &mut Open) -> Replied<()> {
        let Some(soonest) = self.waiting.iter().map(|waiting| waiting.until).min() else { return Ok(()) };
        let least = self.waiting.iter().map(|waiting| waiting.asked.replicas.min()).min().unwrap_or(1);
        // Newcomers should not wait for longer than this.
        let most = soonest.saturating_duration_since(Instant::now()).min(OTHERS_WAIT);
        let had = open.wait(connector, least, most).await?;
        let now = Instant::now();
        let is_over = |waiting: &mut Waiting| had >= waiting.asked.replicas.min() || now >= waiting.until;
        for Waiting { asked, answer, .. } in self.waiting.extract_if(.., is_over) {
            let is_enough = had >= asked.replicas.min();
            let answer = if is_enough { answer } else { without_replicas(answer, asked.replicas, had) };
            asked.answer(Ok(answer));
        }
        Ok(())
    }

    /// Answers all requests with an error.
    fn fail(&mut self, error: &BackendError) {
        let waiting = self.waiting.drain(..).map(|waiting| waiting.asked);
        self.newcomers.drain(..).chain(waiting).for_each(|asked| asked.answer(Err(error.clone())));
    }
}

impl Drop for Line<'_> {
    /// Leaves its requests to the other drivers. If there are none, the requests fail.
    fn drop(&mut self) {
        self.again();
        let mut newcomers = lock(&self.replication.newcomers);
        newcomers.servers -= 1;
        newcomers.asked.append(&mut self.newcomers);
        let unserved = if newcomers.servers == 0 { mem::take(&mut newcomers.asked) } else { Vec::new() };
        drop(newcomers);
        drop(unserved);
        self.replication.wanted.notify_waiters();
        self.replication.wanted.notify_one();
    }
}

impl Asked {
    fn answer(self, answer: Replied<Answer>) {
        // Its future may have been dropped.
        let _ = self.sender.send(answer);
    }
}

/// Executes the renewals of some requests.
async fn renew(connector: &Connector, open: &mut Open, asked: &[Asked]) -> Result<Vec<Replied<Answer>>, Unanswered> {
    let mut answers = Vec::with_capacity(asked.len());
    // Slots share no call.
    for part in asked.chunk_by(|one, next| one.tag == next.tag) {
        let together = evaluate(connector, open, part).await;
        let Err(Unanswered::Refused(_)) = together else {
            answers.extend(together?.into_iter().map(Ok));
            continue;
        };
        // The user may have lost the rights to one of the keys.
        for one in part.chunks(1) {
            match evaluate(connector, open, one).await {
                Err(Unanswered::Refused(error)) => {
                    open.is_demoted |= failure::is_demotion(&error);
                    let error = connector.refusal(error);
                    open.is_denied |= error.kind() == ErrorKind::Denied;
                    answers.push(Err(error));
                }
                alone => answers.extend(alone?.into_iter().map(Ok)),
            }
        }
    }
    Ok(answers)
}

/// Executes the renewals of requests with the same tag, in calls of a size that the script can take.
async fn evaluate(connector: &Connector, open: &mut Open, asked: &[Asked]) -> Result<Vec<Answer>, Unanswered> {
    let Some(Asked { tag, .. }) = asked.first() else { return Ok(Vec::new()) };
    let whole: Vec<_> = asked.iter().flat_map(|asked| asked.batch.iter().map(writing)).collect();
    let mut outcomes = Vec::with_capacity(whole.len());
    for part in whole.chunks(BATCH) {
        outcomes.extend(open.evaluate(connector, *tag, part).await?.outcomes);
    }
    let mut outcomes = outcomes.into_iter();
    Ok(asked.iter().map(|asked| Answer::new(outcomes.by_ref().take(asked.batch.len()))).collect())
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

fn is_renewed(outcome: &Replied<Outcome>) -> bool {
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

/// The answer to renewals that only `had` replicas have.
fn without_replicas(mut answer: Answer, replicas: Replicas, had: u32) -> Answer {
    let error = BackendError::not_replicated(replicas, had);
    for outcome in answer.outcomes.iter_mut().filter(|outcome| is_renewed(outcome)) {
        *outcome = Err(error.clone());
    }
    answer
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many renewals one call has at most.
const BATCH: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        let answer = Answer::new([Ok(renewed), Ok(Outcome::Gone)]);
        match &without_replicas(answer, Replicas::new(2, TTL), 1).outcomes[..] {
            [Err(error), Ok(Outcome::Gone)] => {
                let words = error.to_string();
                assert!(words.contains("1 of the 2 required replicas") && words.contains("are connected"), "{words}");
            }
            outcomes => panic!("{outcomes:?}"),
        }
    }
}
