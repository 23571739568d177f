//! The end of an actor, as others learn of it: on its own node, and on other nodes by a question that is answered then.
//!
//! * **Full:** a node has at most [`MAX_WATCHES_AWAY`] watches of actors on other nodes, since each keeps a stream of a
//!   connection, and an actor has at most [`MAX_WATCHES`] of other nodes; a further one is refused.
//! * **Late:** a watch has a deadline, as every question.
//! * **Lost:** the end of the connection is an answer, too.

use std::fmt;
use std::sync::Arc;

use callboard_codec::Payload;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::directory::ActorStatus;
use super::question::{AcceptedQuestion, Question, QuestionForm, QuestionOrder, owned};
use super::remote_ref::{MessageTarget, RemoteRef};
use crate::call::CallOptions;
use crate::error::{AskError, ErrorReason, Failure};

/// The most watches that a node has of actors on other nodes: a quarter of the streams of one connection.
pub(super) const MAX_WATCHES_AWAY: usize = 64;

/// The most watches of other nodes that an actor has.
pub(super) const MAX_WATCHES: usize = 1_024;

/// How a watched actor ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ActorEnd {
    /// It has done its work, or was stopped.
    Ended,
    /// It crashed, and does not start again.
    Failed {
        /// Why.
        reason: String,
    },
    /// Its node drains or ends: the actor takes no more questions there.
    NodeLeft {
        /// The node; empty if it has no name.
        node: String,
    },
    /// The connection to its node was lost. The node is dead, or out of reach: the actor may live on.
    NodeLost {
        /// The node.
        node: String,
        /// How the connection ended.
        reason: String,
    },
}

impl fmt::Display for ActorEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("the actor has ended"),
            Self::Failed { reason } => write!(f, "the actor has failed: {reason}"),
            Self::NodeLeft { node } => write!(f, "the node `{node}` of the actor drains or ends"),
            Self::NodeLost { node, reason } => write!(f, "the node `{node}` of the actor was lost: {reason}"),
        }
    }
}

/// Answered when the actor ends.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WatchActor;

/// An [`ActorEnd`] as it is sent between nodes. A `how` of a later version is read as `Ended`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ToldEnd {
    how: String,
    #[serde(default)]
    reason: String,
}

impl Question for WatchActor {
    const NAME: &str = "callboard.watch";
    type Answer = ToldEnd;
}

/// The end of an actor on its own node.
#[derive(Clone, Debug)]
pub(super) enum LocalEnd {
    Ended,
    Failed(String),
    /// The node drains.
    Left,
}

impl LocalEnd {
    const LEFT: &str = "left";
    const FAILED: &str = "failed";

    fn told(self) -> ToldEnd {
        let (how, reason) = match self {
            Self::Ended => ("ended", String::new()),
            Self::Failed(reason) => (Self::FAILED, reason),
            Self::Left => (Self::LEFT, String::new()),
        };
        ToldEnd { how: how.to_owned(), reason }
    }
}

impl ToldEnd {
    fn of_node(self, node: String) -> ActorEnd {
        match self.how.as_str() {
            LocalEnd::LEFT => ActorEnd::NodeLeft { node },
            LocalEnd::FAILED => ActorEnd::Failed { reason: self.reason },
            _ => ActorEnd::Ended,
        }
    }
}

/// How an actor answers [`WatchActor`]. It needs no place in the mailbox: the actor is not asked.
pub(super) fn accepted(status: &Arc<ActorStatus>, leaving: watch::Receiver<bool>) -> AcceptedQuestion {
    let status = Arc::clone(status);
    AcceptedQuestion::of::<WatchActor>(QuestionForm::Ask, move |_, order| {
        let (status, mut leaving) = (Arc::clone(&status), leaving.clone());
        Box::pin(async move {
            // Held until the end: the number of watches has a bound.
            let QuestionOrder { deadline, place: _place, .. } = order;
            let left = async {
                // An error means that the node has ended.
                let _ = leaving.wait_for(|is_leaving| *is_leaving).await.map(drop);
                LocalEnd::Left
            };
            let ended = async {
                tokio::select! {
                    biased;
                    end = status.until_ended() => end,
                    end = left => end,
                }
            };
            let ended = tokio::time::timeout_at(deadline.instant(), ended).await;
            ended.map(|end| Payload::new(end.told())).map_err(|_| AskError::DeadlineExceeded { taken: false })
        })
    })
}

