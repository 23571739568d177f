//! What a request and its batches are to a tracing system: spans, as values, and who gets them.
//!
//! A sampled request is one span, with the caller's as its parent, and below it a span for each wait in a queue and each run of
//! user code. A batch belongs to all of its requests alike, so it is one span in a trace of its own, linked to the span of each
//! sampled request in it; the run of each points back to it.
//!
//! * **Not sampled:** nothing is recorded. The caller decides by the flag of its `traceparent`; where there is none, chance does.
//! * **Full, slow:** a [`SpanSink`] takes what it can hold and drops the rest; no call waits for it.
//! * **Cancelled:** a request whose client left has its span, with status 499.

mod call;
mod request;

pub(crate) use call::OtherDoor;
pub(crate) use request::RequestSpan;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use callboard_core::Instant;
use callboard_core::timeline::{BatchFacts, BatchObserver, EndedBatch, RunEnd, SpanId};
use thiserror::Error;

use crate::trace::TraceContext;

/// One part of a trace, with its beginning and its end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Span {
    /// Its place.
    pub id: SpanId,
    /// The part of the same trace that it is a part of.
    pub parent: Option<u64>,
    /// What people read first.
    pub name: String,
    /// It answers somebody else, rather than being a part of that.
    pub is_server: bool,
    /// When it began.
    pub start: SystemTime,
    /// When it ended.
    pub end: SystemTime,
    /// What is known of it, by name.
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Parts of other traces that it has to do with.
    pub links: Vec<SpanId>,
    /// Further ones that are left out.
    pub omitted_links: usize,
    /// Why it did not do what it should, if so.
    pub error: Option<Cow<'static, str>>,
}

/// What an attribute says.
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

/// What OpenTelemetry's own libraries keep of a span's links.
const MAX_LINKS: usize = 128;

/// Whoever gets the spans of an edge.
pub trait SpanSink: fmt::Debug + Send + Sync + 'static {
    /// Takes the spans of one request, or of one batch. Called on the way of calls: it must not wait, and drops what it cannot hold.
    fn put(&self, spans: Vec<Span>);
}

/// How many of the requests are sampled whose callers do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRatio(u32);

impl SampleRatio {
    /// Every one.
    pub const ALL: Self = Self(Self::WHOLE);

    /// None but those whose callers ask for it.
    pub const NONE: Self = Self(0);

    const WHOLE: u32 = 1_000_000;

    /// By the trace's own number, so that every node that is asked says the same.
    fn samples(self, trace: u128) -> bool {
        trace % u128::from(Self::WHOLE) < u128::from(self.0)
    }
}

impl FromStr for SampleRatio {
    type Err = SampleRatioError;

    /// Reads a number from 0 to 1 with at most six digits behind the point.
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

/// A text that is no ratio.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("expected a number from 0 to 1 with at most six digits behind the point")]
pub struct SampleRatioError;

/// Decides which requests are sampled, and passes on what is known of them.
#[derive(Debug)]
pub(crate) struct Tracer {
    ratio: SampleRatio,
    sink: Arc<dyn SpanSink>,
}

impl Tracer {
    pub(crate) fn new(ratio: SampleRatio, sink: Arc<dyn SpanSink>) -> Self {
        Self { ratio, sink }
    }

    /// The place of a request in a trace, if it is sampled: in its caller's trace where that is sampled, in a new one where there
    /// is none and chance says so.
    pub(crate) fn sample(&self, from_client: Option<TraceContext>) -> Option<TraceContext> {
        match from_client {
            Some(context) => context.is_sampled().then_some(context),
            None if self.ratio == SampleRatio::NONE => None,
            None => Some(TraceContext::new())
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
        let times = Anchor::now();
        let mut attributes = of_stage(batch.stage.as_str());
        attributes.extend(of_batch(&batch.facts));
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
            start: times.of(batch.formed_at),
            end: times.of(batch.ended_at),
            attributes,
            links,
            omitted_links,
            error: error_of(Some(batch.end)),
        }]);
    }
}

/// Where the clock of durations stands on the clock of dates.
struct Anchor {
    now: Instant,
    date: SystemTime,
}

impl Anchor {
    fn now() -> Self {
        Self { now: Instant::now(), date: SystemTime::now() }
    }

    fn of(&self, at: Instant) -> SystemTime {
        self.date.checked_sub(self.now.saturating_duration_since(at)).unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

fn of_stage(stage: &str) -> Vec<(&'static str, Attribute)> {
    vec![("callboard.stage", stage.to_owned().into())]
}

fn of_batch(facts: &BatchFacts) -> [(&'static str, Attribute); 4] {
    [
        ("callboard.batch.id", facts.id.into()),
        ("callboard.batch.size", facts.size.into()),
        ("callboard.batch.release", facts.reason.map_or("isolation", |reason| reason.as_str()).into()),
        ("callboard.replica", facts.replica.into()),
    ]
}

/// What ended as it should is no error, and neither is what nobody waited for.
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
    fn a_ratio_is_read_as_it_is_shown() {
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
    struct Nobody;

    impl SpanSink for Nobody {
        fn put(&self, _: Vec<Span>) {}
    }

    #[test]
    fn the_caller_decides_and_chance_only_where_there_is_none() {
        let read = |flags: &str| {
            let header = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            TraceContext::from_client(&header.parse().unwrap())
        };
        let (all, none) =
            (Tracer::new(SampleRatio::ALL, Arc::new(Nobody)), Tracer::new(SampleRatio::NONE, Arc::new(Nobody)));
        for tracer in [&all, &none] {
            assert!(tracer.sample(read("01")).is_some() && tracer.sample(read("00")).is_none());
        }
        assert!(all.sample(None).is_some_and(|context| context.is_sampled()) && none.sample(None).is_none());
    }
}
