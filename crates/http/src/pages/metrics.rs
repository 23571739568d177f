//! `/metrics` in the form that its reader asks for: OpenMetrics for those who name it, as Prometheus does, and Prometheus' own
//! older text for everybody else. Old scrapers, `promtool` and people with curl read only that.

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};

use crate::metrics::{OPENMETRICS, PROMETHEUS_TEXT};

/// A page, given as OpenMetrics.
pub(super) fn answer(headers: &HeaderMap, page: String) -> ([(HeaderName, &'static str); 1], String) {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|accept| accept.to_str().ok());
    // Whoever names it reads it; qualities between the two are nobody's wish.
    match accepted.into_iter().any(|accept| accept.contains("application/openmetrics-text")) {
        true => ([(CONTENT_TYPE, OPENMETRICS)], page),
        false => ([(CONTENT_TYPE, PROMETHEUS_TEXT)], older(&page)),
    }
}

/// The same in the older text: a counter's family has the name of its samples, and there is neither unit nor end.
fn older(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = None;
    for line in page.lines() {
        match line.split_once(' ').and_then(|(mark, rest)| Some((mark, rest.split_once(' ')?))) {
            Some(("#", ("HELP", rest))) => help = rest.split_once(' ').map(|(_, words)| words),
            Some(("#", ("TYPE", rest))) => {
                let (family, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                let suffix = if kind == "counter" { "_total" } else { "" };
                let kind = if kind == "unknown" { "untyped" } else { kind };
                if let Some(words) = help.take() {
                    text.push_str(&format!("# HELP {family}{suffix} {words}\n"));
                }
                text.push_str(&format!("# TYPE {family}{suffix} {kind}\n"));
            }
            _ if line.starts_with('#') => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_text_names_a_counter_as_its_samples_and_has_no_end() {
        let page = "# HELP x_seconds What it is.\n# TYPE x_seconds counter\n# UNIT x_seconds seconds\nx_seconds_total{a=\"b c\"} 1\n\
                    # HELP y Y.\n# TYPE y gauge\ny 2\n# EOF\n";
        let text = "# HELP x_seconds_total What it is.\n# TYPE x_seconds_total counter\nx_seconds_total{a=\"b c\"} 1\n\
                    # HELP y Y.\n# TYPE y gauge\ny 2\n";
        assert_eq!(older(page), text);
    }
}
