//! The place where a replica's code runs: its actor, and the runtime or thread that runs it.
//!
//! * **Full:** an executor has no queue; it gets a batch, from the batcher or from a caller, only when a slot is free.
//! * **Late:** a thread that exceeds the stage's timeout is abandoned, and its callers get their answer.
//! * **Panic:** ends this replica only; the supervisor starts another.

mod actor;
mod kind;
mod shared;
mod watchdog;

pub(crate) use actor::{ReplicaReport, ReportPort, WorkerActor, WorkerArgs};
pub(crate) use watchdog::Watchdog;
