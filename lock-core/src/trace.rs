//! The trace contexts of holders, in the form of the `traceparent` header (W3C Trace Context), and links to them.

#[cfg(feature = "opentelemetry")]
use {
    opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
    tracing_opentelemetry::OpenTelemetrySpanExt,
};

/// The context of a span. A hold has it in a box, so that the many holds without one are small.
#[derive(Debug)]
pub(crate) struct TraceContext(pub(crate) String);

/// Returns the context of the current span, if it belongs to a trace of OpenTelemetry.
#[cfg(feature = "opentelemetry")]
pub(crate) fn current() -> Option<Box<TraceContext>> {
    let context = tracing::Span::current().context();
    let span = context.span();
    let context = span.span_context();
    let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags().to_u8());
    context.is_valid().then(|| Box::new(TraceContext(format!("00-{trace}-{span}-{flags:02x}"))))
}

/// Links a span to the one that a text names. A text of another form is ignored.
#[cfg(feature = "opentelemetry")]
pub(crate) fn link(span: &tracing::Span, to: &str) {
    if let Some(context) = read(to).filter(SpanContext::is_valid) {
        span.add_link(context);
    }
}

#[cfg(feature = "opentelemetry")]
fn read(text: &str) -> Option<SpanContext> {
    let parts: Vec<_> = text.strip_prefix("00-")?.split('-').collect();
    let [trace, id, flags] = parts[..] else { return None };
    let (trace, id) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(id).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    Some(SpanContext::new(trace, id, flags, true, TraceState::default()))
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current() -> Option<Box<TraceContext>> {
    None
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn link(_: &tracing::Span, _: &str) {}
