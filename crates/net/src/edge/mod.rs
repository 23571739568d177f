//! The QUIC edge: the door for clients and peers.
//!
//! Everything is refused as early as possible: a wrong certificate in the handshake, another cluster or version in the
//! hello, a call without a permit before its body is read. A refusal tells the caller that nothing was started. Streams
//! are answered on the node's runtime, connections kept alive on the endpoint's own thread.
//!
//! When the node is full, calls are answered `overloaded`; a peer at its limit of open streams waits on its own side;
//! when a stream is reset, its calls are cancelled.

mod answer;
mod arrivals;
mod connection;
mod exchange;
mod fault;
mod half_open;
mod issuing;
mod metrics;
mod notices;
mod offers;
mod open;
mod pace;
mod receiving;
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
use callboard_core::timeline::CallTracer;
use callboard_core::{CallError, LocalClient};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use self::arrivals::Arrivals;
use self::half_open::HalfOpen;
use self::issuing::Issuing;
use self::metrics::EdgeMetrics;
use self::notices::Notices;
use self::open::Open;
use crate::client::{Greeting, too_large};
use crate::cluster::{Asking, ClusterView, OfferRules};
use crate::endpoint::{BindError, Transport, Tuning, Window, Windows, code};
use crate::identity::{Identity, Role, keep_removals};

/// How long a caller may take to hear that it is to go elsewhere; one that is gone does not hold up the end.
const GOAWAY_HEARD: Duration = Duration::from_secs(1);

/// While the node has calls of its own in hand, which may ask peers, it is looked this often whether they are over.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long the last packets of the end may take to leave.
const LAST_PACKETS: Duration = Duration::from_millis(500);

/// Limits and timeouts of the QUIC edge.
///
/// ```
/// use callboard_net::NetConfig;
///
/// let config = NetConfig { node: "worker-1".to_owned(), max_connections: 64, ..NetConfig::default() };
/// assert_eq!(config.max_connections_per_member, 256);
/// ```
#[derive(Clone, Debug)]
pub struct NetConfig {
    /// The name under which the node is known to its peers. Default: empty, a node without a name.
    pub node: String,
    /// The most connections. Default 1,024. Threat: memory; an idle one takes some tens of KiB. Further ones are
    /// refused after the hello. Joins and renewals do not count. Clients leave an eighth to nodes.
    pub max_connections: usize,
    /// The most connections of one member of a cluster, by the name in its certificate. Default 256. Threat: one client
    /// that takes all of them. Raise it if many processes share one identity.
    pub max_connections_per_member: usize,
    /// The longest time for a handshake and the hello after it. Default 5 s. Threat: connections that say nothing.
    pub hello_timeout: Duration,
    /// How long a stream may be open without a call on it. Default 10 s; then a stream that never had a call is reset,
    /// and one whose calls were answered is ended. Threat: streams that are opened and not used.
    pub head_timeout: Duration,
    /// The time over which [`min_bytes_per_second`](Self::min_bytes_per_second) of a body is measured. Default 10 s;
    /// then the stream is reset. Threat: bodies that stop half-way and hold permits. The call's own deadline applies as
    /// well.
    pub body_progress_timeout: Duration,
    /// The longest time for a body, whatever its pace and whatever deadline its caller asks for. Default 60 s, as over
    /// HTTP; then the stream is reset. Threat: bodies that come at the least rate and hold a permit for hours. Raise it
    /// for large bodies over slow lines.
    pub body_timeout: Duration,
    /// The same for the reading of an answer, while there are bytes to read. Default 30 s; then the stream is reset.
    /// Threat: answers that nobody reads. A stream whose reader gives no credit has nothing to write, and waits until
    /// its deadline.
    pub write_progress_timeout: Duration,
    /// The least rate at which a caller has to send a body and read an answer, in bytes per second. Default 1,024; 0
    /// accepts any progress.
    pub min_bytes_per_second: u64,
    /// Limits of frames. Default: headers of 64 KiB, bodies of 64 MiB, of any kind.
    pub frames: FrameLimits,
    /// Largest input of a route in bytes. Default: 64 MiB. Message: `the input has N bytes: /route takes M (max_body_bytes)`.
    pub max_body_bytes: u64,
    /// Limits for single routes, by their paths. Default: none. `frames` bounds them all.
    pub max_body_bytes_by_route: BTreeMap<String, u64>,
    /// Limits of decoding a body.
    pub decode: DecodeLimits,
    /// Which members may offer which stages to this node. Default: any member any stage. Threat: a member that offers a
    /// stage of another one and is given its inputs. What is not allowed is passed over, counted and logged.
    pub offers: OfferRules,
    /// Whether a node that connects to this one may run stages for it, too. Default: yes. It is called only at the address
    /// from which it has connected, and shows its certificate there. Off: only the nodes of the view are called.
    pub calls_back: bool,
    /// How often a node of a cluster asks the authority's node which members were removed. Default 60 s: that long a removed
    /// member may go on at a node that was not told before. A node that has the authority's directory looks every second.
    pub removals_every: Duration,
    /// How QUIC is tuned.
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
            offers: OfferRules::default(),
            calls_back: true,
            removals_every: Duration::from_secs(60),
            tuning: Tuning::default(),
        }
    }
}

