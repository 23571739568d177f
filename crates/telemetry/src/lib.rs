//! Telemetry of an edge's requests, for operators: spans of sampled requests, and an access record of each request.
//!
//! ```text
//!  request ─► TraceContext ─► Tracer ─► RequestSpan ─► Vec<Span> ─► SpanSink ─► SpanExporter (OTLP, feature `otlp`)
//!          └► AccessRecord ─────────────────────────────────────► AccessSink
//! ```
//!
//! Everything here is a value or a sink, for every edge alike: this crate knows neither HTTP servers nor QUIC. No call
//! waits for a sink: a full sink drops what it cannot hold.

mod access_log;
mod active_text;
#[cfg(feature = "otlp")]
mod otlp;
mod spans;
mod stack_text;
mod trace_context;

pub use access_log::{AccessLog, AccessRecord, AccessSink, rfc_3339, truncate_for_log};
pub use active_text::is_active;
#[cfg(feature = "otlp")]
pub use otlp::{OTEL_ENDPOINT, OtlpConfig, OtlpEnvError, SpanExporter, SpanMetrics};
pub use spans::{Attribute, CallSpans, RequestSpan, SampleRatio, SampleRatioError, Span, SpanSink, Tracer};
pub use stack_text::StackText;
pub use trace_context::TraceContext;
