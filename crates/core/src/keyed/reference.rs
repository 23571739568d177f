//! A reference to the keyed actors of one kind, wherever they run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::{Data, Payload, Value};

use super::kind::{check_key, ended};
use super::kinds::KeyedKinds;
use super::letter::Letter;
use super::placement;
use super::shards::SlotOrder;
use super::spec::ForgetKey;
use crate::actor::{Question, QuestionForm, QuestionOrder, owned};
use crate::call::{CallOptions, OuterCall};
use crate::clock;
use crate::deadline::Deadline;
use crate::error::{AskError, Failure};
use crate::remote::{Cluster, KeyOwner, Reach, RemoteQuestion};

/// How often a question follows its key to another node.
const MAX_HOPS: usize = 2;

/// The pause before a question looks for its node again, after a node has refused it. Within a round trip the asking
/// node learns why.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The pause before a node gets a question again that it has sent on. Longer than nodes take to agree about a node that
/// joins or leaves.
const SETTLED_WITHIN: Duration = Duration::from_millis(300);

/// How long the last node of a question may take to be connected. A known node is tried again within half of this time.
const CONNECTED_WITHIN: Duration = Duration::from_secs(1);

/// A reference to the keyed actors of one kind, on this node and on other nodes of the cluster. Cloning it is cheap.
///
/// It is made by [`NodeHandle::keyed`](crate::NodeHandle::keyed), and in the code of a stage by
/// [`LocalClient::keyed`](crate::LocalClient::keyed). The node of a key follows from its name and the names of the nodes
/// that have the kind, so all nodes with the same view agree.
///
/// # What is promised
///
/// A question is handled at most once, and the questions of a key one after another.
/// [`AskError::was_taken`] says whether it may have been handled.
///
/// | when | error |
/// |---|---|
/// | no reachable node has the kind; the node ends; all active keys have work | `Unreachable`: not handled |
/// | the key cannot be loaded, or its store fails before the message is taken | `Unreachable`: not handled |
/// | the key is too long, or the kind does not accept the question | `NotAccepted`: not handled |
/// | the mailbox of the key, or of the kind, is full | `Full`: not handled |
/// | the key moves between nodes that do not agree on its owner | `NoOwner`: not handled |
/// | the handler panics or takes too long | `Crashed`: its changes are not saved |
/// | the save of its changes fails; a later instance has claimed the key; the connection is lost | `Lost`: it may have had an effect |
/// | the handler returns a failure, or the state is too large | `Failed` |
/// | the deadline passes | `DeadlineExceeded`, which says whether it was taken |
#[derive(Clone)]
pub struct KeyedRef {
    kind: Arc<str>,
    published: Arc<str>,
    kinds: Arc<KeyedKinds>,
    cluster: Cluster,
    /// The call for which it asks.
    outer: Option<Arc<OuterCall>>,
}

