//! Stores that hang, keys that are forgotten, and keys that leave nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use super::{
    Add, Answers, Count, Counter, Counters, Epoch, Forget, KeyContext, LONG, Read, SECOND, UnsureStore, WaitAtGate,
    start, until_active,
};
use crate::actor::{AskError, Question};
use crate::keyed::{Fence, KeyedSpec, SavePolicy, StateKey, StateStore, StoreFuture, Stored, StoredState};
use crate::testing::{MemoryStore, env_number};
use crate::{App, Failure, Node};

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

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        self.store.remove(key, fence)
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

async fn record(counters: &Counters, key: &str) -> Option<StoredState> {
    counters.store.load(StateKey { kind: "counter", key }).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_key_has_no_record_when_its_answer_leaves_and_begins_anew() {
    let counters = Counters::new();
    let node = start(counters.spec().idle_after(LONG)).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(5)).await, Ok(5));
    assert_eq!(counter.ask("a", SECOND, Forget()).await, Ok(5));
    assert_eq!(record(&counters, "a").await, None);
    until_active(&node, 0).await;
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(0));
    assert_eq!(counter.ask("a", SECOND, Epoch()).await, Ok(2), "epochs go on rising");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    assert_eq!(counters.saved("a").await, Some(1));

    // From outside, behind the messages that wait, and before those that come later.
    let (waits, gate) = (counter.ask("a", LONG, WaitAtGate()), &counters.gate);
    let behind = async {
        tokio::task::yield_now().await;
        let (forgotten, later) = (counter.forget("a", LONG), counter.ask("a", LONG, Add(7)));
        let open = async {
            tokio::task::yield_now().await;
            gate.notify_one();
        };
        tokio::join!(forgotten, later, open)
    };
    let (waited, (forgotten, later, ())) = tokio::join!(waits, behind);
    assert_eq!((waited, forgotten, later), (Ok(1), Ok(()), Ok(7)));
    assert_eq!(counters.saved("a").await, Some(7));
    assert_eq!(counter.forget("b", SECOND).await, Ok(()), "of a key that was never asked");
    assert_eq!(record(&counters, "b").await, None);
    counters.store.set_away(true);
    assert_eq!(counter.forget("a", SECOND).await, Err(AskError::Lost), "the store does not say whether it is removed");
}

#[tokio::test(start_paused = true)]
async fn a_change_after_it_was_forgotten_is_saved_as_ever() {
    /// Forgets the count, and begins a new one.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Restart;

    impl Question for Restart {
        const NAME: &str = "restart";
        type Answer = u64;
    }

    impl Answers<Restart> for Counter {
        async fn answer(&mut self, _: Restart, _: &KeyContext) -> Result<u64, Failure> {
            self.count.forget();
            self.count.total += 1;
            Ok(self.count.total)
        }
    }

    let counters = Counters::new();
    let node = start(counters.spec().accepts::<Restart>()).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(5)).await, Ok(5));
    assert_eq!(counter.ask("a", SECOND, Restart).await, Ok(1));
    assert_eq!((counters.saved("a").await, counters.loads()), (Some(1), 1));
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_kind_removes_a_forgotten_record_when_it_would_save_also_after_an_answer_that_was_lost() {
    let (counters, is_unsure) = (Counters::new(), Arc::<AtomicBool>::default());
    let mut spec = counters.spec().save(SavePolicy::Relaxed { every: 5 * SECOND }).idle_after(LONG);
    spec.store = Arc::new(UnsureStore(counters.store.clone(), Arc::clone(&is_unsure)));
    let node = start(spec).await;
    let counter = node.keyed("counter");
    for is_lost in [false, true] {
        assert_eq!(counter.ask("a", SECOND, Add(5)).await, Ok(5));
        tokio::time::sleep(6 * SECOND).await;
        assert_eq!(counter.ask("a", SECOND, Forget()).await, Ok(5));
        assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(0), "by the same instance");
        assert_eq!(counters.saved("a").await, Some(5));
        is_unsure.store(is_lost, Ordering::SeqCst);
        tokio::time::sleep(6 * SECOND).await;
        assert_eq!(record(&counters, "a").await, None);
        is_unsure.store(false, Ordering::SeqCst);
        until_active(&node, 0).await;
    }
    let page = node.shared().encode_metrics();
    assert!(!page.contains("keyed_saves_total{kind=\"counter\",result=\"conflict\"} 1"), "{page}");
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_key_was_removed_elsewhere_is_fenced_off() {
    let counters = Counters::new();
    let node = start(counters.spec().idle_after(LONG)).await;
    let other = start(counters.spec()).await;
    let (counter, other) = (node.keyed("counter"), other.keyed("counter"));
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    assert_eq!(other.forget("a", SECOND).await, Ok(()));
    node.shared().keyed.get("counter").unwrap().kind.check_fences();
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(0), "it was checked, and is loaded again");
    assert_eq!(other.forget("a", SECOND).await, Ok(()));
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Err(AskError::Lost), "its save is refused");
    assert_eq!(record(&counters, "a").await, None);
}

