//! The trace context of the W3C (<https://www.w3.org/TR/trace-context/>): which trace a request belongs to, and which
//! span of it is ours.

use callboard_core::timeline::SpanId;

use crate::StackText;

/// The length of `00-`, three numbers, and the dashes between them.
const LENGTH: usize = 55;

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// The place of a request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// Never 0.
    trace: u128,
    /// Our span, never 0.
    span: u64,
    /// The client's span.
    parent: Option<u64>,
    flags: u8,
}

impl TraceContext {
    /// A new span in the trace that the client's `traceparent` names. A header that cannot be read names none: the
    /// tracing of a client may be broken although its calls are fine.
    #[must_use]
    pub fn from_header(text: &[u8]) -> Option<Self> {
        let (SpanId { trace, span: parent }, flags) = SpanId::parse_traceparent(text)?;
        Some(Self { trace, span: SpanId::new_span(), parent: Some(parent), flags })
    }

    /// The first span of a new trace, not sampled.
    #[must_use]
    pub fn begin() -> Self {
        let SpanId { trace, span } = SpanId::begin();
        Self { trace, span, parent: None, flags: 0 }
    }

    /// The same context with the flag that asks every service on the way to record the trace.
    #[must_use]
    pub fn sampled(self) -> Self {
        Self { flags: self.flags | SAMPLED, ..self }
    }

    /// Whether the trace is recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The trace, and our span in it.
    #[must_use]
    pub fn id(&self) -> SpanId {
        SpanId { trace: self.trace, span: self.span }
    }

    /// The client's span.
    #[must_use]
    pub fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// The id of the trace, as logs and tracing systems write it.
    #[must_use]
    pub fn trace_id(&self) -> StackText<32> {
        let mut text = StackText::default();
        push_trace(&mut text, self.trace);
        text
    }

    /// The value of `traceparent` that names our span.
    #[must_use]
    pub fn header(self) -> StackText<LENGTH> {
        let mut text = StackText::default();
        text.push(b"00-");
        push_trace(&mut text, self.trace);
        text.push(b"-");
        text.push_hex(self.span, 16);
        text.push(b"-");
        text.push_hex(self.flags.into(), 2);
        text
    }
}

fn push_trace<const N: usize>(text: &mut StackText<N>, trace: u128) {
    text.push_hex((trace >> 64) as u64, 16);
    text.push_hex(trace as u64, 16);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<TraceContext> {
        TraceContext::from_header(text.as_bytes())
    }

    #[test]
    fn keeps_the_trace_and_names_a_new_span() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = read(given).unwrap();
        assert_eq!(context.trace_id().as_bytes(), b"4bf92f3577b34da6a3ce929d0e0e4736");
        let header = context.header();
        let header = header.as_str();
        assert!(header.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && header.ends_with("-01"), "{header}");
        assert_ne!(header, given, "the span is our own");
        assert!(read(header).is_some());
    }

    #[test]
    fn an_invalid_context_is_refused() {
        for refused in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(read(refused), None, "{refused}");
        }
        assert!(read("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-of-a-later-version").is_some());
        assert!(read("ccc4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").is_none());
    }

    #[test]
    fn a_new_trace_is_valid() {
        let header = TraceContext::begin().header();
        assert!(TraceContext::from_header(header.as_bytes()).is_some(), "{header:?}");
    }
}
