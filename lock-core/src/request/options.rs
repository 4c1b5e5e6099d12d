//! The options of a request, and their ranges.

use std::time::Duration;

use crate::{
    error::Argument,
    future::protected::OnLost,
    replicas::Replicas,
    ttl::{MAX_TTL, Renewal, Ttl},
};

/// The options of a request. The manager has one with its defaults.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) renewal: Renewal,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Duration,
    pub(crate) on_lost: OnLost,
    pub(crate) durability: Option<Replicas>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Atmost(Duration),
    Forever,
}

impl Wait {
    /// For how long; added to any moment, without end is [`Moment::NEVER`](crate::clock::Moment::NEVER).
    pub(crate) fn get(self) -> Duration {
        match self {
            Self::Atmost(wait) => wait,
            Self::Forever => Duration::MAX,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: Wait::Atmost(Duration::from_secs(10)),
            renewal: Renewal::ThirdOfTtl,
            max_hold: None,
            at_least: Duration::ZERO,
            on_lost: OnLost::Cancel,
            durability: None,
        }
    }
}

impl Options {
    /// Whether all of them are in their ranges: the ttl, or which one is not and why.
    pub(crate) fn check(&self) -> Result<Ttl, (Argument, String)> {
        let Self { ttl, renewal, max_hold, at_least, durability, .. } = *self;
        let ttl = Ttl::new(ttl).map_err(|detail| (Argument::Ttl, detail))?;
        if let Renewal::Every(interval) = renewal
            && !(MIN_INTERVAL..=ttl.get() / 2).contains(&interval)
        {
            let (most, ttl) = (ttl.get() / 2, ttl.get());
            let detail = format!(
                "`renew_every` of {interval:?} is not between {MIN_INTERVAL:?} and {most:?}, half of the ttl of {ttl:?}: \
                 a renewal that fails must leave time for another"
            );
            return Err((Argument::RenewEvery, detail));
        }
        if max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            return Err((
                Argument::MaxHold,
                "a `max_hold` of zero leaves no time to work; raise it, or leave it out".to_owned(),
            ));
        }
        if at_least > MAX_TTL {
            return Err((Argument::AtLeast, "an `at_least` of more than 100 years is too long; lower it".to_owned()));
        }
        durability.map_or(Ok(()), |replicas| replicas.check(ttl))?;
        Ok(ttl)
    }
}

/// The least interval between two renewals of a lease.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
