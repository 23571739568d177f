//! One child process: its start, its socket, its log lines, and its end.
//!
//! Three threads of this process belong to a child: the replica's own, which sends and receives frames, one that logs
//! what the child prints, and one that waits for its end. The child and all processes of its group are killed when this
//! is dropped.

use std::io::{self, BufReader, PipeReader};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use callboard_core::{ExitPort, Failure, Replica, WorkerExit};

use crate::config::ProcessConfig;
use crate::exit;
use crate::fork_server::{ForkServer, Forked};
use crate::program::{self, END_GRACE, LastLine, Program};
use crate::socket::Inbox;

/// How often the thread that waits for a child looks at its batch: a caller that leaves is noticed within this time.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A running child.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    group: Group,
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
        ours.set_read_timeout(Some(TICK)).map_err(failed)?;
        ours.set_write_timeout(Some(TICK)).map_err(failed)?;
        let (lines, output) = io::pipe().map_err(failed)?;
        let (life, exit_port) = (Arc::new(Life::default()), replica.exit_port());
        life.is_busy.store(true, Ordering::SeqCst);
        let ((sender, ended), name) = (channel(), format!("{}-{}", replica.stage(), replica.index()));
        let tell = {
            let (life, exit_port) = (Arc::clone(&life), exit_port.clone());
            move || {
                life.has_ended.store(true, Ordering::SeqCst);
                let _ = sender.send(());
                if !life.is_busy.load(Ordering::SeqCst) {
                    exit_port.report(&idle_end());
                }
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
                Group::Spawned(Program::start(config, &config.command, (theirs.into(), output), name, wait)?)
            }
        };
        let (last_line, logged) = log_lines(lines, replica).map_err(failed)?;
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
                let status = self.group.kill();
                format!(
                    "the process {}",
                    status.map_or_else(|| "ended with its fork server".to_owned(), exit::describe)
                )
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
        self.last_line.text()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.life.is_busy.store(true, Ordering::SeqCst);
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
}

fn idle_end() -> WorkerExit {
    WorkerExit::new("its process ended while it had nothing to do")
}

/// Logs all lines on a thread of its own, which ends with the last process that may print.
fn log_lines(lines: PipeReader, replica: &Replica) -> io::Result<(LastLine, Receiver<()>)> {
    let (stage, replica) = (replica.stage().clone(), replica.index());
    let (last, (sender, logged)) = (LastLine::default(), channel());
    let last_line = last.clone();
    thread::Builder::new().name(format!("{stage}-{replica}-log")).spawn(move || {
        let _ended: Sender<()> = sender;
        last.read(lines, |line| tracing::info!(%stage, replica, "{line}"));
    })?;
    Ok((last_line, logged))
}
