//! The stages around child processes, and the fork servers that stages of one app share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_codec::Value;
use callboard_core::{Replica, Stage, StreamStage};
use parking_lot::Mutex;

use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::memory::{self, MemoryLimit};
use crate::spare::ChildStarter;
use crate::worker::{ProcessWorker, StreamingProcessWorker};

/// The fork servers of one app. Its stages share one where they have the same
/// [fork server](field@ProcessConfig::fork_server), variables, directory and limits, and say what it is to serve for
/// them: what they import is imported once. Another version of the app has its own.
#[derive(Clone, Debug, Default)]
pub struct ForkServers(Arc<Mutex<Vec<KeptServer>>>);

/// A fork server, and the configuration of the stage that came first.
type KeptServer = (ProcessConfig, Weak<ForkServer>);

impl ForkServers {
    /// As [`stage`](fn@stage), with these fork servers.
    #[must_use]
    pub fn stage(&self, name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
        let children = self.children(config);
        let calls = config.concurrency();
        let worker = move |replica: &Replica| Ok(ProcessWorker::new(&children, replica));
        let stage = Stage::async_worker(name, worker).stop_timeout(stop_within(config));
        match calls {
            Some(calls) => stage.concurrency(calls.get()),
            None => stage.concurrency(1).hands_ahead(),
        }
        .of_types()
    }

    /// As [`stream_stage`], with these fork servers.
    #[must_use]
    pub fn stream_stage(&self, name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
        let children = self.children(config);
        let calls = config.concurrency();
        let worker = move |replica: &Replica| Ok(StreamingProcessWorker::new(&children, replica));
        let stage = match calls {
            Some(calls) => StreamStage::async_worker(name, worker).concurrency(calls.get()),
            None => StreamStage::async_batch_worker(name, worker).concurrency(1).hands_ahead(),
        };
        stage.stop_timeout(stop_within(config)).of_types()
    }

    fn children(&self, config: &ProcessConfig) -> Arc<ChildStarter> {
        if matches!(config.memory_limit, MemoryLimit::Bytes(_)) {
            memory::of_node();
        }
        let of_replica = |config: ProcessConfig| {
            let fork_server = self.fork_server(&config);
            (config, fork_server)
        };
        Arc::new(ChildStarter::new(config, config.of_replicas().into_iter().map(of_replica).collect()))
    }

    fn fork_server(&self, config: &ProcessConfig) -> Arc<ForkServer> {
        if config.fork_target.is_none() {
            return Arc::new(ForkServer::new(config));
        }
        let (own, mut servers) = (config.for_fork_server(), self.0.lock());
        let running = servers.iter().filter(|(known, _)| *known == own).find_map(|(_, server)| server.upgrade());
        running.unwrap_or_else(|| {
            let server = Arc::new(ForkServer::new(&own));
            servers.retain(|(_, server)| server.strong_count() > 0);
            servers.push((own, Arc::downgrade(&server)));
            server
        })
    }
}

/// The time in which a replica ends: that of its child, and a second until the child is killed.
fn stop_within(config: &ProcessConfig) -> Duration {
    config.stop_timeout.saturating_add(Duration::from_secs(1))
}

/// A stage with one child process for each replica. Batches, replicas, queue, timeout and contract are the stage's
/// settings; see [`Stage`].
///
/// A child that ends during a batch is a crash: the contract says what runs again. A child that ends between batches is
/// started again at once. After the stage's timeout, its callers are answered and the child is killed.
///
/// With a [`concurrency`](field@ProcessConfig::concurrency) the child works on several calls at once. After the stage's
/// timeout a call is cancelled. A child that then sends nothing for as long is killed. If the stage has no timeout, its
/// [`silence_timeout`](field@ProcessConfig::silence_timeout) counts.
#[must_use]
pub fn stage(name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
    ForkServers::default().stage(name, config)
}

/// As [`stage`](fn@stage), for children that answer each item with a stream of outputs. A reader without credit pauses
/// its whole batch; with a [`concurrency`](field@ProcessConfig::concurrency), its own stream.
#[must_use]
pub fn stream_stage(name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
    ForkServers::default().stream_stage(name, config)
}
