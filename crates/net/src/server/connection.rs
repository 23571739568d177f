//! One connection: its handshake, its hello, its streams.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use callboard_codec::wire::{FrameKind, FrameLimits, Goaway, Hello, VERSION, Welcome, frame_head};
use callboard_identity::{JOIN_ALPN, Member, Role};
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, Endpoint};
use tokio::runtime::Handle;

use super::connections::{AnnouncedAddress, ConnectionGuard, OpenConnection};
use super::half_open::{HalfOpenSlot, HandshakeDecision};
use super::offers::offers;
use super::orders::ConnectedCaller;
use super::refusal_log::ConnectionRefusal;
use super::{ORDERS, ServerState, StreamGuard, exchange, issuing, receiving};
use crate::counter::GuardCounter;
use crate::endpoint::{ConnectionWindow, flush_each_poll, peer_member};
use crate::link::Link;
use crate::membership::{FEATURE, GossipLink, STREAMS, features};
use crate::offers::ACTORS;
use crate::refusal::RefusalReason;
use crate::stream::{FrameReceiver, FrameSender, ReadFault, WriteFault};
use crate::wire;

/// The oldest version that is still supported.
const OLDEST_VERSION: u8 = 1;

/// Accepts until the endpoint is closed.
pub(super) async fn accept_all(endpoint: Endpoint, server: Arc<ServerState>) {
    while let Some(incoming) = endpoint.accept().await {
        // The limit of connections is checked after the hello: joins and renewals do not count.
        let (from, is_proven) = (incoming.remote_address().ip(), incoming.remote_address_validated());
        match server.half_open.enter(from, is_proven, &server.config.tuning) {
            HandshakeDecision::Accept(slot) => {
                tokio::spawn(serve(incoming, Arc::clone(&server), slot));
            }
            HandshakeDecision::Retry => {
                server.metrics.counters.retried.inc();
                // Fails only for validated addresses.
                let _ = incoming.retry();
            }
            HandshakeDecision::Refuse => {
                server.metrics.refuse(RefusalReason::TooMany);
                incoming.refuse();
            }
        }
    }
}

/// A connection whose hello was accepted.
struct AcceptedHello {
    hello: Hello,
    member: Member,
    /// The offers that were sent with the welcome.
    offers: Bytes,
    window: ConnectionWindow,
    /// The sending half of the hello's stream, open as long as the connection; nothing more is read on the stream.
    _control: FrameSender,
}

async fn serve(incoming: quinn::Incoming, server: Arc<ServerState>, slot: HalfOpenSlot) {
    let (limit, peer) = (server.config.hello_timeout, incoming.remote_address());
    let log_refusal = |refusal: ConnectionRefusal| {
        server.metrics.refuse(refusal.reason);
        server.refusal_log.log(peer, &refusal);
    };
    let greeted = async {
        let connection = match incoming.accept() {
            Ok(connecting) => connecting.await.map_err(|error| RefusalReason::from_handshake(&error))?,
            Err(error) => return Err(RefusalReason::from_handshake(&error).into()),
        };
        match &server.issuer {
            Some(issuer) if requests_certificate(&connection) => {
                issuing::answer(connection, &server, issuer).await.map(|()| None)
            }
            _ => Ok::<_, ConnectionRefusal>(Some((greet(&connection, &server).await?, connection))),
        }
    };
    match tokio::time::timeout(limit, greeted).await {
        Err(_) => log_refusal(RefusalReason::HelloTimeout.into()),
        Ok(Err(refusal)) => log_refusal(refusal),
        Ok(Ok(None)) => {}
        Ok(Ok(Some((AcceptedHello { hello, member, offers, window, _control }, connection)))) => {
            let link = Arc::new(Link::accepted(&server.config.tuning));
            let addresses = addresses(&server, &hello, peer);
            let caller = OpenConnection::new((&connection, &link), &member, &hello, addresses, offers);
            let introduction = caller.introduction();
            let guard = match ConnectionGuard::try_new(&server, caller) {
                Ok(guard) => guard,
                Err(reason) => {
                    log_refusal(reason.into());
                    reason.close(&connection);
                    return;
                }
            };
            // After its registration: a view that is set meanwhile has it from there.
            server.introduce(introduction, &member.name, peer);
            if let Some(issuer) = &server.issuer {
                issuer.remember(&server, &connection, &member);
            }
            drop(slot);
            let caller = ConnectedCaller::new(&member, &hello, peer);
            tokio::select! {
                () = serve_streams((&connection, &link), &server, caller, window) => {}
                // Ends only with the connection.
                () = receive_gossip(&connection, gossip_link(&server, &hello, &member, (&connection, &link))) => {}
                // Its calls are cancelled.
                end = link.watch(&connection) => end.close(&connection),
                () = server.identity.clock().sleep_until(member.validity.not_after) => {
                    log_refusal(RefusalReason::OutlivedCertificate.into());
                    RefusalReason::OutlivedCertificate.close(&connection);
                }
            }
            drop(guard);
        }
    }
}

