//! The question to the store whether a later instance has claimed a key, before the key handles its next message.
//!
//! It is no condition of a save, for which the store is the fence: it keeps an instance from answering with what it
//! knows. So a message does not wait long for it. While the store does not answer, one question waits for the store,
//! and no message does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Keyed;
use super::kind::Kind;
use super::shards::Slot;
use super::store::{StateKey, StateStore};
use super::write::Doubt;

/// How long a message waits for the store.
const CHECK_WITHIN: Duration = Duration::from_secs(1);

/// How long the one question waits for the store, and the pause before the next one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Whether the store of a kind answers. The question that waits for it ends with the kind.
#[derive(Debug, Default)]
pub(super) struct FenceChecks {
    is_silent: Arc<AtomicBool>,
}

impl FenceChecks {
    pub(super) fn are_possible(&self) -> bool {
        !self.is_silent.load(Ordering::Acquire)
    }

    /// From now on no message asks the store, until it has answered a question about this key.
    fn wait_for(&self, store: &Arc<dyn StateStore>, kind: &Arc<str>, key: &Arc<str>) {
        if self.is_silent.swap(true, Ordering::AcqRel) {
            return;
        }
        tracing::warn!(
            parent: None,
            kind = &**kind,
            "the store does not answer: until it does, keys are not checked for later instances on other nodes"
        );
        let is_silent = Arc::downgrade(&self.is_silent);
        let (store, kind, key) = (Arc::clone(store), Arc::clone(kind), Arc::clone(key));
        tokio::spawn(async move {
            loop {
                let loading = store.load(StateKey { kind: &kind, key: &key });
                let answer = tokio::time::timeout(ANSWER_WITHIN, loading).await;
                let Some(is_silent) = is_silent.upgrade() else { return };
                if matches!(answer, Ok(Ok(_))) {
                    is_silent.store(false, Ordering::Release);
                    return;
                }
                drop(is_silent);
                tokio::time::sleep(ASK_AGAIN).await;
            }
        });
    }
}

/// Whether a later instance than that of this epoch has claimed the key. If the store does not say, the key is checked
/// before a later message.
pub(super) async fn is_fenced_off<K: Keyed>(kind: &Kind<K>, slot: &Slot<K>, epoch: u64, doubt: Doubt) -> bool {
    let loading = kind.store.load(StateKey { kind: &kind.name, key: &slot.key });
    if let Ok(Ok(record)) = tokio::time::timeout(CHECK_WITHIN, loading).await {
        // It is gone if a later instance has removed it, or this one.
        return !doubt.explains(record.as_ref(), &kind.owner()) && record.is_none_or(|record| record.epoch != epoch);
    }
    slot.set_fence_check();
    kind.fence_checks.wait_for(&kind.store, &kind.name, &slot.key);
    false
}
