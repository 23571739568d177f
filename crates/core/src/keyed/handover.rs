//! The hand-over of a key whose last owner lives: a node that is about to load the key asks that owner to save and end.
//!
//! Only a kind that saves later than it answers needs it: what a durable kind has answered is in the store. The fence
//! holds without it, so an owner that is gone, or does not answer in time, is not waited for. One that drains, or is
//! about to be connected, is.
//!
//! An owner that has ended a key remembers the node that asked for it: its own view may still say that the key is here,
//! and an instance that it made now would be fenced off by the claim of that node, with all that it has answered. If that
//! node drains meanwhile, it takes the key back, and asks that node to save and end it as it asks a last owner.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Keyed;
use super::kind::Kind;
use super::placement;
use super::shards::SlotOrder;
use super::spec::SavePolicy;
use super::store::StateKey;
use crate::actor::{AcceptedQuestion, Question, QuestionForm};
use crate::call::CallOptions;
use crate::clock::{self, Instant};
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::remote::{Reach, RemoteActors, RemoteQuestion};

/// How often an owner looks whether its key has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The pause before an owner that could not be asked is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How long a key that was given away is not loaded here, even if the node that asked for it dies. Longer than this
/// node needs to learn what that one has.
const GIVEN_FOR: Duration = Duration::from_secs(1);

/// The most keys that are remembered as given away. Beyond them, the store decides.
const MAX_GIVEN: usize = 65_536;

/// Saves the key of this question and ends it. The answer is whether it was active.
#[derive(Serialize, Deserialize)]
pub(crate) struct ReleaseKey;

impl Question for ReleaseKey {
    const NAME: &str = "callboard.release";
    type Answer = bool;
}

/// How a kind answers [`ReleaseKey`]. It needs no place among the messages: the instance is not asked.
pub(super) fn accepted<K: Keyed>(kind: &Arc<Kind<K>>) -> AcceptedQuestion {
    let kind = Arc::clone(kind);
    AcceptedQuestion::of::<ReleaseKey>(QuestionForm::Ask, move |_, order| {
        let kind = Arc::clone(&kind);
        Box::pin(async move {
            let reason = || format!("a question to the keyed actors `{}` needs a key", kind.name);
            let key = order.key.ok_or_else(|| AskError::NotAccepted { reason: reason() })?;
            if let Some(node) = order.asked_by {
                // Before it ends: no message makes it active again.
                kind.given.give(Arc::clone(&key), node, clock::now(), kind.settings.load_within);
            }
            let released = tokio::time::timeout_at(order.deadline.instant(), kind.release(&key)).await;
            if released.is_ok() {
                kind.given.ended(&key);
            }
            released.map(Payload::new).map_err(|_| AskError::DeadlineExceeded { taken: true })
        })
    })
}

/// The keys that other nodes have asked for, and load now.
#[derive(Debug, Default)]
pub(super) struct GivenKeys(Mutex<HashMap<Arc<str>, Given>>);

#[derive(Clone, Debug)]
struct Given {
    to: Arc<str>,
    at: Instant,
    /// When the other node has loaded it, or has given up.
    until: Instant,
    /// Whether it has ended here. Until then that node waits for this one, and this one must not wait for that node.
    has_ended: bool,
}

impl GivenKeys {
    fn give(&self, key: Arc<str>, to: Arc<str>, now: Instant, load_within: Duration) {
        let mut keys = self.0.lock();
        if keys.len() >= MAX_GIVEN {
            keys.retain(|_, given| given.until > now);
        }
        if keys.len() < MAX_GIVEN {
            keys.insert(key, Given { to, at: now, until: now + load_within, has_ended: false });
        }
    }

    /// The key has ended here: the other node loads it.
    fn ended(&self, key: &str) {
        if let Some(given) = self.0.lock().get_mut(key) {
            given.has_ended = true;
        }
    }

    /// The node that loads the key now, unless it is gone, or drains.
    fn taker(&self, key: &str, now: Instant, reach: impl FnOnce(&str) -> Reach) -> Option<Arc<str>> {
        let mut keys = self.0.lock();
        let given = keys.get(key)?.clone();
        let is_over = given.until <= now
            || match reach(&given.to) {
                Reach::Gone => given.at + GIVEN_FOR <= now,
                // The record stays: a load here asks that node, which may be loading the key.
                Reach::Draining if given.has_ended => return None,
                Reach::Draining | Reach::Expected | Reach::Connected => false,
            };
        if is_over {
            keys.remove(key);
        }
        (!is_over).then_some(given.to)
    }

    /// The node that was given the key, whatever became of it.
    fn find(&self, key: &str) -> Option<Arc<str>> {
        self.0.lock().get(key).map(|given| Arc::clone(&given.to))
    }

    fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }
}

impl<K: Keyed> Kind<K> {
    /// The node that loads this key now, which was active here before.
    pub(super) fn given_to(&self, key: &str) -> Option<Arc<str>> {
        let reach = |node: &str| {
            let actors = self.cluster.actors();
            actors.map_or(Reach::Gone, |actors| actors.reach(&placement::published_name(&self.name), node))
        };
        self.given.taker(key, clock::now(), reach)
    }

