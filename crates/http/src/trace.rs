//! The W3C's trace context: which larger story a request belongs to, and which part of it is ours.

use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::timeline::SpanId;

use crate::ascii::Ascii;

/// Taken, or made, and given back with our own part in it (<https://www.w3.org/TR/trace-context/>).
pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// `00-` and three numbers with dashes between.
const LENGTH: usize = 55;

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// A request's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// The story, never 0.
    trace: u128,
    /// Our part in it, never 0.
    span: u64,
    /// Our client's part in it.
    parent: Option<u64>,
    flags: u8,
}

impl TraceContext {
    /// A part of the client's trace, if it names one. What cannot be read is no trace: a client's tracing may be broken
    /// without its calls being so.
    pub(crate) fn from_client(header: &HeaderValue) -> Option<Self> {
        let text = header.as_bytes();
        let is_known =
            text.len() == LENGTH || (text.len() > LENGTH && text[LENGTH] == b'-' && !text.starts_with(b"00"));
        if !is_known || [2, 35, 52].iter().any(|dash| text[*dash] != b'-') {
            return None;
        }
        let [version, trace, parent, flags] = [0..2, 3..35, 36..52, 53..55].map(|range| from_hex(&text[range]));
        // Version 255 is none; later ones begin as this one does, as far as we read.
        let is_valid = version? != 0xff && trace? != 0 && parent? != 0;
        is_valid.then_some(Self {
            trace: trace?,
            span: SpanId::new_span(),
            parent: Some(parent? as u64),
            flags: flags? as u8,
        })
    }

    /// The beginning of a trace. Not sampled: who would record it has not asked.
    pub(crate) fn new() -> Self {
        let SpanId { trace, span } = SpanId::begin();
        Self { trace, span, parent: None, flags: 0 }
    }

    /// The same, to be recorded by all who come to it.
    pub(crate) fn sampled(self) -> Self {
        Self { flags: self.flags | SAMPLED, ..self }
    }

    pub(crate) fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Which trace, and our part in it.
    pub(crate) fn id(&self) -> SpanId {
        SpanId { trace: self.trace, span: self.span }
    }

    /// Our client's part in it.
    pub(crate) fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// The trace's id, as logs and tracing systems write it.
    pub(crate) fn trace_id(&self) -> Ascii<32> {
        let mut text = Ascii::new();
        push_trace(&mut text, self.trace);
        text
    }

    /// What tells others about our part.
    pub(crate) fn to_header(self) -> HeaderValue {
        let mut text = Ascii::<LENGTH>::new();
        text.push(b"00-");
        push_trace(&mut text, self.trace);
        text.push(b"-");
        text.push_hex(self.span, 16);
        text.push(b"-");
        text.push_hex(self.flags.into(), 2);
        text.to_header()
    }
}

fn push_trace<const N: usize>(text: &mut Ascii<N>, trace: u128) {
    text.push_hex((trace >> 64) as u64, 16);
    text.push_hex(trace as u64, 16);
}

/// Small letters only, as the standard wants it.
fn from_hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<TraceContext> {
        TraceContext::from_client(&HeaderValue::from_str(text).unwrap())
    }

    #[test]
    fn keeps_the_trace_and_puts_itself_into_it() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = read(given).unwrap();
        assert_eq!(context.trace_id().as_bytes(), b"4bf92f3577b34da6a3ce929d0e0e4736");
        let told = context.to_header();
        let told = told.to_str().unwrap();
        assert!(told.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-") && told.ends_with("-01"), "{told}");
        assert_ne!(told, given, "the part is our own");
        assert!(read(told).is_some());
    }

    #[test]
    fn what_is_no_context_is_refused() {
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
    fn a_new_trace_is_one_that_we_would_take() {
        let told = TraceContext::new().to_header();
        assert!(TraceContext::from_client(&told).is_some(), "{told:?}");
    }
}
