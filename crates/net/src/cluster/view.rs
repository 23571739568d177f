//! Which other nodes there are. Being in the view makes a node a candidate, nothing more: a call ends by its own stream.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Nodes that a static view takes at most. Threat: peers that introduce ever more of them.
const MAX_PEERS: usize = 64;

/// How long a peer that was not named is looked for when it is away. One that comes back shows itself again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

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

    /// A peer has shown itself, with a certificate of the cluster, at this address. `member` is the name in it, which is empty under the
    /// development identity. A view that knows better does nothing.
    fn introduce(&self, _member: &str, _peer: SocketAddr) {}

    /// There has been no link to this peer for so long, although it was tried. A view that knows better does nothing.
    fn missing(&self, _peer: SocketAddr, _lasting: Duration) {}
}

/// There is no other node.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleNode;

impl ClusterView for SingleNode {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        watch::channel(Arc::default()).1
    }
}

/// The nodes that were named at the start, and those that have come to them since, one address for each member. Who was named is never
/// forgotten: one that is away is tried again. Who came by is forgotten when there has been no link to it for a minute, so that nodes that
/// come back at other ports do not fill the view; there are 64 of all at most, and who comes then is answered and not called.
#[derive(Clone, Debug)]
pub struct Static {
    known: Arc<Known>,
}

#[derive(Debug, Default)]
struct Known {
    view: watch::Sender<Arc<View>>,
    /// Those in the view who were not named, with their members' names.
    introduced: Mutex<Vec<(SocketAddr, String)>>,
}

impl Static {
    /// These nodes.
    #[must_use]
    pub fn new(peers: impl IntoIterator<Item = SocketAddr>) -> Self {
        let known = Known::default();
        let mut named: Vec<SocketAddr> = Vec::new();
        for peer in peers {
            if !named.contains(&peer) && named.len() < MAX_PEERS {
                named.push(peer);
            }
        }
        known.view.send_replace(Arc::new(View { peers: named }));
        Self { known: Arc::new(known) }
    }
}

impl Known {
    /// Leaves out those that were introduced of whom `is_over` holds; says whether there were any.
    fn forget(
        introduced: &mut Vec<(SocketAddr, String)>,
        view: &mut Arc<View>,
        is_over: impl Fn(&(SocketAddr, String)) -> bool,
    ) -> bool {
        let over: Vec<SocketAddr> = introduced.iter().filter(|one| is_over(one)).map(|(peer, _)| *peer).collect();
        introduced.retain(|(peer, _)| !over.contains(peer));
        if !over.is_empty() {
            Arc::make_mut(view).peers.retain(|peer| !over.contains(peer));
        }
        !over.is_empty()
    }
}

impl ClusterView for Static {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.known.view.subscribe()
    }

    fn introduce(&self, member: &str, peer: SocketAddr) {
        let mut introduced = self.known.introduced.lock();
        self.known.view.send_if_modified(|view| {
            // Where it was before, it is no more.
            let has_moved = |(address, name): &(SocketAddr, String)| {
                !member.is_empty() && name.as_str() == member && *address != peer
            };
            let was_elsewhere = Known::forget(&mut introduced, view, has_moved);
            let is_new = !view.peers.contains(&peer) && view.peers.len() < MAX_PEERS;
            if is_new {
                introduced.push((peer, member.to_owned()));
                Arc::make_mut(view).peers.push(peer);
            }
            is_new || was_elsewhere
        });
    }

    fn missing(&self, peer: SocketAddr, lasting: Duration) {
        if lasting >= FORGOTTEN_AFTER {
            let mut introduced = self.known.introduced.lock();
            self.known
                .view
                .send_if_modified(|view| Known::forget(&mut introduced, view, |(address, _)| *address == peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn peers(view: &Static) -> Vec<SocketAddr> {
        view.watch().borrow().peers.clone()
    }

    #[test]
    fn a_static_view_takes_each_peer_once_and_not_too_many() {
        let view = Static::new([peer(1), peer(2), peer(1)]);
        assert_eq!(peers(&view), [peer(1), peer(2)]);
        (0..1_000).for_each(|port| view.introduce("", peer(port)));
        assert_eq!(peers(&view).len(), MAX_PEERS);
    }

    #[test]
    fn a_member_is_at_one_address_which_is_the_last_it_came_from() {
        let view = Static::new([peer(1)]);
        for port in 2..1_000 {
            view.introduce("left", peer(port));
            view.introduce("right", peer(port + 1_000));
        }
        assert_eq!(peers(&view), [peer(1), peer(999), peer(1_999)]);
        // At the address that was named it needs no other.
        view.introduce("left", peer(1));
        assert_eq!(peers(&view), [peer(1), peer(1_999)]);
    }

    #[test]
    fn who_is_missing_for_long_is_forgotten_unless_it_was_named() {
        let view = Static::new([peer(1)]);
        (2..1_000).for_each(|port| view.introduce("", peer(port)));
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER / 2));
        assert_eq!(peers(&view).len(), MAX_PEERS);
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER));
        assert_eq!(peers(&view), [peer(1)]);
        view.introduce("", peer(7));
        assert_eq!(peers(&view), [peer(1), peer(7)]);
    }
}