/// A store that carries out all at once, and keeps the answers to removals or to claims while it is told to.
#[derive(Debug)]
struct MuteStore {
    store: MemoryStore,
    keeps: Arc<Keeps>,
}

#[derive(Debug, Default)]
struct Keeps {
    removals: AtomicBool,
    claims: AtomicBool,
}

/// The outcome, unless its answer is kept.
async fn told<T>(outcome: T, is_kept: &AtomicBool) -> T {
    if is_kept.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    outcome
}

impl StateStore for MuteStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        Box::pin(async move { told(self.store.claim(key, owner).await, &self.keeps.claims).await })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.store.load(key)
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        self.store.save(key, fence, state)
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(async move { told(self.store.remove(key, fence).await, &self.keeps.removals).await })
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// A relaxed kind on a node, whose key `a` was forgotten and removed without an answer, and then raised to 3.
async fn raised_after_a_late_removal(counters: &Counters) -> (Node, Arc<Keeps>) {
    let keeps = Arc::<Keeps>::default();
    let mut spec = counters.spec().save(SavePolicy::Relaxed { every: 5 * SECOND }).save_within(SECOND).idle_after(LONG);
    spec.store = Arc::new(MuteStore { store: counters.store.clone(), keeps: Arc::clone(&keeps) });
    let node = start(spec).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(5)).await, Ok(5));
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(counters.saved("a").await, Some(5));
    keeps.removals.store(true, Ordering::SeqCst);
    assert_eq!(counter.ask("a", SECOND, Forget()).await, Ok(5));
    tokio::time::sleep(7 * SECOND).await;
    assert_eq!(record(counters, "a").await, None);
    keeps.removals.store(false, Ordering::SeqCst);
    assert_eq!(counter.ask("a", SECOND, Add(3)).await, Ok(3), "by the same instance");
    (node, keeps)
}

fn conflicts(node: &Node) -> bool {
    node.shared().encode_metrics().contains("keyed_saves_total{kind=\"counter\",result=\"conflict\"} 1")
}

#[tokio::test(start_paused = true)]
async fn a_change_after_a_removal_that_was_carried_out_late_is_saved_under_a_new_claim() {
    let counters = Counters::new();
    let (node, _) = raised_after_a_late_removal(&counters).await;
    let counter = node.keyed("counter");
    node.shared().keyed.get("counter").unwrap().kind.check_fences();
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(3), "no other instance has removed it");
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!((counters.saved("a").await, counters.loads()), (Some(3), 1));
    assert_eq!(counter.ask("a", SECOND, Epoch()).await, Ok(2), "that of the new claim");
    assert!(!conflicts(&node));
    // The fence holds as ever.
    counters.store.claim(StateKey { kind: "counter", key: "a" }, "another node").await.unwrap();
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(4));
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(counters.saved("a").await, Some(3));
    assert!(conflicts(&node));
}

#[tokio::test(start_paused = true)]
async fn a_change_after_a_late_removal_is_saved_also_if_the_answer_to_its_claim_is_lost() {
    let counters = Counters::new();
    let (node, keeps) = raised_after_a_late_removal(&counters).await;
    keeps.claims.store(true, Ordering::SeqCst);
    until_epoch(&counters, 2).await;
    node.shared().keyed.get("counter").unwrap().kind.check_fences();
    assert_eq!(node.keyed("counter").ask("a", 3 * SECOND, Read()).await, Ok(3), "the claim was its own");
    keeps.claims.store(false, Ordering::SeqCst);
    tokio::time::sleep(7 * SECOND).await;
    assert_eq!((counters.saved("a").await, counters.loads()), (Some(3), 1));
    assert_eq!(node.keyed("counter").ask("a", SECOND, Epoch()).await, Ok(3));
    assert!(!conflicts(&node));
}

