//! The connections of a client to its nodes: it uses one, and changes to another when a node is lost or refuses calls.
//!
//! Connecting continues when the call that started it leaves; later calls wait for the same outcome. If an address does
//! not answer, the next one is tried as well after a while, so a call need not have time for a handshake with a dead
//! node. No call waits for an address while another connection is usable: a node that refuses calls stays in use until
//! a connection to the next one is made in the background. Connections to nodes that refused are kept, so returning to
//! them is free. When all addresses have failed, the names are resolved again, once, because nodes may move.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use callboard_codec::wire::ResetCode;
use callboard_identity::AddressError;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::connection::{ConnectFailure, NodeConnection, OwnHello};
use crate::endpoint::{LAST_PACKETS, Transport, code};
use crate::offers::OfferScreening;

/// After this part of the connect timeout, the next address is tried as well: a quarter.
const STAGGER: u32 = 4;

/// The pause after no other address has answered, before a refusal causes another try.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// How often a call of a silent node looks for another one.
const REPLACED_POLL: Duration = Duration::from_millis(20);

type ConnectOutcome = Result<Arc<NodeConnection>, ConnectFailure>;

/// Resolves the current addresses of the nodes.
pub(super) type Resolver = Box<dyn Fn() -> BoxFuture<'static, Result<Vec<SocketAddr>, AddressError>> + Send + Sync>;

/// The connections of a client to any of several addresses.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    state: Arc<PoolState>,
    dial: Mutex<Option<Dial>>,
    /// Connects to another address than that of a node that refuses calls.
    turning_away: Mutex<Option<AbortHandle>>,
}

/// An attempt to connect that is in progress.
#[derive(Debug)]
struct Dial {
    outcome: watch::Receiver<Option<ConnectOutcome>>,
    task: AbortHandle,
}

/// The state that attempts to connect share.
struct PoolState {
    connector: Connector,
    nodes: ArcSwap<NodeList>,
    resolver: OnceLock<Resolver>,
}

impl std::fmt::Debug for PoolState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PoolState").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

/// The settings of new connections.
#[derive(Debug)]
struct Connector {
    transport: Arc<Transport>,
    hello: OwnHello,
    connect_timeout: Duration,
}

/// The addresses of nodes, at least one.
#[derive(Debug)]
struct NodeList {
    nodes: Vec<NodeEntry>,
    /// The index of the address that is tried first.
    preferred: AtomicUsize,
}

#[derive(Debug)]
struct NodeEntry {
    address: SocketAddr,
    connection: ArcSwapOption<NodeConnection>,
}

impl ConnectionPool {
    pub(crate) fn new(
        transport: Arc<Transport>,
        addresses: Vec<SocketAddr>,
        hello: OwnHello,
        connect_timeout: Duration,
    ) -> Self {
        let nodes =
            addresses.into_iter().map(|address| NodeEntry { address, connection: ArcSwapOption::empty() }).collect();
        let nodes = ArcSwap::from_pointee(NodeList { nodes, preferred: AtomicUsize::new(0) });
        let connector = Connector { transport, hello, connect_timeout };
        let state = Arc::new(PoolState { connector, nodes, resolver: OnceLock::new() });
        Self { state, dial: Mutex::default(), turning_away: Mutex::default() }
    }

    /// Resolves the names again from now on, when no node answers. Only the first resolver counts.
    pub(super) fn set_resolver(&self, resolver: Resolver) {
        let _ = self.state.resolver.set(resolver);
    }

