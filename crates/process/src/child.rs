//! One child process: its start, its socket, its log lines, and its end.
//!
//! Three threads of this process belong to a child: the replica's own, which sends and receives frames, one that logs
//! what the child prints, and one that waits for its end. The child and all processes of its group are killed when this
//! is dropped.

use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use callboard_core::{ExitPort, Failure, Replica, WorkerExit};
use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::config::ProcessConfig;
use crate::exit;
use crate::socket::Inbox;

/// How often the thread that waits for a child looks at its batch: a caller that leaves is noticed within this time.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A child that has closed its socket ends within this time, or is killed. Its last lines are waited for as long.
const END_GRACE: Duration = Duration::from_millis(500);

/// The longest line of a child's output that is logged whole.
const MAX_LINE_BYTES: u64 = 8 * 1024;

/// A running child.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    group: ProcessGroup,
    pub(crate) stream: BufReader<Inbox>,
    life: Arc<Life>,
    ended: Receiver<()>,
    last_line: LastLine,
    logged: Receiver<()>,
    exit_port: ExitPort,
    /// What it was killed for.
    cause: Option<String>,
}

/// What the waiting thread and the replica's thread tell each other.
#[derive(Debug, Default)]
struct Life {
    has_ended: AtomicBool,
    /// Whether the replica's thread uses the child, and notices its end.
    is_busy: AtomicBool,
}

/// A child and all processes that it has started and that stay in its group.
#[derive(Debug)]
struct ProcessGroup {
    child: Child,
    status: Option<ExitStatus>,
}

/// What a child printed last.
#[derive(Clone, Debug, Default)]
struct LastLine(Arc<Mutex<Vec<u8>>>);

impl ChildProcess {
    /// Starts the child of `replica`, with its socket as standard input.
    pub(crate) fn start(config: &ProcessConfig, replica: &Replica) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::new(format!("`{}` cannot be started: {error}", config.shown()));
        let (program, arguments) =
            config.command.split_first().ok_or_else(|| Failure::new("the command of the stage is empty"))?;
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(TICK)).map_err(failed)?;
        ours.set_write_timeout(Some(TICK)).map_err(failed)?;
        let (lines, stdout) = io::pipe().map_err(failed)?;
        let stderr = stdout.try_clone().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(arguments).envs(&config.env);
        command.stdin(OwnedFd::from(theirs)).stdout(stdout).stderr(stderr).process_group(0);
        if let Some(directory) = &config.directory {
            command.current_dir(directory);
        }
        let group = ProcessGroup { child: command.spawn().map_err(failed)?, status: None };
        // The command holds the child's ends of socket and pipe.
        drop(command);
        if let Some(bytes) = config.memory_limit {
            limit_memory(group.pid(), bytes).map_err(failed)?;
        }
        let (life, exit_port) = (Arc::new(Life::default()), replica.exit_port());
        life.is_busy.store(true, Ordering::SeqCst);
        let (last_line, logged) = log_lines(lines, replica).map_err(failed)?;
        let ended = wait_for_end(group.pid(), exit_port.clone(), Arc::clone(&life)).map_err(failed)?;
        let stream = BufReader::new(Inbox::new(ours));
        Ok(Self { group, stream, life, ended, last_line, logged, exit_port, cause: None })
    }

    /// Says whether the replica's thread uses the child. The end of a child that is not used is reported at once.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.life.is_busy.store(is_busy, Ordering::SeqCst);
        // The waiting thread may have seen a busy child. A second report does nothing.
        if !is_busy && self.has_ended() {
            self.exit_port.report(&idle_end());
        }
    }

    /// Whether the process has ended. Its socket may be open in another process that it has started.
    pub(crate) fn has_ended(&self) -> bool {
        self.life.has_ended.load(Ordering::SeqCst)
    }

    /// Whether the callers of a running batch have been answered without it.
    pub(crate) fn is_given_up(&self) -> bool {
        self.exit_port.is_over()
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
                self.group.kill();
                let status = self.group.status;
                format!("the process {}", status.map_or_else(|| "ended".to_owned(), exit::describe))
            }
            None => "the process has closed its socket".to_owned(),
        };
        self.group.kill();
        WorkerExit::new(reason)
    }

    /// Waits for the end.
    pub(crate) fn has_ended_within(&self, timeout: Duration) -> bool {
        // Either it has ended, or its waiting thread has.
        let _ = self.ended.recv_timeout(timeout);
        self.has_ended()
    }

    /// What a child that has ended printed last.
    pub(crate) fn last_line(&self) -> Option<String> {
        let _ = self.logged.recv_timeout(END_GRACE);
        Some(String::from_utf8_lossy(&self.last_line.0.lock()).into_owned()).filter(|line| !line.is_empty())
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.life.is_busy.store(true, Ordering::SeqCst);
    }
}

impl ProcessGroup {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the group and takes the child's status. The number of the group is the child's own, and is not given to
    /// another process before that.
    fn kill(&mut self) {
        if self.status.is_none() {
            let _ = kill_process_group(self.pid(), Signal::KILL);
            self.status = self.child.wait().ok();
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

fn idle_end() -> WorkerExit {
    WorkerExit::new("its process ended while it had nothing to do")
}

#[cfg(target_os = "linux")]
fn limit_memory(pid: Pid, bytes: u64) -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, prlimit};
    prlimit(Some(pid), Resource::As, Rlimit { current: Some(bytes), maximum: Some(bytes) })?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn limit_memory(_: Pid, _: u64) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system has no memory limit for another process"))
}

/// Waits for the end of a child on a thread of its own, and leaves its status to be read.
fn wait_for_end(pid: Pid, exit_port: ExitPort, life: Arc<Life>) -> io::Result<Receiver<()>> {
    let (sender, ended) = channel();
    thread::Builder::new().name(format!("child-{}", pid.as_raw_nonzero())).spawn(move || {
        let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
        life.has_ended.store(true, Ordering::SeqCst);
        let _ = sender.send(());
        if !life.is_busy.load(Ordering::SeqCst) {
            exit_port.report(&idle_end());
        }
    })?;
    Ok(ended)
}

/// Logs all lines on a thread of its own, which ends with the last process that may print.
fn log_lines(lines: PipeReader, replica: &Replica) -> io::Result<(LastLine, Receiver<()>)> {
    let (stage, replica) = (replica.stage().clone(), replica.index());
    let (last, (sender, logged)) = (LastLine::default(), channel());
    let last_line = last.clone();
    thread::Builder::new().name(format!("{stage}-{replica}-log")).spawn(move || {
        let _ended: Sender<()> = sender;
        let (mut lines, mut line) = (BufReader::new(lines), Vec::new());
        while lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = line.trim_ascii_end();
            tracing::info!(%stage, replica, "{}", String::from_utf8_lossy(text));
            *last.0.lock() = text.to_vec();
            line.clear();
        }
    })?;
    Ok((last_line, logged))
}
