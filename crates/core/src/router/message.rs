//! The messages to the router.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::change::{AppliedChange, ChangeError, RouteChange, SettlementGuard};
use super::deployed_stage::DeployedStage;
use super::rollout::Decision;
use crate::id::{RouteIndex, RouteName};
use crate::metrics::Verdict;

/// The port for the outcome of a change.
pub(super) type ChangeReply = oneshot::Sender<Result<AppliedChange, ChangeError>>;

/// Messages to the router. The path of a request sends none of them. A change holds a permit; the others are one per
/// closing route, ending stage or rollout.
#[derive(Debug)]
pub(crate) enum RouterMessage {
    /// Change the table. From the node's handles.
    Change {
        /// The change.
        change: RouteChange,
        /// Gets the outcome when callers see the change, or the error.
        reply: ChangeReply,
        /// One of the permits that bound the mailbox.
        turn: OwnedSemaphorePermit,
    },
    /// Promote the candidate of a route, or roll it back. From the node's handles.
    Order {
        /// The route.
        route: RouteName,
        /// The order.
        verdict: Verdict,
        /// Gets the outcome when callers see it.
        reply: oneshot::Sender<Result<(), ChangeError>>,
        /// One of the permits that bound the mailbox.
        turn: OwnedSemaphorePermit,
    },
    /// The judge of this route's rollout has decided. From the task that waited.
    Decided(RouteName, Decision),
    /// The time of a kept revision is over. From the task that waited.
    KeptLongEnough(RouteName),
    /// The starting stages are warm, or one of them failed. From the task that waited.
    Started(Result<(), ChangeError>, Option<ChangeReply>),
    /// The last call of this closed route ended. From the task that waited.
    RouteEmptied(RouteIndex, SettlementGuard),
    /// A stage has ended. From the task that waited.
    StageEnded(Arc<DeployedStage>, Option<SettlementGuard>),
    /// A stage without a supervisor tries to start again. From the router's own timer.
    Renew(Arc<DeployedStage>),
    /// The supervisor of a stage is gone. From the root.
    SupervisorDied {
        /// The id of the actor.
        who: ActorId,
        /// The reason of its end.
        why: String,
    },
    /// The node ends: stop all stages in good order. From the node.
    Stop {
        /// How long a worker may take to finish its batch and clean up, if its stage has no shorter time.
        within: Duration,
        /// Notified when all are stopped.
        stopped: oneshot::Sender<()>,
    },
}
