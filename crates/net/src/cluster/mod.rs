//! Remote stages: the connected peers, the choice of a peer for each call, and the handling of a call whose peer is
//! lost.
//!
//! The node that admitted a call owns it, and calls one peer at a time. If a peer did not start the call (it refused,
//! it is draining, or the connection was lost before everything was sent), the next peer is tried. If the peer was lost
//! with the call, or is silent, the next one is tried only if the stage may run again. An answer is final. Overloaded
//! peers, and calls of lost and silent ones, are retried within the retry budget. A call tries each peer once; if it has
//! to wait for a lost peer, it may try all of them again. The deadline is sent as remaining time, and dropping a call
//! here resets it there.
//!
//! A question to an actor is sent once, to the one peer that `actors.rs` finds.

mod actors;
#[cfg(test)]
mod batch_sim;
mod breaker;
mod dispatch;
mod generations;
mod index;
mod join;
mod load_balance;
mod loads;
mod member;
mod outputs;
mod peer;
mod peer_stats;
mod reconnect;
mod split;
mod stage_stats;

use std::cell::LazyCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use callboard_codec::DecodeLimits;
use callboard_codec::wire::FrameLimits;
use callboard_core::remote::{
    JoinState, LoadsFuture, MemberDescription, PeerDescription, RemoteActors, RemoteFuture, RemoteStages, StageCall,
    StageLoad, StageOutputs, StageReply, StageTarget,
};
use callboard_core::{Instant, RetryBudget, SessionKey};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::generations::{ConnectedNodes, NodeInstance};
use self::index::StageIndex;
use self::load_balance::should_forward;
use self::peer::Peer;
use self::reconnect::PeerConnector;
use self::split::RevisionSplit;
use crate::client::{OwnHello, ReplyLimits};
use crate::membership::GossipHandle;
use crate::metrics::PeerMetrics;
use crate::offers::OfferScreening;
use crate::own_address::OwnAddress;
use crate::server::QuicEdge;
use crate::view::{ClusterView, View};

/// The peers of a node, which may run the stages of its calls. Clones share the connections, which end with the last
/// clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    own: Arc<OwnAddress>,
    /// The name by which other nodes know this one, and its key.
    name: Arc<str>,
    key: u64,
    frames: FrameLimits,
    decode: DecodeLimits,
    index: Arc<StageIndex>,
    retries: Mutex<RetryBudget>,
    splits: ArcSwap<HashMap<String, Arc<RevisionSplit>>>,
    metrics: PeerMetrics,
    gossip: Option<GossipHandle>,
    /// Whether it has seen the nodes that it joins.
    joined: watch::Sender<JoinState>,
    task: Mutex<Option<AbortHandle>>,
}

impl Inner {
    fn reply_limits(&self) -> ReplyLimits<'_> {
        ReplyLimits { frames: &self.frames, decode: &self.decode, is_encoded: false }
    }
}

impl Cluster {
    /// Connects to the nodes of `view`, now and as it changes, and tells them where this node listens.
    #[must_use]
    pub fn start(edge: &QuicEdge, view: Arc<dyn ClusterView>) -> Self {
        let index = Arc::<StageIndex>::default();
        let transport = Arc::clone(edge.transport());
        let (node, generation) = (edge.config().node.clone(), edge.generation());
        let own = NodeInstance { member: transport.identity().name(), node: node.clone(), generation };
        let name = own.known_name().unwrap_or_else(|| node.clone());
        let inner = Arc::new(Inner {
            key: SessionKey::from(name.as_str()).number(),
            name: name.into(),
            own: Arc::clone(edge.own_address()),
            frames: edge.config().frames.clone(),
            decode: edge.config().decode.clone(),
            index: Arc::clone(&index),
            retries: Mutex::default(),
            splits: ArcSwap::default(),
            metrics: edge.peer_metrics().clone(),
            gossip: edge.gossip().cloned(),
            joined: watch::Sender::new(join::at_start(view.names_others())),
            task: Mutex::default(),
        });
        let join_within = edge.config().join_within;
        let views = view.watch();
        edge.introduce_to(Arc::clone(&view));
        let metrics = edge.peer_metrics().clone();
        let connector = PeerConnector {
            transport,
            hello: OwnHello {
                node,
                generation,
                address: Some(Arc::clone(edge.own_address())),
                gossip: edge.gossip().cloned(),
            },
            screening: OfferScreening {
                rules: Arc::new(edge.config().offers.clone()),
                refused: metrics.offers_refused(),
                changed: Arc::default(),
            },
            metrics,
            view,
            dial_back: edge.dial_back(),
            nodes: Arc::new(ConnectedNodes::new(own)),
            index,
        };
        let task = edge.transport().runtime().spawn(follow_view(Arc::downgrade(&inner), connector, views));
        *inner.task.lock() = Some(task.abort_handle());
        edge.transport().runtime().spawn(join::watch(Arc::downgrade(&inner), join_within));
        Self { inner }
    }

