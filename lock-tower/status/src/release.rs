//! The forced release of a key: first a confirmation, then a form.

use std::{
    fmt::Write as _,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::StatusCode;
use lock_core::{Error, ErrorKind, Holder, KeyInfo};
use serde_json::json;
use tokio::task::JoinError;

use super::{
    answer::Answer,
    look::{Looks, status_of},
    question::Question,
    selection::needs_release,
    sentences::{HolderOf, WaitersOf},
    site::Site,
    text::{Attribute, Clipped, Text},
};

/// Asks whether a key is to be released by force. Changes nothing.
pub(super) async fn ask(site: &Site, looks: &Looks, question: &Question, key: &str) -> Answer {
    match looks.key(key).await {
        Ok(info) if info.is_locked() => confirmation(site, question, &info, ""),
        Ok(_) => Outcome::WasFree.answer(site, question, key),
        Err(error) => failed(site, question, &error),
    }
}

/// Releases a key by force, if its holder is the one that the confirmation named.
///
/// It is done to its end, and logged, even if the caller no longer waits for it.
pub(super) async fn release(site: Arc<Site>, looks: Looks, question: Question, key: String) -> Answer {
    let of_task = Arc::clone(&site);
    let task = tokio::spawn(async move {
        match attempt(&looks, &question, &key).await {
            Ok(outcome) => outcome.answer(&of_task, &question, &key),
            Err(error) => failed(&of_task, &question, &error),
        }
    });
    let unavailable =
        |error: JoinError| message(&site, &Question::default(), StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
    task.await.unwrap_or_else(unavailable)
}

async fn attempt(looks: &Looks, question: &Question, key: &str) -> Result<Outcome, Error> {
    let info = looks.inspect(key).await?;
    if !info.is_locked() {
        return Ok(Outcome::WasFree);
    }
    if !is_still(&question.holder, &named(&info)) {
        return Ok(Outcome::Changed(Box::new(info)));
    }
    let result = looks.manager.force_release(key).await;
    looks.forget();
    let holder = info.holder().map(|holder| holder.party().to_string());
    match result {
        Ok(false) => Ok(Outcome::WasFree),
        Ok(true) => {
            tracing::warn!(key, holder, "key force-released from the status page");
            Ok(Outcome::Released)
        }
        Err(error) if error.kind() == ErrorKind::Backend => {
            tracing::warn!(key, holder, %error, "key perhaps force-released from the status page");
            Ok(Outcome::Unknown(error))
        }
        Err(error) => Err(error),
    }
}

#[derive(Debug)]
enum Outcome {
    Released,
    WasFree,
    /// Another holder has the key by now.
    Changed(Box<KeyInfo>),
    /// The request was not answered.
    Unknown(Error),
}

impl Outcome {
    fn answer(self, site: &Site, question: &Question, key: &str) -> Answer {
        let (status, name, sentence) = match self {
            Self::Released => (StatusCode::OK, "released", "was released by force"),
            Self::WasFree => (StatusCode::OK, "free", "is free: nothing was changed"),
            Self::Changed(info) if !question.json => return confirmation(site, question, &info, CHANGED),
            Self::Changed(_) => (StatusCode::CONFLICT, "changed", ""),
            Self::Unknown(error) => {
                let text = format!("{error}; it is not known whether the key was released, so look again");
                return refused(site, question, status_of(&error), "Not known:", &text);
            }
        };
        if question.json {
            return Answer::json(status, &json!({ "key": key, "outcome": name }));
        }
        let key = Clipped(key);
        back(site, question, status, &format!("<p class=done role=status><code>{key}</code> {sentence}.</p>"))
    }
}

/// The page that names key, holder and what follows, with the button. `notice` says why it is shown once more.
fn confirmation(site: &Site, question: &Question, info: &KeyInfo, notice: &str) -> Answer {
    let holder = named(info);
    let status = if notice.is_empty() { StatusCode::OK } else { StatusCode::CONFLICT };
    if question.json {
        return Answer::json(status, &json!({ "key": info.key(), "outcome": "to be confirmed", "holder": holder }));
    }
    let key = Clipped(info.key());
    let mut body = format!("{}<h1>Release <code>{key}</code> by force?</h1>", site.header("p", None));
    if key.ends().is_some() {
        let _ = write!(body, "<p class=whole>The whole key: <code>{}</code>", Text(info.key()));
    }
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
             holder works, too.</b> If the process has died, the key becomes free by itself when the lease ends. If \
             <code>at_least</code> keeps the key, the work may be done again."
        }
    };
    // The browser does not send the form unless the box is ticked, and shows the button as disabled.
    let second_step = match info.holder() {
        _ if needs_release(info) => String::new(),
        Some(_) => second_step("The holder is known and may be at work."),
        None => second_step("The holder may be at work, or the key be kept by <code>at_least</code>."),
    };
    let _ = write!(
        body,
        "{}<h2>What follows</h2><ul><li>{before}<li>{next}<li>The release is logged.</ul>\
         <form class=confirm method=post action=\"{}\">{second_step}<button class=danger>Release {key} by force</button> \
         <a class=button href=\"{}\">Keep it</a></form>",
        HolderOf { info, traces: site.traces.as_ref() },
        Attribute(&question.release(info.key(), &holder)),
        Attribute(&question.list()),
    );
    Answer::page(status, &site.title("release by force"), None, &body)
}

