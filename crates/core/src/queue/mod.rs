//! The queue of one stage, as plain values: order, permits, cost, and when a batch leaves. No actor, no timer.

mod admission;
#[cfg(feature = "testing")]
pub mod bench;
mod cost;
mod entry;
pub(crate) mod inbox;
mod lanes;
mod places;
mod policy;
mod tree;
mod waiting;

pub use policy::{BatchPolicy, DEFAULT_AGEING};

pub(crate) use admission::{CONFIRMED_FOR, Prospect, Verdict};
pub(crate) use cost::{Load, SharedCost};
pub(crate) use entry::{Entry, EntryOutcome, EntryReply, Kept, OutcomePort};
pub(crate) use inbox::Inbox;
pub(crate) use lanes::Lanes;
pub(crate) use places::{Place, Places};
pub(crate) use policy::{Release, Waiting};
pub(crate) use waiting::EntryKey;
