//! A fork server: a process that has done once what takes long at the start of a child, and that children are forked
//! from.
//!
//! ```text
//!  node ── start ──► fork server     imports the service: ready, refused or failed
//!       ── fork ───►     │           with the child's socket and the pipe that it prints to
//!       ◄─ forked ──     ├──► child  speaks the worker protocol over its own socket
//!       ── reap ───►     │           when the child has ended, and its group is killed
//!       ◄─ ended ───     │           with the child's status
//! ```
//!
//! Stages of one app may share it: then `fork` says what the child serves.
//!
//! * **Full:** one message at a time; others wait for its answer.
//! * **Late:** a fork server that does not answer is lost, and a new one is started for the next child.
//! * **Ended:** the kernel ends its children with it.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_core::{Failure, Replica};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use crate::config::ProcessConfig;
use crate::exit;
use crate::log_limit::{ChildLogLimit, MAX_MESSAGE_CHARS, OUTPUT_TARGET, both_ends};
use crate::memory::{self, MemoryGroup};
use crate::message::{self, PROTOCOL, Start};
use crate::program::{self, END_GRACE, LastLines, Program, processors};
use crate::start_watch::{StartWatch, processor_time};

/// A fork of a process with 100 GB takes a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest message: a failure with its traceback.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// How often a fork server that starts is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The descriptors of a fork: the child's socket, and the pipe that it prints to.
const DESCRIPTORS: usize = 2;

/// The fork server of a stage, or of several. It is started with the first child, and again when it has ended; it ends
/// with its last stage.
#[derive(Debug)]
pub(crate) struct ForkServer {
    config: ProcessConfig,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// The next child starts it.
    Idle,
    Running(Arc<Parent>),
    /// It cannot fork. Children are started by their command.
    Refused,
    /// It could not start, which is the answer for all children that waited for it.
    Failed {
        at: Instant,
        failure: Failure,
    },
}

/// The owner of the fork server, for the log: a stage, or an app with several.
struct Owner {
    stage: Option<String>,
    app: Option<String>,
}

impl Owner {
    fn new(config: &ProcessConfig, replica: &Replica) -> Self {
        if config.command.is_empty() {
            return Self { stage: None, app: config.label.clone() };
        }
        Self { stage: Some(replica.stage().to_string()), app: None }
    }
}

/// The process that forks.
#[derive(Debug)]
struct Parent {
    socket: Mutex<UnixDatagram>,
    program: Mutex<Option<Program>>,
    /// It has not answered in time: a later answer would be taken for that of another message.
    is_lost: AtomicBool,
    last_lines: LastLines,
    ended: Mutex<Option<Receiver<()>>>,
}

#[derive(Debug)]
pub(crate) struct ForkedChild {
    parent: Arc<Parent>,
    pub(crate) pid: Pid,
    /// Refers to the process, whatever becomes of its number.
    descriptor: OwnedFd,
    pub(crate) memory: Option<MemoryGroup>,
    /// Its group has been killed, and the process reaped with this status, if it is known.
    end: Option<Option<ExitStatus>>,
}

/// From the node to its fork server.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ToServer {
    Start(Start),
    Fork {
        /// The target of this child, if the fork server has children of several stages.
        #[serde(skip_serializing_if = "Option::is_none")]
        target: Option<String>,
    },
    Reap {
        pid: i32,
    },
}

/// The answer of a fork server.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FromServer {
    Ready {
        protocol: u32,
        #[serde(default)]
        worker: String,
    },
    /// Its phase before it is ready.
    Starting {
        phase: String,
    },
    Refused {
        message: String,
    },
    Failed {
        message: String,
        trace: Option<String>,
    },
    Forked {
        pid: i32,
    },
    Ended {
        status: i32,
    },
}

/// Why a fork server has not done what it was asked.
enum ForkServerError {
    /// There is no such process.
    NotStarted(Failure),
    /// It has ended, or does not answer.
    Ended(String),
    Refused(String),
    Failed {
        message: String,
        trace: String,
    },
}

impl ForkServer {
    pub(crate) fn new(config: &ProcessConfig) -> Self {
        Self { config: config.clone(), state: Mutex::new(State::Idle) }
    }

