//! The messages to the router.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::change::{AppliedChange, ChangeError, RouteChange, Unsettled};
use super::deployed_stage::DeployedStage;
use crate::id::RouteIndex;

/// The port for the outcome of a change.
pub(super) type ChangeReply = oneshot::Sender<Result<AppliedChange, ChangeError>>;

/// Messages to the router. The path of a request sends none of them. A change holds a permit; the others are one per
/// closing route or ending stage.
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
    /// The starting stages are warm, or one of them failed. From the task that waited.
    Started(Result<(), ChangeError>, Option<ChangeReply>),
    /// The last call has left this closed route. From the task that waited.
    RouteEmptied(RouteIndex, Unsettled),
    /// A stage has ended. From the task that waited.
    StageEnded(Arc<DeployedStage>, Option<Unsettled>),
    /// The supervisor of a stage is gone. From the root.
    SupervisorDied {
        /// The id of the actor.
        who: ActorId,
        /// The reason of its end.
        why: String,
    },
    /// The node ends: stop all stages in good order. From the node.
    Stop {
        /// How long a worker may take to finish its batch and clean up.
        within: Duration,
        /// Notified when all are stopped.
        stopped: oneshot::Sender<()>,
    },
}
