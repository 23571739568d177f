//! A connection to a node, after hello and welcome.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use callboard_codec::wire::{FrameKind, FrameLimits, Hello, ResetCode, Unreachable, VERSION, Welcome, frame_head};
use callboard_core::{CallError, Deadline};
use callboard_identity::{Clock, Identity, Member, Validity};
use parking_lot::Mutex;
use quinn::{Connection, ConnectionError, RecvStream};

use super::coalesce::{Coalescer, LargeReplyNames};
use crate::endpoint::{StartError, Transport, code, peer_member, port_closes};
use crate::link::Link;
use crate::membership::{GossipHandle, GossipLink, features};
use crate::offers::{ACTORS, MAX_OFFERS_BYTES, OfferScreening, Offers, StageOffer};
use crate::own_address::OwnAddress;
use crate::refusal::{RefusalReason, explained};
use crate::stream::{FrameReceiver, FrameSender};
use crate::wire::too_large;

/// A connection that carries calls.
#[derive(Debug)]
pub(crate) struct NodeConnection {
    connection: Connection,
    welcome: Welcome,
    /// The node's latest offers.
    offers: ArcSwap<Offers>,
    /// The index of the stream that brought them.
    newest_offers: Mutex<Option<u64>>,
    /// The node's member name.
    member: String,
    screening: OfferScreening,
    is_draining: AtomicBool,
    /// Mirrors `connection.close_reason()`. Reading that takes quinn's connection lock, on which calls would contend.
    is_closed: AtomicBool,
    /// Sends small calls.
    coalescer: Coalescer,
    /// Calls with large replies, which do not share streams.
    large_replies: LargeReplyNames,
    /// Its calls in hand.
    link: Arc<Link>,
    /// After this a new connection is made. It follows from the certificate that expires first.
    retires: SystemTime,
    /// After this the connection is not used for new calls: half-way from `retires` to `ends`.
    stale_after: SystemTime,
    /// The connection closes: a certificate expires.
    ends: SystemTime,
    clock: Clock,
    /// Gossip with the node, if both do.
    gossip: Option<GossipLink>,
    /// The address of this process, if it is a node.
    own_address: Option<Arc<OwnAddress>>,
    /// The stream of the hello, open as long as the connection is wanted.
    _control: (FrameSender, FrameReceiver),
}

/// The fields of this process's hello; empty for clients that are not nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnHello {
    pub(crate) node: String,
    pub(crate) generation: u64,
    /// The address at which peers reach this node.
    pub(crate) address: Option<Arc<OwnAddress>>,
    /// Its membership, if it gossips.
    pub(crate) gossip: Option<GossipHandle>,
}

/// The reason why there is no connection to an address.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ConnectFailure {
    /// No node takes calls there now. It may come later.
    #[error("{address}: {reason}")]
    Absent { address: SocketAddr, reason: String },
    /// The node refuses this process. Waiting does not help.
    #[error("{address} refused: {reason}")]
    Refused { address: SocketAddr, reason: String },
    /// A newer process of this node's name is connected there.
    #[error("{address} refused: {}", RefusalReason::StaleGeneration.explained())]
    Stale { address: SocketAddr },
    /// The client is closed.
    #[error("the client is closed")]
    Closed,
}

impl NodeConnection {
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The name of its member in gossip, if both gossip.
    pub(crate) fn gossip_name(&self) -> Option<&str> {
        self.gossip.as_ref().map(GossipLink::member)
    }

    pub(crate) fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    pub(super) fn coalescer(&self) -> &Coalescer {
        &self.coalescer
    }

    pub(super) fn large_replies(&self) -> &LargeReplyNames {
        &self.large_replies
    }

