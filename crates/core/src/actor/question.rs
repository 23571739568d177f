//! Questions by name: what an actor accepts from other nodes, and how a message is made of it.
//!
//! A message of an actor has no form outside its process, because it carries ports. So a question is a type of its own
//! that crosses the network, and the actor's declaration makes a message of it there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use callboard_codec::{Data, DecodeError, EnvelopeDecoder, Payload};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::directory::ActorStatus;
use super::mailbox::{ActorRef, ReplyPort};
use super::watch::MAX_WATCHES;
use crate::call::CallOptions;
use crate::clock;
use crate::containment::contain;
use crate::deadline::Deadline;
use crate::error::{AskError, Failure};

/// A question that actors [accept](super::ActorSpec::accepts) by its name, also from other nodes.
///
/// Nodes of different versions may ask each other while an app is rolled out: a field that is added to a question needs
/// a default. A change that old nodes would misread is a new question, with a new name.
pub trait Question: Data {
    /// Its name, by which the other node knows it. An actor accepts a name once. Names that begin with `callboard.` are
    /// for this library: each kind of keyed actor accepts `callboard.forget`.
    const NAME: &'static str;

    /// The type of its answer, which is `()` if nobody [waits for it](super::ActorSpec::accepts_tell).
    type Answer: Data;
}

/// Whether the sender of a question waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuestionForm {
    Ask,
    Tell,
}

/// What comes with a question.
pub(crate) struct QuestionOrder {
    pub(crate) deadline: Deadline,
    pub(crate) options: CallOptions,
    /// Its place in the mailbox, if it is reserved.
    pub(crate) place: Option<OwnedSemaphorePermit>,
    /// The key, if it is for a keyed actor.
    pub(crate) key: Option<Arc<str>>,
    /// The node that asks, if it is another one and has a name.
    pub(crate) asked_by: Option<Arc<str>>,
}

/// The future of an answer.
pub(crate) type AnswerFuture = Pin<Box<dyn Future<Output = Result<Payload, AskError>> + Send>>;

/// A question that an actor accepts, without its types.
pub(crate) struct AcceptedQuestion {
    pub(crate) name: &'static str,
    form: QuestionForm,
    /// Reads it from another node.
    pub(crate) read: fn(EnvelopeDecoder) -> Result<Payload, DecodeError>,
    /// Brings it to the actor.
    pub(crate) deliver: Box<dyn Fn(Payload, QuestionOrder) -> AnswerFuture + Send + Sync>,
}

impl AcceptedQuestion {
    pub(super) fn asked<Q: Question, M: Send + 'static>(
        actor: ActorRef<M>,
        message: impl Fn(Q, ReplyPort<Q::Answer>, &CallOptions) -> M + Send + Sync + 'static,
    ) -> Self {
        let message = Arc::new(message);
        Self::of::<Q>(QuestionForm::Ask, move |question, order| {
            let (actor, message) = (actor.clone(), Arc::clone(&message));
            Box::pin(async move {
                let (question, QuestionOrder { deadline, options, place, .. }) = (question_of::<Q>(question)?, order);
                let make = |port| made(|| message(question, port, &options));
                actor.ask_with(place, deadline, make).await.map(Payload::new)
            })
        })
    }

    pub(super) fn told<Q: Question, M: Send + 'static>(
        actor: ActorRef<M>,
        message: impl Fn(Q) -> M + Send + Sync + 'static,
    ) -> Self {
        let message = Arc::new(message);
        Self::of::<Q>(QuestionForm::Tell, move |question, QuestionOrder { deadline, place, .. }| {
            let (actor, message) = (actor.clone(), Arc::clone(&message));
            Box::pin(async move {
                if deadline.is_expired(clock::now()) {
                    return Err(AskError::DeadlineExceeded { taken: false });
                }
                let question = question_of::<Q>(question)?;
                actor.tell_with(place, deadline, made(|| message(question))?).await.map(Payload::new)
            })
        })
    }

    /// A question of this type, and how it is brought to whatever answers it.
    pub(crate) fn of<Q: Question>(
        form: QuestionForm,
        deliver: impl Fn(Payload, QuestionOrder) -> AnswerFuture + Send + Sync + 'static,
    ) -> Self {
        let read = |decoder: EnvelopeDecoder| decoder.finish_as::<Q>().map(Payload::new);
        Self { name: Q::NAME, form, read, deliver: Box::new(deliver) }
    }
}

