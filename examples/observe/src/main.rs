//! Traces and metrics of locks: a sale waits for an import, and the span in which it waits is linked to the trace of the import.
//!
//! ```text
//! cargo run -p example-observe
//! cargo run -p example-observe -- redis://127.0.0.1:6379
//! ```
//!
//! The spans are printed here. A service gives `observe` an exporter of the crate `opentelemetry-otlp` instead, and serves what
//! `PrometheusHandle::render` returns at `/metrics`: see `docs/observe.md`.

use std::error::Error;
use std::time::Duration;

use lock_core::LockManager;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tokio::time::sleep;
use tracing::{Instrument as _, Level, info_span};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::{Layer as _, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Sends spans to an exporter, log lines to the terminal, and metrics to a recorder for Prometheus.
fn observe(exporter: impl SpanExporter + 'static) -> Result<(SdkTracerProvider, PrometheusHandle)> {
    let service = Resource::builder().with_service_name("shop").build();
    let traces = SdkTracerProvider::builder().with_resource(service).with_batch_exporter(exporter).build();
    // The spans of locks have the level DEBUG.
    let levels = Targets::new().with_default(Level::INFO).with_target("lock_core", Level::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(traces.tracer("shop")).with_filter(levels);
    tracing_subscriber::registry().with(spans).with(fmt::layer().with_filter(LevelFilter::INFO)).init();

    let bounds = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 30.0, 300.0];
    let metrics = PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &bounds)?;
    Ok((traces, metrics.install_recorder()?))
}

#[tokio::main]
async fn main() -> Result {
    let (traces, metrics) = observe(Printer)?;
    // In memory unless the argument names a server.
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory://observe".into());
    let manager =
        |name| LockManager::builder().url(&url).client_name(name).explain_waits_after(Duration::from_millis(100));
    let (importer, shop) = (manager("importer").connect().await?, manager("shop").connect().await?);

    let import = info_span!(parent: None, "import");
    let guard = importer.lock("goods:7").label("goods:<id>").acquire().instrument(import).await?;

    let sale = async move {
        let info = shop.inspect("goods:7").await?;
        let holder = info.holder().ok_or("the importer did not answer")?;
        println!("held by {}, trace {}", holder.party().service(), holder.trace_context().unwrap_or("unknown"));
        shop.lock("goods:7").label("goods:<id>").run(async |_| println!("sold")).await?;
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    let sale = tokio::spawn(sale.instrument(info_span!(parent: None, "sale")));
    sleep(Duration::from_millis(500)).await;
    guard.release().await?;
    sale.await??;

    // What Prometheus gets, without the buckets of histograms.
    for line in metrics.render().lines().filter(|line| line.starts_with("lock_") && !line.contains("_bucket")) {
        println!("{line}");
    }
    // At the end of a service: the spans that have not been sent yet.
    traces.shutdown()?;
    Ok(())
}

/// Prints spans, and which spans they are linked to.
#[derive(Debug)]
struct Printer;

impl SpanExporter for Printer {
    async fn export(&self, spans: Vec<SpanData>) -> OTelSdkResult {
        for span in spans {
            println!("span {}, trace {}", span.name, span.span_context.trace_id());
            for link in span.links.iter() {
                println!("  linked to trace {}, span {}", link.span_context.trace_id(), link.span_context.span_id());
            }
        }
        Ok(())
    }
}
