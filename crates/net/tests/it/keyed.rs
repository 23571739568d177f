//! Keyed actors on two nodes, over real connections, with a store that both share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_core::actor::{AskError, Question};
use callboard_core::keyed::{Answers, KeyContext, Keyed, KeyedRef, KeyedSpec, SavePolicy, Stored};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, CallOptions, Failure};
use callboard_net::{Cluster, QuicEdge, StaticView};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::common::{LONG, Member, ServingNode, until};

const DURABLE: SavePolicy = SavePolicy::Durable;

/// What is saved of a counter.
#[derive(Default, Serialize, Deserialize)]
struct Count(u64);

/// A counter that knows its node.
struct Counter {
    count: Stored<Count>,
    node: &'static str,
    gate: Arc<Notify>,
    at_gate: Arc<AtomicUsize>,
}

impl Keyed for Counter {
    type State = Count;

    fn stored(&mut self) -> &mut Stored<Count> {
        &mut self.count
    }
}

macro_rules! questions {
    ($($name:ident($($field:ty)?) = $word:literal -> $answer:ty,)*) => {
        $(
            #[derive(Serialize, Deserialize)]
            struct $name($($field)?);

            impl Question for $name {
                const NAME: &str = $word;
                type Answer = $answer;
            }
        )*
    };
}

questions! {
    Add(u64) = "add" -> u64,
    Where() = "where" -> String,
    WhoAsks() = "who_asks" -> String,
    AddAtGate(u64) = "add_at_gate" -> u64,
    Panics() = "panics" -> u64,
}

impl Answers<Add> for Counter {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        self.count.0 += by;
        Ok(self.count.0)
    }
}

impl Answers<Where> for Counter {
    async fn answer(&mut self, _: Where, _: &KeyContext) -> Result<String, Failure> {
        Ok(self.node.to_owned())
    }
}

impl Answers<WhoAsks> for Counter {
    async fn answer(&mut self, _: WhoAsks, context: &KeyContext) -> Result<String, Failure> {
        Ok(context.options().caller().unwrap_or_default().to_owned())
    }
}

impl Answers<AddAtGate> for Counter {
    async fn answer(&mut self, AddAtGate(by): AddAtGate, _: &KeyContext) -> Result<u64, Failure> {
        self.at_gate.fetch_add(1, Ordering::SeqCst);
        self.gate.notified().await;
        self.count.0 += by;
        Ok(self.count.0)
    }
}

impl Answers<Panics> for Counter {
    async fn answer(&mut self, _: Panics, _: &KeyContext) -> Result<u64, Failure> {
        panic!("poison");
    }
}

/// A node with counters, and what the test sees of it.
struct Host {
    served: ServingNode,
    counter: KeyedRef,
    gate: Arc<Notify>,
    /// The messages that have come to the gate.
    at_gate: Arc<AtomicUsize>,
    loads: Arc<AtomicUsize>,
}

impl Host {
    async fn start(node: &'static str, store: &MemoryStore, save: SavePolicy) -> Self {
        let (gate, loads) = (Arc::<Notify>::default(), Arc::<AtomicUsize>::default());
        let at_gate = Arc::<AtomicUsize>::default();
        let (of_load, counted, coming) = (Arc::clone(&gate), Arc::clone(&loads), Arc::clone(&at_gate));
        let load = move |_, count| {
            counted.fetch_add(1, Ordering::SeqCst);
            let (gate, at_gate) = (Arc::clone(&of_load), Arc::clone(&coming));
            async move { Ok(Counter { count, node, gate, at_gate }) }
        };
        let spec = KeyedSpec::new("counter", Arc::new(store.clone()), load).save(save);
        let spec = spec.accepts::<Add>().accepts::<Where>().accepts::<WhoAsks>();
        let spec = spec.accepts::<AddAtGate>().accepts::<Panics>();
        let served = ServingNode::start(App::new().keyed(spec)).await;
        let counter = served.node.keyed("counter");
        Self { served, counter, gate, at_gate, loads }
    }

    fn joins(&self, other: &QuicEdge) {
        let view = StaticView::try_new([other.address()]).unwrap();
        self.served.node.join(Cluster::start(&self.served.edge, Arc::new(view))).unwrap();
    }

    /// Where its node finds each key.
    async fn places(&self) -> BTreeMap<String, String> {
        let mut places = BTreeMap::new();
        for key in keys() {
            let place = self.counter.ask(&key, LONG, Where()).await.unwrap_or_else(|error| error.to_string());
            places.insert(key, place);
        }
        places
    }
}