    /// A usable connection: the current one, or a new one to the first address that answers.
    ///
    /// # Cancellation
    ///
    /// Connecting continues for later calls.
    pub(crate) async fn connection(&self) -> ConnectOutcome {
        if let Some(connection) = self.current() {
            return Ok(connection);
        }
        let mut outcome = self.dial();
        let outcome = outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| Option::clone(&outcome)).unwrap_or_else(|| Err(ConnectFailure::Closed))
    }

    /// The connection that the next call would use, if there is one.
    pub(crate) fn current(&self) -> Option<Arc<NodeConnection>> {
        self.state.nodes.load().current()
    }

    /// Closes all connections, and waits until the nodes have heard of it.
    pub(crate) async fn close(&self) {
        let endpoint = self.state.connector.transport.endpoint();
        endpoint.close(code(ResetCode::Done), b"");
        let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
    }

    /// The number of calls that wait to be sent, and of open streams, over all connections.
    #[cfg(feature = "testing")]
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let nodes = self.state.nodes.load();
        let connections = nodes.nodes.iter().filter_map(|node| node.connection.load_full());
        connections
            .map(|connection| connection.in_flight())
            .fold((0, 0), |(waiting, streams), (w, s)| (waiting + w, streams + s))
    }

    /// Prefers another address, if this connection is still the preferred one: at once if another connection is usable,
    /// else as soon as one is made. One task tries the other addresses, for all refused calls.
    pub(crate) fn turn_away_from(&self, refusing: &Arc<NodeConnection>) {
        let nodes = self.state.nodes.load_full();
        let at = nodes.preferred.load(Ordering::Relaxed);
        let is_preferred =
            nodes.nodes[at].connection.load().as_ref().is_some_and(|preferred| Arc::ptr_eq(preferred, refusing));
        if !is_preferred || nodes.nodes.len() == 1 {
            return;
        }
        if let Some(next) = nodes.others(at).find(|next| nodes.nodes[*next].usable().is_some()) {
            // Fails if another refused call has done the same.
            let _ = nodes.preferred.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
            return;
        }
        let mut turning_away = self.turning_away.lock();
        if turning_away.as_ref().is_none_or(AbortHandle::is_finished) {
            let state = Arc::clone(&self.state);
            let task = self.state.connector.transport.runtime().spawn(async move {
                if nodes.connect_first(&state.connector, nodes.others(at)).await.is_err() {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            });
            *turning_away = Some(task.abort_handle());
        }
    }

    /// Whether there are several addresses.
    pub(super) fn has_alternatives(&self) -> bool {
        self.state.nodes.load().nodes.len() > 1
    }

    /// Completes when the node of this connection is silent and new calls go to another one.
    pub(super) async fn replaced_if_silent(&self, connection: &Arc<NodeConnection>) {
        loop {
            connection.link().silent().await;
            self.turn_away_from(connection);
            if self.current().is_some_and(|current| !Arc::ptr_eq(&current, connection)) {
                return;
            }
            tokio::time::sleep(REPLACED_POLL).await;
        }
    }

    /// The outcome of connecting, which is in progress or starts now.
    fn dial(&self) -> watch::Receiver<Option<ConnectOutcome>> {
        let mut dial = self.dial.lock();
        if let Some(in_progress) = dial.as_ref()
            && in_progress.outcome.borrow().is_none()
            && in_progress.outcome.has_changed().is_ok()
        {
            return in_progress.outcome.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let state = Arc::clone(&self.state);
        let task = self.state.connector.transport.runtime().spawn(async move {
            let outcome = state.connect_any().await;
            sender.send_replace(Some(outcome));
        });
        *dial = Some(Dial { outcome: outcome.clone(), task: task.abort_handle() });
        outcome
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        if let Some(in_progress) = self.dial.get_mut() {
            in_progress.task.abort();
        }
        if let Some(task) = self.turning_away.get_mut() {
            task.abort();
        }
    }
}

impl PoolState {
    /// Tries all addresses, the preferred one first; if all fail, resolves the names and tries the new addresses.
    async fn connect_any(&self) -> ConnectOutcome {
        let nodes = self.nodes.load_full();
        let fault = match nodes.connect_any(&self.connector).await {
            Ok(connection) => return Ok(connection),
            Err(fault) => fault,
        };
        match self.resolve_again(&nodes).await {
            Some(nodes) => nodes.connect_any(&self.connector).await,
            None => Err(fault),
        }
    }

    /// Resolves the names again, within the connect timeout. `None`: the addresses are the same, or unknown.
    async fn resolve_again(&self, before: &NodeList) -> Option<Arc<NodeList>> {
        let resolving = tokio::time::timeout(self.connector.connect_timeout, self.resolver.get()?());
        let found = resolving.await.ok()?.ok()?;
        let known = |address: &SocketAddr| before.nodes.iter().find(|node| node.address == *address);
        let is_same = found.iter().all(|address| known(address).is_some())
            && before.nodes.iter().all(|node| found.contains(&node.address));
        if is_same || found.is_empty() {
            return None;
        }
        // Connections to addresses that stay are kept, also while they drain.
        let nodes = found.iter().map(|address| {
            let connection = known(address).and_then(|node| node.connection.load_full());
            NodeEntry { address: *address, connection: ArcSwapOption::new(connection) }
        });
        let nodes = Arc::new(NodeList { nodes: nodes.collect(), preferred: AtomicUsize::new(0) });
        self.nodes.store(Arc::clone(&nodes));
        Some(nodes)
    }
}

impl NodeList {
    /// A usable connection, to the preferred node if possible.
    fn current(&self) -> Option<Arc<NodeConnection>> {
        let at = self.preferred.load(Ordering::Relaxed);
        let preferred = self.nodes[at].usable();
        preferred.or_else(|| {
            let (next, connection) = self.others(at).find_map(|next| Some((next, self.nodes[next].usable()?)))?;
            self.preferred.store(next, Ordering::Relaxed);
            Some(connection)
        })
    }

    /// The indices of all other nodes, from the next one on.
    fn others(&self, at: usize) -> impl Iterator<Item = usize> + Send + use<> {
        let count = self.nodes.len();
        (1..count).map(move |k| (at + k) % count)
    }

    async fn connect_any(&self, connector: &Connector) -> ConnectOutcome {
        let first = self.preferred.load(Ordering::Relaxed);
        self.connect_first(connector, std::iter::once(first).chain(self.others(first))).await
    }

    /// Tries these nodes until one connects, which is preferred from then on. Each has a head start before the next is
    /// tried.
    async fn connect_first(&self, connector: &Connector, mut untried: impl Iterator<Item = usize>) -> ConnectOutcome {
        let mut trying = FuturesUnordered::new();
        let mut last = ConnectFailure::Closed;
        loop {
            let next = untried.next();
            if let Some(at) = next {
                trying.push(async move { (at, self.connect(connector, at).await) });
            }
            let headstart = async {
                match next {
                    Some(_) => tokio::time::sleep(connector.connect_timeout / STAGGER).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                tried = trying.next() => match tried {
                    Some((at, Ok(connection))) => {
                        self.preferred.store(at, Ordering::Relaxed);
                        return Ok(connection);
                    }
                    Some((_, Err(error))) => last = error,
                    None => return Err(last),
                },
                () = headstart => {}
            }
        }
    }

    /// The usable connection to a node, or a new one.
    async fn connect(&self, connector: &Connector, at: usize) -> ConnectOutcome {
        let node = &self.nodes[at];
        let address = node.address;
        let draining = || ConnectFailure::Absent { address, reason: "the node is draining".to_owned() };
        if let Some(connection) = node.usable() {
            return Ok(connection);
        }
        // While its connection is open, a draining node takes no calls. A restarted node has closed it.
        let is_draining = |open: &&Arc<NodeConnection>| !open.is_stale() && open.connection().close_reason().is_none();
        if let Some(open) = node.connection.load().as_ref().filter(is_draining) {
            // It may be dead: killed while it drained.
            open.link().probe();
            return Err(draining());
        }
        let introduction = (&connector.hello, &OfferScreening::default());
        let new = NodeConnection::open(&connector.transport, address, introduction, connector.connect_timeout).await?;
        node.connection.store(Some(Arc::clone(&new)));
        if new.is_usable() { Ok(new) } else { Err(draining()) }
    }
}

impl NodeEntry {
    fn usable(&self) -> Option<Arc<NodeConnection>> {
        self.connection.load_full().filter(|connection| connection.is_usable())
    }
}
