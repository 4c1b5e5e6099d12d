//! The metrics of the engine, through the `metrics` facade (feature `metrics`; without it all of this is
//! nothing). The crate's documentation has the table.

use std::time::Duration;

use crate::error::{Error, ErrorKind, LossReason};

/// An acquire in flight, which counts as dropped unless another outcome is recorded.
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
        ErrorKind::NotReplicated => "not_replicated",
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

/// Records a hold that ended; without a loss, its holder ended it.
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
        sync::{Mutex, MutexGuard, PoisonError},
    };

    use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

    use crate::caught::caught;

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
        let mut now = {
            let mut connections = connections();
            let count = connections.entry(node.to_owned()).or_default();
            *count = count.saturating_sub(u64::from(was_up)) + u64::from(is_up);
            *count > 0
        };
        // A recorder may block, or record something itself: no lock is held here. So another thread may have set the
        // gauge meanwhile, to a newer value or to an older one, and the last of them looks once more.
        loop {
            record(|| gauge!("lock_connection_up", "node" => node.to_owned()).set(f64::from(u8::from(now))));
            let then = connections().get(node).is_some_and(|count| *count > 0);
            if then == now {
                break;
            }
            now = then;
        }
    }

    /// How many connections there are to each node that this process has used.
    #[cfg(feature = "redis")]
    fn connections() -> MutexGuard<'static, BTreeMap<String, u64>> {
        static CONNECTIONS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
        CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(label: &'static str, change: f64) {
        record(|| gauge!("lock_waiting", "lock" => label).increment(change));
    }

    pub(super) fn acquired(label: &'static str, outcome: &'static str, waited: Option<Duration>) {
        record(|| counter!("lock_acquires_total", "lock" => label, "outcome" => outcome).increment(1));
        if let Some(waited) = waited {
            record(|| histogram!("lock_wait_seconds", "lock" => label).record(waited));
        }
    }

    pub(super) fn holding(label: &'static str, change: f64) {
        record(|| gauge!("lock_held", "lock" => label).increment(change));
    }

    pub(crate) fn begun(label: &'static str) {
        holding(label, 1.0);
    }

    pub(super) fn held_for(label: &'static str, held: Duration) {
        record(|| histogram!("lock_hold_seconds", "lock" => label).record(held));
    }

    pub(super) fn lost(label: &'static str, reason: &'static str) {
        record(|| counter!("lock_lost_total", "lock" => label, "reason" => reason).increment(1));
    }

    pub(crate) fn renewed(label: &'static str, slack: Duration) {
        record(|| histogram!("lock_renewal_slack_seconds", "lock" => label).record(slack));
    }

    pub(crate) fn renewal_failed() {
        record(|| counter!("lock_renewal_failures_total").increment(1));
    }

    /// Records something. A panic of the recorder is caught.
    fn record(something: impl FnOnce()) {
        let _ = caught("recorder of metrics", something);
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

#[cfg(all(test, feature = "metrics", feature = "redis"))]
mod tests {
    use std::{
        sync::{Arc, Mutex, mpsc},
        thread,
        time::Duration,
    };

    use metrics::{
        Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, NoopRecorder, Recorder, SharedString, Unit,
        with_local_recorder,
    };

    use super::connected;

    /// A recorder that is told of another connection while it records one, and keeps the values of the first node.
    #[derive(Clone, Default)]
    struct Busy(Arc<Mutex<Vec<f64>>>);

    impl GaugeFn for Busy {
        fn increment(&self, _: f64) {}

        fn decrement(&self, _: f64) {}

        fn set(&self, value: f64) {
            let mut values = self.0.lock().expect("no panic");
            values.push(value);
            let is_first = values.len() == 1;
            drop(values);
            if is_first {
                with_local_recorder(&NoopRecorder, || connected("busy:1", true, false));
            }
        }
    }

    impl Recorder for Busy {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(Arc::new(self.clone()))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    #[test]
    fn gauge_is_set_without_a_lock_and_ends_at_the_newest_value() {
        let (told, values) = mpsc::channel();
        thread::spawn(move || {
            let recorder = Busy::default();
            with_local_recorder(&recorder, || connected("busy:1", false, true));
            told.send(recorder.0.lock().expect("no panic").clone())
        });
        // The connection ended while the recorder was told that it is up.
        let values = values.recv_timeout(Duration::from_secs(10)).expect("no lock is held while it records");
        assert_eq!(values, [1.0, 0.0]);
    }
}
