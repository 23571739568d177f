//! One child process: its start, its socket, its log lines, and its end.
//!
//! Two threads of this process belong to a child: one logs what the child prints, and one waits for its end. The child
//! and all processes of its group are killed when this is dropped.

use std::fmt::Display;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use callboard_core::{Failure, Replica, StageName, WorkerExit};
use parking_lot::Mutex;
use rustix::process::Pid;
use tracing::Level;

use crate::config::ProcessConfig;
use crate::devices::{only_device, why_lost};
use crate::exit;
use crate::fork_server::{ForkServer, ForkedChild};
use crate::log_limit::{ChildLogLimit, MAX_MESSAGE_CHARS, MAX_NAME_CHARS, OUTPUT_TARGET, both_ends, cut};
use crate::memory::{MemoryGroup, MemoryLimit, WatchedMemory, default_memory_limit};
use crate::message::LogMessage;
use crate::program::{self, END_GRACE, LastLines, Program};
use crate::socket::Inbox;
use crate::usage::UsageMeter;

/// A running child.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    group: Group,
    pub(crate) stream: BufReader<Inbox>,
    has_ended: Arc<AtomicBool>,
    ended: Mutex<Receiver<()>>,
    last_lines: LastLines,
    logged: Mutex<Receiver<()>>,
    log: Arc<ChildLog>,
    memory_limit: Option<u64>,
    meter: Arc<UsageMeter>,
    /// The memory that is measured, if no limit is set.
    watched: Option<WatchedMemory>,
    /// The only device that it sees, if there is one that NVML knows.
    device: Option<String>,
    /// Whether it has sent a message.
    pub(crate) has_spoken: bool,
    /// The reason for which it was killed.
    cause: Option<String>,
}

/// A child of this process, or of a fork server of this process, and all processes of its group. They are killed when
/// this is dropped.
#[derive(Debug)]
enum Group {
    Spawned(Program),
    Forked(ForkedChild),
}

impl ChildProcess {
    /// Starts the child of `replica`, with its socket as standard input. Forks it, where that is possible.
    pub(crate) fn start(config: &ProcessConfig, fork_server: &ForkServer, replica: &Replica) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let device = only_device(&config.env);
        if let Some(reason) = device.as_deref().and_then(why_lost) {
            return Err(config.not_started(&reason));
        }
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let ((lines, output), (end, at_end)) = (io::pipe().map_err(failed)?, io::pipe().map_err(failed)?);
        let has_ended = Arc::<AtomicBool>::default();
        let ((sender, ended), name) = (channel(), format!("{}-{}", replica.stage(), replica.index()));
        let tell = {
            let has_ended = Arc::clone(&has_ended);
            move || {
                has_ended.store(true, Ordering::SeqCst);
                let _ = sender.send(());
                drop(at_end);
            }
        };
        let group = match fork_server.fork(config.fork_target.as_deref(), replica, theirs.as_fd(), output.as_fd())? {
            Some(forked) => {
                // It has them.
                drop((theirs, output));
                forked.wait_on_thread(name, tell).map_err(failed)?;
                Group::Forked(forked)
            }
            None => {
                let wait = move |pid| {
                    program::wait(pid);
                    tell();
                };
                Group::Spawned(Program::start(
                    config,
                    &config.command,
                    (theirs.into(), output),
                    (name, replica.core()),
                    wait,
                )?)
            }
        };
        let log = Arc::new(ChildLog {
            stage: replica.stage().clone(),
            replica: replica.index(),
            limit: ChildLogLimit::default(),
        });
        let (of_lines, thread) = (Arc::clone(&log), format!("{}-{}-log", replica.stage(), replica.index()));
        let (last_lines, logged) =
            LastLines::read_on_thread(thread, lines, end, move |line| of_lines.printed(line)).map_err(failed)?;
        let stream = BufReader::new(Inbox::new(ours));
        let (pid, is_forked) = group.pid();
        let meter = Arc::new(UsageMeter::new(pid, is_forked, Arc::clone(&has_ended)));
        let measured = measured_limit(config, replica.count());
        let watched = measured.map(|limit| WatchedMemory::new(Arc::clone(&meter), limit));
        Ok(Self {
            group,
            stream,
            has_ended,
            ended: Mutex::new(ended),
            last_lines,
            logged: Mutex::new(logged),
            log,
            memory_limit: config.memory_limit.bytes(),
            meter,
            watched,
            device,
            has_spoken: false,
            cause: None,
        })
    }

    /// Whether the process has ended. Its socket may be open in another process that it has started.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Why the child is to end, if it holds too much memory, or its device is lost.
    pub(crate) fn why_to_end(&self, is_idle: bool) -> Option<String> {
        let excess = self.watched.as_ref().and_then(|watched| watched.excess(Instant::now(), is_idle));
        excess.or_else(|| why_lost(self.device.as_deref()?))
    }

    /// Measures what it uses.
    pub(crate) fn meter(&self) -> Arc<UsageMeter> {
        Arc::clone(&self.meter)
    }

    /// Logs a record of the child. `is_own` says whether it works on the call with this request id.
    pub(crate) fn log(&self, record: LogMessage, is_own: impl FnOnce(&str) -> bool) {
        self.log.record(record, is_own);
    }

    /// Logs what the node has to say about the child.
    pub(crate) fn log_note(&self, level: &str, message: String) {
        self.log.record(LogMessage { level: level.to_owned(), message, ..LogMessage::default() }, |_| true);
    }

    /// Logs a traceback of the child as one record.
    pub(crate) fn log_trace(&self, level: &str, trace: &str, request_id: Option<&str>) {
        let (message, request_id) = (both_ends(trace.trim_end(), MAX_MESSAGE_CHARS), request_id.map(str::to_owned));
        let record = LogMessage { level: level.to_owned(), message, request_id, ..LogMessage::default() };
        self.log.record(record, |_| true);
    }

    /// Logs what a start waits for.
    pub(crate) fn log_waiting(&self, waiting: impl Display) {
        self.log.warn(&waiting.to_string());
    }

    /// Logs how many lines were left out, if some were and there is room again.
    pub(crate) fn log_left_out(&self) {
        self.log.limit.tell_left_out(|words| self.log.warn(words));
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Pid {
        self.group.pid().0
    }

    /// Kills the child for a reason.
    pub(crate) fn kill_for(&mut self, cause: impl Into<String>) {
        self.cause = Some(cause.into());
        self.group.kill();
    }

    /// How the child has ended, or been ended. It has closed its socket, or was killed.
    pub(crate) fn exit(&mut self) -> WorkerExit {
        let reason = match self.cause.take() {
            Some(cause) => format!("the process was killed: {cause}"),
            None if self.has_ended_within(END_GRACE) => {
                let status = self.group.kill();
                let _ = self.logged.lock().recv_timeout(END_GRACE);
                let (limit, memory) = (self.memory_limit.unwrap_or_default(), self.group.memory());
                match (status, memory) {
                    (_, Some(memory)) if memory.was_exceeded() => {
                        format!("the process was killed by the kernel at its memory limit of {limit} bytes")
                    }
                    (None, _) => "the process ended with its fork server".to_owned(),
                    (Some(status), None) if limit > 0 && exit::lacked_memory(status, &self.last_lines) => {
                        let status = exit::describe(status);
                        format!("the process {status}; it has reached its memory limit of {limit} bytes")
                    }
                    (Some(status), _) => {
                        let said = self.last_lines.said().map(|said| format!(": {said}")).unwrap_or_default();
                        format!("the process {}{said}", exit::describe(status))
                    }
                }
            }
            None => "the process has closed its socket".to_owned(),
        };
        self.group.kill();
        WorkerExit::new(reason)
    }

    /// Waits for the end.
    pub(crate) fn has_ended_within(&self, timeout: Duration) -> bool {
        // Either it has ended, or its waiting thread has.
        let _ = self.ended.lock().recv_timeout(timeout);
        self.has_ended()
    }

    /// The last lines that an ended child printed.
    pub(crate) fn last_lines(&self) -> LastLines {
        let _ = self.logged.lock().recv_timeout(END_GRACE);
        self.last_lines.clone()
    }
}