/// Waits until the key `a` was claimed so often.
async fn until_epoch(counters: &Counters, epoch: u64) {
    let claimed = async {
        while record(counters, "a").await.is_none_or(|record| record.epoch < epoch) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, claimed).await.expect("the key is claimed again");
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_fenced_off_by_one_that_came_after_its_late_removal() {
    let key = StateKey { kind: "counter", key: "a" };
    for has_saved in [false, true] {
        let counters = Counters::new();
        let (node, _) = raised_after_a_late_removal(&counters).await;
        let StoredState { epoch, version, .. } = counters.store.claim(key, "another node").await.unwrap();
        if has_saved {
            let state = Bytes::from_static(b"its state");
            counters.store.save(key, Fence { epoch, version }, state).await.unwrap();
        }
        let theirs = record(&counters, "a").await;
        tokio::time::sleep(6 * SECOND).await;
        assert_eq!(record(&counters, "a").await, theirs);
        assert!(conflicts(&node));
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_only_asked_leaves_no_record_when_it_moves_or_its_node_stops() {
    for save in [SavePolicy::Durable, SavePolicy::Relaxed { every: LONG }] {
        let counters = Counters::new();
        let node = start(counters.spec().save(save).idle_after(LONG)).await;
        let counter = node.keyed("counter");
        for key in ["a", "b"] {
            assert_eq!(counter.ask(key, SECOND, Read()).await, Ok(0));
        }
        assert_eq!(counter.ask("c", SECOND, Add(1)).await, Ok(1));
        assert!(counter.release("a"));
        until_active(&node, 2).await;
        assert_eq!(counters.store.record_count(), 2, "{save:?}");
        let _ = node.shutdown(SECOND).await;
        assert_eq!((record(&counters, "b").await, counters.saved("c").await), (None, Some(1)), "{save:?}");
    }
}

/// Counts the live instances.
struct Counted(Stored<Count>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

impl crate::keyed::Keyed for Counted {
    type State = Count;

    fn stored(&mut self) -> &mut Stored<Count> {
        &mut self.0
    }
}

impl Answers<Read> for Counted {
    async fn answer(&mut self, _: Read, _: &KeyContext) -> Result<u64, Failure> {
        Ok(self.0.total)
    }
}

/// `CALLBOARD_KEYS=1000000` asks a million.
#[tokio::test(start_paused = true)]
async fn keys_that_are_asked_once_leave_nothing_behind() {
    let (store, live) = (MemoryStore::new(), Arc::<AtomicUsize>::default());
    let counted = Arc::clone(&live);
    let spec = KeyedSpec::new("counted", Arc::new(store.clone()), move |context: KeyContext, count| {
        counted.fetch_add(1, Ordering::SeqCst);
        let instance = Counted(count, Arc::clone(&counted));
        async move {
            let refused = context.key().ends_with('7').then(|| Failure::new("no such key"));
            refused.map_or(Ok(instance), Err)
        }
    });
    let spec = spec.accepts::<Read>().idle_after(SECOND).max_active(1_000);
    let node = App::new().keyed(spec).start().await.unwrap();
    let (counted, keys) = (node.keyed("counted"), env_number("CALLBOARD_KEYS", 20_000));
    for key in 0..keys {
        let key = key.to_string();
        assert_eq!(counted.ask(&key, LONG, Read()).await.is_ok(), !key.ends_with('7'), "{key}");
        assert!(live.load(Ordering::SeqCst) <= 1_000);
    }
    tokio::time::sleep(10 * SECOND).await;
    assert_eq!((counted.active(), live.load(Ordering::SeqCst)), (0, 0));
    let held = node.shared().keyed.get("counted").unwrap().kind.held();
    assert!(held <= 64 * 16, "{held} slots are still held");
    assert_eq!(store.record_count(), 0, "records of keys that were only asked, or not admitted");
}
