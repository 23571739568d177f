//! One connection: its handshake, its hello, its streams.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_codec::wire::{FrameKind, FrameLimits, Goaway, Hello, Offer, ResetCode, VERSION, Welcome, frame_head};
use quinn::{Connection, ConnectionError, Endpoint, Incoming as Arriving, VarInt};

use super::{Open, Serving, StreamGuard, exchange};
use crate::convert;
use crate::endpoint::{code, tls_alert};
use crate::stream::{Incoming, Outgoing, ReadFault, WriteFault};

/// The oldest version that is still understood.
const OLDEST_VERSION: u8 = 1;

/// How soon peers hear of a stage that has come.
const OFFERS_EVERY: Duration = Duration::from_millis(100);

/// TLS alerts (RFC 8446, B.2) under QUIC's crypto errors (RFC 9001, 4.8).
const ALERTS: [(u64, &str); 8] = [
    (42, "bad_certificate"),
    (44, "revoked_certificate"),
    (45, "expired_certificate"),
    (46, "unknown_certificate"),
    (48, "unknown_authority"),
    // A certificate that names the right authority, and is not signed by it.
    (51, "unknown_authority"),
    (116, "no_certificate"),
    (120, "other_protocol"),
];

/// Accepts until the endpoint is closed.
pub(super) async fn accept_all(endpoint: Endpoint, serving: Arc<Serving>) {
    while let Some(arriving) = endpoint.accept().await {
        let metrics = &serving.metrics;
        let open = serving.connections.lock().len();
        if open >= serving.config.max_connections {
            metrics.refuse("too_many");
            arriving.refuse();
            continue;
        }
        // Under a flood, first packets have to prove where they come from. quinn keeps what is under way.
        let half_open = endpoint.open_connections().saturating_sub(open);
        if half_open > serving.config.tuning.max_half_open / 4 && !arriving.remote_address_validated() {
            metrics.refuse("unproven_address");
            // It was not validated, so there is a way to ask.
            let _ = arriving.retry();
            continue;
        }
        tokio::spawn(serve(arriving, Arc::clone(&serving)));
    }
}

async fn serve(arriving: Arriving, serving: Arc<Serving>) {
    let limit = serving.config.hello_timeout;
    match tokio::time::timeout(limit, greet(arriving, &serving)).await {
        Err(_) => serving.metrics.refuse("hello_timeout"),
        Ok(Err(refusal)) => serving.metrics.refuse(refusal),
        Ok(Ok((connection, hello, control))) => {
            let peer = introduced(&hello, &connection);
            if let (Some(address), Some(view)) = (peer, serving.view.get()) {
                view.introduce(address);
            }
            let _open = OpenGuard::new(&serving, connection.clone(), peer.is_some());
            // It stays open to say that the connection is wanted; what is said on it behind the hello is read by nobody.
            let (control, unread) = control;
            drop(unread);
            serve_streams(&connection, &serving).await;
            drop(control);
        }
    }
}

/// The handshake, the hello and the welcome.
async fn greet(
    arriving: Arriving,
    serving: &Arc<Serving>,
) -> Result<(Connection, Hello, (Outgoing, Incoming)), &'static str> {
    let connection = match arriving.accept() {
        Ok(connecting) => connecting.await.map_err(|error| handshake_fault(&error))?,
        Err(error) => return Err(handshake_fault(&error)),
    };
    let (send, receive) = connection.accept_bi().await.map_err(|error| handshake_fault(&error))?;
    let limits = FrameLimits { max_body_bytes: 0, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, limits));
    let hello = match incoming.next_head().await {
        Ok(Some(head)) if head.kind == FrameKind::Hello => head.header::<Hello>().map_err(|error| error.as_str()),
        Ok(_) => Err("no_hello"),
        Err(ReadFault::Wire(error)) => Err(error.as_str()),
        Err(_) => Err("no_hello"),
    };
    let refuse = |reason: &'static str| {
        connection.close(code(ResetCode::Refused), reason.as_bytes());
        reason
    };
    let hello = hello.map_err(refuse)?;
    if hello.min_version > VERSION || hello.max_version < OLDEST_VERSION {
        return Err(refuse("no_common_version"));
    }
    if !hello.cluster.is_empty() && hello.cluster != serving.cluster {
        return Err(refuse("other_cluster"));
    }
    welcome(&mut outgoing, serving, hello.max_version.min(VERSION)).await.map_err(|_| refuse("lost"))?;
    Ok((connection, hello, (outgoing, incoming)))
}

async fn welcome(outgoing: &mut Outgoing, serving: &Serving, version: u8) -> Result<(), WriteFault> {
    let body = offers(serving);
    let header = Welcome {
        version,
        node: serving.config.node.clone(),
        generation: serving.generation,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        max_body_bytes: serving.config.frames.max_body_bytes as u64,
        draining: serving.is_draining(),
        max_stages: exchange::MAX_STAGES as u32,
        timeout_millis: serving.node().map_or(0, |node| convert::millis(node.default_timeout())),
    };
    // A welcome is short: it has a header on any node.
    let Ok(head) = frame_head(FrameKind::Welcome, 0, &header, body.len()) else {
        return Err(WriteFault::Stopped(None));
    };
    outgoing.write(&mut [head, body]).await
}

