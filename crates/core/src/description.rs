//! A running node as it describes itself, by [`NodeHandle::describe`](crate::NodeHandle::describe)
//! and [`NodeHandle::health`](crate::NodeHandle::health), and the plan of a pipeline.

pub use crate::metrics::{RouteStatistics, StageStatistics};
pub use crate::node::{
    ActorDescription, ActorHealth, CallDescription, Description, Health, NodesWanted, RemoteStageHealth,
    ReplicaDescription, RestartDescription, RouteDescription, ScaleDescription, ScalingDescription, StageDescription,
    StageHealth, StagePart,
};
pub use crate::pipeline::{Choice, MAX_PLAN_DEPTH, PipelinePlan, PlanError, PlanMistake, Planned, StageOutline};
pub use crate::pool::StageState;
pub use crate::router::{RevisionDescription, RolloutDescription, RolloutState};
