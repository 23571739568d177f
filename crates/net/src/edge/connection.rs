//! One connection: its handshake, its hello, its streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use callboard_codec::wire::{FrameKind, FrameLimits, Goaway, Hello, ResetCode, VERSION, Welcome, frame_head};
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, ConnectionError, Endpoint, Incoming as Arriving};
use tokio::runtime::Handle;

use super::half_open::{Entrance, Place};
use super::notices::Refusal;
use super::offers::offers;
use super::open::{Open, OpenGuard};
use super::{Serving, StreamGuard, exchange, issuing, open, receiving};
use crate::convert;
use crate::endpoint::{Window, code, sending};
use crate::identity::{Clock, JOIN_ALPN, Member, Role, Validity};
use crate::refusal;
use crate::stream::{Incoming, Outgoing, ReadFault, WriteFault};

/// The oldest version that is still understood.
const OLDEST_VERSION: u8 = 1;

/// The clock of the system may be set: whether a certificate is over is looked at again this often.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The node is not there yet, and may be waited for.
const STARTING: &str = "starting";

/// Accepts until the endpoint is closed.
pub(super) async fn accept_all(endpoint: Endpoint, serving: Arc<Serving>) {
    while let Some(arriving) = endpoint.accept().await {
        // Whether there is room for one more connection is asked when it is known whose: who joins or renews needs none.
        let (from, is_proven) = (arriving.remote_address().ip(), arriving.remote_address_validated());
        match serving.half_open.enter(from, is_proven, &serving.config.tuning) {
            Entrance::Open(place) => {
                tokio::spawn(serve(arriving, Arc::clone(&serving), place));
            }
            Entrance::Prove => {
                serving.metrics.retried.inc();
                // It was not validated, so there is a way to ask.
                let _ = arriving.retry();
            }
            Entrance::Full => {
                serving.metrics.refuse("too_many");
                arriving.refuse();
            }
        }
    }
}

/// Who has said hello.
struct Greeted {
    hello: Hello,
    member: Member,
    /// What it was told of what is offered.
    told: Bytes,
    /// What it may send unread.
    window: Window,
    /// The writing half of the hello's stream, open as long as the connection is; nothing more is read on it.
    _control: Outgoing,
}

async fn serve(arriving: Arriving, serving: Arc<Serving>, place: Place) {
    let (limit, peer) = (serving.config.hello_timeout, arriving.remote_address());
    let refused = |refusal: Refusal| {
        serving.metrics.refuse(refusal.word);
        serving.notices.tell(peer, &refusal, Instant::now());
    };
    let greeted = async {
        let connection = match arriving.accept() {
            Ok(connecting) => connecting.await.map_err(|error| handshake_fault(&error))?,
            Err(error) => return Err(handshake_fault(&error).into()),
        };
        match &serving.issuing {
            Some(issuing) if wants_certificate(&connection) => {
                issuing::answer(connection, &serving, issuing).await.map(|()| None)
            }
            _ => Ok::<_, Refusal>(Some((greet(&connection, &serving).await?, connection))),
        }
    };
    match tokio::time::timeout(limit, greeted).await {
        Err(_) => refused("hello_timeout".into()),
        Ok(Err(refusal)) => refused(refusal),
        Ok(Ok(None)) => {}
        Ok(Ok(Some((Greeted { hello, member, told, window, _control }, connection)))) => {
            let caller = Open::new(&connection, &member, hello.generation, told);
            let open = match OpenGuard::try_new(&serving, caller) {
                Ok(open) => open,
                Err(not_let_in) => {
                    refused(not_let_in.word().into());
                    connection.close(code(not_let_in.code()), not_let_in.word().as_bytes());
                    return;
                }
            };
            introduce(&serving, &hello, &member, &connection);
            drop(place);
            tokio::select! {
                () = serve_streams(&connection, &serving, member.role, window) => {}
                () = expiry(member.validity, serving.identity.clock()) => {
                    refused("outlived_certificate".into());
                    connection.close(code(ResetCode::Refused), b"outlived_certificate");
                }
            }
            drop(open);
        }
    }
}

/// Resolves when a certificate is over.
async fn expiry(validity: Validity, clock: Clock) {
    loop {
        let left = validity.left(clock.now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK_AGAIN)).await;
    }
}

/// Whether it was connected to for that, which is settled in the handshake.
fn wants_certificate(connection: &Connection) -> bool {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    data.is_some_and(|data| data.protocol.as_deref() == Some(JOIN_ALPN))
}

