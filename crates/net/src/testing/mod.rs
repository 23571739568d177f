//! For tests of what a node makes of others: a peer that says whatever it is told to, and bad weather between them.

mod faults;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameHead, FrameKind, FrameLimits, Hello, Join, ResetCode, frame_head};
use quinn::{Connection, ConnectionError, Endpoint};
use tokio::runtime::Handle;

pub use self::faults::{Bytes as BytesByAddress, Faults, Met, Weather};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::edge::QuicEdge;
use crate::endpoint::{BindError, Transport, Tuning};
use crate::identity::{
    Authority, EXPORTED_BYTES, EXPORTER_LABEL, ISSUER_NAME, Identity, JoinToken, Member, NODE_NAME, Role, Validity,
    joining_config, request,
};
use crate::stream::{Incoming, Outgoing, ReadFault};

/// A connection on which nothing is said by itself.
#[derive(Debug)]
pub struct RawPeer {
    connection: Connection,
    _transport: Arc<Transport>,
}

/// A stream that is open.
#[derive(Debug)]
pub struct RawStream((Outgoing, Incoming));

/// An endpoint as nodes and clients have it, on its own thread and tuned, on which nothing of ours is said: what ours is measured
/// beside.
#[derive(Debug)]
pub struct BareEndpoint(Arc<Transport>);

impl BareEndpoint {
    /// One that answers.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound.
    pub fn serving(address: SocketAddr, identity: &Identity) -> Result<Self, BindError> {
        let tuning = Tuning::default();
        Ok(Self(Transport::serving(address, identity.clone(), &tuning, tuning.answering_known())?.into()))
    }

    /// One that only calls.
    ///
    /// # Errors
    ///
    /// When there is no socket.
    pub fn reaching(identity: &Identity) -> Result<Self, BindError> {
        Self::reaching_with(identity, &Tuning::default())
    }

    /// The same, tuned in another way.
    ///
    /// # Errors
    ///
    /// When there is no socket.
    pub fn reaching_with(identity: &Identity, tuning: &Tuning) -> Result<Self, BindError> {
        Ok(Self(Transport::reaching(identity.clone(), tuning)?.into()))
    }

    /// quinn's own.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    /// Where its packets are sent and received.
    #[must_use]
    pub fn thread(&self) -> &Handle {
        self.0.runtime()
    }

    /// A connection with certificates on both sides.
    ///
    /// # Errors
    ///
    /// What became of the handshake, for people.
    pub async fn connect(&self, address: SocketAddr) -> Result<Connection, String> {
        let connecting = self.0.connect(address).map_err(|error| error.to_string())?;
        connecting.await.map_err(|error| error.to_string())
    }
}

/// Frames with their bodies.
pub type Frames = Vec<(FrameHead, Bytes)>;

impl RawPeer {
    /// Connects, and says nothing.
    ///
    /// # Errors
    ///
    /// What became of the handshake, for people.
    pub async fn connect(address: SocketAddr, identity: &Identity) -> Result<Self, String> {
        let endpoint = BareEndpoint::reaching(identity).map_err(|error| error.to_string())?;
        Self::over(&endpoint, address).await
    }

    /// Connects from an endpoint that there is, and says nothing.
    ///
    /// # Errors
    ///
    /// What became of the handshake, for people.
    pub async fn over(endpoint: &BareEndpoint, address: SocketAddr) -> Result<Self, String> {
        let connection = endpoint.connect(address).await?;
        Ok(Self { connection, _transport: Arc::clone(&endpoint.0) })
    }

