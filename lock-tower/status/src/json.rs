//! What the page shows, for programs. The module's documentation has the fields.

use std::time::{Duration, SystemTime};

use lock_core::{Fault, Health, Holder, KeyInfo, Mode, NodeHealth, Party, Silent, Waiter};
use serde_json::{Value, json};

use super::{
    look::Look,
    question::{Order, Question},
    selection::Selection,
    sentences::loss,
};

pub(super) fn list(question: &Question, health: &Health, look: &Look) -> Value {
    let mut value = json!({
        "at_ms": look.at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, ms),
        "manager": manager(health),
        "prefix": question.prefix,
        "order": if question.order == Order::Key { "key" } else { "age" },
    });
    match &look.keys {
        Ok(keys) => {
            let selection = Selection::of(keys, question);
            value["matching"] = selection.matching.into();
            value["waiting"] = selection.waiting.into();
            value["next"] = selection.next.into();
            value["keys"] = selection.rows.iter().map(|info| key(info)).collect();
        }
        Err(error) => value["error"] = error.as_str().into(),
    }
    value
}

fn manager(health: &Health) -> Value {
    let losses = health.losses().iter().map(|(reason, number)| (loss(*reason).0.to_owned(), (*number).into()));
    json!({
        "up": health.is_up(),
        "held": health.held(),
        "renewal_slack_ms": health.renewal_slack().map(ms),
        "lost": Value::Object(losses.collect()),
        "nodes": health.nodes().iter().map(node).collect::<Value>(),
    })
}

fn node(node: &NodeHealth) -> Value {
    json!({
        "address": node.address(),
        "up": node.is_up(),
        "age_ms": node.age().map(ms),
        "last_error": node.last_error().map(fault),
    })
}

fn fault(fault: &Fault) -> Value {
    json!({ "message": fault.message(), "age_ms": ms(fault.age()) })
}

fn key(info: &KeyInfo) -> Value {
    json!({
        "key": info.key(),
        "locked": info.is_locked(),
        "foreign": info.is_foreign(),
        "remaining_ms": info.remaining().map(ms),
        "leases": info.leases(),
        "holders": info.holders().iter().map(holder).collect::<Value>(),
        "silent": info.silent().map(silent),
        "waiters": info.waiters().iter().map(waiter).collect::<Value>(),
        "truncated": info.is_truncated(),
        "processes": { "asked": info.processes().asked(), "answered": info.processes().answered() },
    })
}

fn holder(holder: &Holder) -> Value {
    let mut value = request(holder.party(), holder.mode());
    value["held_ms"] = ms(holder.held()).into();
    value["ttl_ms"] = ms(holder.ttl()).into();
    value["fencing_token"] = holder.fencing_token().get().into();
    value
}

fn silent(silent: Silent) -> Value {
    json!({
        "leases": silent.leases(),
        "permits": silent.permits(),
        "first_end_ms": silent.first_end().map(ms),
        "last_end_ms": silent.last_end().map(ms),
    })
}

fn waiter(waiter: &Waiter) -> Value {
    let mut value = request(waiter.party(), waiter.mode());
    value["waited_ms"] = ms(waiter.waited()).into();
    value["place"] = waiter.place().into();
    value
}

fn request(party: &Party, mode: Mode) -> Value {
    let (mode, permits, total) = match mode {
        Mode::Permits { total, take, .. } => ("permits".to_owned(), take, total),
        mode => (mode.to_string(), 0, 0),
    };
    json!({
        "service": party.service(),
        "host": party.host(),
        "process": party.process(),
        "label": party.label(),
        "mode": mode,
        "permits": permits,
        "total": total,
    })
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