fn keys() -> impl Iterator<Item = String> {
    (0..40).map(|n| n.to_string())
}

/// Two nodes that know each other, with a key on each.
async fn two(store: &MemoryStore, save: SavePolicy) -> (Host, Host, String, String) {
    let (left, right) = (Host::start("left", store, save).await, Host::start("right", store, save).await);
    left.joins(&right.served.edge);
    right.joins(&left.served.edge);
    let agreeing = async {
        loop {
            let (of_left, of_right) = (left.places().await, right.places().await);
            let key_of = |node: &str| of_left.iter().find(|(_, place)| *place == node).map(|(key, _)| key.clone());
            if let (true, Some(on_left), Some(on_right)) = (of_left == of_right, key_of("left"), key_of("right")) {
                return (on_left, on_right);
            }
        }
    };
    let (on_left, on_right) = tokio::time::timeout(LONG, agreeing).await.expect("the nodes agree");
    // While each node saw itself only, both had instances: the earlier ones end at their first save.
    for key in keys() {
        while left.counter.ask(&key, LONG, Add(0)).await.is_err() {}
    }
    until(|| left.counter.active() + right.counter.active() == keys().count()).await;
    (left, right, on_left, on_right)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_find_the_one_instance_of_a_key() {
    let store = MemoryStore::new();
    let (left, right, _, on_right) = two(&store, DURABLE).await;
    for (round, key) in (0..3).flat_map(|round| keys().map(move |key| (round, key))) {
        assert_eq!(left.counter.ask(&key, LONG, Add(1)).await, Ok(2 * round + 1), "key {key}");
        assert_eq!(right.counter.ask(&key, LONG, Add(1)).await, Ok(2 * round + 2), "key {key}");
    }
    let places = left.places().await;
    let of_left = places.values().filter(|place| *place == "left").count();
    assert!((5..=35).contains(&of_left), "{of_left} of 40 keys on one of two nodes");

    let ann = CallOptions::new().with_caller("ann").with_timeout(LONG);
    assert_eq!(left.counter.ask(&on_right, ann, WhoAsks()).await.unwrap(), "ann");
    left.counter.tell(&on_right, LONG, Add(10)).await.unwrap();
    assert_eq!(left.counter.ask(&on_right, LONG, Add(0)).await, Ok(16));
    let crashed = left.counter.ask(&on_right, LONG, Panics()).await;
    assert!(matches!(crashed, Err(AskError::Crashed { actor, .. }) if actor == format!("counter/{on_right}")));
    assert_eq!(left.counter.ask(&on_right, LONG, Add(0)).await, Ok(16), "the key lives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_of_a_killed_node_answer_on_the_other_with_what_was_saved() {
    let store = MemoryStore::new();
    let (left, right, ..) = two(&store, DURABLE).await;
    for key in keys() {
        assert_eq!(left.counter.ask(&key, LONG, Add(7)).await, Ok(7));
    }
    let Host { served: ServingNode { node, edge }, .. } = right;
    node.abort();
    drop(edge);
    for key in keys() {
        let asking = async {
            loop {
                match left.counter.ask(&key, LONG, Add(0)).await {
                    Ok(total) => return total,
                    // Nothing is changed by this question.
                    Err(AskError::Unreachable { .. } | AskError::Lost | AskError::NoOwner) => {}
                    Err(other) => panic!("{other:?}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(tokio::time::timeout(LONG, asking).await.expect("it is loaded"), 7, "key {key}");
    }
    assert!(left.places().await.values().all(|place| place == "left"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_owner_that_thaws_cannot_save_and_its_asker_is_told() {
    let store = MemoryStore::new();
    let (left, right, _, key) = two(&store, DURABLE).await;
    assert_eq!(left.counter.ask(&key, LONG, Add(1)).await, Ok(1));
    // The instance on the right stands still in the middle of a message.
    let frozen = {
        let (counter, key) = (right.counter.clone(), key.clone());
        tokio::spawn(async move { counter.ask(&key, LONG, AddAtGate(100)).await })
    };
    until(|| right.at_gate.load(Ordering::SeqCst) == 1).await;
    // The nodes do not see each other any more, and the key goes on at the left.
    drop(right.served.edge);
    let moved = async {
        while !matches!(left.counter.ask(&key, LONG, Where()).await.as_deref(), Ok("left")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, moved).await.expect("the key moves");
    assert_eq!(left.counter.ask(&key, LONG, Add(10)).await, Ok(11));
    right.gate.notify_one();
    assert_eq!(frozen.await.unwrap(), Err(AskError::Lost), "its save is refused");
    assert_eq!(left.counter.ask(&key, LONG, Add(0)).await, Ok(11));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_move_to_a_node_that_joins_with_their_state() {
    let store = MemoryStore::new();
    let (left, right) = (Host::start("left", &store, DURABLE).await, Host::start("right", &store, DURABLE).await);
    // Alone, the left node has all keys.
    for key in keys() {
        assert_eq!(left.counter.ask(&key, LONG, Add(3)).await, Ok(3));
    }
    left.joins(&right.served.edge);
    right.joins(&left.served.edge);
    let moving = async {
        while left.places().await.values().all(|place| place == "left") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, moving).await.expect("keys move");
    for key in keys() {
        assert_eq!(left.counter.ask(&key, LONG, Add(0)).await, Ok(3), "key {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_withdrawn_gives_its_keys_away_with_what_it_has_not_saved() {
    let store = MemoryStore::new();
    let (left, right, _, on_right) = two(&store, SavePolicy::Relaxed { every: LONG }).await;
    for key in keys() {
        assert_eq!(right.counter.ask(&key, LONG, Add(3)).await, Ok(3));
    }
    assert!(right.counter.active() > 0);
    right.served.node.withdraw();
    callboard_core::edge::Edge::withdraw(&right.served.edge);
    until(|| right.counter.active() == 0).await;
    let moved = async {
        // Its own callers go there, as soon as the other node knows that it leaves.
        while right.counter.ask(&on_right, LONG, Where()).await.as_deref() != Ok("left") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, moved).await.expect("the other node takes the key");
    for key in keys() {
        let asking = async {
            loop {
                match left.counter.ask(&key, LONG, Add(0)).await {
                    Ok(total) => return total,
                    Err(error) => assert!(!error.was_taken(), "{error:?}"),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(tokio::time::timeout(LONG, asking).await.expect("it is loaded"), 3, "key {key}");
        assert_eq!(right.counter.ask(&key, LONG, Add(0)).await, Ok(3), "key {key}");
    }
    until(|| right.counter.active() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_joins_gets_its_keys_with_what_was_not_saved() {
    let store = MemoryStore::new();
    let relaxed = SavePolicy::Relaxed { every: LONG };
    let left = Host::start("left", &store, relaxed).await;
    // Another member, so that it has a name from the beginning.
    let other = Member::start(App::new(), &[&left.served.edge]).await;
    left.joins(&other.served.edge);
    for key in keys() {
        assert_eq!(left.counter.ask(&key, LONG, Add(3)).await, Ok(3));
    }
    let right = Host::start("right", &store, relaxed).await;
    right.joins(&left.served.edge);
    // Until a key that nobody else asks is found on the other node: the new one knows it.
    let known = async {
        for probe in 0.. {
            if right.counter.ask(&format!("probe {probe}"), LONG, Where()).await.as_deref() == Ok("left") {
                return;
            }
        }
    };
    tokio::time::timeout(LONG, known).await.expect("the new node knows the old one");
    // At once: the old node has not looked yet which keys it should give away.
    for key in keys() {
        assert_eq!(right.counter.ask(&key, LONG, Add(1)).await, Ok(4), "key {key}");
    }
    let places = right.places().await;
    assert!(places.values().any(|place| place == "right"), "{places:?}");
    assert!(places.values().any(|place| place == "left"), "{places:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_does_not_have_a_key_says_who_has_it_and_starts_nothing() {
    let store = MemoryStore::new();
    let (left, _right, on_left, on_right) = two(&store, DURABLE).await;
    // It sees the left node only.
    let third = Member::start(App::new(), &[&left.served.edge]).await;
    third.until_connected(1).await;
    let counter = third.served.node.keyed("counter");
    let found = async {
        while counter.ask(&on_left, LONG, Where()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, found).await.expect("the kind is published");
    let loads = left.loads.load(Ordering::SeqCst);
    let error = counter.ask(&on_right, LONG, Where()).await.unwrap_err();
    assert!(matches!(&error, AskError::Unreachable { reason } if reason.contains("the node `")), "{error:?}");
    assert_eq!(left.loads.load(Ordering::SeqCst), loads);
}
