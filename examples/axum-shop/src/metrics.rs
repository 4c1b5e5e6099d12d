//! The recorder of the metrics, for Prometheus.

use anyhow::Result;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Makes a recorder whose times are histograms: those of several instances can be added up.
///
/// # Errors
/// If the recorder rejects the buckets.
pub(crate) fn builder() -> Result<PrometheusBuilder> {
    Ok(PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS)?)
}

/// From a lock that was free to one that was waited for until the client gave up.
const SECONDS: [f64; 10] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
