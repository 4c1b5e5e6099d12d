//! The layer's own metrics, through the `metrics` facade (feature `metrics`; without it all of this is
//! nothing). The crate's documentation has the table.

use crate::refusal::Refusal;

/// Describes the metrics of this crate to the recorder: what they count, and their unit.
///
/// A layer does so when it is put around a service. Call this function for a recorder that is installed later. lock-core has its own
/// function for its metrics.
///
/// # Examples
///
/// ```
/// lock_tower::describe_metrics();
/// ```
#[cfg(feature = "metrics")]
pub fn describe() {
    metrics::describe_counter!(
        "lock_layer_refusals_total",
        metrics::Unit::Count,
        "requests that a layer refused or cancelled, by the reason"
    );
    metrics::describe_counter!(
        "lock_layer_let_through_total",
        metrics::Unit::Count,
        "requests that passed without a lock because the backend did not answer"
    );
}

/// A request that the lock refused or cancelled.
#[cfg(feature = "metrics")]
pub(crate) fn refused(lock: &'static str, refusal: &Refusal) {
    let reason = match refusal {
        Refusal::Key(_) => "key",
        Refusal::Misconfigured(_) => "misconfigured",
        Refusal::NotAcquired(_) => "not_acquired",
        Refusal::Overloaded(_) => "overloaded",
        Refusal::OutOfTime(_) => "out_of_time",
        Refusal::Lost(_) => "lost",
    };
    metrics::counter!("lock_layer_refusals_total", "lock" => lock, "reason" => reason).increment(1);
}

/// A request that goes through without its lock, as the backend did not answer.
#[cfg(feature = "metrics")]
pub(crate) fn let_through(lock: &'static str) {
    metrics::counter!("lock_layer_let_through_total", "lock" => lock).increment(1);
}

#[cfg(not(feature = "metrics"))]
pub(crate) fn describe() {}

#[cfg(not(feature = "metrics"))]
pub(crate) fn refused(_lock: &'static str, _refusal: &Refusal) {}

#[cfg(not(feature = "metrics"))]
pub(crate) fn let_through(_lock: &'static str) {}
