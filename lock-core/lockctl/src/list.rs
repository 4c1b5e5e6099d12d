use std::io::{self, BufWriter};

use lock_core::KeyInfo;

use crate::{
    args::{List, Server},
    describe::{duration, missing, party, printable},
    exit::{Failure, warn},
    json, table,
};

/// Writes the keys that are held or waited for.
pub(crate) async fn list(server: &Server, args: List) -> Result<i32, Failure> {
    let keys = server.connect().await?.list(&args.begin).await?;
    let output = BufWriter::new(io::stdout().lock());
    if args.json {
        json::write(output, &keys)?;
    } else if keys.is_empty() {
        // The standard output stays empty, so that scripts can count its lines.
        warn("no key is held or waited for");
    } else {
        let rows: Vec<_> = keys.iter().map(row).collect();
        table::write(output, TITLES, &rows)?;
        if let Some(missing) = keys.first().and_then(missing) {
            warn(missing.trim_end_matches('.'));
        }
    }
    Ok(0)
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

const TITLES: [&str; 6] = ["KEY", "HOLDER", "HELD FOR", "TTL LEFT", "FENCING TOKEN", "WAITERS"];
