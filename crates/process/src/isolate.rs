//! Stages of a Rust program that run in children of the same program: a crash costs one replica, not the node.
//!
//! ```text
//!  node:     main ──► … ──► isolate() ──► app ──► starts        replica: /proc/self/exe, a socket as standard input
//!                                                                  │
//!  replica:  main ──► … ──► isolate() ═══ serves the stage ◄───────┘   and ends the process: the rest never runs
//! ```
//!
//! A library cannot run before `main`. So a replica runs `main` too, up to the line that isolates its stage
//! ([ADR 027](../../../docs/adr/027-a-replica-is-the-same-program-up-to-its-stage.md)).

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

use callboard_codec::Data;
use callboard_core::isolation::StageCode;
use callboard_core::{Failure, Replica, Stage, StageSettings, StreamStage};

use crate::child_side::replica;
use crate::config::ProcessConfig;
use crate::program::STAGE_VARIABLE;
use crate::stage::{stage, stream_stage};
use crate::worker::{ProcessWorker, StreamingProcessWorker};

/// The running program, also after its file has been replaced.
#[cfg(target_os = "linux")]
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Runs the replicas of a stage in processes of their own.
///
/// Each replica is a child of the node that runs this program again, with the same arguments. If such a child
/// ends, by a segmentation fault in a C library for example, its replica crashed: its contract says what runs again, an
/// input that crashes alone fails, and the replica is started again, as a stage of
/// [`kind = "process"`](crate::stage). Timeouts kill the child, and code sees that its caller left by
/// [`CallContext::is_cancelled`](callboard_core::CallContext::is_cancelled).
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use callboard_core::{App, Batch, Failure, Stage, Worker};
/// use callboard_process::Isolate as _;
///
/// struct Resize;
///
/// impl Worker for Resize {
///     type In = Vec<u8>;
///     type Out = Vec<u8>;
///
///     fn call(&mut self, images: Batch<Vec<u8>>) -> Vec<Result<Vec<u8>, Failure>> {
///         images.into_inputs().into_iter().map(Ok).collect() // A C library, that may crash.
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Above this line, `main` runs in the node and in each replica: bind no port and open no database there.
/// let resize = Stage::worker("resize", |_replica| Ok(Resize)).max_batch_size(8).replicas(2).isolate();
/// // Below it, only in the node.
/// let node = App::new().route("/resize", resize).start().await?;
/// # Ok(())
/// # }
/// ```
///
/// # In the replica
///
/// `main` runs in the child as well, up to the call of [`isolate`](Self::isolate) on the stage with this name, which
/// serves the stage and does not return: it ends the process with the replica. So nothing after it runs there, and no
/// port is bound. [`isolated_stage`] tells code before it where it runs. A replica starts no replicas of other stages.
/// If `main` ends before it reaches the stage, or takes longer than
/// [`start_timeout`](ProcessConfig::start_timeout), the node does not start, and its error says so.
///
/// Inputs and outputs cross as values, so their types must be serializable: a [`Local`](callboard_codec::Local) does
/// not cross. An item's context has deadline, session, request id, trace, caller, headers and tags. Its
/// [client](callboard_core::CallContext::client) calls routes of the node, as inner calls of the item; a
/// [replica's](Replica::client) does so only [within](callboard_core::LocalClient::within) the call of an item.
///
/// The output of a replica is in the log of its node, and so are the records of `tracing` from `info` on, unless
/// `main` set up a log before.
///
/// Call it after the setters of the stage: the worker sees only the settings before it. An asynchronous stage with a
/// [concurrency](callboard_core::StageSettings::concurrency) above 1 has its items one by one, as many at once.
pub trait Isolate: Sized {
    /// Runs the replicas in processes of their own.
    #[must_use]
    fn isolate(self) -> Self {
        self.isolate_with(|_| {})
    }

    /// The same with other limits of the processes: `change` gets their command with the default limits.
    ///
    /// ```no_run
    /// use callboard_core::Stage;
    /// use callboard_process::{Isolate as _, MemoryLimit};
    ///
    /// let double = Stage::each("double", |number: &i64| Ok(number * 2));
    /// let double = double.isolate_with(|process| process.memory_limit = MemoryLimit::Bytes(2 << 30));
    /// ```
    #[must_use]
    fn isolate_with(self, change: impl FnOnce(&mut ProcessConfig)) -> Self;
}

/// The stage whose replica this process is; `None` in every other process. For code that runs before a stage is
/// [isolated](Isolate), and only in the node.
#[must_use]
pub fn isolated_stage() -> Option<&'static str> {
    static STAGE: OnceLock<Option<String>> = OnceLock::new();
    // A process that a replica has started inherits the variable, but not the socket.
    STAGE.get_or_init(|| std::env::var(STAGE_VARIABLE).ok().filter(|_| has_socket())).as_deref()
}

pub(crate) fn has_socket() -> bool {
    let socket = io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    socket.and_then(|socket| socket.peer_addr()).is_ok()
}

/// How the node starts replicas of a stage. Does not return in such a replica.
///
/// # Errors
///
/// The name of another stage, whose replica this process is.
fn children(
    code: &StageCode,
    settings: &StageSettings,
    change: impl FnOnce(&mut ProcessConfig),
) -> Result<ProcessConfig, &'static str> {
    match isolated_stage() {
        Some(stage) if stage == code.name().as_str() => replica::serve_and_exit(code.clone()),
        Some(stage) => Err(stage),
        None => {
            let mut config = own_program();
            config.env.insert(STAGE_VARIABLE.to_owned(), code.name().to_string());
            config.concurrency = code.is_async().then(|| settings.concurrency());
            change(&mut config);
            Ok(config)
        }
    }
}

/// This program again, with its arguments.
pub(crate) fn own_program() -> ProcessConfig {
    let mut words = std::env::args_os();
    let name = words.next();
    #[cfg(target_os = "linux")]
    let program = OWN_PROGRAM.into();
    #[cfg(not(target_os = "linux"))]
    let program = std::env::current_exe().map_or_else(|_| name.clone().unwrap_or_default(), Into::into);
    ProcessConfig { name, ..ProcessConfig::new(std::iter::once(program).chain(words)) }
}

fn refused<W>(stage: &'static str) -> impl Fn(&Replica) -> Result<W, Failure> {
    move |_| Err(Failure::new(format!("this process is a replica of stage `{stage}`, which is to come first")))
}

impl<In: Data, Out: Data> Isolate for Stage<In, Out> {
    fn isolate_with(self, change: impl FnOnce(&mut ProcessConfig)) -> Self {
        let code = self.code();
        let workers = match children(&code, self.settings(), change) {
            Ok(config) => stage(code.name().as_str(), &config),
            Err(stage) => Stage::async_worker(code.name().as_str(), refused::<ProcessWorker>(stage)).of_types(),
        };
        self.run_by(&workers)
    }
}

impl<In: Data, Out: Data> Isolate for StreamStage<In, Out> {
    fn isolate_with(self, change: impl FnOnce(&mut ProcessConfig)) -> Self {
        let code = self.code();
        let workers = match children(&code, self.settings(), change) {
            Ok(config) => stream_stage(code.name().as_str(), &config),
            Err(stage) => {
                let refused = refused::<StreamingProcessWorker>(stage);
                StreamStage::async_worker(code.name().as_str(), refused).of_types()
            }
        };
        self.run_by(&workers)
    }
}
