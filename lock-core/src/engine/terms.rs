use std::{panic::Location, time::Duration};

use crate::{
    mode::Mode,
    ttl::{Renewal, Ttl},
};

/// The options of a request that concern its lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) mode: Mode,
    pub(crate) ttl: Ttl,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) since: &'static Location<'static>,
    pub(crate) label: &'static str,
}

impl Terms {
    /// Whether a lease that is kept in this way may be passed on to a waiter with these terms.
    pub(crate) fn fit(&self, ttl: Ttl, renewal: Renewal) -> bool {
        self.ttl == ttl && self.renewal == renewal && self.is_passed_on()
    }

    /// Whether a lease with these terms may be passed on at all. Those who share a key have a token each.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.is_renewed() && self.mode.is_exclusive()
    }

    pub(crate) fn is_renewed(&self) -> bool {
        self.renewal != Renewal::Never
    }
}
