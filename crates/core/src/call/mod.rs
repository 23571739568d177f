//! One call: what its caller may ask for beside the input, what it gets beside the output, and the flight that stands for it.

mod flight;
mod options;
mod session;
mod timing;

pub use options::{CallOptions, Priority};
pub use session::SessionKey;
pub use timing::{Reply, Timing};

pub(crate) use flight::Flight;
pub(crate) use timing::Micros;
