//! Why a question to an actor has no answer.

use super::{CallError, ErrorKind, Failure, RETRY_AFTER};

/// Why an ask has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The mailbox is full. The message was not handled: try again later.
    #[error("the mailbox is full")]
    Full,
    /// The actor has ended and will not start again. The message was not handled.
    #[error("the actor has ended")]
    Over,
    /// The actor dropped the port of the answer, or ended while it handled the message. The message may have had an
    /// effect.
    #[error("the actor was lost before it answered")]
    Lost,
    /// An actor crashed with the message: the asked actor, or an actor that got the message from it. The message may
    /// have had an effect.
    #[error("actor `{actor}` crashed before it answered: {reason}")]
    Crashed {
        /// The actor that crashed.
        actor: String,
        /// Its error, or the text of its panic.
        reason: String,
    },
    /// The deadline passed before the answer.
    #[error("the deadline passed before {}", if *taken { "the answer" } else { "the actor took the message" })]
    DeadlineExceeded {
        /// Whether the actor took the message. It may act on a message that it took, unless it checks
        /// [`ReplyPort::is_wanted`](crate::actor::ReplyPort::is_wanted). A message that it did not take is never
        /// handled.
        taken: bool,
    },
    /// The actor answered [with a failure](crate::actor::ReplyPort::fail).
    #[error("{0}")]
    Failed(Failure),
}

impl AskError {
    /// Whether the actor took the message, which may have had an effect. A message that was not taken is never handled.
    #[must_use]
    pub fn was_taken(&self) -> bool {
        match self {
            Self::Full | Self::Over => false,
            Self::DeadlineExceeded { taken } => *taken,
            Self::Lost | Self::Crashed { .. } | Self::Failed(_) => true,
        }
    }
}

impl From<AskError> for CallError {
    fn from(error: AskError) -> Self {
        let (message, taken) = (error.to_string(), error.was_taken());
        match error {
            AskError::Full => Self::overloaded(message, RETRY_AFTER),
            AskError::Over => Self::new(ErrorKind::Unavailable, message),
            AskError::Lost | AskError::Crashed { .. } => Self::new(ErrorKind::WorkerFailed, message),
            AskError::DeadlineExceeded { .. } => Self::new(ErrorKind::DeadlineExceeded, message).after_start(taken),
            AskError::Failed(failure) => Self::from_failure_outside(failure),
        }
    }
}
