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
    let mut parts = to.strip_prefix("00-").into_iter().flat_map(|parts| parts.split('-'));
    let (Some(trace), Some(id), Some(flags), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return;
    };
    let (Ok(trace), Ok(id), Ok(flags)) =
        (TraceId::from_hex(trace), SpanId::from_hex(id), u8::from_str_radix(flags, 16))
    else {
        return;
    };
    let context = SpanContext::new(trace, id, TraceFlags::new(flags), true, TraceState::default());
    if context.is_valid() {
        span.add_link(context);
    }
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn current() -> Option<Box<TraceContext>> {
    None
}

#[cfg(not(feature = "opentelemetry"))]
pub(crate) fn link(_: &tracing::Span, _: &str) {}
