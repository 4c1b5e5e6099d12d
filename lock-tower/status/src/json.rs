//! What the page shows, for programs. The module's documentation has the fields.

use std::time::{Duration, SystemTime};

use lock_core::Health;
use serde_json::{Value, json};

use super::{
    look::Look,
    processes::Missed,
    question::{Only, Order, Question},
    rates::{Counters, Rates},
    selection::Selection,
    site::Site,
};

pub(super) fn list(site: &Site, question: &Question, health: &Health, look: &Look) -> Value {
    let at = look.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut value = json!({
        "at_ms": ms(at),
        "service": site.service(),
        "environment": site.environment,
        "key_prefix": site.prefix(),
        "manager": health,
        "rates": look.rates.map(|Rates { span, grown: Counters { acquired, busy, lost } }| json!({
            "span_ms": ms(span), "acquired": acquired, "busy": busy, "lost": lost,
        })),
        "prefix": question.prefix,
        "only": if question.only == Only::All { "all" } else { question.only.in_query() },
        "by": question.by,
        "host": question.host,
        "order": if question.order == Order::Key { "key" } else { "age" },
    });
    match &look.keys {
        Ok(keys) => {
            let selection = Selection::of(keys, question);
            value["matching"] = selection.matching.into();
            value["waiting"] = selection.waiting.into();
            value["unknown"] = selection.unknown.into();
            value["missed"] = look.missed.iter().map(missed).collect();
            value["next"] = selection.next.into();
            value["keys"] = json!(selection.rows);
        }
        Err(error) => value["error"] = error.as_str().into(),
    }
    value
}

fn missed(Missed { party, ago }: &Missed) -> Value {
    json!({
        "service": party.service(), "host": party.host(), "process": party.process(),
        "answered_ms": ms(*ago),
    })
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