impl NetConfig {
    /// Whether a route takes an input of so many bytes.
    fn check_input(&self, route: &str, bytes: u64) -> Result<(), CallError> {
        let max = self.max_body_bytes_by_route.get(route).copied().unwrap_or(self.max_body_bytes);
        match bytes > max {
            true => Err(too_large(format!("the input has {bytes} bytes: {route} takes {max} (max_body_bytes)"))),
            false => Ok(()),
        }
    }
}

/// A node's QUIC edge on its socket. Clones share it; when the last one is dropped, every connection is closed.
#[derive(Clone, Debug)]
pub struct QuicEdge {
    serving: Arc<Serving>,
    transport: Arc<Transport>,
    /// Links to peers keep the transport as well; the end of the edge is the end of its connections all the same.
    _closes: Arc<Closes>,
    address: SocketAddr,
}

/// Closes the endpoint when the last handle on the edge is gone.
#[derive(Debug)]
struct Closes(Arc<Transport>);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.endpoint().close(code(ResetCode::Done), b"");
    }
}

/// What all connections share.
#[derive(Debug)]
struct Serving {
    config: NetConfig,
    /// The node, once it has started.
    node: ArcSwapOption<LocalClient>,
    /// Where streams are answered.
    runtime: Handle,
    /// Which incarnation of the node this is: of several under one name the highest is the living one.
    generation: u64,
    /// Who takes part in the traces of calls, if anybody.
    tracer: OnceLock<Arc<dyn CallTracer>>,
    /// What is shown to callers, and what theirs are held against.
    identity: Identity,
    /// The cluster's authority, if this node has it.
    issuing: Option<Issuing>,
    /// Connections that have not said hello.
    half_open: HalfOpen,
    /// Calls whose bodies are on their way.
    arrivals: Arrivals,
    /// What connections may send unread.
    windows: Arc<Windows>,
    draining: AtomicBool,
    connections: Mutex<Vec<Open>>,
    /// Who is told of peers that come by.
    view: OnceLock<Arc<dyn ClusterView>>,
    streams: AtomicUsize,
    quiet: Notify,
    /// Callers that are being told to go elsewhere.
    goaways: Mutex<JoinSet<()>>,
    /// Whether a call was cut off while the node drained, so that its caller must not take it for one that was not started.
    has_cut: AtomicBool,
    metrics: EdgeMetrics,
    /// What was said of those who were refused.
    notices: Notices,
}

