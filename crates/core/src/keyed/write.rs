//! The writes of an instance: what it asks of the store, and how it goes on after a write whose outcome is not known.
//!
//! Such a write may have been carried out. The record of the instance has a later version then, or is gone. Neither is
//! the work of another instance.

use std::time::Duration;

use bytes::Bytes;
use callboard_codec::{Data, Envelope};

use super::Keyed;
use super::kind::Kind;
use super::shards::Slot;
use super::store::{Fence, StateKey, StoreError, StoredState};
use super::stored::Stored;
use crate::error::{AskError, Failure};

/// What the store is asked for.
pub(super) enum Write {
    Save(Bytes),
    Remove,
}

impl Write {
    /// The doubt that it leaves if its outcome is not known.
    pub(super) fn doubt(&self) -> Doubt {
        match self {
            Self::Save(_) => Doubt::Saved,
            Self::Remove => Doubt::Removed,
        }
    }
}

/// `None` if nothing has changed.
pub(super) fn write_of<S: Data>(state: &Stored<S>) -> Result<Option<Write>, String> {
    match (state.is_forgotten(), state.has_changed()) {
        (true, _) => Ok(Some(Write::Remove)),
        (false, true) => encode(state).map(Write::Save).map(Some),
        (false, false) => Ok(None),
    }
}

fn encode<S: Data>(state: &Stored<S>) -> Result<Bytes, String> {
    Envelope::of(&**state).map(Envelope::into_bytes).map_err(|error| error.to_string())
}

/// What the writes of an instance may have done to the record, without an answer that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    None,
    /// The record may have a later version.
    Saved,
    /// The record may be gone, whatever else was written.
    Removed,
}

impl Doubt {
    /// Whether a record is as the instance's own removal leaves it: gone, or claimed again by this owner for an
    /// instance that has saved nothing. An answer to that claim may have been lost, too.
    pub(super) fn explains(self, record: Option<&StoredState>, owner: &str) -> bool {
        let is_empty = |record: &StoredState| record.version == 0 && record.state.is_none() && record.owner == owner;
        self == Self::Removed && record.is_none_or(is_empty)
    }
}

/// What became of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Saved {
    Kept,
    /// The instance has no claim any more.
    Removed,
}

/// Saves the state, or removes the record. If an earlier write may have been carried out after all, a conflict with it
/// is none: the instance that still has the epoch goes on from the version of the record, and claims the key again
/// if it may have removed the record itself.
pub(super) async fn put<K: Keyed>(
    kind: &Kind<K>,
    slot: &Slot<K>,
    fence: &mut Fence,
    doubt: &mut Doubt,
    write: Write,
) -> Result<Saved, StoreError> {
    let key = StateKey { kind: &kind.name, key: &slot.key };
    loop {
        let known = fence.version;
        let written = match &write {
            Write::Save(state) => kind.store.save(key, *fence, state.clone()).await.map(Some),
            Write::Remove => kind.store.remove(key, *fence).await.map(|()| None),
        };
        match written {
            Err(StoreError::Conflict) if *doubt != Doubt::None => {
                let record = kind.store.load(key).await?;
                if record.is_none() && matches!(write, Write::Remove) {
                    return Ok(Saved::Removed);
                }
                if doubt.explains(record.as_ref(), &kind.owner()) {
                    *fence = claim_again(kind, key).await?;
                    // The earlier writes had an earlier epoch.
                    *doubt = Doubt::None;
                    continue;
                }
                let record = record.filter(|record| record.epoch == fence.epoch).ok_or(StoreError::Conflict)?;
                fence.version = record.version;
                if fence.version == known {
                    return Err(StoreError::Conflict);
                }
            }
            written => {
                let Some(version) = written? else { return Ok(Saved::Removed) };
                fence.version = version;
                return Ok(Saved::Kept);
            }
        }
    }
}

/// A new claim for an instance whose record is gone. A state that another instance has saved since is not replaced.
async fn claim_again<K: Keyed>(kind: &Kind<K>, key: StateKey<'_>) -> Result<Fence, StoreError> {
    let record = kind.store.claim(key, &kind.owner()).await?;
    if record.state.is_some() {
        return Err(StoreError::Conflict);
    }
    Ok(Fence { epoch: record.epoch, version: record.version })
}

/// Why a state was not saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum SaveError {
    #[error("the state cannot be encoded: {0}")]
    NotEncoded(String),
    #[error("the state has {bytes} bytes, more than {most} (max_state_bytes)")]
    TooLarge { bytes: usize, most: usize },
    /// Nobody knows whether the store has it: the next save might be told that it conflicts.
    #[error("the save took longer than {within:?} (save_within)")]
    Late { within: Duration },
    #[error(transparent)]
    Store(StoreError),
}

impl SaveError {
    /// Whether the same save may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Late { .. } | Self::Store(StoreError::Failed(_)))
    }

    pub(super) fn for_asker(&self) -> AskError {
        match self {
            Self::NotEncoded(_) | Self::TooLarge { .. } => AskError::Failed(Failure::new(self.to_string())),
            Self::Late { .. } | Self::Store(_) => AskError::Lost,
        }
    }
}
