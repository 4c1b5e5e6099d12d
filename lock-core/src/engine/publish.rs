//! Publishes questions about holders and waiters, and the answers to those of others.

use std::{future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use futures_util::{FutureExt, future::join_all};

use super::{
    core::Core,
    inquiry::{ANSWERS_WITHIN, EVERYONE, Message, Question, Sight, Statement, Subject},
};
use crate::{backend::BackendError, clock::Moment, error::ErrorKind};

/// Publishes a question, or the answer to one.
pub(super) fn publish(core: &Arc<Core>, message: Message) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    let core = Arc::clone(core);
    Box::pin(async move {
        match message {
            Message::Ask(question, sight) => ask(&core, &question, &sight).await,
            Message::Tell(question, sight) => tell(&core, &question, &sight).await,
        }
    })
}

async fn ask(core: &Core, question: &Question, sight: &Sight) {
    // What this manager has to say itself comes first, since the message may take long.
    for part in sight.answers(question, &core.manager) {
        let now = core.clock.now();
        core.with(|state| state.queues.was_told(part, now));
    }
    let reached = match send(core, EVERYONE.into(), question.write()).await {
        Ok(None) => return,
        Ok(reached) => reached,
        // No manager will answer.
        Err(error) if !error.may_have_happened() || error.kind() != ErrorKind::Backend => None,
        // Only the answer of the store is missing, for example because the limit of commands is short. The question may have arrived.
        Err(_) => return,
    };
    let now = core.clock.now();
    core.with(|state| state.queues.has_reached(question.id, reached, now));
}

async fn tell(core: &Core, question: &Question, sight: &Sight) {
    let only_holders = matches!(question.subject, Subject::Holder(_));
    if !only_holders || !sight.seen.is_empty() {
        let until = core.clock.now() + ANSWERS_WITHIN;
        // A few at a time, so that requests of leases come in between.
        let mut parts = sight.answers(question, &core.manager).peekable();
        // Later than that no manager waits for the rest.
        while parts.peek().is_some() && core.clock.now() < until {
            let sent = parts.by_ref().take(PARTS).map(|part| tell_part(core, question, part, until));
            join_all(sent).await;
        }
    }
    core.with(|state| state.queues.was_answered());
}

/// Sends a part of an answer, and again if it may not have arrived: the limit of commands may be short for so long a message, or the
/// connection has broken. The manager that asked takes each part once.
async fn tell_part(core: &Core, question: &Question, part: Statement, until: Moment) {
    for _ in 0..ATTEMPTS {
        let sent = send(core, Arc::clone(&question.channel), part.write()).await;
        let is_settled = sent.err().is_none_or(|error| error.kind() != ErrorKind::Backend);
        if is_settled || core.clock.now() >= until {
            break;
        }
    }
}

/// Publishes a message. A panic of the backend would end the task, and with it every lease.
async fn send(core: &Core, channel: Arc<str>, message: String) -> Result<Option<usize>, BackendError> {
    let sent = async { core.backend.publish(channel, message).await };
    AssertUnwindSafe(sent).catch_unwind().await.unwrap_or_else(|_| Err(BackendError::panicked()))
}

/// How many parts of an answer to a question are in flight.
const PARTS: usize = 4;

/// How often a part of an answer is sent at most.
const ATTEMPTS: usize = 3;
