//! The hand-over of a key whose last owner lives: a node that is about to load the key asks that owner to save and end.
//!
//! Only a kind that saves later than it answers needs it: what a durable kind has answered is in the store. The fence
//! holds without it, so an owner that cannot be reached, or does not answer in time, is not waited for.

use std::sync::Arc;
use std::time::Duration;

use callboard_codec::Payload;
use serde::{Deserialize, Serialize};

use super::Keyed;
use super::kind::Kind;
use super::placement;
use super::shards::SlotOrder;
use super::spec::SavePolicy;
use super::store::StateKey;
use crate::actor::{AcceptedQuestion, Question, QuestionForm};
use crate::call::CallOptions;
use crate::clock;
use crate::deadline::Deadline;
use crate::error::AskError;
use crate::remote::RemoteQuestion;

/// How often an owner looks whether its key has ended.
const LOOK_EVERY: Duration = Duration::from_millis(2);

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
            let released = tokio::time::timeout_at(order.deadline.instant(), kind.release(&key)).await;
            released.map(Payload::new).map_err(|_| AskError::DeadlineExceeded { taken: true })
        })
    })
}

impl<K: Keyed> Kind<K> {
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
        let Some(actors) = self.cluster.stages().and_then(|stages| stages.actors()) else { return };
        let record = self.store.load(StateKey { kind: &self.name, key }).await;
        let owner = record.ok().flatten().map(|record| record.owner);
        let Some(owner) = owner.filter(|owner| !owner.is_empty() && *owner != self.owner()) else { return };
        // The rest of the time is for the claim and the load hook.
        let within = self.settings.load_within / 2;
        let asked = actors.ask(RemoteQuestion {
            actor: placement::published_name(&self.name).into(),
            question: ReleaseKey::NAME,
            is_tell: false,
            payload: Payload::new(ReleaseKey),
            options: CallOptions::from(Deadline::after(clock::now(), within)),
            read: |decoder| decoder.finish_as::<bool>().map(Payload::new),
            key: Some(Arc::clone(key)),
            node: Some(owner.into()),
        });
        // Lost, refused, too old for the question or too slow: the store decides.
        let _ = tokio::time::timeout(within, asked).await;
    }
}
