//! The seam for actors on other nodes: what a reference by name asks of a network.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{DecodeError, EnvelopeDecoder, Payload};

use super::RemoteFuture;
use crate::call::CallOptions;

/// The actors that other nodes publish, beside their [stages](super::RemoteStages).
pub trait RemoteActors: fmt::Debug + Send + Sync + 'static {
    /// Brings a question to a node that publishes its actor, and returns the answer. At most once: no question is sent
    /// a second time.
    ///
    /// Its error [is a refusal](crate::CallError::is_refusal) if the question was not handled. Dropping the future
    /// cancels the question where it is.
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload>;
}

/// A question for an actor on another node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RemoteQuestion {
    /// The name of the actor.
    pub actor: Arc<str>,
    /// The name of the question.
    pub question: &'static str,
    /// Whether it is told: the answer then only says that the message is in the mailbox.
    pub is_tell: bool,
    /// The question itself.
    pub payload: Payload,
    /// Deadline, caller and trace. There is always a deadline.
    pub options: CallOptions,
    /// Reads the answer.
    pub read: fn(EnvelopeDecoder) -> Result<Payload, DecodeError>,
}
