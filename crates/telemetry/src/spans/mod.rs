//! The spans of requests and batches, as values, and the sink that takes them.
//!
//! A sampled request is one span below the caller's span. Below it is a span for each wait in a queue and each run of
//! user code. A batch belongs to all of its requests alike: its span is in a trace of its own and links to the span of
//! each sampled request in it; the run of each request links back to the batch.
//!
//! * **Not sampled:** nothing is recorded. The flag of the caller's `traceparent` decides; without one, chance decides.
//! * **Full, slow:** a [`SpanSink`] takes what it can hold and drops the rest; no call waits for it.
//! * **Cancelled:** the span of a request whose client left has status 499.

mod call;
mod request;

pub use call::CallSpans;
pub use request::RequestSpan;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use callboard_core::Instant;
use callboard_core::timeline::{BatchFacts, BatchObserver, EndedBatch, RunEnd, SpanId};
use thiserror::Error;

use crate::TraceContext;

/// One operation of a trace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// Its trace and its own id.
    pub id: SpanId,
    /// The span of the same trace that it is a part of.
    pub parent: Option<u64>,
    /// The name that people see.
    pub name: String,
    /// Whether it answers a call of another process.
    pub is_server: bool,
    /// Its start.
    pub start: SystemTime,
    /// Its end.
    pub end: SystemTime,
    /// Its attributes, by name.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Related spans of other traces.
    pub links: Vec<SpanId>,
    /// The number of further links, which are left out.
    pub omitted_links: usize,
    /// Why it failed, if it did.
    pub error: Option<Cow<'static, str>>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// A text.
    Text(Cow<'static, str>),
    /// A number.
    Number(i64),
}

impl From<&'static str> for Attribute {
    fn from(text: &'static str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Attribute {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<u64> for Attribute {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Attribute {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

/// The limit of links in OpenTelemetry's own libraries.
const MAX_LINKS: usize = 128;

/// A receiver of spans.
pub trait SpanSink: fmt::Debug + Send + Sync + 'static {
    /// Takes the spans of one request or of one batch. A call may run this: it must not wait, and it drops spans that
    /// it cannot hold.
    fn put(&self, spans: Vec<Span>);
}

/// The share of requests that are sampled, of those without a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio(u32);

impl SampleRatio {
    /// All requests.
    pub const ALL: Self = Self(Self::WHOLE);

    /// No request, unless its caller asks for it.
    pub const NONE: Self = Self(0);

    const WHOLE: u32 = 1_000_000;

    /// Decided by the id of the trace, so that all nodes agree.
    fn samples(self, trace: u128) -> bool {
        trace % u128::from(Self::WHOLE) < u128::from(self.0)
    }
}

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    /// Reads a number from 0 to 1 with at most six decimal digits.
    fn from_str(text: &str) -> Result<Self, SampleRatioError> {
        let refused = SampleRatioError;
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        if !is_digits(whole) || !is_digits(part) || part.len() > 6 {
            return Err(refused);
        }
        let part: u32 = format!("{part:0<6}").parse().map_err(|_| refused)?;
        let millionths = match whole.trim_start_matches('0') {
            "" => part,
            "1" if part == 0 => Self::WHOLE,
            _ => return Err(refused),
        };
        Ok(Self(millionths))
    }
}

impl fmt::Display for SampleRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("1");
        }
        let digits = format!("{:06}", self.0);
        match digits.trim_end_matches('0') {
            "" => f.write_str("0"),
            digits => write!(f, "0.{digits}"),
        }
    }
}

/// The text is not a ratio.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("expected a number from 0 to 1 with at most six decimal digits")]
pub struct SampleRatioError;

/// Decides which requests are sampled, and hands their spans to the sink.
#[derive(Debug)]
pub struct Tracer {
    ratio: SampleRatio,
    sink: Arc<dyn SpanSink>,
}

impl Tracer {
    /// A tracer that samples this share of the requests without a `traceparent`.
    pub fn new(ratio: SampleRatio, sink: Arc<dyn SpanSink>) -> Self {
        Self { ratio, sink }
    }