    /// Its calls in hand, and whether its node is silent.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// The number of calls that wait to be sent, and of streams that are open for calls.
    #[cfg(feature = "testing")]
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.coalescer.waiting(), self.link.open_streams())
    }

    /// Checks the size of an input against the node's limit.
    pub(super) fn check_input(&self, bytes: usize) -> Result<(), CallError> {
        let limit = self.welcome.max_body_bytes;
        if limit > 0 && bytes as u64 > limit {
            return Err(too_large(format!("the input has {bytes} bytes: the node takes {limit} (max_body_bytes)")));
        }
        Ok(())
    }

    /// The timeout of calls of this route without their own deadline: the route's, or the node's.
    pub(super) fn default_timeout(&self, route: &str) -> Duration {
        let of_route = self.offers.load().timeout(route);
        let of_node = || Some(self.welcome.timeout_millis).filter(|millis| *millis > 0).map(Duration::from_millis);
        of_route.or_else(of_node).unwrap_or(Deadline::DEFAULT_TIMEOUT).min(Deadline::MAX_TIMEOUT)
    }

    /// Whether this route, or the function of this name, answers with a stream.
    pub(super) fn is_streaming(&self, route: &str) -> bool {
        self.offers.load().is_streaming(route)
    }

    /// Whether every stage of this route, or of the function of this name, may run again.
    pub(super) fn may_run_again(&self, route: &str) -> bool {
        self.offers.load().may_run_again(route)
    }

    /// The stages that the node offers.
    pub(crate) fn offered_stages(&self) -> Vec<String> {
        self.offers.load().stages()
    }

    pub(crate) fn stage_offer(&self, stage: &str) -> Option<StageOffer> {
        self.offers.load().stage(stage)
    }

    /// Whether the node takes questions to its actors; older ones have none.
    pub(crate) fn has_actors(&self) -> bool {
        self.welcome.features.iter().any(|feature| feature == ACTORS)
    }

    /// Whether the node publishes this actor.
    pub(crate) fn offers_actor(&self, actor: &str) -> bool {
        self.has_actors() && self.offers.load().has_actor(actor)
    }

    /// Whether the node has keyed actors, and has joined the others.
    pub(crate) fn has_kinds(&self) -> bool {
        self.has_actors() && self.offers.load().has_kinds()
    }

    /// Whether it takes new calls.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_draining.load(Ordering::Acquire) && !self.is_closed.load(Ordering::Acquire) && !self.is_stale()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether a certificate is about to expire: a new connection should have replaced this one.
    pub(crate) fn is_stale(&self) -> bool {
        self.clock.now() >= self.stale_after
    }

    /// Completes when a new connection should replace this one, with certificates that are valid for longer.
    pub(crate) async fn retired(&self) {
        self.clock.sleep_until(self.retires).await;
    }

    /// Connects, and exchanges hello and welcome.
    pub(crate) async fn open(
        transport: &Transport,
        address: SocketAddr,
        (hello, screening): (&OwnHello, &OfferScreening),
        limit: Duration,
    ) -> Result<Arc<Self>, ConnectFailure> {
        let absent = |reason: String| ConnectFailure::Absent { address, reason };
        let connecting = transport.connect(address).map_err(|error| match error {
            StartError::Identity(error) => ConnectFailure::Refused { address, reason: error.to_string() },
            StartError::Connect(error) => absent(error.to_string()),
        })?;
        let own = transport.identity().validity();
        let connected = async {
            let connection = connecting.await.map_err(|error| ConnectFailure::new(address, &error))?;
            Self::greet(transport, connection, address, (hello, screening), own).await
        };
        tokio::select! {
            biased;
            connected = connected => connected,
            // A node that is leaving may still have its port when it is first asked.
            error = port_closes(address) => Err(absent(error.to_string())),
            () = tokio::time::sleep(limit) => Err(absent(format!("no answer within {limit:?}"))),
        }
    }

    async fn greet(
        transport: &Transport,
        connection: Connection,
        address: SocketAddr,
        (hello, screening): (&OwnHello, &OfferScreening),
        own: Validity,
    ) -> Result<Arc<Self>, ConnectFailure> {
        let identity = transport.identity();
        let theirs = peer_member(&connection);
        if theirs.as_ref().is_some_and(|member| identity.is_removed(member)) {
            RefusalReason::RemovedMember.close(&connection);
            return Err(ConnectFailure::Refused { address, reason: RefusalReason::RemovedMember.explained() });
        }
        transport.issuers().meet(&connection, address);
        let (control, welcome, body) = exchange_hello(&connection, address, identity, hello).await?;
        let member = theirs.as_ref().map(|member| member.name.clone()).unwrap_or_default();
        let offers = Offers::read(body, member.clone(), Arc::clone(&screening.rules)).await;
        screening.report(address, &member, &offers, &Offers::default());
        let link = Arc::new(Link::dialled(transport.tuning()));
        let coalescer = Coalescer::spawn(transport.runtime(), connection.clone(), Arc::clone(&link));
        let gossip = hello.gossip.as_ref().and_then(|gossip| {
            let link = gossip.link((&member, &welcome.member, &welcome.features), &connection, &link);
            // A connection to this node itself, which has no link, shows no address at which others reach it.
            if link.is_some() {
                gossip.observed(&welcome.observed);
            }
            link
        });
        let clock = identity.clock();
        let (retires, ends) = retirement(&own, theirs.as_ref().map(|member| &member.validity), clock.now());
        let node = Arc::new(Self {
            connection,
            offers: ArcSwap::from_pointee(offers),
            newest_offers: Mutex::default(),
            member,
            screening: screening.clone(),
            is_draining: AtomicBool::new(welcome.draining),
            welcome,
            is_closed: AtomicBool::new(false),
            coalescer,
            large_replies: LargeReplyNames::default(),
            link,
            retires,
            stale_after: retires + ends.duration_since(retires).unwrap_or_default() / 2,
            ends,
            clock,
            gossip,
            own_address: hello.address.clone(),
            _control: control,
        });
        transport.runtime().spawn(watch(Arc::downgrade(&node), node.connection.clone(), identity.clone(), theirs));
        Ok(node)
    }
}

