//! What the page shows, for programs. The module's documentation has the fields.

use std::time::{Duration, SystemTime};

use lock_core::Health;
use serde_json::{Value, json};

use super::{
    look::Look,
    question::{Order, Question},
    selection::Selection,
};

pub(super) fn list(question: &Question, health: &Health, look: &Look) -> Value {
    let at = look.at.duration_since(SystemTime::UNIX_EPOCH).as_ref().map_or(0, Duration::as_millis);
    let mut value = json!({
        "at_ms": u64::try_from(at).unwrap_or(u64::MAX),
        "manager": health,
        "prefix": question.prefix,
        "order": if question.order == Order::Key { "key" } else { "age" },
    });
    match &look.keys {
        Ok(keys) => {
            let selection = Selection::of(keys, question);
            value["matching"] = selection.matching.into();
            value["waiting"] = selection.waiting.into();
            value["next"] = selection.next.into();
            value["keys"] = json!(selection.rows);
        }
        Err(error) => value["error"] = error.as_str().into(),
    }
    value
}
