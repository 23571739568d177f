//! Questions of other nodes to actors of this one: a place in the mailbox before the question is read.

use std::fmt;
use std::sync::Arc;

use callboard_codec::{Account, DecodeError, EnvelopeDecoder, Payload};
use tokio::sync::OwnedSemaphorePermit;

use super::calls::EdgeHandle;
use crate::actor::{PublishedActor, Question, QuestionForm, QuestionOrder, ReservedPlace, WatchActor};
use crate::call::CallOptions;
use crate::deadline::Deadline;
use crate::error::{AskError, CallError};
use crate::gateway::HeldBytes;
use crate::keyed::{KeyedKinds, ReleaseKey};
use crate::remote::{Cluster, KeyOwner};

/// The most names of one node.
const MAX_PUBLISHED: usize = 1_024;

/// The right of another node to one question: a place in the mailbox of its actor. Dropping it frees the place.
pub struct QuestionAdmission {
    actor: Arc<PublishedActor>,
    name: String,
    form: QuestionForm,
    /// The key, of a keyed actor.
    key: Option<Arc<str>>,
    /// The node that asks.
    asked_by: Option<Arc<str>>,
    /// Set while this node still joins: the question waits until it has joined.
    joining: Option<(Arc<KeyedKinds>, Cluster)>,
    read: fn(EnvelopeDecoder) -> Result<Payload, DecodeError>,
    place: OwnedSemaphorePermit,
    /// Until the question is complete.
    arriving: Option<OwnedSemaphorePermit>,
    /// Pays for its bytes.
    held: Arc<HeldBytes>,
}

impl QuestionAdmission {
    /// Charges `bytes` more: more of the question has arrived.
    ///
    /// # Errors
    ///
    /// `Overloaded` if the node's bytes are all taken, `InvalidInput` if the call alone exceeds the node's limit. The
    /// admission stays valid.
    pub fn grow(&self, bytes: u64) -> Result<(), CallError> {
        self.held.grow(bytes)
    }

    /// The question is complete: it does not count any more among those that arrive, which have half of the places.
    pub fn arrived(&mut self) {
        self.arriving = None;
    }

    /// The account of the question, for what is decoded and encoded for it.
    #[must_use]
    pub fn account(&self) -> Arc<dyn Account> {
        Arc::clone(&self.held) as Arc<_>
    }

    /// Says which node asks, as it is known to all nodes.
    #[must_use]
    pub fn asked_by(mut self, node: Option<Arc<str>>) -> Self {
        self.asked_by = node;
        self
    }

    /// Reads the question, straight into its type.
    #[must_use]
    pub fn reader(&self) -> fn(EnvelopeDecoder) -> Result<Payload, DecodeError> {
        self.read
    }

    /// Hands the question to the actor, and returns the answer; of a message that is told, when it is in the mailbox.
    ///
    /// # Errors
    ///
    /// Those of [`AskError`], as an answer for the asker. Its error [is a refusal](CallError::is_refusal) if the
    /// actor did not take the question.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a question that waits is not handled.
    pub async fn deliver(
        mut self,
        question: Payload,
        deadline: Deadline,
        options: CallOptions,
    ) -> Result<Payload, CallError> {
        self.arrived();
        if let Some((kinds, cluster)) = &self.joining {
            kinds.until_joined(cluster, deadline).await.map_err(AskError::into_answer)?;
        }
        let accepted = self.actor.find(&self.name, self.form).map_err(AskError::into_answer)?;
        let Self { place, key, asked_by, .. } = self;
        let order = QuestionOrder { deadline, options, place: Some(place), key, asked_by };
        (accepted.deliver)(question, order).await.map_err(AskError::into_answer)
    }
}

impl fmt::Debug for QuestionAdmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuestionAdmission").field("actor", &self.actor).field("question", &self.name).finish()
    }
}

impl EdgeHandle<'_> {
    /// The names of the actors and kinds of keyed actors that accept questions, sorted: at most 1,024 of at most 128
    /// bytes.
    #[must_use]
    pub fn published_actors(self) -> Vec<String> {
        let shared = &self.0.shared;
        let mut names = shared.keyed.published_names(&shared.router.cluster);
        names.extend(shared.directory.published_names());
        names.sort_unstable();
        names.dedup();
        names.truncate(MAX_PUBLISHED);
        names
    }

    /// Takes a place in the mailbox of an actor before the `bytes` of a question are read. Questions that are not
    /// complete have at most half of the places, rounded up: more are refused as if the mailbox were full. With a
    /// `key`, the actor is a kind of keyed actors, and a node that does not have the key by its own view refuses.
    ///
    /// # Errors
    ///
    /// Those of [`AskError`], as an answer for the asker, or `Overloaded` when the node's bytes are all taken. Nothing
    /// was handled.
    pub fn admit_question(
        self,
        actor: &str,
        key: Option<&str>,
        question: &str,
        is_tell: bool,
        bytes: u64,
    ) -> Result<QuestionAdmission, CallError> {
        let form = if is_tell { QuestionForm::Tell } else { QuestionForm::Ask };
        let admitted = || {
            let actor = match key {
                None => self.0.shared.directory.published(actor),
                Some(key) => self.published_kind(actor, key, question)?,
            }
            .ok_or_else(|| AskError::Unreachable { reason: format!("this node publishes no actor `{actor}`") })?;
            let read = actor.find(question, form)?.read;
            let reserved = if question == WatchActor::NAME { actor.reserve_watch()? } else { actor.reserve()? };
            Ok((actor, read, reserved))
        };
        let (actor, read, ReservedPlace { place, arriving }) = admitted().map_err(AskError::into_answer)?;
        let held = Arc::new(self.held_bytes());
        held.grow(bytes)?;
        let (name, key) = (question.to_owned(), key.map(Arc::from));
        let shared = &self.0.shared;
        let (kinds, cluster) = (&shared.keyed, &shared.router.cluster);
        let waits = key.is_some() && !Self::is_handover(question) && kinds.joining(cluster).is_some();
        let joining = waits.then(|| (Arc::clone(kinds), cluster.clone()));
        Ok(QuestionAdmission { actor, name, form, key, asked_by: None, joining, read, place, arriving, held })
    }

    /// Whether this question is how nodes hand keys over: a node that drains takes it, and a node that has not started
    /// has no such key.
    #[must_use]
    pub fn is_handover(question: &str) -> bool {
        question == ReleaseKey::NAME
    }

    /// The answer of a node that drains to a question for a key: nothing was handled, and the node that has the key by
    /// the view of this one, if it knows one.
    #[must_use]
    pub fn moved(self, actor: &str, key: &str) -> CallError {
        let shared = &self.0.shared;
        let node = match shared.keyed.owner(&shared.router.cluster, actor, key) {
            Ok(KeyOwner::Other(node)) => node.to_string(),
            Ok(KeyOwner::This) | Err(_) => String::new(),
        };
        AskError::Moved { node }.into_answer()
    }

    /// The kind that is published under this name, if this node has the key. This node may still hold a key that it is
    /// asked to release.
    fn published_kind(self, actor: &str, key: &str, question: &str) -> Result<Option<Arc<PublishedActor>>, AskError> {
        let shared = &self.0.shared;
        let Some(running) = shared.keyed.published(actor) else { return Ok(None) };
        if Self::is_handover(question) {
            return Ok(Some(Arc::clone(&running.published)));
        }
        match shared.keyed.owner(&shared.router.cluster, actor, key)? {
            KeyOwner::This => Ok(Some(Arc::clone(&running.published))),
            KeyOwner::Other(node) => Err(AskError::Moved { node: node.to_string() }),
        }
    }
}
