//! What a node with keyed actors does while it joins others, and how it takes keys over, with a network that the test
//! plays.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callboard_codec::Payload;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::network::{Add, join};
use crate::actor::AskError;
use crate::clock;
use crate::deadline::Deadline;
use crate::error::CallError;
use crate::keyed::{Answers, Fence, KeyContext, KeyedSpec, SavePolicy, StateKey, StateStore, Stored};
use crate::remote::{JoinState, Reach, RemoteActors, RemoteFuture, RemoteQuestion};
use crate::testing::MemoryStore;
use crate::{App, CallOptions, ErrorKind, Failure, Node};

const SECOND: Duration = Duration::from_secs(1);

type Total = Stored<u64>;

impl Answers<Add> for Total {
    async fn answer(&mut self, Add(by): Add, _: &KeyContext) -> Result<u64, Failure> {
        **self += by;
        Ok(**self)
    }
}

/// The other nodes of a node called `this`, of which one may have had the key last.
#[derive(Clone, Debug)]
struct Network(Arc<Played>);

#[derive(Debug)]
struct Played {
    joined: watch::Sender<JoinState>,
    reach: Mutex<Reach>,
    /// How often the last owner was asked, and the answer that it gives.
    asked: AtomicUsize,
    takes_questions: Mutex<bool>,
    publishers: Mutex<Vec<Arc<str>>>,
}

impl Network {
    fn new(joined: JoinState, reach: Reach) -> Self {
        let (joined, _) = watch::channel(joined);
        let (asked, takes_questions) = (AtomicUsize::new(0), Mutex::new(true));
        let publishers = Mutex::default();
        Self(Arc::new(Played { joined, reach: Mutex::new(reach), asked, takes_questions, publishers }))
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::SeqCst)
    }
}

impl RemoteActors for Network {
    fn ask(&self, question: RemoteQuestion) -> RemoteFuture<Payload> {
        assert!(question.is_handover && question.node.as_deref() == Some("other"), "{question:?}");
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        let takes_it = *self.0.takes_questions.lock();
        let refusal = || CallError::new(ErrorKind::Unavailable, "the node is draining");
        let answer = takes_it.then(|| Payload::new(true)).ok_or_else(refusal);
        Box::pin(async move { answer })
    }

    fn publishers(&self, _: &str) -> Vec<Arc<str>> {
        self.0.publishers.lock().clone()
    }

    fn this_node(&self) -> Option<Arc<str>> {
        Some("this".into())
    }

    fn join_state(&self) -> watch::Receiver<JoinState> {
        self.0.joined.subscribe()
    }

    fn reach(&self, _: &str, _: &str) -> Reach {
        *self.0.reach.lock()
    }
}

async fn node(store: &MemoryStore, network: &Network) -> Node {
    let spec = KeyedSpec::new("total", Arc::new(store.clone()), |_, total: Total| async { Ok(total) });
    let spec = spec.save(SavePolicy::Relaxed { every: SECOND }).accepts::<Add>();
    let node = App::new().keyed(spec).start().await.unwrap();
    join(&node, network.clone());
    node
}

/// A store in which another node has claimed the key.
async fn claimed_by_other() -> MemoryStore {
    let store = MemoryStore::new();
    store.claim(StateKey { kind: "total", key: "ann" }, "other").await.unwrap();
    store
}

fn joining() -> JoinState {
    JoinState::Joining { reason: "no named node has answered".into() }
}

