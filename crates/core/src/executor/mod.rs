//! Where a replica's code runs: its actor, and behind it the runtime or a thread.
//!
//! * **Full:** an executor has no queue; the batcher hands over a batch only when a slot is free.
//! * **Late:** a thread that does not come back within the stage's timeout is given up, and its callers are answered.
//! * **Panic:** ends this replica only; the supervisor starts another.

mod actor;
mod kind;
mod watchdog;

pub(crate) use actor::{ReplicaReport, ReportPort, WorkerActor, WorkerArgs};
pub(crate) use watchdog::Watchdog;