/// Runs the user's code that makes a message.
fn made<M>(message: impl FnOnce() -> M) -> Result<M, AskError> {
    let failed = |words| AskError::Failed(Failure::new(format!("the message's maker panicked: {words}")));
    contain(message).map_err(failed)
}

fn question_of<Q: Question>(payload: Payload) -> Result<Q, AskError> {
    owned(payload).map_err(|reason| AskError::NotAccepted { reason: format!("`{}`: {reason}", Q::NAME) })
}

/// The value of a payload that nothing else holds, or the reason for which it is not a `T`.
pub(crate) fn owned<T: Data>(payload: Payload) -> Result<T, String> {
    let value = payload.into_arc::<T>().map_err(|error| error.to_string())?;
    Arc::into_inner(value).ok_or_else(|| "the value is shared".to_owned())
}

/// An actor that other nodes can find.
pub(crate) struct PublishedActor {
    status: Arc<ActorStatus>,
    accepted: Vec<AcceptedQuestion>,
    /// Half of the places: questions that arrive slowly leave the others to complete ones and to this node.
    arriving: Arc<Semaphore>,
    /// The places of watches, which wait for the end of the actor and not in its mailbox.
    watches: Arc<Semaphore>,
}

/// A place in the mailbox for a question that has still to arrive, and one of the few for such questions.
pub(crate) struct ReservedPlace {
    pub(crate) place: OwnedSemaphorePermit,
    /// `None` for a watch.
    pub(crate) arriving: Option<OwnedSemaphorePermit>,
}

impl PublishedActor {
    /// `None` for an actor that accepts nothing. `leaving` turns true when the node begins to drain.
    pub(super) fn of(
        status: &Arc<ActorStatus>,
        mut accepted: Vec<AcceptedQuestion>,
        leaving: watch::Receiver<bool>,
    ) -> Option<Arc<Self>> {
        (!accepted.is_empty()).then(|| {
            accepted.push(super::watch::accepted(status, leaving));
            Self::new(status, accepted)
        })
    }

    pub(crate) fn new(status: &Arc<ActorStatus>, accepted: Vec<AcceptedQuestion>) -> Arc<Self> {
        let arriving = Arc::new(Semaphore::new(status.capacity().div_ceil(2)));
        let watches = Arc::new(Semaphore::new(MAX_WATCHES));
        Arc::new(Self { status: Arc::clone(status), accepted, arriving, watches })
    }

    /// The question of this name; of two the first.
    pub(crate) fn find(&self, name: &str, form: QuestionForm) -> Result<&AcceptedQuestion, AskError> {
        let found = self.accepted.iter().find(|accepted| accepted.name == name && accepted.form == form);
        found.ok_or_else(|| {
            let (actor, other) = (self.status.name(), self.accepted.iter().any(|accepted| accepted.name == name));
            let reason = match (form, other) {
                (QuestionForm::Ask, true) => format!("`{actor}` accepts `{name}` as a tell only"),
                (QuestionForm::Tell, true) => format!("`{actor}` accepts `{name}` as an ask only"),
                (_, false) => format!("`{actor}` accepts no `{name}`"),
            };
            AskError::NotAccepted { reason }
        })
    }

    /// Takes a place in the mailbox for a question that has still to arrive.
    pub(crate) fn reserve(&self) -> Result<ReservedPlace, AskError> {
        let arriving = Arc::clone(&self.arriving).try_acquire_owned();
        let arriving = arriving.inspect_err(|_| self.status.refused()).map_err(|_| AskError::Full)?;
        Ok(ReservedPlace { place: self.status.reserve()?, arriving: Some(arriving) })
    }

    /// Takes a place among the watches.
    pub(crate) fn reserve_watch(&self) -> Result<ReservedPlace, AskError> {
        let place = Arc::clone(&self.watches).try_acquire_owned().map_err(|_| AskError::Full)?;
        Ok(ReservedPlace { place, arriving: None })
    }
}

impl fmt::Debug for PublishedActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.accepted.iter().map(|accepted| accepted.name).collect();
        f.debug_struct("PublishedActor").field("name", &self.status.name()).field("accepts", &names).finish()
    }
}
