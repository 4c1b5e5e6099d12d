//! What is said of holders and waiters, in the list and in the confirmation.

use std::fmt::{self, Display};

use lock_core::{Holder, KeyInfo, LossReason, Party, Silent};

use super::{
    look::Look,
    processes::Missed,
    text::{Attribute, Clipped},
    trace::Traces,
    words::{Age, Count},
};

/// Says who has a key and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderOf<'a> {
    pub(super) info: &'a KeyInfo,
    /// Where the traces of holders are, if that is known.
    pub(super) traces: Option<&'a Traces>,
}

impl HolderOf<'_> {
    /// A link to the trace in which a holder acquired its lease, if there is one. It names no key to the other site.
    fn trace(&self, f: &mut fmt::Formatter<'_>, holder: &Holder) -> fmt::Result {
        match self.traces.and_then(|traces| traces.of(holder)) {
            Some(link) => write!(f, " · <a rel=noreferrer href=\"{}\">trace</a>", Attribute(&link)),
            None => Ok(()),
        }
    }
}

impl Display for HolderOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info;
        if let Some(holder) = info.holder() {
            write!(f, "<p>Held for <b>{}</b> by {}", Age(holder.held()), Named(holder.party()))?;
            if !holder.mode().is_exclusive() {
                write!(f, " ({})", holder.mode())?;
            }
            self.trace(f, holder)?;
            f.write_str("</p>")?;
            if let [_, others @ ..] = info.holders()
                && !others.is_empty()
            {
                let at_least = if info.is_truncated() { "at least " } else { "" };
                write!(f, "<details><summary>and {at_least}{}</summary><ul>", Count(others.len(), "other"))?;
                for other in others.iter().take(SHOWN) {
                    write!(f, "<li>{}, {} ({})", Age(other.held()), Named(other.party()), other.mode())?;
                    self.trace(f, other)?;
                }
                f.write_str("</ul>")?;
                f.write_str("</details>")?;
            }
            if let Some(silent) = info.silent() {
                write!(f, "{}", NotAnswering(silent))?;
            }
        } else if info.is_foreign() {
            f.write_str("<p>Held by <b>another library</b>, which does not say since when.</p>")?;
        } else if info.is_locked() && info.is_truncated() {
            f.write_str("<p>Held; a process has <b>too many keys</b> to name all, and <code>lockctl who</code> asks for one.</p>")?;
        } else if info.is_locked() {
            f.write_str(NOBODY_ANSWERED)?;
            if let Some(silent) = info.silent().filter(|silent| silent.leases() > 1) {
                write!(f, "<p>It has <b>{}</b>{}.</p>", Count(silent.leases(), "lease"), Permits(silent.permits()))?;
            }
        } else {
            f.write_str("<p><b>Free</b>, and about to be acquired.</p>")?;
        }
        let ttl = info.holder().map(|holder| holder.ttl());
        match (info.remaining(), ttl) {
            (Some(left), Some(ttl)) => {
                write!(f, "<p class=fact>Ends in {} if not renewed (ttl {})", Age(left), Age(ttl))?
            }
            (Some(left), None) => write!(f, "<p class=fact>Ends in {} if not renewed", Age(left))?,
            (None, _) if info.is_locked() => f.write_str("<p class=fact>Has no ttl: it does not end by itself")?,
            (None, _) => return Ok(()),
        }
        match info.holder() {
            Some(holder) => write!(f, " · fencing token {}</p>", holder.fencing_token().get()),
            None => f.write_str("</p>"),
        }
    }
}

/// Says of leases for which nobody answered, beside others, what that means and until when.
struct NotAnswering(Silent);

impl Display for NotAnswering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let silent = self.0;
        let (reason, counts) =
            if silent.leases() == 1 { (ONE_SILENT, "It counts") } else { (SEVERAL_SILENT, "Each counts") };
        let (number, permits) = (Count(silent.leases(), "more lease"), Permits(silent.permits()));
        write!(f, "<p><b>{number}{permits} did not answer</b>: {reason}. {counts} until its own ttl is over")?;
        if let (Some(first), Some(last)) = (silent.first_end(), silent.last_end()) {
            write!(f, ", in {} at the earliest and {} at the latest", Age(first), Age(last))?;
        }
        f.write_str(".</p>")
    }
}

/// Says how many permits leases take, if they do.
struct Permits(u32);

impl Display for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" with 1 permit"),
            permits => write!(f, " with {permits} permits"),
        }
    }
}

