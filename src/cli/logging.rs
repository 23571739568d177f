//! Log lines on stderr, as many as the setting `log.filter` asks for, in the form that `log.format` says.

use std::sync::Arc;

use callboard_http::AccessLog;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::error::CliError;
use super::log_lines::{Flushing, LogLines};
use super::log_style::LogStyle;
use crate::config::LogFormat;

/// The actor library opens a span around every message, whose number tells a reader nothing.
const QUIET: &str = "ractor";

/// What a command says on stderr while it runs. What has to be written at the end is written when this is dropped.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) stderr: Flushing,
    /// Whether a program has logging of its own, which has the lines then.
    pub(crate) is_elsewhere: bool,
}

impl Log {
    /// Where the lines of requests go: beside all others.
    pub(crate) fn access(&self) -> AccessLog {
        if self.is_elsewhere { AccessLog::Events } else { AccessLog::To(Arc::new(self.stderr.lines())) }
    }
}

/// Starts logging. A program that has set up its own logging keeps it.
pub(crate) fn start(filter: &str, format: LogFormat) -> Result<Log, CliError> {
    let typed: Targets =
        filter.parse().map_err(|error| CliError::because(format_args!("the log filter `{filter}`"), &error))?;
    let is_wanted = typed.iter().any(|(target, _)| target.starts_with(QUIET));
    let filter = if is_wanted { typed } else { typed.with_target(QUIET, LevelFilter::WARN) };
    let style = LogStyle::of(format);
    let gathered = LogLines::new(style);
    let lines = tracing_subscriber::fmt::layer().with_writer(gathered.clone()).with_ansi(style.is_coloured());
    let lines = match style {
        // Fields beside the message, and each span of a line with its own: the form that collectors of lines expect.
        LogStyle::Json => lines.json().flatten_event(true).with_current_span(false).boxed(),
        LogStyle::Full | LogStyle::Terminal { .. } => lines.boxed(),
    };
    // An error says that somebody else was first.
    let is_elsewhere = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_err();
    let stderr = gathered.flush_to_stderr().map_err(|error| CliError::because("the log", &error))?;
    Ok(Log { stderr, is_elsewhere })
}