impl KeyedRef {
    pub(crate) fn new(kind: &str, kinds: Arc<KeyedKinds>, cluster: Cluster, outer: Option<Arc<OuterCall>>) -> Self {
        let published = placement::published_name(kind).into();
        Self { kind: kind.into(), published, kinds, cluster, outer }
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The count of keys that are active on this node now.
    #[must_use]
    pub fn active(&self) -> usize {
        self.kinds.get(&self.kind).map_or(0, |running| running.kind.active())
    }

    /// Some of the keys that are active on this node now, sorted.
    #[must_use]
    pub fn active_keys(&self, at_most: usize) -> Vec<String> {
        let keys = self.kinds.get(&self.kind).map(|running| running.kind.active_keys(at_most)).unwrap_or_default();
        let mut keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
        keys.sort_unstable();
        keys
    }

    /// Asks the instance of `key` on this node to save what has changed and to end, unless a message waits for it. Its
    /// next message loads it, on whichever node has it then. Returns at once, and says whether the key was active.
    #[must_use]
    pub fn passivate(&self, key: &str) -> bool {
        self.end(key, SlotOrder::Passivate)
    }

    /// As [`passivate`](Self::passivate), also if messages wait: they follow the key to the node that has it now.
    #[must_use]
    pub fn release(&self, key: &str) -> bool {
        self.end(key, SlotOrder::Release)
    }

    fn end(&self, key: &str, order: SlotOrder) -> bool {
        self.kinds.get(&self.kind).is_some_and(|running| running.kind.end(key, order))
    }

    /// Makes `key` as if it had never been asked, wherever it is active or not: after the messages that wait for it
    /// now, its record is removed from the store, and its instance ends. With a kind that saves
    /// [relaxed](super::SavePolicy::Relaxed) the answer leaves before that, as all its answers do.
    ///
    /// An instance does so itself by [`Stored::forget`](super::Stored::forget).
    ///
    /// # Errors
    ///
    /// See [`KeyedRef`] and [`AskError`]. A key whose saved state cannot be read, or which the load hook refuses, is
    /// not forgotten.
    ///
    /// # Cancellation
    ///
    /// As of [`ask`](Self::ask).
    pub async fn forget(&self, key: &str, within: impl Into<CallOptions>) -> Result<(), AskError> {
        self.ask(key, within, ForgetKey).await
    }

    /// As [`ask`](Self::ask), by the name of the question, for tools: the question and its answer are values. This node
    /// needs to have the kind.
    ///
    /// # Errors
    ///
    /// See [`KeyedRef`] and [`AskError`].
    pub async fn ask_value(
        &self,
        key: &str,
        within: impl Into<CallOptions>,
        question: &str,
        value: Value,
    ) -> Result<Value, AskError> {
        let reason = || format!("this node has no keyed actors `{}`", self.kind);
        let running = self.kinds.get(&self.kind).ok_or_else(|| AskError::Unreachable { reason: reason() })?;
        let name = running.published.find(question, QuestionForm::Ask)?.name;
        self.send_as::<Value>(key, name, QuestionForm::Ask, within.into(), Payload::new(value)).await
    }

    /// Asks the instance of `key`, which is loaded if it is not active, and waits for the answer: a
    /// [`Duration`](std::time::Duration) from now, until a [`Deadline`], or as [`CallOptions`] say, which may also name
    /// a caller. Options without a deadline wait for [30 s](Deadline::DEFAULT_TIMEOUT).
    ///
    /// # Errors
    ///
    /// See [`KeyedRef`] and [`AskError`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, a question that waits is not handled. One that was taken is handled to its end.
    pub async fn ask<Q: Question>(
        &self,
        key: &str,
        within: impl Into<CallOptions>,
        question: Q,
    ) -> Result<Q::Answer, AskError> {
        self.send::<Q, Q::Answer>(key, QuestionForm::Ask, within.into(), question).await
    }

    /// Puts a message into the mailbox of `key`, and returns when it is there. Nobody learns whether it is handled, or
    /// what it answers: it is lost if the key cannot be loaded or moves, if the instance crashes with it or its change
    /// cannot be saved, and if the node stops before its turn or is killed.
    ///
    /// # Errors
    ///
    /// See [`KeyedRef`] and [`AskError`].
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the message may be handled or not.
    pub async fn tell<Q: Question>(
        &self,
        key: &str,
        within: impl Into<CallOptions>,
        question: Q,
    ) -> Result<(), AskError> {
        self.send::<Q, ()>(key, QuestionForm::Tell, within.into(), question).await
    }

    async fn send<Q: Question, A: Data>(
        &self,
        key: &str,
        form: QuestionForm,
        options: CallOptions,
        question: Q,
    ) -> Result<A, AskError> {
        self.send_as(key, Q::NAME, form, options, Payload::new(question)).await
    }

    async fn send_as<A: Data>(
        &self,
        key: &str,
        question: &'static str,
        form: QuestionForm,
        options: CallOptions,
        payload: Payload,
    ) -> Result<A, AskError> {
        check_key(key)?;
        let (options, deadline) = options.for_message(self.outer.as_ref());
        let read = |decoder: callboard_codec::EnvelopeDecoder| decoder.finish_as::<A>().map(Payload::new);
        let asked = Asked { key: key.into(), question, form, deadline, options, read };
        let answer = self.follow(&asked, payload).await?;
        owned(answer).map_err(|reason| AskError::Failed(Failure::new(format!("the answer cannot be read: {reason}"))))
    }

    /// Asks the owner of the key, and the next one if that says that the key has moved, or takes no questions any more.
    async fn follow(&self, asked: &Asked, mut question: Payload) -> Result<Payload, AskError> {
        self.kinds.until_joined(&self.cluster, asked.deadline).await?;
        let mut owner = self.owner(&asked.key)?;
        let mut earlier: Vec<KeyOwner> = Vec::new();
        for hop in 0..=MAX_HOPS {
            let is_last = hop == MAX_HOPS;
            let answer = match &owner {
                KeyOwner::This => {
                    let letter = Letter::new(question);
                    let answer = self.ask_here(asked, Arc::clone(&letter)).await;
                    if !answer.as_ref().is_err_and(|error| self.has_moved(&owner, error)) {
                        return answer;
                    }
                    // It was not handled, so the question is still there.
                    let Some(unread) = letter.take() else { return Err(AskError::Lost) };
                    question = unread;
                    answer
                }
                KeyOwner::Other(node) => self.ask_away(asked, question.clone(), Arc::clone(node)).await,
            };
            let next = match answer {
                Err(AskError::Moved { .. }) if is_last => break,
                Err(AskError::Moved { node }) => self.next_owner(asked, &owner, node, hop + 1 == MAX_HOPS).await?,
                Err(error) if !is_last && self.has_moved(&owner, &error) => {
                    let next = self.look_again(asked, &owner).await?;
                    // This node ends, and no other one has the kind.
                    if next == KeyOwner::This && owner == KeyOwner::This {
                        return Err(error);
                    }
                    next
                }
                answer => return answer,
            };
            earlier.push(std::mem::replace(&mut owner, next));
            // Two nodes name each other: one of them learns of a change a moment later.
            if is_named_back(&earlier, &owner) {
                Self::pause(asked, SETTLED_WITHIN).await?;
            }
        }
        Err(AskError::NoOwner)
    }

    /// Whether an error of this node says that nothing was handled, and that another node has its keys by now: it has
    /// begun to drain since it was chosen, or is away.
    fn has_moved(&self, owner: &KeyOwner, error: &AskError) -> bool {
        match (error, owner) {
            (AskError::Moved { .. }, _) => true,
            (AskError::Unreachable { .. }, KeyOwner::This) => self.kinds.is_leaving(),
            (AskError::Unreachable { .. }, KeyOwner::Other(node)) => self.reach(node) != Reach::Connected,
            _ => false,
        }
    }

    /// Where to ask next, after `owner` has named this node, or none.
    async fn next_owner(
        &self,
        asked: &Asked,
        owner: &KeyOwner,
        named: String,
        is_last: bool,
    ) -> Result<KeyOwner, AskError> {
        if named.is_empty() {
            return self.look_again(asked, owner).await;
        }
        let next = self.named(named);
        if next == KeyOwner::This || self.is_connected(&next) {
            return Ok(next);
        }
        if !is_last {
            return self.look_again(asked, &next).await;
        }
        // It may have just started: the node that names it has been connected to it a moment earlier.
        let until = asked.deadline.instant().min(clock::now() + CONNECTED_WITHIN);
        while !self.is_connected(&next) && clock::now() < until {
            tokio::time::sleep_until(until.min(clock::now() + LOOK_AGAIN)).await;
        }
        Ok(next)
    }

    /// The owner by the view of this node. If that is still `than`, a node that has refused the question, it has a
    /// moment to learn why.
    async fn look_again(&self, asked: &Asked, than: &KeyOwner) -> Result<KeyOwner, AskError> {
        let owner = self.owner(&asked.key)?;
        if owner != *than || owner == KeyOwner::This {
            return Ok(owner);
        }
        Self::pause(asked, LOOK_AGAIN).await?;
        self.owner(&asked.key)
    }

    async fn pause(asked: &Asked, lasting: Duration) -> Result<(), AskError> {
        tokio::time::sleep_until(asked.deadline.instant().min(clock::now() + lasting)).await;
        if asked.deadline.is_expired(clock::now()) {
            return Err(AskError::DeadlineExceeded { taken: false });
        }
        Ok(())
    }

    /// The node that has the key, by the view of this one.
    fn owner(&self, key: &str) -> Result<KeyOwner, AskError> {
        self.kinds.owner(&self.cluster, &self.published, key)
    }

    fn named(&self, node: String) -> KeyOwner {
        let actors = self.cluster.actors();
        let is_this = actors.and_then(|actors| actors.this_node()).is_some_and(|this| *this == *node);
        if is_this { KeyOwner::This } else { KeyOwner::Other(node.into()) }
    }

    fn is_connected(&self, owner: &KeyOwner) -> bool {
        matches!(owner, KeyOwner::Other(node) if self.reach(node) == Reach::Connected)
    }

    fn reach(&self, node: &str) -> Reach {
        let actors = self.cluster.actors();
        actors.map_or(Reach::Gone, |actors| actors.reach(&self.published, node))
    }

    async fn ask_here(&self, asked: &Asked, letter: Arc<Letter>) -> Result<Payload, AskError> {
        let Some(running) = self.kinds.get(&self.kind) else { return Err(ended()) };
        let (key, options) = (Some(Arc::clone(&asked.key)), asked.options.clone());
        let order = QuestionOrder { deadline: asked.deadline, options, place: None, key, asked_by: None };
        Arc::clone(&running.kind).send(asked.question, letter, asked.form, order).await
    }

    async fn ask_away(&self, asked: &Asked, payload: Payload, node: Arc<str>) -> Result<Payload, AskError> {
        let Some(actors) = self.cluster.actors() else { return Err(ended()) };
        let question = RemoteQuestion {
            actor: Arc::clone(&self.published),
            question: asked.question,
            is_tell: asked.form == QuestionForm::Tell,
            payload,
            options: asked.options.clone(),
            read: asked.read,
            key: Some(Arc::clone(&asked.key)),
            node: Some(node),
            is_handover: false,
        };
        let answer = tokio::time::timeout_at(asked.deadline.instant(), actors.ask(question)).await;
        // The other node may have handed the message to the instance a moment ago.
        answer.map_err(|_| AskError::DeadlineExceeded { taken: true })?.map_err(AskError::from_answer)
    }
}

/// Whether a node that has sent the question on is to get it again, from another one.
fn is_named_back(earlier: &[KeyOwner], next: &KeyOwner) -> bool {
    earlier.len() > 1 && earlier.last() != Some(next) && earlier.contains(next)
}

/// What is the same for each node that a question reaches.
struct Asked {
    key: Arc<str>,
    question: &'static str,
    form: QuestionForm,
    deadline: Deadline,
    options: CallOptions,
    read: fn(callboard_codec::EnvelopeDecoder) -> Result<Payload, callboard_codec::DecodeError>,
}

impl fmt::Debug for KeyedRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyedRef").field(&self.kind).finish()
    }
}
