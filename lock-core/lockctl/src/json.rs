//! A key for programs.

use std::{io, time::Duration};

use lock_core::{KeyInfo, Mode, Party, Silent};
use serde_json::{Value, json};

/// Makes the object of a key, with the names that the status page of lock-tower uses too. Times are whole milliseconds; what is
/// unknown is `null`.
pub(crate) fn key(info: &KeyInfo) -> Value {
    let holders = info.holders().iter().map(|holder| {
        let held = json!({
            "held_ms": ms(holder.held()),
            "ttl_ms": ms(holder.ttl()),
            "fencing_token": holder.fencing_token().get(),
        });
        with_request(held, holder.party(), holder.mode())
    });
    let waiters = info.waiters().iter().map(|waiter| {
        let waits = json!({
            "waited_ms": ms(waiter.waited()),
            "place": waiter.place(),
        });
        with_request(waits, waiter.party(), waiter.mode())
    });
    json!({
        "key": info.key(),
        "locked": info.is_locked(),
        "foreign": info.is_foreign(),
        "remaining_ms": info.remaining().map(ms),
        "leases": info.leases(),
        "holders": holders.collect::<Vec<_>>(),
        "silent": info.silent().map(silent),
        "waiters": waiters.collect::<Vec<_>>(),
        "truncated": info.is_truncated(),
        "processes": { "asked": info.processes().asked(), "answered": info.processes().answered() },
    })
}

fn silent(silent: Silent) -> Value {
    json!({
        "leases": silent.leases(),
        "permits": silent.permits(),
        "first_end_ms": silent.first_end().map(ms),
        "last_end_ms": silent.last_end().map(ms),
    })
}

/// Writes a value in lines, as people read it, too. So characters that steer a terminal are written as escapes.
pub(crate) fn write(mut output: impl io::Write, value: &Value) -> io::Result<()> {
    for c in format!("{value:#}\n").chars() {
        // JSON escapes the control characters of ASCII itself; all others stand in strings.
        if c.is_ascii() && c != '\u{7f}' || c.escape_debug().len() == 1 {
            write!(output, "{c}")?;
        } else {
            c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(output, "\\u{unit:04x}"))?;
        }
    }
    output.flush()
}

fn with_request(mut object: Value, party: &Party, mode: Mode) -> Value {
    let (mode, permits, total) = match mode {
        Mode::Permits { total, take, .. } => ("permits".to_owned(), take, total),
        mode => (mode.to_string(), 0, 0),
    };
    object["service"] = party.service().into();
    object["host"] = party.host().into();
    object["process"] = party.process().into();
    object["label"] = party.label().into();
    object["mode"] = mode.into();
    object["permits"] = permits.into();
    object["total"] = total.into();
    object
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
