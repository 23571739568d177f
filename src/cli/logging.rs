//! Log lines on stderr, as many as the setting `log` asks for.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::error::CliError;

/// The actor library opens a span around every message, whose number tells a reader nothing.
const QUIET: &str = "ractor";

/// Starts logging. A program that has set up its own logging keeps it.
pub(crate) fn start(filter: &str) -> Result<(), CliError> {
    let typed: Targets =
        filter.parse().map_err(|error| CliError::because(format_args!("the log filter `{filter}`"), &error))?;
    let is_wanted = typed.iter().any(|(target, _)| target.starts_with(QUIET));
    let filter = if is_wanted { typed } else { typed.with_target(QUIET, LevelFilter::WARN) };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_filter(filter);
    // An error says that somebody else was first.
    let _ = tracing_subscriber::registry().with(lines).try_init();
    Ok(())
}
