//! The QUIC server of a node, for clients and peers.
//!
//! Refusals come as early as possible: a wrong certificate in the handshake, another cluster or version at the hello, a
//! call without a permit before its body is read. A refusal tells the caller that nothing was started. Streams are
//! answered on the node's runtime; the endpoint's thread keeps connections alive.
//!
//! * **Full:** calls are answered `overloaded`; a peer at its limit of open streams waits on its own side.
//! * **Late:** the deadline of a call applies to its body, its run and its answer.
//! * **Cancelled:** resetting a stream cancels its calls.

mod answer;
mod connection;
mod connections;
mod dial_back;
mod edge;
mod exchange;
mod fault;
mod half_open;
mod issuing;
mod metrics;
mod offers;
mod orders;
mod own_report;
mod receiving;
mod record;
mod refusal_log;
mod streaming;
mod writing;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use callboard_codec::DecodeLimits;
use callboard_codec::wire::{FrameLimits, ResetCode};
use callboard_core::edge::ErrorTraces;
use callboard_core::remote::NodePhase;
use callboard_core::{CallError, Instant, LocalClient};
use callboard_identity::{Identity, NodeAddress, keep_removals};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::connections::OpenConnection;
pub(crate) use self::dial_back::DialBack;
use self::half_open::HalfOpen;
use self::issuing::Issuer;
use self::metrics::ServerMetrics;
pub(crate) use self::offers::OFFERS_EVERY;
pub use self::orders::ClusterState;
use self::orders::ConnectedCaller;
pub(crate) use self::orders::{ORDERS, StatusOrder};
use self::refusal_log::RefusalLog;
use crate::counter::CountGuard;
use crate::endpoint::{BindError, ConnectionWindow, NodeWindows, Transport, Tuning, code};
use crate::join::{QuicIssuers, spawn_renewal};
use crate::link::Link;
use crate::membership::{GossipHandle, GossipView, MemberId, MembershipProfile};
use crate::metrics::PeerMetrics;
use crate::offers::MemberRules;
use crate::own_address::OwnAddress;
use crate::view::{ClusterView, StaticView};
use crate::wire::too_large;

/// The longest wait for callers to acknowledge a goaway; a caller that is gone does not delay the shutdown.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a shutdown checks whether the node's own calls, which may call peers, are finished.
const OWN_CALLS_POLL: Duration = Duration::from_millis(5);

/// The longest wait until the members know of the drain, and how often that is looked at. A member asks for a report
/// once a second.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(2);
const MEMBERS_POLL: Duration = Duration::from_millis(10);

/// How long the last packets of a shutdown may take.
const LAST_PACKETS: Duration = Duration::from_millis(500);

