//! Links from holders to their traces.

use lock_core::{LockManager, backend::MemoryBackend};
use lock_status::Status;
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::{Instrument, info_span, instrument::WithSubscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use crate::client::{get, mounted};

/// Acquires a key inside a trace, and returns the page with the number of the trace.
async fn held_in_a_trace(sampler: Sampler) -> (String, String) {
    // While a single subscriber has ever been, others on other threads may take its interest for their own.
    let _other = tracing::Dispatch::new(tracing_subscriber::registry());
    let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let held = async {
        let store = MemoryBackend::new();
        let manager = |name| LockManager::builder().backend(store.clone()).client_name(name).build().unwrap();
        let (shop, ops) = (manager("shop"), manager("ops"));
        let span = info_span!(parent: None, "sale");
        let _guard = shop.lock("goods:1").acquire().instrument(span.clone()).await.unwrap();
        let _untraced = ops.lock("goods:2").await.unwrap();
        let address = mounted(Status::new(ops).trace_url("https://traces.example/\"t\"/{trace_id}")).await;
        (get(address, "/locks").await.body, span.context().span().span_context().trace_id().to_string())
    };
    held.with_subscriber(tracing_subscriber::registry().with(layer)).await
}

#[tokio::test]
async fn a_holder_has_a_link_to_its_trace() {
    let (page, trace) = held_in_a_trace(Sampler::AlwaysOn).await;
    let link = format!(" · <a rel=noreferrer href=\"https://traces.example/&quot;t&quot;/{trace}\">trace</a></p>");
    assert!(page.contains(&link), "{link}: {page}");
    assert_eq!(page.matches("traces.example").count(), 1, "a holder without a trace has no link: {page}");
}

#[tokio::test]
async fn a_trace_that_was_not_sampled_has_no_link() {
    let (page, _) = held_in_a_trace(Sampler::AlwaysOff).await;
    assert!(page.contains("<b>shop</b>") && !page.contains("traces.example"), "{page}");
}
