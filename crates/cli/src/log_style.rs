//! The format of lines on stderr: for a file, for a terminal, or JSON for log collectors.

use std::fmt::Display;
use std::io::{self, IsTerminal as _};

use callboard_http::AccessRecord;
use serde_json::json;
use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use callboard_config::LogFormat;

/// The format of all lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogStyle {
    /// Text with all fields.
    #[default]
    Full,
    /// Requests in a short line of columns.
    Terminal {
        /// Whether the terminal shows colours and `NO_COLOR` is not set.
        is_coloured: bool,
    },
    /// One object per line.
    Json,
}

impl LogStyle {
    /// The style of a format, for the stderr of this process. `NO_COLOR` follows <https://no-color.org>: no colours
    /// unless it is empty.
    pub(crate) fn for_format(format: LogFormat) -> Self {
        let is_coloured = || std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        match format {
            LogFormat::Json => Self::Json,
            LogFormat::Text if io::stderr().is_terminal() => Self::Terminal { is_coloured: is_coloured() },
            LogFormat::Text => Self::Full,
        }
    }

    /// Whether lines other than request lines have colours.
    pub(crate) fn is_coloured(self) -> bool {
        self == Self::Terminal { is_coloured: true }
    }

    /// Appends the line of a request.
    pub(crate) fn push(self, record: &AccessRecord<'_>, to: &mut Vec<u8>) {
        match self {
            Self::Full => record.write_line(to),
            Self::Terminal { is_coloured } => record.write_short(is_coloured, to),
            Self::Json => record.write_json(to),
        }
    }

    /// A line for people, with its end. As JSON it is one object, even with several lines of text.
    pub(crate) fn formatted(self, level: Level, text: impl Display) -> String {
        if self != Self::Json {
            return format!("{text}\n");
        }
        let mut timestamp = String::new();
        // Writing to a string cannot fail.
        _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        let line = json!({
            "timestamp": timestamp, "level": level.as_str(), "target": "callboard", "message": text.to_string(),
        });
        format!("{line}\n")
    }
}
