//! Log lines on stderr, as many as the setting `log` asks for.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::error::CliError;
use super::log_lines::{Flushing, LogLines};

/// The actor library opens a span around every message, whose number tells a reader nothing.
const QUIET: &str = "ractor";

/// Under this target the edge has one event for each request.
const ACCESS: &str = "callboard_http::access";

/// Starts logging, with a line per request or without. A program that has set up its own logging keeps it. What has to be
/// written at the end is written when the result is dropped.
pub(crate) fn start(filter: &str, access: bool) -> Result<Option<Flushing>, CliError> {
    let typed: Targets =
        filter.parse().map_err(|error| CliError::because(format_args!("the log filter `{filter}`"), &error))?;
    let is_wanted = typed.iter().any(|(target, _)| target.starts_with(QUIET));
    let filter = if is_wanted { typed } else { typed.with_target(QUIET, LevelFilter::WARN) };
    let filter = filter.with_target(ACCESS, LevelFilter::OFF);
    let gathered = LogLines::default();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(gathered.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter);
    let requests = access.then(|| gathered.clone().with_filter(Targets::new().with_target(ACCESS, LevelFilter::INFO)));
    // An error says that somebody else was first.
    if tracing_subscriber::registry().with(lines).with(requests).try_init().is_err() {
        return Ok(None);
    }
    gathered.flush_to_stderr().map(Some).map_err(|error| CliError::because("the log", &error))
}
