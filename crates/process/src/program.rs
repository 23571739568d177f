//! A program that this process starts, in a group of its own: its limits, its lines and its end.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use callboard_core::Failure;
use parking_lot::Mutex;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::config::ProcessConfig;

/// A process that has closed its socket ends within this time, or is killed. Its last lines are waited for as long.
pub(crate) const END_GRACE: Duration = Duration::from_millis(500);

/// The longest line of output that is logged whole.
const MAX_LINE_BYTES: u64 = 8 * 1024;

/// A process and all processes that it has started and that stay in its group. They are killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    status: Option<ExitStatus>,
}

/// What a process printed last.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastLine(Arc<Mutex<Vec<u8>>>);

impl Program {
    /// Starts a program on a thread that lives as long as its process: Linux ends a process that asks for it with the
    /// thread that has started it. `wait` runs there, and is to wait for the end.
    pub(crate) fn start(
        config: &ProcessConfig,
        command: &[OsString],
        (input, output): (OwnedFd, PipeWriter),
        thread: String,
        wait: impl FnOnce(Pid) + Send + 'static,
    ) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let (sender, started) = channel();
        let (own, command) = (config.clone(), command.to_vec());
        let thread = thread::Builder::new().name(thread).spawn(move || {
            let program = Self::spawn(&own, &command, input, output);
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
        let mut command = Command::new(program);
        command.args(arguments).envs(&config.env);
        command.stdout(output.try_clone().map_err(failed)?).stdin(input).stderr(output).process_group(0);
        if let Some(directory) = &config.directory {
            command.current_dir(directory);
        }
        let program = Self { child: command.spawn().map_err(failed)?, status: None };
        if let Some(bytes) = config.memory_limit {
            limit_memory(program.pid(), bytes).map_err(failed)?;
        }
        Ok(program)
    }

    fn pid(&self) -> Pid {
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

impl LastLine {
    /// Reads all lines until the last process that may print has ended.
    pub(crate) fn read(&self, lines: PipeReader, log: impl Fn(&str)) {
        let (mut lines, mut line) = (BufReader::new(lines), Vec::new());
        while lines.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            let text = line.trim_ascii_end();
            log(&String::from_utf8_lossy(text));
            *self.0.lock() = text.to_vec();
            line.clear();
        }
    }

    pub(crate) fn text(&self) -> Option<String> {
        Some(String::from_utf8_lossy(&self.0.lock()).into_owned()).filter(|line| !line.is_empty())
    }
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

/// Waits for the end of a child of this process, and leaves its status to be read.
pub(crate) fn wait(pid: Pid) {
    let _ = retry_on_intr(|| waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT));
}
