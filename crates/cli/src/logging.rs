//! Logging to stderr, by the settings `log.filter` and `log.format`.

use std::sync::Arc;

use callboard_config::LogFormat;
use callboard_http::AccessLog;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::error::CliError;
use crate::log_lines::{LogLines, StderrWriter};
use crate::log_style::LogStyle;

/// The actor library opens a span around every message; its number tells a reader nothing.
const QUIET: &str = "ractor";

/// The log of a running command. The rest is written when it is dropped.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) stderr: StderrWriter,
    /// Whether the program has its own subscriber, which gets the lines.
    pub(crate) has_other_subscriber: bool,
}

impl Log {
    /// The access log: with all other lines.
    pub(crate) fn access(&self) -> AccessLog {
        if self.has_other_subscriber { AccessLog::Events } else { AccessLog::To(Arc::new(self.stderr.lines())) }
    }
}

/// Starts logging. A program that has set up its own logging keeps it.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<Log, CliError> {
    let parsed: Targets =
        filter.parse().map_err(|error| CliError::because(format_args!("the log filter `{filter}`"), &error))?;
    let is_wanted = parsed.iter().any(|(target, _)| target.starts_with(QUIET));
    let filter = if is_wanted { parsed } else { parsed.with_target(QUIET, LevelFilter::WARN) };
    let style = LogStyle::for_format(format);
    let buffered_lines = LogLines::new(style);
    let lines = records(style, &buffered_lines);
    // An error means that the program has set a subscriber before.
    let has_other_subscriber = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_err();
    let stderr = buffered_lines.flush_to_stderr().map_err(|error| CliError::because("the log", &error))?;
    Ok(Log { stderr, has_other_subscriber })
}

fn records<S>(style: LogStyle, lines: &LogLines) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    let lines = tracing_subscriber::fmt::layer().with_writer(lines.clone()).with_ansi(style.is_coloured());
    match style {
        // Flat fields, and the fields of the spans: the format that log collectors expect.
        LogStyle::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogStyle::Full | LogStyle::Terminal { .. } => lines.boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "process")]
    fn a_traceback_of_a_child_keeps_its_lines_and_none_looks_like_the_nodes_own() {
        for (style, expected) in [
            (LogStyle::Full, "Traceback:\n      File \"app.py\"\n    2030 ERROR forged stage"),
            (LogStyle::Json, r#"Traceback:\n  File \"app.py\"\n2030 ERROR forged""#),
        ] {
            let lines = LogLines::new(style);
            let subscriber = tracing_subscriber::registry().with(records(style, &lines));
            tracing::subscriber::with_default(subscriber, || {
                let trace = "Traceback:\n  File \"app.py\"\n2030 ERROR forged";
                tracing::warn!(target: callboard_process::OUTPUT_TARGET, stage = "s", "{trace}");
            });
            assert!(lines.written().contains(expected), "{}", lines.written());
        }
    }

    #[test]
    fn no_text_of_a_caller_or_child_begins_a_line_or_moves_the_cursor() {
        let forged = "2030-01-01T00:00:00.000000Z ERROR callboard_http::access: method=\"POST\" forged";
        let text = format!("ours\n{forged}\r\n\u{1b}[2J\u{9b}31m\u{202e}\u{2028}{forged}");
        for style in [
            LogStyle::Full,
            LogStyle::Terminal { is_coloured: false },
            LogStyle::Terminal { is_coloured: true },
            LogStyle::Json,
        ] {
            let lines = LogLines::new(style);
            let subscriber = tracing_subscriber::registry().with(records(style, &lines));
            tracing::subscriber::with_default(subscriber, || {
                tracing::warn!(key = text, shown = %text, error = ?text, "{text}");
                tracing::info!(request_id = "7", "the next record");
            });
            let written = lines.written();
            assert_eq!(written.lines().count(), 2, "{written}");
            assert!(!written.lines().any(|line| line.starts_with("2030")), "{written}");
            assert!(!written.contains("\u{1b}[2J") && !written.contains(['\u{9b}', '\u{202e}', '\u{2028}', '\r']));
            if style == LogStyle::Json {
                let record: serde_json::Value = serde_json::from_str(written.lines().next().unwrap()).unwrap();
                assert_eq!(record["shown"], text, "the value is the same");
            }
        }
    }
}