    /// Forks a child of `replica`, which serves `target` if the fork server has several. `None`: start it by its
    /// command.
    pub(crate) fn fork(
        &self,
        target: Option<&str>,
        replica: &Replica,
        socket: BorrowedFd<'_>,
        output: BorrowedFd<'_>,
    ) -> Result<Option<ForkedChild>, Failure> {
        let Some(command) = self.config.fork_server.as_ref().filter(|_| cfg!(target_os = "linux")) else {
            return Ok(None);
        };
        let asked = Instant::now();
        let mut state = self.state.lock();
        loop {
            let (parent, is_new) = match &*state {
                State::Refused => return Ok(None),
                State::Failed { at, failure } if *at >= asked => return Err(failure.clone()),
                State::Running(parent) => (Arc::clone(parent), false),
                State::Idle | State::Failed { .. } => match Parent::start(&self.config, command, replica) {
                    Ok(parent) => (Arc::new(parent), true),
                    Err(ForkServerError::Refused(reason)) => return Ok(state.refuse(replica, &reason)),
                    Err(lost) => {
                        let failure = self.failure(lost, replica);
                        *state = State::Failed { at: Instant::now(), failure: failure.clone() };
                        return Err(failure);
                    }
                },
            };
            *state = State::Running(Arc::clone(&parent));
            match Parent::fork(&parent, target, [socket, output], replica.core()) {
                Ok(mut forked) => {
                    let limit = memory::limit(forked.pid, self.config.memory_limit);
                    forked.memory = limit.map_err(|error| self.config.cannot_start(&error))?;
                    return Ok(Some(forked));
                }
                Err(ForkServerError::Refused(reason)) => return Ok(state.refuse(replica, &reason)),
                Err(ForkServerError::Ended(reason)) if !is_new => {
                    let Owner { stage, app } = Owner::new(&self.config, replica);
                    tracing::warn!(stage, app, "the fork server is started again: {reason}");
                }
                Err(lost) => return Err(self.failure(lost, replica)),
            }
            *state = State::Idle;
        }
    }

    /// The error of a start: one line, of which the log has the details.
    fn failure(&self, lost: ForkServerError, replica: &Replica) -> Failure {
        let reason = match lost {
            ForkServerError::NotStarted(failure) => return failure,
            ForkServerError::Ended(reason) | ForkServerError::Refused(reason) => reason,
            ForkServerError::Failed { message, trace } => {
                let Owner { stage, app } = Owner::new(&self.config, replica);
                if !trace.is_empty() {
                    let trace = both_ends(trace.trim_end(), MAX_MESSAGE_CHARS);
                    tracing::error!(target: OUTPUT_TARGET, stage, app, "{trace}");
                }
                message
            }
        };
        self.config.not_started(&reason)
    }
}

impl State {
    /// Says once why children are started by their command.
    fn refuse(&mut self, replica: &Replica, reason: &str) -> Option<ForkedChild> {
        tracing::warn!(stage = %replica.stage(), "each replica imports the service by itself: {reason}");
        *self = Self::Refused;
        None
    }
}

impl Parent {
    /// Starts the process and waits until it can fork.
    fn start(config: &ProcessConfig, command: &[OsString], replica: &Replica) -> Result<Self, ForkServerError> {
        let parent = Self::spawn(config, command, replica).map_err(ForkServerError::NotStarted)?;
        let start = ToServer::Start(Start { replica: 0, generation: 0, ..Start::new(config, replica) });
        match parent.started(&start, config, replica) {
            Ok(FromServer::Ready { protocol: PROTOCOL, worker }) => {
                tracing::debug!(stage = %replica.stage(), worker, "the fork server is ready");
                Ok(parent)
            }
            other => Err(match unexpected(other) {
                ForkServerError::Ended(reason) => ForkServerError::Ended(parent.end(&reason)),
                lost => lost,
            }),
        }
    }

