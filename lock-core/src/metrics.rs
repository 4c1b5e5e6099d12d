//! What the engine counts and measures, through the `metrics` facade (feature `metrics`; without it all of this is
//! nothing). The crate's documentation has the table.

use std::time::Duration;

use crate::error::{Error, ErrorKind, LossReason};

/// An acquire under way; ends as dropped unless it is told otherwise.
pub(crate) struct Waiting {
    label: &'static str,
    ended: bool,
}

impl Waiting {
    pub(crate) fn begin(label: &'static str) -> Self {
        waiting(label, 1.0);
        Self { label, ended: false }
    }

    pub(crate) fn end<T>(&mut self, result: &Result<T, Error>, waited: Duration) {
        self.ended = true;
        let outcome = match result {
            Ok(_) => "acquired",
            Err(error) => name(error.kind()),
        };
        acquired(self.label, outcome, Some(waited));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended {
            acquired(self.label, "dropped", None);
        }
        waiting(self.label, -1.0);
    }
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Busy => "busy",
        ErrorKind::Lost(_) => "lost",
        ErrorKind::Backend => "backend",
        ErrorKind::WrongType => "wrong_type",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Denied => "denied",
        ErrorKind::Invalid(_) => "invalid",
        ErrorKind::Overloaded => "overloaded",
        ErrorKind::WouldDeadlock => "would_deadlock",
        ErrorKind::NotHeld => "not_held",
        ErrorKind::NoManager => "no_manager",
        ErrorKind::NoRuntime => "no_runtime",
        ErrorKind::ShutDown => "shut_down",
    }
}

/// A hold that ended; the reason is none where its holder ended it.
pub(crate) fn ended(label: &'static str, loss: Option<LossReason>, held: Duration) {
    holding(label, -1.0);
    held_for(label, held);
    let Some(reason) = loss else { return };
    let reason = match reason {
        LossReason::Expired => "expired",
        LossReason::Taken => "taken",
        LossReason::MaxHold => "max_hold",
        LossReason::Forced => "forced",
        LossReason::ShutDown => "shut_down",
    };
    lost(label, reason);
}

#[cfg(all(feature = "metrics", feature = "redis"))]
pub(crate) use self::recorded::connected;
#[cfg(feature = "metrics")]
pub use self::recorded::describe;
#[cfg(feature = "metrics")]
use self::recorded::{acquired, held_for, holding, lost, waiting};
#[cfg(feature = "metrics")]
pub(crate) use self::recorded::{begun, renewal_failed, renewed};

/// Whether anything is recorded.
pub(crate) const ARE_RECORDED: bool = cfg!(feature = "metrics");

#[cfg(feature = "metrics")]
mod recorded {
    use std::time::Duration;
    #[cfg(feature = "redis")]
    use std::{
        collections::BTreeMap,
        sync::{Mutex, PoisonError},
    };

    use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    /// Gives the recorder unit and meaning of every metric of this crate, which an exporter shows beside the values (as the
    /// `# HELP` lines of Prometheus).
    ///
    /// Making a manager does that; call this if the recorder was installed later.
    pub fn describe() {
        let (count, seconds) = (Unit::Count, Unit::Seconds);
        describe_counter!("lock_acquires_total", count, "requests for leases that ended, by their outcome");
        describe_histogram!("lock_wait_seconds", seconds, "time from the first poll of an acquire to its answer");
        describe_gauge!("lock_waiting", count, "acquires in flight");
        describe_gauge!("lock_held", count, "leases held");
        describe_histogram!("lock_hold_seconds", seconds, "time from acquired to released or lost");
        describe_counter!("lock_lost_total", count, "leases that ended other than by their holder, by the reason");
        describe_histogram!(
            "lock_renewal_slack_seconds",
            seconds,
            "what the old deadline had left when a renewal was answered; near zero, leases are about to be lost"
        );
        describe_counter!("lock_renewal_failures_total", count, "calls for renewals that were not answered");
        describe_gauge!("lock_connection_up", count, "whether there is a connection to the node: 1, or 0");
    }

    /// Notes that a connection to a node was up and is, or is not. Several managers of a process may have one each: the end
    /// of one must not look like an outage.
    #[cfg(feature = "redis")]
    pub(crate) fn connected(node: &str, was_up: bool, is_up: bool) {
        static UP: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
        // Locked until the gauge is set, or the older of two values might be set last.
        let mut up = UP.lock().unwrap_or_else(PoisonError::into_inner);
        let others = up.remove(node).unwrap_or_default().saturating_sub(u64::from(was_up));
        let count = others + u64::from(is_up);
        if count > 0 {
            up.insert(node.to_owned(), count);
        }
        gauge!("lock_connection_up", "node" => node.to_owned()).set(f64::from(u8::from(count > 0)));
    }

    pub(super) fn waiting(label: &'static str, change: f64) {
        gauge!("lock_waiting", "lock" => label).increment(change);
    }

    pub(super) fn acquired(label: &'static str, outcome: &'static str, waited: Option<Duration>) {
        counter!("lock_acquires_total", "lock" => label, "outcome" => outcome).increment(1);
        if let Some(waited) = waited {
            histogram!("lock_wait_seconds", "lock" => label).record(waited);
        }
    }

    pub(super) fn holding(label: &'static str, change: f64) {
        gauge!("lock_held", "lock" => label).increment(change);
    }

    pub(crate) fn begun(label: &'static str) {
        holding(label, 1.0);
    }

    pub(super) fn held_for(label: &'static str, held: Duration) {
        histogram!("lock_hold_seconds", "lock" => label).record(held);
    }

    pub(super) fn lost(label: &'static str, reason: &'static str) {
        counter!("lock_lost_total", "lock" => label, "reason" => reason).increment(1);
    }

    pub(crate) fn renewed(label: &'static str, slack: Duration) {
        histogram!("lock_renewal_slack_seconds", "lock" => label).record(slack);
    }

    pub(crate) fn renewal_failed() {
        counter!("lock_renewal_failures_total").increment(1);
    }
}

#[cfg(all(not(feature = "metrics"), feature = "redis"))]
pub(crate) use self::nothing::connected;
#[cfg(not(feature = "metrics"))]
use self::nothing::{acquired, held_for, holding, lost, waiting};
#[cfg(not(feature = "metrics"))]
pub(crate) use self::nothing::{begun, renewal_failed, renewed};

#[cfg(not(feature = "metrics"))]
mod nothing {
    use std::time::Duration;

    #[cfg(feature = "redis")]
    pub(crate) fn connected(_node: &str, _was_up: bool, _is_up: bool) {}

    pub(super) fn waiting(_label: &'static str, _change: f64) {}

    pub(super) fn acquired(_label: &'static str, _outcome: &'static str, _waited: Option<Duration>) {}

    pub(super) fn holding(_label: &'static str, _change: f64) {}

    pub(crate) fn begun(_label: &'static str) {}

    pub(super) fn held_for(_label: &'static str, _held: Duration) {}

    pub(super) fn lost(_label: &'static str, _reason: &'static str) {}

    pub(crate) fn renewed(_label: &'static str, _slack: Duration) {}

    pub(crate) fn renewal_failed() {}
}
