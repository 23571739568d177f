//! A cluster of named nodes with keyed counters, in one process over real QUIC, whose nodes are restarted and killed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use callboard_core::actor::Question;
use callboard_core::keyed::{
    Answers, Fence, KeyContext, Keyed, KeyedRef, KeyedSpec, SavePolicy, StateKey, StateStore, StoreFuture, Stored,
    StoredState,
};
use callboard_core::testing::MemoryStore;
use callboard_core::{App, Failure};
use callboard_net::testing::issued;
use callboard_net::{Cluster, Identity, MembershipProfile, NetConfig, QuicEdge, Role, StaticView};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::common::{LONG, ServingNode, loopback, patient, until};
use crate::lab::Lab;

/// The time in which a node saves its keys and ends.
const STOP: Duration = Duration::from_secs(10);

/// What is saved of a counter.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Count(u64);

/// Adds to a counter.
#[derive(Serialize, Deserialize)]
pub(crate) struct Add(pub(crate) u64);

/// What it has then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) total: u64,
    pub(crate) epoch: u64,
    /// A number of the instance.
    pub(crate) instance: u64,
}

impl Question for Add {
    const NAME: &str = "add";
    type Answer = Answer;
}

pub(crate) struct Counter {
    count: Stored<Count>,
    instance: u64,
}

impl Keyed for Counter {
    type State = Count;

    fn stored(&mut self) -> &mut Stored<Count> {
        &mut self.count
    }
}

impl Answers<Add> for Counter {
    async fn answer(&mut self, Add(by): Add, context: &KeyContext) -> Result<Answer, Failure> {
        // A question that only reads saves nothing.
        if by > 0 {
            self.count.0 += by;
        }
        Ok(Answer { total: self.count.0, epoch: context.epoch(), instance: self.instance })
    }
}

/// A store in memory whose operations take a moment, as those over a network do.
#[derive(Clone, Debug)]
pub(crate) struct SlowStore {
    records: MemoryStore,
    random: Arc<Mutex<fastrand::Rng>>,
    /// While it is set, claims wait, or saves.
    pub(crate) holds_claims: Arc<watch::Sender<bool>>,
    pub(crate) holds_saves: Arc<watch::Sender<bool>>,
}

/// Waits until it is not set.
async fn until_free(holds: &watch::Sender<bool>) {
    holds.subscribe().wait_for(|holds| !holds).await.expect("the store lives");
}

impl SlowStore {
    pub(crate) fn new(seed: u64) -> Self {
        let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        let [holds_claims, holds_saves] = [(); 2].map(|()| Arc::new(watch::Sender::new(false)));
        Self { records: MemoryStore::new(), random, holds_claims, holds_saves }
    }

    /// Carries it out in the middle of its time: what is dropped later has happened.
    fn slowly<T: Send>(&self, operation: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        let pause = || Duration::from_micros(self.random.lock().u64(100..3_000));
        let (before, after) = (pause(), pause());
        async move {
            tokio::time::sleep(before).await;
            let outcome = operation.await;
            tokio::time::sleep(after).await;
            outcome
        }
    }
}

impl StateStore for SlowStore {
    fn claim<'a>(&'a self, key: StateKey<'a>, owner: &'a str) -> StoreFuture<'a, StoredState> {
        let claiming = self.slowly(self.records.claim(key, owner));
        Box::pin(async move {
            until_free(&self.holds_claims).await;
            claiming.await
        })
    }

    fn load<'a>(&'a self, key: StateKey<'a>) -> StoreFuture<'a, Option<StoredState>> {
        Box::pin(self.slowly(self.records.load(key)))
    }

    fn save<'a>(&'a self, key: StateKey<'a>, fence: Fence, state: Bytes) -> StoreFuture<'a, u64> {
        let saving = self.slowly(self.records.save(key, fence, state));
        Box::pin(async move {
            until_free(&self.holds_saves).await;
            saving.await
        })
    }

    fn remove<'a>(&'a self, key: StateKey<'a>, fence: Fence) -> StoreFuture<'a, ()> {
        Box::pin(self.slowly(self.records.remove(key, fence)))
    }

    fn is_local(&self) -> bool {
        false
    }
}

/// What all nodes share.
pub(crate) struct KeyedCluster {
    lab: Lab,
    pub(crate) store: SlowStore,
    save: SavePolicy,
}

/// A running node.
pub(crate) struct KeyedNode {
    pub(crate) counter: KeyedRef,
    pub(crate) served: ServingNode,
    cluster: Cluster,
}

/// How its nodes gossip, and notice deaths as in production.
pub(crate) fn gossiping() -> NetConfig {
    let mut config = NetConfig { membership: Some(MembershipProfile::Near), ..patient() };
    config.tuning.idle_timeout = Duration::from_secs(3);
    config
}

impl KeyedCluster {
    pub(crate) async fn start(name: &str, seed: u64, save: SavePolicy) -> Self {
        Self { lab: Lab::start(name).await, store: SlowStore::new(seed), save }
    }

    pub(crate) fn identity(&self, name: &str) -> Identity {
        let now = SystemTime::now();
        issued(&self.lab.authority, Role::Node, name, now - LONG, now + 60 * LONG)
    }

    /// Starts the node of this name, which names these.
    pub(crate) async fn node(&self, name: &str, named: &[SocketAddr], config: NetConfig) -> KeyedNode {
        let identity = self.identity(name);
        let config = NetConfig { node: name.to_owned(), ..config };
        let load = |_, count| async move { Ok(Counter { count, instance: fastrand::u64(..) }) };
        let spec = KeyedSpec::new("counter", Arc::new(self.store.clone()), load);
        // A last owner that can be asked is waited for: a test that relies on the end of that time fails.
        let spec = spec.save(self.save).load_within(4 * LONG).accepts::<Add>();
        let node = App::new().keyed(spec).start().await.unwrap();
        let edge = QuicEdge::bind(loopback(), identity, config).unwrap();
        let cluster = Cluster::start(&edge, edge.view(StaticView::try_new(named.iter().copied()).unwrap()));
        node.join(cluster.clone()).unwrap();
        edge.open(node.client());
        let counter = node.keyed("counter");
        KeyedNode { counter, served: ServingNode { node, edge }, cluster }
    }
}

impl KeyedNode {
    /// A key that this node has, by its own view.
    pub(crate) async fn own_key(&self) -> String {
        for key in 0.. {
            let key = format!("of {key}");
            let before = self.counter.active();
            self.counter.ask(&key, LONG, Add(0)).await.unwrap();
            if self.counter.active() > before {
                return key;
            }
        }
        unreachable!("it has some")
    }

    pub(crate) async fn until_ready(&self) {
        until(|| self.served.node.health().ready).await;
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.served.edge.address()
    }

    /// As a server ends: it saves what it has.
    pub(crate) async fn stop(self) {
        let ServingNode { node, edge } = self.served;
        node.withdraw();
        edge.drain();
        let _ = node.drain(STOP).await;
        node.stop(STOP).await;
        edge.shutdown(STOP).await;
    }

    /// As a process that is killed, whose port closes.
    pub(crate) fn kill(self) {
        let ServingNode { node, edge } = self.served;
        node.abort();
        drop((self.cluster, edge));
    }
}
