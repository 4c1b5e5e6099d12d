//! The options of a lease: one list for managers, requests, layers and the attribute.
//!
//! An option that is not set is `None`, so that options can be laid over others: those of a request over those of a layer over the
//! manager's. What remains `None` has its default, which the readers at the foot of the type know. The setters are in
//! `request/options.rs`, since each is one of a request, too.

use std::time::Duration;

#[cfg(doc)]
use crate::LockRequest;
use crate::{
    end::OnLost,
    error::Argument,
    replicas::Replicas,
    ttl::{MAX_TTL, Renewal, Ttl},
};

/// The options of a lease: how long it lasts, how long to wait for it, and what happens when it is lost.
///
/// Options are given to a manager by [`defaults`](crate::LockManagerBuilder::defaults), to a request by
/// [`options`](LockRequest::options), and to a layer of lock-tower by its `options`. A [`LockRequest`] also has each of the setters.
/// An option that is not set is the manager's.
///
/// Ranges are checked when the manager is built, when the request is awaited, or by the layer's `check`.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::{LeaseOptions, LockManager};
/// use std::time::Duration;
///
/// let defaults = LeaseOptions::new().ttl(Duration::from_secs(5)).wait(Duration::from_secs(2));
/// let manager = LockManager::builder().url("memory://").defaults(defaults).build()?;
///
/// let short = LeaseOptions::new().ttl(Duration::from_secs(1));
/// let guard = manager.lock("goods:1").options(short).await?;
/// assert_eq!(guard.ttl(), Duration::from_secs(1));
/// assert_eq!(manager.lock("goods:2").await?.ttl(), Duration::from_secs(5));
/// # guard.release().await?; Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options do nothing unless a manager, a request or a layer gets them"]
pub struct LeaseOptions {
    pub(crate) ttl: Option<Duration>,
    /// [`Duration::MAX`] is without end.
    pub(crate) wait: Option<Duration>,
    pub(crate) renewal: Option<Renewal>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) on_lost: Option<OnLost>,
    /// The inner one is `None` for the primary alone.
    pub(crate) durability: Option<Option<Replicas>>,
}

impl LeaseOptions {
    /// Makes options of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills what is not set from other options.
    #[doc(hidden)]
    pub fn or(self, others: Self) -> Self {
        Self {
            ttl: self.ttl.or(others.ttl),
            wait: self.wait.or(others.wait),
            renewal: self.renewal.or(others.renewal),
            max_hold: self.max_hold.or(others.max_hold),
            at_least: self.at_least.or(others.at_least),
            on_lost: self.on_lost.or(others.on_lost),
            durability: self.durability.or(others.durability),
        }
    }

    /// Returns the ttl as it was set, or 10 s.
    pub(crate) fn usual_ttl(&self) -> Duration {
        self.ttl.unwrap_or(TEN_SECONDS)
    }

    /// Returns for how long to wait. Added to any moment, a wait without end is [`Moment::NEVER`](crate::clock::Moment::NEVER).
    pub(crate) fn patience(&self) -> Duration {
        self.wait.unwrap_or(TEN_SECONDS)
    }

    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.durability.flatten()
    }

    /// Returns the ttl and the renewal if all options are in their ranges; otherwise which option is not, and why.
    pub(crate) fn check(&self) -> Result<(Ttl, Renewal), (Argument, String)> {
        let ttl = Ttl::new(self.usual_ttl()).map_err(|detail| (Argument::Ttl, detail))?;
        let (half, renewal) = (ttl.get() / 2, self.renewal.unwrap_or(Renewal::ThirdOfTtl));
        let (argument, detail) = match renewal {
            Renewal::Every(interval) if !(MIN_INTERVAL..=half).contains(&interval) => {
                let detail = format!(
                    "`renew_every` of {interval:?} is not between {MIN_INTERVAL:?} and {half:?}, half of the ttl of {:?}: a renewal \
                     that fails must leave time for another; raise the ttl, or set another `renew_every` (this one may be a default)",
                    ttl.get()
                );
                (Argument::RenewEvery, detail)
            }
            _ if self.max_hold.is_some_and(|most| most.is_zero()) => (
                Argument::MaxHold,
                "a `max_hold` of zero leaves no time to work; raise it; `Duration::MAX` is no bound".to_owned(),
            ),
            _ if self.at_least.is_some_and(|least| least > MAX_TTL) => {
                (Argument::AtLeast, "an `at_least` of more than 100 years is too long; lower it".to_owned())
            }
            _ => return self.replicas().map_or(Ok(()), |replicas| replicas.check(ttl)).map(|()| (ttl, renewal)),
        };
        Err((argument, detail))
    }
}

const TEN_SECONDS: Duration = Duration::from_secs(10);

/// The least interval between two renewals of a lease.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_are_set_count_and_all_others_are_those_below() {
        let seconds = Duration::from_secs;
        let manager = LeaseOptions::new().ttl(seconds(1)).fixed().durability(Replicas::new(1, seconds(1)));
        let layer = LeaseOptions::new().ttl(seconds(2)).wait_forever().durability(None);
        let request = LeaseOptions::new().wait(seconds(3));
        let both = request.or(layer.or(manager));
        assert_eq!((both.usual_ttl(), both.patience(), both.replicas()), (seconds(2), seconds(3), None));
        assert_eq!(both.check().map(|(_, renewal)| renewal), Ok(Renewal::Never));
        assert_eq!(LeaseOptions::new().or(manager), manager);
    }
}
