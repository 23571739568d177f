//! Logging to stderr, by the settings `log.filter` and `log.format`.

use std::sync::Arc;

use callboard_http::AccessLog;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::error::CliError;
use super::log_lines::{LogLines, StderrWriter};
use super::log_style::LogStyle;
use crate::config::LogFormat;

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
    let lines = tracing_subscriber::fmt::layer().with_writer(buffered_lines.clone()).with_ansi(style.is_coloured());
    let lines = match style {
        // Flat fields, and the fields of the spans: the format that log collectors expect.
        LogStyle::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogStyle::Full | LogStyle::Terminal { .. } => lines.boxed(),
    };
    // An error means that the program has set a subscriber before.
    let has_other_subscriber = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_err();
    let stderr = buffered_lines.flush_to_stderr().map_err(|error| CliError::because("the log", &error))?;
    Ok(Log { stderr, has_other_subscriber })
}
