//! The view of the cluster: the addresses of the other nodes. A node in the view is only a candidate for calls.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

use callboard_identity::NodeAddress;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

/// The most nodes of a static view. Threat: peers that introduce an endless number of nodes.
pub const MAX_PEERS: usize = 64;

/// How long an introduced node that is away stays in the view. When it comes back, it connects again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The longest time for resolving a name.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The least time between two resolutions of a name while nodes are away.
const RESOLVE_EVERY: Duration = Duration::from_secs(1);

/// The pauses between resolutions of a name without an address: they grow.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The other nodes known at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Their addresses.
    pub peers: Vec<SocketAddr>,
}

/// A source of the nodes of the cluster.
pub trait ClusterView: fmt::Debug + Send + Sync + 'static {
    /// The current view, and its changes.
    fn watch(&self) -> watch::Receiver<Arc<View>>;

    /// Whether this node was told of others, which it joins: it has no keyed actors until it has seen them. By default,
    /// if the view has any.
    fn names_others(&self) -> bool {
        !self.watch().borrow().peers.is_empty()
    }

    /// A peer with a certificate of the cluster has connected from this address. `member` is the name in the
    /// certificate, empty under the development identity. `false`: there is no room for it, so it is answered but not
    /// called. By default, a view ignores introductions.
    fn introduce(&self, _member: &str, _peer: SocketAddr) -> bool {
        true
    }

    /// This peer could not be connected for this time, although it was tried. By default, a view ignores it.
    fn missing(&self, _peer: SocketAddr, _lasting: Duration) {}
}

/// A view without other nodes.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleNode;

impl ClusterView for SingleNode {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        watch::channel(Arc::default()).1
    }
}

/// The list has more nodes than a view takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} nodes were named: a node takes at most {MAX_PEERS} others; name this node at the rest instead")]
pub struct TooManyPeers {
    /// The number of nodes, without duplicates.
    pub given: usize,
}

/// The nodes named at the start, and the nodes that connected since, with one address for each member. Named nodes stay
/// in the view, and are tried again when they are away. Other nodes are removed when they were not connected for a
/// minute, so that nodes that return at other ports do not fill the view. There are at most 64; further nodes are
/// answered but not called.
///
/// A [name](Self::resolve) may have several nodes. It is resolved again while it has no address, and when one of its
/// nodes is away: the name then has the addresses that were found, and those of its nodes that can still be reached.
#[derive(Clone, Debug)]
pub struct StaticView {
    state: Arc<StaticState>,
}

#[derive(Debug, Default)]
struct StaticState {
    view: watch::Sender<Arc<View>>,
    peers: Mutex<KnownPeers>,
    /// Notified when a node cannot be reached.
    away: Arc<Notify>,
    /// The tasks that resolve names.
    resolvers: Mutex<Vec<AbortHandle>>,
}

/// The nodes of a view, by their source.
#[derive(Debug, Default)]
struct KnownPeers {
    named: Vec<SocketAddr>,
    /// The names with their addresses.
    names: Vec<(NodeAddress, Vec<SocketAddr>)>,
    /// The nodes that connected, with their member names.
    introduced: Vec<(SocketAddr, String)>,
    /// Nodes of names that could not be reached since the last resolution.
    away: HashSet<SocketAddr>,
}

impl KnownPeers {
    /// All nodes, without duplicates.
    fn all(&self) -> Vec<SocketAddr> {
        let resolved = self.names.iter().flat_map(|(_, addresses)| addresses);
        let introduced = self.introduced.iter().map(|(peer, _)| peer);
        let mut known = HashSet::new();
        let all = self.named.iter().chain(resolved).chain(introduced).copied();
        all.filter(|peer| known.insert(*peer)).collect()
    }

    fn introduce(&mut self, member: &str, peer: SocketAddr) -> bool {
        // A member has left its earlier address.
        self.introduced.retain(|(address, name)| member.is_empty() || name != member || *address == peer);
        let peers = self.all();
        if peers.contains(&peer) {
            return true;
        }
        let has_room = peers.len() < MAX_PEERS;
        if has_room {
            self.introduced.push((peer, member.to_owned()));
        }
        has_room
    }

    fn missing(&mut self, peer: SocketAddr, lasting: Duration) {
        if lasting >= FORGOTTEN_AFTER {
            self.introduced.retain(|(address, _)| *address != peer);
        }
        if self.names.iter().any(|(_, addresses)| addresses.contains(&peer)) {
            self.away.insert(peer);
        }
    }