/// Names a request and its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a>(pub(super) &'a Party);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let party = self.0;
        let (service, host) = (Clipped(party.service()), Clipped(party.host()));
        write!(f, "<b>{service}</b> on {host}, process {}", party.process())?;
        if party.label().is_empty() { Ok(()) } else { write!(f, ", <code>{}</code>", Clipped(party.label())) }
    }
}

/// Says how many requests wait for a key. There may be more than the processes have named.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitersOf<'a>(pub(super) &'a KeyInfo);

impl Display for WaitersOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.waiters().len();
        let at_least = if self.0.is_truncated() { "at least " } else { "" };
        write!(f, "{at_least}{} waiting", Count(number, "request"))
    }
}

/// Says how many processes did not answer a look, which ones these may be, and whether one that did has more to name; nothing if nothing
/// is missing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Missing<'a> {
    /// Any key of the look: all have the same answers.
    pub(super) info: &'a KeyInfo,
    pub(super) look: &'a Look,
}

impl Missing<'_> {
    /// Whether the look may lack holders and waiters.
    pub(super) fn is_any(&self) -> bool {
        self.info.is_truncated() || self.info.processes().unanswered() != Some(0)
    }

    fn names(&self, f: &mut fmt::Formatter<'_>, unanswered: usize) -> fmt::Result {
        let missed = &self.look.missed[..];
        if !missed.is_empty() {
            let ended = if missed.len() > unanswered { " (some may have ended)" } else { "" };
            write!(f, " Answered before, and not now{ended}:</p><ul>")?;
            for Missed { party, ago } in missed.iter().take(SHOWN) {
                write!(f, "<li>{}, {} ago", Named(party), Age(*ago))?;
            }
            f.write_str("</ul><p>")?;
        }
        match unanswered.saturating_sub(missed.len()) {
            0 => f.write_str("</p>"),
            1 => write!(f, " One has not answered this page before and has no name here: {NAMELESS}.</p>"),
            more => write!(f, " {more} have not answered this page before and have no names here: {NAMELESS}.</p>"),
        }
    }
}

impl Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.info.is_truncated() {
            f.write_str(CUT)?;
        }
        let processes = self.info.processes();
        f.write_str(if processes.unanswered() == Some(0) { "" } else { "<div class=alarm role=alert><p>" })?;
        match (processes.asked(), processes.unanswered()) {
            (_, Some(0)) => Ok(()),
            (Some(asked), Some(unanswered)) => {
                let (noun, theirs) =
                    (if asked == 1 { "process" } else { "processes" }, if unanswered == 1 { "its" } else { "their" });
                write!(
                    f,
                    "<b>{unanswered} of {asked} {noun} did not answer</b>; {theirs} holders and waiters are missing here."
                )?;
                self.names(f, unanswered)?;
                f.write_str("</div>")
            }
            _ => write!(
                f,
                "<b>It is not known how many processes should have answered</b>; {} did. Holders and waiters may be \
                 missing here.</p></div>",
                processes.answered()
            ),
        }
    }
}

/// How many holders and how many waiters of a key the page names; JSON has all.
pub(super) const SHOWN: usize = 20;

/// The words of [`KeyInfo::nobody_answered`] in short; docs/operations.md has all.
const NOBODY_ANSWERED: &str = "<p>Held, but <b>nobody answered</b>: the holder has died, is stopped, is cut off or is too busy to answer, is a client of another \
                               kind or an older version, or cannot use messages; or the key is kept by <code>at_least</code>.</p>";

/// Where to find a process without a name.
const NAMELESS: &str =
    "cannot be named. <code>CLIENT LIST</code> of Redis shows each connection with its address and its service";

/// What it means that an answer is truncated.
const CUT: &str = "<p class=alarm role=alert><b>A process has more than 500 holders and waiters</b>; those that it did not name are \
                   missing here.</p>";

/// What it means that one lease has no answer; docs/operations.md has all.
const ONE_SILENT: &str =
    "its holder has died, is stopped or is cut off, or cannot use messages, or the lease is between two holders";

/// The same of several.
const SEVERAL_SILENT: &str = "their holders have died, are stopped or are cut off, or cannot use messages, or the leases are between two holders";

/// What a loss is called.
pub(super) fn loss(reason: LossReason) -> &'static str {
    match reason {
        LossReason::Expired => "expired",
        LossReason::Taken => "deleted or taken by another",
        LossReason::MaxHold => "held for too long (max_hold)",
        LossReason::Forced => "released by force",
        LossReason::ShutDown => "cut short by a shutdown",
        _ => "lost for another reason",
    }
}
