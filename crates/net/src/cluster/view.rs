//! Which other nodes there are. Being in the view makes a node a candidate, nothing more: a call ends by its own stream.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use crate::client::NodeAddress;

/// Nodes that a static view takes at most. Threat: peers that introduce ever more of them.
pub const MAX_PEERS: usize = 64;

/// How long a peer that was not named is looked for when it is away. One that comes back shows itself again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// How long one look-up of a name may take.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// A name is looked up this often at most, whoever of its nodes is away.
const LOOK_UP_EVERY: Duration = Duration::from_secs(1);

/// A name without an address is looked up again after this long, then after longer.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
    /// development identity. False: there is no place for it, so that it is answered and not called. A view that knows better does nothing.
    fn introduce(&self, _member: &str, _peer: SocketAddr) -> bool {
        true
    }

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

/// More nodes were named than a view takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given} nodes were named: a node is told of {MAX_PEERS} others at most; the rest may be met by being told of this one"
)]
pub struct TooManyPeers {
    /// How many there were, each counted once.
    pub given: usize,
}

/// The nodes that were named at the start, and those that have come to them since, one address for each member. Who was named is never
/// forgotten: one that is away is tried again. Who came by is forgotten when there has been no link to it for a minute, so that nodes that
/// come back at other ports do not fill the view; there are 64 of all at most, and who comes then is answered and not called.
///
/// Behind a [name](Self::look_up) there may be several nodes. It is looked up again while there is none, and when one of them is away:
/// then those that are found are the name's, and of the others those that can still be reached.
#[derive(Clone, Debug)]
pub struct Static {
    known: Arc<Known>,
}

#[derive(Debug, Default)]
struct Known {
    view: watch::Sender<Arc<View>>,
    parts: Mutex<Parts>,
    /// Told when a node cannot be reached.
    away: Arc<Notify>,
    /// Whoever looks names up.
    looking: Mutex<Vec<AbortHandle>>,
}

/// What a view is made of.
#[derive(Debug, Default)]
struct Parts {
    named: Vec<SocketAddr>,
    /// The names with the addresses behind them.
    names: Vec<(NodeAddress, Vec<SocketAddr>)>,
    /// Those who came by, with their members' names.
    introduced: Vec<(SocketAddr, String)>,
    /// Those behind names that could not be reached since these were looked up.
    away: HashSet<SocketAddr>,
}

impl Parts {
    /// All of them, each once.
    fn peers(&self) -> Vec<SocketAddr> {
        let behind_names = self.names.iter().flat_map(|(_, addresses)| addresses);
        let introduced = self.introduced.iter().map(|(peer, _)| peer);
        let mut known = HashSet::new();
        let all = self.named.iter().chain(behind_names).chain(introduced).copied();
        all.filter(|peer| known.insert(*peer)).collect()
    }

    fn introduce(&mut self, member: &str, peer: SocketAddr) -> bool {
        // Where it was before, it is no more.
        self.introduced.retain(|(address, name)| member.is_empty() || name != member || *address == peer);
        let peers = self.peers();
        if peers.contains(&peer) {
            return true;
        }
        let has_place = peers.len() < MAX_PEERS;
        if has_place {
            self.introduced.push((peer, member.to_owned()));
        }
        has_place
    }

    fn missing(&mut self, peer: SocketAddr, lasting: Duration) {
        if lasting >= FORGOTTEN_AFTER {
            self.introduced.retain(|(address, _)| *address != peer);
        }
        if self.names.iter().any(|(_, addresses)| addresses.contains(&peer)) {
            self.away.insert(peer);
        }
    }

    /// A name was looked up. What answers may be a part of all that there are: who can be reached stays. Says whether all had a place.
    fn found(&mut self, name: usize, found: Vec<SocketAddr>) -> bool {
        let Self { names, away, .. } = self;
        let addresses = &mut names[name].1;
        addresses.retain(|address| !away.remove(address) && !found.contains(address));
        addresses.extend(found);
        addresses.truncate(MAX_PEERS + 1);
        let named = self.named.len() + self.names.iter().map(|(_, addresses)| addresses.len()).sum::<usize>();
        named <= MAX_PEERS
    }
}

