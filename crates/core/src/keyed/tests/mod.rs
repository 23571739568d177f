//! Keyed actors on one node, on virtual time.

mod joining;
mod moving;
mod network;
mod store;
mod timers;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use callboard_codec::Payload;
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::kind::{Kind, KindNode};
use super::letter::Letter;
use super::{
    Answers, Fence, KeyContext, Keyed, KeyedSpec, SavePolicy, StateKey, StateStore, StoreError, StoreFuture, Stored,
    StoredState,
};
use crate::actor::{AskError, Question, QuestionForm, QuestionOrder};
use crate::client::NodeState;
use crate::deadline::Deadline;
use crate::metrics::NodeMetrics;
use crate::remote::Cluster;
use crate::testing::MemoryStore;
use crate::{App, CallOptions, Failure, Node};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(600);

/// What is saved of a counter.
#[derive(Default, Serialize, Deserialize)]
struct Count {
    total: u64,
    note: String,
    list: Vec<u8>,
}

/// A counter, with what the test gives it.
struct Counter {
    count: Stored<Count>,
    gate: Arc<Notify>,
}

impl Keyed for Counter {
    type State = Count;

    fn stored(&mut self) -> &mut Stored<Count> {
        &mut self.count
    }
}

macro_rules! question {
    ($name:ident($($field:ty)?), $word:literal, $answer:ty) => {
        #[derive(Serialize, Deserialize)]
        struct $name($($field)?);

        impl Question for $name {
            const NAME: &str = $word;
            type Answer = $answer;
        }
    };
}

question!(Add(u64), "add", u64);
question!(Read(), "read", u64);
question!(Epoch(), "epoch", u64);
question!(Poison(), "poison", u64);
question!(Refuse(u64), "refuse", u64);
question!(WaitAtGate(), "wait", u64);
question!(Grow(u64), "grow", u64);
question!(Fill(u64), "fill", u64);
question!(Forget(), "forget", u64);

impl Answers<Add> for Counter {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        self.count.total += by;
        Ok(self.count.total)
    }
}

impl Answers<Read> for Counter {
    async fn answer(&mut self, _: Read, _: &KeyContext) -> Result<u64, Failure> {
        Ok(self.count.total)
    }
}

impl Answers<Epoch> for Counter {
    async fn answer(&mut self, _: Epoch, context: &KeyContext) -> Result<u64, Failure> {
        Ok(context.epoch())
    }
}

impl Answers<Poison> for Counter {
    async fn answer(&mut self, _: Poison, _: &KeyContext) -> Result<u64, Failure> {
        self.count.total = 666;
        panic!("poison");
    }
}

impl Answers<Refuse> for Counter {
    async fn answer(&mut self, Refuse(by): Refuse, _: &KeyContext) -> Result<u64, Failure> {
        self.count.total += by;
        Err(Failure::new("refused"))
    }
}

impl Answers<WaitAtGate> for Counter {
    async fn answer(&mut self, _: WaitAtGate, _: &KeyContext) -> Result<u64, Failure> {
        self.gate.notified().await;
        Ok(self.count.total)
    }
}

impl Answers<Grow> for Counter {
    async fn answer(&mut self, Grow(to): Grow, _: &KeyContext) -> Result<u64, Failure> {
        self.count.note = "x".repeat(to as usize);
        Ok(to)
    }
}

impl Answers<Fill> for Counter {
    async fn answer(&mut self, Fill(to): Fill, _: &KeyContext) -> Result<u64, Failure> {
        self.count.list = vec![1; to as usize];
        Ok(to)
    }
}

impl Answers<Forget> for Counter {
    async fn answer(&mut self, _: Forget, _: &KeyContext) -> Result<u64, Failure> {
        let total = self.count.total;
        self.count.forget();
        Ok(total)
    }
}

/// A kind of counters, and the count of their loads.
struct Counters {
    store: MemoryStore,
    gate: Arc<Notify>,
    loads: Arc<AtomicUsize>,
}

