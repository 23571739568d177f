//! The store in a bucket: the contract of all stores, on a bucket in memory.
#![cfg(feature = "bucket")]

use std::sync::Arc;
use std::time::Duration;

use callboard_core::keyed::{Fence, StateKey, StateStore, StoreError};
use callboard_core::testing::check_state_store;
use callboard_state::BucketStore;
use callboard_state::object_store::memory::InMemory;
use callboard_state::object_store::path::Path;
use callboard_state::object_store::throttle::{ThrottleConfig, ThrottledStore};
use callboard_state::object_store::{ObjectStoreExt, PutPayload};

const ANN: StateKey<'static> = StateKey { kind: "cart", key: "ann" };

#[tokio::test(flavor = "multi_thread")]
async fn the_bucket_keeps_the_contract_of_stores() {
    check_state_store(&BucketStore::new(Arc::new(InMemory::new()), "a/b")).await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_claim_at_once_have_epochs_of_their_own() {
    // Each request takes a moment, so that they lie between those of others.
    let wait = Duration::from_millis(5);
    let config = ThrottleConfig { wait_get_per_call: wait, wait_put_per_call: wait, ..ThrottleConfig::default() };
    let bucket = Arc::new(ThrottledStore::new(InMemory::new(), config));
    let claims = (0..8).map(|_| {
        let store = BucketStore::new(Arc::clone(&bucket) as _, "states");
        tokio::spawn(async move { store.claim(ANN, "a node").await })
    });
    let mut epochs = Vec::new();
    for claim in futures_util::future::join_all(claims).await {
        epochs.push(claim.unwrap().unwrap().epoch);
    }
    epochs.sort_unstable();
    assert_eq!(epochs, (1..=8).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn stores_in_other_directories_know_nothing_of_each_other_and_foreign_objects_are_left_alone() {
    let bucket = Arc::new(InMemory::new());
    let [left, right] = ["left", "right"].map(|directory| BucketStore::new(Arc::clone(&bucket) as _, directory));
    let epoch = left.claim(ANN, "a node").await.unwrap().epoch;
    assert_eq!(left.save(ANN, Fence { epoch, version: 0 }, "tea".into()).await, Ok(1));
    assert_eq!(right.load(ANN).await, Ok(None));

    let path = Path::from("right/cart/ann");
    bucket.put(&path, PutPayload::from_static(b"something else")).await.unwrap();
    let error = right.claim(ANN, "a node").await.unwrap_err();
    assert_eq!(error, StoreError::Failed("right/cart/ann is no record".to_owned()));
    assert_eq!(bucket.get(&path).await.unwrap().bytes().await.unwrap(), "something else");
}
