//! The seam for actors on other nodes: what a reference by name asks of a network.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{DecodeError, EnvelopeDecoder, Payload};
use tokio::sync::watch;

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

    /// The other nodes that publish `actor` and can be reached. The first is the one to which [`ask`](Self::ask) brings
    /// a question without a node.
    fn publishers(&self, actor: &str) -> Vec<Arc<str>> {
        let _ = actor;
        Vec::new()
    }

    /// The node that has the keyed actor with this number, of those that publish its kind as `actor` and can be
    /// reached: the one with the highest `splitmix64(name ^ place)`, where `name` is the
    /// [`SessionKey`](crate::SessionKey) of its name. `is_here`: this node is one of them. `None` without any.
    fn owner(&self, actor: &str, place: u64, is_here: bool) -> Option<KeyOwner> {
        let _ = (actor, place);
        is_here.then_some(KeyOwner::This)
    }

    /// A number of the other nodes that publish `actor` and can be reached, which changes with them. 0 without any.
    fn view_of(&self, actor: &str) -> u64 {
        let _ = actor;
        0
    }

    /// The name of this node.
    fn this_node(&self) -> Option<Arc<str>> {
        None
    }

    /// Whether this node has seen the nodes that it joins. Until then it has no keyed actors.
    fn join_state(&self) -> watch::Receiver<JoinState> {
        watch::channel(JoinState::Joined { without: None }).1
    }

    /// Whether the node of this name, which had a keyed actor of the kind `actor` last, can be asked for it.
    fn reach(&self, actor: &str, node: &str) -> Reach {
        let _ = (actor, node);
        Reach::Connected
    }
}

/// What the names begin with under which nodes publish kinds of keyed actors. A node publishes its kinds once it has
/// joined the others.
pub const KINDS_PREFIX: &str = "keyed:";

/// How often a node looks which of its active keys another node should have.
pub const GIVE_AWAY_EVERY: Duration = Duration::from_millis(250);

/// What a node that joins others has seen of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JoinState {
    /// It does not know all of them yet.
    Joining {
        /// What is missing, for people.
        reason: Arc<str>,
    },
    /// It knows them, and tells them what it has: they may ask it for keyed actors.
    Announced,
    /// It has its keyed actors from now on.
    Joined {
        /// What was missing when its time was over, for people.
        without: Option<Arc<str>>,
    },
}

impl JoinState {
    /// Whether the node has its keyed actors.
    #[must_use]
    pub fn is_joined(&self) -> bool {
        matches!(self, Self::Joined { .. })
    }
}

/// Whether a node can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is connected, and answers.
    Connected,
    /// It is connected and gives its keys away: it takes none, and can be asked for those that it has.
    Draining,
    /// It is not connected, and its cluster has not called it dead: it may be soon.
    Expected,
    /// It is dead, silent or unknown, or has no such actors.
    Gone,
}

/// The node of a keyed actor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyOwner {
    /// The asking node itself.
    This,
    /// The node of this name.
    Other(Arc<str>),
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
    /// The key, if the actor is a kind of keyed actors.
    pub key: Option<Arc<str>>,
    /// The only node that may get it.
    pub node: Option<Arc<str>>,
    /// It asks for a key that this node has, and goes also to a node that drains.
    pub is_handover: bool,
}