    /// Updates the addresses of a name. A resolver may return a part of them, so reachable nodes stay. `false`: there
    /// are too many nodes.
    fn resolved(&mut self, name: usize, found: Vec<SocketAddr>) -> bool {
        let Self { names, away, .. } = self;
        let addresses = &mut names[name].1;
        addresses.retain(|address| !away.remove(address) && !found.contains(address));
        addresses.extend(found);
        addresses.truncate(MAX_PEERS + 1);
        let named = self.named.len() + self.names.iter().map(|(_, addresses)| addresses.len()).sum::<usize>();
        named <= MAX_PEERS
    }
}

impl StaticState {
    /// Changes the nodes, and publishes the view.
    fn change<T>(&self, change: impl FnOnce(&mut KnownPeers) -> T) -> T {
        let mut known = self.peers.lock();
        let changed = change(&mut known);
        let mut peers = known.all();
        peers.truncate(MAX_PEERS);
        self.view.send_if_modified(|view| {
            let has_changed = view.peers != peers;
            if has_changed {
                *view = Arc::new(View { peers });
            }
            has_changed
        });
        changed
    }
}

impl Drop for StaticState {
    fn drop(&mut self) {
        self.resolvers.get_mut().drain(..).for_each(|task| task.abort());
    }
}

impl StaticView {
    /// A view of these nodes.
    ///
    /// # Errors
    ///
    /// More than 64 of them.
    pub fn try_new(peers: impl IntoIterator<Item = SocketAddr>) -> Result<Self, TooManyPeers> {
        let state = StaticState::default();
        state.change(|known| {
            known.named = peers.into_iter().collect();
            check_count(known.all().len())
        })?;
        Ok(Self { state: Arc::new(state) })
    }

    /// A view of these nodes, some of which are names. Names are resolved from now on, until the last handle of the
    /// view is dropped. A name without an address is a warning in the log, not an error: it may get one.
    ///
    /// # Errors
    ///
    /// More than 64 of them.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn resolve(peers: impl IntoIterator<Item = NodeAddress>) -> Result<Self, TooManyPeers> {
        let (mut addresses, mut names) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer.address() {
                Some(address) => addresses.push(address),
                None if names.contains(&peer) => {}
                None => names.push(peer),
            }
        }
        let view = Self::try_new(addresses)?;
        check_count(view.state.peers.lock().all().len() + names.len())?;
        view.state.peers.lock().names = names.iter().map(|name| (name.clone(), Vec::new())).collect();
        for (at, name) in names.into_iter().enumerate() {
            let (state, away) = (Arc::downgrade(&view.state), Arc::clone(&view.state.away));
            let resolving = keep_resolved(state, away, at, name.to_string(), move || {
                let name = name.clone();
                async move { name.resolve(RESOLVE_TIMEOUT).await }
            });
            let task = tokio::spawn(resolving);
            view.state.resolvers.lock().push(task.abort_handle());
        }
        Ok(view)
    }
}

fn check_count(given: usize) -> Result<(), TooManyPeers> {
    if given > MAX_PEERS { Err(TooManyPeers { given }) } else { Ok(()) }
}