    /// The trace context of a request, if it is sampled: in the caller's trace if that is sampled; without one, in a
    /// new trace by chance.
    #[must_use]
    pub fn sample(&self, from_client: Option<TraceContext>) -> Option<TraceContext> {
        match from_client {
            Some(context) => context.is_sampled().then_some(context),
            None if self.ratio == SampleRatio::NONE => None,
            None => Some(TraceContext::begin())
                .filter(|context| self.ratio.samples(context.id().trace))
                .map(TraceContext::sampled),
        }
    }

    fn put(&self, spans: Vec<Span>) {
        self.sink.put(spans);
    }
}

impl BatchObserver for Tracer {
    fn ended(&self, batch: EndedBatch) {
        let Some(id) = batch.facts.span else { return };
        let clock = WallClock::now();
        let mut attributes = stage_attributes(batch.stage.as_str());
        attributes.extend(batch_attributes(&batch.facts));
        attributes.push(("callboard.run.end", batch.end.as_str().into()));
        let mut links = batch.members;
        let omitted_links = links.len().saturating_sub(MAX_LINKS);
        links.truncate(MAX_LINKS);
        links.shrink_to_fit();
        self.put(vec![Span {
            id,
            parent: None,
            name: format!("batch {}", batch.stage),
            is_server: false,
            start: clock.at(batch.formed_at),
            end: clock.at(batch.ended_at),
            attributes,
            links,
            omitted_links,
            error: error_of(Some(batch.end)),
        }]);
    }
}

/// Converts an [`Instant`] to a date.
struct WallClock {
    now: Instant,
    date: SystemTime,
}

impl WallClock {
    fn now() -> Self {
        Self { now: Instant::now(), date: SystemTime::now() }
    }

    fn at(&self, at: Instant) -> SystemTime {
        self.date.checked_sub(self.now.saturating_duration_since(at)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn stage_attributes(stage: &str) -> Vec<(&'static str, Attribute)> {
    vec![("callboard.stage", stage.to_owned().into())]
}

fn batch_attributes(facts: &BatchFacts) -> [(&'static str, Attribute); 4] {
    [
        ("callboard.batch.id", facts.id.into()),
        ("callboard.batch.size", facts.size.into()),
        ("callboard.batch.release", facts.reason.map_or("isolation", |reason| reason.as_str()).into()),
        ("callboard.replica", facts.replica.into()),
    ]
}

/// A cancelled run is not an error.
fn error_of(end: Option<RunEnd>) -> Option<Cow<'static, str>> {
    match end {
        None | Some(RunEnd::Done | RunEnd::Cancelled) => None,
        Some(end) => Some(end.as_str().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_parsed_as_it_is_displayed() {
        for text in ["0", "0.25", "0.000001", "0.999999", "1"] {
            assert_eq!(text.parse::<SampleRatio>().unwrap().to_string(), text);
        }
        assert_eq!("00.50".parse::<SampleRatio>().unwrap().to_string(), "0.5");
        for refused in ["", ".", "1.1", "2", "-0.5", "0.", ".5", "0.1234567", "1e-3", "NaN"] {
            assert!(refused.parse::<SampleRatio>().is_err(), "{refused}");
        }
    }

    #[test]
    fn a_ratio_samples_that_part_of_all_traces() {
        let ratio: SampleRatio = "0.25".parse().unwrap();
        let sampled = (1..=100_000).filter(|_| ratio.samples(fastrand::u128(1..))).count();
        assert!((24_000..26_000).contains(&sampled), "{sampled}");
        assert!(SampleRatio::ALL.samples(u128::MAX) && !SampleRatio::NONE.samples(1_000_000));
    }

    #[derive(Debug)]
    struct NullSink;

    impl SpanSink for NullSink {
        fn put(&self, _: Vec<Span>) {}
    }

    #[test]
    fn a_traceparent_decides_and_chance_only_without_one() {
        let read = |flags: &str| {
            let header = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            TraceContext::from_header(header.as_bytes())
        };
        let (all, none) =
            (Tracer::new(SampleRatio::ALL, Arc::new(NullSink)), Tracer::new(SampleRatio::NONE, Arc::new(NullSink)));
        for tracer in [&all, &none] {
            assert!(tracer.sample(read("01")).is_some() && tracer.sample(read("00")).is_none());
        }
        assert!(all.sample(None).is_some_and(|context| context.is_sampled()) && none.sample(None).is_none());
    }
}
