//! The stage around child processes.

use callboard_codec::Value;
use callboard_core::{Replica, Stage};

use crate::config::ProcessConfig;
use crate::worker::ProcessWorker;

/// A stage with one child process for each replica, on a thread of its own. Batches, replicas, queue, timeout and
/// contract are the stage's settings; see [`Stage`].
///
/// A child that ends during a batch is a crash: the contract says what runs again. A child that ends between batches is
/// started again at once. After the stage's timeout, its callers are answered and the child is killed.
#[must_use]
pub fn stage(name: &str, config: &ProcessConfig) -> Stage<Value, Value> {
    let config = config.clone();
    Stage::worker(name, move |replica: &Replica| ProcessWorker::start(&config, replica))
}
