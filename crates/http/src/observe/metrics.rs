//! The metrics of the edge. The node counts calls and stages, and `/metrics` shows both.
//!
//! One registry per edge: two nodes in one process do not mix. No request takes a lock: the counter of each status is
//! looked up once. The label `door` says how a request came: to a route by its own path (`http`, as are the pages of
//! the edge), or by a protocol; its values are the list of the edge's protocols. Calls by another edge of the node are
//! `quic`, and have the status that HTTP has for their outcome (`other_doors.rs`).

use std::sync::OnceLock;

use axum::http::StatusCode;
use callboard_core::{LocalClient, families};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::listener::AcceptMetrics;
#[cfg(feature = "otlp")]
use callboard_telemetry::SpanMetrics;

/// Off only in a build that measures the cost of counting, as in core.
const COUNTING: bool = !cfg!(callboard_no_metrics);

/// The media type of [`EdgeMetrics::encode`].
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of the older text format.
pub(crate) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

families! {
    /// The counters of requests.
    pub struct RequestMetrics {
        responses: Family<ResponseLabels, Counter> = "responses", "Responses by door and status";
        errors: Family<ErrorLabels, Counter> =
            "errors",
            "Requests of a route that were answered with an error, whether refused at the edge or failed in their call";
        /// Requests whose client left before the response.
        pub abandoned: Counter = "abandoned_requests", "Requests whose client left before the response";
        /// Requests on which the edge or user code of a codec panicked.
        pub panics: Counter = "panics", "Requests on which the edge or user code of a codec panicked";
    }
}

/// The counters of one edge.
#[derive(Debug)]
pub struct EdgeMetrics {
    registry: Registry,
    /// The counters of its requests.
    pub requests: RequestMetrics,
    pub(crate) accept: AcceptMetrics,
    #[cfg(feature = "otlp")]
    pub(crate) spans: SpanMetrics,
    by_door: Box<[DoorCounters]>,
}

