//! The stages around child processes.

use std::sync::Arc;

use callboard_codec::Value;
use callboard_core::{Replica, Stage, StreamStage};

use crate::concurrent::{ConcurrentStreamWorker, ConcurrentWorker};
use crate::config::ProcessConfig;
use crate::fork_server::ForkServer;
use crate::worker::{ProcessWorker, StreamingProcessWorker};

/// A stage with one child process for each replica, on a thread of its own. Batches, replicas, queue, timeout and
/// contract are the stage's settings; see [`Stage`].
///
/// A child that ends during a batch is a crash: the contract says what runs again. A child that ends between batches is
/// started again at once. After the stage's timeout, its callers are answered and the child is killed.
///
/// With a [`concurrency`](ProcessConfig::concurrency) the child works on several calls at once. After the stage's
/// timeout a call is cancelled; a child that then says nothing at all for as long is killed.
#[must_use]
pub fn stage(name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
    let (config, fork_server) = (config.clone(), Arc::new(ForkServer::new(config)));
    if let Some(calls) = config.concurrency {
        let worker = move |replica: &Replica| Ok(ConcurrentWorker::new(&config, &fork_server, replica));
        return Stage::async_worker(name, worker).concurrency(calls.get());
    }
    Stage::worker(name, move |replica: &Replica| ProcessWorker::start(&config, &fork_server, replica))
}

/// As [`stage`], for children that answer each item with a stream of outputs. A reader without credit pauses its whole
/// batch; with a [`concurrency`](ProcessConfig::concurrency), its own stream.
#[must_use]
pub fn stream_stage(name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
    let (config, fork_server) = (config.clone(), Arc::new(ForkServer::new(config)));
    if let Some(calls) = config.concurrency {
        let worker = move |replica: &Replica| Ok(ConcurrentStreamWorker::new(&config, &fork_server, replica));
        return StreamStage::async_worker(name, worker).concurrency(calls.get());
    }
    StreamStage::worker(name, move |replica: &Replica| {
        ProcessWorker::start(&config, &fork_server, replica).map(StreamingProcessWorker)
    })
}
