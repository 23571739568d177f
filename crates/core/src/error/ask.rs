//! Why a question to an actor has no answer.

use super::{CallError, ErrorKind, ErrorOrigin, ErrorReason, Failure, RETRY_AFTER};
use crate::id::StageName;

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
    /// The actor dropped the port of the answer, or ended while it handled the message; or the connection to its node
    /// was lost. The message may have had an effect.
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
    /// Only of a [`RemoteRef`](crate::actor::RemoteRef): no node can be reached that publishes the actor, or its node
    /// takes no messages now. The message was not handled: try again later.
    #[error("the actor cannot be reached: {reason}")]
    Unreachable {
        /// What is missing.
        reason: String,
    },
    /// Only of a [`RemoteRef`](crate::actor::RemoteRef): the actor does not accept this question, or not with this
    /// content. The message was not handled.
    #[error("the actor does not accept the question: {reason}")]
    NotAccepted {
        /// What it does not accept.
        reason: String,
    },
    /// Only of a [`KeyedRef`](crate::keyed::KeyedRef): the key moves, and the nodes do not agree on its owner. The
    /// message was not handled: try again.
    #[error("the key moves between nodes that do not agree on its owner")]
    NoOwner,
    /// The key has moved to another node. Not handled. A [`KeyedRef`](crate::keyed::KeyedRef) follows it, and its user
    /// never sees this.
    #[doc(hidden)]
    #[error("the key has moved to {}", if node.is_empty() { "another node" } else { node })]
    Moved {
        /// The node that has it by the view of the asked one; empty if that names none.
        node: String,
    },
}

impl AskError {
    /// Whether the actor took the message, which may have had an effect. A message that was not taken is never handled.
    #[must_use]
    pub fn was_taken(&self) -> bool {
        match self {
            Self::Full
            | Self::Over
            | Self::Unreachable { .. }
            | Self::NotAccepted { .. }
            | Self::NoOwner
            | Self::Moved { .. } => false,
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
            AskError::Unreachable { .. } | AskError::NoOwner | AskError::Moved { .. } => {
                Self::unavailable(message, RETRY_AFTER)
            }
            AskError::NotAccepted { .. } => Self::new(ErrorKind::InvalidInput, message),
        }
    }
}

/// Errors as answers between nodes, where a `fail` frame has the fields of a call's error. Its type says which error of
/// an actor it is, unless it is a failure, which may have a type of its own.
impl AskError {
    const FULL: &str = "actor_full";
    const OVER: &str = "actor_over";
    const LOST: &str = "actor_lost";
    const CRASHED: &str = "actor_crashed";
    const NOT_ACCEPTED: &str = "actor_not_accepted";
    const NO_OWNER: &str = "actor_no_owner";
    const MOVED: &str = "actor_moved";

    /// This error as an answer, which [`from_answer`](Self::from_answer) reads.
    pub(crate) fn into_answer(self) -> CallError {
        let (error_type, text) = match &self {
            Self::Full => (Self::FULL, None),
            Self::Over => (Self::OVER, None),
            Self::Lost => (Self::LOST, None),
            Self::Crashed { reason, .. } => (Self::CRASHED, Some(reason.clone())),
            Self::NotAccepted { reason } => (Self::NOT_ACCEPTED, Some(reason.clone())),
            Self::NoOwner => (Self::NO_OWNER, None),
            Self::Moved { node } => (Self::MOVED, Some(node.clone())),
            Self::Failed(_) => return CallError::from(self).in_run(false),
            Self::DeadlineExceeded { .. } | Self::Unreachable { .. } => return self.into(),
        };
        let stage = match &self {
            Self::Crashed { actor, .. } => Some(StageName::new(actor)),
            _ => None,
        };
        let taken = self.was_taken();
        let mut parts = CallError::from(self).into_parts();
        parts.message = text.unwrap_or(parts.message);
        (parts.error_type, parts.started) = (Some(error_type.to_owned()), taken);
        parts.stage = stage;
        parts.into()
    }

