//! The timeline of one request, for a client that asks for it by `x-callboard-explain: 1` or `?explain=1`.
//!
//! It is JSON in a header, [`X_CALLBOARD_TIMELINE`], because bodies have forms of their own: for any response, errors
//! included, `curl -s -o answer -w '%header{x-callboard-timeline}' …` shows it. The head of a stream has the part until
//! the first item; an event stream has all of it in an event `timeline` before its last event.
//!
//! * **Full:** the header has at most [`MAX_BYTES`]; stages that do not fit are counted in `omitted`.
//! * **Disabled:** without [`HttpConfig::explain_requests`] the request header is ignored.

use std::time::Duration;

use axum::http::header::{HeaderName, HeaderValue};
use callboard_core::timeline::{BatchFacts, NodeFacts, Recorder, StageRun, StageVisit, Timeline};
use callboard_core::{Instant, Timing};
use serde::Serialize;

use crate::config::HttpConfig;

/// The request header: `1` asks for the timeline, `0` does not.
pub(crate) const X_CALLBOARD_EXPLAIN: &str = "x-callboard-explain";

/// The response header.
pub(crate) const X_CALLBOARD_TIMELINE: HeaderName = HeaderName::from_static("x-callboard-timeline");

/// The same in the query, for people who can only type a URL.
const PARAMETER: &str = "explain=1";

/// Room for some twenty runs. Proxies limit a whole head to 8 or 4 KiB.
const MAX_BYTES: usize = 3 * 1024;

/// Whether this header or this query asks for the timeline.
pub(crate) fn is_requested(config: &HttpConfig, by_header: Option<&HeaderValue>, query: Option<&str>) -> bool {
    config.explain_requests && (by_header.is_some_and(|value| value == "1") || by_query(query))
}

fn by_query(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|parameter| parameter == PARAMETER))
}

/// The timeline so far, for a header.
pub(crate) fn header(recorder: &Recorder) -> HeaderValue {
    let timeline = recorder.timeline(Instant::now());
    let mut omitted = timeline.omitted;
    let mut shown = timeline.visits.len();
    loop {
        let text = written(&timeline, shown, omitted);
        match HeaderValue::from_str(&text) {
            Ok(header) if text.len() <= MAX_BYTES || shown == 0 => return header,
            _ if shown == 0 => return HeaderValue::from_static("{}"),
            _ => {
                shown -= 1;
                omitted += 1;
            }
        }
    }
}

/// The whole timeline so far, for a body.
pub(crate) fn document(recorder: &Recorder) -> String {
    let timeline = recorder.timeline(Instant::now());
    written(&timeline, timeline.visits.len(), timeline.omitted)
}

fn written(timeline: &Timeline, shown: usize, omitted: usize) -> String {
    let stages = timeline.visits.iter().take(shown).map(StageJson::new).collect();
    let json = TimelineJson { total_ms: ms(timeline.total), stages, omitted };
    ascii(&serde_json::to_string(&json).unwrap_or_default())
}

#[derive(Serialize)]
struct TimelineJson<'a> {
    total_ms: f64,
    stages: Vec<StageJson<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    omitted: usize,
}

#[derive(Serialize)]
struct StageJson<'a> {
    stage: &'a str,
    arrived_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_ms: Option<f64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    remote: bool,
    /// The times of the other node.
    #[serde(skip_serializing_if = "Option::is_none")]
    there: Option<RemoteJson<'a>>,
    attempts: usize,
    runs: Vec<RunJson>,
}

#[derive(Serialize)]
struct RunJson {
    queue_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<BatchJson>,
    /// `None` while the run continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<&'static str>,
}

#[derive(Serialize)]
struct BatchJson {
    id: u64,
    size: usize,
    replica: usize,
    release: &'static str,
}

#[derive(Serialize)]
struct RemoteJson<'a> {
    node: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_ms: Option<f64>,
}

impl<'a> RemoteJson<'a> {
    fn new(there: &'a NodeFacts) -> Self {
        let times = |part: fn(Timing) -> Duration| there.timing.map(part).map(ms);
        let (queue_ms, batch_ms) = (times(|timing| timing.queue), times(|timing| timing.batch));
        Self { node: &there.node, queue_ms, batch_ms, compute_ms: times(|timing| timing.compute) }
    }
}

impl<'a> StageJson<'a> {
    fn new(visit: &'a StageVisit) -> Self {
        Self {
            stage: visit.stage.as_str(),
            arrived_ms: ms(visit.arrived),
            left_ms: visit.left.map(ms),
            remote: visit.is_remote,
            there: visit.remote.as_ref().map(RemoteJson::new),
            attempts: visit.runs.iter().filter(|run| run.compute.is_some()).count(),
            runs: visit.runs.iter().map(RunJson::new).collect(),
        }
    }
}

impl RunJson {
    fn new(run: &StageRun) -> Self {
        Self {
            queue_ms: ms(run.queue),
            batch_ms: run.batch_wait.map(ms),
            compute_ms: run.compute.map(ms),
            batch: run.batch.as_ref().map(BatchJson::new),
            end: run.end.map(|end| end.as_str()),
        }
    }
}

impl BatchJson {
    fn new(facts: &BatchFacts) -> Self {
        let BatchFacts { id, size, replica, reason, .. } = *facts;
        Self { id, size, replica, release: reason.map_or("isolation", |reason| reason.as_str()) }
    }
}

/// Milliseconds with three decimal digits.
fn ms(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Escapes non-ASCII characters: headers are ASCII, names of stages need not be.
fn ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() {
            text.push(c)
        } else {
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")))
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explain_parameter_is_found_among_others() {
        assert!(by_query(Some("explain=1")) && by_query(Some("a=b&explain=1&c")));
        for other in ["explain", "explain=0", "explain=10", "unexplain=1", ""] {
            assert!(!by_query(Some(other)), "{other}");
        }
    }

    #[test]
    fn names_of_any_script_are_written_in_ascii() {
        assert_eq!(ascii("\"größe😀\""), r#""gr\u00f6\u00dfe\ud83d\ude00""#);
        assert_eq!(serde_json::from_str::<String>(&ascii("\"größe😀\"")).unwrap(), "größe😀");
    }
}
