//! Medians, quantiles, ratios, and a measure over many rounds.

use hdrhistogram::Histogram;

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A measure in each round, and its ratio to another one of the same round: what slows the machine slows both.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    pub(crate) values: Vec<f64>,
    /// Empty if there is nothing to compare with.
    pub(crate) ratios: Vec<f64>,
}

/// The median, the least and the most of all rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Rounds {
    /// Measures without a side to compare with.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        Self { values: values.into_iter().collect(), ratios: Vec::new() }
    }

    /// A measure in each round, beside another one of the round.
    pub(crate) fn beside(rounds: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut measured = Self::default();
        rounds.into_iter().for_each(|(value, other)| measured.add(value, other));
        measured
    }

    /// Adds a round: its value, and what the value is divided by.
    pub(crate) fn add(&mut self, value: f64, other: f64) {
        self.values.push(value);
        self.ratios.push(value / other);
    }

    pub(crate) fn value(&self) -> Spread {
        spread(&self.values).expect("there was a round")
    }

    pub(crate) fn ratio(&self) -> Option<Spread> {
        spread(&self.ratios)
    }
}

fn spread(values: &[f64]) -> Option<Spread> {
    let least = values.iter().copied().reduce(f64::min)?;
    let most = values.iter().copied().reduce(f64::max)?;
    Some(Spread { median: median(values.to_vec()), least, most })
}

/// Of times in ns, three digits exact.
pub(crate) fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).expect("three digits are possible");
    for time in times {
        histogram.record(time).expect("it grows as needed");
    }
    histogram
}

/// A quantile in µs; NaN where nothing was recorded.
pub(crate) fn quantile(histogram: &Histogram<u64>, quantile: f64) -> f64 {
    if histogram.is_empty() { f64::NAN } else { histogram.value_at_quantile(quantile) as f64 / 1e3 }
}