impl QuicEdge {
    /// Binds the socket and answers clients that the node is starting, until [`open`](Self::open) provides the node.
    /// Port 0 takes a free port.
    ///
    /// # Errors
    ///
    /// If the address cannot be bound, or the identity may not be used there.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn bind(address: SocketAddr, identity: Identity, config: NetConfig) -> Result<Self, BindError> {
        let issuing = identity.authority().cloned().map(Issuing::new);
        let transport = Transport::serving(address, identity.clone(), &config.tuning, config.tuning.answering())?;
        let local = transport.endpoint().local_addr();
        let address = local.map_err(|source| BindError::Address { address, source })?;
        let windows = Arc::new(Windows::new(&config.tuning));
        let serving = Arc::new(Serving {
            config,
            node: ArcSwapOption::empty(),
            runtime: Handle::current(),
            generation: begun_now(),
            metrics: EdgeMetrics::new(identity.clone(), Arc::clone(&windows)),
            windows,
            identity,
            issuing,
            half_open: HalfOpen::default(),
            arrivals: Arrivals::default(),
            draining: AtomicBool::new(false),
            connections: Mutex::default(),
            view: OnceLock::new(),
            tracer: OnceLock::new(),
            streams: AtomicUsize::new(0),
            quiet: Notify::new(),
            goaways: Mutex::default(),
            has_cut: AtomicBool::new(false),
            notices: Notices::default(),
        });
        let accepting = connection::accept_all(transport.endpoint().clone(), Arc::clone(&serving));
        transport.runtime().spawn(accepting);
        transport.runtime().spawn(offers::tell_offers(Arc::downgrade(&serving)));
        transport.runtime().spawn(open::cut_removed(Arc::downgrade(&serving)));
        let (identity, every) = (serving.identity.clone(), serving.config.removals_every);
        transport.runtime().spawn(keep_removals(identity, transport.endpoint().clone(), every));
        let transport = Arc::new(transport);
        let closes = Arc::new(Closes(Arc::clone(&transport)));
        Ok(Self { serving, transport, _closes: closes, address })
    }

    /// Serves the node's routes from now on.
    pub fn open(&self, node: LocalClient) {
        let limits = node.limits();
        self.serving.arrivals.of_node(&limits);
        self.serving.windows.bound(limits.max_in_flight_bytes / 2);
        self.serving.node.store(Some(Arc::new(node)));
    }

    /// Traces calls whose callers record a trace. Only the first tracer is used.
    pub fn trace_with(&self, tracer: Arc<dyn CallTracer>) {
        let _ = self.serving.tracer.set(tracer);
    }

    pub(crate) fn transport(&self) -> &Arc<Transport> {
        &self.transport
    }

    pub(crate) fn config(&self) -> &NetConfig {
        &self.serving.config
    }

    /// What is counted of the peers that this node asks.
    pub(crate) fn asking(&self) -> &Asking {
        &self.serving.metrics.asking
    }

    /// What this node says of itself to its peers.
    pub(crate) fn greeting(&self) -> Greeting {
        let (node, generation) = (self.serving.config.node.clone(), self.serving.generation);
        Greeting { node, generation, address: Some(self.address) }
    }

    /// Tells `view` of the peers that come by from now on. Once only.
    pub(crate) fn introduce_to(&self, view: Arc<dyn ClusterView>) {
        let _ = self.serving.view.set(view);
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Who is accepted, in words.
    #[must_use]
    pub fn audience(&self) -> String {
        self.serving.identity.audience()
    }

    /// Its metrics, in the text format of OpenMetrics, without the end mark.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.serving.metrics.encode()
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.serving.connections.lock().len()
    }

    /// What closes every connection that is open, without a word to anybody.
    #[cfg(feature = "testing")]
    pub(crate) fn cutter(&self) -> impl Fn() + Send + Sync + 'static {
        let serving = Arc::clone(&self.serving);
        move || serving.connections.lock().iter().for_each(|open| open.connection.close(code(ResetCode::Done), b"cut"))
    }

    /// Streams that are being answered.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.serving.streams.load(Ordering::Acquire)
    }

    /// Tells every caller to go elsewhere. Admitted calls are finished; new ones are refused as not started.
    pub fn drain(&self) {
        if !self.serving.draining.swap(true, Ordering::AcqRel) {
            let connections: Vec<_> =
                self.serving.connections.lock().iter().map(|open| open.connection.clone()).collect();
            let mut telling = self.serving.goaways.lock();
            for connection in connections {
                telling.spawn_on(connection::say_goaway(connection, "draining"), &self.serving.runtime);
            }
        }
    }

    /// Ends in good order: [drains](Self::drain), waits until every caller has heard of it and the last answer is taken, at most
    /// `grace`, and closes. What is left then is cut. Where the node asks peers ([`Cluster`](crate::Cluster)), which it does on the same
    /// socket, the calls that it has by other doors are waited for as well: those doors are to be closed with this one, or before it.
    pub async fn shutdown(self, grace: Duration) {
        self.drain();
        let is_quiet = tokio::time::timeout(grace, self.serving.wait_last_answers()).await.is_ok();
        // Nothing is begun while it drains: what a caller has no answer to was not started, and this is how it knows.
        let is_clean = is_quiet && !self.serving.has_cut.load(Ordering::Acquire);
        let reason = if is_clean { ResetCode::Draining } else { ResetCode::Done };
        let endpoint = self.transport.endpoint();
        endpoint.close(code(reason), b"shut down");
        // A process may end behind this: what is said last is said before.
        let _ = tokio::time::timeout(LAST_PACKETS, endpoint.wait_idle()).await;
    }
}

impl Serving {
    /// The node, if it has started and takes calls on this door.
    fn node(&self) -> Option<Arc<LocalClient>> {
        self.node.load_full()
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// Waits until callers know that they are to go elsewhere, and until all that came from them is answered.
    async fn wait_last_answers(&self) {
        let mut telling = std::mem::take(&mut *self.goaways.lock());
        let all_told = async { while telling.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOAWAY_HEARD, all_told).await;
        // What was sent before it was heard is here a round trip later.
        let round_trip = self.connections.lock().iter().map(|open| open.connection.rtt()).max().unwrap_or_default();
        tokio::time::sleep(round_trip.min(GOAWAY_HEARD)).await;
        self.wait_own_calls().await;
        self.wait_quiet().await;
    }

    /// Waits until nothing that the node has let in by any door can ask a peer: closing would take those calls back, and say of all of
    /// them that they may have run.
    async fn wait_own_calls(&self) {
        let asks_peers = self.view.get().is_some();
        while asks_peers && self.node().is_some_and(|node| node.in_flight() > 0) {
            tokio::time::sleep(LOOK_AGAIN).await;
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

/// A generation: nanoseconds since 1970, and no two of one process the same. Two nodes without names that are started together are still
/// two.
fn begun_now() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX);
    // The closure always gives a value.
    let last = LAST.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last.saturating_add(1))));
    now.max(last.unwrap_or_else(|last| last).saturating_add(1))
}

/// Counts one stream for as long as it is answered.
struct StreamGuard {
    serving: Arc<Serving>,
    /// What its caller may do.
    role: Role,
    /// Of its connection.
    window: Arc<Window>,
}

impl StreamGuard {
    fn new(serving: &Arc<Serving>, role: Role, window: &Arc<Window>) -> Self {
        serving.streams.fetch_add(1, Ordering::AcqRel);
        window.opened();
        Self { serving: Arc::clone(serving), role, window: Arc::clone(window) }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.window.ended();
        if self.serving.streams.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.serving.quiet.notify_waiters();
        }
    }
}