impl RemoteRef {
    /// Waits until the actor ends, or its node does, and says how. A crash is no end if the actor starts again.
    ///
    /// It watches the actor that a question would reach now, without asking it: a watch takes no place in its mailbox.
    /// A watch of an actor on another node keeps a stream of the connection busy, so that a dead node is noticed within
    /// seconds. A node has at most 64 such watches, and an actor at most 1,024 of other nodes. The deadline of `within`
    /// ends the watch, and it may be made again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use callboard_core::actor::{Actor, ActorContext, ActorEnd, ActorSpec, Question};
    /// use callboard_core::{App, Failure};
    /// use serde::{Deserialize, Serialize};
    ///
    /// struct Lease;
    ///
    /// #[derive(Serialize, Deserialize)]
    /// struct GiveUp;
    ///
    /// impl Question for GiveUp {
    ///     const NAME: &str = "give_up";
    ///     type Answer = ();
    /// }
    ///
    /// impl Actor for Lease {
    ///     type Message = GiveUp;
    ///
    ///     async fn handle(&mut self, _: GiveUp, context: &ActorContext<Self>) -> Result<(), Failure> {
    ///         context.stop();
    ///         Ok(())
    ///     }
    /// }
    ///
    /// let lease = ActorSpec::new("lease", |_| Lease).accepts_tell(|give_up: GiveUp| give_up);
    /// let node = App::new().actor(lease).start().await?;
    /// let lease = node.remote_actor("lease");
    /// let hour = Duration::from_secs(3_600);
    /// let (end, told) = tokio::join!(lease.watch(hour), lease.tell(hour, GiveUp));
    /// told?;
    /// assert_eq!(end?, ActorEnd::Ended);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Without a watch: `Unreachable` as for a question; `Full` with as many watches as there may be; `NotAccepted` of
    /// a node of an earlier version. After it: `DeadlineExceeded`.
    pub async fn watch(&self, within: impl Into<CallOptions>) -> Result<ActorEnd, AskError> {
        let options: CallOptions = within.into();
        let deadline = options.message_deadline(self.outer.as_ref());
        let (options, question) = (options.with_deadline(deadline), Payload::new(WatchActor));
        let (told, node) = match self.target()? {
            MessageTarget::Here(actor) => {
                let order = QuestionOrder { deadline, options, place: None, key: None, asked_by: None };
                let accepted = actor.find(WatchActor::NAME, QuestionForm::Ask)?;
                ((accepted.deliver)(question, order).await?, self.this_node())
            }
            MessageTarget::Away(node) => {
                let _held = self.directory.reserve_watch()?;
                let node = node.or_else(|| self.others().into_iter().next());
                let name = node.as_deref().unwrap_or_default().to_owned();
                let asked = self.question::<ToldEnd>(WatchActor::NAME, QuestionForm::Ask, question, options, node);
                match self.ask_away(deadline, asked).await {
                    Ok(Ok(told)) => (told, name),
                    Ok(Err(lost)) if lost.reason() == Some(ErrorReason::ConnectionLost) => {
                        return Ok(ActorEnd::NodeLost { node: name, reason: lost.message().to_owned() });
                    }
                    Ok(Err(refused)) => return Err(AskError::from_answer(refused)),
                    // It was a watch until then.
                    Err(AskError::DeadlineExceeded { .. }) => return Err(AskError::DeadlineExceeded { taken: false }),
                    Err(error) => return Err(error),
                }
            }
        };
        let told: ToldEnd = owned(told).map_err(|reason| {
            AskError::Failed(Failure::new(format!("the end of the actor `{}` cannot be read: {reason}", self.name())))
        })?;
        Ok(told.of_node(node))
    }
}
