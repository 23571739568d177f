//! How a child process is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use callboard_core::Failure;

/// A large model is read from a cold disk within this time.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Half of what orchestrators commonly allow after their signal is left for the rest.
const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Half of the default of `limits.max_in_flight_bytes`.
const DEFAULT_MAX_BATCH_BYTES: u64 = 256 * 1024 * 1024;

/// The command of a child, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// The program and its arguments. A program without a slash is looked up in `PATH`.
    pub command: Vec<OsString>,
    /// The command of a fork server for the same worker, which has done once what takes long at its start: children
    /// are forked from it, and `command` starts a child where it says that a fork is not safe. None by default. Linux
    /// only; see the worker protocol.
    pub fork_server: Option<Vec<OsString>>,
    /// Variables beside those of this process.
    pub env: BTreeMap<String, String>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// The time until it must be ready. Default 60 s.
    pub start_timeout: Duration,
    /// The time for which it may clean up before it is killed. Default 5 s.
    pub stop_timeout: Duration,
    /// The most bytes of a batch, and of its outcomes; a larger batch is divided. Default 256 MiB.
    pub max_batch_bytes: u64,
    /// The most bytes of address space. No limit by default. Linux only.
    pub memory_limit: Option<u64>,
    /// Whether frames of 256 KiB and more go through shared memory where both sides can, instead of the socket. Each
    /// replica then keeps what its largest recent batch took, and twice its largest recent outcomes, or twice that if
    /// memory is still in use when the next batch comes. Default true.
    pub shared_memory: bool,
    /// How many calls a child works on at once, each in a batch of its own; the worker must support this. By default a
    /// child has one batch at a time.
    pub concurrency: Option<NonZeroU32>,
}

impl ProcessConfig {
    /// The defaults, for this command.
    pub fn new<T: Into<OsString>>(command: impl IntoIterator<Item = T>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            fork_server: None,
            env: BTreeMap::new(),
            directory: None,
            start_timeout: DEFAULT_START_TIMEOUT,
            stop_timeout: DEFAULT_STOP_TIMEOUT,
            max_batch_bytes: DEFAULT_MAX_BATCH_BYTES,
            memory_limit: None,
            shared_memory: true,
            concurrency: None,
        }
    }

    pub(crate) fn cannot_start(&self, error: &io::Error) -> Failure {
        Failure::new(format!("`{}` cannot be started: {error}", self.shown()))
    }

    /// The command as text, for messages.
    pub(crate) fn shown(&self) -> String {
        self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}
