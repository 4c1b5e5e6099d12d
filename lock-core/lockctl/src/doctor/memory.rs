//! Checks of the server's memory: eviction and room.

use super::{facts::Facts, verdict::Verdict};

/// A server that may evict a lock frees it early. The rule is that of the library's warning.
pub(super) fn eviction(facts: &Facts) -> Result<Verdict, Verdict> {
    let limit = facts.number("maxmemory")?;
    let policy = facts.told("maxmemory_policy")?;
    Ok(match policy {
        "noeviction" => Verdict::green("maxmemory-policy is noeviction"),
        _ if limit == 0 => Verdict::amber(
            format!("maxmemory-policy is {policy}; it has no effect while maxmemory is 0"),
            "CONFIG SET maxmemory-policy noeviction, before maxmemory is set",
        ),
        _ => Verdict::red(
            format!(
                "maxmemory-policy is {policy}: when the memory is full, locks are evicted, and two holders are possible"
            ),
            "CONFIG SET maxmemory-policy noeviction, or use a separate server for locks",
        ),
    })
}

/// A server whose memory is full refuses new leases.
pub(super) fn room(facts: &Facts) -> Result<Verdict, Verdict> {
    let (limit, used) = (facts.number("maxmemory")?, facts.number("used_memory")?);
    let (limit, used, of) = if limit > 0 {
        (limit, used, "maxmemory")
    } else {
        (facts.number("total_system_memory")?, facts.number("used_memory_rss")?, "the machine (maxmemory is 0)")
    };
    if limit == 0 {
        return Ok(Verdict::green(format!("{} used, without a limit", bytes(used))));
    }
    let percent = used.saturating_mul(100) / limit;
    let mut found = format!("{} used, {percent} % of {} of {of}", bytes(used), bytes(limit));
    if let Some(scripts) = facts.field("used_memory_scripts_eval")?.and_then(|scripts| scripts.parse().ok()) {
        found += &format!(", {} of it by scripts", bytes(scripts));
    }
    Ok(match percent {
        0..75 => Verdict::green(found),
        75..95 => Verdict::amber(found, "raise maxmemory, or free keys: a full server refuses new leases"),
        _ => Verdict::red(format!("{found}: new leases fail when it is full"), "raise maxmemory, or free keys"),
    })
}

/// Writes a number of bytes as people read it.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1_000.0 && unit + 1 < UNITS.len() {
        value /= 1_000.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 10.0);
    format!("{value:.digits$} {}", UNITS[unit])
}
