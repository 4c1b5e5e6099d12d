//! What operators see, for programs: the feature `serde`.
//!
//! The JSON of `lockctl` and of the status page. Times are whole milliseconds, what is unknown is `null`, and `permits` and `total` of a
//! lease without permits are 0. Fields may be added.

use std::{collections::BTreeMap, time::Duration};

use serde::ser::{Serialize, SerializeStruct, Serializer};

use crate::{Fault, Health, Holder, KeyInfo, Mode, NodeHealth, Processes, Silent, Waiter};

/// Serializes types as objects with these fields.
macro_rules! objects {
    ($(|$value:ident: $type:ident| { $($name:literal: $field:expr,)* })*) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let $value = self;
                let mut object = serializer.serialize_struct(stringify!($type), [$($name),*].len())?;
                $(object.serialize_field($name, &$field)?;)*
                object.end()
            }
        }
    )*};
}

objects! {
    |info: KeyInfo| {
        "key": info.key(), "locked": info.is_locked(), "foreign": info.is_foreign(), "remaining_ms": info.remaining().map(ms),
        "leases": info.leases(), "holders": info.holders(), "silent": info.silent(), "waiters": info.waiters(),
        "truncated": info.is_truncated(), "processes": info.processes(),
    }
    |processes: Processes| {
        "asked": processes.asked(), "answered": processes.answered(),
    }
    |silent: Silent| {
        "leases": silent.leases(), "permits": silent.permits(),
        "first_end_ms": silent.first_end().map(ms), "last_end_ms": silent.last_end().map(ms),
    }
    |holder: Holder| {
        "service": holder.party().service(), "host": holder.party().host(), "process": holder.party().process(),
        "label": holder.party().label(), "mode": mode(holder.mode()), "permits": holder.mode().permits(),
        "total": total(holder.mode()), "held_ms": ms(holder.held()), "ttl_ms": ms(holder.ttl()),
        "fencing_token": holder.fencing_token().get(),
    }
    |waiter: Waiter| {
        "service": waiter.party().service(), "host": waiter.party().host(), "process": waiter.party().process(),
        "label": waiter.party().label(), "mode": mode(waiter.mode()), "permits": waiter.mode().permits(),
        "total": total(waiter.mode()), "waited_ms": ms(waiter.waited()), "place": waiter.place(),
    }
    |health: Health| {
        "up": health.is_up(), "held": health.held(), "acquired": health.acquired(), "busy": health.busy(), "renewal_slack_ms": health.renewal_slack().map(ms),
        "lost": health.losses().iter().map(|(reason, number)| (reason.name(), *number)).collect::<BTreeMap<_, _>>(),
        "nodes": health.nodes(),
    }
    |node: NodeHealth| {
        "address": node.address(), "database": node.database(), "up": node.is_up(), "age_ms": node.age().map(ms), "last_error": node.last_error(),
    }
    |fault: Fault| {
        "message": fault.message(), "age_ms": ms(fault.age()),
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits { .. } => "permits",
    }
}

/// Returns how many permits the key has; zero if it has none.
fn total(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { total, .. } => total,
        Mode::Exclusive | Mode::Shared => 0,
    }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