/// Limits and timeouts of the QUIC server.
///
/// ```
/// use callboard_net::NetConfig;
///
/// let config = NetConfig { node: "worker-1".to_owned(), max_connections: 64, ..NetConfig::default() };
/// assert_eq!(config.max_connections_per_member, 256);
/// ```
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// The node's name for its peers. Default: empty, a node without a name.
    pub node: String,
    /// The most connections. Default 1,024. Threat: memory; an idle one takes some tens of KiB. Further ones are
    /// refused after the hello. Joins and renewals do not count. Clients and operators leave an eighth to nodes.
    pub max_connections: usize,
    /// The most connections of one member of a cluster, by the name in its certificate. Default 256. Threat: one client
    /// that takes all of them. Raise it if many processes share one identity.
    pub max_connections_per_member: usize,
    /// The longest time for a handshake and the hello after it. Default 5 s. Threat: silent connections.
    pub hello_timeout: Duration,
    /// How long a stream may be open without a call on it. Default 10 s; then a stream that never had a call is reset,
    /// and one whose calls were answered is ended. Threat: streams that are opened and not used.
    pub head_timeout: Duration,
    /// The time over which [`min_bytes_per_second`](Self::min_bytes_per_second) of a body is measured. Default 10 s;
    /// then the stream is reset. Threat: bodies that stop half-way and hold permits. The call's own deadline applies as
    /// well.
    pub body_progress_timeout: Duration,
    /// The longest time for a body, at any pace and for any deadline. Default 60 s, as over HTTP; then the stream is
    /// reset. Threat: bodies that arrive at the least rate and hold a permit for hours. Raise it for large bodies over
    /// slow lines.
    pub body_timeout: Duration,
    /// The same for the reading of an answer, while there are bytes to read. Default 30 s; then the stream is reset.
    /// Threat: answers that are not read. A stream without credit from its reader has nothing to write, and waits until
    /// its deadline.
    pub write_progress_timeout: Duration,
    /// The least rate at which a caller must send a body and read an answer, in bytes per second. Default 1,024; 0
    /// accepts any progress.
    pub min_bytes_per_second: u64,
    /// Limits of frames. Default: headers of 64 KiB, bodies of 64 MiB, of any kind.
    pub frames: FrameLimits,
    /// Largest input of a route in bytes. Default: 64 MiB. Message: `the input has N bytes: /route takes M
    /// (max_body_bytes)`.
    pub max_body_bytes: u64,
    /// Limits for single routes, by their paths. Default: none. `frames` bounds them all.
    pub max_body_bytes_by_route: BTreeMap<String, u64>,
    /// Limits of decoding a body.
    pub decode: DecodeLimits,
    /// The stages that each member may offer to this node. Default: any member any stage. Threat: a member that offers
    /// a stage of another one and receives its inputs. A forbidden offer is ignored, counted and logged.
    pub offers: MemberRules,
    /// The actors of this node that each member may ask, tell and watch; a kind of keyed actors is `keyed:<kind>`.
    /// Default: any member any actor that accepts questions. Threat: a member that asks actors of which it should know
    /// nothing. A forbidden question is refused before it is read, as not accepted. Nodes hand keys over whatever this
    /// says.
    pub asks: MemberRules,
    /// Whether a node that connects to this one may also run stages for it. Default: yes. It is called only at the
    /// address that it connected from, and presents its certificate there. Off: only the nodes of the view are called.
    pub calls_back: bool,
    /// Which clients are sent the trace of an error. Default: those of a socket on loopback. Nodes always are: they
    /// keep it from their callers, if they must. Threat: a traceback shows strangers paths, source lines and values.
    pub error_traces: ErrorTraces,
    /// How often a node asks an issuer for the removed members. Default 60 s: a node that does not gossip accepts a
    /// removed member for that long; the others are told by signed lists. An issuer's node reads its directory every
    /// second.
    pub removals_every: Duration,
    /// Whether this node is a member of a cluster by gossip, and how soon it notices deaths. Default: it is none, and
    /// knows only the nodes that are named and that connect. [`QuicEdge::view`] is the view of all members.
    pub membership: Option<MembershipProfile>,
    /// How long a node with keyed actors that joins others waits for them before it has keys. Default 5 s; then it goes
    /// on with the nodes that it has seen, perhaps alone, and says so in the log. Its questions to keyed actors wait
    /// meanwhile, each within its deadline.
    pub join_within: Duration,
    /// The address at which other nodes reach this one, where it is not the one that they see: behind an address
    /// translation. A name is resolved at the start, and again when another node cannot connect there.
    pub advertise: Option<NodeAddress>,
    /// The settings of QUIC.
    pub tuning: Tuning,
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            node: String::new(),
            max_connections: 1024,
            max_connections_per_member: 256,
            hello_timeout: Duration::from_secs(5),
            head_timeout: Duration::from_secs(10),
            body_progress_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            write_progress_timeout: Duration::from_secs(30),
            min_bytes_per_second: 1024,
            frames: FrameLimits::default(),
            max_body_bytes: 64 << 20,
            max_body_bytes_by_route: BTreeMap::new(),
            decode: DecodeLimits::default(),
            offers: MemberRules::default(),
            asks: MemberRules::default(),
            calls_back: true,
            error_traces: ErrorTraces::default(),
            removals_every: Duration::from_secs(60),
            membership: None,
            join_within: Duration::from_secs(5),
            advertise: None,
            tuning: Tuning::default(),
        }
    }
}

impl NetConfig {
    /// Checks the size of an input against the limit of its route.
    fn check_input(&self, route: &str, bytes: u64) -> Result<(), CallError> {
        let max = self.max_body_bytes_by_route.get(route).copied().unwrap_or(self.max_body_bytes);
        if bytes > max {
            return Err(too_large(format!("the input has {bytes} bytes: {route} takes {max} (max_body_bytes)")));
        }
        Ok(())
    }
}

