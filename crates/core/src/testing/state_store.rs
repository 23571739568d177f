//! A store of keyed actors in memory, and the conformance suite of all stores.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::keyed::{Fence, StateKey, StateStore, StoreError, StoreFuture, StoredState};

/// Keeps the state of keyed actors in memory: for tests, and for nodes in one process that share it. Clones are the same
/// store. It grows with each key that is not removed.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<(String, String), StoredState>,
    /// The highest epoch of a record that was removed: that of a new one is higher.
    removed: u64,
    is_away: bool,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of records: of keys that were claimed and not removed.
    #[must_use]
    pub fn record_count(&self) -> usize {
        self.0.lock().records.len()
    }

    /// From now on all operations fail, or none does.
    pub fn set_away(&self, is_away: bool) {
        self.0.lock().is_away = is_away;
    }

    fn with<'a, T: Send + 'a>(
        &'a self,
        operation: impl FnOnce(&mut Inner) -> Result<T, StoreError> + Send + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let mut inner = self.0.lock();
            if inner.is_away {
                return Err(StoreError::Failed("the store is away".to_owned()));
            }
            operation(&mut inner)
        })
    }
}

fn owned(key: StateKey<'_>) -> (String, String) {
    (key.kind.to_owned(), key.key.to_owned())
}

impl StateStore for MemoryStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.with(move |Inner { records, removed, .. }| {
            let new = || StoredState { epoch: *removed, ..StoredState::default() };
            let record = records.entry(owned(key)).or_insert_with(new);
            record.epoch += 1;
            record.owner = owner.to_owned();
            Ok(record.clone())
        })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.with(move |inner| Ok(inner.records.get(&owned(key)).cloned()))
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        self.with(move |inner| {
            let record = inner.records.get_mut(&owned(key)).ok_or(StoreError::Conflict)?;
            if (record.epoch, record.version) != (fence.epoch, fence.version) {
                return Err(StoreError::Conflict);
            }
            record.version += 1;
            record.state = Some(state);
            Ok(record.version)
        })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        self.with(move |Inner { records, removed, .. }| {
            let record = records.get(&owned(key)).ok_or(StoreError::Conflict)?;
            if (record.epoch, record.version) != (fence.epoch, fence.version) {
                return Err(StoreError::Conflict);
            }
            *removed = record.epoch.max(*removed);
            records.remove(&owned(key));
            Ok(())
        })
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// Checks a store against the contract of [`StateStore`]. It uses the kinds `check` and `check-2`, whose records must
/// not exist.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use callboard_core::testing::{MemoryStore, check_state_store};
///
/// check_state_store(&MemoryStore::new()).await;
/// # }
/// ```
///
/// # Panics
///
/// If the store breaks the contract.
pub async fn check_state_store(store: &dyn StateStore) {
    records_begin_empty_and_claims_raise_the_epoch(store).await;
    a_save_needs_epoch_and_version(store).await;
    names_and_states_are_kept_as_they_are(store).await;
    of_saves_at_once_one_succeeds(store).await;
    a_removed_record_begins_anew_above_its_epochs(store).await;
    claims_beside_removals_have_epochs_of_their_own(store).await;
}

const OWNER: &str = "a node";

fn of(key: &str) -> StateKey<'_> {
    StateKey { kind: "check", key }
}

async fn claimed(store: &dyn StateStore, key: StateKey<'_>) -> StoredState {
    store.claim(key, OWNER).await.expect("the store takes a claim")
}

async fn loaded(store: &dyn StateStore, key: StateKey<'_>) -> Option<StoredState> {
    store.load(key).await.expect("the store reads a record")
}

async fn records_begin_empty_and_claims_raise_the_epoch(store: &dyn StateStore) {
    let key = of("empty");
    assert_eq!(loaded(store, key).await, None, "a record that was never claimed");
    let unclaimed = store.save(key, Fence { epoch: 0, version: 0 }, Bytes::from_static(b"x")).await;
    assert_eq!(unclaimed, Err(StoreError::Conflict), "a save without a claim");
    assert_eq!(loaded(store, key).await, None, "a refused save makes no record");
    let first = claimed(store, key).await;
    let epoch = first.epoch;
    assert!(epoch >= 1, "the first epoch is {epoch}");
    assert_eq!(first, StoredState { epoch, version: 0, state: None, owner: OWNER.to_owned() });
    let second = store.claim(key, "another node").await.expect("a second claim");
    assert!(second.epoch > epoch, "{} after {epoch}", second.epoch);
    let expected = StoredState { epoch: second.epoch, version: 0, state: None, owner: "another node".to_owned() };
    assert_eq!(second, expected);
    assert_eq!(loaded(store, key).await, Some(second.clone()), "a load claims nothing");
    let _ = claimed(store, of("other")).await;
    let _ = claimed(store, StateKey { kind: "check-2", key: "empty" }).await;
    assert_eq!(loaded(store, key).await, Some(second), "keys and kinds have records of their own");
}

async fn a_save_needs_epoch_and_version(store: &dyn StateStore) {
    let (key, state) = (of("fenced"), Bytes::from_static);
    let old = claimed(store, key).await;
    let fence = |epoch, version| Fence { epoch, version };
    assert_eq!(store.save(key, fence(old.epoch, 0), state(b"one")).await, Ok(1));
    assert_eq!(store.save(key, fence(old.epoch, 1), state(b"two")).await, Ok(2));
    for (epoch, version) in [(old.epoch, 1), (old.epoch, 3), (old.epoch + 1, 2), (0, 2)] {
        let refused = store.save(key, fence(epoch, version), state(b"no")).await;
        assert_eq!(refused, Err(StoreError::Conflict), "epoch {epoch}, version {version}");
        let refused = store.remove(key, fence(epoch, version)).await;
        assert_eq!(refused, Err(StoreError::Conflict), "a removal of epoch {epoch}, version {version}");
    }
    let new = claimed(store, key).await;
    assert!(new.epoch > old.epoch);
    let expected = StoredState { epoch: new.epoch, version: 2, state: Some(state(b"two")), owner: OWNER.to_owned() };
    assert_eq!(new, expected, "a claim changes epoch and owner only");
    assert_eq!(store.save(key, fence(old.epoch, 2), state(b"late")).await, Err(StoreError::Conflict), "an old epoch");
    assert_eq!(store.save(key, fence(new.epoch, 2), state(b"three")).await, Ok(3));
    assert_eq!(loaded(store, key).await.and_then(|record| record.state), Some(state(b"three")));
}