impl Counters {
    fn new() -> Self {
        Self { store: MemoryStore::new(), gate: Arc::default(), loads: Arc::default() }
    }

    fn spec(&self) -> KeyedSpec<Counter> {
        let (gate, loads) = (Arc::clone(&self.gate), Arc::clone(&self.loads));
        let load = move |_, count| {
            loads.fetch_add(1, Ordering::SeqCst);
            let gate = Arc::clone(&gate);
            async move { Ok(Counter { count, gate }) }
        };
        with_questions(KeyedSpec::new("counter", Arc::new(self.store.clone()), load))
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::SeqCst)
    }

    /// The total that is saved of a key.
    async fn saved(&self, key: &str) -> Option<u64> {
        let record = self.store.load(StateKey { kind: "counter", key }).await.unwrap()?;
        let limits = callboard_codec::DecodeLimits::default();
        let value = callboard_codec::Value::decode(callboard_codec::Format::Envelope, &record.state?, &limits).unwrap();
        Some(value.deserialize::<Count>().unwrap().total)
    }
}

fn with_questions(spec: KeyedSpec<Counter>) -> KeyedSpec<Counter> {
    spec.accepts::<Add>()
        .accepts::<Read>()
        .accepts::<Epoch>()
        .accepts::<Poison>()
        .accepts::<Refuse>()
        .accepts::<WaitAtGate>()
        .accepts::<Grow>()
        .accepts::<Fill>()
        .accepts::<Forget>()
}

async fn start(spec: KeyedSpec<Counter>) -> Node {
    App::new().keyed(spec).start().await.unwrap()
}

/// Waits until the node has this many active keys.
async fn until_active(node: &Node, count: usize) {
    let active = || node.shared().keyed.get("counter").unwrap().kind.active();
    while active() != count {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_has_one_instance_which_begins_with_its_saved_state() {
    let counters = Counters::new();
    let node = start(counters.spec().idle_after(SECOND)).await;
    let counter = node.keyed("counter");
    let answers = join_all((0..20).map(|_| counter.ask("a", SECOND, Add(1)))).await;
    let answers: Vec<u64> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(answers, (1..=20).collect::<Vec<_>>());
    assert_eq!(counters.loads(), 1, "questions that come together make one instance");
    assert_eq!(counter.ask("b", SECOND, Read()).await, Ok(0));
    until_active(&node, 0).await;
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(20), "it is loaded again");
    assert_eq!(counter.ask("a", SECOND, Epoch()).await, Ok(2), "as the second instance of the key");
}

#[tokio::test(start_paused = true)]
async fn operators_see_active_keys_ask_them_by_name_and_passivate_them() {
    let counters = Counters::new();
    let node = start(counters.spec().save(SavePolicy::Relaxed { every: LONG })).await;
    let counter = node.keyed("counter");
    let add = callboard_codec::Value::from(3u64);
    for key in ["b", "a", "c"] {
        assert_eq!(counter.ask_value(key, SECOND, "add", add.clone()).await, Ok(callboard_codec::Value::from(3u64)));
    }
    assert_eq!((counter.active_keys(10), counter.active_keys(1).len()), (vec!["a".into(), "b".into(), "c".into()], 1));
    assert!(matches!(counter.ask_value("a", SECOND, "nothing", add).await, Err(AskError::NotAccepted { .. })));
    let wrong = counter.ask_value("a", SECOND, "add", "three".into()).await;
    assert!(matches!(wrong, Err(AskError::Failed(_))), "{wrong:?}");
    assert_eq!(counters.saved("a").await, None);
    assert!(counter.passivate("a") && !counter.passivate("d"));
    until_active(&node, 2).await;
    assert_eq!(counters.saved("a").await, Some(3), "it was saved before it ended");
    assert!(!counter.passivate("a"));
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(3));
    // A message that waits behind the one in hand is handled by the next instance.
    let holding = counter.ask("b", SECOND, WaitAtGate());
    let waiting = async {
        tokio::task::yield_now().await;
        let read = counter.ask("b", SECOND, Epoch());
        let releasing = async {
            tokio::task::yield_now().await;
            assert!(counter.release("b"));
            counters.gate.notify_one();
        };
        tokio::join!(read, releasing).0
    };
    assert_eq!(tokio::join!(holding, waiting), (Ok(3), Ok(2)));
}

