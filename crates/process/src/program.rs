//! A program that this process starts, in a group of its own: its limits, its lines and its end.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use callboard_core::Failure;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::config::ProcessConfig;
use crate::environment::child_command;
use crate::memory::{self, MemoryGroup};

/// A process that has closed its socket ends within this time, or is killed. Its last lines are waited for as long.
pub(crate) const END_GRACE: Duration = Duration::from_millis(500);

/// The longest line of output that is logged whole.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// How long descendants of an ended process may print. Then the pipe and the thread that reads it end.
const LEFT_BEHIND: Duration = Duration::from_secs(2);

/// Names the stage of a replica. Variables that begin with `CALLBOARD_` are settings.
pub(crate) const STAGE_VARIABLE: &str = "_CALLBOARD_REPLICA_OF";

/// Tells a process that it is a guard.
pub(crate) const GUARD_VARIABLE: &str = "_CALLBOARD_GUARD";

/// A process and all processes that it has started and that stay in its group. They are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    status: Option<ExitStatus>,
    pub(crate) memory: Option<MemoryGroup>,
}

/// The lines of a process that are kept: a runtime prints notes after its last words.
const KEPT_LINES: usize = 10;

/// How the last line of a worker begins that ends itself, such as by `sys.exit` in user code.
const LAST_WORDS: [&str; 2] = ["callboard.worker: ", "callboard.hooks: "];

/// The most characters of each of them in an error.
const KEPT_LINE_CHARS: usize = 400;

/// The last lines that a process printed.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastLines(Arc<Mutex<VecDeque<String>>>);

impl Program {
    /// Starts a program on a thread that lives as long as its process: Linux ends a process that asks for it with the
    /// thread that has started it. `wait` runs there, and is to wait for the end.
    pub(crate) fn start(
        config: &ProcessConfig,
        command: &[OsString],
        (input, output): (OwnedFd, PipeWriter),
        (thread, core): (String, Option<usize>),
        wait: impl FnOnce(Pid) + Send + 'static,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let (sender, started) = channel();
        let (own, command) = (config.clone(), command.to_vec());
        let thread = thread::Builder::new().name(thread).spawn(move || {
            // A process has the processors of the thread that starts it.
            let cores = own.replica_cores.first().cloned().unwrap_or_else(|| core.into_iter().collect());
            let pinned = processors::pin(None, &cores).map_err(|reason| Failure::new(format!("affinity: {reason}")));
            let program = pinned.and_then(|()| Self::spawn(&own, &command, input, output));
            let pid = program.as_ref().ok().map(Self::pid);
            if sender.send(program).is_ok() {
                let _ = pid.map(wait);
            }
        });
        thread.map_err(failed)?;
        started.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?
    }

    fn spawn(
        config: &ProcessConfig,
        command: &[OsString],
        input: OwnedFd,
        output: PipeWriter,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let (program, arguments) =
            command.split_first().ok_or_else(|| Failure::new("the command of the stage is empty"))?;
        let mut command = child_command(program);
        command.args(arguments).envs(&config.env);
        if let Some(name) = &config.name {
            command.arg0(name);
        }
        command.stdout(output.try_clone().map_err(failed)?).stdin(input).stderr(output).process_group(0);
        if let Some(directory) = &config.directory {
            command.current_dir(directory);
        }
        let mut program = Self { child: command.spawn().map_err(failed)?, status: None, memory: None };
        program.memory = memory::limit(program.pid(), config.memory_limit).map_err(failed)?;
        Ok(program)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the group and takes the status of the process. The number of the group is the process's own, and is not
    /// given to another one before that.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            self.status = self.child.wait().ok();
        }
        self.status
    }

    /// Whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        self.status.is_some() || !matches!(retry_on_intr(|| waitid(WaitId::Pid(self.pid()), options)), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

impl LastLines {
    /// Reads lines on a thread of its own, as [`read`](Self::read) does. The receiver is closed when it ends, after
    /// `log` was dropped.
    pub(crate) fn read_on_thread(
        thread: String,
        lines: PipeReader,
        end: PipeReader,
        log: impl FnMut(&str) + Send + 'static,
    ) -> io::Result<(Self, Receiver<()>)> {
        let (last, (sender, read)) = (Self::default(), channel());
        let last_lines = last.clone();
        thread::Builder::new().name(thread).spawn(move || {
            let _ended: Sender<()> = sender;
            last.read(lines, &end, log);
        })?;
        Ok((last_lines, read))
    }

