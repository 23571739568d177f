//! The queue of one stage, as plain values: order, permits, cost, when a batch leaves, and in which
//! groups entries run again. No actor, no timer.

mod admission;
#[cfg(feature = "testing")]
pub mod bench;
mod cost;
mod entry;
mod hosted;
pub(crate) mod inbox;
mod permits;
mod policy;
mod returns;
mod sessions;
mod suspects;
mod tree;
mod waiting;

pub use policy::BatchPolicy;

pub(crate) use admission::{AdmissionDecision, CONFIRMED_FOR, DeadlineCheck};
pub(crate) use cost::{CostLine, Load, SharedCost};
pub(crate) use entry::{ContainedPayload, Entry, EntryOutcome, EntryReply, HOSTED_BITS, HostedId, OutcomePort};
pub(crate) use hosted::HostedQueues;
pub(crate) use inbox::Inbox;
pub(crate) use permits::{QueuePermit, QueuePermits};
pub(crate) use policy::{QueueState, Release};
pub(crate) use returns::{BatchEnd, NextBatch, Returns};
pub(crate) use sessions::SessionQueues;
pub(crate) use suspects::{LifeId, SuspectGroup, Suspects, Suspicion};
pub(crate) use waiting::EntryKey;
