//! The keys of stages whose replicas are processes: kind `process`, a command, and kind `python`, a service.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use callboard_codec::Value;
use callboard_process::{MemoryLimit, ProcessConfig, PythonConfig, PythonService};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::form::NONE;
use super::placement::{Devices, PlacementKeys, Variables};
use super::units::{parse_bytes, parse_duration};

/// Declares the keys of a kind whose replicas are processes: its own, and those of every process.
macro_rules! process_keys {
    ($(#[$of_struct:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$of_struct])*
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            /// The device that a replica is told; if there is none here, that of the program.
            pub device: Option<String>,
            /// The devices on which there are replicas, an equal number on each.
            pub devices: Option<Devices>,
            /// Other settings for a replica, by name.
            #[serde(default)]
            pub settings: BTreeMap<String, Value>,
            /// Variables beside those of this process, of all replicas or of each.
            #[serde(default)]
            pub env: Variables,
            /// The time until a child must be ready; see [`ProcessConfig::start_timeout`].
            #[serde(default, deserialize_with = "duration")]
            pub start_timeout: Option<Duration>,
            /// The time for which a child may clean up. Default 5 s.
            #[serde(default, deserialize_with = "duration")]
            pub stop_timeout: Option<Duration>,
            /// The time without any message of a child that works on several calls; see
            /// [`ProcessConfig::silence_timeout`].
            #[serde(default, deserialize_with = "duration")]
            pub silence_timeout: Option<Duration>,
            /// The most bytes of one batch, and of its outcomes. Default 256 MiB.
            #[serde(default, deserialize_with = "bytes")]
            pub max_batch_bytes: Option<u64>,
            /// See [`ProcessConfig::memory_limit`]. By default a share of this machine's memory.
            #[serde(default, deserialize_with = "memory_limit")]
            pub memory_limit: MemoryLimit,
            /// See [`ProcessConfig::spare`]. Default false.
            #[serde(default)]
            pub spare: bool,
            /// See [`ProcessConfig::shared_memory`]. Default true.
            pub shared_memory: Option<bool>,
            /// How many calls a child works on at once; see [`ProcessConfig::concurrency`]. By default one batch at a
            /// time.
            pub concurrency: Option<NonZeroU32>,
        }

        impl $name {
            /// Sets in a process what the keys of its stage set.
            fn apply(&self, process: &mut ProcessConfig) {
                process.env.extend(self.env.of_all());
                process.start_timeout = self.start_timeout.or(process.start_timeout);
                process.stop_timeout = self.stop_timeout.unwrap_or(process.stop_timeout);
                process.silence_timeout = self.silence_timeout.or(process.silence_timeout);
                process.max_batch_bytes = self.max_batch_bytes.unwrap_or(process.max_batch_bytes);
                process.memory_limit = self.memory_limit;
                process.spare = self.spare;
                process.shared_memory = self.shared_memory.unwrap_or(process.shared_memory);
                process.concurrency = self.concurrency;
            }

            /// Keeps the device and the variables of the first replica.
            pub(crate) fn keep_one_replica(&mut self) {
                if let Some(Devices::Named(devices)) = &mut self.devices {
                    devices.truncate(1);
                }
                if let Variables::Each(each) = &mut self.env {
                    self.env = Variables::Same(each.swap_remove(0));
                }
            }

            /// Where its replicas run.
            pub(crate) fn placement(&self) -> PlacementKeys<'_> {
                let Self { devices, env, settings, spare, .. } = self;
                let device = self.device.as_deref();
                PlacementKeys { device, devices: devices.as_ref(), env, settings, spare: *spare }
            }
        }
    };
}

process_keys! {
    /// The keys of kind `process`.
    pub struct ProcessKeys {
        /// The program and its arguments. A program with a slash is relative to the file. Required.
        pub command: Vec<String>,
        /// The working directory, relative to the file; by default the file's own.
        pub directory: Option<PathBuf>,
    }
}