async fn names_and_states_are_kept_as_they_are(store: &dyn StateStore) {
    let long = "k".repeat(crate::keyed::KeyedSpec::<crate::keyed::Stored<()>>::MAX_KEY_BYTES);
    let keys = ["", " ", "ä/ö", "a\u{0}b", "%25", "A", "a", "../x", "'; --", long.as_str()];
    for (position, key) in keys.iter().enumerate() {
        let record = claimed(store, of(key)).await;
        assert_eq!((record.version, record.state), (0, None), "the key {key:?} is a new one");
        let state = Bytes::from(vec![position as u8; position * 1_000]);
        let fence = Fence { epoch: record.epoch, version: 0 };
        assert_eq!(store.save(of(key), fence, state).await, Ok(1), "the key {key:?}");
    }
    for (position, key) in keys.iter().enumerate() {
        let state = loaded(store, of(key)).await.and_then(|record| record.state);
        assert_eq!(state, Some(Bytes::from(vec![position as u8; position * 1_000])), "the state of {key:?}");
    }
}

async fn of_saves_at_once_one_succeeds(store: &dyn StateStore) {
    let key = of("raced");
    let epoch = claimed(store, key).await.epoch;
    for version in 0..20 {
        let fence = Fence { epoch, version };
        let save = |name: &'static [u8]| store.save(key, fence, Bytes::from_static(name));
        let (left, right) = futures_util::future::join(save(b"left"), save(b"right")).await;
        let winner = match (&left, &right) {
            (Ok(_), Err(StoreError::Conflict)) => "left",
            (Err(StoreError::Conflict), Ok(_)) => "right",
            other => panic!("one of two saves succeeds: {other:?}"),
        };
        assert_eq!(loaded(store, key).await.and_then(|record| record.state), Some(Bytes::from(winner)));
    }
    let (left, right) = futures_util::future::join(store.claim(key, "left"), store.claim(key, "right")).await;
    let [left, right] = [left, right].map(|claim| claim.expect("both claims succeed").epoch);
    assert!(left != right && left.min(right) > epoch, "claims at once have different epochs: {left}, {right}");
}

async fn a_removed_record_begins_anew_above_its_epochs(store: &dyn StateStore) {
    let (key, fence) = (of("removed"), |epoch, version| Fence { epoch, version });
    assert_eq!(store.remove(key, fence(0, 0)).await, Err(StoreError::Conflict), "a record that was never claimed");
    let mut epochs = Vec::new();
    for round in 0..3 {
        let old = claimed(store, key).await;
        let epoch = claimed(store, key).await.epoch;
        assert_eq!((old.version, old.state), (0, None), "round {round}: of the removed record nothing is left");
        epochs.extend([old.epoch, epoch]);
        assert!(epochs.is_sorted_by(|one, next| one < next), "epochs go on rising: {epochs:?}");
        if round > 0 {
            assert_eq!(store.save(key, fence(epoch, 0), Bytes::from_static(b"tea")).await, Ok(1));
        }
        let version = u64::from(round > 0);
        assert_eq!(store.remove(key, fence(old.epoch, version)).await, Err(StoreError::Conflict), "an old epoch");
        assert_eq!(store.remove(key, fence(epoch, version)).await, Ok(()));
        assert_eq!(loaded(store, key).await, None);
        assert_eq!(store.remove(key, fence(epoch, version)).await, Err(StoreError::Conflict), "it is gone");
        let late = store.save(key, fence(epoch, version), Bytes::from_static(b"late")).await;
        assert_eq!(late, Err(StoreError::Conflict), "a save of the instance that has removed it");
        let _ = claimed(store, of("beside")).await;
    }
    let new = claimed(store, key).await.epoch;
    for epoch in epochs {
        assert_eq!(store.save(key, fence(epoch, 0), Bytes::new()).await, Err(StoreError::Conflict), "{epoch} < {new}");
    }
    assert_eq!(store.save(key, fence(new, 0), Bytes::from_static(b"jam")).await, Ok(1));
}

async fn claims_beside_removals_have_epochs_of_their_own(store: &dyn StateStore) {
    let (key, mut epochs) = (of("raced-removal"), BTreeSet::new());
    let mut fence = Fence { epoch: claimed(store, key).await.epoch, version: 0 };
    epochs.insert(fence.epoch);
    for round in 0..20 {
        let claims = futures_util::future::join(store.claim(key, "left"), store.claim(key, "right"));
        let (removed, (left, right)) = futures_util::future::join(store.remove(key, fence), claims).await;
        assert!(matches!(removed, Ok(()) | Err(StoreError::Conflict)), "round {round}: {removed:?}");
        for claim in [left, right] {
            let epoch = claim.expect("both claims succeed").epoch;
            assert!(epochs.insert(epoch), "round {round}: two claims got the epoch {epoch}");
        }
        let record = loaded(store, key).await.expect("a claim came last, or after the removal");
        fence = Fence { epoch: record.epoch, version: record.version };
        assert!(epochs.contains(&fence.epoch), "round {round}");
    }
}
