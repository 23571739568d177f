//! Which other nodes there are. Being in the view makes a node a candidate, nothing more: a call ends by its own stream.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::watch;

/// Nodes that a static view takes at most. Threat: peers that introduce ever more of them.
const MAX_PEERS: usize = 64;

/// The nodes beside this one, as they are known at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Where they listen.
    pub peers: Vec<SocketAddr>,
}

/// Who knows the nodes of the cluster.
pub trait ClusterView: fmt::Debug + Send + Sync + 'static {
    /// The view of the moment, and those that follow.
    fn watch(&self) -> watch::Receiver<Arc<View>>;

    /// A peer has shown itself, with a certificate of the cluster, at this address. A view that knows better does nothing.
    fn introduce(&self, _peer: SocketAddr) {}
}

/// There is no other node.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleNode;

impl ClusterView for SingleNode {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        watch::channel(Arc::default()).1
    }
}

/// The nodes that were named at the start, and those that have come to them since. None is forgotten: one that is away is tried again.
#[derive(Clone, Debug)]
pub struct Static {
    view: Arc<watch::Sender<Arc<View>>>,
}

impl Static {
    /// These nodes.
    #[must_use]
    pub fn new(peers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let view = Self { view: Arc::new(watch::Sender::default()) };
        peers.into_iter().for_each(|peer| view.introduce(peer));
        view
    }
}

impl ClusterView for Static {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.view.subscribe()
    }

    fn introduce(&self, peer: SocketAddr) {
        self.view.send_if_modified(|view| {
            let is_new = !view.peers.contains(&peer) && view.peers.len() < MAX_PEERS;
            if is_new {
                Arc::make_mut(view).peers.push(peer);
            }
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_view_takes_each_peer_once_and_not_too_many() {
        let peer = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let view = Static::new([peer(1), peer(2), peer(1)]);
        assert_eq!(view.watch().borrow().peers, [peer(1), peer(2)]);
        (0..1_000).for_each(|port| view.introduce(peer(port)));
        assert_eq!(view.watch().borrow().peers.len(), MAX_PEERS);
    }
}
