//! The router: which route leads to which pipeline.
//!
//! The table is published as a snapshot that callers read without a lock; the actor owns the next one. A call keeps the
//! route it found, whatever is published meanwhile.

mod actor;
mod message;
mod route;
mod snapshot;

pub use route::Route;

pub(crate) use actor::RouterActor;
pub(crate) use message::RouterMessage;
pub(crate) use route::{RouteLimits, RouteParts};
pub(crate) use snapshot::Router;