    /// Connects as those do who have a certificate, and shows none.
    ///
    /// # Errors
    ///
    /// What became of the handshake, for people.
    pub async fn nameless(address: SocketAddr, trusted: &Identity) -> Result<Self, String> {
        let endpoint = BareEndpoint::reaching(trusted).map_err(|error| error.to_string())?;
        let config = trusted.nameless_config().map_err(|error| error.to_string())?;
        let config = quinn::ClientConfig::new(Arc::new(config));
        let connecting = endpoint.endpoint().connect_with(config, address, NODE_NAME);
        let connection = connecting.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())?;
        Ok(Self { connection, _transport: Arc::clone(&endpoint.0) })
    }

    /// Says hello, and waits for the welcome.
    ///
    /// # Errors
    ///
    /// The code and the words with which the connection was closed.
    pub async fn greet(&self, hello: &Hello) -> Result<FrameHead, (Option<ResetCode>, String)> {
        let head = frame_head(FrameKind::Hello, 0, hello, 0).map_err(|error| (None, error.to_string()))?;
        let greeted = async {
            let (send, receive) = self.connection.open_bi().await.ok()?;
            let mut outgoing = Outgoing::new(send);
            outgoing.write(&mut [head]).await.ok()?;
            let mut incoming = Incoming::new(receive, FrameLimits::default());
            incoming.next_head().await.ok().flatten()
        };
        match greeted.await {
            Some(welcome) => Ok(welcome),
            None => Err(closed(&self.connection.closed().await)),
        }
    }

    /// Says no hello, and sends as much as it is let: on how many streams, and how many bytes.
    pub async fn stuff(&self) -> (usize, usize) {
        stuff(&self.connection).await
    }

    /// Opens as many streams as it is let and writes on them as much as it is let, until nothing is taken for this long:
    /// on how many streams, and how many bytes.
    pub async fn fill(&self, silence: Duration) -> (usize, usize) {
        let (mut streams, mut bytes) = (Vec::new(), 0);
        while let Ok(Ok(stream)) = tokio::time::timeout(silence, self.connection.open_bi()).await {
            streams.push(stream);
        }
        for (send, _) in &mut streams {
            while let Ok(Ok(taken)) = tokio::time::timeout(silence, send.write(&[0; 1 << 12])).await {
                bytes += taken;
            }
        }
        (streams.len(), bytes)
    }

    /// Waits until the node ends the connection.
    pub async fn closed(&self) -> (Option<ResetCode>, String) {
        closed(&self.connection.closed().await)
    }

    /// Writes these bytes on a new stream, ends it, and reads what comes back.
    ///
    /// # Errors
    ///
    /// The code with which the stream was reset.
    pub async fn exchange(&self, mut pieces: Vec<Bytes>) -> Result<Frames, Option<ResetCode>> {
        let (send, receive) = self.connection.open_bi().await.map_err(|_| None)?;
        let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, FrameLimits::default()));
        // Whoever is refused in the middle of it reads why.
        if outgoing.write(&mut pieces).await.is_ok() {
            outgoing.finish();
        }
        let mut frames = Vec::new();
        loop {
            match incoming.next_head().await {
                Ok(Some(head)) => {
                    let body = incoming.short_body(&head).await.map_err(|_| None)?;
                    frames.push((head, body));
                }
                Ok(None) => return Ok(frames),
                Err(ReadFault::Reset(code)) => return Err(code),
                Err(_) => return Err(None),
            }
        }
    }

    /// Opens so many streams, and writes on the last of them alone: QUIC opens those before it with it.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    pub async fn begin_unwritten(&self, count: usize) -> Vec<RawStream> {
        let mut streams = Vec::new();
        for _ in 0..count {
            let (send, receive) = self.connection.open_bi().await.expect("the connection is there");
            streams.push(RawStream((Outgoing::new(send), Incoming::new(receive, FrameLimits::default()))));
        }
        if let Some(last) = streams.last_mut() {
            last.write(vec![Bytes::from_static(b"C")]).await;
        }
        streams
    }

    /// How the connection ended, in quinn's words.
    pub async fn lost(&self) -> ConnectionError {
        self.connection.closed().await
    }

    /// Writes these bytes on a new stream, and leaves it open.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    pub async fn begin(&self, pieces: Vec<Bytes>) -> RawStream {
        self.try_begin(pieces).await.expect("the connection is there")
    }

    /// The same; nothing when the connection is gone.
    pub async fn try_begin(&self, mut pieces: Vec<Bytes>) -> Option<RawStream> {
        let (send, receive) = self.connection.open_bi().await.ok()?;
        let mut outgoing = Outgoing::new(send);
        outgoing.write(&mut pieces).await.ok()?;
        Some(RawStream((outgoing, Incoming::new(receive, FrameLimits::default()))))
    }
}

impl RawStream {
    /// Writes more bytes.
    ///
    /// # Panics
    ///
    /// When the stream is closed.
    pub async fn write(&mut self, mut pieces: Vec<Bytes>) {
        self.0.0.write(&mut pieces).await.expect("the stream is open");
    }

    /// Writes this again and again, with pauses, until the stream is stopped; says how often.
    pub async fn trickle(&mut self, piece: Bytes, pause: Duration) -> usize {
        let mut written = 0;
        while self.0.0.write(&mut [piece.clone()]).await.is_ok() {
            written += 1;
            tokio::time::sleep(pause).await;
        }
        written
    }