#[tokio::test(start_paused = true)]
async fn a_durable_answer_leaves_after_its_save_and_a_reading_one_saves_nothing() {
    let counters = Counters::new();
    let node = start(counters.spec()).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(3)).await, Ok(3));
    assert_eq!(counters.saved("a").await, Some(3));
    for _ in 0..10 {
        counter.ask("a", SECOND, Read()).await.unwrap();
    }
    let record = counters.store.load(StateKey { kind: "counter", key: "a" }).await.unwrap().unwrap();
    assert_eq!(record.version, 1);
    counter.tell("a", SECOND, Add(4)).await.unwrap();
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(7), "messages of a key keep their order");
    node.abort();
    assert_eq!(counters.saved("a").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_state_is_saved_at_intervals_when_it_is_passivated_and_when_the_node_stops() {
    let counters = Counters::new();
    let relaxed = SavePolicy::Relaxed { every: 5 * SECOND };
    let node = start(counters.spec().save(relaxed).idle_after(20 * SECOND)).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    assert_eq!(counters.saved("a").await, None, "the answer left before");
    tokio::time::sleep(6 * SECOND).await;
    assert_eq!(counters.saved("a").await, Some(1));
    counter.ask("a", SECOND, Add(1)).await.unwrap();
    let _ = node.shutdown(SECOND).await;
    assert_eq!(counters.saved("a").await, Some(2));
    assert_eq!(counters.loads(), 1);

    let node = start(counters.spec().save(SavePolicy::Relaxed { every: LONG }).idle_after(SECOND)).await;
    node.keyed("counter").ask("a", SECOND, Add(5)).await.unwrap();
    until_active(&node, 0).await;
    assert_eq!(counters.saved("a").await, Some(7));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_arrives_while_its_key_is_passivated_is_not_lost() {
    let counters = Counters::new();
    let node = start(counters.spec().idle_after(Duration::from_millis(1))).await;
    let counter = node.keyed("counter");
    for expected in 1..=2_000 {
        assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(expected));
        tokio::time::sleep(Duration::from_micros(900 + expected % 200)).await;
    }
    assert!(counters.loads() > 100, "{} passivations", counters.loads());
}

/// A store whose saves take this long, and the count of those that have begun.
#[derive(Debug)]
struct SlowStore(MemoryStore, Duration, Arc<AtomicUsize>);

impl StateStore for SlowStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.0.claim(key, owner)
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.0.load(key)
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: bytes::Bytes) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            self.2.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(self.1).await;
            self.0.save(key, fence, state).await
        })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        self.0.remove(key, fence)
    }

    fn is_local(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_arrives_while_its_key_is_saved_for_the_last_time_is_handled() {
    let counters = Counters::new();
    let mut spec = counters.spec().save(SavePolicy::Relaxed { every: LONG }).idle_after(SECOND);
    spec.store = Arc::new(SlowStore(counters.store.clone(), SECOND, Arc::default()));
    let node = start(spec).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(counters.saved("a").await, None, "the save is in progress");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(2));
    assert_eq!(counters.loads(), 1, "by the same instance");
    until_active(&node, 0).await;
    assert_eq!(counters.saved("a").await, Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_save_that_hangs_is_given_up_and_the_key_is_loaded_again() {
    let counters = Counters::new();
    let mut spec = counters.spec().save_within(SECOND);
    spec.store = Arc::new(SlowStore(counters.store.clone(), LONG, Arc::default()));
    let node = start(spec).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", LONG, Add(1)).await, Err(AskError::Lost));
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(0));
    assert_eq!(counters.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_poison_message_fails_alone_and_the_key_is_loaded_again() {
    let counters = Counters::new();
    let node = start(counters.spec()).await;
    let counter = node.keyed("counter");
    counter.ask("a", SECOND, Add(3)).await.unwrap();
    let (poisoned, read) = tokio::join!(counter.ask("a", SECOND, Poison()), counter.ask("a", SECOND, Read()));
    let Err(AskError::Crashed { actor, reason }) = poisoned else { panic!("{poisoned:?}") };
    assert_eq!((actor.as_str(), reason.as_str()), ("counter/a", "panicked: poison"));
    assert_eq!(read, Ok(3), "what the poison did to the state is gone, and the message behind it is handled");
    let refused = counter.ask("a", SECOND, Refuse(4)).await.unwrap_err();
    assert!(matches!(refused, AskError::Failed(_)), "{refused:?}");
    assert_eq!(counters.saved("a").await, Some(7), "a failure is an answer: its changes are kept");
    assert_eq!(counters.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_ends_by_its_limit_and_deadlines_hold_meanwhile() {
    let counters = Counters::new();
    let node = start(counters.spec().handle_within(10 * SECOND)).await;
    let counter = node.keyed("counter");
    let hanging = async { (counter.ask("a", LONG, WaitAtGate()).await, crate::clock::now()) };
    let waiting = async {
        tokio::task::yield_now().await;
        let began = crate::clock::now();
        let late = counter.ask("a", SECOND, Add(1)).await;
        assert_eq!((late, began.elapsed()), (Err(AskError::DeadlineExceeded { taken: false }), SECOND));
        assert_eq!(counter.ask("b", SECOND, Add(1)).await, Ok(1), "other keys go on");
        counter.ask("a", LONG, Read()).await
    };
    let ((hung, _), read) = tokio::join!(hanging, waiting);
    assert!(matches!(hung, Err(AskError::Crashed { reason, .. }) if reason.contains("handle_within")));
    assert_eq!(read, Ok(0), "a message whose deadline has passed is never handled");
}

#[tokio::test(start_paused = true)]
async fn a_load_that_fails_or_hangs_fails_its_own_messages_only() {
    let behaviour = Arc::new(Mutex::new("fails"));
    let (of_load, gate) = (Arc::clone(&behaviour), Arc::<Notify>::default());
    let load = move |context: KeyContext, count| {
        let (behaviour, gate) = (*of_load.lock(), Arc::clone(&gate));
        async move {
            match behaviour {
                _ if context.key() == "good" => {}
                "fails" => return Err(Failure::new("no such counter")),
                "panics" => panic!("a load"),
                "hangs" => std::future::pending().await,
                _ => {}
            }
            Ok(Counter { count, gate })
        }
    };
    let spec = KeyedSpec::new("counter", Arc::new(MemoryStore::new()), load).load_within(10 * SECOND);
    let node = start(with_questions(spec)).await;
    let counter = node.keyed("counter");
    let failed = async |within| match counter.ask("bad", within, Add(1)).await {
        Err(AskError::Unreachable { reason }) => reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed(SECOND).await, "the load hook failed: no such counter");
    *behaviour.lock() = "panics";
    assert_eq!(failed(SECOND).await, "the load hook panicked: a load");
    *behaviour.lock() = "hangs";
    let late = counter.ask("bad", SECOND, Add(1)).await;
    assert_eq!(late, Err(AskError::DeadlineExceeded { taken: false }));
    assert_eq!(counter.ask("good", SECOND, Add(1)).await, Ok(1));
    assert!(failed(LONG).await.contains("load_within"));
    *behaviour.lock() = "works";
    assert_eq!(counter.ask("bad", SECOND, Add(1)).await, Ok(1), "none of the refused messages was handled");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_loses_the_answer_and_never_what_was_answered() {
    let counters = Counters::new();
    let node = start(counters.spec().idle_after(SECOND)).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    counters.store.set_away(true);
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(1), "a reading message needs no store");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Err(AskError::Lost));
    let refused = counter.ask("a", SECOND, Add(1)).await;
    assert!(matches!(refused, Err(AskError::Unreachable { .. })), "{refused:?}");
    counters.store.set_away(false);
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_state_waits_for_a_store_that_is_away() {
    let counters = Counters::new();
    let relaxed = SavePolicy::Relaxed { every: SECOND };
    let node = start(counters.spec().save(relaxed).idle_after(10 * SECOND)).await;
    let counter = node.keyed("counter");
    counter.ask("a", SECOND, Add(1)).await.unwrap();
    counters.store.set_away(true);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(node.shared().keyed.get("counter").unwrap().kind.active(), 1, "it is not dropped unsaved");
    counters.store.set_away(false);
    until_active(&node, 0).await;
    assert_eq!(counters.saved("a").await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_key_was_claimed_elsewhere_is_fenced() {
    let counters = Counters::new();
    let node = start(counters.spec()).await;
    let counter = node.keyed("counter");
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(1));
    // Another node, which believes that it has the key, claims it and saves.
    let other = start(counters.spec()).await;
    assert_eq!(other.keyed("counter").ask("a", SECOND, Add(10)).await, Ok(11));
    assert_eq!(counter.ask("a", SECOND, Add(100)).await, Err(AskError::Lost), "its save is refused");
    assert_eq!(counters.saved("a").await, Some(11));
    assert_eq!(counter.ask("a", SECOND, Add(100)).await, Ok(111), "the next message claims the key again");
    assert_eq!(other.keyed("counter").ask("a", SECOND, Add(1)).await, Err(AskError::Lost));
    let record = counters.store.load(StateKey { kind: "counter", key: "a" }).await.unwrap().unwrap();
    let late = counters.store.save(
        StateKey { kind: "counter", key: "a" },
        Fence { epoch: 1, version: record.version },
        "x".into(),
    );
    assert!(late.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn keys_mailboxes_and_states_have_their_bounds() {
    let counters = Counters::new();
    let node = start(counters.spec().mailbox(2).max_state_bytes(1_000)).await;
    let counter = node.keyed("counter");
    let long = counter.ask(&"k".repeat(513), SECOND, Add(1)).await.unwrap_err().to_string();
    assert!(long.contains("513 bytes, more than 512"), "{long}");
    let unknown = node.keyed("nothing").ask("a", SECOND, Add(1)).await.unwrap_err();
    assert!(matches!(unknown, AskError::Unreachable { .. }), "{unknown:?}");

    let large = counter.ask("a", SECOND, Grow(2_000)).await.unwrap_err().to_string();
    assert!(large.contains("more than 1000 (max_state_bytes)"), "{large}");
    assert_eq!(counter.ask("a", SECOND, Grow(100)).await, Ok(100));

    let at_gate = counter.ask("a", LONG, WaitAtGate());
    let full = async {
        tokio::task::yield_now().await;
        let waiting = join_all((0..5).map(|_| counter.ask("a", LONG, Add(1))));
        let open = async {
            tokio::time::sleep(SECOND).await;
            counters.gate.notify_one();
        };
        tokio::join!(waiting, open).0
    };
    let (_, waited) = tokio::join!(at_gate, full);
    assert_eq!(waited[..2], [Ok(1), Ok(2)]);
    assert!(waited[2..].iter().all(|answer| *answer == Err(AskError::Full)), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn the_most_active_keys_are_a_bound_and_idle_ones_make_room() {
    let counters = Counters::new();
    let node = start(counters.spec().max_active(100).idle_after(LONG)).await;
    let counter = node.keyed("counter");
    for n in 0..5_000 {
        assert_eq!(counter.ask(&n.to_string(), SECOND, Add(1)).await, Ok(1));
        assert!(node.shared().keyed.get("counter").unwrap().kind.active() <= 100);
    }
    assert_eq!(counter.ask("7", SECOND, Read()).await, Ok(1));

    let node = start(counters.spec().max_active(2).idle_after(LONG)).await;
    let counter = node.keyed("counter");
    let busy = join_all(["a", "b"].map(|key| counter.ask(key, LONG, WaitAtGate())));
    let third = async {
        tokio::task::yield_now().await;
        let refused = counter.ask("c", SECOND, Add(1)).await.unwrap_err();
        counters.gate.notify_waiters();
        refused
    };
    let (_, refused) = tokio::join!(busy, third);
    assert!(refused.to_string().contains("all 2 active keys of `counter` have work (max_active)"), "{refused}");
    assert_eq!(counter.ask("c", SECOND, Add(1)).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stops_saves_and_one_that_is_dropped_ends_its_keys() {
    let counters = Counters::new();
    let relaxed = SavePolicy::Relaxed { every: LONG };
    let node = start(counters.spec().save(relaxed)).await;
    let counter = node.keyed("counter");
    join_all((0..200).map(|n| {
        let counter = &counter;
        async move { counter.ask(&n.to_string(), SECOND, Add(n)).await }
    }))
    .await;
    let _ = node.shutdown(SECOND).await;
    for n in 0..200 {
        assert_eq!(counters.saved(&n.to_string()).await, Some(n));
    }
    let ended = counter.ask("1", SECOND, Add(1)).await.unwrap_err();
    assert!(matches!(ended, AskError::Unreachable { .. }), "{ended:?}");

    let node = start(counters.spec()).await;
    let counter = node.keyed("counter");
    let waiting = join_all([
        tokio::spawn({
            let counter = counter.clone();
            async move { counter.ask("a", LONG, WaitAtGate()).await }
        }),
        tokio::spawn({
            let counter = counter.clone();
            async move { counter.ask("a", LONG, WaitAtGate()).await }
        }),
    ]);
    tokio::task::yield_now().await;
    tokio::time::sleep(SECOND).await;
    drop(node);
    let ends: Vec<_> = waiting.await.into_iter().map(Result::unwrap).collect();
    assert_eq!(ends[0], Err(AskError::Lost), "taken");
    assert!(matches!(ends[1], Err(AskError::Unreachable { .. })), "not taken");
}

#[tokio::test(start_paused = true)]
async fn a_stop_does_not_wait_longer_than_its_limit() {
    let counters = Counters::new();
    let node = start(counters.spec().stop_within(2 * SECOND)).await;
    let counter = node.keyed("counter");
    let hanging = tokio::spawn(async move { counter.ask("a", LONG, WaitAtGate()).await });
    tokio::time::sleep(SECOND).await;
    let began = crate::clock::now();
    let _ = node.shutdown(SECOND).await;
    assert_eq!(began.elapsed(), 2 * SECOND);
    assert_eq!(hanging.await.unwrap(), Err(AskError::Lost));
}

#[tokio::test(start_paused = true)]
async fn kinds_stop_at_the_same_time_within_what_is_left_to_the_node() {
    let counters = Counters::new();
    let kinds = || {
        let second = KeyedSpec::new("second", Arc::new(counters.store.clone()), {
            let gate = Arc::clone(&counters.gate);
            move |_, count| {
                let gate = Arc::clone(&gate);
                async move { Ok(Counter { count, gate }) }
            }
        });
        App::new().keyed(counters.spec()).keyed(with_questions(second))
    };
    for (within, expected) in [(LONG, 5 * SECOND), (3 * SECOND, 3 * SECOND), (Duration::ZERO, SECOND)] {
        let node = kinds().start().await.unwrap();
        let hanging = ["counter", "second"].map(|kind| {
            let counter = node.keyed(kind);
            tokio::spawn(async move { counter.ask("a", LONG, WaitAtGate()).await })
        });
        tokio::time::sleep(SECOND).await;
        let began = crate::clock::now();
        node.stop(within).await;
        assert_eq!(began.elapsed(), expected, "of {within:?}");
        for hanging in hanging {
            assert_eq!(hanging.await.unwrap(), Err(AskError::Lost));
        }
    }
}

/// A store that carries out each save and says that it has failed, while it is told to.
#[derive(Debug)]
struct UnsureStore(MemoryStore, Arc<AtomicBool>);

impl StateStore for UnsureStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        self.0.claim(key, owner)
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        self.0.load(key)
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: bytes::Bytes) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let saved = self.0.save(key, fence, state).await?;
            let is_unsure = self.1.load(Ordering::SeqCst);
            if is_unsure { Err(StoreError::Failed("no answer".to_owned())) } else { Ok(saved) }
        })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.0.remove(key, fence).await?;
            let is_unsure = self.1.load(Ordering::SeqCst);
            if is_unsure { Err(StoreError::Failed("no answer".to_owned())) } else { Ok(()) }
        })
    }

    fn is_local(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_relaxed_state_is_saved_again_after_a_save_that_was_carried_out_without_an_answer() {
    let (counters, is_unsure) = (Counters::new(), Arc::new(AtomicBool::new(true)));
    let mut spec = counters.spec().save(SavePolicy::Relaxed { every: SECOND }).idle_after(LONG);
    spec.store = Arc::new(UnsureStore(counters.store.clone(), Arc::clone(&is_unsure)));
    let node = start(spec).await;
    let counter = node.keyed("counter");
    for total in 1..=3 {
        assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(total));
        tokio::time::sleep(2 * SECOND).await;
        assert_eq!(counters.saved("a").await, Some(total));
    }
    is_unsure.store(false, Ordering::SeqCst);
    assert_eq!(counter.ask("a", SECOND, Add(1)).await, Ok(4));
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!((counters.saved("a").await, counters.loads()), (Some(4), 1));

    // A later instance is no save of this one.
    is_unsure.store(true, Ordering::SeqCst);
    counter.ask("a", SECOND, Add(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    counters.store.claim(StateKey { kind: "counter", key: "a" }, "another node").await.unwrap();
    counter.ask("a", SECOND, Add(1)).await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(counters.saved("a").await, Some(5), "it is fenced off");
}

#[tokio::test(start_paused = true)]
async fn what_was_saved_can_be_loaded_whatever_its_shape() {
    let counters = Counters::new();
    let node = start(counters.spec().max_state_bytes(8 << 20)).await;
    assert_eq!(node.keyed("counter").ask("a", LONG, Fill(1_100_000)).await, Ok(1_100_000));
    let _ = node.shutdown(SECOND).await;
    let node = start(counters.spec()).await;
    assert_eq!(node.keyed("counter").ask("a", LONG, Read()).await, Ok(0));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_expires_in_the_mailbox_is_late() {
    let counters = Counters::new();
    let node = start(counters.spec().mailbox(1)).await;
    let counter = node.keyed("counter");
    let busy = counter.ask("a", LONG, WaitAtGate());
    tokio::pin!(busy);
    assert!(futures_util::poll!(busy.as_mut()).is_pending());
    tokio::time::sleep(SECOND).await;
    let late = counter.ask("a", SECOND, Add(1));
    tokio::pin!(late);
    assert!(futures_util::poll!(late.as_mut()).is_pending());
    tokio::time::advance(2 * SECOND).await;
    counter.tell("a", SECOND, Add(10)).await.expect("the place of the late one is free");
    assert_eq!(late.await, Err(AskError::DeadlineExceeded { taken: false }));
    counters.gate.notify_one();
    busy.await.unwrap();
    assert_eq!(counter.ask("a", SECOND, Read()).await, Ok(10));
}

#[test]
fn a_question_to_a_kind_whose_runtime_has_ended_is_refused() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let of_node = runtime();
    let kind = {
        let _guard = of_node.enter();
        let (metrics, node) = (Arc::new(NodeMetrics::new()), Weak::<NodeState>::new());
        Arc::new(Kind::new(Counters::new().spec(), KindNode { node, cluster: Cluster::default(), metrics }))
    };
    drop(of_node);
    let answer = runtime().block_on(async {
        let deadline = Deadline::after(crate::clock::now(), SECOND);
        let options = CallOptions::new();
        let order = QuestionOrder { deadline, options, place: None, key: Some("a".into()), asked_by: None };
        kind.send("add", Letter::new(Payload::new(Add(1))), QuestionForm::Ask, order).await
    });
    assert!(matches!(answer, Err(AskError::Unreachable { .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_for_a_place_asks_one_key_at_a_time_to_end() {
    let (counters, saves) = (Counters::new(), Arc::<AtomicUsize>::default());
    let mut spec = counters.spec().save(SavePolicy::Relaxed { every: LONG }).max_active(10).idle_after(LONG);
    spec.store = Arc::new(SlowStore(counters.store.clone(), 3 * SECOND, Arc::clone(&saves)));
    let node = start(spec).await;
    let counter = node.keyed("counter");
    for key in 0..10 {
        counter.ask(&key.to_string(), SECOND, Add(1)).await.unwrap();
    }
    assert_eq!(counter.ask("new", 10 * SECOND, Add(1)).await, Ok(1));
    assert_eq!(saves.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_described_and_counted() {
    let counters = Counters::new();
    let node = start(counters.spec().mailbox(1)).await;
    let counter = node.keyed("counter");
    counter.ask("a", SECOND, Add(1)).await.unwrap();
    counter.ask("b", SECOND, Poison()).await.unwrap_err();
    counters.store.claim(StateKey { kind: "counter", key: "a" }, "another node").await.unwrap();
    counter.ask("a", SECOND, Add(1)).await.unwrap_err();
    counters.store.set_away(true);
    counter.ask("c", SECOND, Add(1)).await.unwrap_err();
    let busy = join_all((0..3).map(|_| counter.ask("b", SECOND, WaitAtGate())));
    counters.store.set_away(false);
    busy.await;
    let description = node.describe();
    let [kind] = &description.actors[..] else { panic!("{:?}", description.actors) };
    assert_eq!((kind.name.as_str(), kind.restarts, kind.refused), ("keyed:counter", 1, 2));
    assert_eq!((kind.active_keys, kind.reasons.clone()), (Some(1), vec!["counter/b: panicked: poison".to_owned()]));
    let page = node.shared().encode_metrics();
    for line in [
        "keyed_active{kind=\"counter\"} 1",
        "keyed_waiting{kind=\"counter\"} 1",
        "keyed_refused_total{kind=\"counter\"} 2",
        "keyed_loads_total{kind=\"counter\",result=\"failed\"} 1",
        "keyed_saves_total{kind=\"counter\",result=\"ok\"} 1",
        "keyed_saves_total{kind=\"counter\",result=\"conflict\"} 1",
        "keyed_crashes_total{kind=\"counter\"} 1",
    ] {
        assert!(page.contains(&format!("callboard_{line}\n")), "{line}: {page}");
    }
}

/// The size of the futures that a function returns.
fn size_of_future<A, F>(_: fn(A) -> F) -> usize {
    size_of::<F>()
}

#[test]
fn the_task_of_an_active_key_is_small() {
    let task = size_of_future(super::instance::run::<Counter>);
    let slot = size_of::<super::shards::Slot<Counter>>();
    assert!(task + slot < 1_600, "{task} bytes of the task, {slot} of its slot");
}

/// Prints what an active key costs: `cargo test -p callboard-core --lib -- --ignored --nocapture active_keys_cost`.
#[cfg(target_os = "linux")]
#[tokio::test]
#[ignore = "measures a process"]
async fn active_keys_cost() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4_096
    };
    let counters = Counters::new();
    let keys: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    for key in &keys {
        counters.store.claim(StateKey { kind: "counter", key }, "first").await.unwrap();
    }
    let node = start(counters.spec().idle_after(LONG)).await;
    let counter = node.keyed("counter");
    let (before, began) = (resident(), crate::clock::now());
    for key in &keys {
        counter.ask(key, LONG, Read()).await.unwrap();
    }
    let (bytes, activated) = (resident() - before, began.elapsed());
    let began = crate::clock::now();
    for key in &keys {
        counter.ask(key, LONG, Read()).await.unwrap();
    }
    let (each, asked) = (bytes / keys.len(), began.elapsed());
    println!("{each} bytes and {:?} for each activation, {:?} for each ask", activated / 100_000, asked / 100_000);
}
