//! One child process: its start, its socket, its log lines, and its end.
//!
//! Two threads of this process belong to a child: one logs what the child prints, and one waits for its end. The child
//! and all processes of its group are killed when this is dropped.

use std::io::{self, BufReader, PipeReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use callboard_core::{Failure, Replica, StageName, WorkerExit};
use parking_lot::Mutex;

use crate::config::ProcessConfig;
use crate::exit;
use crate::fork_server::{ForkServer, Forked};
use crate::memory::MemoryGroup;
use crate::program::{self, END_GRACE, LastLines, Program};
use crate::socket::Inbox;

/// The most characters of a record in the log.
const MAX_LOG_CHARS: usize = 8_000;

/// A running child.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    group: Group,
    pub(crate) stream: BufReader<Inbox>,
    has_ended: Arc<AtomicBool>,
    ended: Mutex<Receiver<()>>,
    last_lines: LastLines,
    logged: Mutex<Receiver<()>>,
    stage: StageName,
    replica: usize,
    memory_limit: Option<u64>,
    /// Whether it has sent a message.
    pub(crate) has_spoken: bool,
    /// What it was killed for.
    cause: Option<String>,
}

/// A child of this process, or of a fork server of this process, and all processes of its group. They are killed when
/// this is dropped.
#[derive(Debug)]
enum Group {
    Spawned(Program),
    Forked(Forked),
}

impl ChildProcess {
    /// Starts the child of `replica`, with its socket as standard input. Forks it, where that is possible.
    pub(crate) fn start(config: &ProcessConfig, fork_server: &ForkServer, replica: &Replica) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_nonblocking(true).map_err(failed)?;
        let (lines, output) = io::pipe().map_err(failed)?;
        let has_ended = Arc::<AtomicBool>::default();
        let ((sender, ended), name) = (channel(), format!("{}-{}", replica.stage(), replica.index()));
        let tell = {
            let has_ended = Arc::clone(&has_ended);
            move || {
                has_ended.store(true, Ordering::SeqCst);
                let _ = sender.send(());
            }
        };
        let group = match fork_server.fork(replica, theirs.as_fd(), output.as_fd())? {
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
        let (last_lines, logged) = log_lines(lines, replica).map_err(failed)?;
        let stream = BufReader::new(Inbox::new(ours));
        let (stage, replica) = (replica.stage().clone(), replica.index());
        Ok(Self {
            group,
            stream,
            has_ended,
            ended: Mutex::new(ended),
            last_lines,
            logged: Mutex::new(logged),
            stage,
            replica,
            memory_limit: config.memory_limit,
            has_spoken: false,
            cause: None,
        })
    }

    /// Whether the process has ended. Its socket may be open in another process that it has started.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Logs a record of the child.
    pub(crate) fn log(&self, level: &str, target: &str, mut message: String, request_id: Option<&str>) {
        if let Some((end, _)) = message.char_indices().nth(MAX_LOG_CHARS) {
            message.truncate(end);
        }
        let (stage, replica) = (self.stage.as_str(), self.replica);
        match level {
            "error" => tracing::error!(stage, replica, logger = target, request_id, "{message}"),
            "warn" => tracing::warn!(stage, replica, logger = target, request_id, "{message}"),
            "debug" => tracing::debug!(stage, replica, logger = target, request_id, "{message}"),
            _ => tracing::info!(stage, replica, logger = target, request_id, "{message}"),
        }
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
                    (Some(status), _) => format!("the process {}", exit::describe(status)),
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

    /// What a child that has ended printed last.
    pub(crate) fn last_lines(&self) -> LastLines {
        let _ = self.logged.lock().recv_timeout(END_GRACE);
        self.last_lines.clone()
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

    fn memory(&self) -> Option<&MemoryGroup> {
        match self {
            Self::Spawned(program) => program.memory.as_ref(),
            Self::Forked(forked) => forked.memory.as_ref(),
        }
    }
}

/// Logs all lines on a thread of its own, which ends with the last process that may print.
fn log_lines(lines: PipeReader, replica: &Replica) -> io::Result<(LastLines, Receiver<()>)> {
    let (stage, replica) = (replica.stage().clone(), replica.index());
    let (last, (sender, logged)) = (LastLines::default(), channel());
    let last_lines = last.clone();
    thread::Builder::new().name(format!("{stage}-{replica}-log")).spawn(move || {
        let _ended: Sender<()> = sender;
        last.read(lines, |line| tracing::info!(%stage, replica, "{line}"));
    })?;
    Ok((last_lines, logged))
}
