//! The keys of stages of kind `process`: a command that speaks the worker protocol.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callboard_process::ProcessConfig;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::units::{parse_bytes, parse_duration};

/// The keys of kind `process`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessKeys {
    /// The program and its arguments. A program with a slash is relative to the file. Required.
    pub command: Vec<String>,
    /// Variables beside those of this process.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The working directory, relative to the file; by default the file's own.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// The time until a child must be ready. Default 60 s.
    #[serde(default, deserialize_with = "duration")]
    pub start_timeout: Option<Duration>,
    /// The time for which a child may clean up. Default 5 s.
    #[serde(default, deserialize_with = "duration")]
    pub stop_timeout: Option<Duration>,
    /// The most bytes of one batch, and of its outcomes. Default 256 MiB.
    #[serde(default, deserialize_with = "bytes")]
    pub max_batch_bytes: Option<u64>,
    /// The most bytes of address space of a child. No limit by default.
    #[serde(default, deserialize_with = "bytes")]
    pub memory_limit: Option<u64>,
}

impl ProcessKeys {
    /// The command for a file in `base`.
    pub(crate) fn process(&self, base: &Path) -> ProcessConfig {
        let mut process = ProcessConfig::new(&self.command);
        if let Some(program) = process.command.first_mut().filter(|program| Path::new(program).components().count() > 1)
        {
            // The child starts in another directory.
            *program = std::path::absolute(base.join(&*program)).unwrap_or_else(|_| base.join(&*program)).into();
        }
        process.env.clone_from(&self.env);
        let directory = self.directory.as_ref().map_or_else(|| base.to_owned(), |directory| base.join(directory));
        process.directory = Some(directory).filter(|directory| !directory.as_os_str().is_empty());
        process.start_timeout = self.start_timeout.unwrap_or(process.start_timeout);
        process.stop_timeout = self.stop_timeout.unwrap_or(process.stop_timeout);
        process.max_bytes = self.max_batch_bytes.unwrap_or(process.max_bytes);
        process.memory_limit = self.memory_limit;
        process
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).ok_or_else(|| D::Error::custom("expected a duration such as \"250ms\" or \"30s\""))
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_bytes(&text).map(Some).ok_or_else(|| D::Error::custom("expected a size such as \"64MiB\""))
}
