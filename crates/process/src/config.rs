//! How a child process is started.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use callboard_core::{Contract, Failure, StageSettings};

use crate::memory::MemoryLimit;

/// A large model is read from a cold disk within this time.
const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(60);

/// Half of the default of `limits.max_in_flight_bytes`.
const DEFAULT_MAX_BATCH_BYTES: u64 = 256 * 1024 * 1024;

/// A method that the children of another stage run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessMethod {
    /// Its name, for the worker.
    pub name: String,
    /// The timeout of its stage.
    pub timeout: Option<Duration>,
    /// The contract of its stage.
    pub contract: Contract,
}

/// The command of a child, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// The program and its arguments. A program without a slash is looked up in `PATH`.
    pub command: Vec<OsString>,
    /// The name of the program, as its first argument and in messages. By default the first word of the command.
    pub name: Option<OsString>,
    /// The command of a fork server for the same worker, which does the slow part of the start once: children are
    /// forked from it, and `command` starts a child if it reports that a fork is not safe. None by default. Linux
    /// only; see the worker protocol.
    pub fork_server: Option<Vec<OsString>>,
    /// The target of a child, if its fork server has the children of several stages: the stages of the same
    /// [`ForkServers`](crate::ForkServers) with the same command, variables, directory and limits. None by default: the
    /// fork server is the stage's own.
    pub fork_target: Option<String>,
    /// Variables beside those of this process.
    pub env: BTreeMap<String, String>,
    /// Variables of each replica beside those: replica `i` has the `i`-th, from the first again if there are more
    /// replicas, and each its own fork server. Such a stage has no spare. None by default.
    pub replica_env: Vec<BTreeMap<String, String>>,
    /// The CPU cores of each replica, from the start of its process on: replica `i` has the `i`-th, from the first again
    /// if there are more replicas. Replicas with the same cores share a fork server. Such a stage has no spare. By
    /// default the system decides. Linux only: elsewhere, and with a core that is not there, the start fails.
    pub replica_cores: Vec<Vec<usize>>,
    /// The working directory; by default that of this process.
    pub directory: Option<PathBuf>,
    /// The time until it must be ready. Default 60 s. `None`: as long as it gives signs of life, by a message of the
    /// worker protocol or by work on a processor.
    pub start_timeout: Option<Duration>,
    /// The time that it has for its clean-up before it is killed. Default 5 s.
    pub stop_timeout: Duration,
    /// The most bytes of a batch, and of its outcomes; a larger batch is divided. Default 256 MiB.
    pub max_batch_bytes: u64,
    /// The most bytes of memory of a child. By default a share of this machine's. Linux only.
    pub memory_limit: MemoryLimit,
    /// Whether frames of 256 KiB and more go through shared memory where both sides can, instead of the socket. Each
    /// replica then keeps what its largest recent batch took, and twice its largest recent outcomes, or twice that if
    /// memory is still in use when the next batch comes. Default true.
    pub shared_memory: bool,
    /// The hosts from which a worker may fetch files, if a client sends a URL; none by default.
    pub files: FilesConfig,
    /// Whether a further child is kept ready, which takes the place of a lost replica without the time of a start. It
    /// costs the memory of a replica. It gets the index of the replica that started last; replicas that are pinned to
    /// a core have no spare. Default false.
    pub spare: bool,
    /// Its name in errors of its start, by default its command.
    pub label: Option<String>,
    /// How many calls a child works on at once, each in a batch of its own; the worker must support this. By default,
    /// and at 1, a child has one batch at a time.
    pub concurrency: Option<NonZeroU32>,
    /// For a child that works on several calls, of a stage without a `timeout`: the longest time without any message
    /// while it has calls. It is pinged within that time; then it is killed, and its calls fail. None by default. With
    /// a `timeout`, that is the limit.
    pub silence_timeout: Option<Duration>,
    /// The methods that a child runs beside the one of its stage, by the names of the stages that [its stage
    /// hosts](callboard_core::Stage::hosted_by); none by default. The worker must support this.
    pub methods: BTreeMap<String, ProcessMethod>,
}