async fn epoch(store: &MemoryStore) -> u64 {
    store.load(StateKey { kind: "total", key: "ann" }).await.unwrap().map_or(0, |record| record.epoch)
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_has_no_keys_and_its_questions_wait() {
    let (store, network) = (MemoryStore::new(), Network::new(joining(), Reach::Gone));
    let node = node(&store, &network).await;
    let health = node.health();
    assert_eq!((health.ready, health.joining.as_deref()), (false, Some("no named node has answered")));
    assert!(node.client().edge().published_actors().is_empty(), "others do not send it keys");

    let late = node.keyed("total").ask("ann", SECOND, Add(1)).await;
    assert_eq!(late, Err(AskError::DeadlineExceeded { taken: false }));
    assert_eq!(epoch(&store).await, 0, "nothing was claimed");

    let waiting = {
        let total = node.keyed("total");
        tokio::spawn(async move { total.ask("ann", 10 * SECOND, Add(1)).await })
    };
    tokio::time::sleep(SECOND).await;
    network.0.joined.send_replace(JoinState::Announced);
    assert_eq!(node.client().edge().published_actors(), ["keyed:total"]);
    tokio::time::sleep(SECOND).await;
    assert!(!waiting.is_finished() && !node.health().ready);
    network.0.joined.send_replace(JoinState::Joined { without: None });
    assert_eq!(waiting.await.unwrap(), Ok(1));
    assert!(node.health().ready && node.health().joining.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_question_of_another_node_waits_until_the_node_has_joined() {
    let (store, network) = (MemoryStore::new(), Network::new(JoinState::Announced, Reach::Gone));
    let node = node(&store, &network).await;
    let client = node.client();
    let admission = client.edge().admit_question("keyed:total", Some("ann"), "add", false, 1).unwrap();
    let deadline = Deadline::after(clock::now(), 10 * SECOND);
    let answer = tokio::spawn(admission.deliver(Payload::new(Add(1)), deadline, CallOptions::new()));
    tokio::time::sleep(SECOND).await;
    assert_eq!(epoch(&store).await, 0);
    network.0.joined.send_replace(JoinState::Joined { without: None });
    assert_eq!(answer.await.unwrap().unwrap().downcast_ref::<u64>(), Some(&1));
}

#[tokio::test(start_paused = true)]
async fn a_node_without_keyed_actors_is_ready_while_it_joins() {
    let node = App::new().start().await.unwrap();
    join(&node, Network::new(joining(), Reach::Gone));
    assert!(node.health().ready);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_is_about_to_be_connected_is_waited_for_and_one_that_is_gone_is_not() {
    let joined = || JoinState::Joined { without: None };
    let (store, network) = (claimed_by_other().await, Network::new(joined(), Reach::Expected));
    let of_waiting = node(&store, &network).await;
    let asking = {
        let total = of_waiting.keyed("total");
        tokio::spawn(async move { total.ask("ann", 10 * SECOND, Add(1)).await })
    };
    tokio::time::sleep(SECOND).await;
    assert_eq!((epoch(&store).await, network.asked()), (1, 0));
    // It drains, and is of a version that hands nothing over then: it is asked again.
    *network.0.takes_questions.lock() = false;
    *network.0.reach.lock() = Reach::Connected;
    tokio::time::sleep(SECOND).await;
    assert_eq!(epoch(&store).await, 1);
    assert!(network.asked() > 1, "it is asked again");
    *network.0.takes_questions.lock() = true;
    assert_eq!(asking.await.unwrap(), Ok(1));

    let (store, network) = (claimed_by_other().await, Network::new(joined(), Reach::Gone));
    let of_dead = node(&store, &network).await;
    let before = clock::now();
    assert_eq!(of_dead.keyed("total").ask("ann", 10 * SECOND, Add(1)).await, Ok(1));
    assert_eq!((clock::now() - before, network.asked()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_never_answers_is_waited_for_half_of_the_time_of_a_load() {
    let joined = JoinState::Joined { without: None };
    let (store, network) = (claimed_by_other().await, Network::new(joined, Reach::Expected));
    let node = node(&store, &network).await;
    let before = clock::now();
    assert_eq!(node.keyed("total").ask("ann", 10 * SECOND, Add(1)).await, Ok(1));
    assert_eq!(clock::now() - before, 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_key_was_claimed_while_nodes_were_apart_ends_when_they_meet() {
    let joined = JoinState::Joined { without: None };
    let (store, network) = (MemoryStore::new(), Network::new(joined, Reach::Gone));
    let node = node(&store, &network).await;
    let total = node.keyed("total");
    assert_eq!(total.ask("ann", SECOND, Add(1)).await, Ok(1));
    tokio::time::sleep(2 * SECOND).await;
    let key = StateKey { kind: "total", key: "ann" };
    let record = store.claim(key, "other").await.unwrap();
    let five = Payload::new(5_u64).to_envelope().unwrap().into_bytes();
    store.save(key, Fence { epoch: record.epoch, version: record.version }, five).await.unwrap();
    assert_eq!(total.ask("ann", SECOND, Add(0)).await, Ok(1), "it does not see the other instance");
    network.0.publishers.lock().push("other".into());
    tokio::time::sleep(SECOND / 2).await;
    assert_eq!(total.ask("ann", SECOND, Add(0)).await, Ok(5));
}
