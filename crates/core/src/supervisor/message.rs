//! What the supervisor of a stage can be told.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::task::JoinSet;

use crate::pool::ReplicaHandle;

/// Why a stage does not have the number of replicas that was asked for.
#[derive(Debug)]
pub(crate) enum ScaleError {
    /// A new replica could not be built or warmed up, or the stage has failed; the message says why.
    NotStarted(String),
    /// A later request took the place of this one.
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
        /// Which replica.
        index: usize,
        /// Which of its lives.
        generation: u64,
        /// Its own message.
        message: String,
    },
    /// The back-off of this replica has passed. From the supervisor's timer.
    Restart(usize),
    /// Have this many replicas. From the node's handles, through the router's door.
    Scale {
        /// How many, at least one.
        replicas: usize,
        /// Told when the new ones are up and the surplus ones have ended, or why not.
        scaled: oneshot::Sender<Result<(), ScaleError>>,
        /// Its place in the line.
        turn: OwnedSemaphorePermit,
    },
    /// The other batches of a replica whose batch panicked: they go on without it. From the replica.
    LeftRunning(JoinSet<()>),
    /// Stop the workers in good order, each within this time, and then the stage. From the node.
    Stop {
        /// What a worker gets to finish its batch and clean up.
        within: Duration,
        /// Told when all are stopped.
        stopped: oneshot::Sender<()>,
    },
}