    /// Splits the calls of a stage between its [revisions](callboard_core::StageSettings::revision) by weight, from now
    /// on. Empty weights end the split.
    ///
    /// The split is exact among the offered revisions, including this node's; a session keeps its revision. If no node
    /// of the drawn revision takes a call, a node of another revision does.
    pub fn split(&self, stage: &str, weights: impl IntoIterator<Item = (u64, u32)>) {
        let split = Arc::new(RevisionSplit::new(weights, fastrand::u64(..u64::MAX / 2)));
        self.inner.splits.rcu(|splits| {
            let mut splits = HashMap::clone(splits);
            if split.is_empty() {
                splits.remove(stage);
            } else {
                splits.insert(stage.to_owned(), Arc::clone(&split));
            }
            splits
        });
    }

    /// The number of calls that wait to be sent, and of open streams, over all connections.
    #[cfg(feature = "testing")]
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let peers = self.inner.index.peers();
        let each = peers.iter().map(|peer| peer.in_flight());
        each.fold((0, 0), |(waiting, streams), (w, s)| (waiting + w, streams + s))
    }

    /// Whether two random peers of a stage take calls, of which the better would be called.
    #[cfg(feature = "testing")]
    pub(crate) fn pick(&self, stage: &str) -> bool {
        let peers = self.inner.index.stage(stage);
        let chances = (fastrand::usize(..), fastrand::usize(..));
        index::quick_pick(peers.of_form(false), chances, Instant::now()).is_some()
    }

    /// The number of connected peers.
    #[must_use]
    pub fn connected_peers(&self) -> usize {
        self.inner.index.peers().iter().filter(|peer| peer.is_connected()).count()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

/// Keeps a connection to each node of the view. The connection to a node that leaves the view ends with its last call.
async fn follow_view(inner: Weak<Inner>, connector: PeerConnector, mut views: watch::Receiver<Arc<View>>) {
    let mut connected: HashMap<SocketAddr, (Arc<Peer>, ConnectorTask)> = HashMap::new();
    let mut is_final = false;
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        {
            let Some(inner) = inner.upgrade() else { return };
            connected.retain(|address, _| view.peers.contains(address));
            for address in view.peers.iter().filter(|address| inner.own.may_reach(**address)) {
                connected.entry(*address).or_insert_with(|| {
                    let peer = Arc::new(Peer::new(*address));
                    let keeping = Arc::clone(&peer).keep_connected(connector.clone());
                    (peer, ConnectorTask(tokio::spawn(keeping).abort_handle()))
                });
            }
            let mut peers: Vec<_> = connected.values().map(|(peer, _)| Arc::clone(peer)).collect();
            // Sorted: the order of a hash map differs between processes.
            peers.sort_by_key(|peer| peer.address());
            inner.index.set_peers(peers);
        }
        loop {
            tokio::select! {
                changed = views.changed(), if !is_final => match changed {
                    Ok(()) => break,
                    // The view does not change any more.
                    Err(_) => is_final = true,
                },
                () = connector.screening.changed.notified() => connector.index.invalidate(),
            }
        }
    }
}

/// Aborts the task when it is dropped.
struct ConnectorTask(AbortHandle);

impl Drop for ConnectorTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemoteStages for Cluster {
    fn choose(&self, stage: &str, session: Option<SessionKey>, here: &StageLoad) -> StageTarget {
        let (inner, now) = (&self.inner, Instant::now());
        // Made once, for the draw and the comparison of loads; most calls need neither.
        let candidates = LazyCell::new(|| inner.candidates(stage, None, now));
        let runs = |revision| candidates.iter().any(|candidate| candidate.peer.revision == revision);
        let revision = inner.draw(stage, session, |revision| revision == here.revision || runs(revision));
        if revision.is_some_and(|revision| revision != here.revision) {
            return StageTarget { is_remote: true, revision };
        }
        // The fast path: most calls stay on this node.
        if here.open && here.queued < here.capacity {
            return StageTarget { is_remote: false, revision };
        }
        let same = candidates.iter().filter(|candidate| revision.is_none_or(|drawn| candidate.peer.revision == drawn));
        // A silent peer is no alternative to this node.
        let same = same.filter(|candidate| !here.open || !candidate.peer.is_silent());
        let least = same.map(|candidate| candidate.load.in_flight).min();
        StageTarget { is_remote: should_forward(here, least), revision }
    }

    fn can_chain(&self, stage: &str) -> bool {
        !self.inner.splits.load().contains_key(stage)
    }

    fn offers(&self, stage: &str) -> bool {
        self.inner.index.stage(stage).usable().next().is_some()
    }

    fn may_run_again(&self, stage: &str) -> bool {
        let candidates = self.inner.candidates(stage, None, Instant::now());
        !candidates.is_empty() && candidates.iter().all(|candidate| candidate.peer.is_idempotent)
    }

    fn peers(&self) -> Vec<PeerDescription> {
        self.inner.index.peers().iter().filter_map(|peer| peer.describe(Instant::now())).collect()
    }

    fn members(&self) -> Vec<MemberDescription> {
        self.inner.gossip.as_ref().map(GossipHandle::describe).unwrap_or_default()
    }

    fn stage_loads(&self) -> LoadsFuture {
        let inner = Arc::clone(&self.inner);
        Box::pin(inner.stage_loads())
    }

    fn actors(&self) -> Option<&dyn RemoteActors> {
        Some(self)
    }

    fn run(&self, call: StageCall) -> RemoteFuture<StageReply> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.run(call).await })
    }

    fn stream(&self, call: StageCall) -> RemoteFuture<StageOutputs> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move { inner.stream(call).await })
    }
}
