//! The stages around child processes.

use callboard_codec::Value;
use callboard_core::{Replica, Stage, StreamStage};

use crate::concurrent::{ConcurrentStreamWorker, ConcurrentWorker};
use crate::config::ProcessConfig;
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
    let config = config.clone();
    if let Some(calls) = config.concurrency {
        let stage = Stage::async_worker(name, move |replica: &Replica| Ok(ConcurrentWorker::new(&config, replica)));
        return stage.concurrency(calls.get());
    }
    Stage::worker(name, move |replica: &Replica| ProcessWorker::start(&config, replica))
}

/// As [`stage`], for children that answer each item with a stream of outputs. A reader without credit pauses its whole
/// batch; with a [`concurrency`](ProcessConfig::concurrency), its own stream.
#[must_use]
pub fn stream_stage(name: &str, config: &ProcessConfig) -> StreamStage<Value, Value> {
    let config = config.clone();
    if let Some(calls) = config.concurrency {
        let stage =
            StreamStage::async_worker(name, move |replica: &Replica| Ok(ConcurrentStreamWorker::new(&config, replica)));
        return stage.concurrency(calls.get());
    }
    StreamStage::worker(name, move |replica: &Replica| {
        ProcessWorker::start(&config, replica).map(StreamingProcessWorker)
    })
}