/// The counters of one door, looked up once.
#[derive(Debug)]
struct DoorCounters {
    door: &'static str,
    /// Made with the first response.
    by_status: OnceLock<Box<[OnceLock<Counter>]>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabels {
    door: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    door: &'static str,
    route: String,
    status: u16,
}

impl EdgeMetrics {
    /// The counters of an edge with these doors beside its routes.
    pub(crate) fn new(doors: &[&'static str]) -> Self {
        let (requests, accept) = (RequestMetrics::default(), AcceptMetrics::default());
        let mut registry = Registry::with_prefix("callboard_http");
        requests.register(&mut registry);
        #[cfg(feature = "otlp")]
        let spans = SpanMetrics::default();
        #[cfg(feature = "otlp")]
        spans.register(&mut registry);
        accept.register(&mut registry);
        Self {
            registry,
            requests,
            accept,
            #[cfg(feature = "otlp")]
            spans,
            by_door: std::iter::once(&ROUTES)
                .chain(doors)
                .chain(&[QUIC])
                .map(|door| DoorCounters { door, by_status: OnceLock::new() })
                .collect(),
        }
    }

    pub(crate) fn responded(&self, door: &'static str, status: StatusCode) {
        if !COUNTING {
            return;
        }
        // The routes come first, because most calls are theirs. A door that is not listed is not counted.
        let Some(counters) = self.by_door.iter().find(|counters| counters.door == door) else { return };
        let status = status.as_u16();
        let by_status = counters.by_status.get_or_init(|| (0..STATUSES).map(|_| OnceLock::new()).collect());
        if let Some(counter) = by_status.get(usize::from(status)) {
            counter.get_or_init(|| self.requests.responses.get_or_create_owned(&ResponseLabels { door, status })).inc();
        }
    }

    /// Counts an error response of a route. Takes a lock, which only errors wait for.
    pub(crate) fn answered_with(&self, door: &'static str, route: &str, status: StatusCode) {
        if COUNTING {
            let labels = ErrorLabels { door, route: route.to_owned(), status: status.as_u16() };
            self.requests.errors.get_or_create_owned(&labels).inc();
        }
    }

    /// The families of the edge alone.
    pub(crate) fn encode(&self) -> String {
        let mut own = String::new();
        if let Err(error) = encode(&mut own, &self.registry) {
            tracing::error!(%error, "the edge's metrics cannot be encoded");
        }
        own
    }

    /// The page: the families of the node, of its other edges and of its program, and those of the edge.
    pub(crate) fn page(&self, node: &LocalClient) -> String {
        in_order(&node.edge().metrics_with(&self.encode()))
    }
}

/// The same page with the series of each family sorted by labels, so that pages can be compared by line. The registry
/// keeps them in hash maps. The samples of one series keep their order, as a histogram requires.
fn in_order(page: &str) -> String {
    let mut ordered = String::with_capacity(page.len());
    let mut series: Vec<(String, &str)> = Vec::new();
    for line in page.split_inclusive('\n') {
        if line.starts_with('#') {
            flush(&mut series, &mut ordered);
            ordered.push_str(line);
        } else {
            series.push((labels_of(line), line));
        }
    }
    flush(&mut series, &mut ordered);
    ordered
}

fn flush(series: &mut Vec<(String, &str)>, ordered: &mut String) {
    series.sort_by(|one, other| one.0.cmp(&other.0));
    series.drain(..).for_each(|(_, line)| ordered.push_str(line));
}

/// The labels that all samples of a series share: all but the bound of a bucket, which is at any place.
fn labels_of(line: &str) -> String {
    let (front, _) = line.rsplit_once(' ').unwrap_or((line, ""));
    let labels = front.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    let is_first = labels.starts_with("le=\"");
    let Some(at) = is_first.then_some(0).or_else(|| labels.find(",le=\"")) else { return labels.to_owned() };
    let (before, bound) = labels.split_at(at);
    let after = bound.splitn(3, '"').nth(2).unwrap_or_default();
    [before, after].concat().trim_matches(',').to_owned()
}

/// The door of the routes, and of the pages of the edge.
pub(crate) const ROUTES: &str = "http";

/// The door of the calls over QUIC, of which their edge tells.
pub(crate) const QUIC: &str = "quic";

/// All statuses are below this.
const STATUSES: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_sorted_by_label_and_keep_the_order_of_their_samples() {
        let page = "# TYPE x histogram\nx_sum{route=\"/b\"} 1\nx_count{route=\"/b\"} 1\n\
                    x_bucket{le=\"1.0\",route=\"/b\"} 1\nx_bucket{route=\"/b\",le=\"+Inf\"} 1\n\
                    x_sum{route=\"/a\"} 1\nx_bucket{route=\"/a\",le=\"1.0\"} 1\n\
                    # TYPE y gauge\ny{s=\"2\"} 1\ny{s=\"1\"} 1\n# EOF\n";
        let ordered = "# TYPE x histogram\nx_sum{route=\"/a\"} 1\nx_bucket{route=\"/a\",le=\"1.0\"} 1\n\
                       x_sum{route=\"/b\"} 1\nx_count{route=\"/b\"} 1\nx_bucket{le=\"1.0\",route=\"/b\"} 1\n\
                       x_bucket{route=\"/b\",le=\"+Inf\"} 1\n# TYPE y gauge\ny{s=\"1\"} 1\ny{s=\"2\"} 1\n# EOF\n";
        assert_eq!(in_order(page), ordered);
    }

    #[test]
    fn responses_are_counted_by_door_and_status() {
        let metrics = EdgeMetrics::new(&["grpc"]);
        metrics.responded(ROUTES, StatusCode::OK);
        metrics.responded(ROUTES, StatusCode::OK);
        metrics.responded("grpc", StatusCode::OK);
        metrics.responded(ROUTES, StatusCode::TOO_MANY_REQUESTS);
        metrics.responded("unknown", StatusCode::OK);
        let text = metrics.encode();
        for (labels, count) in [("http\",status=\"200", 2), ("grpc\",status=\"200", 1), ("http\",status=\"429", 1)] {
            let line = format!("callboard_http_responses_total{{door=\"{labels}\"}} {count}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert!(!text.contains("unknown"), "the doors are a list");
        assert!(text.ends_with("# EOF\n"));
    }
}
