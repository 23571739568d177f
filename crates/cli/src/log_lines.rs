//! Log lines are buffered for a moment, and one thread writes them to stderr.
//!
//! A write per request would cost more than the rest of its bookkeeping, and a blocked stderr would block a thread of
//! the runtime. So a thread writes the buffer, every [`PAUSE`] and once at the end. Start-up lines go the same way.
//! **Full**, because stderr is not read: lines are dropped and counted, no caller waits, and the count is written when
//! there is room again. **At the end** the process waits up to [`LAST_WAIT`] for the thread.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use callboard_http::{AccessRecord, AccessSink};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::log_style::LogStyle;
use crate::log_text;

/// Short enough to look immediate.
const PAUSE: Duration = Duration::from_millis(50);

/// Some 30,000 lines: the output of a busy server in a second and a half.
const MOST_BYTES: usize = 8 << 20;

/// A live reader of stderr needs less; without a reader the end should not wait longer.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The shared buffer of lines.
#[derive(Clone, Default)]
pub(crate) struct LogLines {
    buffer: Arc<Mutex<LineBuffer>>,
    style: LogStyle,
}

#[derive(Default)]
struct LineBuffer {
    text: Vec<u8>,
    dropped: u64,
    /// The last line is in the buffer: no line follows it.
    is_closed: bool,
}

/// Writes the rest of the buffer when it is dropped.
#[derive(Debug)]
pub(crate) struct StderrWriter {
    lines: LogLines,
    /// A message wakes the thread. The thread ends when the sender is dropped.
    wake: Option<mpsc::SyncSender<()>>,
    /// Closed by the thread at its end.
    finished: mpsc::Receiver<Infallible>,
}

impl LogLines {
    /// An empty buffer.
    pub(crate) fn new(style: LogStyle) -> Self {
        Self { style, ..Self::default() }
    }

    /// Starts the thread.
    pub(crate) fn flush_to_stderr(&self) -> io::Result<StderrWriter> {
        let lines = self.clone();
        let (wake, woken) = mpsc::sync_channel(1);
        let (closed_at_the_end, finished) = mpsc::channel();
        let work = move || {
            let mut spare = Vec::new();
            while woken.recv_timeout(PAUSE) != Err(RecvTimeoutError::Disconnected) {
                spare = lines.write_out(spare, io::stderr().lock());
            }
            lines.write_out(spare, io::stderr().lock());
            drop(closed_at_the_end);
        };
        thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok(StderrWriter { lines: self.clone(), wake: Some(wake), finished })
    }

    /// Adds a line for people, even if the buffer is full: there are few of them.
    pub(crate) fn note(&self, text: impl Display) {
        self.buffer().push_line(&self.style.formatted(Level::INFO, text));
    }

    /// The lines that were not written out.
    #[cfg(test)]
    pub(crate) fn written(&self) -> String {
        String::from_utf8(self.buffer().text.clone()).unwrap()
    }

    /// Writes into the buffer: a separate line would cost each request an allocation and a copy.
    fn append(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = self.buffer();
        if buffer.is_closed {
            // No line follows the last one.
        } else if buffer.text.len() >= MOST_BYTES {
            buffer.dropped += 1;
        } else {
            write(&mut buffer.text);
        }
    }

    /// Writes the buffer, and returns an empty one for reuse. Lines that cannot be written are counted as dropped.
    fn write_out(&self, spare: Vec<u8>, mut to: impl io::Write) -> Vec<u8> {
        let (mut text, mut dropped) = {
            let mut buffer = self.buffer();
            (mem::replace(&mut buffer.text, spare), mem::take(&mut buffer.dropped))
        };
        let rest = unwritten(&text, &mut to);
        dropped += rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        if dropped > 0 {
            // Half a line may have been written.
            let begin = if rest.is_empty() { "" } else { "\n" };
            if write!(to, "{begin}{}", self.style.formatted(Level::WARN, DroppedLines(dropped))).is_err() {
                self.buffer().dropped += dropped;
            }
        }
        text.clear();
        text
    }

    fn buffer(&self) -> MutexGuard<'_, LineBuffer> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineBuffer {
    fn push_line(&mut self, line: &str) {
        if !self.is_closed {
            self.text.extend_from_slice(line.as_bytes());
        }
    }
}

/// The line with the count of dropped lines.
struct DroppedLines(u64);

impl Display for DroppedLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log: {} lines left out, stderr was not read in time", self.0)
    }
}