/// The memory limit that is measured, of a child of a stage with this number of replicas.
fn measured_limit(config: &ProcessConfig, replicas: usize) -> Option<u64> {
    let children = replicas + usize::from(config.spare);
    if config.memory_limit == MemoryLimit::Share { default_memory_limit(children) } else { None }
}

/// The lines of a child.
#[derive(Debug)]
struct ChildLog {
    stage: StageName,
    replica: usize,
    limit: ChildLogLimit,
}

impl ChildLog {
    /// Writes a record. `is_own` is asked only for a record within the limit: the answer may take a while.
    fn record(&self, record: LogMessage, is_own: impl FnOnce(&str) -> bool) {
        let LogMessage { level, mut target, mut message, request_id } = record;
        let (stage, replica) = (self.stage.as_str(), self.replica);
        cut(&mut message, MAX_MESSAGE_CHARS);
        cut(&mut target, MAX_NAME_CHARS);
        let own_id = || {
            let mut id = request_id.filter(|id| is_own(id));
            id.iter_mut().for_each(|id| cut(id, MAX_NAME_CHARS));
            id
        };
        let (bytes, logger) = (message.len() + target.len(), Some(target).filter(|target| !target.is_empty()));
        macro_rules! write {
            ($level:expr) => {
                // A line that the filter drops does not count.
                if tracing::enabled!(target: OUTPUT_TARGET, $level) && self.is_admitted(bytes) {
                    let request_id = own_id();
                    tracing::event!(target: OUTPUT_TARGET, $level, stage, replica, logger, request_id, "{message}");
                }
            };
        }
        match &*level {
            "error" => write!(Level::ERROR),
            "warn" => write!(Level::WARN),
            "debug" => write!(Level::DEBUG),
            _ => write!(Level::INFO),
        }
    }

    /// Writes a line that was printed.
    fn printed(&self, line: &str) {
        let (stage, replica) = (self.stage.as_str(), self.replica);
        if tracing::enabled!(target: OUTPUT_TARGET, Level::INFO) && self.is_admitted(line.len()) {
            tracing::info!(target: OUTPUT_TARGET, stage, replica, "{line}");
        }
    }

    fn is_admitted(&self, bytes: usize) -> bool {
        self.limit.admits(bytes, |words| self.warn(words))
    }

    fn warn(&self, words: &str) {
        tracing::warn!(target: OUTPUT_TARGET, stage = self.stage.as_str(), replica = self.replica, "{words}");
    }
}

impl Drop for ChildLog {
    fn drop(&mut self) {
        self.limit.tell_at_end(|words| self.warn(words));
    }
}

impl Group {
    /// Kills the group and returns the child's status, if it is known.
    fn kill(&mut self) -> Option<ExitStatus> {
        match self {
            Self::Spawned(program) => program.kill(),
            Self::Forked(forked) => forked.kill(),
        }
    }

    /// The process, and whether it is forked from a process that lives on.
    fn pid(&self) -> (Pid, bool) {
        match self {
            Self::Spawned(program) => (program.pid(), false),
            Self::Forked(forked) => (forked.pid, true),
        }
    }

    fn memory(&self) -> Option<&MemoryGroup> {
        match self {
            Self::Spawned(program) => program.memory.as_ref(),
            Self::Forked(forked) => forked.memory.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests;