/// Gossip with a node that has connected.
fn gossip_link(
    server: &ServerState,
    hello: &Hello,
    member: &Member,
    (connection, link): (&Connection, &Arc<Link>),
) -> Option<GossipLink> {
    let gossip = server.gossip.as_ref().filter(|_| member.role == Role::Node)?;
    let link = gossip.link((&member.name, &hello.member, &hello.features), connection, link)?;
    // Before the hello, and for others, there are none.
    connection.set_max_concurrent_uni_streams(STREAMS.into());
    Some(link)
}

async fn receive_gossip(connection: &Connection, link: Option<GossipLink>) {
    match link {
        Some(link) => link.receive_all(connection).await,
        None => std::future::pending().await,
    }
}

/// Whether the connection is for a certificate, by the protocol of its handshake.
fn requests_certificate(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(JOIN_ALPN))
}

/// Reads and checks the hello, and sends the welcome.
async fn greet(connection: &Connection, server: &Arc<ServerState>) -> Result<AcceptedHello, RefusalReason> {
    let refuse = |reason: RefusalReason| {
        reason.close(connection);
        reason
    };
    // A node that issues certificates accepts handshakes without one, but only for that.
    let member = peer_member(connection).ok_or_else(|| refuse(RefusalReason::NoCertificate))?;
    if server.identity.is_removed(&member) {
        return Err(refuse(RefusalReason::RemovedMember));
    }
    let (send, receive) = connection.accept_bi().await.map_err(|error| RefusalReason::from_handshake(&error))?;
    let limits = FrameLimits { max_body_bytes: 0, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (FrameSender::new(send), FrameReceiver::new(receive, limits));
    let hello = match incoming.next_head().await {
        Ok(Some(head)) if head.kind == FrameKind::Hello => head.header::<Hello>().map_err(|error| (&error).into()),
        Err(ReadFault::Wire(error)) => Err((&error).into()),
        Ok(_) | Err(_) => Err(RefusalReason::NoHello),
    };
    let hello = hello.map_err(refuse)?;
    check_hello(&hello, &member, server).map_err(refuse)?;
    // The window comes first: the peer may call as soon as it reads the welcome.
    let window = ConnectionWindow::new(&server.windows, connection, &server.config.tuning);
    let offers = offers(server, member.role);
    let version = hello.max_version.min(VERSION);
    // Nodes of earlier versions need no further fields.
    let observed = hello.features.iter().any(|feature| feature == FEATURE).then(|| connection.remote_address());
    let welcomed = send_welcome(&mut outgoing, server, (version, observed), offers.clone()).await;
    welcomed.map_err(|_| refuse(RefusalReason::Lost))?;
    Ok(AcceptedHello { hello, member, offers, window, _control: outgoing })
}

fn check_hello(hello: &Hello, member: &Member, server: &ServerState) -> Result<(), RefusalReason> {
    if hello.min_version > VERSION || hello.max_version < OLDEST_VERSION {
        return Err(RefusalReason::NoCommonVersion);
    }
    if !hello.cluster.is_empty() && hello.cluster != server.identity.cluster() {
        return Err(RefusalReason::OtherCluster);
    }
    if member.role != Role::Node && !(hello.node.is_empty() && hello.address.is_empty()) {
        return Err(RefusalReason::WrongRole);
    }
    if !member.name.is_empty() && !hello.node.is_empty() && hello.node != member.name {
        return Err(RefusalReason::OtherName);
    }
    if server.is_stale(member, hello.generation) {
        return Err(RefusalReason::StaleGeneration);
    }
    // A welcome tells clients that the node is up. Peers are welcome earlier: they learn of its stages when these
    // start.
    if server.node().is_none() && hello.address.is_empty() {
        return Err(RefusalReason::Starting);
    }
    Ok(())
}

async fn send_welcome(
    outgoing: &mut FrameSender,
    server: &ServerState,
    (version, observed): (u8, Option<SocketAddr>),
    body: Bytes,
) -> Result<(), WriteFault> {
    let gossip = server.gossip.as_ref();
    let header = Welcome {
        version,
        node: server.config.node.clone(),
        generation: server.generation,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        max_body_bytes: server.config.frames.max_body_bytes as u64,
        draining: server.is_draining(),
        max_stages: receiving::MAX_STAGES as u32,
        timeout_millis: server.node().map_or(0, |node| wire::millis(node.edge().default_timeout())),
        features: features(gossip).into_iter().chain([ORDERS, ACTORS].map(str::to_owned)).collect(),
        member: gossip.map(|gossip| gossip.name().to_owned()).unwrap_or_default(),
        observed: observed.map(|address| address.to_string()).unwrap_or_default(),
    };
    // The header is short and always fits.
    let Ok(head) = frame_head(FrameKind::Welcome, 0, &header, body.len()) else {
        return Err(WriteFault::Stopped(None));
    };
    outgoing.write(&mut [head, body]).await
}

/// The address that the node claims, and whether the connection from `peer` proves it.
fn addresses(server: &ServerState, hello: &Hello, peer: SocketAddr) -> (Option<SocketAddr>, AnnouncedAddress) {
    if server.is_this_node(&hello.node, hello.generation) {
        return (None, AnnouncedAddress::None);
    }
    let Ok(mut claimed) = hello.address.parse::<SocketAddr>() else { return (None, AnnouncedAddress::None) };
    let from = SocketAddr::new(peer.ip().to_canonical(), peer.port());
    // A node that listens on every address of its machine is reached at the address that it connected from.
    if claimed.ip().is_unspecified() {
        claimed.set_ip(from.ip());
    }
    let announced = match claimed {
        _ if claimed == from => AnnouncedAddress::Proven(from),
        _ if claimed.ip() == from.ip() => AnnouncedAddress::Unproven(claimed),
        _ => AnnouncedAddress::None,
    };
    (Some(claimed), announced)
}

/// Answers streams until the connection ends: by the caller, by the endpoint, or by its silence.
async fn serve_streams(
    (connection, link): (&Connection, &Link),
    server: &Arc<ServerState>,
    caller: ConnectedCaller,
    window: ConnectionWindow,
) {
    if server.is_draining() {
        server.runtime.spawn(send_goaway(connection.clone(), "draining"));
    }
    let endpoint_runtime = Handle::current();
    let (open_streams, caller, window) = (GuardCounter::default(), Arc::new(caller), Arc::new(window));
    while let Ok((send, receive)) = connection.accept_bi().await {
        server.metrics.counters.streams.inc();
        let guard = StreamGuard::new(server, &caller, &window, link);
        let incoming = FrameReceiver::new(receive, server.config.frames.clone()).counted_by(Arc::clone(&window));
        let outgoing = FrameSender::new(send);
        let answering = exchange::answer_stream(guard, endpoint_runtime.clone(), outgoing, incoming);
        let open = open_streams.guard();
        server.runtime.spawn(async move {
            // A stream that is alone sends its answer inline. Otherwise the endpoint's thread sends for all streams.
            flush_each_poll(|| open.is_alone(), answering).await;
        });
    }
}

/// Tells a caller to send new calls elsewhere, and waits until it has heard. Best effort: other callers are refused
/// call by call.
pub(super) async fn send_goaway(connection: Connection, reason: &str) {
    let Ok(stream) = connection.open_uni().await else { return };
    let mut outgoing = FrameSender::new(stream);
    let goaway = Goaway { reason: reason.to_owned() };
    let Ok(head) = frame_head(FrameKind::Goaway, 0, &goaway, 0) else { return };
    let received = outgoing.stopped();
    if outgoing.write(&mut [head]).await.is_ok() {
        outgoing.finish();
        received.await;
    }
}