/// A node's QUIC server on its socket. Clones share it; dropping the last one closes every connection.
#[derive(Clone, Debug)]
pub struct QuicEdge {
    server: Arc<ServerState>,
    transport: Arc<Transport>,
    /// Connections to peers hold the transport as well, but the end of the server closes all of them.
    _close: Arc<CloseOnDrop>,
    address: SocketAddr,
}

/// Closes the endpoint when the last handle of the server is dropped.
#[derive(Debug)]
struct CloseOnDrop(Arc<Transport>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.endpoint().close(code(ResetCode::Done), b"");
    }
}

/// The state that all connections share.
#[derive(Debug)]
struct ServerState {
    config: NetConfig,
    /// Whether clients are sent the trace of an error.
    sends_traces: bool,
    /// The node, once it has started.
    node: ArcSwapOption<LocalClient>,
    /// Answers streams.
    runtime: Handle,
    /// The generation of this process: of several under one name, the highest is the live one.
    generation: u64,
    identity: Identity,
    /// The cluster's authority, if this node has it.
    issuer: Option<Issuer>,
    /// Connections before their hello.
    half_open: HalfOpen,
    windows: Arc<NodeWindows>,
    is_draining: AtomicBool,
    connections: Mutex<Vec<OpenConnection>>,
    /// Its membership, if it gossips.
    gossip: Option<GossipHandle>,
    /// The address that it tells other nodes.
    own_address: Arc<OwnAddress>,
    /// What it told or shows of itself last, and since when.
    phase: Mutex<(NodePhase, u64)>,
    /// Notified when the drain begins.
    drains: Arc<Notify>,
    /// Receives introductions of nodes that connect.
    view: OnceLock<Arc<dyn ClusterView>>,
    streams: AtomicUsize,
    quiet: Notify,
    /// The goaways that are being sent.
    goaways: Mutex<JoinSet<()>>,
    /// Whether a call was cut off during the drain: its caller must not conclude that it was not started.
    has_cut: AtomicBool,
    /// Whether the program waits for orders to drain.
    takes_drain_orders: AtomicBool,
    drain_asked: Notify,
    metrics: ServerMetrics,
    refusal_log: RefusalLog,
}