/// The hosts from which a worker may fetch files, if a client sends a URL. The worker enforces the rules: see the
/// worker protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesConfig {
    /// Hosts with scheme, such as `https://cdn.example.org`, `https://*.example.org` or `http://10.0.0.7:8080`. A host
    /// with a port may have a private address.
    pub hosts: Vec<String>,
    /// The most bytes of all files that are fetched for one call.
    pub max_bytes: u64,
    /// The most time for a file.
    pub timeout: Duration,
}

impl ProcessConfig {
    /// The defaults, for this command.
    pub fn new<T: Into<OsString>>(command: impl IntoIterator<Item = T>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            name: None,
            fork_server: None,
            fork_target: None,
            env: BTreeMap::new(),
            replica_env: Vec::new(),
            replica_cores: Vec::new(),
            directory: None,
            start_timeout: Some(DEFAULT_START_TIMEOUT),
            stop_timeout: StageSettings::DEFAULT_STOP_TIMEOUT,
            max_batch_bytes: DEFAULT_MAX_BATCH_BYTES,
            memory_limit: MemoryLimit::default(),
            shared_memory: true,
            spare: false,
            label: None,
            files: FilesConfig::default(),
            concurrency: None,
            silence_timeout: None,
            methods: BTreeMap::new(),
        }
    }

    /// The calls that a child works on at once, if it works on several.
    pub(crate) fn concurrency(&self) -> Option<NonZeroU32> {
        self.concurrency.filter(|calls| calls.get() > 1)
    }

    /// The configuration of each replica, with its variables and its cores, or this one.
    pub(crate) fn of_replicas(&self) -> Vec<Self> {
        let (env, cores) = (self.replica_env.len().max(1), self.replica_cores.len().max(1));
        // Both start over, each after its own number of replicas.
        let count = (1..=StageSettings::MAX_REPLICAS).find(|count| count % env == 0 && count % cores == 0);
        let of_replica = |index: usize| {
            let mut config = self.clone();
            if let Some(own) = self.replica_env.get(index % env) {
                config.env.extend(own.clone());
                (config.replica_env, config.spare) = (Vec::new(), false);
            }
            if let Some(own) = self.replica_cores.get(index % cores) {
                (config.replica_cores, config.spare) = (vec![own.clone()], false);
            }
            config
        };
        (0..count.unwrap_or(StageSettings::MAX_REPLICAS)).map(of_replica).collect()
    }

    pub(crate) fn cannot_start(&self, error: &io::Error) -> Failure {
        Failure::new(format!("`{}` cannot be started: {error}", self.shown()))
    }

    /// The error of a program that was started, and did not become ready.
    pub(crate) fn not_started(&self, reason: &str) -> Failure {
        Failure::new(format!("`{}`: {reason}", self.label.clone().unwrap_or_else(|| self.shown())))
    }

    /// The parts of the configuration that hold for a fork server and its children. Stages with equal parts may share a
    /// fork server.
    pub(crate) fn for_fork_server(&self) -> Self {
        Self {
            fork_server: self.fork_server.clone(),
            env: self.env.clone(),
            replica_cores: self.replica_cores.clone(),
            directory: self.directory.clone(),
            start_timeout: self.start_timeout,
            memory_limit: self.memory_limit,
            label: self.fork_server.as_ref().and_then(|command| Some(command.last()?.to_string_lossy().into_owned())),
            ..Self::new::<OsString>([])
        }
    }

    /// The command as text, for messages.
    pub(crate) fn shown(&self) -> String {
        let program = self.name.iter().chain(self.command.first()).take(1);
        program.chain(self.command.iter().skip(1)).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(value: usize) -> BTreeMap<String, String> {
        BTreeMap::from([("OWN".to_owned(), value.to_string())])
    }

    #[test]
    fn variables_and_cores_of_replicas_start_over_each_after_their_own_number() {
        let mut config = ProcessConfig::new(["worker"]);
        config.spare = true;
        config.env.insert("ALL".to_owned(), "1".to_owned());
        assert_eq!(config.of_replicas(), [config.clone()], "all replicas are alike");
        config.replica_env = vec![variables(0), variables(1)];
        config.replica_cores = vec![vec![0, 1], vec![2], vec![3]];
        let all = config.of_replicas();
        let own = |config: &ProcessConfig| (config.env["OWN"].clone(), config.replica_cores.concat());
        let expected = [(0, vec![0, 1]), (1, vec![2]), (0, vec![3]), (1, vec![0, 1]), (0, vec![2]), (1, vec![3])];
        assert_eq!(all.iter().map(own).collect::<Vec<_>>(), expected.map(|(own, cores)| (own.to_string(), cores)));
        assert!(all.iter().all(|own| own.env["ALL"] == "1" && own.replica_env.is_empty() && !own.spare));
        // Variables alone, and cores alone.
        config.replica_cores.clear();
        assert_eq!(config.of_replicas().len(), 2);
        assert!(config.of_replicas().iter().all(|own| !own.spare));
        (config.replica_env, config.replica_cores) = (Vec::new(), vec![vec![0], vec![1], vec![2]]);
        assert_eq!(config.of_replicas().len(), 3);
        assert!(config.of_replicas().iter().all(|own| !own.spare));
    }

    /// Both would start over together only after more replicas than a stage may have.
    #[test]
    fn a_stage_has_no_more_configurations_than_replicas() {
        let mut config = ProcessConfig::new(["worker"]);
        config.replica_env = (0..StageSettings::MAX_REPLICAS).map(variables).collect();
        config.replica_cores = vec![vec![0]; StageSettings::MAX_REPLICAS - 1];
        assert_eq!(config.of_replicas().len(), StageSettings::MAX_REPLICAS);
    }

    #[test]
    fn one_call_at_once_is_no_concurrency() {
        let concurrency = |calls: Option<u32>| {
            let mut config = ProcessConfig::new(["worker"]);
            config.concurrency = calls.and_then(NonZeroU32::new);
            config.concurrency().map(NonZeroU32::get)
        };
        assert_eq!([concurrency(None), concurrency(Some(1)), concurrency(Some(2))], [None, None, Some(2)]);
    }

    #[test]
    fn a_command_is_shown_with_its_name_and_errors_of_a_start_with_its_label() {
        let mut config = ProcessConfig::new(["/usr/bin/python3", "-m", "worker"]);
        let not_started = |config: &ProcessConfig| config.not_started("no weights").message().to_owned();
        assert_eq!(not_started(&config), "`/usr/bin/python3 -m worker`: no weights");
        config.name = Some("python3".into());
        config.label = Some("app.py:Model".to_owned());
        assert_eq!(config.shown(), "python3 -m worker");
        assert_eq!(not_started(&config), "`app.py:Model`: no weights");
        let failure = config.cannot_start(&io::Error::other("no memory"));
        assert_eq!(failure.message(), "`python3 -m worker` cannot be started: no memory");
    }

    #[test]
    fn stages_share_a_fork_server_if_it_would_be_the_same() {
        let mut config = ProcessConfig::new(["worker", "app.py:A"]);
        config.fork_server = Some(vec!["fork-server".into(), "app.py".into()]);
        config.env = variables(7);
        config.replica_cores = vec![vec![1]];
        config.directory = Some("models".into());
        config.start_timeout = None;
        config.memory_limit = MemoryLimit::Bytes(1 << 30);
        let own = config.for_fork_server();
        assert_eq!(own.label.as_deref(), Some("app.py"), "what it imports");
        let mut other = config.clone();
        other.command = vec!["worker".into(), "app.py:B".into()];
        (other.spare, other.label, other.fork_target) = (true, Some("B".to_owned()), Some("app.py:B".to_owned()));
        assert_eq!(other.for_fork_server(), own);
        let changed: [fn(&mut ProcessConfig); 6] = [
            |config| config.fork_server = Some(vec!["fork-server".into(), "other.py".into()]),
            |config| config.env.clear(),
            |config| config.replica_cores = vec![vec![2]],
            |config| config.directory = None,
            |config| config.start_timeout = Some(Duration::from_secs(1)),
            |config| config.memory_limit = MemoryLimit::Unlimited,
        ];
        for change in changed {
            let mut other = config.clone();
            change(&mut other);
            assert_ne!(other.for_fork_server(), own);
        }
    }
}
