//! What a restart of the server forgets.

use super::{facts::Facts, verdict::Verdict};

/// A server that restarts without its data has forgotten every lease, and then two holders are possible.
pub(super) fn persistence(facts: &Facts) -> Result<Verdict, Verdict> {
    let is_wrong = |name| facts.field(name).map(|status| status.is_some_and(|status| status != "ok"));
    let keeps_log = facts.number("aof_enabled")? > 0;
    if keeps_log && is_wrong("aof_last_write_status")? {
        return Ok(Verdict::red(
            "the last write to the append-only file failed: the server refuses locks",
            "look at the disk and the log of the server",
        ));
    }
    let saves = facts.setting("save");
    if is_wrong("rdb_last_bgsave_status")?
        && facts.setting("stop-writes-on-bgsave-error").unwrap_or("yes") == "yes"
        && saves.as_ref().is_ok_and(|points| !points.is_empty())
    {
        return Ok(Verdict::red(
            "the last snapshot failed: the server refuses locks until one succeeds",
            "look at the disk and the log of the server",
        ));
    }
    if keeps_log {
        let how = facts.setting("appendfsync")?;
        return Ok(match how {
            "always" => Verdict::green("appendonly is yes, and appendfsync always: a restart keeps the leases"),
            _ => Verdict::amber(
                format!("appendfsync is {how}: a crash of the machine forgets the newest leases"),
                format!("CONFIG SET appendfsync always, or {OTHERWISE}"),
            ),
        });
    }
    let points = saves?;
    let found = if points.is_empty() {
        "nothing is kept: a restart forgets every lease".to_owned()
    } else {
        format!("only snapshots are kept (save {points}): a crash forgets the leases since the last one")
    };
    Ok(Verdict::amber(found, format!("set appendonly yes and appendfsync always, or {OTHERWISE}")))
}

/// What a deployment can do instead, which no server tells.
const OTHERWISE: &str =
    "start the server again only after the longest ttl, or claim data with the fencing token before it is read";
