//! The forced release of a key: first a confirmation, then a form.

use std::fmt::Write as _;

use http::StatusCode;
use lock_core::{Error, KeyInfo};
use serde_json::json;

use super::{
    answer::Answer,
    look::Looks,
    question::Question,
    sentences::{HolderOf, WaitersOf},
    text::{Attribute, Text},
};

/// Asks whether a key is to be released by force. Changes nothing.
pub(super) async fn ask(looks: &Looks, question: &Question, key: &str) -> Answer {
    match looks.key(key).await {
        Ok(info) if info.is_locked() => confirmation(question, &info, ""),
        Ok(_) => Outcome::WasFree.answer(question, key),
        Err(error) => failed(question, &error),
    }
}

/// Releases a key by force, if its holder is the one that the confirmation named.
///
/// It is done to its end, and logged, even if the caller no longer waits for it.
pub(super) async fn release(looks: Looks, question: Question, key: String) -> Answer {
    let task = tokio::spawn(async move {
        match attempt(&looks, &question, &key).await {
            Ok(outcome) => outcome.answer(&question, &key),
            Err(error) => failed(&question, &error),
        }
    });
    task.await
        .unwrap_or_else(|error| message(&Question::default(), StatusCode::SERVICE_UNAVAILABLE, &error.to_string()))
}

async fn attempt(looks: &Looks, question: &Question, key: &str) -> Result<Outcome, Error> {
    let info = looks.inspect(key).await?;
    if !info.is_locked() {
        return Ok(Outcome::WasFree);
    }
    if named(&info) != question.holder {
        return Ok(Outcome::Changed(Box::new(info)));
    }
    let was_held = looks.manager.force_release(key).await?;
    looks.forget();
    if !was_held {
        return Ok(Outcome::WasFree);
    }
    let holder = info.holder().map(|holder| holder.party().to_string());
    tracing::warn!(key, holder, "key force-released from the status page");
    Ok(Outcome::Released)
}

#[derive(Debug)]
enum Outcome {
    Released,
    WasFree,
    /// Another holder has the key by now.
    Changed(Box<KeyInfo>),
}

impl Outcome {
    fn answer(self, question: &Question, key: &str) -> Answer {
        let (status, name, sentence) = match self {
            Self::Released => (StatusCode::OK, "released", "was released by force"),
            Self::WasFree => (StatusCode::OK, "free", "is free: nothing was changed"),
            Self::Changed(info) if !question.json => return confirmation(question, &info, CHANGED),
            Self::Changed(_) => (StatusCode::CONFLICT, "changed", ""),
        };
        if question.json {
            return Answer::json(status, &json!({ "key": key, "outcome": name }));
        }
        let key = Text(key);
        back(question, status, &format!("<p class=done role=status><code>{key}</code> {sentence}.</p>"))
    }
}

/// The page that names key, holder and what follows, with the button. `notice` says why it is shown once more.
fn confirmation(question: &Question, info: &KeyInfo, notice: &str) -> Answer {
    let holder = named(info);
    let status = if notice.is_empty() { StatusCode::OK } else { StatusCode::CONFLICT };
    if question.json {
        return Answer::json(status, &json!({ "key": info.key(), "outcome": "to be confirmed", "holder": holder }));
    }
    let key = Text(info.key());
    let mut body = format!("<h1>Release <code>{key}</code> by force?</h1>");
    if !notice.is_empty() {
        let _ = write!(body, "<p class=alarm role=alert><b>{notice}</b>");
    }
    let next = match info.waiters() {
        [] if info.processes().unanswered() == Some(0) && !info.is_truncated() => {
            "Nobody waits for the key. The next request gets it.".to_owned()
        }
        [] => "No process that answered waits for the key.".to_owned(),
        _ => format!("The first of {} gets the key.", WaitersOf(info)),
    };
    let before = match info.holder() {
        Some(_) if info.leases() > 1 => {
            "The leases of all its holders end. They are told at their next renewal at the latest, and their work is stopped. \
             <b>Until then they may go on while the next holders work, too.</b>"
        }
        Some(_) => {
            "The holder is told that its lease is lost, at its next renewal at the latest, and its work is stopped. \
             <b>Until then it may go on while the next holder works, too.</b>"
        }
        None if info.is_foreign() => {
            "The other library is not told. <b>Its work may go on while the next holder works, too.</b>"
        }
        None => {
            "The holder cannot be told now. <b>If its process is only stopped or cut off, its work may go on while the next \
             holder works, too.</b> If the process has died, the key becomes free by itself when the lease ends."
        }
    };
    let _ = write!(
        body,
        "{}<h2>What follows</h2><ul><li>{before}<li>{next}<li>The release is logged.</ul>\
         <form class=confirm method=post action=\"{}\"><button class=danger>Release {key} by force</button> \
         <a class=button href=\"{}\">Keep it</a></form>",
        HolderOf(info),
        Attribute(&question.release(info.key(), &holder)),
        Attribute(&question.list()),
    );
    Answer::page(status, "Release a lock by force", None, &body)
}

fn failed(question: &Question, error: &Error) -> Answer {
    let status = StatusCode::from_u16(error.case().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    message(question, status, &error.to_string())
}

/// Says why something was not done.
pub(super) fn message(question: &Question, status: StatusCode, text: &str) -> Answer {
    if question.json {
        return Answer::json(status, &json!({ "error": text }));
    }
    let text = Text(text);
    back(question, status, &format!("<p class=alarm role=alert><b>Nothing was changed:</b> {text}.</p>"))
}

/// Says a sentence, with a link back to the list.
fn back(question: &Question, status: StatusCode, sentence: &str) -> Answer {
    let list = question.list();
    let list = Attribute(&list);
    let body = format!("<h1>Locks</h1>{sentence}<p><a class=button href=\"{list}\">Back to the list</a>");
    Answer::page(status, "Locks", None, &body)
}

/// Names the holder of a key so that another one is told apart: by its fencing token, which is not a secret. Of several holders, by
/// the first, the last and their number.
fn named(info: &KeyInfo) -> String {
    match info.holders() {
        [holder] => holder.fencing_token().get().to_string(),
        [first, .., last] => {
            format!("{}-{}-{}", first.fencing_token(), last.fencing_token(), info.holders().len())
        }
        [] if info.is_foreign() => "other-library".to_owned(),
        [] => "unknown".to_owned(),
    }
}

const CHANGED: &str = "The key has another holder than a moment ago, and was not released. This is the present one.";