    /// Writes zeros until nothing is taken for this long; says how many.
    pub async fn fill(&mut self, silence: Duration) -> usize {
        let mut written = 0;
        let mut pieces = [Bytes::from_static(&[0; 1 << 12])];
        while let Ok(Ok((bytes, _))) = tokio::time::timeout(silence, self.0.0.write_some(&mut pieces)).await {
            written += bytes;
            pieces = [Bytes::from_static(&[0; 1 << 12])];
        }
        written
    }

    /// The next frame's head. Its body stays where it is.
    ///
    /// # Errors
    ///
    /// The code with which the stream was reset, if it was.
    pub async fn next_head(&mut self) -> Result<FrameHead, Option<ResetCode>> {
        match self.0.1.next_head().await {
            Ok(Some(head)) => Ok(head),
            Err(ReadFault::Reset(code)) => Err(code),
            Ok(None) | Err(_) => Err(None),
        }
    }

    /// The next frame with its body.
    ///
    /// # Errors
    ///
    /// The code with which the stream was reset, if it was.
    pub async fn next_frame(&mut self) -> Result<(FrameHead, Bytes), Option<ResetCode>> {
        let head = self.next_head().await?;
        let body = self.0.1.short_body(&head).await.map_err(|_| None)?;
        Ok((head, body))
    }
}

/// What closes every connection that an edge has, as often as it is called: a node that is lost with each call.
pub fn cutter(edge: &QuicEdge) -> impl Fn() + Send + Sync + 'static {
    edge.cutter()
}

/// How many calls of a client wait to be sent, and how many streams it has open for calls.
#[must_use]
pub fn in_hand(client: &Client) -> (usize, usize) {
    client.links().in_hand()
}

/// The same of a node's links to its peers.
#[must_use]
pub fn in_hand_of(cluster: &Cluster) -> (usize, usize) {
    cluster.in_hand()
}

/// An identity that trusts whom `trusted` trusts, and shows the certificate of `shown`.
#[must_use]
pub fn showing(trusted: &Identity, shown: &Identity) -> Identity {
    trusted.showing(shown)
}

/// The same member on a machine whose clock is so far ahead of everybody else's.
#[must_use]
pub fn ahead(identity: &Identity, by: Duration) -> Identity {
    identity.ahead(by)
}

/// An identity of this authority that holds for this time and is never renewed.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn issued(authority: &Authority, role: Role, name: &str, from: SystemTime, until: SystemTime) -> Identity {
    let validity = Validity { not_before: from, not_after: until };
    let member = Member { role, name: name.to_owned(), id: "0".to_owned(), validity };
    Identity::issued(authority, &member).expect("the authority issues")
}

/// An endpoint of who serves with any identity, whatever its role, and answers nothing: its address, and itself to be kept.
///
/// # Panics
///
/// When there is no socket.
#[must_use]
pub fn impostor(identity: &Identity) -> (SocketAddr, Endpoint) {
    let config = identity.server_config().expect("a certificate");
    let config = quinn::ServerConfig::with_crypto(Arc::new(config));
    let endpoint = Endpoint::server(config, (std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(arriving) = accepting.accept().await {
            tokio::spawn(async move { _ = arriving.await });
        }
    });
    (endpoint.local_addr().expect("it is bound"), endpoint)
}

/// A connection to join on, of somebody who plays with its words.
#[derive(Debug)]
pub struct RawJoiner {
    connection: Connection,
    request: String,
    _endpoint: Endpoint,
}

impl RawJoiner {
    /// Connects as the holder of a token does.
    ///
    /// # Panics
    ///
    /// When it is not let in.
    pub async fn connect(address: SocketAddr, token: &JoinToken) -> Self {
        let (_, request) = request().expect("a request");
        Self::with_request(address, token, request).await
    }

    /// The same with the key of this one, on another connection.
    ///
    /// # Panics
    ///
    /// When it is not let in.
    pub async fn once_more(&self, address: SocketAddr, token: &JoinToken) -> Self {
        Self::with_request(address, token, self.request()).await
    }

