//! Helpers: processes that a node needs beside its stages, such as a cache or a tokenizer with a port of its own.
//!
//! Each is an actor of the node. Its life is that of the process: it is up when the process is
//! [ready](Readiness), and an end of the process is its crash, after which its group starts it again. Helpers start in
//! order before the stages, and end after them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use callboard_core::actor::{Actor, ActorContext, ActorGroup, ActorSpec, RestartPolicy};
use callboard_core::{BackoffPolicy, Failure, RestartIntensity};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config::ProcessConfig;
use crate::exit;
use crate::guard::{guard_if_asked, guarded};
use crate::log_limit::{ChildLogLimit, OUTPUT_TARGET};
use crate::program::{self, END_GRACE, GUARD_VARIABLE, LastLines, Program};
use crate::ready::Readiness;

/// A large model is read from a cold disk within this time.
const DEFAULT_READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Half of what orchestrators commonly allow after their signal is left for the rest.
const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A port that is in use for a minute after a crash is free again before the node gives up.
const DEFAULT_INTENSITY: RestartIntensity = RestartIntensity { max_restarts: 10, within: Duration::from_secs(180) };

/// Ten restarts take two minutes.
const DEFAULT_BACKOFF: BackoffPolicy =
    BackoffPolicy { initial: Duration::from_millis(500), max: Duration::from_secs(30), jitter: 0.2 };

/// How often a helper that starts is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// After its own time to stop, a helper is killed and its last lines are read.
const KILL_GRACE: Duration = Duration::from_secs(2);

/// A helper: its command, and when it is ready.
#[derive(Clone, Debug, PartialEq)]
pub struct HelperConfig {
    /// Its name, in the log and in the node's status. No other actor of the node has it.
    pub name: String,
    /// The program and its arguments. A program without a slash is looked up in `PATH`.
    pub command: Vec<OsString>,
    /// Variables beside those of this process.
    pub env: BTreeMap<String, String>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// When it is ready: the stages start after that. Default: once it is started.
    pub ready: Readiness,
    /// The time until it must be ready. Default 60 s.
    pub ready_timeout: Duration,
    /// The signal that asks it to end. Default `SIGTERM`.
    pub stop_signal: StopSignal,
    /// The time until it must have ended; then all processes of its group are killed. Default 5 s.
    pub stop_timeout: Duration,
    /// The rate of crashes above which it stays down, and the node is not ready. Default 10 in 180 s.
    pub intensity: RestartIntensity,
    /// How long to wait between a crash and the next start. Default 500 ms, doubling up to 30 s.
    pub backoff: BackoffPolicy,
    /// Whether a guard process, this program once more, ends the helper and all processes of its group when the node is
    /// killed. The program is to begin with [`guard_if_asked`](crate::guard_if_asked). Default false: then the helper
    /// outlives a node that is killed, unless it reads the end of its output.
    pub guarded: bool,
}

callboard_codec::words! {
    /// A signal that asks a process to end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum StopSignal {
        /// The signal that orchestrators send.
        #[default]
        Term => "SIGTERM",
        /// Ctrl-C.
        Int => "SIGINT",
        /// Ctrl-\.
        Quit => "SIGQUIT",
        /// The end of a terminal.
        Hup => "SIGHUP",
        /// For programs that have a use of their own for it.
        Usr1 => "SIGUSR1",
        /// As above.
        Usr2 => "SIGUSR2",
        /// At once, without time to clean up.
        Kill => "SIGKILL",
    }
}

impl StopSignal {
    fn signal(self) -> Signal {
        match self {
            Self::Term => Signal::TERM,
            Self::Int => Signal::INT,
            Self::Quit => Signal::QUIT,
            Self::Hup => Signal::HUP,
            Self::Usr1 => Signal::USR1,
            Self::Usr2 => Signal::USR2,
            Self::Kill => Signal::KILL,
        }
    }
}