/// What the node offers now, as an envelope.
fn offers(serving: &Serving) -> Bytes {
    let Some(node) = serving.node() else { return Bytes::new() };
    let routes = node.routes().into_iter().map(|route| Offer {
        name: route.name().to_owned(),
        revision: route.revision(),
        streams: route.streams(),
        timeout_millis: route.default_timeout().map_or(0, convert::millis),
        ..Offer::default()
    });
    let stages = node.offered_stages().into_iter().map(|stage| Offer {
        name: stage.name,
        stage: true,
        revision: stage.revision,
        streams: stage.streams,
        idempotent: stage.contract.may_run_again(),
        timeout_millis: 0,
    });
    let offers: Vec<Offer> = routes.chain(stages).collect();
    Payload::new(offers).to_envelope().map(callboard_codec::Envelope::into_bytes).unwrap_or_default()
}

/// Where the peer listens that says this hello. It speaks for its own address only: who could name another's would make us dial it.
fn introduced(hello: &Hello, connection: &Connection) -> Option<SocketAddr> {
    let address: SocketAddr = hello.address.parse().ok()?;
    (address.ip() == connection.remote_address().ip()).then_some(address)
}

/// Tells peers what is offered, whenever that has changed: looked at a few times a second, because stages come and go by many ways.
pub(super) async fn tell_offers(serving: Weak<Serving>) {
    let mut told = Bytes::new();
    loop {
        tokio::time::sleep(OFFERS_EVERY).await;
        let Some(serving) = serving.upgrade() else { return };
        let now = offers(&serving);
        if now == told {
            continue;
        }
        told = now;
        let peers: Vec<_> = {
            let open = serving.connections.lock();
            open.iter().filter(|open| open.is_peer).map(|open| open.connection.clone()).collect()
        };
        for connection in peers {
            tokio::spawn(say_offers(connection, told.clone()));
        }
    }
}

async fn say_offers(connection: Connection, body: Bytes) {
    let Ok(stream) = connection.open_uni().await else { return };
    let mut outgoing = Outgoing::new(stream);
    let Ok(head) = frame_head(FrameKind::Offers, 0, &Nothing {}, body.len()) else { return };
    if outgoing.write(&mut [head, body]).await.is_ok() {
        outgoing.finish();
    }
}

/// An empty header.
#[derive(serde::Serialize)]
struct Nothing {}

/// Answers streams until the connection is gone. It ends by the caller, by the endpoint, or by its silence.
async fn serve_streams(connection: &Connection, serving: &Arc<Serving>) {
    if serving.is_draining() {
        serving.runtime.spawn(say_goaway(connection.clone(), "draining"));
    }
    while let Ok((send, receive)) = connection.accept_bi().await {
        serving.metrics.streams.inc();
        let guard = StreamGuard::new(serving);
        let (outgoing, incoming) = (Outgoing::new(send), Incoming::new(receive, serving.config.frames.clone()));
        serving.runtime.spawn(exchange::answer_stream(guard, outgoing, incoming));
    }
}

/// Tells a caller to go elsewhere with what is new, until it is there. Best effort: who does not hear it is refused call by call.
pub(super) async fn say_goaway(connection: Connection, reason: &str) {
    let Ok(stream) = connection.open_uni().await else { return };
    let mut outgoing = Outgoing::new(stream);
    let goaway = Goaway { reason: reason.to_owned() };
    let Ok(head) = frame_head(FrameKind::Goaway, 0, &goaway, 0) else { return };
    let heard = outgoing.stopped();
    if outgoing.write(&mut [head]).await.is_ok() {
        outgoing.finish();
        heard.await;
    }
}

/// The one word for a handshake that came to nothing.
fn handshake_fault(error: &ConnectionError) -> &'static str {
    match error {
        // Whichever side has found it out.
        error if tls_alert(error).is_some() => {
            let alert = ALERTS.iter().find(|(alert, _)| tls_alert(error) == Some(*alert));
            alert.map_or("handshake", |(_, word)| word)
        }
        ConnectionError::TransportError(_) => "handshake",
        ConnectionError::TimedOut => "timed_out",
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) | ConnectionError::Reset => "left",
        ConnectionError::VersionMismatch => "quic_version",
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => "closed",
    }
}

/// A connection among those that are open.
struct OpenGuard<'a> {
    serving: &'a Serving,
    connection: Connection,
}

impl<'a> OpenGuard<'a> {
    fn new(serving: &'a Serving, connection: Connection, is_peer: bool) -> Self {
        serving.metrics.accepted.inc();
        serving.metrics.open.inc();
        serving.connections.lock().push(Open { connection: connection.clone(), is_peer });
        Self { serving, connection }
    }
}

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        let id = self.connection.stable_id();
        self.serving.connections.lock().retain(|open| open.connection.stable_id() != id);
        self.serving.metrics.open.dec();
        self.connection.close(VarInt::from_u32(ResetCode::Done.number()), b"");
    }
}
