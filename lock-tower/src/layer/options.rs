use std::{panic::Location, time::Duration};

use lock_core::{MAX_TTL, MIN_TTL, OnLost, Replicas};

use crate::admission::Limits;

/// The options of a layer; `None` means the manager's default.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) ttl: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) max_hold: Option<Duration>,
    /// The bound of a hold that has no other bound.
    pub(super) usual_max_hold: Option<Duration>,
    pub(super) on_lost: Option<OnLost>,
    /// The inner one is `None` for the primary alone.
    pub(super) durability: Option<Option<Replicas>>,
    pub(super) on_backend_error: OnBackendError,
    pub(super) limits: Limits,
    /// Whether the protocol locks requests of no method at all.
    pub(super) locks_nothing: bool,
    /// A name to lock that cannot be that of a method or service of gRPC.
    pub(super) misnamed: Option<&'static str>,
    /// Whether the protocol answers busy keys as if they were served.
    pub(super) busy_is_success: bool,
    /// How many permits a key has; `None` for a key that is held exclusively or shared.
    pub(super) permits: Option<u32>,
    /// Whether some requests share their keys.
    pub(super) shares: bool,
    pub(super) name: &'static str,
    /// Where in the user's code the layer was made.
    pub(super) made_at: &'static Location<'static>,
}

impl Options {
    /// Says which of the options can never work, with the remedy.
    pub(super) fn problem(&self) -> Option<String> {
        let Self { ttl, max_hold, limits, locks_nothing, misnamed, busy_is_success, .. } = self;
        match ttl {
            Some(ttl) if *ttl < MIN_TTL => {
                return Some(format!("a ttl of {ttl:?} is below {MIN_TTL:?}, the least; 10 s is usual"));
            }
            Some(ttl) if *ttl > MAX_TTL => return Some(format!("a ttl of {ttl:?} is above 100 years, the most")),
            _ => {}
        }
        if let Some(name) = misnamed {
            return Some(format!(
                "{name:?} is not the name of a method or service of gRPC; write `/shop.Goods/Sell` or `shop.Goods`"
            ));
        }
        if let Some(problem) = self.problem_of_modes() {
            return Some(problem.to_owned());
        }
        let problem = if max_hold.is_some_and(|most| most.is_zero()) {
            "a `max_hold` of zero leaves no time to work; raise it, or leave it out; use `no_max_hold` for no bound"
        } else if limits.in_all == Some(0) || limits.per_key == Some(0) {
            "with a limit of no waiters no request could even ask for its lock; use `try_only` for one that does not wait"
        } else if *locks_nothing {
            "there are no methods to lock, so nothing would be; name some, or leave the layer out"
        } else if *busy_is_success {
            "a busy key would be answered as if the request was served; choose the status of an error, as 409 or ABORTED"
        } else {
            return None;
        };
        Some(problem.to_owned())
    }
}

/// The policy for a request when the backend does not answer; see [`LockLayer::on_backend_error`](crate::LockLayer::on_backend_error).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnBackendError {
    /// The request is refused, and the service not called.
    #[default]
    Refuse,
    /// The service is called **without a lock**. Each such request is counted, and logged as a warning.
    LetThrough,
}
