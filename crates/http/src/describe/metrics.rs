//! `/metrics` in the format that the client accepts: OpenMetrics if `accept` names it, as from Prometheus, else the
//! older text format, for old scrapers, `promtool` and curl.
//!
//! Encoding the page takes milliseconds, so it runs off the runtime's threads, one at a time: readers that arrive
//! meanwhile share the next page ([`MetricsCache`]).

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

use crate::observe::metrics::{OPENMETRICS, PROMETHEUS_TEXT};

/// The page in both forms. Clones share their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct MetricsPage {
    openmetrics: Bytes,
    older: Bytes,
}

impl MetricsPage {
    pub(super) fn new(openmetrics: String) -> Self {
        Self { older: older(&openmetrics).into(), openmetrics: openmetrics.into() }
    }

    /// The form that these headers accept.
    pub(super) fn answer(self, headers: &HeaderMap) -> ([(HeaderName, &'static str); 1], Bytes) {
        let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
        // A client that names OpenMetrics can read it; qualities do not matter.
        if accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
            ([(CONTENT_TYPE, OPENMETRICS)], self.openmetrics)
        } else {
            ([(CONTENT_TYPE, PROMETHEUS_TEXT)], self.older)
        }
    }
}

/// The last page.
#[derive(Debug, Default)]
pub(super) struct MetricsCache {
    /// The number of pages that have begun.
    started: AtomicU64,
    /// The number of the last page, and the page.
    last: Mutex<(u64, MetricsPage)>,
}

impl MetricsCache {
    /// A page that begins after this call. `write` encodes it as OpenMetrics.
    pub(super) async fn get(&self, write: impl FnOnce() -> String + Send + 'static) -> MetricsPage {
        let before = self.started.load(Ordering::Acquire);
        let mut last = self.last.lock().await;
        if last.0 <= before {
            let number = self.started.fetch_add(1, Ordering::AcqRel) + 1;
            let page = match spawn_blocking(|| MetricsPage::new(write())).await.map_err(JoinError::try_into_panic) {
                Ok(page) => page,
                Err(Ok(panic)) => resume_unwind(panic),
                Err(Err(_stopping)) => MetricsPage::default(),
            };
            *last = (number, page);
        }
        last.1.clone()
    }
}

/// The older text: the family of a counter has the name of its samples, its help comes before its type, and there is no
/// unit and no end mark.
fn older(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut family = Family::default();
    for line in page.lines() {
        match line.split_once(' ').and_then(|(mark, rest)| Some((mark, rest.split_once(' ')?))) {
            Some(("#", (word @ ("HELP" | "TYPE"), rest))) => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                if name != family.name {
                    std::mem::replace(&mut family, Family { name, ..Family::default() }).describe(&mut text);
                }
                let described = if word == "HELP" { &mut family.help } else { &mut family.kind };
                *described = Some(value);
            }
            _ if line.starts_with('#') => {}
            _ => {
                std::mem::take(&mut family).describe(&mut text);
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    family.describe(&mut text);
    text
}

/// A family whose samples come next. Its lines may have any order.
#[derive(Default)]
struct Family<'a> {
    name: &'a str,
    help: Option<&'a str>,
    kind: Option<&'a str>,
}

impl Family<'_> {
    fn describe(self, text: &mut String) {
        let Self { name, help, kind } = self;
        // A counter may be declared with the suffix of its samples.
        let (base, suffix) = match kind {
            Some("counter") => (name.strip_suffix("_total").unwrap_or(name), "_total"),
            _ => (name, ""),
        };
        if let Some(help) = help {
            text.push_str(&format!("# HELP {base}{suffix} {help}\n"));
        }
        if let Some(kind) = kind {
            let kind = if matches!(kind, "unknown" | "") { "untyped" } else { kind };
            text.push_str(&format!("# TYPE {base}{suffix} {kind}\n"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;

    #[tokio::test]
    async fn requests_that_arrive_during_an_encoding_share_the_next_page() {
        let (cache, encoded) = (MetricsCache::default(), AtomicU64::new(0));
        let page_of = async |text: &'static str, release: Option<Receiver<()>>| {
            let encode = move || {
                release.into_iter().for_each(|release| release.recv().expect("the others wait"));
                text.to_owned()
            };
            let page = cache.get(encode).await;
            encoded.fetch_add(u64::from(page.openmetrics == text), Ordering::Relaxed);
            page.openmetrics
        };
        let (waits, release) = mpsc::channel();
        let others_wait = async { waits.send(()).expect("the first is being encoded") };
        let pages =
            tokio::join!(page_of("first", Some(release)), page_of("second", None), page_of("third", None), others_wait);
        assert_eq!(pages, ("first".into(), "second".into(), "second".into(), ()));
        assert_eq!(page_of("fourth", None).await, "fourth");
        assert_eq!(encoded.into_inner(), 3);
    }

    #[test]
    fn the_older_format_names_a_counter_like_its_samples_and_has_no_eof() {
        let page = "# HELP x_seconds What it is.\n# TYPE x_seconds counter\n# UNIT x_seconds seconds\n\
                    x_seconds_total{a=\"b c\"} 1\n# HELP y Y.\n# TYPE y gauge\ny 2\n# EOF\n";
        let text = "# HELP x_seconds_total What it is.\n# TYPE x_seconds_total counter\nx_seconds_total{a=\"b c\"} 1\n\
                    # HELP y Y.\n# TYPE y gauge\ny 2\n";
        assert_eq!(older(page), text);
    }

    #[test]
    fn the_older_format_keeps_a_help_whatever_its_place_and_gives_it_to_no_other_family() {
        let page = "# TYPE a counter\n# HELP a What.\na_total 1\n# HELP b Alone.\n# TYPE c_total counter\nc_total 2\n\
                    # HELP d No samples.\n# EOF\n";
        let text = "# HELP a_total What.\n# TYPE a_total counter\na_total 1\n# HELP b Alone.\n\
                    # TYPE c_total counter\nc_total 2\n# HELP d No samples.\n";
        assert_eq!(older(page), text);
    }
}
