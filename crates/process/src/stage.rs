//! The stages around child processes.

use std::sync::Arc;

use callboard_codec::Value;
use callboard_core::{Replica, Stage, StreamStage};

use crate::config::ProcessConfig;
use crate::memory::{self, MemoryLimit};
use crate::spare::Children;
use crate::worker::{ProcessWorker, StreamingProcessWorker};

/// A stage with one child process for each replica. Batches, replicas, queue, timeout and
/// contract are the stage's settings; see [`Stage`].
///
/// A child that ends during a batch is a crash: the contract says what runs again. A child that ends between batches is
/// started again at once. After the stage's timeout, its callers are answered and the child is killed.
///
/// With a [`concurrency`](field@ProcessConfig::concurrency) the child works on several calls at once. After the stage's
/// timeout a call is cancelled; a child that then says nothing at all for as long is killed.
#[must_use]
pub fn stage(name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
    let children = children(config);
    let calls = config.concurrency();
    let worker = move |replica: &Replica| Ok(ProcessWorker::new(&children, replica));
    let stage = Stage::async_worker(name, worker);
    match calls {
        Some(calls) => stage.concurrency(calls.get()),
        None => stage.concurrency(1).hands_ahead(),
    }
}

/// As [`stage`], for children that answer each item with a stream of outputs. A reader without credit pauses its whole
/// batch; with a [`concurrency`](field@ProcessConfig::concurrency), its own stream.
#[must_use]
pub fn stream_stage(name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
    let children = children(config);
    let calls = config.concurrency();
    let worker = move |replica: &Replica| Ok(StreamingProcessWorker::new(&children, replica));
    match calls {
        Some(calls) => StreamStage::async_worker(name, worker).concurrency(calls.get()),
        None => StreamStage::async_batch_worker(name, worker).concurrency(1).hands_ahead(),
    }
}

fn children(config: &ProcessConfig) -> Arc<Children> {
    if matches!(config.memory_limit, MemoryLimit::Bytes(_)) {
        memory::of_node();
    }
    Arc::new(Children::new(config))
}
