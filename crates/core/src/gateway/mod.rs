//! The gateway: permits of calls, calls in flight, drain.
//!
//! Every call holds a [`Permit`] from its admission until its outcome is there. The permits count calls and bytes; the
//! ledger knows each call in flight.
//!
//! * **Full:** [`Gateway::take_permit`] refuses at once; nothing was read or queued.
//! * **Draining:** it refuses new calls; calls in flight continue.
//! * **Cancelled:** dropping the call's admission frees its permit and closes its line in the ledger.

mod actor;
mod admission;
mod handle;
mod message;
mod pending_bodies;

pub use admission::{Limits, RequestBytes};
pub use handle::HeldBytes;
pub use pending_bodies::PendingBody;

pub(crate) use actor::GatewayActor;
#[cfg(test)]
pub(crate) use admission::Ledger;
pub(crate) use admission::Refusal;
pub(crate) use handle::{Gateway, Permit};
pub(crate) use message::GatewayMessage;