impl QuicEdge {
    /// Binds the socket. Clients are told that the node is starting, until [`open`](Self::open) provides the node. Port
    /// 0 takes a free port.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or the identity may not be used there.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind(address: SocketAddr, identity: Identity, config: NetConfig) -> Result<Self, BindError> {
        let issuer = identity.authority().cloned().map(Issuer::new);
        let advertised = config.advertise.as_ref().and_then(NodeAddress::address);
        advertised.map_or(Ok(()), |advertised| identity.check_address(advertised))?;
        let transport = Transport::serving(address, identity.clone(), &config.tuning, config.tuning.answering())?;
        let local = transport.endpoint().local_addr();
        let address = local.map_err(|error| BindError::Address { address, error })?;
        let windows = Arc::new(NodeWindows::new(&config.tuning));
        let sends_traces = config.error_traces.are_sent(address.ip().to_canonical().is_loopback());
        let generation = new_generation();
        let gossip = config.membership.map(|profile| {
            let address = advertised.unwrap_or(address);
            let own = MemberId { name: gossip_name(&identity), address, generation, bump: 0 };
            GossipHandle::start(own, profile, identity.clone(), transport.runtime())
        });
        let metrics = gossip.as_ref().map(|gossip| gossip.metrics().clone()).unwrap_or_default();
        let own_address =
            OwnAddress::new(address, config.advertise.as_ref(), gossip.clone(), &identity, transport.runtime());
        let server = Arc::new(ServerState {
            config,
            sends_traces,
            node: ArcSwapOption::empty(),
            runtime: Handle::current(),
            generation,
            metrics: ServerMetrics::new(identity.clone(), Arc::clone(&windows), &metrics),
            gossip,
            own_address,
            phase: Mutex::default(),
            drains: Arc::default(),
            windows,
            identity,
            issuer,
            half_open: HalfOpen::default(),
            is_draining: AtomicBool::new(false),
            connections: Mutex::default(),
            view: OnceLock::new(),
            streams: AtomicUsize::new(0),
            quiet: Notify::new(),
            goaways: Mutex::default(),
            has_cut: AtomicBool::new(false),
            takes_drain_orders: AtomicBool::new(false),
            drain_asked: Notify::new(),
            refusal_log: RefusalLog::default(),
        });
        let accepting = connection::accept_all(transport.endpoint().clone(), Arc::clone(&server));
        transport.runtime().spawn(accepting);
        transport.runtime().spawn(offers::send_offers(Arc::downgrade(&server)));
        transport.runtime().spawn(connections::close_removed(Arc::downgrade(&server)));
        transport.runtime().spawn(own_report::tell_members(Arc::downgrade(&server)));
        let open = Arc::downgrade(&server);
        let connected = move || open.upgrade().map(|server| server.connected_issuers()).unwrap_or_default();
        spawn_renewal(&transport, connected.clone());
        let (identity, every) = (server.identity.clone(), server.config.removals_every);
        let issuers = QuicIssuers::new(&transport, connected);
        transport.runtime().spawn(keep_removals(identity, issuers, every));
        let transport = Arc::new(transport);
        let close = Arc::new(CloseOnDrop(Arc::clone(&transport)));
        Ok(Self { server, transport, _close: close, address })
    }

    /// Serves the node's routes from now on.
    pub fn open(&self, node: LocalClient) {
        self.server.windows.limit_bytes(node.edge().limits().max_in_flight_bytes / 2);
        self.server.node.store(Some(Arc::new(node)));
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    pub(crate) fn config(&self) -> &NetConfig {
        &self.server.config
    }

    /// The counters of calls to peers.
    pub(crate) fn peer_metrics(&self) -> &PeerMetrics {
        &self.server.metrics.peers
    }

    /// The view of all members of the cluster, which the `named` ones know. Without
    /// [`membership`](NetConfig::membership), or if this node calls only the nodes that it has named
    /// ([`calls_back`](NetConfig::calls_back)), it has the named ones.
    #[must_use]
    pub fn view(&self, named: StaticView) -> Arc<dyn ClusterView> {
        match self.gossip().filter(|_| self.server.config.calls_back) {
            Some(gossip) => Arc::new(GossipView::new(named, gossip.members(), self.transport.runtime())),
            None => Arc::new(named),
        }
    }

    /// Its membership, if it gossips.
    pub(crate) fn gossip(&self) -> Option<&GossipHandle> {
        self.server.gossip.as_ref()
    }

    /// The generation of this process.
    pub(crate) fn generation(&self) -> u64 {
        self.server.generation
    }

    /// Introduces the connected nodes, and all later ones, to `view`. Only the first view counts.
    pub(crate) fn introduce_to(&self, view: Arc<dyn ClusterView>) {
        if self.server.view.set(view).is_ok() {
            self.server.introduce_connected();
        }
    }

    /// The address that it tells other nodes.
    pub(crate) fn own_address(&self) -> &Arc<OwnAddress> {
        &self.server.own_address
    }

    /// Tells connected nodes that they cannot be connected.
    pub(crate) fn dial_back(&self) -> DialBack {
        DialBack(Arc::downgrade(&self.server))
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The callers that it accepts, for people.
    #[must_use]
    pub fn audience(&self) -> String {
        self.server.identity.audience()
    }

    /// Its metrics, in the text format of OpenMetrics, without the end mark.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.server.metrics.encode()
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.server.connections.lock().len()
    }

    /// A function that closes every open connection.
    #[cfg(feature = "testing")]
    pub(crate) fn cutter(&self) -> impl Fn() + Send + Sync + 'static {
        let server = Arc::clone(&self.server);
        move || server.connections.lock().iter().for_each(|open| open.connection.close(code(ResetCode::Done), b"cut"))
    }

    /// The number of streams that are being answered.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.server.streams.load(Ordering::Acquire)
    }

    /// Tells every caller to send new calls elsewhere. Admitted calls are finished; new ones are refused as not
    /// started.
    pub fn drain(&self) {
        if !self.server.is_draining.swap(true, Ordering::AcqRel) {
            self.server.drains.notify_one();
            let connections: Vec<_> =
                self.server.connections.lock().iter().map(|open| open.connection.clone()).collect();
            let mut goaways = self.server.goaways.lock();
            for connection in connections {
                goaways.spawn_on(connection::send_goaway(connection, "draining"), &self.server.runtime);
            }
        }
    }

    /// Shuts down: [drains](Self::drain), waits up to `grace` until every caller has acknowledged that and the last
    /// answer is received, and closes. Remaining calls are cut. If the node calls peers ([`Cluster`](crate::Cluster)),
    /// which uses the same socket, this also waits for the calls of other edges: shut those down first, or at the same
    /// time.
    pub async fn shutdown(self, grace: Duration) {
        self.drain();
        let is_quiet = tokio::time::timeout(grace, self.server.wait_last_answers()).await.is_ok();
        // No call starts during a drain, so a caller that sees this code knows that an unanswered call was not started.
        let is_clean = is_quiet && !self.server.has_cut.load(Ordering::Acquire);
        let reason = if is_clean { ResetCode::Draining } else { ResetCode::Done };
        let endpoint = self.transport.endpoint();
        endpoint.close(code(reason), b"shut down");
        // The process may end after this, so the last packets are sent before.
        let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
    }
}

