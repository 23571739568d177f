//! The stages around child processes.

use callboard_codec::Value;
use callboard_core::{Replica, Stage, StreamStage};

use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::worker::{ProcessWorker, StreamingProcessWorker};

/// A stage with one child process for each replica, on a thread of its own. Batches, replicas, queue, timeout and
/// contract are the stage's settings; see [`Stage`].
///
/// A child that ends during a batch is a crash: the contract says what runs again. A child that ends between batches is
/// started again at once. After the stage's timeout, its callers are answered and the child is killed.
#[must_use]
pub fn stage(name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
    let (config, fork_server) = (config.clone(), ForkServer::new(config));
    Stage::worker(name, move |replica: &Replica| ProcessWorker::start(&config, &fork_server, replica))
}

/// As [`stage`], for children that answer each item with a stream of outputs. A reader without credit pauses its whole
/// batch.
#[must_use]
pub fn stream_stage(name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
    let (config, fork_server) = (config.clone(), ForkServer::new(config));
    StreamStage::worker(name, move |replica: &Replica| {
        ProcessWorker::start(&config, &fork_server, replica).map(StreamingProcessWorker)
    })
}
