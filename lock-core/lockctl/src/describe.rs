//! A key in words.

use std::{fmt::Write, time::Duration};

use humantime::format_duration;
use lock_core::{Holder, KeyInfo, Mode, Party, Silent, Waiter};

/// Writes who holds a key and who waits for it, in lines for people.
pub(crate) fn key(info: &KeyInfo) -> String {
    let mut text = holder(info);
    let waiters = info.waiters();
    let missing = missing(info);
    if waiters.is_empty() {
        match &missing {
            Some(missing) => {
                let nobody =
                    if info.is_truncated() { "No waiter was named" } else { "No process that answered waits for it" };
                let _ = writeln!(text, "{nobody}. {missing}");
            }
            None if info.is_locked() => text.push_str("Nobody waits for it.\n"),
            None => {}
        }
        return text;
    }
    let requests = if waiters.len() == 1 { "request waits" } else { "requests wait" };
    let at_least = if info.is_truncated() { "At least " } else { "" };
    let _ = writeln!(text, "{at_least}{} {requests}{WAIT_FOR_IT}", waiters.len());
    for waiter in waiters {
        let _ = writeln!(text, "  {}", self::waiter(waiter));
    }
    if let Some(missing) = missing {
        let _ = writeln!(text, "{missing}");
    }
    text
}

/// Says how many processes did not answer, and whether one that did has more to name. Returns `None` if nothing is missing.
pub(crate) fn missing(info: &KeyInfo) -> Option<String> {
    let processes = info.processes();
    let unanswered = match (processes.asked(), processes.unanswered()) {
        (_, Some(0)) => None,
        (Some(asked), Some(unanswered)) => {
            let (noun, theirs) =
                (if asked == 1 { "process" } else { "processes" }, if unanswered == 1 { "its" } else { "their" });
            Some(format!(
                "{unanswered} of {asked} {noun} did not answer; {theirs} holders and waiters are missing here."
            ))
        }
        _ => Some(format!(
            "It is not known how many processes should have answered; {} did. Holders and waiters may be missing here.",
            processes.answered()
        )),
    };
    let cut = info.is_truncated().then(|| CUT.to_owned());
    let all: Vec<_> = unanswered.into_iter().chain(cut).collect();
    (!all.is_empty()).then(|| all.join(" "))
}

fn holder(info: &KeyInfo) -> String {
    let key = quoted(info.key());
    if !info.is_locked() {
        return format!("{key} is free.\n");
    }
    let left = info.remaining().map(duration);
    if let Some(holder) = info.holder() {
        let left = left.as_deref().unwrap_or("an unknown part");
        return if holder.mode().is_exclusive() { held(&key, holder, left) } else { shared(&key, info, left) };
    }
    match (info.is_foreign(), left) {
        (true, Some(left)) => {
            format!("{key} is held by another library, which cannot be asked. {left} of its ttl are left.\n")
        }
        (true, None) => format!(
            "{key} is held by another library, which cannot be asked, and without a ttl: it stays until its holder or \
             `lockctl release --foreign` deletes it.\n"
        ),
        (false, left) => {
            let left = left.as_deref().unwrap_or("an unknown part");
            let permits = info.silent().map(permits).unwrap_or_default();
            let held = match info.leases() {
                0 | 1 => format!("held{permits}, and {left} of the ttl are left"),
                leases => format!("held by {leases} leases{permits}, and {left} of the longest ttl are left"),
            };
            format!(
                "{key} is {held}, but nobody answered. One of these is so:\n\
                 {NOBODY_ANSWERED}The key becomes free when the ttl is over, unless a process renews it; look again then.\n"
            )
        }
    }
}

fn held(key: &str, holder: &Holder, left: &str) -> String {
    format!(
        "{key} is held by {} for {}, with fencing token {}. {left} of its ttl of {} are left.\n",
        party(holder.party()),
        duration(holder.held()),
        holder.fencing_token(),
        duration(holder.ttl()),
    )
}