/// Resolves a name until it has an address, and again whenever a node is away.
async fn keep_resolved<L>(state: Weak<StaticState>, away: Arc<Notify>, at: usize, name: String, resolve: impl Fn() -> L)
where
    L: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let (mut pause, mut was_logged) = (FIRST_PAUSE, false);
    loop {
        // Registered before the resolution: a node reported away meanwhile was tried at an old address.
        let is_away = away.notified();
        match resolve().await {
            Ok(found) => {
                let Some(state) = state.upgrade() else { return };
                if !state.change(|known| known.resolved(at, found)) {
                    tracing::warn!(%name, "the names have more than {MAX_PEERS} nodes: the rest is not called");
                }
                drop(state);
                (pause, was_logged) = (FIRST_PAUSE, false);
                is_away.await;
                tokio::time::sleep(RESOLVE_EVERY).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut was_logged, true) {
                    tracing::warn!(%name, "a named node has no address yet, and is resolved again: {error}");
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl ClusterView for StaticView {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.state.view.subscribe()
    }

    fn names_others(&self) -> bool {
        let known = self.state.peers.lock();
        !known.named.is_empty() || !known.names.is_empty()
    }

    fn introduce(&self, member: &str, peer: SocketAddr) -> bool {
        self.state.change(|known| known.introduce(member, peer))
    }

    fn missing(&self, peer: SocketAddr, lasting: Duration) {
        self.state.change(|known| known.missing(peer, lasting));
        self.state.away.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    impl StaticView {
        fn default_with_a_name() -> Self {
            let state = StaticState::default();
            state.peers.lock().names.push(("node.example:1".parse().unwrap(), Vec::new()));
            Self { state: Arc::new(state) }
        }
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn view_of(ports: impl IntoIterator<Item = u16>) -> Result<StaticView, TooManyPeers> {
        StaticView::try_new(ports.into_iter().map(peer))
    }

    fn peers(view: &StaticView) -> Vec<SocketAddr> {
        view.watch().borrow().peers.clone()
    }

    #[test]
    fn a_static_view_takes_each_peer_once_and_not_too_many() {
        let view = view_of([1, 2, 1]).unwrap();
        assert_eq!(peers(&view), [peer(1), peer(2)]);
        let taken = (0..1_000).filter(|port| view.introduce("", peer(*port))).count();
        assert_eq!((taken, peers(&view).len()), (MAX_PEERS, MAX_PEERS));
        // A known node keeps its place.
        assert!(view.introduce("", peer(1)) && !view.introduce("", peer(1_000)));
    }

    #[test]
    fn a_view_refuses_too_many_nodes_and_names_the_limit() {
        assert_eq!(peers(&view_of((1..=64).chain(1..=64)).unwrap()).len(), 64);
        let error = view_of(1..=65).unwrap_err();
        assert_eq!(error, TooManyPeers { given: 65 });
        assert!(error.to_string().starts_with("65 nodes were named: a node takes at most 64 others"), "{error}");
    }

    #[test]
    fn a_member_has_one_address_that_of_its_last_connection() {
        let view = view_of([1]).unwrap();
        for port in 2..1_000 {
            view.introduce("left", peer(port));
            view.introduce("right", peer(port + 1_000));
        }
        assert_eq!(peers(&view), [peer(1), peer(999), peer(1_999)]);
        // A member at a named address needs no other.
        view.introduce("left", peer(1));
        assert_eq!(peers(&view), [peer(1), peer(1_999)]);
    }

    #[test]
    fn a_long_missing_node_is_dropped_unless_it_is_configured() {
        let view = view_of([1]).unwrap();
        (2..1_000).for_each(|port| _ = view.introduce("", peer(port)));
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER / 2));
        assert_eq!(peers(&view).len(), MAX_PEERS);
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER));
        assert_eq!(peers(&view), [peer(1)]);
        view.introduce("", peer(7));
        assert_eq!(peers(&view), [peer(1), peer(7)]);
    }

    #[test]
    fn a_name_keeps_its_reachable_nodes_and_gains_the_resolved_ones() {
        let mut known = KnownPeers { named: vec![peer(9)], ..KnownPeers::default() };
        known.names.push(("nodes.example:1".parse().unwrap(), Vec::new()));
        assert!(known.resolved(0, vec![peer(1), peer(2), peer(3)]));
        assert_eq!(known.all(), [peer(9), peer(1), peer(2), peer(3)]);
        known.missing(peer(2), Duration::ZERO);
        known.missing(peer(9), Duration::ZERO);
        // A resolver may return a part of the addresses.
        assert!(known.resolved(0, vec![peer(4)]));
        assert_eq!(known.all(), [peer(9), peer(1), peer(3), peer(4)]);
        assert!(known.away.is_empty());
        assert!(!known.resolved(0, (100..200).map(peer).collect()), "more than there is room for");
    }

    #[tokio::test]
    async fn a_name_is_resolved_until_it_has_an_address_and_when_its_node_has_moved() {
        let view = StaticView::default_with_a_name();
        let lookups = AtomicU16::new(0);
        let resolving =
            keep_resolved(Arc::downgrade(&view.state), view.state.away.clone(), 0, "node".to_owned(), || {
                let found = match lookups.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(io::ErrorKind::NotFound.into()),
                    nth => Ok(vec![peer(nth)]),
                };
                std::future::ready(found)
            });
        let moving = async {
            let mut views = view.watch();
            views.wait_for(|view| view.peers == [peer(1)]).await.expect("a view");
            // Reported repeatedly, as by the task that tries to connect.
            loop {
                view.missing(peer(1), Duration::ZERO);
                let moved = views.wait_for(|view| view.peers == [peer(2)]);
                if tokio::time::timeout(Duration::from_millis(50), moved).await.is_ok() {
                    return;
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), async {
            tokio::select! {
                () = resolving => panic!("it continues"),
                () = moving => {}
            }
        });
        found.await.expect("it was resolved");
        assert_eq!(lookups.into_inner(), 3, "not while all nodes are reachable");
    }

    #[tokio::test]
    async fn a_name_covers_all_of_its_addresses() {
        let named: NodeAddress = "localhost:4433".parse().unwrap();
        let view = StaticView::resolve([named.clone(), named, "127.0.0.2:1".parse().unwrap()]).unwrap();
        let mut views = view.watch();
        let found = views.wait_for(|view| view.peers.contains(&peer(4433)));
        tokio::time::timeout(Duration::from_secs(60), found).await.expect("it was resolved").unwrap();
        assert_eq!(peers(&view)[0], SocketAddr::from(([127, 0, 0, 2], 1)));
    }
}
