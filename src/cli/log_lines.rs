//! The way of log lines to stderr: they are gathered for a moment and written together, by a thread of its own.
//!
//! A write for every request would cost more than the request's own bookkeeping, and one that nobody reads would hold up the
//! thread that writes it: one of the runtime's, and with it the server. So the thread writes what has gathered, every [`PAUSE`] and once
//! more at the end. What a server says to people goes the same way, or its end would wait for a reader. **Full**, because nobody
//! reads stderr: lines are left out and counted, and the count is written when there is room again; nobody waits for a line.
//! **At the end** the process waits [`LAST_WAIT`] for the thread, and leaves it behind where it still writes then.

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use callboard_http::{AccessRecord, AccessSink};
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;

use super::log_style::LogStyle;

/// Short enough to look like at once.
const PAUSE: Duration = Duration::from_millis(50);

/// Some 30,000 lines: a second and a half of a busy server.
const MOST_BYTES: usize = 8 << 20;

/// Who reads has read it all long before; who does not should not hold up the end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Where lines gather.
#[derive(Clone, Default)]
pub(crate) struct LogLines {
    gathered: Arc<Mutex<Gathered>>,
    style: LogStyle,
}

#[derive(Default)]
struct Gathered {
    text: Vec<u8>,
    left_out: u64,
    /// The last word is said: nothing comes behind it.
    is_over: bool,
}

/// Writes what is left when it is dropped.
#[derive(Debug)]
pub(crate) struct Flushing {
    lines: LogLines,
    /// A message wakes the thread; that there is no sender any more ends it.
    wake: Option<mpsc::SyncSender<()>>,
    /// Closed by the thread at its end.
    done: mpsc::Receiver<Infallible>,
}

impl LogLines {
    /// None yet.
    pub(crate) fn new(style: LogStyle) -> Self {
        Self { style, ..Self::default() }
    }

    /// Begins to write.
    pub(crate) fn flush_to_stderr(&self) -> io::Result<Flushing> {
        let lines = self.clone();
        let (wake, woken) = mpsc::sync_channel(1);
        let (closed_at_the_end, done) = mpsc::channel();
        let work = move || {
            let mut spare = Vec::new();
            while woken.recv_timeout(PAUSE) != Err(RecvTimeoutError::Disconnected) {
                spare = lines.write_out(spare, io::stderr().lock());
            }
            lines.write_out(spare, io::stderr().lock());
            drop(closed_at_the_end);
        };
        thread::Builder::new().name("log".to_owned()).spawn(work)?;
        Ok(Flushing { lines: self.clone(), wake: Some(wake), done })
    }

    /// What people should know. It comes also where there is no more room for lines: there are few of them.
    pub(crate) fn note(&self, text: impl Display) {
        self.gathered().say(&self.style.told(Level::INFO, text));
    }

    /// Straight into what gathers: a line by itself would be an allocation and a copy more for each request.
    fn append(&self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut gathered = self.gathered();
        if gathered.is_over {
            // Nobody looks for a line behind the last one.
        } else if gathered.text.len() >= MOST_BYTES {
            gathered.left_out += 1;
        } else {
            write(&mut gathered.text);
        }
    }

    /// Writes what has gathered, and gives the empty buffer back for the next turn. If nobody can hear it, that is no reason
    /// to stop: what could not be written is left out as well.
    fn write_out(&self, spare: Vec<u8>, mut to: impl io::Write) -> Vec<u8> {
        let (mut text, mut left_out) = {
            let mut gathered = self.gathered();
            (mem::replace(&mut gathered.text, spare), mem::take(&mut gathered.left_out))
        };
        let rest = unwritten(&text, &mut to);
        left_out += rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        if left_out > 0 {
            // Half a line may stand there.
            let begin = if rest.is_empty() { "" } else { "\n" };
            if write!(to, "{begin}{}", self.style.told(Level::WARN, LeftOut(left_out))).is_err() {
                self.gathered().left_out += left_out;
            }
        }
        text.clear();
        text
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gathered {
    fn say(&mut self, line: &str) {
        if !self.is_over {
            self.text.extend_from_slice(line.as_bytes());
        }
    }
}

/// The count of the lines that are missing, as a line.
struct LeftOut(u64);

impl Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log: {} lines left out, stderr was not read in time", self.0)
    }
}

/// What could not be written: on a terminal that does not block, on a full disk.
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

impl Flushing {
    /// Where other lines may gather.
    pub(crate) fn lines(&self) -> LogLines {
        self.lines.clone()
    }

    /// Tells people something, at once.
    pub(crate) fn note(&self, text: impl Display) {
        self.lines.note(text);
        self.wake();
    }

    /// Says why or how it ends. What still runs is not heard any more.
    pub(crate) fn last_word(&self, level: Level, text: impl Display) {
        let style = self.lines.style;
        let mut gathered = self.lines.gathered();
        if gathered.left_out > 0 {
            let left_out = LeftOut(mem::take(&mut gathered.left_out));
            gathered.say(&style.told(Level::WARN, left_out));
        }
        gathered.say(&style.told(level, text));
        gathered.is_over = true;
        drop(gathered);
        self.wake();
    }

    fn wake(&self) {
        // One that waits already is as good.
        _ = self.wake.as_ref().map(|wake| wake.try_send(()));
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        drop(self.wake.take());
        _ = self.done.recv_timeout(LAST_WAIT);
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
        self.append(|text| self.style.push(record, text));
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

    #[test]
    fn the_last_word_comes_behind_all_lines_and_their_count() {
        let flushing = Flushing { lines: LogLines::default(), wake: None, done: mpsc::channel().1 };
        flushing.lines.append(|text| text.resize(MOST_BYTES, b'x'));
        flushing.lines.append(|text| text.extend_from_slice(b"too much\n"));
        flushing.last_word(Level::INFO, "stopped");
        flushing.lines.append(|text| text.extend_from_slice(b"too late\n"));
        flushing.note("too late");
        let mut written = Vec::new();
        flushing.lines.write_out(Vec::new(), &mut written);
        let tail = String::from_utf8_lossy(&written[MOST_BYTES..]).into_owned();
        assert_eq!(tail, "log: 1 lines left out, stderr was not read in time\nstopped\n");
    }

    /// Takes so many bytes and then, for one write, none.
    struct Narrow(Vec<u8>, usize);

    impl io::Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.1);
            if taken == 0 {
                self.1 = usize::MAX;
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.1 -= taken;
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_could_not_be_written_are_counted_and_half_a_line_is_ended() {
        let lines = LogLines::default();
        lines.append(|text| text.extend_from_slice(b"one\ntwo\nthree\n"));
        let mut narrow = Narrow(Vec::new(), 5);
        lines.write_out(Vec::new(), &mut narrow);
        assert_eq!(narrow.0, b"one\nt\nlog: 2 lines left out, stderr was not read in time\n");
    }
}