fn failed(site: &Site, question: &Question, error: &Error) -> Answer {
    message(site, question, status_of(error), &error.to_string())
}

/// Says why something was not done.
pub(super) fn message(site: &Site, question: &Question, status: StatusCode, text: &str) -> Answer {
    refused(site, question, status, "Nothing was changed:", text)
}

fn refused(site: &Site, question: &Question, status: StatusCode, outcome: &str, text: &str) -> Answer {
    if question.json {
        return Answer::json(status, &json!({ "error": text }));
    }
    let text = Text(text);
    back(site, question, status, &format!("<p class=alarm role=alert><b>{outcome}</b> {text}.</p>"))
}

/// Says a sentence, with a link back to the list.
fn back(site: &Site, question: &Question, status: StatusCode, sentence: &str) -> Answer {
    let list = question.list();
    let list = Attribute(&list);
    let header = site.header("h1", None);
    let body = format!("{header}{sentence}<p><a class=button href=\"{list}\">Back to the list</a>");
    Answer::page(status, &site.title("locks"), None, &body)
}

/// Names the holders of a key so that others are told apart: an exclusive one by its fencing token, which is not a secret. Those who
/// share a key may have one token in common, so their parties count, too.
fn named(info: &KeyInfo) -> String {
    match info.holders() {
        [holder] if holder.mode().is_exclusive() => holder.fencing_token().get().to_string(),
        [] if info.is_foreign() => match info.remaining() {
            Some(left) => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                format!("{FOREIGN}{}", (now + left).as_millis())
            }
            None => format!("{FOREIGN}unlimited"),
        },
        [] => format!("unknown-{}", info.leases()),
        holders => {
            let lease = |holder: &Holder| (holder.fencing_token().get(), holder.party().to_string());
            let mut leases: Vec<_> = holders.iter().map(lease).collect();
            leases.sort_unstable();
            let mut hasher = DefaultHasher::new();
            leases.hash(&mut hasher);
            format!("{}-{:x}", info.leases(), hasher.finish())
        }
    }
}

/// Returns whether two names are those of the same holders. A client of another library has no name but the end of its lock.
fn is_still(shown: &str, now: &str) -> bool {
    let end = |name: &str| name.strip_prefix(FOREIGN)?.parse::<u64>().ok().map(Duration::from_millis);
    match (end(shown), end(now)) {
        (Some(shown), Some(now)) => shown.abs_diff(now) <= A_SECOND,
        _ => shown == now,
    }
}

/// The name of a client of another library begins with it, and ends with the end of its lock, in milliseconds since 1970.
const FOREIGN: &str = "other-library-until-";

/// How exactly the ends of two locks are compared.
const A_SECOND: Duration = Duration::from_secs(1);

/// The box that has to be ticked before a key is released that nobody needs to release.
fn second_step(why: &str) -> String {
    format!(
        "<label class=tick><input type=checkbox required autocomplete=off>{why} Release the key all the same.</label>"
    )
}

const CHANGED: &str = "The key has another holder than a moment ago, or was renewed by a client of another library, and was not released. This is the present one.";
