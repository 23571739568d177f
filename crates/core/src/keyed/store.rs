//! The seam for stores: what a keyed actor asks of the place that keeps its state.

use std::fmt;
use std::pin::Pin;

use bytes::Bytes;

/// The outcome of an operation of a store.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Keeps the state of keyed actors. The store is the fence: of two instances of a key, on whichever nodes, only the one
/// that claimed it last can save.
///
/// # Contract
///
/// For each kind and key a store has a record of an epoch, a version and a state. All operations on one record appear
/// in one order to everybody that uses the store.
///
/// * `claim` gives the record a new epoch and owner, and changes nothing else. A record that does not exist begins with
///   version 0 and no state. The epoch is at least 1, higher than each that a claim of this key has returned before,
///   and no other claim of the key ever gets it: **also if the record was removed meanwhile**.
/// * `save` replaces the state and raises the version by one, if epoch *and* version are those of the record. Else it
///   changes nothing and fails with [`StoreError::Conflict`].
/// * `remove` removes the record under the same condition. A record that does not exist is a conflict, too.
/// * A `claim`, a `save` or a `remove` that has returned `Ok` survives what the store promises to survive, such as the
///   end of its process.
/// * After any other error the operation may have been carried out or not, and it may be carried out later.
///
/// [`testing::check_state_store`](crate::testing::check_state_store) checks an implementation against it.
///
/// # Cancellation
///
/// If a future is dropped, its operation may still be carried out.
pub trait StateStore: fmt::Debug + Send + Sync + 'static {
    /// Takes the key for a new instance of `owner`, a name for people, and returns its record.
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState>;

    /// Reads a record and claims nothing. `None` if the key was never claimed, or was removed. An instance whose last
    /// save may or may not have been carried out asks so which version it has.
    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>>;

    /// Replaces the state, and returns the new version.
    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64>;

    /// Removes the record: nothing of it is kept but what the epochs of later claims need.
    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()>;

    /// Whether it keeps the state on this machine only: it survives the process then, and not the node.
    fn is_local(&self) -> bool;
}

/// The name of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateKey<'a> {
    /// The kind of the actor.
    pub kind: &'a str,
    /// The key.
    pub key: &'a str,
}

/// What a record must have for a save or a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The epoch that the instance has claimed.
    pub epoch: u64,
    /// The version that it has loaded, or saved last.
    pub version: u64,
}

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredState {
    /// That of the last claim.
    pub epoch: u64,
    /// The number of saves.
    pub version: u64,
    /// The state; `None` before the first save.
    pub state: Option<Bytes>,
    /// The node that claimed it last.
    pub owner: String,
}

/// Why an operation of a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The record has another epoch or version, or is gone: another instance has the key. Nothing was changed.
    #[error("another instance has claimed the key")]
    Conflict,
    /// The store cannot be reached, or has failed. The operation may have been carried out.
    #[error("the store failed: {0}")]
    Failed(String),
}
