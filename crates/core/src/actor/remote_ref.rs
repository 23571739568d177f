//! A reference to an actor by its name, wherever it runs.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{Data, Payload};

use super::directory::Directory;
use super::question::{Question, QuestionForm, QuestionOrder, owned};
use crate::call::{CallOptions, Origin, OuterCall};
use crate::clock;
use crate::deadline::Deadline;
use crate::error::{AskError, Failure};
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
    directory: Arc<Directory>,
    cluster: Cluster,
    /// The call for which it asks.
    outer: Option<Arc<OuterCall>>,
}

impl RemoteRef {
    pub(crate) fn new(name: &str, directory: Arc<Directory>, cluster: Cluster, outer: Option<Arc<OuterCall>>) -> Self {
        Self { name: name.into(), directory, cluster, outer }
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
        let now = clock::now();
        let deadline = options.deadline_from(now).unwrap_or_else(|| Deadline::after(now, Deadline::DEFAULT_TIMEOUT));
        let deadline = self.outer.as_ref().map_or(deadline, |outer| deadline.min(outer.flight.deadline));
        let origin = Origin::from_options(&options, self.outer.as_ref());
        let recorder = origin.as_ref().and_then(|origin| origin.recorder.clone());
        let options = recorder.into_iter().fold(options, CallOptions::with_recorder);
        let (payload, options) = (Payload::new(question), options.with_origin(origin).with_deadline(deadline));
        let answer = match self.directory.published(&self.name) {
            Some(actor) => {
                let accepted = actor.find(Q::NAME, form)?;
                (accepted.deliver)(payload, QuestionOrder { deadline, options, place: None, key: None, asked_by: None })
                    .await?
            }
            None => {
                let question = RemoteQuestion {
                    actor: Arc::clone(&self.name),
                    question: Q::NAME,
                    is_tell: form == QuestionForm::Tell,
                    payload,
                    options,
                    read: |decoder| decoder.finish_as::<A>().map(Payload::new),
                    key: None,
                    node: None,
                    is_handover: false,
                };
                self.send_away(deadline, question).await?
            }
        };
        owned(answer).map_err(|reason| AskError::Failed(Failure::new(format!("the answer cannot be read: {reason}"))))
    }

    async fn send_away(&self, deadline: Deadline, question: RemoteQuestion) -> Result<Payload, AskError> {
        let Some(actors) = self.cluster.actors() else {
            let reason = format!("this node publishes no actor `{}`, and has joined no other nodes", self.name);
            return Err(AskError::Unreachable { reason });
        };
        let answer = tokio::time::timeout_at(deadline.instant(), actors.ask(question)).await;
        // The other node may have handed the message to the actor a moment ago.
        answer.map_err(|_| AskError::DeadlineExceeded { taken: true })?.map_err(AskError::from_answer)
    }
}

impl fmt::Debug for RemoteRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteRef").field(&self.name).finish()
    }
}
