//! The router: the pipeline of each route, and the stages that run for it.
//!
//! The table is published as a snapshot that callers read without a lock; the actor owns the next one. A call keeps its
//! revision of the route, even if a newer table is published.
//!
//! * **Changed while serving:** the actor carries out one [`RouteChange`] after the other. New stages warm up first,
//!   then the next table is published, then closed routes empty and their stages end. The actor itself never waits.
//! * **Full:** a change takes a permit before it is sent; beyond the bound it is refused with [`ChangeError::Busy`].
//! * **Cancelled:** dropping the future of a change before it took effect undoes it.

mod actor;
mod admission;
mod change;
mod deployed_stage;
mod elsewhere;
mod handle;
mod message;
mod nearest;
mod path_template;
mod paths;
mod request_argument;
mod rollout;
mod route;
mod spec;
mod statistics;
mod table;
mod task;
#[cfg(test)]
mod tests;

pub use admission::Admission;
pub use change::{AppliedChange, ChangeError, RouteChange};
pub use nearest::nearest;
pub use path_template::{route_name, split_route_name};
pub use request_argument::{RequestArgument, RequestPlace};
pub use rollout::{RevisionDescription, Rollout, RolloutDescription, RolloutState};
pub use route::{RequestFields, Route};
pub use spec::{RouteData, RouteSpec, check_route_name};
pub use task::Task;

pub(crate) use actor::{RouterActor, RouterArgs};
pub(crate) use deployed_stage::DeployedStage;
pub(crate) use handle::Router;
pub(crate) use message::RouterMessage;
pub(crate) use rollout::{Observation, agrees};
pub(crate) use route::{HeldRoute, TrialPart};
pub(crate) use table::Table;
