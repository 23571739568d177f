//! Stores that hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{Add, Counters, Epoch, LONG, Read, SECOND, start};
use crate::keyed::{Fence, StateKey, StateStore, StoreFuture, StoredState};
use crate::testing::MemoryStore;

/// A store whose loads hang while it is told to, and the count of those that have begun. Claims and saves do not.
#[derive(Debug)]
struct HangingStore {
    store: MemoryStore,
    hangs: watch::Receiver<bool>,
    loads: Arc<AtomicUsize>,
}

impl StateStore for HangingStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.store.claim(key, owner)
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        Box::pin(async move {
            self.loads.fetch_add(1, Ordering::SeqCst);
            let _ = self.hangs.clone().wait_for(|hangs| !hangs).await;
            self.store.load(key).await
        })
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        self.store.save(key, fence, state)
    }

    fn is_local(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn messages_wait_once_and_not_one_after_the_other_for_a_store_that_hangs() {
    let (counters, loads) = (Counters::new(), Arc::<AtomicUsize>::default());
    let (tells, hangs) = watch::channel(true);
    let mut spec = counters.spec().idle_after(LONG);
    spec.store = Arc::new(HangingStore { store: counters.store.clone(), hangs, loads: Arc::clone(&loads) });
    let node = start(spec).await;
    let counter = node.keyed("counter");
    for key in ["a", "b"] {
        assert_eq!(counter.ask(key, SECOND, Add(1)).await, Ok(1));
    }
    node.shared().keyed.get("counter").unwrap().kind.check_fences();
    let began = crate::clock::now();
    for count in 2..=100 {
        for key in ["a", "b"] {
            assert_eq!(counter.ask(key, 2 * SECOND, Add(1)).await, Ok(count));
        }
    }
    assert_eq!(began.elapsed(), SECOND, "the first message has waited, and no other");
    assert_eq!(loads.load(Ordering::SeqCst), 2, "that of the first message, and the one that waits for the store");
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(loads.load(Ordering::SeqCst), 4, "it waits 10 s, and is asked again a second later");

    counters.store.claim(StateKey { kind: "counter", key: "a" }, "another node").await.unwrap();
    tells.send_replace(false);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(counter.ask("a", SECOND, Epoch()).await, Ok(3), "it was fenced off, and is loaded again");
    assert_eq!(counter.ask("b", SECOND, Epoch()).await, Ok(1), "it was checked");
    assert_eq!((counters.loads(), loads.load(Ordering::SeqCst)), (3, 6));
    assert_eq!(counter.ask("b", SECOND, Read()).await, Ok(100));
}
