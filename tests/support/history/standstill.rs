//! When processes stood still.

use std::collections::HashMap;

use super::{check::root, event::Event, leases::merged, record::JUDGE};

/// The times in which each process stood still, in any order.
#[derive(Clone, Debug, Default)]
pub(super) struct Standstills {
    windows: HashMap<String, Vec<(f64, f64)>>,
}

impl Standstills {
    pub(super) fn add(&mut self, event: Event) {
        let to = event.t_return.unwrap_or(event.t_invoke);
        self.windows.entry(event.process).or_default().push((event.t_invoke, to));
    }

    /// Those that what `process` waits for may be late by: its own, and those of the test. In order and apart.
    pub(super) fn of(&self, process: &str) -> Standing {
        let of = |name: &str| self.windows.get(name).into_iter().flatten().copied();
        let judge = of(JUDGE).filter(|_| root(process) != JUDGE);
        Standing { windows: merged(of(root(process)).chain(judge).collect()) }
    }
}

/// When one process stood still.
#[derive(Debug)]
pub(super) struct Standing {
    windows: Vec<(f64, f64)>,
}

impl Standing {
    /// For how long it ran between two moments.
    pub(super) fn ran(&self, from: f64, to: f64) -> f64 {
        to - from - self.stood(from, to)
    }

    /// For how long it stood still between two moments.
    pub(super) fn stood(&self, from: f64, to: f64) -> f64 {
        let first = self.windows.partition_point(|window| window.1 <= from);
        let within = self.windows[first..].iter().take_while(|window| window.0 < to);
        within.map(|window| window.1.min(to) - window.0.max(from)).fold(0.0, |sum, stood| sum + stood)
    }
}
