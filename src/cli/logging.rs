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

/// Starts logging. A program that has set up its own logging keeps it. What has to be written at the end is written when the result
/// is dropped.
pub(crate) fn start(filter: &str) -> Result<Option<Flushing>, CliError> {
    let typed: Targets =
        filter.parse().map_err(|error| CliError::because(format_args!("the log filter `{filter}`"), &error))?;
    let is_wanted = typed.iter().any(|(target, _)| target.starts_with(QUIET));
    let filter = if is_wanted { typed } else { typed.with_target(QUIET, LevelFilter::WARN) };
    let gathered = LogLines::default();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(gathered.clone())
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter);
    // An error says that somebody else was first.
    if tracing_subscriber::registry().with(lines).try_init().is_err() {
        return Ok(None);
    }
    gathered.flush_to_stderr().map(Some).map_err(|error| CliError::because("the log", &error))
}
