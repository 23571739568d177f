//! How a child process is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The command of a child, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// The program and its arguments. A program without a slash is looked up in `PATH`.
    pub command: Vec<OsString>,
    /// Variables beside those of this process.
    pub env: BTreeMap<String, String>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// The time until it must be ready. Default 60 s.
    pub start_timeout: Duration,
    /// The time for which it may clean up before it is killed. Default 5 s.
    pub stop_timeout: Duration,
    /// The most bytes of a frame in either direction. Default 256 MiB.
    pub max_bytes: u64,
    /// The most bytes of address space. No limit by default.
    pub memory_limit: Option<u64>,
}

impl ProcessConfig {
    /// The defaults, for this command.
    pub fn new<T: Into<OsString>>(command: impl IntoIterator<Item = T>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
            directory: None,
            start_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(5),
            max_bytes: 256 * 1024 * 1024,
            memory_limit: None,
        }
    }

    /// The command as text, for messages.
    pub(crate) fn shown(&self) -> String {
        self.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}
