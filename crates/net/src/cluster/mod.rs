//! Stages on other nodes: who there is, who gets the next call, and what becomes of a call whose peer is lost.
//!
//! The node that admitted a call owns it and asks one peer at a time. A peer that did not start the call (it refused, it drains, the
//! connection went before all was sent) leaves it to the next; one that is lost with it leaves it to the next only where the stage may
//! be run twice; one that answered has answered. What a peer refused for want of room, and what was lost, is asked again within the retry
//! budget. No peer is asked twice for one call. The deadline goes along
//! as the time that is left, and a call that is dropped here is reset there.

mod asking;
mod breaker;
mod incarnations;
mod linking;
mod metrics;
mod outputs;
mod peer;
mod retries;
mod rules;
mod split;
mod standing;
mod view;
mod weigh;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use callboard_codec::DecodeLimits;
use callboard_codec::wire::FrameLimits;
use callboard_core::remote::{
    PeerDescription, RemoteFuture, RemoteStages, StageCall, StageLoad, StageOutputs, StageReply, StageTarget,
};
use callboard_core::{Instant, SessionKey};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::incarnations::{Incarnation, Incarnations};
use self::linking::Linking;
pub(crate) use self::metrics::Asking;
use self::peer::Peer;
pub(crate) use self::retries::Retries;
pub use self::rules::{NotOfferRules, OfferRules};
use self::split::Split;
pub use self::view::{ClusterView, MAX_PEERS, SingleNode, Static, TooManyPeers, View};
use self::weigh::leaves;
use crate::client::Screening;
use crate::edge::QuicEdge;

/// The peers of a node, which may run the stages of its calls. Clones share the links, which end with the last clone.
#[derive(Clone, Debug)]
pub struct Cluster {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    own: SocketAddr,
    frames: FrameLimits,
    decode: DecodeLimits,
    peers: ArcSwap<Vec<Arc<Peer>>>,
    retries: Mutex<Retries>,
    splits: ArcSwap<HashMap<String, Arc<Split>>>,
    asking: Asking,
    following: Mutex<Option<AbortHandle>>,
}

impl Cluster {
    /// Connects to the nodes of `view`, now and as it changes, and tells them where this node listens.
    #[must_use]
    pub fn start(edge: &QuicEdge, view: Arc<dyn ClusterView>) -> Self {
        let inner = Arc::new(Inner {
            own: edge.address(),
            frames: edge.config().frames.clone(),
            decode: edge.config().decode.clone(),
            peers: ArcSwap::default(),
            retries: Mutex::default(),
            splits: ArcSwap::default(),
            asking: edge.asking().clone(),
            following: Mutex::default(),
        });
        let views = view.watch();
        edge.introduce_to(Arc::clone(&view));
        let (transport, greeting) = (Arc::clone(edge.transport()), edge.greeting());
        let (node, generation) = (greeting.node.clone(), greeting.generation);
        let own = Incarnation { member: transport.identity().name(), node, generation };
        let incarnations = Arc::new(Incarnations::new(own));
        let asking = edge.asking().clone();
        let screening = Screening { rules: Arc::new(edge.config().offers.clone()), refused: asking.offers_refused() };
        let linking = Linking { transport, greeting, screening, asking, known: view, incarnations };
        let following = edge.transport().runtime().spawn(follow(Arc::downgrade(&inner), linking, views));
        *inner.following.lock() = Some(following.abort_handle());
        Self { inner }
    }

    /// Divides the calls of a stage between its [revisions](callboard_core::StageSettings::revision) by weight, from
    /// now on. Empty weights end the division.
    ///
    /// The division is exact among the revisions on offer, this node's included; a session keeps its revision. If no
    /// node of the drawn revision takes a call, another revision does.
    pub fn split(&self, stage: &str, weights: impl IntoIterator<Item = (u64, u32)>) {
        let split = Arc::new(Split::new(weights, fastrand::u64(..u64::MAX / 2)));
        self.inner.splits.rcu(|splits| {
            let mut splits = HashMap::clone(splits);
            match split.is_empty() {
                true => splits.remove(stage),
                false => splits.insert(stage.to_owned(), Arc::clone(&split)),
            };
            splits
        });
    }

    /// What all links have in hand: calls that wait to be sent, and streams.
    #[cfg(feature = "testing")]
    pub(crate) fn in_hand(&self) -> (usize, usize) {
        let peers = self.inner.peers.load();
        let each = peers.iter().map(|peer| peer.in_hand());
        each.fold((0, 0), |(waiting, streams), (w, s)| (waiting + w, streams + s))
    }

    /// The number of connected peers.
    #[must_use]
    pub fn linked(&self) -> usize {
        self.inner.peers.load().iter().filter(|peer| peer.is_linked()).count()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(following) = self.following.lock().take() {
            following.abort();
        }
    }
}

/// Keeps a link to each node of the view. A node that leaves it is let go of when its calls are done.
async fn follow(inner: Weak<Inner>, linking: Linking, mut views: watch::Receiver<Arc<View>>) {
    let mut links: HashMap<SocketAddr, (Arc<Peer>, LinkTask)> = HashMap::new();
    loop {
        let view = Arc::clone(&views.borrow_and_update());
        {
            let Some(inner) = inner.upgrade() else { return };
            links.retain(|address, _| view.peers.contains(address));
            for address in view.peers.iter().filter(|address| may_be_linked(inner.own, **address)) {
                links.entry(*address).or_insert_with(|| {
                    let peer = Arc::new(Peer::new(*address));
                    let keeping = Arc::clone(&peer).keep_linked(linking.clone());
                    (peer, LinkTask(tokio::spawn(keeping).abort_handle()))
                });
            }
            let mut peers: Vec<_> = links.values().map(|(peer, _)| Arc::clone(peer)).collect();
            // The order of a hash map is another one in each process.
            peers.sort_by_key(|peer| peer.address());
            inner.peers.store(Arc::new(peers));
        }
        if views.changed().await.is_err() {
            // The view is final.
            std::future::pending::<()>().await;
        }
    }
}

/// Whether there is somebody else that can be reached from here: a socket of IPv4 reaches no address of IPv6, of which a name may have some.
fn may_be_linked(own: SocketAddr, peer: SocketAddr) -> bool {
    peer != own && (peer.is_ipv4() || own.is_ipv6())
}

/// Ends with its handle.
struct LinkTask(AbortHandle);

impl Drop for LinkTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl RemoteStages for Cluster {
    fn choose(&self, stage: &str, session: Option<SessionKey>, here: &StageLoad) -> StageTarget {
        let inner = &self.inner;
        let revision = inner.draw(stage, session, Some(here.revision));
        if revision.is_some_and(|revision| revision != here.revision) {
            return StageTarget { is_remote: true, revision };
        }
        // Most calls stay, and cost no more than this look.
        if here.open && here.queued < here.capacity {
            return StageTarget { is_remote: false, revision };
        }
        let now = Instant::now();
        let candidates = inner.candidates(stage, None, now);
        let same = candidates.iter().filter(|candidate| revision.is_none_or(|drawn| candidate.revision == drawn));
        let least = same.map(|candidate| candidate.weight.in_hand).min();
        StageTarget { is_remote: leaves(here, least), revision }
    }

    fn can_chain(&self, stage: &str) -> bool {
        !self.inner.splits.load().contains_key(stage)
    }

    fn offers(&self, stage: &str) -> bool {
        self.inner.peers.load().iter().any(|peer| peer.offers(stage))
    }

    fn peers(&self) -> Vec<PeerDescription> {
        self.inner.peers.load().iter().filter_map(|peer| peer.describe(Instant::now())).collect()
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