impl Known {
    /// Changes the parts, and with them the view.
    fn change<T>(&self, change: impl FnOnce(&mut Parts) -> T) -> T {
        let mut parts = self.parts.lock();
        let changed = change(&mut parts);
        let mut peers = parts.peers();
        peers.truncate(MAX_PEERS);
        self.view.send_if_modified(|view| {
            let is_other = view.peers != peers;
            if is_other {
                *view = Arc::new(View { peers });
            }
            is_other
        });
        changed
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        self.looking.get_mut().drain(..).for_each(|looking| looking.abort());
    }
}

impl Static {
    /// These nodes.
    ///
    /// # Errors
    ///
    /// More than 64 of them.
    pub fn try_new(peers: impl IntoIterator<Item = SocketAddr>) -> Result<Self, TooManyPeers> {
        let known = Known::default();
        known.change(|parts| {
            parts.named = peers.into_iter().collect();
            check_count(parts.peers().len())
        })?;
        Ok(Self { known: Arc::new(known) })
    }

    /// These nodes, of which some are known by names. Names are looked up from now on, until the last handle on the view is dropped; one
    /// that has no address is no error, but a warning in the log: it may get one.
    ///
    /// # Errors
    ///
    /// More than 64 of them.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn look_up(peers: impl IntoIterator<Item = NodeAddress>) -> Result<Self, TooManyPeers> {
        let (mut addresses, mut names) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer.address() {
                Some(address) => addresses.push(address),
                None if names.contains(&peer) => {}
                None => names.push(peer),
            }
        }
        let view = Self::try_new(addresses)?;
        check_count(view.known.parts.lock().peers().len() + names.len())?;
        view.known.parts.lock().names = names.iter().map(|name| (name.clone(), Vec::new())).collect();
        for (at, name) in names.into_iter().enumerate() {
            let (known, away) = (Arc::downgrade(&view.known), Arc::clone(&view.known.away));
            let looking = keep_looked_up(known, away, at, name.to_string(), move || {
                let name = name.clone();
                async move { name.resolve(LOOK_UP_TIMEOUT).await }
            });
            let looking = tokio::spawn(looking);
            view.known.looking.lock().push(looking.abort_handle());
        }
        Ok(view)
    }
}

fn check_count(given: usize) -> Result<(), TooManyPeers> {
    if given > MAX_PEERS { Err(TooManyPeers { given }) } else { Ok(()) }
}