    /// Saves a key and ends it, if it is active here. Its messages follow it.
    async fn release(&self, key: &str) -> bool {
        let mut was_active = false;
        while self.end_key(key, SlotOrder::Release) {
            was_active = true;
            tokio::time::sleep(LOOK_EVERY).await;
        }
        was_active
    }

    /// Asks the last owner of a key for what it has not saved, before the key is loaded here.
    pub(super) async fn take_over(&self, key: &Arc<str>) {
        if self.settings.save == SavePolicy::Durable {
            return;
        }
        let Some(actors) = self.cluster.actors() else { return };
        // The rest of the time is for the claim and the load hook.
        let deadline = Deadline::after(clock::now(), self.settings.load_within / 2);
        let asking = async {
            // It drains, or this load would not have begun. It may be about to claim the key.
            let taker = self.given.find(key);
            if let Some(taker) = &taker {
                self.until_handed_over(actors, key, taker, deadline).await;
                self.given.forget(key);
            }
            let record = self.store.load(StateKey { kind: &self.name, key }).await;
            let owner: Option<Arc<str>> = record.ok().flatten().map(|record| record.owner.into());
            let is_asked = |owner: &Arc<str>| taker.as_ref() == Some(owner);
            let is_other = |owner: &Arc<str>| !owner.is_empty() && **owner != *self.owner();
            if let Some(owner) = owner.filter(|owner| is_other(owner) && !is_asked(owner)) {
                self.until_handed_over(actors, key, &owner, deadline).await;
            }
        };
        // Too slow: the store decides.
        let _ = tokio::time::timeout_at(deadline.instant(), asking).await;
    }

    async fn until_handed_over(&self, actors: &dyn RemoteActors, key: &Arc<str>, owner: &Arc<str>, deadline: Deadline) {
        while !self.is_handed_over(actors, key, owner, deadline).await {
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Whether the last owner has given the key, or cannot. `false`: it is to be asked again.
    async fn is_handed_over(
        &self,
        actors: &dyn RemoteActors,
        key: &Arc<str>,
        owner: &Arc<str>,
        deadline: Deadline,
    ) -> bool {
        let published = placement::published_name(&self.name);
        match actors.reach(&published, owner) {
            Reach::Gone => return true,
            Reach::Expected => return false,
            Reach::Connected | Reach::Draining => {}
        }
        let asked = actors.ask(RemoteQuestion {
            actor: published.into(),
            question: ReleaseKey::NAME,
            is_tell: false,
            payload: Payload::new(ReleaseKey),
            options: CallOptions::from(deadline),
            read: |decoder| decoder.finish_as::<bool>().map(Payload::new),
            key: Some(Arc::clone(key)),
            node: Some(Arc::clone(owner)),
            is_handover: true,
        });
        match asked.await.map_err(AskError::from_answer) {
            Ok(_) => true,
            // Perhaps a node of an earlier version: it knows no such question, or takes none while it drains.
            Err(error) => matches!(error, AskError::NotAccepted { .. }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_given_key_is_remembered_while_its_taker_may_load_it() {
        let (given, start) = (GivenKeys::default(), clock::now());
        given.give("ann".into(), "right".into(), start, 10 * SECOND);
        let taker = |key: &str, seconds: f64, reach| {
            given.taker(key, start + SECOND.mul_f64(seconds), |_| reach).map(|node| node.to_string())
        };
        assert_eq!(taker("ann", 0.0, Reach::Gone).as_deref(), Some("right"), "its kinds may not be known yet");
        assert_eq!(taker("bob", 0.0, Reach::Gone), None);
        assert_eq!(taker("ann", 9.9, Reach::Connected).as_deref(), Some("right"));
        assert_eq!(taker("ann", 1.0, Reach::Gone), None, "it has died");
        assert_eq!(taker("ann", 0.0, Reach::Connected), None, "forgotten");
        given.give("ann".into(), "right".into(), start, 10 * SECOND);
        assert_eq!(taker("ann", 0.0, Reach::Draining).as_deref(), Some("right"), "it waits for this node");
        given.ended("ann");
        assert_eq!(taker("ann", 0.0, Reach::Draining), None, "this node asks it");
        assert_eq!(given.find("ann").as_deref(), Some("right"));
        given.forget("ann");
        assert_eq!(given.find("ann"), None);
        given.give("ann".into(), "right".into(), start, 10 * SECOND);
        assert_eq!(taker("ann", 10.0, Reach::Connected), None, "it has loaded it, or has given up");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_given_keys_is_bounded() {
        let (given, start) = (GivenKeys::default(), clock::now());
        for key in 0..MAX_GIVEN + 10 {
            given.give(key.to_string().into(), "right".into(), start, 10 * SECOND);
        }
        assert_eq!(given.0.lock().len(), MAX_GIVEN);
        given.give("late".into(), "right".into(), start + 10 * SECOND, 10 * SECOND);
        assert_eq!(given.0.lock().len(), 1, "those whose time is over make room");
    }
}