impl HelperConfig {
    /// The defaults, for this command.
    pub fn new<T: Into<OsString>>(name: &str, command: impl IntoIterator<Item = T>) -> Self {
        Self {
            name: name.to_owned(),
            command: command.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            directory: None,
            ready: Readiness::default(),
            ready_timeout: DEFAULT_READY_TIMEOUT,
            stop_signal: StopSignal::default(),
            stop_timeout: DEFAULT_STOP_TIMEOUT,
            intensity: DEFAULT_INTENSITY,
            backoff: DEFAULT_BACKOFF,
            guarded: false,
        }
    }

    fn process(&self) -> ProcessConfig {
        let mut process = ProcessConfig::new(&self.command);
        process.env.clone_from(&self.env);
        process.directory.clone_from(&self.directory);
        if self.guarded {
            process.env.insert(GUARD_VARIABLE.to_owned(), "1".to_owned());
        }
        process
    }
}

/// A helper, for [`App::actors`](callboard_core::App::actors).
///
/// ```no_run
/// use callboard_core::{App, Stage};
/// use callboard_process::{HelperConfig, Readiness, helper};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut redis = HelperConfig::new("redis", ["redis-server", "--port", "6380"]);
/// redis.ready = Readiness::Tcp("127.0.0.1:6380".to_owned());
/// let greet = Stage::each("greet", |name: &String| Ok(format!("hello {name}")));
/// let node = App::new().actors(helper(redis)).route("/greet", greet).start().await?;
/// # Ok(())
/// # }
/// ```
pub fn helper(config: HelperConfig) -> ActorGroup {
    if config.guarded {
        // A guard that went on would serve as a second node.
        guard_if_asked();
    }
    let stop_within = config.stop_timeout.saturating_add(KILL_GRACE);
    let (name, intensity, backoff) = (config.name.clone(), config.intensity, config.backoff.clone());
    let config = Arc::new(config);
    let build = move |_: &ActorContext<Helper>| Helper { config: Arc::clone(&config), running: None };
    let actor = ActorSpec::new(&name, build).restart(RestartPolicy::Always).stop_within(stop_within).needed();
    ActorGroup::from(actor).intensity(intensity).backoff(backoff)
}

/// One life of a helper.
struct Helper {
    config: Arc<HelperConfig>,
    running: Option<Running>,
}

/// The process of this life has ended.
struct ProcessEnded {
    life: u64,
}

impl Actor for Helper {
    type Message = ProcessEnded;

    async fn started(&mut self, context: &ActorContext<Self>) -> Result<(), Failure> {
        let config = Arc::clone(&self.config);
        let started = spawn_blocking(move || Running::start(&config)).await;
        let running = self.running.insert(started.map_err(|error| Failure::new(error.to_string()))??);
        running.until_ready(&self.config).await?;
        tracing::info!(process = self.config.name, "the process is ready");
        let (reference, life, mut ended) = (context.reference().clone(), context.life(), running.ended.clone());
        tokio::spawn(async move {
            if ended.wait_for(|ended| *ended).await.is_ok() {
                // An actor that has ended needs no message.
                let _ = reference.tell(ProcessEnded { life });
            }
        });
        Ok(())
    }

    async fn handle(
        &mut self,
        ProcessEnded { life }: ProcessEnded,
        context: &ActorContext<Self>,
    ) -> Result<(), Failure> {
        match &mut self.running {
            Some(running) if life == context.life() => Err(Failure::new(running.why_ended().await)),
            _ => Ok(()),
        }
    }

    async fn stopped(&mut self, _: &ActorContext<Self>) {
        if let Some(running) = &mut self.running {
            running.signal(self.config.stop_signal.signal());
            let _ = timeout(self.config.stop_timeout, running.ended.wait_for(|ended| *ended)).await;
            running.program.kill();
            let _ = timeout(END_GRACE, running.logged.wait_for(|logged| *logged)).await;
        }
    }
}

/// A process that runs. It and its group are killed when this is dropped.
struct Running {
    program: Program,
    pid: Pid,
    /// To its guard, if it has one.
    guard: Option<UnixStream>,
    ended: watch::Receiver<bool>,
    logged: watch::Receiver<bool>,
    last_lines: LastLines,
    /// A line had the text of `ready`.
    has_line: Arc<AtomicBool>,
}