/// The rest that could not be written: on a non-blocking terminal, or a full disk.
fn unwritten<'t>(mut text: &'t [u8], to: &mut impl io::Write) -> &'t [u8] {
    while !text.is_empty() {
        match to.write(text) {
            Ok(0) => break,
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    text
}

impl StderrWriter {
    /// A handle that adds lines.
    pub(crate) fn lines(&self) -> LogLines {
        self.lines.clone()
    }

    /// Writes a line for people at once.
    pub(crate) fn note(&self, text: impl Display) {
        self.lines.note(text);
        self.wake();
    }

    /// Writes the last line; later lines are ignored.
    pub(crate) fn last_word(&self, level: Level, text: impl Display) {
        let style = self.lines.style;
        let mut buffer = self.lines.buffer();
        if buffer.dropped > 0 {
            let dropped = DroppedLines(mem::take(&mut buffer.dropped));
            buffer.push_line(&style.formatted(Level::WARN, dropped));
        }
        buffer.push_line(&style.formatted(level, text));
        buffer.is_closed = true;
        drop(buffer);
        self.wake();
    }

    fn wake(&self) {
        // A pending wake-up is enough.
        _ = self.wake.as_ref().map(|wake| wake.try_send(()));
    }
}

impl Drop for StderrWriter {
    fn drop(&mut self) {
        drop(self.wake.take());
        _ = self.finished.recv_timeout(LAST_WAIT);
    }
}

/// Hides the buffer.
impl fmt::Debug for LogLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLines")
    }
}

impl AccessSink for LogLines {
    fn put(&self, record: &AccessRecord<'_>) {
        self.append(|text| self.style.push(record, text));
    }
}

/// Writes a record of `tracing`; each write is a whole line.
pub(crate) struct RecordWriter<'l> {
    lines: &'l LogLines,
    /// The record is a text of several lines, such as a traceback.
    keeps_lines: bool,
}

impl io::Write for RecordWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.append(|text| log_text::push(line, self.lines.style, self.keeps_lines, text));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = RecordWriter<'a>;

    fn make_writer(&'a self) -> RecordWriter<'a> {
        RecordWriter { lines: self, keeps_lines: false }
    }

    fn make_writer_for(&'a self, record: &Metadata<'_>) -> RecordWriter<'a> {
        RecordWriter { lines: self, keeps_lines: keeps_lines(record) }
    }
}

/// Whether it is what a child says: a traceback is read by its lines.
#[cfg(feature = "process")]
fn keeps_lines(record: &Metadata<'_>) -> bool {
    record.target() == callboard_process::OUTPUT_TARGET
}

#[cfg(not(feature = "process"))]
fn keeps_lines(_: &Metadata<'_>) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_without_a_reader_are_dropped_and_counted() {
        let lines = LogLines::default();
        let line = vec![b'x'; MOST_BYTES / 2];
        for _ in 0..4 {
            lines.append(|text| text.extend_from_slice(&line));
        }
        let mut written = Vec::new();
        let spare = lines.write_out(Vec::new(), &mut written);
        assert!(written.len() > MOST_BYTES && written.ends_with(b"2 lines left out, stderr was not read in time\n"));
        lines.append(|text| text.extend_from_slice(b"again\n"));
        let mut written = Vec::new();
        lines.write_out(spare, &mut written);
        assert_eq!(written, b"again\n");
    }

    #[test]
    fn the_last_line_follows_all_lines_and_their_count() {
        let flushing = StderrWriter { lines: LogLines::default(), wake: None, finished: mpsc::channel().1 };
        flushing.lines.append(|text| text.resize(MOST_BYTES, b'x'));
        flushing.lines.append(|text| text.extend_from_slice(b"too much\n"));
        flushing.last_word(Level::INFO, "stopped");
        flushing.lines.append(|text| text.extend_from_slice(b"too late\n"));
        flushing.note("too late");
        let mut written = Vec::new();
        flushing.lines.write_out(Vec::new(), &mut written);
        let last_lines = String::from_utf8_lossy(&written[MOST_BYTES..]).into_owned();
        assert_eq!(last_lines, "log: 1 lines left out, stderr was not read in time\nstopped\n");
    }

    /// Accepts a number of bytes, and then refuses one write.
    struct LimitedWriter(Vec<u8>, usize);

    impl io::Write for LimitedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.1);
            if count == 0 {
                self.1 = usize::MAX;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.1 -= count;
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn unwritten_lines_are_counted_and_a_partial_line_is_ended() {
        let lines = LogLines::default();
        lines.append(|text| text.extend_from_slice(b"one\ntwo\nthree\n"));
        let mut limited = LimitedWriter(Vec::new(), 5);
        lines.write_out(Vec::new(), &mut limited);
        assert_eq!(limited.0, b"one\nt\nlog: 2 lines left out, stderr was not read in time\n");
    }
}