/// Looks a name up until it has an address, and whenever somebody is away from then on.
async fn keep_looked_up<L>(known: Weak<Known>, away: Arc<Notify>, at: usize, name: String, look_up: impl Fn() -> L)
where
    L: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let (mut pause, mut was_told) = (FIRST_PAUSE, false);
    loop {
        // Before it is looked up: who is away while it is has been looked for at an old address.
        let is_away = away.notified();
        match look_up().await {
            Ok(found) => {
                let Some(known) = known.upgrade() else { return };
                if !known.change(|parts| parts.found(at, found)) {
                    tracing::warn!(%name, "there are more nodes than {MAX_PEERS} behind all names: the rest is not called");
                }
                drop(known);
                (pause, was_told) = (FIRST_PAUSE, false);
                is_away.await;
                tokio::time::sleep(LOOK_UP_EVERY).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut was_told, true) {
                    tracing::warn!(%name, "a node that was named has no address, and is looked for: {error}");
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

impl ClusterView for Static {
    fn watch(&self) -> watch::Receiver<Arc<View>> {
        self.known.view.subscribe()
    }

    fn introduce(&self, member: &str, peer: SocketAddr) -> bool {
        self.known.change(|parts| parts.introduce(member, peer))
    }

    fn missing(&self, peer: SocketAddr, lasting: Duration) {
        self.known.change(|parts| parts.missing(peer, lasting));
        self.known.away.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::*;

    impl Static {
        fn default_with_a_name() -> Self {
            let known = Known::default();
            known.parts.lock().names.push(("node.example:1".parse().unwrap(), Vec::new()));
            Self { known: Arc::new(known) }
        }
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn of(ports: impl IntoIterator<Item = u16>) -> Result<Static, TooManyPeers> {
        Static::try_new(ports.into_iter().map(peer))
    }

    fn peers(view: &Static) -> Vec<SocketAddr> {
        view.watch().borrow().peers.clone()
    }

    #[test]
    fn a_static_view_takes_each_peer_once_and_not_too_many() {
        let view = of([1, 2, 1]).unwrap();
        assert_eq!(peers(&view), [peer(1), peer(2)]);
        let taken = (0..1_000).filter(|port| view.introduce("", peer(*port))).count();
        assert_eq!((taken, peers(&view).len()), (MAX_PEERS, MAX_PEERS));
        // Who is in it already has its place.
        assert!(view.introduce("", peer(1)) && !view.introduce("", peer(1_000)));
    }

    #[test]
    fn more_nodes_than_a_view_takes_are_refused_with_the_limit() {
        assert_eq!(peers(&of((1..=64).chain(1..=64)).unwrap()).len(), 64);
        let error = of(1..=65).unwrap_err();
        assert_eq!(error, TooManyPeers { given: 65 });
        assert!(error.to_string().starts_with("65 nodes were named: a node is told of 64 others at most"), "{error}");
    }

    #[test]
    fn a_member_is_at_one_address_which_is_the_last_it_came_from() {
        let view = of([1]).unwrap();
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
        let view = of([1]).unwrap();
        (2..1_000).for_each(|port| _ = view.introduce("", peer(port)));
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER / 2));
        assert_eq!(peers(&view).len(), MAX_PEERS);
        (1..1_000).for_each(|port| view.missing(peer(port), FORGOTTEN_AFTER));
        assert_eq!(peers(&view), [peer(1)]);
        view.introduce("", peer(7));
        assert_eq!(peers(&view), [peer(1), peer(7)]);
    }

    #[test]
    fn behind_a_name_are_those_who_were_found_and_those_who_can_be_reached() {
        let mut parts = Parts { named: vec![peer(9)], ..Parts::default() };
        parts.names.push(("nodes.example:1".parse().unwrap(), Vec::new()));
        assert!(parts.found(0, vec![peer(1), peer(2), peer(3)]));
        assert_eq!(parts.peers(), [peer(9), peer(1), peer(2), peer(3)]);
        parts.missing(peer(2), Duration::ZERO);
        parts.missing(peer(9), Duration::ZERO);
        // A resolver may tell a part of all that it knows.
        assert!(parts.found(0, vec![peer(4)]));
        assert_eq!(parts.peers(), [peer(9), peer(1), peer(3), peer(4)]);
        assert!(parts.away.is_empty());
        assert!(!parts.found(0, (100..200).map(peer).collect()), "that is more than there is place for");
    }

    #[tokio::test]
    async fn a_node_that_has_no_address_yet_and_one_that_has_moved_are_found_by_their_name() {
        let view = Static::default_with_a_name();
        let asked = AtomicU16::new(0);
        let looking =
            keep_looked_up(Arc::downgrade(&view.known), view.known.away.clone(), 0, "node".to_owned(), || {
                let found = match asked.fetch_add(1, Ordering::SeqCst) {
                    0 => Err(io::ErrorKind::NotFound.into()),
                    nth => Ok(vec![peer(nth)]),
                };
                std::future::ready(found)
            });
        let moving = async {
            let mut views = view.watch();
            views.wait_for(|view| view.peers == [peer(1)]).await.expect("a view");
            // Told again and again, as whoever tries to reach it does.
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
                () = looking => panic!("it goes on"),
                () = moving => {}
            }
        });
        found.await.expect("it was found");
        assert_eq!(asked.into_inner(), 3, "not while all are there");
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_stands_for_all_that_is_behind_it() {
        let named: NodeAddress = "localhost:4433".parse().unwrap();
        let view = Static::look_up([named.clone(), named, "127.0.0.2:1".parse().unwrap()]).unwrap();
        let mut views = view.watch();
        let found = views.wait_for(|view| view.peers.contains(&peer(4433)));
        tokio::time::timeout(Duration::from_secs(60), found).await.expect("it was found").unwrap();
        assert_eq!(peers(&view)[0], SocketAddr::from(([127, 0, 0, 2], 1)));
    }
}
