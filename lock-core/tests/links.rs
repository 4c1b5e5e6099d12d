//! Spans of requests that wait are linked to the traces of holders.

use std::time::Duration;

use lock_core::{LockManager, backend::MemoryBackend};
use opentelemetry::trace::{SpanContext, TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing::{Instrument, info_span, instrument::WithSubscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use crate::support::log::not_alone;

const WAIT: Duration = Duration::from_millis(50);

/// Runs a holder and a waiter, each in a trace of its own. Returns the context of the holder's span, and the span of the
/// waiter's acquire.
async fn contend(explains: bool) -> (SpanContext, SpanData) {
    not_alone();
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    let of_holder = async {
        let store = MemoryBackend::new();
        let manager = || LockManager::builder().backend(store.clone());
        let (holds, waits) = (manager().build().expect("a store"), manager());
        let waits = if explains { waits.explain_waits_after(WAIT) } else { waits }.build().expect("a store");
        let span = info_span!(parent: None, "import");
        let guard = holds.lock("k").acquire().instrument(span.clone()).await.expect("free");
        let waiter = async { waits.lock("k").wait(3 * WAIT).await.map(drop) };
        waiter.instrument(info_span!(parent: None, "sale")).await.expect_err("it is held");
        drop(guard);
        span.context().span().span_context().clone()
    };
    let of_holder = of_holder.with_subscriber(tracing_subscriber::registry().with(layer)).await;
    let spans = exporter.get_finished_spans().expect("it runs");
    let sale = spans.iter().find(|span| span.name == "sale").expect("finished").span_context.span_id();
    let acquire = spans.iter().find(|span| span.name == "lock.acquire" && span.parent_span_id == sale);
    (of_holder, acquire.expect("finished").clone())
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_linked_to_the_trace_of_the_holder() {
    let (holder, waiter) = contend(true).await;
    assert!(holder.is_valid() && holder.trace_id() != waiter.span_context.trace_id());
    let links: Vec<_> = waiter.links.iter().map(|link| &link.span_context).collect();
    assert_eq!(links.len(), 1, "{links:?}");
    assert_eq!((links[0].trace_id(), links[0].span_id()), (holder.trace_id(), holder.span_id()));
    assert!(links[0].is_remote());
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_explains_no_waits_makes_no_links() {
    let (_, waiter) = contend(false).await;
    assert_eq!(waiter.links.len(), 0);
}
