//! One stage on this node: its queue's entrance, its replicas, and the batches that they run.
//!
//! * **Full:** [`Pool::submit`] refuses the entry with `Overloaded` and a `retry_after`; nothing enters the mailbox.
//! * **Late:** entries are checked once more right before user code runs: an expired entry is not executed.
//! * **Cancelled:** the caller's guard tells the batcher, which drops the entry and counts it.
//!
//! The batcher's actor forms the batches, the replica's actor runs them, the supervisor starts both; each of them knows
//! this module, and this module knows none of them.

mod demand;
mod entrance;
mod handle;
mod health;
mod idle;
mod in_flight;
mod lifecycle;
mod load;
mod message;
mod parts;
mod poison;
mod replica;
mod replica_set;
mod rerun_budget;
mod response_cache;
mod run;
mod sharing;
mod submission;

pub use lifecycle::StageState;

pub(crate) use demand::{FailedStart, ScaleChange, WakePort};
pub(crate) use handle::Pool;
pub(crate) use idle::without_running;
pub(crate) use message::{BatcherMessage, WorkerMessage};
pub(crate) use replica::{BatchPort, ReplicaHandle};
pub(crate) use replica_set::Restart;
pub(crate) use run::{BatchRun, Finish, RunError};

#[cfg(test)]
pub(crate) use {lifecycle::Lifecycle, poison::PoisonShare, rerun_budget::RerunBudget};
