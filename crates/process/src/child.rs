//! One child process: its start, its socket, its log lines, and its end.
//!
//! Three threads of this process belong to a child: the replica's own, which sends and receives frames, one that logs
//! what the child prints, and one that waits for its end. The child and all processes that it has started are killed
//! when this is dropped.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, PipeReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use callboard_core::{ExitPort, Failure, Replica, WorkerExit};
use parking_lot::Mutex;
use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit, waitid};

use crate::config::ProcessConfig;
use crate::exit;

/// How often the thread that waits for a child looks at its batch: a caller that leaves is noticed within this time.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A child that has closed its socket ends within this time, or is killed.
const END_GRACE: Duration = Duration::from_millis(500);

/// The longest line of a child's output that is logged whole.
const MAX_LINE_BYTES: u64 = 8 * 1024;

/// The lines that an error shows.
const LAST_LINES: usize = 20;

/// A running child.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    pub(crate) stream: BufReader<UnixStream>,
    ended: Receiver<()>,
    output: Output,
    /// Whether the child is no longer of interest while it has no batch: it is being used, or it shall end.
    is_expected: Arc<AtomicBool>,
    /// What it was killed for.
    cause: Option<String>,
}

/// What a child printed last.
#[derive(Clone, Debug, Default)]
struct Output(Arc<Mutex<VecDeque<String>>>);

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
        let child = command.spawn().map_err(failed)?;
        // The command holds the child's ends of socket and pipe.
        drop(command);
        if let Some(bytes) = config.memory_limit {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            prlimit(Some(pid(&child)), Resource::As, limit).map_err(|error| failed(error.into()))?;
        }
        let output = Output::default();
        output.clone().log(lines, replica).map_err(failed)?;
        let is_expected = Arc::new(AtomicBool::new(true));
        let ended = wait_for_end(&child, replica.exit_port(), Arc::clone(&is_expected)).map_err(failed)?;
        Ok(Self { child, stream: BufReader::new(ours), ended, output, is_expected, cause: None })
    }

    /// Says whether the child has something to do. The end of an idle child is reported at once.
    pub(crate) fn set_busy(&self, is_busy: bool) {
        self.is_expected.store(is_busy, Ordering::SeqCst);
    }

    /// Kills the child for a reason.
    pub(crate) fn kill_for(&mut self, cause: impl Into<String>) {
        self.cause = Some(cause.into());
        self.kill();
    }

    /// How the child has ended, or been ended. It has closed its socket, or was killed.
    pub(crate) fn exit(&mut self) -> WorkerExit {
        let reason = match self.cause.take() {
            Some(cause) => format!("the process was killed: {cause}"),
            None => match self.wait(END_GRACE) {
                Some(status) => format!("the process {}", exit::describe(status)),
                None => "the process has closed its socket".to_owned(),
            },
        };
        self.kill();
        let exit = WorkerExit::new(reason);
        match self.output.last_lines() {
            lines if lines.is_empty() => exit,
            lines => exit.with_trace(lines),
        }
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Option<ExitStatus> {
        // Either it has ended, or its waiting thread has.
        let _ = self.ended.recv_timeout(timeout);
        self.child.try_wait().ok().flatten()
    }

    fn kill(&mut self) {
        // It has not been waited for, or the group is that of processes that it left behind: the number is not reused
        // while either is there.
        let _ = kill_process_group(pid(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.is_expected.store(true, Ordering::SeqCst);
        self.kill();
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

/// Waits for the end of a child on a thread of its own, and leaves its status to be read.
fn wait_for_end(child: &Child, exit_port: ExitPort, is_expected: Arc<AtomicBool>) -> io::Result<Receiver<()>> {
    let (sender, ended) = channel();
    let pid = pid(child);
    thread::Builder::new().name(format!("child-{}", pid.as_raw_nonzero())).spawn(move || {
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = sender.send(());
        if !is_expected.load(Ordering::SeqCst) {
            exit_port.report(&WorkerExit::new("its process ended while it had nothing to do"));
        }
    })?;
    Ok(ended)
}

impl Output {
    /// Logs all lines on a thread of its own, which ends with the last process that may print.
    fn log(self, lines: PipeReader, replica: &Replica) -> io::Result<()> {
        let (stage, replica) = (replica.stage().clone(), replica.index());
        thread::Builder::new().name(format!("{stage}-{replica}-log")).spawn(move || {
            let mut lines = BufReader::new(lines);
            let mut line = Vec::new();
            while lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let text = String::from_utf8_lossy(line.trim_ascii_end()).into_owned();
                line.clear();
                tracing::info!(%stage, replica, "{text}");
                let mut last = self.0.lock();
                if last.len() == LAST_LINES {
                    last.pop_front();
                }
                last.push_back(text);
            }
        })?;
        Ok(())
    }

    fn last_lines(&self) -> String {
        self.0.lock().make_contiguous().join("\n")
    }
}
