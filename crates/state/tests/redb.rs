//! The store in a file: the contract of all stores, and what survives its process.
#![cfg(feature = "redb")]

use std::path::PathBuf;

use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError};
use callboard_core::testing::check_state_store;
use callboard_state::{OpenStoreError, RedbStore};

/// A file that is removed with the test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let file = std::env::temp_dir().join(format!("callboard-{name}-{}.redb", std::process::id()));
        let _ = std::fs::remove_file(&file);
        Self(file)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_keeps_the_contract_of_stores() {
    let file = TestFile::new("contract");
    check_state_store(&RedbStore::open(&file.0).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn saves_are_there_when_the_file_is_opened_again_and_old_epochs_stay_refused() {
    let file = TestFile::new("again");
    let key = StateKey { kind: "cart", key: "ann" };
    let store = RedbStore::open(&file.0).unwrap();
    let epoch = store.claim(key, "first").await.unwrap().epoch;
    assert_eq!(store.save(key, Fence { epoch, version: 0 }, "tea".into()).await, Ok(1));
    assert!(matches!(RedbStore::open(&file.0), Err(OpenStoreError::InUse)));
    drop(store);

    let store = RedbStore::open(&file.0).unwrap();
    let record = store.claim(key, "second").await.unwrap();
    assert_eq!((record.epoch, record.version, record.state.unwrap()), (epoch + 1, 1, "tea".into()));
    let late = store.save(key, Fence { epoch, version: 1 }, "late".into()).await;
    assert_eq!(late, Err(StoreError::Conflict));
    assert_eq!(store.remove(key, Fence { epoch: record.epoch, version: 1 }).await, Ok(()));
    drop(store);

    let store = RedbStore::open(&file.0).unwrap();
    assert_eq!(store.load(key).await, Ok(None));
    let new = store.claim(key, "third").await.unwrap();
    assert_eq!((new.epoch, new.version, new.state), (epoch + 2, 0, None), "the epochs of a removed record are known");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_save_at_once() {
    let file = TestFile::new("many");
    let store = RedbStore::open(&file.0).unwrap();
    let keys: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let save = async |key: &str| {
        let key = StateKey { kind: "cart", key };
        let epoch = store.claim(key, "a node").await.unwrap().epoch;
        store.save(key, Fence { epoch, version: 0 }, key.key.to_owned().into()).await.unwrap();
    };
    futures_util::future::join_all(keys.iter().map(|key| save(key))).await;
    for key in &keys {
        let record = store.load(StateKey { kind: "cart", key }).await.unwrap().unwrap();
        assert_eq!(record.state.unwrap(), *key);
    }
}

#[test]
fn a_file_that_is_no_store_is_not_opened() {
    let file = TestFile::new("none");
    std::fs::write(&file.0, "something else").unwrap();
    assert!(matches!(RedbStore::open(&file.0), Err(OpenStoreError::Database(_))));
    let missing = file.0.join("in/no/directory");
    assert!(matches!(RedbStore::open(missing), Err(OpenStoreError::File(_))));
}