    /// Connects as the holder of a token does, and wants this certified, whatever it is.
    ///
    /// # Panics
    ///
    /// When it is not let in.
    pub async fn with_request(address: SocketAddr, token: &JoinToken, request: String) -> Self {
        let endpoint = Endpoint::client((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        Self::over(&endpoint, address, token, request).await.expect("whoever has a token may ask")
    }

    /// Connects from this address, as often as it is let: those of the machine's addresses that are not there have no socket.
    ///
    /// # Panics
    ///
    /// When there is no request to be made.
    pub async fn many_from(from: std::net::IpAddr, address: SocketAddr, token: &JoinToken) -> Option<Vec<Self>> {
        let endpoint = Endpoint::client((from, 0).into()).ok()?;
        let mut let_in = Vec::new();
        while let Some(joiner) = Self::over(&endpoint, address, token, request().expect("a request").1).await {
            let_in.push(joiner);
        }
        Some(let_in)
    }

    async fn over(endpoint: &Endpoint, address: SocketAddr, token: &JoinToken, request: String) -> Option<Self> {
        let config = quinn::ClientConfig::new(Arc::new(joining_config(token.pin()).expect("a pin")));
        let connecting = endpoint.connect_with(config, address, ISSUER_NAME).expect("an address");
        Some(Self { connection: connecting.await.ok()?, request, _endpoint: endpoint.clone() })
    }

    /// What an honest holder of the token says on this connection.
    ///
    /// # Panics
    ///
    /// When the connection is gone.
    #[must_use]
    pub fn wish(&self, cluster: &str, token: &JoinToken, name: &str) -> Join {
        let mut exported = [0; EXPORTED_BYTES];
        let bound = self.connection.export_keying_material(&mut exported, EXPORTER_LABEL, token.id().as_bytes());
        bound.expect("the connection is there");
        let proof = token.proof(&exported, name, self.request.as_bytes());
        Join { cluster: cluster.to_owned(), token: token.id(), name: name.to_owned(), proof }
    }

    /// Asks for nothing, and sends as much as it is let: on how many streams, and how many bytes.
    pub async fn stuff(&self) -> (usize, usize) {
        stuff(&self.connection).await
    }

    /// What this one asks to be certified.
    #[must_use]
    pub fn request(&self) -> String {
        self.request.clone()
    }

    /// Says this, and gives the kind of the answer and the word of the refusal.
    ///
    /// # Errors
    ///
    /// The code and the words with which the connection was closed.
    pub async fn ask(&self, wish: &Join, request: &str) -> Result<(FrameKind, String), (Option<ResetCode>, String)> {
        let head = frame_head(FrameKind::Join, 0, wish, request.len()).map_err(|error| (None, error.to_string()))?;
        self.ask_in_bytes(vec![head, Bytes::copy_from_slice(request.as_bytes())]).await
    }

    /// Says these bytes, as [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// The code and the words with which the connection was closed.
    pub async fn ask_in_bytes(
        &self,
        mut pieces: Vec<Bytes>,
    ) -> Result<(FrameKind, String), (Option<ResetCode>, String)> {
        let asked = async {
            let (send, receive) = self.connection.open_bi().await.ok()?;
            let mut outgoing = Outgoing::new(send);
            outgoing.write(&mut pieces).await.ok()?;
            outgoing.finish();
            let mut incoming = Incoming::new(receive, FrameLimits::default());
            incoming.next_head().await.ok().flatten()
        };
        match asked.await {
            Some(head) => {
                let word = head.header::<Fail>().ok().and_then(|fail| fail.error_type).unwrap_or_default();
                Ok((head.kind, word))
            }
            None => Err(closed(&self.connection.closed().await)),
        }
    }
}

/// Begins a frame on a stream and writes what it is let on further ones, until the connection is over: how many streams it had, and
/// how many bytes were taken of it.
async fn stuff(connection: &Connection) -> (usize, usize) {
    let (mut streams, mut bytes) = (Vec::new(), 0);
    let stuffing = async {
        let mut chunk: &[u8] = &[0];
        while let Ok(mut stream) = connection.open_bi().await {
            bytes += stream.0.write(chunk).await.unwrap_or_default();
            streams.push(stream);
            chunk = &[0; 1 << 16];
        }
    };
    tokio::select! {
        () = stuffing => {}
        _ = connection.closed() => {}
    }
    (streams.len(), bytes)
}

fn closed(error: &ConnectionError) -> (Option<ResetCode>, String) {
    match error {
        ConnectionError::ApplicationClosed(close) => {
            let code = ResetCode::from_number(close.error_code.into_inner());
            (code, String::from_utf8_lossy(&close.reason).into_owned())
        }
        error => (None, error.to_string()),
    }
}