impl Drop for NodeConnection {
    fn drop(&mut self) {
        self.connection.close(code(ResetCode::Done), b"");
    }
}

/// Sends the hello and reads the welcome with its body, the node's offers.
async fn exchange_hello(
    connection: &Connection,
    address: SocketAddr,
    identity: &Identity,
    own: &OwnHello,
) -> Result<((FrameSender, FrameReceiver), Welcome, bytes::Bytes), ConnectFailure> {
    let left = || match connection.close_reason() {
        Some(error) => ConnectFailure::new(address, &error),
        None => ConnectFailure::Absent { address, reason: "the node left during the hello".to_owned() },
    };
    let refused = |reason: String| ConnectFailure::Refused { address, reason };
    let (send, receive) = connection.open_bi().await.map_err(|error| ConnectFailure::new(address, &error))?;
    let limits = FrameLimits { max_body_bytes: MAX_OFFERS_BYTES, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (FrameSender::new(send), FrameReceiver::new(receive, limits));
    let hello = Hello {
        min_version: 1,
        max_version: VERSION,
        cluster: identity.cluster().to_owned(),
        node: own.node.clone(),
        generation: own.generation,
        address: own.address.as_ref().map(|address| address.current().to_string()).unwrap_or_default(),
        build: env!("CARGO_PKG_VERSION").to_owned(),
        features: features(own.gossip.as_ref()),
        member: own.gossip.as_ref().map(|gossip| gossip.name().to_owned()).unwrap_or_default(),
    };
    let head = frame_head(FrameKind::Hello, 0, &hello, 0).map_err(|error| refused(error.to_string()))?;
    outgoing.write(&mut [head]).await.map_err(|_| left())?;
    let head = match incoming.next_head().await {
        Ok(Some(head)) if head.kind == FrameKind::Welcome => head,
        Ok(_) => return Err(refused("no welcome".to_owned())),
        Err(_) => return Err(left()),
    };
    let welcome: Welcome = head.header().map_err(|error| refused(error.to_string()))?;
    if !(hello.min_version..=hello.max_version).contains(&welcome.version) {
        return Err(refused(format!("it answers in version {}, which was not offered", welcome.version)));
    }
    let body = incoming.short_body(&head).await.map_err(|_| left())?;
    Ok(((outgoing, incoming), welcome, body))
}

/// The time at which a connection is to be replaced, and the time of its end. A connection made after the first is kept
/// until its end: there is no better certificate yet.
fn retirement(own: &Validity, theirs: Option<&Validity>, now: SystemTime) -> (SystemTime, SystemTime) {
    let sooner = theirs.filter(|theirs| theirs.not_after < own.not_after).unwrap_or(own);
    let ends = sooner.not_after;
    let retires = ends - sooner.life() / 6;
    (if retires > now { retires } else { ends }, ends)
}

/// Receives the node's notices, and closes the connection when its node is lost, its member is removed, or a
/// certificate expires.
async fn watch(node: Weak<NodeConnection>, connection: Connection, identity: Identity, member: Option<Member>) {
    let kept = node.upgrade().map(|node| (node.ends, node.clock, Arc::clone(&node.link)));
    let Some((ends, clock, link)) = kept else { return };
    tokio::select! {
        () = receive_notices(node.clone(), &connection) => {}
        end = link.watch(&connection) => end.close(&connection),
        () = identity.until_removed(member.as_ref()) => RefusalReason::RemovedMember.close(&connection),
        () = clock.sleep_until(ends) => RefusalReason::OutlivedCertificate.close(&connection),
    }
    if let Some(node) = node.upgrade() {
        node.is_closed.store(true, Ordering::Release);
    }
}

/// Receives each notice in a task of its own, so that an incomplete one delays no other. The limit of one-way streams
/// bounds their number.
async fn receive_notices(node: Weak<NodeConnection>, connection: &Connection) {
    while let Ok(stream) = connection.accept_uni().await {
        tokio::spawn(receive_notice(node.clone(), stream));
    }
}

async fn receive_notice(node: Weak<NodeConnection>, stream: RecvStream) {
    let index = stream.id().index();
    let limits = FrameLimits { max_body_bytes: MAX_OFFERS_BYTES, ..FrameLimits::default() };
    let mut incoming = FrameReceiver::new(stream, limits);
    let Ok(Some(head)) = incoming.next_head().await else { return };
    let Ok(body) = incoming.short_body(&head).await else { return };
    let Some(node) = node.upgrade() else { return };
    match head.kind {
        FrameKind::Goaway => node.is_draining.store(true, Ordering::Release),
        FrameKind::Offers => {
            let (member, rules) = (node.member.clone(), Arc::clone(&node.screening.rules));
            let offers = Arc::new(Offers::read(body, member, rules).await);
            let mut newest = node.newest_offers.lock();
            // A later list may have arrived earlier.
            if newest.is_none_or(|newest| newest < index) {
                *newest = Some(index);
                node.screening.report(node.connection.remote_address(), &node.member, &offers, &node.offers.load());
                node.offers.store(offers);
                node.screening.changed.notify_one();
            }
        }
        FrameKind::Gossip => {
            if let Some(gossip) = &node.gossip {
                gossip.received(body);
            }
        }
        FrameKind::Unreachable => {
            if let (Some(own), Ok(report)) = (&node.own_address, head.header::<Unreachable>()) {
                own.unreachable(node.connection.remote_address(), &report);
            }
        }
        // A notice of a later version.
        _ => {}
    }
}

impl ConnectFailure {
    /// Why the address cannot be connected: no node answers there, or it refuses this one. `None` if the cause is on
    /// this side.
    pub(crate) fn of_address(&self) -> Option<&str> {
        match self {
            Self::Absent { reason, .. } | Self::Refused { reason, .. } => Some(reason),
            Self::Stale { .. } | Self::Closed => None,
        }
    }

    fn new(address: SocketAddr, error: &ConnectionError) -> Self {
        let refused = |reason: String| Self::Refused { address, reason };
        if let Some(reason) = RefusalReason::from_tls(error) {
            return refused(reason.explained());
        }
        let ConnectionError::ApplicationClosed(close) = error else {
            return Self::Absent { address, reason: error.to_string() };
        };
        let word = String::from_utf8_lossy(&close.reason).into_owned();
        let is_transient = RefusalReason::from_word(&word).is_some_and(RefusalReason::is_transient);
        match ResetCode::from_number(close.error_code.into_inner()) {
            Some(ResetCode::Refused) if is_transient => Self::Absent { address, reason: explained(&word) },
            Some(ResetCode::Refused) => refused(explained(&word)),
            Some(ResetCode::StaleGeneration) => Self::Stale { address },
            _ => Self::Absent { address, reason: format!("closed: {}", explained(&word)) },
        }
    }
}