process_keys! {
    /// The keys of kind `python`.
    pub struct PythonKeys {
        /// The service; see [`PythonConfig::app`]. Required.
        pub app: String,
        /// The interpreter; see [`PythonConfig::python`].
        pub python: Option<PathBuf>,
        /// Whether replicas are forked from a process that has imported the service; by default as the service says.
        pub warm: Option<bool>,
        /// The stage whose replicas run it, another method of the same class; by default it has its own.
        pub replicas_of: Option<String>,
    }
}

impl ProcessKeys {
    /// The command for a file in `base`.
    pub(crate) fn process(&self, base: &Path) -> ProcessConfig {
        let mut process = ProcessConfig::new(&self.command);
        if let Some(program) = process.command.first_mut() {
            *program = program_in(base, program);
        }
        let directory = self.directory.as_ref().map_or_else(|| base.to_owned(), |directory| base.join(directory));
        process.directory = Some(directory).filter(|directory| !directory.as_os_str().is_empty());
        self.apply(&mut process);
        process
    }
}

impl PythonKeys {
    /// The service.
    #[must_use]
    pub fn config(&self) -> PythonConfig {
        PythonConfig { app: self.app.clone(), python: self.python.clone() }
    }

    /// The file or module with the class or function, and the method of the class.
    pub(crate) fn class_and_method(&self) -> (&str, &str) {
        let name_at = self.app.rfind(':').unwrap_or(0);
        let dot = self.app[name_at..].find('.').map(|dot| name_at + dot);
        dot.map_or((&*self.app, "predict"), |dot| (&self.app[..dot], &self.app[dot + 1..]))
    }

    /// The command for a file in `base`, of this service.
    pub(crate) fn process(&self, base: &Path, mut service: PythonService) -> ProcessConfig {
        service.warm = self.warm.unwrap_or(service.warm);
        let mut process = self.config().process_of(base, &service);
        self.apply(&mut process);
        process
    }
}

/// A program with a slash is relative to the file in `base`. The child starts in another directory.
pub(super) fn program_in(base: &Path, program: &OsStr) -> OsString {
    if Path::new(program).components().count() < 2 {
        return program.to_owned();
    }
    std::path::absolute(base.join(program)).unwrap_or_else(|_| base.join(program)).into()
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map(Some).ok_or_else(|| D::Error::custom("expected a duration such as \"250ms\" or \"30s\""))
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_bytes(&text).map(Some).ok_or_else(|| D::Error::custom("expected a size such as \"64MiB\""))
}

fn memory_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MemoryLimit, D::Error> {
    let text = String::deserialize(deserializer)?;
    read_memory_limit(&text).ok_or_else(|| D::Error::custom(format!("expected {MEMORY_LIMIT}")))
}

/// The form of a memory limit.
pub(crate) const MEMORY_LIMIT: &str = "a size such as \"2GiB\", or \"none\"";

/// Reads a memory limit that is set.
pub(crate) fn read_memory_limit(text: &str) -> Option<MemoryLimit> {
    if text == NONE { Some(MemoryLimit::Unlimited) } else { parse_bytes(text).map(MemoryLimit::Bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_used_unless_the_file_says_no() {
        for (line, shared_memory) in [("", true), ("shared_memory = true", true), ("shared_memory = false", false)] {
            let process: ProcessKeys = toml::from_str(&format!("command = [\"worker\"]\n{line}")).unwrap();
            assert_eq!(process.process(Path::new("")).shared_memory, shared_memory);
            let python: PythonKeys = toml::from_str(&format!("app = \"app.py:App\"\n{line}")).unwrap();
            let service = r#"{ "target": "app.py:App", "route": "/app", "input": {}, "output": {} }"#;
            let process = python.process(Path::new(""), serde_json::from_str(service).unwrap());
            assert_eq!(process.shared_memory, shared_memory);
        }
    }
}
