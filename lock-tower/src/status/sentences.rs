//! What is said of holders and waiters, in the list and in the confirmation.

use std::fmt::{self, Display};

use lock_core::{KeyInfo, LossReason, Party};

use super::{
    text::Text,
    words::{Age, Count},
};

/// Says who has a key and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct HolderOf<'a>(pub(super) &'a KeyInfo);

impl Display for HolderOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.0;
        if let Some(holder) = info.holder() {
            write!(f, "<p>Held for <b>{}</b> by {}</p>", Age(holder.held()), Named(holder.party()))?;
        } else if info.is_foreign() {
            f.write_str("<p>Held by <b>another library</b>, which does not say since when.</p>")?;
        } else if info.is_locked() {
            f.write_str("<p>Held by a process that <b>does not answer</b>: it has died, is stopped or cut off.</p>")?;
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

/// Names a request and its process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named<'a>(pub(super) &'a Party);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let party = self.0;
        let (service, host) = (Text(party.service()), Text(party.host()));
        write!(f, "<b>{service}</b> on {host}, process {}", party.process())?;
        if party.label().is_empty() { Ok(()) } else { write!(f, ", <code>{}</code>", Text(party.label())) }
    }
}

/// Says how many requests wait for a key; there may be more, since a process names a hundred of a key at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitersOf<'a>(pub(super) &'a KeyInfo);

impl Display for WaitersOf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.waiters().len();
        let at_least = if number >= 100 { "at least " } else { "" };
        write!(f, "{at_least}{} waiting", Count(number, "request"))
    }
}

/// What a loss is called, in JSON and in words.
pub(super) fn loss(reason: LossReason) -> (&'static str, &'static str) {
    match reason {
        LossReason::Expired => ("expired", "expired"),
        LossReason::Taken => ("taken", "deleted or taken by another"),
        LossReason::MaxHold => ("max_hold", "held for too long (max_hold)"),
        LossReason::Forced => ("forced", "released by force"),
        LossReason::ShutDown => ("shut_down", "cut short by a shutdown"),
        _ => ("other", "lost for another reason"),
    }
}
