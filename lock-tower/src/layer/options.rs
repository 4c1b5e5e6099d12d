use std::time::Duration;

use lock_core::LeaseOptions;

use crate::admission::Limits;

/// The options of a layer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Options {
    pub(super) lease: LeaseOptions,
    /// The bound of a hold that has no other bound.
    pub(super) usual_max_hold: Option<Duration>,
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
}

impl Options {
    /// Says which of the layer's own options can never work, with the remedy. A request checks those of its lease.
    pub(super) fn problem(&self) -> Option<String> {
        let Self { limits, locks_nothing, misnamed, busy_is_success, .. } = self;
        if let Some(name) = misnamed {
            return Some(format!(
                "{name:?} is not the name of a method or service of gRPC; write `/shop.Goods/Sell` or `shop.Goods`"
            ));
        }
        if let Some(problem) = self.problem_of_modes() {
            return Some(problem.to_owned());
        }
        let problem = if limits.in_all == Some(0) || limits.per_key == Some(0) {
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
