//! One call: what its caller may ask for beside the input, what it gets beside the output, and the flight that stands for it.

mod context;
mod flight;
mod options;
mod origin;
mod session;
mod timing;

pub use context::CallContext;
pub use options::{CallOptions, MAX_REQUEST_ID_CHARS, Priority, is_valid_request_id};
pub use session::SessionKey;
pub use timing::{Reply, Timing};

pub(crate) use context::Outer;
pub(crate) use flight::Flight;
pub(crate) use origin::Origin;
pub(crate) use timing::Micros;
