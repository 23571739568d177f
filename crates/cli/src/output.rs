//! The only place that prints: results to stdout, everything else to stderr.
//!
//! Text for people is [plain text](plain): all of stderr, and stdout if it is a terminal. A program gets the bytes
//! unchanged. A broken pipe is no error: the reader, such as `head`, has seen enough.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::path::Path;

use crate::error::CliError;
use crate::plain::{self, PlainWriter};

/// Writes a result to stdout.
pub(crate) fn result(text: impl Display) -> Result<(), CliError> {
    written("stdout", write_to(&mut *stdout(), &text))
}

/// The output for results: bytes for a program, plain text for a terminal.
pub(crate) fn stdout() -> Box<dyn Write> {
    let stdout = io::stdout();
    if stdout.is_terminal() { Box::new(PlainWriter::new(stdout)) } else { Box::new(stdout) }
}

/// The output for the messages of a protocol, which nothing else may write to.
pub(crate) fn messages() -> tokio::io::Stdout {
    tokio::io::stdout()
}

/// Writes a result to a file.
pub(crate) fn file(path: &Path, text: impl Display) -> Result<(), CliError> {
    written(path.display(), std::fs::write(path, format!("{text}\n")))
}

/// Whether the output still has a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputState {
    Open,
    Closed,
}

impl OutputState {
    pub(crate) fn is_closed(self) -> bool {
        self == Self::Closed
    }
}

/// Writes a part of a result and flushes it.
pub(crate) fn piece(place: &mut impl Write, bytes: &[u8]) -> Result<OutputState, CliError> {
    match place.write_all(bytes).and_then(|()| place.flush()) {
        Ok(()) => Ok(OutputState::Open),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(OutputState::Closed),
        Err(error) => Err(CliError::because("could not write the reply", &error)),
    }
}

/// Writes a line to stderr. A failed write is ignored.
pub(crate) fn note(text: impl Display) {
    let text = text.to_string();
    let _ = write_to(&mut io::stderr().lock(), &plain::lines(&text));
}

/// The error of the command, as one line.
pub(crate) fn failure(message: &str) -> String {
    let line = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("callboard: {}", plain::line(&line))
}

fn write_to(stream: &mut (impl Write + ?Sized), text: &impl Display) -> io::Result<()> {
    writeln!(stream, "{text}")?;
    stream.flush()
}

fn written(place: impl Display, outcome: io::Result<()>) -> Result<(), CliError> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::because(format_args!("could not write to {place}"), &error))
        }
        _ => Ok(()),
    }
}