impl Running {
    fn start(config: &HelperConfig) -> Result<Self, Failure> {
        let process = config.process();
        let failed = |error: io::Error| process.cannot_start(&error);
        let (guard, input): (_, OwnedFd) = if config.guarded {
            let (ours, theirs) = UnixStream::pair().map_err(failed)?;
            (Some(ours), theirs.into())
        } else {
            (None, File::open("/dev/null").map_err(failed)?.into())
        };
        let ((printed, output), (end, at_end)) = (io::pipe().map_err(failed)?, io::pipe().map_err(failed)?);
        let (has_ended, ended) = watch::channel(false);
        let (started, pid) = std::sync::mpsc::channel();
        let wait = move |pid| {
            let _ = started.send(pid);
            program::wait(pid);
            drop(at_end);
            let _ = has_ended.send(true);
        };
        let command = if config.guarded { guarded(&config.command) } else { config.command.clone() };
        let program = Program::start(&process, &command, (input, output), (config.name.clone(), None), wait)?;
        let pid = pid.recv().map_err(|_| failed(io::ErrorKind::BrokenPipe.into()))?;
        let has_line = Arc::default();
        let (last_lines, logged) = log_lines((printed, end), config, &has_line).map_err(failed)?;
        Ok(Self { program, pid, guard, ended, logged, last_lines, has_line })
    }

    async fn until_ready(&mut self, config: &HelperConfig) -> Result<(), Failure> {
        let end = Instant::now().checked_add(config.ready_timeout);
        loop {
            let has_line = &self.has_line;
            let not_ready = config.ready.probe(|| has_line.load(Ordering::SeqCst)).await.err();
            // Looked at after the probe: another process may have answered it.
            if *self.ended.borrow() {
                let why = self.why_ended().await;
                let last = self.last_lines.said().unwrap_or_else(|| self.last_lines.all());
                return Err(Failure::new(format!("{why}; {last}")));
            }
            let Some(why) = not_ready else { return Ok(()) };
            if end.is_some_and(|end| Instant::now() >= end) {
                let timeout = config.ready_timeout;
                let lines = self.last_lines.all();
                return Err(Failure::new(format!("it was not ready within {timeout:?}: {why}; {lines}")));
            }
            let _ = timeout(PROBE_INTERVAL, self.ended.wait_for(|ended| *ended)).await;
        }
    }

    /// Asks the process to end.
    fn signal(&mut self, signal: Signal) {
        match &mut self.guard {
            Some(guard) => {
                let byte = u8::try_from(signal.as_raw()).unwrap_or_default();
                // Without a reader the guard ended with its helper.
                let _ = guard.write_all(&[byte]);
            }
            // It keeps its number until it is waited for.
            None => _ = kill_process(self.pid, signal),
        }
    }

    /// How the process has ended, and all others of its group with it.
    async fn why_ended(&mut self) -> String {
        let status = self.program.kill();
        let _ = timeout(END_GRACE, self.logged.wait_for(|logged| *logged)).await;
        status
            .map_or_else(|| "the process ended".to_owned(), |status| format!("the process {}", exit::describe(status)))
    }
}

/// Logs all lines on a thread of its own. The receiver is closed at its end.
fn log_lines(
    (printed, end): (PipeReader, PipeReader),
    config: &HelperConfig,
    has_line: &Arc<AtomicBool>,
) -> io::Result<(LastLines, watch::Receiver<bool>)> {
    let (done, logged) = watch::channel(false);
    let (name, ready, has_line) = (config.name.clone(), config.ready.clone(), Arc::clone(has_line));
    let limit = ChildLogLimit::default();
    let log = move |line: &str| {
        let _until_the_end = &done;
        if limit.admits(line.len(), |words| tracing::warn!(target: OUTPUT_TARGET, process = name, "{words}")) {
            tracing::info!(target: OUTPUT_TARGET, process = name, "{line}");
        }
        if matches!(&ready, Readiness::Line(text) if line.contains(text)) {
            has_line.store(true, Ordering::SeqCst);
        }
    };
    let (last_lines, _) = LastLines::read_on_thread(format!("{}-log", config.name), printed, end, log)?;
    Ok((last_lines, logged))
}
