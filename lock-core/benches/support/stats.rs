//! Medians, quantiles, ratios.

use hdrhistogram::Histogram;

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The median of the ratios of each round: what slows the machine slows both sides of a round.
pub(crate) fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
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
