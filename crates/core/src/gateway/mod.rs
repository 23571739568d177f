//! The gateway: who may come in, who is in, and how everybody leaves.
//!
//! Every call holds an [`Admission`] from before its body is read until its outcome is there. The permits count calls and
//! bytes; the ledger knows each call in flight.
//!
//! * **Full:** [`Gateway::admit`] answers `Overloaded` at once; nothing was read or queued.
//! * **Draining:** it answers `Unavailable`; what is in flight goes on.
//! * **Cancelled:** dropping the admission frees its permits and closes its line in the ledger.

mod actor;
mod admission;
mod handle;
mod message;

pub use admission::{DEFAULT_MAX_IN_FLIGHT, DEFAULT_MAX_IN_FLIGHT_BYTES, Limits};
pub use handle::{Admission, HeldBytes};

pub(crate) use actor::GatewayActor;
#[cfg(test)]
pub(crate) use admission::Ledger;
pub(crate) use admission::Refusal;
pub(crate) use handle::{Gateway, Permit};
pub(crate) use message::GatewayMessage;