    /// Sends `start`, and waits for the answer as long as the process is alive and may take.
    fn started(
        &self,
        start: &ToServer,
        config: &ProcessConfig,
        replica: &Replica,
    ) -> Result<FromServer, ForkServerError> {
        let (socket, Owner { stage, app }) = (self.socket.lock(), Owner::new(config, replica));
        let pid = self.program.lock().as_ref().map(Program::pid);
        let mut watch = StartWatch::new(config.start_timeout, Instant::now());
        // The start of a fork server is the import.
        watch.says("importing", Instant::now());
        send(&socket, start, &[]).map_err(|error| self.lost(&error, Duration::ZERO))?;
        loop {
            let looked = watch.look(Instant::now(), || processor_time(pid?));
            match looked {
                Ok(Some(waiting)) => tracing::warn!(target: OUTPUT_TARGET, stage, app, "{waiting}"),
                Ok(None) => {}
                Err(reason) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    return Err(ForkServerError::Ended(reason));
                }
            }
            match receive(&socket, LOOK_INTERVAL) {
                Ok(FromServer::Starting { phase }) => watch.says(&phase, Instant::now()),
                Ok(answer) => return Ok(answer),
                Err(error) if is_late(&error) => {}
                Err(error) => return Err(self.lost(&error, LOOK_INTERVAL)),
            }
        }
    }

    /// A later answer would be taken for that of another message.
    fn lost(&self, error: &io::Error, timeout: Duration) -> ForkServerError {
        self.is_lost.store(true, Ordering::Relaxed);
        ForkServerError::Ended(match error.kind() {
            _ if is_late(error) => format!("it did not answer within {timeout:?}"),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
                "it has ended".to_owned()
            }
            _ => error.to_string(),
        })
    }

    fn spawn(config: &ProcessConfig, command: &[OsString], replica: &Replica) -> Result<Self, Failure> {
        let failed = |error: io::Error| config.cannot_start(&error);
        let (ours, theirs) = system::socket_pair().map_err(failed)?;
        let ((lines, output), (end, at_end)) = (io::pipe().map_err(failed)?, io::pipe().map_err(failed)?);
        let ((sender, ended), limit) = (channel(), ChildLogLimit::default());
        let (thread, owner) = (format!("{}-fork-server", replica.stage()), Owner::new(config, replica));
        let (last_lines, logged) = LastLines::read_on_thread(format!("{thread}-log"), lines, end, move |line| {
            let (stage, app) = (owner.stage.as_deref(), owner.app.as_deref());
            if limit.admits(line.len(), |words| tracing::warn!(target: OUTPUT_TARGET, stage, app, "{words}")) {
                tracing::info!(target: OUTPUT_TARGET, stage, app, "{line}");
            }
        })
        .map_err(failed)?;
        let program = Program::start(config, command, (theirs, output), (thread, None), move |pid| {
            program::wait(pid);
            drop(at_end);
            let _ = logged.recv_timeout(END_GRACE / 2);
            let _ = sender.send(());
        })?;
        Ok(Self {
            socket: Mutex::new(UnixDatagram::from(ours)),
            program: Mutex::new(Some(program)),
            is_lost: AtomicBool::new(false),
            last_lines,
            ended: Mutex::new(Some(ended)),
        })
    }

    /// Forks a child, which gets these descriptors, and is pinned to this core.
    fn fork(
        parent: &Arc<Self>,
        target: Option<&str>,
        descriptors: [BorrowedFd<'_>; DESCRIPTORS],
        core: Option<usize>,
    ) -> Result<ForkedChild, ForkServerError> {
        let pid = match parent.ask(&ToServer::Fork { target: target.map(str::to_owned) }, &descriptors, ANSWER_TIMEOUT)
        {
            Ok(FromServer::Forked { pid }) => Pid::from_raw(pid).filter(|pid| *pid != Pid::INIT),
            other => return Err(unexpected(other)),
        };
        // No other process gets this id until the parent is told to reap the child.
        let Some((pid, descriptor)) = pid.and_then(|pid| Some((pid, system::open(pid).ok()?))) else {
            return Err(ForkServerError::Ended("it forked no process".to_owned()));
        };
        // A child that has ended already needs none.
        let _ = core.map(|core| processors::pin(Some(pid), &[core]));
        Ok(ForkedChild { parent: Arc::clone(parent), pid, descriptor, memory: None, end: None })
    }

    /// Sends a message, and waits for its answer.
    fn ask(
        &self,
        message: &ToServer,
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<FromServer, ForkServerError> {
        let socket = self.socket.lock();
        if self.is_lost.load(Ordering::Relaxed) {
            let reason = if self.has_ended() { "it has ended" } else { "it has not answered before" };
            return Err(ForkServerError::Ended(reason.to_owned()));
        }
        let answer = send(&socket, message, descriptors).and_then(|()| receive(&socket, timeout));
        answer.map_err(|error| self.lost(&error, timeout))
    }

    fn has_ended(&self) -> bool {
        self.program.lock().as_ref().is_none_or(Program::has_ended)
    }

    /// Ends a process that did not start, and says how it ended.
    fn end(self, reason: &str) -> String {
        let ended = self.ended.lock().take();
        let has_ended = ended.is_some_and(|ended| ended.recv_timeout(END_GRACE).is_ok());
        let status = self.program.lock().take().and_then(|mut program| program.kill());
        let exit = match status {
            Some(status) if has_ended => format!("the process {}", exit::describe(status)),
            _ => format!("the process was killed: {reason}"),
        };
        self.last_lines.text().map_or_else(|| exit.clone(), |last| format!("{exit}: {last}"))
    }
}

impl Drop for Parent {
    /// Lets the process end by itself, on a thread that kills it otherwise.
    fn drop(&mut self) {
        let _ = self.socket.get_mut().shutdown(std::net::Shutdown::Both);
        let (program, ended) = (self.program.get_mut().take(), self.ended.get_mut().take());
        let _ = thread::Builder::new().name("fork-server-end".to_owned()).spawn(move || {
            let _ = ended.map(|ended| ended.recv_timeout(END_GRACE));
            drop(program);
        });
    }
}

impl ForkedChild {
    /// Waits for the end on a thread of its own, and then calls `tell`.
    pub(crate) fn wait_on_thread(&self, thread: String, tell: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let descriptor = self.descriptor.try_clone()?;
        thread::Builder::new().name(thread).spawn(move || {
            wait(&descriptor);
            tell();
        })?;
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&self.descriptor, PollFlags::IN)];
        retry_on_intr(|| poll(&mut descriptors, Some(&now))).is_ok_and(|ready| ready > 0)
    }

    /// Kills the group and lets the parent take the child's status, which is not known if the parent has ended.
    pub(crate) fn kill(&mut self) -> Option<ExitStatus> {
        if let Some(status) = self.end {
            return status;
        }
        // After the end of both, another process may have the number.
        if !(self.has_ended() && self.parent.has_ended()) {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
        wait(&self.descriptor);
        let status = match self.parent.ask(&ToServer::Reap { pid: self.pid.as_raw_pid() }, &[], ANSWER_TIMEOUT) {
            Ok(FromServer::Ended { status }) => Some(ExitStatus::from_raw(status)),
            _ => None,
        };
        self.end = Some(status);
        status
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for the end of the process that a descriptor refers to.
fn wait(descriptor: &OwnedFd) {
    let _ = retry_on_intr(|| poll(&mut [PollFd::new(descriptor, PollFlags::IN)], None));
}

fn unexpected(answer: Result<FromServer, ForkServerError>) -> ForkServerError {
    match answer {
        Ok(FromServer::Refused { message }) => ForkServerError::Refused(message),
        Ok(FromServer::Failed { message, trace }) => {
            ForkServerError::Failed { message, trace: trace.unwrap_or_default() }
        }
        Ok(other) => ForkServerError::Ended(format!("it answered {other:?}")),
        Err(lost) => lost,
    }
}

/// Each message is a packet of its own, which is sent and received whole.
fn send(socket: &UnixDatagram, message: &ToServer, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let content = message::encode(message).map_err(io::Error::other)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&content)], &mut ancillary, SendFlags::empty()))?;
    Ok(())
}

/// The next message, within this time.
fn receive(socket: &UnixDatagram, timeout: Duration) -> io::Result<FromServer> {
    let mut answer = vec![0; MAX_MESSAGE_BYTES];
    socket.set_read_timeout(Some(timeout.max(Duration::from_millis(1))))?;
    let (bytes, _) = retry_on_intr(|| recv(socket, &mut answer[..], RecvFlags::empty()))?;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    answer.truncate(bytes);
    let unknown = |error| io::Error::other(format!("it sent a message that is not known: {error}"));
    message::decode(&Bytes::from(answer)).map_err(unknown)
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// Sockets of packets, whose other side notices the end of one.
    pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    pub(super) fn open(pid: Pid) -> io::Result<OwnedFd> {
        Ok(pidfd_open(pid, PidfdFlags::empty())?)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::os::fd::OwnedFd;

    use rustix::process::Pid;

    pub(super) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn open(_: Pid) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests;
