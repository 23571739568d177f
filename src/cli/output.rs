//! The only place that prints: results to stdout, everything else to stderr.
//!
//! Who pipes our output into `head` has seen what they wanted: a broken pipe is not an error.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use super::error::CliError;

/// Writes a result to stdout.
pub(crate) fn result(text: impl Display) -> Result<(), CliError> {
    written("stdout", write_to(&mut io::stdout().lock(), &text))
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
    let _ = write_to(&mut io::stderr().lock(), &text);
}

/// Why the command failed, as one line.
pub(crate) fn failure(message: &str) -> String {
    let line = message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("callboard: {line}")
}

fn write_to(stream: &mut impl Write, text: &impl Display) -> io::Result<()> {
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
