//! The only place that prints: results to stdout, everything else to stderr.
//!
//! Text for people is [plain text](plain), from every source: all of stderr, and stdout where that is a terminal. A program
//! reads the bytes as they were. Who pipes our output into `head` has seen what they wanted: a broken pipe is not an error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal as _, Write};
use std::path::Path;

use super::error::CliError;
use super::plain::{self, Plain};

/// Writes a result to stdout.
pub(crate) fn result(text: impl Display) -> Result<(), CliError> {
    written("stdout", write_to(&mut *stdout(), &text))
}

/// Where results go: to a program as they are, to a terminal as plain text.
pub(crate) fn stdout() -> Box<dyn Write> {
    let stdout = io::stdout();
    if stdout.is_terminal() { Box::new(Plain::new(stdout)) } else { Box::new(stdout) }
}

/// Writes a result to a file.
pub(crate) fn file(path: &Path, text: impl Display) -> Result<(), CliError> {
    written(path.display(), std::fs::write(path, format!("{text}\n")))
}

/// Whether anybody still reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    Gone,
}

impl Reader {
    pub(crate) fn is_gone(self) -> bool {
        self == Self::Gone
    }
}

/// Writes a piece of a result that comes in pieces, and lets go of it at once.
pub(crate) fn piece(place: &mut impl Write, bytes: &[u8]) -> Result<Reader, CliError> {
    match place.write_all(bytes).and_then(|()| place.flush()) {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(CliError::because("could not write the reply", &error)),
    }
}

/// Tells the person at the terminal something. If nobody can hear it, that is no reason to stop.
pub(crate) fn note(text: impl Display) {
    let text = text.to_string();
    let _ = write_to(&mut io::stderr().lock(), &plain::lines(&text));
}

/// Why the command failed, as one line.
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
