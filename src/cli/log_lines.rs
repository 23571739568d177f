//! The way of log lines to stderr: they are gathered for a moment and written together, by a thread of its own.
//!
//! A write for every request would cost more than the request's own bookkeeping, and one that nobody reads would hold up the
//! thread that writes it: one of the runtime's, and with it the server. So the thread writes what has gathered, every [`PAUSE`] and once
//! more at the end. **Full**, because nobody reads stderr: lines are left out and counted, and the count is written when there is
//! room again; nobody waits for a line.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io, thread};

use callboard_http::{AccessRecord, AccessSink};
use tracing_subscriber::fmt::MakeWriter;

/// Short enough to look like at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Half a minute of a busy server.
const MOST_BYTES: usize = 8 << 20;

/// Where lines gather.
#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<Mutex<Gathered>>);

#[derive(Default)]
struct Gathered {
    text: Vec<u8>,
    left_out: u64,
}

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub(crate) struct Flushing {
    lines: LogLines,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl LogLines {
    /// Begins to write.
    pub(crate) fn flush_to_stderr(&self) -> io::Result<Flushing> {
        let lines = self.clone();
        let (stop, stopped) = mpsc::channel::<()>();
        let work = move || {
            let mut spare = Vec::new();
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(PAUSE) {
                spare = lines.write_out(spare, io::stderr().lock());
            }
            lines.write_out(spare, io::stderr().lock());
        };
        let thread = thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok(Flushing { lines: self.clone(), stop: Some(stop), thread: Some(thread) })
    }

    /// Straight into what gathers: a line by itself would be an allocation and a copy more for each request.
    fn append(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut gathered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if gathered.text.len() >= MOST_BYTES {
            gathered.left_out += 1;
        } else {
            write(&mut gathered.text);
        }
    }

    /// Writes what has gathered, and gives the empty buffer back for the next turn. If nobody can hear it, that is no reason
    /// to stop.
    fn write_out(&self, spare: Vec<u8>, mut to: impl io::Write) -> Vec<u8> {
        let gathered = Gathered { text: spare, left_out: 0 };
        let gathered = std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), gathered);
        _ = to.write_all(&gathered.text);
        if gathered.left_out > 0 {
            _ = writeln!(to, "log: {} lines left out, stderr was not read in time", gathered.left_out);
        }
        let mut text = gathered.text;
        text.clear();
        text
    }
}

impl Flushing {
    /// Where other lines may gather.
    pub(crate) fn lines(&self) -> LogLines {
        self.lines.clone()
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            _ = thread.join();
        }
    }
}

/// Without the text.
impl fmt::Debug for LogLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLines")
    }
}

impl AccessSink for LogLines {
    fn put(&self, record: &AccessRecord<'_>) {
        self.append(|text| record.write_line(text));
    }
}

/// All other lines: each comes whole.
impl io::Write for &LogLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.append(|text| text.extend_from_slice(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_reads_are_left_out_and_counted() {
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
}
