//! The batcher: one per stage and node. It keeps the queue and forms batches.
//!
//! Work-conserving: a free worker and a waiting entry mean a batch now; batches grow while workers are busy. A batch is
//! formed at the moment a worker takes it, so priorities, deadlines and cancellations count until the last instant.
//!
//! * **Full:** [`Pool::submit`] refuses the entry with `Overloaded` and a `retry_after`; nothing enters the mailbox.
//! * **Late:** a call that cannot make its deadline is refused before it queues, as far as the measured cost tells. Else the
//!   caller's own timer answers `DeadlineExceeded`; the entry is dropped from the queue, never executed.
//! * **Cancelled:** the caller's guard tells the batcher, which drops the entry and counts it.

mod actor;
mod admission;
#[cfg(feature = "testing")]
pub mod bench;
mod cost;
mod entry;
mod inbox;
mod lanes;
mod message;
mod parts;
mod places;
mod policy;
mod pool;
mod queue;
mod submission;
mod tree;

pub use policy::{BatchPolicy, DEFAULT_AGEING, ReleaseReason};

pub(crate) use actor::{BatcherActor, BatcherArgs};
pub(crate) use entry::{Entry, EntryOutcome, EntryReply};
pub(crate) use message::BatcherMessage;
pub(crate) use pool::{Pool, Restart};

#[cfg(test)]
pub(crate) use {
    admission::{Prospect, Verdict},
    cost::SharedCost,
    lanes::Lanes,
    policy::{Release, Waiting},
    queue::EntryKey,
};
