//! The metrics of the engine, through the `metrics` facade (feature `metrics`; without it all of this is
//! nothing). The crate's documentation has the table.
#![cfg_attr(not(feature = "metrics"), allow(dead_code, unused_variables, reason = "nothing is recorded"))]

use std::time::Duration;
#[cfg(feature = "redis")]
use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

#[cfg(feature = "metrics")]
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

#[cfg(feature = "metrics")]
use crate::caught::caught;
use crate::error::{Error, LossReason};

/// Whether anything is recorded.
pub(crate) const ARE_RECORDED: bool = cfg!(feature = "metrics");

/// Records something, if there is a recorder. A panic of the recorder is caught.
macro_rules! record {
    ($something:expr) => {
        #[cfg(feature = "metrics")]
        let _ = caught("recorder of metrics", || $something);
    };
}

/// An acquire in flight, which counts as dropped unless another outcome is recorded.
pub(crate) struct Waiting {
    label: &'static str,
    ended: bool,
}

impl Waiting {
    pub(crate) fn begin(label: &'static str) -> Self {
        record!(gauge!("lock_waiting", "lock" => label).increment(1.0));
        Self { label, ended: false }
    }

    pub(crate) fn end<T>(&mut self, result: &Result<T, Error>, waited: Duration) {
        self.ended = true;
        self.count(result.as_ref().map_or_else(|error| error.kind().name(), |_| "acquired"));
        record!(histogram!("lock_wait_seconds", "lock" => self.label).record(waited));
    }

    /// Counts nothing.
    pub(crate) fn pass(&mut self) {
        self.ended = true;
    }

    fn count(&self, outcome: &'static str) {
        record!(counter!("lock_acquires_total", "lock" => self.label, "outcome" => outcome).increment(1));
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.ended {
            self.count("dropped");
        }
        record!(gauge!("lock_waiting", "lock" => self.label).increment(-1.0));
    }
}

/// Gives the recorder unit and meaning of every metric of this crate, which an exporter shows beside the values (as the
/// `# HELP` lines of Prometheus).
///
/// Making a manager does that; call this if the recorder was installed later.
#[cfg(feature = "metrics")]
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
    describe_gauge!(
        "lock_connection_up",
        count,
        "whether there is a connection to the node: 1, or 0; NaN if none is needed"
    );
}

/// Records a hold that begins.
pub(crate) fn begun(label: &'static str) {
    record!(gauge!("lock_held", "lock" => label).increment(1.0));
}

/// Records a hold that ended; without a loss, its holder ended it.
pub(crate) fn ended(label: &'static str, loss: Option<LossReason>, held: Duration) {
    record!(gauge!("lock_held", "lock" => label).increment(-1.0));
    record!(histogram!("lock_hold_seconds", "lock" => label).record(held));
    if let Some(reason) = loss.map(LossReason::name) {
        record!(counter!("lock_lost_total", "lock" => label, "reason" => reason).increment(1));
    }
}

pub(crate) fn renewed(label: &'static str, slack: Duration) {
    record!(histogram!("lock_renewal_slack_seconds", "lock" => label).record(slack));
}

pub(crate) fn renewal_failed() {
    record!(counter!("lock_renewal_failures_total").increment(1));
}

/// How a process uses a node.
#[cfg(feature = "redis")]
#[derive(Default)]
struct Use {
    /// How many of its managers keep a connection to it.
    kept: u64,
    /// How many of these connections are up.
    up: u64,
}

/// Notes that a manager begins to keep a connection to a node, or no longer does.
#[cfg(feature = "redis")]
pub(crate) fn kept(node: &str, is_kept: bool) {
    note(node, |uses| uses.kept = uses.kept.saturating_sub(u64::from(!is_kept)) + u64::from(is_kept));
}

/// Notes that a connection to a node was up and is, or is not. Several managers of a process may have one each: the end
/// of one must not look like an outage.
#[cfg(feature = "redis")]
pub(crate) fn connected(node: &str, was_up: bool, is_up: bool) {
    note(node, |uses| uses.up = uses.up.saturating_sub(u64::from(was_up)) + u64::from(is_up));
}

#[cfg(feature = "redis")]
fn note(node: &str, change: impl FnOnce(&mut Use)) {
    if !ARE_RECORDED {
        return;
    }
    let is_up = |uses: &Use| (uses.kept > 0).then_some(uses.up > 0);
    let mut now = {
        let mut uses = uses();
        let of_node = uses.entry(node.to_owned()).or_default();
        change(of_node);
        is_up(of_node)
    };
    // A recorder may block, or record something itself: no lock is held here. So another thread may have set the
    // gauge meanwhile, to a newer value or to an older one, and the last of them looks once more.
    loop {
        // A node that nobody needs, such as one that has left a cluster, is not down.
        let value = now.map_or(f64::NAN, |is_up| f64::from(u8::from(is_up)));
        record!(gauge!("lock_connection_up", "node" => node.to_owned()).set(value));
        let then = uses().get(node).and_then(is_up);
        if then == now {
            break;
        }
        now = then;
    }
}

/// The nodes that this process has used.
#[cfg(feature = "redis")]
fn uses() -> MutexGuard<'static, BTreeMap<String, Use>> {
    static USES: Mutex<BTreeMap<String, Use>> = Mutex::new(BTreeMap::new());
    USES.lock().unwrap_or_else(PoisonError::into_inner)
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

    use super::{connected, kept};

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
            with_local_recorder(&NoopRecorder, || kept("busy:1", true));
            with_local_recorder(&recorder, || connected("busy:1", false, true));
            told.send(recorder.0.lock().expect("no panic").clone())
        });
        // The connection ended while the recorder was told that it is up.
        let values = values.recv_timeout(Duration::from_secs(10)).expect("no lock is held while it records");
        assert_eq!(values, [1.0, 0.0]);
    }
}
