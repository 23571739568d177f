//! A reference to an actor by its name, wherever it runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use callboard_codec::{Data, Payload};

use super::directory::Directory;
use super::question::{PublishedActor, Question, QuestionForm, QuestionOrder, owned};
use crate::call::{CallOptions, OuterCall};
use crate::deadline::Deadline;
use crate::error::{AskError, CallError, Failure};
use crate::remote::{Cluster, RemoteQuestion};

/// A reference to a [published](super::ActorSpec::accepts) actor by its name. Each message looks for the actor: on this
/// node first, else on a node of the cluster that publishes it. So the reference is good before the actor starts, and
/// after it has moved to another node. Cloning it is cheap, and it does not keep the actor or its node alive.
///
/// It is made by [`NodeHandle::remote_actor`](crate::NodeHandle::remote_actor), and in the code of a stage by
/// [`LocalClient::remote_actor`](crate::LocalClient::remote_actor). A name should be published once in a cluster; if
/// several nodes publish it, all askers choose the same of the nodes that they reach.
///
/// # What is promised
///
/// A question is handled at most once: it is never sent a second time. [`AskError::was_taken`] says whether it may have
/// been handled.
///
/// | when | error |
/// |---|---|
/// | no reachable node publishes the actor, or its node drains | `Unreachable`: not handled |
/// | the actor does not accept the question, or cannot read it | `NotAccepted`: not handled |
/// | its mailbox is full | `Full`: not handled |
/// | the connection is lost after the question was sent | `Lost`: it may have been handled |
/// | the deadline passes on this node | `DeadlineExceeded`, as taken: it may have been handled |
///
/// The others are those of an [`ActorRef`](super::ActorRef). The receiving node takes a place in the mailbox before it
/// reads the question, and the deadline, the [caller](CallOptions::caller) and the trace of the options go with it.
#[derive(Clone)]
pub struct RemoteRef {
    name: Arc<str>,
    pub(super) directory: Arc<Directory>,
    cluster: Cluster,
    /// The call for which it asks.
    pub(super) outer: Option<Arc<OuterCall>>,
    pub(super) place: ActorPlace,
    /// Whose turn it is among the actors of this name.
    pub(super) turn: Arc<AtomicUsize>,
}

/// Where a reference looks for its actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActorPlace {
    /// On this node first, else on a node that publishes it.
    Anywhere,
    /// On this node only.
    Here,
    /// On the node of this name only.
    Node(Arc<str>),
}

/// Where a message goes.
pub(super) enum MessageTarget {
    Here(Arc<PublishedActor>),
    /// To the node of this name; without one, to the node that the cluster chooses.
    Away(Option<Arc<str>>),
}

impl RemoteRef {
    pub(crate) fn new(name: &str, directory: Arc<Directory>, cluster: Cluster, outer: Option<Arc<OuterCall>>) -> Self {
        Self { name: name.into(), directory, cluster, outer, place: ActorPlace::Anywhere, turn: Arc::default() }
    }

    /// The actor's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Asks, and waits for the answer: a [`Duration`](std::time::Duration) from now, until a [`Deadline`], or as
    /// [`CallOptions`] say, which may also name a caller. Options without a deadline wait for
    /// [30 s](Deadline::DEFAULT_TIMEOUT).
    ///
    /// # Errors
    ///
    /// See [`RemoteRef`] and [`AskError`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a question that waits is not handled, and
    /// [`ReplyPort::is_wanted`](super::ReplyPort::is_wanted) tells an actor that has taken it.
    pub async fn ask<Q: Question>(&self, within: impl Into<CallOptions>, question: Q) -> Result<Q::Answer, AskError> {
        self.send::<Q, Q::Answer>(QuestionForm::Ask, within.into(), question).await
    }

    /// Puts a message into the mailbox of the actor, and returns when it is there: it is handled unless the actor
    /// crashes with it in hand or ends. Waits while the actor restarts, for the time of `within`, which is as for
    /// [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// See [`RemoteRef`] and [`AskError`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the message may be handled or not.
    pub async fn tell<Q: Question>(&self, within: impl Into<CallOptions>, question: Q) -> Result<(), AskError> {
        self.send::<Q, ()>(QuestionForm::Tell, within.into(), question).await
    }

    async fn send<Q: Question, A: Data>(
        &self,
        form: QuestionForm,
        options: CallOptions,
        question: Q,
    ) -> Result<A, AskError> {
        let (options, deadline) = options.for_message(self.outer.as_ref());
        let payload = Payload::new(question);
        let answer = match self.target()? {
            MessageTarget::Here(actor) => {
                let accepted = actor.find(Q::NAME, form)?;
                (accepted.deliver)(payload, QuestionOrder { deadline, options, place: None, key: None, asked_by: None })
                    .await?
            }
            MessageTarget::Away(node) => {
                let question = self.question::<A>(Q::NAME, form, payload, options, node);
                self.ask_away(deadline, question).await?.map_err(AskError::from_answer)?
            }
        };
        owned(answer).map_err(|reason| AskError::Failed(Failure::new(format!("the answer cannot be read: {reason}"))))
    }

    /// Where the next message goes.
    pub(super) fn target(&self) -> Result<MessageTarget, AskError> {
        let here = || self.directory.published(&self.name).map(MessageTarget::Here);
        match &self.place {
            ActorPlace::Node(node) => Ok(MessageTarget::Away(Some(Arc::clone(node)))),
            ActorPlace::Anywhere => Ok(here().unwrap_or(MessageTarget::Away(None))),
            ActorPlace::Here => here().ok_or_else(|| AskError::Unreachable {
                reason: format!("this node publishes no actor `{}` any more", self.name),
            }),
        }
    }

    /// Whether this node publishes the actor.
    pub(super) fn is_here(&self) -> bool {
        self.directory.published(&self.name).is_some()
    }

    /// The name of this node; empty if it has none.
    pub(super) fn this_node(&self) -> String {
        let name = self.cluster.actors().and_then(|actors| actors.this_node());
        name.map_or_else(String::new, |name| name.to_string())
    }

    /// The other nodes that publish the actor, first the one that the cluster would choose.
    pub(super) fn others(&self) -> Vec<Arc<str>> {
        self.cluster.actors().map_or_else(Vec::new, |actors| actors.publishers(&self.name))
    }

    pub(super) fn question<A: Data>(
        &self,
        question: &'static str,
        form: QuestionForm,
        payload: Payload,
        options: CallOptions,
        node: Option<Arc<str>>,
    ) -> RemoteQuestion {
        RemoteQuestion {
            actor: Arc::clone(&self.name),
            question,
            is_tell: form == QuestionForm::Tell,
            payload,
            options,
            read: |decoder| decoder.finish_as::<A>().map(Payload::new),
            key: None,
            node,
            is_handover: false,
        }
    }

    /// The answer of another node, or what the network says of it; the error of this one if there is none in time.
    pub(super) async fn ask_away(
        &self,
        deadline: Deadline,
        question: RemoteQuestion,
    ) -> Result<Result<Payload, CallError>, AskError> {
        let Some(actors) = self.cluster.actors() else {
            let reason = format!("this node publishes no actor `{}`, and has joined no other nodes", self.name);
            return Err(AskError::Unreachable { reason });
        };
        let answer = tokio::time::timeout_at(deadline.instant(), actors.ask(question)).await;
        // The other node may have handed the message to the actor a moment ago.
        answer.map_err(|_| AskError::DeadlineExceeded { taken: true })
    }
}

impl fmt::Debug for RemoteRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteRef").field(&self.name).finish()
    }
}
