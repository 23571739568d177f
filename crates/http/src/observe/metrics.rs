//! The metrics of the edge. The node counts calls and stages, and `/metrics` shows both.
//!
//! One registry per edge: two nodes in one process do not mix. No request takes a lock: the counter of each status is
//! looked up once.

use std::collections::HashSet;
use std::fmt;
use std::sync::OnceLock;

use axum::http::StatusCode;
use callboard_core::families;
use parking_lot::{Mutex, RwLock};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::families::FamilyNames;
use crate::listener::AcceptMetrics;
#[cfg(feature = "otlp")]
use callboard_telemetry::SpanMetrics;

/// Off only in a build that measures the cost of counting, as in core.
const COUNTING: bool = !cfg!(callboard_no_metrics);

/// The media type of [`EdgeMetrics::encode_after`].
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of the older text format.
pub(crate) const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The last line of a document. A document that continues must not have it.
const END: &str = "# EOF\n";

/// More than a program has; names that change with each page must not fill the memory.
const MAX_LEFT_OUT: usize = 100;

families! {
    /// The counters of requests.
    pub struct RequestMetrics {
        responses: Family<StatusLabel, Counter> = "responses", "Responses by status";
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
    by_status: Box<[OnceLock<Counter>]>,
    /// Families from other sources, each a part of the document.
    extra: RwLock<Vec<ExtraFamilies>>,
    /// The names of families that are not shown, as far as the log has them.
    left_out: Mutex<HashSet<String>>,
}

/// Writes a part of a document.
struct ExtraFamilies(Box<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for ExtraFamilies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExtraFamilies")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    route: String,
    status: u16,
}

impl EdgeMetrics {
    pub(crate) fn new() -> Self {
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
            by_status: (0..STATUSES).map(|_| OnceLock::new()).collect(),
            extra: RwLock::default(),
            left_out: Mutex::default(),
        }
    }

    pub(crate) fn responded(&self, status: StatusCode) {
        if !COUNTING {
            return;
        }
        let status = status.as_u16();
        if let Some(counter) = self.by_status.get(usize::from(status)) {
            counter.get_or_init(|| self.requests.responses.get_or_create_owned(&StatusLabel { status })).inc();
        }
    }

    /// Counts an error response of a route. Takes a lock, which only errors wait for.
    pub(crate) fn answered_with(&self, route: &str, status: StatusCode) {
        if COUNTING {
            let labels = ErrorLabels { route: route.to_owned(), status: status.as_u16() };
            self.requests.errors.get_or_create_owned(&labels).inc();
        }
    }

    /// Shows these families from now on.
    pub(crate) fn add_families(&self, part: impl Fn() -> String + Send + Sync + 'static) {
        self.extra.write().push(ExtraFamilies(Box::new(part)));
    }

    /// The node's document, followed by the families of the edge.
    pub(crate) fn encode_after(&self, node: String) -> String {
        let node = node.trim_end_matches(END);
        let mut own = String::new();
        if let Err(error) = encode(&mut own, &self.registry) {
            tracing::error!(%error, "the edge's metrics cannot be encoded");
        }
        let parts: Vec<String> = self.extra.read().iter().map(|ExtraFamilies(extra)| extra()).collect();
        let mut text = node.to_owned();
        let mut names = FamilyNames::default();
        if !parts.is_empty() {
            names.note(node);
            names.note(&own);
        }
        for part in &parts {
            names.append(part, &mut text, |name| self.tell_left_out(name));
        }
        text.push_str(&own);
        in_order(&text)
    }

    /// Says once for each name that a family is not shown.
    fn tell_left_out(&self, family: &str) {
        let mut left_out = self.left_out.lock();
        if left_out.len() < MAX_LEFT_OUT && left_out.insert(family.to_owned()) {
            tracing::error!(family, "a family of metrics is left out of /metrics: another family has its name");
        }
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

/// The labels that all samples of a series share: all but the bound of a bucket, which comes last.
fn labels_of(line: &str) -> String {
    let (front, _) = line.rsplit_once(' ').unwrap_or((line, ""));
    let labels = front.split_once('{').map_or("", |(_, labels)| labels.trim_end_matches('}'));
    let labels = labels.split_once("le=\"").map_or(labels, |(before, _)| before);
    labels.trim_end_matches(',').to_owned()
}

/// All statuses are below this.
const STATUSES: usize = 1000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn series_are_sorted_by_label_and_keep_the_order_of_their_samples() {
        let page = "# TYPE x histogram\nx_sum{route=\"/b\"} 1\nx_count{route=\"/b\"} 1\n\
                    x_bucket{route=\"/b\",le=\"1.0\"} 1\nx_bucket{route=\"/b\",le=\"+Inf\"} 1\n\
                    x_sum{route=\"/a\"} 1\nx_bucket{route=\"/a\",le=\"1.0\"} 1\n\
                    # TYPE y gauge\ny{s=\"2\"} 1\ny{s=\"1\"} 1\n# EOF\n";
        let ordered = "# TYPE x histogram\nx_sum{route=\"/a\"} 1\nx_bucket{route=\"/a\",le=\"1.0\"} 1\n\
                       x_sum{route=\"/b\"} 1\nx_count{route=\"/b\"} 1\nx_bucket{route=\"/b\",le=\"1.0\"} 1\n\
                       x_bucket{route=\"/b\",le=\"+Inf\"} 1\n# TYPE y gauge\ny{s=\"1\"} 1\ny{s=\"2\"} 1\n# EOF\n";
        assert_eq!(in_order(page), ordered);
    }

    #[test]
    fn continues_the_nodes_document_and_ends_it_once() {
        let metrics = EdgeMetrics::new();
        metrics.responded(StatusCode::OK);
        metrics.responded(StatusCode::OK);
        metrics.responded(StatusCode::TOO_MANY_REQUESTS);
        metrics.add_families(|| "# TYPE y counter\ny_total 2\n".to_owned());
        metrics.add_families(|| "# TYPE z counter\nz_total 3\n# EOF\n".to_owned());
        let text = metrics.encode_after("# TYPE x counter\nx_total 1\n# EOF\n".to_owned());
        assert!(
            text.starts_with("# TYPE x counter\nx_total 1\n# TYPE y counter\ny_total 2\n# TYPE z counter\nz_total 3\n"),
            "{text}"
        );
        assert!(text.contains("callboard_http_responses_total{status=\"200\"} 2\n"), "{text}");
        assert!(text.contains("callboard_http_responses_total{status=\"429\"} 1\n"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_family_whose_name_is_in_use_is_left_out_and_told_once() {
        let metrics = EdgeMetrics::new();
        metrics.add_families(|| "# TYPE x gauge\nx 7\n# TYPE y counter\ny_total 2\n".to_owned());
        metrics.add_families(|| "# TYPE y counter\ny_total 3\n# TYPE callboard_http_panics counter\n".to_owned());
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
        let page = || metrics.encode_after("# TYPE x counter\nx_total 1\n# EOF\n".to_owned());
        let text = tracing::subscriber::with_default(subscriber, || {
            page();
            page()
        });
        let begin = "# TYPE x counter\nx_total 1\n# TYPE y counter\ny_total 2\n# HELP callboard_http_";
        assert!(text.starts_with(begin), "{text}");
        let mut types: Vec<_> = text.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        types.sort_unstable();
        assert!(types.windows(2).all(|pair| pair[0] != pair[1]), "{types:?}");
        let told = String::from_utf8(lines.0.lock().clone()).unwrap();
        let count = |name: &str| told.matches(&format!("family=\"{name}\"")).count();
        assert_eq!(["x", "y", "callboard_http_panics"].map(count), [1, 1, 1], "{told}");
    }

    /// The text that a subscriber writes.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