fn shared(key: &str, info: &KeyInfo, left: &str) -> String {
    let holders = info.holders();
    let at_least = if info.is_truncated() { "at least " } else { "" };
    let number = info.leases();
    let leases = if number == 1 { "lease" } else { "leases" };
    let taken = holders.iter().filter_map(|holder| match holder.mode() {
        Mode::Permits { take, .. } => Some(take),
        _ => None,
    });
    let mut text = match holders[0].mode() {
        Mode::Permits { total, .. } => {
            let taken = taken.chain(info.silent().map(|silent| silent.permits())).fold(0, u32::saturating_add);
            format!(
                "{key} has {at_least}{taken} of {total} permits taken, by {number} {leases}; {left} of the longest are left:\n"
            )
        }
        _ => format!("{key} is shared by {at_least}{number} {leases}; {left} of the longest are left:\n"),
    };
    for holder in holders {
        let (party, held, number) = (party(holder.party()), duration(holder.held()), holder.fencing_token());
        let _ = writeln!(text, "  {}: {party}, for {held}, with fencing token {number}", holder.mode());
    }
    if let Some(silent) = info.silent() {
        text.push_str(&self::silent(silent));
    }
    text
}

/// Says what it means that some leases have no answer while others do, and until when.
fn silent(silent: Silent) -> String {
    let (number, permits) = (silent.leases(), permits(silent));
    let (reason, counts) = if number == 1 { (ONE_SILENT, "It counts") } else { (SEVERAL_SILENT, "Each counts") };
    let leases = if number == 1 { "lease" } else { "leases" };
    let first = silent.first_end().map_or_else(|| "an unknown time".to_owned(), duration);
    let last = silent.last_end().map_or_else(|| "an unknown time".to_owned(), duration);
    let ends = if first == last {
        format!("in {last}")
    } else {
        format!("in {first} at the earliest and {last} at the latest")
    };
    format!(
        "{number} more {leases}{permits} did not answer: {reason}. {counts} until its own ttl is over, {ends}, unless a \
         process renews it; look again then.\n"
    )
}

/// Says how many permits leases take for which nobody answered.
fn permits(silent: Silent) -> String {
    match silent.permits() {
        0 => String::new(),
        1 => " with 1 permit".to_owned(),
        permits => format!(" with {permits} permits"),
    }
}

fn waiter(waiter: &Waiter) -> String {
    let mode = if waiter.mode().is_exclusive() { String::new() } else { format!(" ({})", waiter.mode()) };
    format!("{}. {}{mode}, for {}", waiter.place(), party(waiter.party()), duration(waiter.waited()))
}

/// Names a request and its process.
pub(crate) fn party(party: &Party) -> String {
    printable(&party.to_string())
}

/// Writes a duration in at most two units, which is as much as anybody reads.
pub(crate) fn duration(duration: Duration) -> String {
    let (seconds, ms) = (duration.as_secs(), u64::from(duration.subsec_millis()));
    let rounded = match seconds {
        0 => Duration::from_millis(ms),
        1..10 => Duration::from_millis(seconds * 1_000 + ms / 100 * 100),
        10..3_600 => Duration::from_secs(seconds),
        3_600..86_400 => Duration::from_secs(seconds / 60 * 60),
        _ => Duration::from_secs(seconds / 3_600 * 3_600),
    };
    format_duration(rounded).to_string()
}

/// Writes a key in quotes, as errors do.
pub(crate) fn quoted(key: &str) -> String {
    format!("\"{}\"", key.escape_debug())
}

/// Escapes what could steer a terminal: names come from other processes, and keys from everywhere.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        // Quotes are as good as other text here; `escape_debug` knows the control and format characters of Unicode.
        if matches!(c, '"' | '\'' | '\\') {
            printable.push(c);
        } else {
            printable.extend(c.escape_debug());
        }
    }
    printable
}

/// The end of the line above the waiters.
pub(crate) const WAIT_FOR_IT: &str = " for it:";

/// What it means that one lease has no answer; docs/operations.md has all.
const ONE_SILENT: &str =
    "its holder has died, is stopped or is cut off, or cannot use messages, or the lease is between two holders";

/// The same of several.
const SEVERAL_SILENT: &str = "their holders have died, are stopped or are cut off, or cannot use messages, or the leases are between two holders";

/// What it means that an answer is truncated.
const CUT: &str = "A process has more than 500 holders and waiters; those that it did not name are missing here.";

/// What it means that nobody answered, in the words of `KeyInfo::nobody_answered` and of docs/operations.md.
const NOBODY_ANSWERED: &str =
    "  - the holder has died, is stopped or is cut off, or is too busy to answer within 250 ms;
  - the holder is a client of another kind or an older version;
  - the holder, or the process that asked, cannot use messages (RESP2, or no rights to pub/sub);
  - the key is between two holders: handed over and not taken up yet, or kept by `at_least`.
";