/// The hello and the welcome.
async fn greet(connection: &Connection, serving: &Arc<Serving>) -> Result<Greeted, &'static str> {
    let refuse = |reason: &'static str| {
        connection.close(code(ResetCode::Refused), reason.as_bytes());
        reason
    };
    // A node that gives certificates lets those in who have none: for that, and for nothing else.
    let member = Member::of_peer(connection).ok_or_else(|| refuse("no_certificate"))?;
    if serving.identity.is_removed(&member) {
        return Err(refuse(open::REMOVED));
    }
    let (send, receive) = connection.accept_bi().await.map_err(|error| handshake_fault(&error))?;
    let limits = FrameLimits { max_body_bytes: 0, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, limits));
    let hello = match incoming.next_head().await {
        Ok(Some(head)) if head.kind == FrameKind::Hello => head.header::<Hello>().map_err(|error| error.as_str()),
        Ok(_) => Err("no_hello"),
        Err(ReadFault::Wire(error)) => Err(error.as_str()),
        Err(_) => Err("no_hello"),
    };
    let hello = hello.map_err(refuse)?;
    if hello.min_version > VERSION || hello.max_version < OLDEST_VERSION {
        return Err(refuse("no_common_version"));
    }
    if !hello.cluster.is_empty() && hello.cluster != serving.identity.cluster() {
        return Err(refuse("other_cluster"));
    }
    if member.role != Role::Node && !(hello.node.is_empty() && hello.address.is_empty()) {
        return Err(refuse("wrong_role"));
    }
    if !member.name.is_empty() && !hello.node.is_empty() && hello.node != member.name {
        return Err(refuse("other_name"));
    }
    if serving.is_outlived(&member, hello.generation) {
        connection.close(code(ResetCode::StaleGeneration), open::STALE.as_bytes());
        return Err(open::STALE);
    }
    // A client that was welcomed takes the node for one that is there. Peers hear of its stages when they have come.
    if serving.node().is_none() && hello.address.is_empty() {
        connection.close(code(ResetCode::Draining), STARTING.as_bytes());
        return Err(STARTING);
    }
    // With the welcome: its reader may begin at once.
    let window = Window::new(&serving.windows, connection, &serving.config.tuning);
    let told = offers(serving, member.role);
    let version = hello.max_version.min(VERSION);
    welcome(&mut outgoing, serving, version, told.clone()).await.map_err(|_| refuse("lost"))?;
    Ok(Greeted { hello, member, told, window, _control: outgoing })
}

async fn welcome(outgoing: &mut Outgoing, serving: &Serving, version: u8, body: Bytes) -> Result<(), WriteFault> {
    let header = Welcome {
        version,
        node: serving.config.node.clone(),
        generation: serving.generation,
        build: env!("CARGO_PKG_VERSION").to_owned(),
        max_body_bytes: serving.config.frames.max_body_bytes as u64,
        draining: serving.is_draining(),
        max_stages: receiving::MAX_STAGES as u32,
        timeout_millis: serving.node().map_or(0, |node| convert::millis(node.default_timeout())),
    };
    // A welcome is short: it has a header on any node.
    let Ok(head) = frame_head(FrameKind::Welcome, 0, &header, body.len()) else {
        return Err(WriteFault::Stopped(None));
    };
    outgoing.write(&mut [head, body]).await
}

/// Where a node is to be called that says in its hello that it listens.
enum Introduced {
    /// Nowhere: it does not say so, or what it says is another machine's.
    Nowhere,
    /// At the address from which it has connected, as the handshake has proven: nodes connect from the port on which they listen.
    Here(SocketAddr),
    /// It names another port than that. Nobody is sent packets because somebody else has named it.
    Unproven,
}

fn introduced(hello: &Hello, connection: &Connection) -> Introduced {
    let Ok(address) = hello.address.parse::<SocketAddr>() else { return Introduced::Nowhere };
    let from = connection.remote_address();
    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
    // Who listens on every address of its machine is reached by the one that it has come from.
    if !address.ip().is_unspecified() && address.ip() != from.ip() {
        return Introduced::Nowhere;
    }
    if address.port() == from.port() { Introduced::Here(from) } else { Introduced::Unproven }
}

/// Has a node called that has come by, where that is wanted.
fn introduce(serving: &Serving, hello: &Hello, member: &Member, connection: &Connection) {
    let Some(view) = serving.view.get() else { return };
    if !serving.config.calls_back || serving.is_ourselves(&hello.node, hello.generation) {
        return;
    }
    let (peer, now) = (connection.remote_address(), Instant::now());
    match introduced(hello, connection) {
        Introduced::Here(address) if view.introduce(&member.name, address) => {}
        Introduced::Here(_) => {
            serving.metrics.peers_not_taken.inc();
            serving.notices.tell_of_full_view(peer, now);
        }
        Introduced::Unproven => {
            serving.metrics.peers_not_taken.inc();
            serving.notices.tell_of_other_port(peer, &hello.address, now);
        }
        Introduced::Nowhere => {}
    }
}

/// Answers streams until the connection is gone. It ends by the caller, by the endpoint, or by its silence.
async fn serve_streams(connection: &Connection, serving: &Arc<Serving>, role: Role, window: Window) {
    if serving.is_draining() {
        serving.runtime.spawn(say_goaway(connection.clone(), "draining"));
    }
    // Of the connections, whose task this is.
    let home = Handle::current();
    // Cloned by each stream that is under way.
    let (open, window) = (Arc::new(()), Arc::new(window));
    while let Ok((send, receive)) = connection.accept_bi().await {
        serving.metrics.streams.inc();
        let guard = StreamGuard::new(serving, role, &window);
        let incoming = Incoming::new(receive, serving.config.frames.clone()).counted_by(Arc::clone(&window));
        let outgoing = Outgoing::new(send);
        let answering = exchange::answer_stream(guard, home.clone(), outgoing, incoming);
        let under_way = Arc::clone(&open);
        serving.runtime.spawn(async move {
            // One that is alone sends its answer itself. Where others are under way, the thread sends what all of them have written.
            sending(|| Arc::strong_count(&under_way) <= 2, answering).await;
        });
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
    if let Some(word) = refusal::tls_word(error) {
        return word;
    }
    match error {
        ConnectionError::TransportError(_) => "handshake",
        ConnectionError::TimedOut => "timed_out",
        ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_) | ConnectionError::Reset => "left",
        ConnectionError::VersionMismatch => "quic_version",
        ConnectionError::LocallyClosed | ConnectionError::CidsExhausted => "closed",
    }
}
