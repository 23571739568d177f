//! What the router can be told.

use std::sync::Arc;
use std::time::Duration;

use ractor::ActorId;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::change::{AppliedChange, ChangeError, RouteChange, Unsettled};
use super::table::DeployedStage;
use crate::id::RouteIndex;

/// The port for the outcome of a change.
pub(super) type ChangeReply = oneshot::Sender<Result<AppliedChange, ChangeError>>;

/// Messages to the router; none of them is on the path of a request. A change holds a permit; the others are one per
/// route that closes or stage that ends.
#[derive(Debug)]
pub(crate) enum RouterMessage {
    /// Change the table. From the node's handles.
    Change {
        /// What to change.
        change: RouteChange,
        /// Told when callers see it, or why not.
        reply: ChangeReply,
        /// Its place in the line.
        turn: OwnedSemaphorePermit,
    },
    /// The stages that were being started are warm, or one of them is not. From the task that waited.
    Started(Result<(), ChangeError>, Option<ChangeReply>),
    /// The last call has left this closed route. From the task that waited.
    RouteEmptied(RouteIndex, Unsettled),
    /// A stage has ended. From the task that waited.
    StageEnded(Arc<DeployedStage>, Option<Unsettled>),
    /// The supervisor of a stage is gone. From the root.
    SupervisorDied {
        /// Which actor.
        who: ActorId,
        /// Its last words.
        why: String,
    },
    /// The node ends: stop all stages in good order. From the node.
    Stop {
        /// What a worker gets to finish its batch and clean up.
        within: Duration,
        /// Told when all are stopped.
        stopped: oneshot::Sender<()>,
    },
}