    /// Reads lines until the last process that may print ends. `end` closes with the first process: its descendants are
    /// read for [`LEFT_BEHIND`] more. A stack of Rust or JavaScript is logged only: it would push
    /// out the message before it.
    pub(crate) fn read(&self, mut lines: PipeReader, end: &PipeReader, mut log: impl FnMut(&str)) {
        let (mut buffer, mut line, mut last) = ([0; 4096], Vec::new(), None);
        while is_readable(&lines, end, &mut last) {
            let Ok(bytes @ 1..) = lines.read(&mut buffer) else { break };
            for piece in buffer[..bytes].split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(piece);
                if piece.ends_with(b"\n") || line.len() >= MAX_LINE_BYTES {
                    self.take(&line, &mut log);
                    line.clear();
                }
            }
        }
        if !line.is_empty() {
            self.take(&line, &mut log);
        }
    }

    fn take(&self, line: &[u8], log: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
        log(&text);
        if !is_stack_frame(&text) {
            let mut kept = self.0.lock();
            if kept.len() == KEPT_LINES {
                kept.pop_front();
            }
            kept.push_back(text);
        }
    }

    /// The last line, unless it is empty.
    pub(crate) fn text(&self) -> Option<String> {
        self.0.lock().back().filter(|line| !line.is_empty()).cloned()
    }

    /// Why a worker or the process of the hooks ends itself, if its last line says so.
    pub(crate) fn said(&self) -> Option<String> {
        let last = self.text()?;
        let said = LAST_WORDS.iter().find_map(|words| last.strip_prefix(words))?;
        Some(said.chars().take(KEPT_LINE_CHARS).collect())
    }

    /// All lines that are kept, for an error.
    pub(crate) fn all(&self) -> String {
        let shortened = |line: &String| line.chars().take(KEPT_LINE_CHARS).collect::<String>();
        let lines: Vec<String> = self.0.lock().iter().map(shortened).collect();
        if lines.is_empty() {
            "it has printed nothing".to_owned()
        } else {
            format!("its last lines: {}", lines.join(" | "))
        }
    }

    /// Whether one of the last lines has one of these words.
    pub(crate) fn say(&self, words: &[&str]) -> bool {
        self.0.lock().iter().any(|line| words.iter().any(|word| line.contains(word)))
    }
}