impl ServerState {
    /// The node, once it has started.
    fn node(&self) -> Option<Arc<LocalClient>> {
        self.node.load_full()
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Acquire)
    }

    /// Waits until callers know of the drain, and until all their calls are answered.
    async fn wait_last_answers(&self) {
        let told_until = Instant::now() + MEMBERS_TIMEOUT;
        let mut goaways = std::mem::take(&mut *self.goaways.lock());
        let all_sent = async { while goaways.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOAWAY_TIMEOUT, all_sent).await;
        // Calls that were sent before a caller knew of the drain arrive within a round trip.
        let round_trip = self.connections.lock().iter().map(|open| open.connection.rtt()).max().unwrap_or_default();
        tokio::time::sleep(round_trip.min(GOAWAY_TIMEOUT)).await;
        self.wait_own_calls().await;
        self.wait_quiet().await;
        let _ = tokio::time::timeout_at(told_until, self.wait_told_members()).await;
    }

    /// Waits until the other members know of the drain, for whom this node is down otherwise, and has not left.
    async fn wait_told_members(&self) {
        while self.gossip.as_ref().is_some_and(|gossip| !gossip.is_drain_known()) {
            tokio::time::sleep(MEMBERS_POLL).await;
        }
    }

    /// Waits until no call of the node, by any edge, can call a peer: closing would cut those calls, and report that
    /// they may have run.
    async fn wait_own_calls(&self) {
        let calls_peers = self.view.get().is_some();
        while calls_peers && self.node().is_some_and(|node| node.in_flight() > 0) {
            tokio::time::sleep(OWN_CALLS_POLL).await;
        }
    }

    async fn wait_quiet(&self) {
        loop {
            let quiet = self.quiet.notified();
            if self.streams.load(Ordering::Acquire) == 0 {
                return;
            }
            quiet.await;
        }
    }
}

/// A generation: nanoseconds since 1970, unique within a process, so that two nameless nodes of one process differ.
fn new_generation() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
    // The closure always returns a value.
    let last = LAST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last.saturating_add(1))));
    now.max(last.unwrap_or_else(|last| last).saturating_add(1))
}

/// The name in gossip: that of the certificate, or a random one under the development identity.
fn gossip_name(identity: &Identity) -> Arc<str> {
    match identity.name() {
        name if name.is_empty() => format!("development-{:016x}", fastrand::u64(..)).into(),
        name => name.into(),
    }
}

/// Counts a stream while it is answered.
struct StreamGuard {
    server: Arc<ServerState>,
    caller: Arc<ConnectedCaller>,
    window: Arc<ConnectionWindow>,
    /// Its caller is watched until it has the answer.
    _watched: CountGuard,
}

impl StreamGuard {
    fn new(
        server: &Arc<ServerState>,
        caller: &Arc<ConnectedCaller>,
        window: &Arc<ConnectionWindow>,
        link: &Link,
    ) -> Self {
        server.streams.fetch_add(1, Ordering::AcqRel);
        window.stream_opened();
        let (server, caller, window) = (Arc::clone(server), Arc::clone(caller), Arc::clone(window));
        Self { server, caller, window, _watched: link.begin() }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.window.stream_closed();
        if self.server.streams.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.server.quiet.notify_waiters();
        }
    }
}