    /// The error of a question that went to another node: an answer, or what the network says of it.
    pub(crate) fn from_answer(answer: CallError) -> Self {
        let (was_taken, mut parts) = (answer.was_started(), answer.into_parts());
        // A failure has any type that its actor chose, so its question was taken, and it is no lost worker.
        let is_lost = parts.kind == ErrorKind::WorkerFailed;
        match parts.error_type.as_deref() {
            Some(Self::FULL) if !was_taken => Self::Full,
            Some(Self::OVER) if !was_taken => Self::Over,
            Some(Self::LOST) if is_lost => Self::Lost,
            Some(Self::CRASHED) if is_lost => {
                let actor = parts.stage.as_ref().map_or("", StageName::as_str).to_owned();
                Self::Crashed { actor, reason: parts.message }
            }
            Some(Self::NOT_ACCEPTED) if !was_taken => Self::NotAccepted { reason: parts.message },
            Some(Self::NO_OWNER) if !was_taken => Self::NoOwner,
            Some(Self::MOVED) if !was_taken => Self::Moved { node: parts.message },
            _ if parts.kind == ErrorKind::DeadlineExceeded => Self::DeadlineExceeded { taken: was_taken },
            _ if parts.reason == Some(ErrorReason::ConnectionLost) => Self::Lost,
            _ if was_taken => {
                parts.started = parts.kind.comes_after_start();
                Self::Failed(Failure::from_parts(parts))
            }
            // Nothing of the question was handled, by a refusal of its node or for want of one.
            _ => match parts.kind.row().origin {
                ErrorOrigin::Request | ErrorOrigin::Route => Self::NotAccepted { reason: parts.message },
                _ => Self::Unreachable { reason: parts.message },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_error_is_the_same_after_its_way_to_another_node() {
        let text = || "a reason".to_owned();
        for error in [
            AskError::Full,
            AskError::Over,
            AskError::Lost,
            AskError::Crashed { actor: "a".to_owned(), reason: text() },
            AskError::DeadlineExceeded { taken: false },
            AskError::DeadlineExceeded { taken: true },
            AskError::NotAccepted { reason: text() },
            AskError::NoOwner,
            AskError::Moved { node: text() },
            AskError::Moved { node: String::new() },
        ] {
            let answer = error.clone().into_answer();
            assert_eq!(answer.was_started(), error.was_taken(), "{error:?}");
            assert_eq!(AskError::from_answer(answer), error);
        }
    }

    #[test]
    fn a_failure_keeps_its_kind_and_whether_it_may_be_tried_again() {
        let after = Duration::from_secs(3);
        for failure in [
            Failure::new("no").with_status(402).with_type("Poor"),
            Failure::overloaded("later").with_retry_after(after),
            Failure::invalid_input("wrong"),
            // An actor may choose the words of the other errors.
            Failure::new("full").with_type(AskError::FULL),
            Failure::overloaded("full").with_type(AskError::FULL),
            Failure::new("over").with_type(AskError::OVER),
            Failure::new("lost").with_type(AskError::LOST),
            Failure::new("crashed").with_type(AskError::CRASHED),
            Failure::invalid_input("not accepted").with_type(AskError::NOT_ACCEPTED),
        ] {
            let before = CallError::from(AskError::Failed(failure.clone()));
            let answer = AskError::Failed(failure).into_answer();
            assert!(answer.was_started(), "the actor has decided");
            let AskError::Failed(failure) = AskError::from_answer(answer) else { panic!("a failure stays one") };
            let after = CallError::from(AskError::Failed(failure));
            assert_eq!(format!("{after:?}"), format!("{before:?}"));
        }
    }

    #[test]
    fn errors_of_the_network_are_not_those_of_an_actor() {
        let lost = crate::error::ErrorParts::connection_lost("gone").into();
        assert!(matches!(AskError::from_answer(lost), AskError::Lost));
        let draining = CallError::new(ErrorKind::Unavailable, "the node is draining");
        assert!(matches!(AskError::from_answer(draining), AskError::Unreachable { .. }));
        let garbage = CallError::new(ErrorKind::InvalidInput, "not a map");
        assert!(matches!(AskError::from_answer(garbage), AskError::NotAccepted { .. }));
    }
}