/// Waits until there is something to read, or the end of it. `last` is when it does not wait any more, set at `end`.
fn is_readable(lines: &PipeReader, end: &PipeReader, last: &mut Option<Instant>) -> bool {
    loop {
        let left = last.map(|last| last.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        let mut pipes = [PollFd::new(lines, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
        let count = if last.is_some() { 1 } else { pipes.len() };
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        if retry_on_intr(|| poll(&mut pipes[..count], left.as_ref())).is_err() {
            return false;
        }
        if !pipes[1].revents().is_empty() && last.is_none() {
            *last = Some(Instant::now() + LEFT_BEHIND);
        }
        if !pipes[0].revents().is_empty() {
            return true;
        }
    }
}

/// `  12: name` and `      at file.rs:3:4`.
fn is_stack_frame(line: &str) -> bool {
    let text = line.trim_start();
    let after_number = text.trim_start_matches(|c: char| c.is_ascii_digit());
    text.len() < line.len()
        && (text.starts_with("at ") || after_number.len() < text.len() && after_number.starts_with(": "))
}

#[cfg(target_os = "linux")]
pub(crate) mod processors {
    use rustix::process::Pid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// Lets a process, or this thread, run on these cores only; without any, on all. Says which core is missing.
    pub(crate) fn pin(pid: Option<Pid>, cores: &[usize]) -> Result<(), String> {
        if cores.is_empty() {
            return Ok(());
        }
        let mut wanted = CpuSet::new();
        cores.iter().filter(|core| **core < CpuSet::MAX_CPU).for_each(|core| wanted.set(*core));
        // The system takes a set of which it has one core.
        let set = sched_setaffinity(pid, &wanted).and_then(|()| sched_getaffinity(pid));
        has_all(set.ok(), cores)
    }

    /// Checks that this process has these cores.
    ///
    /// # Errors
    ///
    /// The first one that it does not have.
    pub fn check(cores: &[usize]) -> Result<(), String> {
        if cores.is_empty() { Ok(()) } else { has_all(sched_getaffinity(None).ok(), cores) }
    }

    fn has_all(set: Option<CpuSet>, cores: &[usize]) -> Result<(), String> {
        let has = |own: &CpuSet, core: usize| core < CpuSet::MAX_CPU && own.is_set(core);
        let missing = cores.iter().find(|core| !set.is_some_and(|set| has(&set, **core)));
        missing.map_or(Ok(()), |core| {
            let may = sched_getaffinity(None).unwrap_or_default();
            let may = (0..CpuSet::MAX_CPU).filter(|core| has(&may, *core)).map(|core| core.to_string());
            let may = may.collect::<Vec<_>>().join(", ");
            Err(format!("core {core} is not there, or not for this process, which has {may}"))
        })
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) mod processors {
    use rustix::process::Pid;

    pub(crate) fn pin(_: Option<Pid>, cores: &[usize]) -> Result<(), String> {
        check(cores)
    }

    /// Checks that there are no cores to give.
    ///
    /// # Errors
    ///
    /// There are some.
    pub fn check(cores: &[usize]) -> Result<(), String> {
        if cores.is_empty() { Ok(()) } else { Err("this system gives no cores to a process".to_owned()) }
    }
}

/// Waits for the end of a child of this process, and leaves its status to be read.
pub(crate) fn wait(pid: Pid) {
    let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// What is kept and logged of a process that prints this and ends.
    fn printed(text: &[u8]) -> (LastLines, Vec<String>) {
        let (lines, (reading, mut writing), mut logged) = (LastLines::default(), io::pipe().unwrap(), Vec::new());
        writing.write_all(text).unwrap();
        drop(writing);
        lines.read(reading, &io::pipe().unwrap().0, |line| logged.push(line.to_owned()));
        (lines, logged)
    }

    #[test]
    fn a_long_line_is_logged_in_pieces() {
        let line = |bytes: usize| [&vec![b'x'; bytes][..], b"\nend"].concat();
        let lengths = |bytes: usize| printed(&line(bytes)).1.iter().map(String::len).collect::<Vec<_>>();
        assert_eq!(lengths(MAX_LINE_BYTES - 1), [MAX_LINE_BYTES - 1, 3]);
        // The line feed comes with the next read.
        assert_eq!(lengths(MAX_LINE_BYTES), [MAX_LINE_BYTES, 0, 3]);
        assert_eq!(printed(b"a\r\n\xff\n\n").1, ["a", "\u{fffd}", ""]);
        assert_eq!(printed(b"").1, Vec::<String>::new());
    }

    #[test]
    fn the_last_ten_lines_are_kept_without_stacks() {
        let text: String = (0..12).map(|number| format!("line {number}\n  3: frame\n    at a.rs:1:2\n")).collect();
        let (lines, logged) = printed(text.as_bytes());
        assert_eq!(logged.len(), 36);
        let kept: Vec<_> = (2..12).map(|number| format!("line {number}")).collect();
        assert_eq!(lines.all(), format!("its last lines: {}", kept.join(" | ")));
        assert!(lines.say(&["none", "line 2"]) && !lines.say(&["line 1 ", "frame"]) && !lines.say(&[]));
        assert_eq!((lines.text().as_deref(), lines.said()), (Some("line 11"), None));
        assert_eq!(printed(b"").0.all(), "it has printed nothing");
    }

    #[test]
    fn a_worker_that_ends_itself_says_why_in_its_last_line() {
        let said = |text: &str| printed(text.as_bytes()).0.said();
        assert_eq!(said("callboard.worker: SystemExit: 3\n"), Some("SystemExit: 3".to_owned()));
        assert_eq!(said("callboard.hooks: no port"), Some("no port".to_owned()));
        let long = format!("callboard.worker: {}\n", "x".repeat(1000));
        assert_eq!(said(&long), Some("x".repeat(KEPT_LINE_CHARS)));
        for other in ["callboard.worker: a\nmore\n", "callboard.worker: a\n\n", "", "other: a\n"] {
            assert_eq!(said(other), None, "{other}");
        }
        assert_eq!(printed(b"a\n\n").0.text(), None);
    }

    #[test]
    fn frames_of_a_stack_are_known_by_their_form() {
        for frame in ["  12: name", "      at file.rs:3:4", " 0: a"] {
            assert!(is_stack_frame(frame), "{frame}");
        }
        for line in ["12: name", "at file.rs:3:4", "  name", "  12 name", "  : name", "", "  "] {
            assert!(!is_stack_frame(line), "{line}");
        }
    }

    /// Its descendants keep the pipe.
    #[test]
    fn lines_are_read_until_some_time_after_the_end_of_the_process() {
        let (lines, (reading, mut writing), (end, at_end)) =
            (LastLines::default(), io::pipe().unwrap(), io::pipe().unwrap());
        writing.write_all(b"one\ntwo").unwrap();
        drop(at_end);
        let (begin, mut logged) = (Instant::now(), Vec::new());
        lines.read(reading, &end, |line| logged.push(line.to_owned()));
        assert!(begin.elapsed() >= LEFT_BEHIND, "a descendant may print");
        assert_eq!(logged, ["one", "two"]);
        drop(writing);
    }

    #[test]
    fn a_line_is_awaited_without_a_limit_until_the_end() {
        let ((lines, mut writing), (end, at_end), mut last) = (io::pipe().unwrap(), io::pipe().unwrap(), None);
        writing.write_all(b"x").unwrap();
        assert!(is_readable(&lines, &end, &mut last) && last.is_none());
        drop(at_end);
        assert!(is_readable(&lines, &end, &mut last) && last.is_some(), "what it has printed is read");
        last = Some(Instant::now());
        assert!(!is_readable(&lines, &end, &mut last));
    }

    #[test]
    fn a_process_has_ended_before_its_status_is_read_and_is_killed_when_it_is_dropped() {
        let start = |script: &str| {
            let config = ProcessConfig {
                memory_limit: memory::MemoryLimit::Unlimited,
                ..ProcessConfig::new(["sh", "-c", script])
            };
            let ((input, output), (ended, end)) = ((io::pipe().unwrap().0, io::pipe().unwrap().1), channel());
            let waits = move |pid: Pid| {
                wait(pid);
                ended.send(()).unwrap();
            };
            let of_thread = ("test".to_owned(), None);
            (Program::start(&config, &config.command, (input.into(), output), of_thread, waits).unwrap(), end)
        };
        let (program, end) = start("exit 3");
        assert_eq!(end.recv_timeout(Duration::from_secs(10)), Ok(()));
        assert!(program.has_ended());
        let (program, end) = start("exec sleep 1000");
        assert!(!program.has_ended());
        drop(program);
        assert_eq!(end.recv_timeout(Duration::from_secs(10)), Ok(()));
    }

    #[test]
    fn a_process_is_killed_once_and_keeps_its_status() {
        let config =
            ProcessConfig { memory_limit: memory::MemoryLimit::Unlimited, ..ProcessConfig::new(["sleep", "1000"]) };
        let (input, output) = (io::pipe().unwrap().0, io::pipe().unwrap().1);
        let of_thread = ("test".to_owned(), None);
        let (ended, end) = channel();
        let waits = move |pid: Pid| {
            wait(pid);
            ended.send(pid).unwrap();
        };
        let mut program = Program::start(&config, &config.command, (input.into(), output), of_thread, waits).unwrap();
        assert!(!program.has_ended());
        let status = program.kill();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status.unwrap()), Some(9));
        assert_eq!(end.recv_timeout(Duration::from_secs(10)), Ok(program.pid()));
        assert!(program.has_ended() && program.kill() == status);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_core_that_is_not_there_is_named() {
        assert_eq!((processors::check(&[]), processors::pin(None, &[])), (Ok(()), Ok(())));
        for core in [100_000, 1024, 1023] {
            let expected = format!("core {core} is not there, or not for this process, which has ");
            assert!(processors::check(&[core]).unwrap_err().starts_with(&expected));
            let pinned = thread::spawn(move || processors::pin(None, &[core])).join().unwrap();
            assert!(pinned.unwrap_err().starts_with(&expected));
        }
        let own = processors::check(&[1023]).unwrap_err();
        let own: Vec<usize> =
            own.rsplit_once("has ").unwrap().1.split(", ").map(|core| core.parse().unwrap()).collect();
        assert_eq!(processors::check(&own), Ok(()));
        let pinned = thread::spawn(move || (processors::pin(None, &own[..1]), processors::check(&own), own.len()));
        let (pinned, checked, count) = pinned.join().unwrap();
        assert_eq!((pinned, checked.is_ok()), (Ok(()), count == 1), "this thread has one core from then on");
    }
}
