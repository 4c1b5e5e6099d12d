use std::{
    io::{self, BufWriter, Write},
    time::Duration,
};

use lock_core::{KeyInfo, LockManager};
use tokio::time::sleep;

use crate::{
    args::{List, Server},
    describe::{duration, missing, party, printable},
    exit::{Failure, warn, written},
    json, table,
    terminal::{self, Look, Paint},
};

/// Writes the keys that are held or waited for, once or again and again.
pub(crate) async fn list(server: &Server, args: List) -> Result<i32, Failure> {
    let manager = server.connect().await?;
    let Some(every) = args.watch else {
        look(&manager, &args).await?;
        return Ok(0);
    };
    loop {
        match look(&manager, &args).await {
            Ok(true) => {}
            Ok(false) => return Ok(0),
            // An outage is what is watched for: the next look may find its end.
            Err(failure) => failure.say(),
        }
        sleep(every.max(SHORTEST)).await;
    }
}

/// Writes the keys once. Returns `false` if the reader of the output has read enough.
async fn look(manager: &LockManager, args: &List) -> Result<bool, Failure> {
    let mut keys = manager.list(&args.begin).await?;
    let missing = keys.first().and_then(missing);
    if args.waiting {
        keys.retain(|info| !info.waiters().is_empty());
    }
    if !written(write(&keys, args))? {
        return Ok(false);
    }
    if keys.is_empty() && !args.json {
        // The standard output has no table, so that scripts can count its lines.
        warn(match (args.waiting, &missing) {
            (false, _) => "no key is held or waited for",
            (true, None) => "no key is waited for",
            (true, Some(_)) => "no process that answered waits for a key",
        });
    }
    if let (false, Some(missing)) = (args.json, missing) {
        warn(missing.trim_end_matches('.'));
    }
    Ok(true)
}

fn write(keys: &[KeyInfo], args: &List) -> io::Result<()> {
    let (width, paint) = (terminal::width(), Paint::of_stdout());
    let mut output = BufWriter::new(io::stdout().lock());
    if args.json {
        return json::write(output, &keys);
    }
    if args.watch.is_some() {
        // A terminal begins again at its top, other output gets an empty line.
        output.write_all(if width.is_some() { b"\x1b[H\x1b[2J" } else { b"\n" })?;
    }
    if keys.is_empty() {
        return output.flush();
    }
    let rows: Vec<_> = keys.iter().map(row).collect();
    table::write(output, TITLES, &rows, width, |row, column, text| match row.map(|row| &keys[row]) {
        None => paint.paint(Look::Bold, text),
        Some(info) if column == HOLDER && is_silent(info) => paint.paint(Look::Red, text),
        Some(info) if column == WAITERS && !info.waiters().is_empty() => paint.paint(Look::Amber, text),
        Some(_) => text.to_owned(),
    })
}

/// Returns whether nobody answered for a lease of the key.
fn is_silent(info: &KeyInfo) -> bool {
    info.silent().is_some() || info.nobody_answered()
}

fn row(info: &KeyInfo) -> [String; 6] {
    let nobody = if !info.is_locked() {
        "nobody"
    } else if info.is_foreign() {
        "another library"
    } else if info.is_truncated() {
        "unknown"
    } else {
        "nobody answered"
    };
    let none = || "-".to_owned();
    let holder = info.holder();
    [
        printable(info.key()),
        holder.map_or_else(
            || format!("{nobody}{}", leases(info)),
            |holder| format!("{}{}{}", party(holder.party()), others(info), silent(info)),
        ),
        holder.map_or_else(none, |holder| duration(holder.held())),
        info.remaining().map_or_else(none, duration),
        holder.map_or_else(none, |holder| holder.fencing_token().to_string()),
        format!("{}{}", info.waiters().len(), if info.is_truncated() { "+" } else { "" }),
    ]
}

/// Says how many others share the key.
fn others(info: &KeyInfo) -> String {
    match info.holders().len() {
        0 | 1 => String::new(),
        2 if !info.is_truncated() => " and 1 other".to_owned(),
        holders => format!(" and {}{} others", holders - 1, if info.is_truncated() { "+" } else { "" }),
    }
}

/// Says for how many leases of the key nobody answered, beside those that did.
fn silent(info: &KeyInfo) -> String {
    info.silent().map_or_else(String::new, |silent| format!(", {} did not answer", silent.leases()))
}

/// Says how many leases a key has for which nobody answered at all, if they are several.
fn leases(info: &KeyInfo) -> String {
    info.silent()
        .filter(|silent| silent.leases() > 1)
        .map_or_else(String::new, |silent| format!(" ({} leases)", silent.leases()))
}

/// The columns that have colours.
const HOLDER: usize = 1;
const WAITERS: usize = 5;

/// The shortest time between two looks, each of which asks all processes.
const SHORTEST: Duration = Duration::from_millis(100);

const TITLES: [&str; 6] = ["KEY", "HOLDER", "HELD FOR", "TTL LEFT", "FENCING TOKEN", "WAITERS"];
