//! The messages to the supervisor of a stage.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinSet;

use crate::pool::ReplicaHandle;

/// Why a stage does not have the requested number of replicas.
#[derive(Debug)]
pub(crate) enum ScaleError {
    /// A new replica could not be built or warmed up, or the stage has failed. Contains the reason.
    NotStarted(String),
    /// The stage scales by itself, between these bounds.
    OutOfBounds { min: usize, max: usize },
    /// A later request superseded this one.
    Superseded,
    /// The stage ends.
    Ending,
}

/// Messages to the supervisor of one stage; at most a few per replica.
#[derive(Debug)]
pub(crate) enum DeploymentMessage {
    /// A replica is built and warm. From the worker itself.
    ReplicaUp(Arc<ReplicaHandle>),
    /// A replica could not be built or warmed up. From the task that tried.
    ReplicaNotStarted {
        /// The index of the replica.
        index: usize,
        /// Its generation.
        generation: u64,
        /// Its own message.
        message: String,
    },
    /// The back-off of this replica has passed. From the supervisor's timer.
    Restart(usize),
    /// The wait of a failed stage has passed. From the supervisor's timer.
    TryAgain,
    /// Change the number of replicas. From the node's handles, through the router.
    Scale {
        /// The number of replicas; 0 only where the stage may have none.
        replicas: usize,
        /// Gets the outcome: the new replicas are up and the surplus ones have ended, or the reason why not.
        scaled: oneshot::Sender<Result<(), ScaleError>>,
        /// One of the permits that bound the mailbox.
        turn: OwnedSemaphorePermit,
    },
    /// The load may have changed: decide on the number of replicas. From the batcher when a call waits and no replica
    /// is there, from the node's other supervisors about the places in memory, and from the supervisor's own timer.
    Look,
    /// The other batches of a replica whose batch panicked. They run to their end without it. From the replica.
    LeftRunning(JoinSet<()>),
    /// Stop the workers in good order, each within this time, and then the stage. From the node.
    Stop {
        /// How long a worker may take to finish its batch and clean up, if its stage has no shorter time.
        within: Duration,
        /// Notified when all are stopped.
        stopped: oneshot::Sender<()>,
    },
}
