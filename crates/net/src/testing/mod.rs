//! For tests: peers that send anything, and fault injection between endpoints.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameHead, FrameKind, FrameLimits, Hello, Join, ResetCode, frame_head};
use callboard_identity::{
    Authority, EXPORTED_BYTES, EXPORTER_LABEL, ISSUER_NAME, Identity, JoinToken, Member, NODE_NAME, Role, Validity,
    certificate_request, join_client_tls,
};
use quinn::{Connection, ConnectionError, Endpoint};
use tokio::runtime::Handle;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::endpoint::{BindError, Transport, Tuning, quic_client, quic_server};
pub use crate::endpoint::{BytesByAddress, FaultCounters, FaultProfile, Faults};
use crate::join::spawn_renewal;
pub use crate::membership::GossipForger;
use crate::server::QuicEdge;
use crate::stream::{FrameReceiver, FrameSender, ReadFault};

/// A connection that sends nothing by itself.
#[derive(Debug)]
pub struct RawPeer {
    connection: Connection,
    _transport: Arc<Transport>,
}

/// A stream that is open.
#[derive(Debug)]
pub struct RawStream((FrameSender, FrameReceiver));

/// An endpoint as in nodes and clients, with its thread and tuning, but without a protocol: the baseline of
/// measurements.
#[derive(Debug)]
pub struct BareEndpoint(Arc<Transport>);

impl BareEndpoint {
    /// Accepts connections.
    ///
    /// # Errors
    ///
    /// An address that cannot be bound.
    pub fn serving(address: SocketAddr, identity: &Identity) -> Result<Self, BindError> {
        let tuning = Tuning::default();
        Ok(Self::new(Transport::serving(address, identity.clone(), &tuning, tuning.answering_known())?))
    }

    /// Makes connections. They may be silent as long as their server allows: a busy machine may pause its callers.
    ///
    /// # Errors
    ///
    /// When there is no socket.
    pub fn calling(identity: &Identity) -> Result<Self, BindError> {
        Self::calling_with(identity, &Tuning { idle_timeout: Duration::from_secs(60), ..Tuning::default() })
    }

    /// Makes connections, with this tuning.
    ///
    /// # Errors
    ///
    /// When there is no socket.
    pub fn calling_with(identity: &Identity, tuning: &Tuning) -> Result<Self, BindError> {
        Ok(Self::new(Transport::calling(identity.clone(), tuning)?))
    }

    fn new(transport: Transport) -> Self {
        spawn_renewal(&transport, Vec::new);
        Self(Arc::new(transport))
    }

    /// quinn's endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        self.0.endpoint()
    }

    /// The runtime of its thread.
    #[must_use]
    pub fn thread(&self) -> &Handle {
        self.0.runtime()
    }

    /// A connection with certificates on both sides.
    ///
    /// # Errors
    ///
    /// The failure of the handshake, for people.
    pub async fn connect(&self, address: SocketAddr) -> Result<Connection, String> {
        let connecting = self.0.connect(address).map_err(|error| error.to_string())?;
        connecting.await.map_err(|error| error.to_string())
    }
}

/// Gives a node of a cluster these bytes as gossip of a member, and lets it act: for the fuzzer of that decoder.
pub fn gossip(bytes: &[u8]) {
    crate::membership::fuzz(bytes);
}

/// Gives a member these bytes as a signed list of removed members: for the fuzzer of that decoder.
///
/// # Panics
///
/// If anybody's list is believed without the root of a cluster.
pub fn removals(bytes: &[u8]) {
    static IDENTITY: std::sync::LazyLock<Identity> = std::sync::LazyLock::new(|| {
        let directory = std::env::temp_dir().join(format!("callboard-fuzz-{}", std::process::id()));
        Identity::development_in(&directory).expect("a directory")
    });
    assert!(IDENTITY.take_list(bytes).is_err(), "no issuer is trusted here");
}

/// The lists of removed members that a node passes on: their versions and bytes, by issuer.
#[must_use]
pub fn lists(identity: &Identity) -> Vec<(String, u64, Vec<u8>)> {
    let lists = identity.watch_lists();
    let lists = lists.borrow();
    lists.iter().map(|(issuer, list)| (issuer.clone(), list.version, list.bytes.to_vec())).collect()
}

/// A list of these ids, signed with the key of this identity, whatever it may sign.
///
/// # Panics
///
/// When it cannot be signed.
#[must_use]
pub fn signed_list(identity: &Identity, version: u64, ids: &[&str]) -> Vec<u8> {
    identity.signed_list(version, ids).expect("a key")
}

/// Frames with their bodies.
pub type Frames = Vec<(FrameHead, Bytes)>;

impl RawPeer {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The failure of the handshake, for people.
    pub async fn connect(address: SocketAddr, identity: &Identity) -> Result<Self, String> {
        let endpoint = BareEndpoint::calling(identity).map_err(|error| error.to_string())?;
        Self::over(&endpoint, address).await
    }

    /// Connects from an existing endpoint.
    ///
    /// # Errors
    ///
    /// The failure of the handshake, for people.
    pub async fn over(endpoint: &BareEndpoint, address: SocketAddr) -> Result<Self, String> {
        let connection = endpoint.connect(address).await?;
        Ok(Self { connection, _transport: Arc::clone(&endpoint.0) })
    }

    /// Connects without a certificate.
    ///
    /// # Errors
    ///
    /// The failure of the handshake, for people.
    pub async fn anonymous(address: SocketAddr, trusted: &Identity) -> Result<Self, String> {
        let endpoint = BareEndpoint::calling(trusted).map_err(|error| error.to_string())?;
        let config = trusted.anonymous_client_tls().and_then(quic_client).map_err(|error| error.to_string())?;
        let connecting = endpoint.endpoint().connect_with(config, address, NODE_NAME);
        let connection = connecting.map_err(|error| error.to_string())?.await.map_err(|error| error.to_string())?;
        Ok(Self { connection, _transport: Arc::clone(&endpoint.0) })
    }

    /// Sends a hello, and waits for the welcome.
    ///
    /// # Errors
    ///
    /// The code and the text of the close.
    pub async fn greet(&self, hello: &Hello) -> Result<FrameHead, (Option<ResetCode>, String)> {
        let head = frame_head(FrameKind::Hello, 0, hello, 0).map_err(|error| (None, error.to_string()))?;
        let greeted = async {
            let (send, receive) = self.connection.open_bi().await.ok()?;
            let mut outgoing = FrameSender::new(send);
            outgoing.write(&mut [head]).await.ok()?;
            let mut incoming = FrameReceiver::new(receive, FrameLimits::default());
            incoming.next_head().await.ok().flatten()
        };
        match greeted.await {
            Some(welcome) => Ok(welcome),
            None => Err(closed(&self.connection.closed().await)),
        }
    }

    /// Sends as much as it can without a hello. Returns the number of streams and bytes.
    pub async fn flood(&self) -> (usize, usize) {
        flood(&self.connection).await
    }

    /// Opens as many streams and writes as much as it can, until nothing is accepted for this long. Returns the number
    /// of streams and bytes.
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

    /// Writes these bytes on a new stream, ends it, and reads the answer.
    ///
    /// # Errors
    ///
    /// The code with which the stream was reset.
    pub async fn exchange(&self, mut pieces: Vec<Bytes>) -> Result<Frames, Option<ResetCode>> {
        let (send, receive) = self.connection.open_bi().await.map_err(|_| None)?;
        let (mut outgoing, mut incoming) =
            (FrameSender::new(send), FrameReceiver::new(receive, FrameLimits::default()));
        // After a refusal in the middle, the reason is read below.
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

    /// Opens streams, and writes only on the last of them: QUIC opens the earlier ones with it.
    ///
    /// # Panics
    ///
    /// When the connection is closed.
    pub async fn begin_unwritten(&self, count: usize) -> Vec<RawStream> {
        let mut streams = Vec::new();
        for _ in 0..count {
            let (send, receive) = self.connection.open_bi().await.expect("the connection is there");
            streams.push(RawStream((FrameSender::new(send), FrameReceiver::new(receive, FrameLimits::default()))));
        }
        if let Some(last) = streams.last_mut() {
            last.write(vec![Bytes::from_static(b"C")]).await;
        }
        streams
    }

    /// Waits for the end of the connection.
    pub async fn lost(&self) -> ConnectionError {
        self.connection.closed().await
    }

    /// Writes these bytes on a new stream, and leaves it open.
    ///
    /// # Panics
    ///
    /// When the connection is closed.
    pub async fn begin(&self, pieces: Vec<Bytes>) -> RawStream {
        self.try_begin(pieces).await.expect("the connection is there")
    }

    /// The same; `None` if the connection is closed.
    pub async fn try_begin(&self, mut pieces: Vec<Bytes>) -> Option<RawStream> {
        let (send, receive) = self.connection.open_bi().await.ok()?;
        let mut outgoing = FrameSender::new(send);
        outgoing.write(&mut pieces).await.ok()?;
        Some(RawStream((outgoing, FrameReceiver::new(receive, FrameLimits::default()))))
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

    /// Writes this repeatedly, with pauses, until the stream is stopped. Returns how often.
    pub async fn trickle(&mut self, piece: Bytes, pause: Duration) -> usize {
        let mut written = 0;
        while self.0.0.write(&mut [piece.clone()]).await.is_ok() {
            written += 1;
            tokio::time::sleep(pause).await;
        }
        written
    }

    /// Writes zeros until nothing is accepted for this long. Returns how many.
    pub async fn fill(&mut self, silence: Duration) -> usize {
        let mut written = 0;
        let mut pieces = [Bytes::from_static(&[0; 1 << 12])];
        while let Ok(Ok((bytes, _))) = tokio::time::timeout(silence, self.0.0.write_some(&mut pieces)).await {
            written += bytes;
            pieces = [Bytes::from_static(&[0; 1 << 12])];
        }
        written
    }

    /// The next frame's head, without its body.
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

/// A function that closes every connection of an edge, each time it is called.
pub fn cutter(edge: &QuicEdge) -> impl Fn() + Send + Sync + 'static {
    edge.cutter()
}

/// The number of a client's calls that wait to be sent, and of its streams for calls.
#[must_use]
pub fn in_flight(client: &Client) -> (usize, usize) {
    client.in_flight()
}

/// The same for a node's connections to its peers.
#[must_use]
pub fn in_flight_of(cluster: &Cluster) -> (usize, usize) {
    cluster.in_flight()
}

/// Chooses a peer for a call of this stage, without the call. `false`: there is none.
#[must_use]
pub fn pick(cluster: &Cluster, stage: &str) -> bool {
    cluster.pick(stage)
}

/// An identity that trusts the authority of `trusted`, and presents the certificate of `presented`.
#[must_use]
pub fn presenting(trusted: &Identity, presented: &Identity) -> Identity {
    trusted.presenting(presented)
}

/// The same identity on a machine whose clock is ahead.
#[must_use]
pub fn ahead(identity: &Identity, by: Duration) -> Identity {
    identity.ahead(by)
}

/// The same identity on a machine of its own, and what sets its clock: the seconds by which it is ahead of the
/// system's.
pub fn with_own_clock(identity: &Identity) -> (Identity, impl Fn(i64) + Send + Sync + 'static) {
    identity.with_own_clock()
}

/// An identity of this authority that is valid for this time, and never renewed.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn issued(authority: &Authority, role: Role, name: &str, from: SystemTime, until: SystemTime) -> Identity {
    let validity = Validity { not_before: from, not_after: until };
    let (id, issuer) = ("0".to_owned(), String::new());
    let member = Member { role, name: name.to_owned(), id, validity, life: validity.life(), issuer, via: Vec::new() };
    Identity::issued(authority, &member).expect("the authority issues")
}

/// The same of an issuer that the authority has made itself: without the right to issue, or below another issuer.
///
/// # Panics
///
/// When it cannot be made.
#[must_use]
pub fn issued_below(authority: &Authority, name: &str, is_authority: bool) -> Identity {
    let (not_before, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let validity = Validity { not_before, not_after: not_before + hour };
    let (id, issuer, name) = ("0".to_owned(), String::new(), name.to_owned());
    let member = Member { role: Role::Node, name, id, validity, life: validity.life(), issuer, via: Vec::new() };
    Identity::issued_below(authority, &member, is_authority).expect("the authority issues")
}

/// An endpoint that serves with an identity of any role, and answers nothing. Keep the endpoint.
///
/// # Panics
///
/// When there is no socket.
#[must_use]
pub fn impostor(identity: &Identity) -> (SocketAddr, Endpoint) {
    let config = identity.server_tls().and_then(quic_server).expect("a certificate");
    let endpoint = Endpoint::server(config, (std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(arriving) = accepting.accept().await {
            tokio::spawn(async move { _ = arriving.await });
        }
    });
    (endpoint.local_addr().expect("it is bound"), endpoint)
}

/// A connection for joining that can send anything.
#[derive(Debug)]
pub struct RawJoiner {
    connection: Connection,
    request: String,
    _endpoint: Endpoint,
}

impl RawJoiner {
    /// Connects with a token.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn connect(address: SocketAddr, token: &JoinToken) -> Self {
        let (_, request) = certificate_request().expect("a request");
        Self::with_request(address, token, request).await
    }

    /// Connects again with the same key.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn once_more(&self, address: SocketAddr, token: &JoinToken) -> Self {
        Self::with_request(address, token, self.request()).await
    }

    /// Connects with a token and this certificate request, which may be any text.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn with_request(address: SocketAddr, token: &JoinToken, request: String) -> Self {
        let endpoint = Endpoint::client((std::net::Ipv4Addr::LOCALHOST, 0).into()).expect("a socket");
        Self::over(&endpoint, address, token, request).await.expect("any holder of a token may connect")
    }

    /// Connects from this address as often as it can. `None`: the machine does not have the address.
    ///
    /// # Panics
    ///
    /// When there is no request to be made.
    pub async fn many_from(from: std::net::IpAddr, address: SocketAddr, token: &JoinToken) -> Option<Vec<Self>> {
        let endpoint = Endpoint::client((from, 0).into()).ok()?;
        let mut accepted = Vec::new();
        while let Some(joiner) =
            Self::over(&endpoint, address, token, certificate_request().expect("a request").1).await
        {
            accepted.push(joiner);
        }
        Some(accepted)
    }

    async fn over(endpoint: &Endpoint, address: SocketAddr, token: &JoinToken, request: String) -> Option<Self> {
        let config = join_client_tls(token.pin()).and_then(quic_client).expect("a pin");
        let connecting = endpoint.connect_with(config, address, ISSUER_NAME).expect("an address");
        Some(Self { connection: connecting.await.ok()?, request, _endpoint: endpoint.clone() })
    }

    /// The header that an honest holder of the token sends on this connection.
    ///
    /// # Panics
    ///
    /// When the connection is closed.
    #[must_use]
    pub fn join_header(&self, cluster: &str, token: &JoinToken, name: &str) -> Join {
        let mut exported = [0; EXPORTED_BYTES];
        let bound = self.connection.export_keying_material(&mut exported, EXPORTER_LABEL, token.id().as_bytes());
        bound.expect("the connection is there");
        let proof = token.proof(&exported, name, self.request.as_bytes());
        Join { cluster: cluster.to_owned(), token: token.id(), name: name.to_owned(), proof }
    }

    /// Sends as much as it can without a request. Returns the number of streams and bytes.
    pub async fn flood(&self) -> (usize, usize) {
        flood(&self.connection).await
    }

    /// Its certificate request.
    #[must_use]
    pub fn request(&self) -> String {
        self.request.clone()
    }

    /// Sends a request. Returns the kind of the answer, and the word of the refusal.
    ///
    /// # Errors
    ///
    /// The code and the text of the close.
    pub async fn ask(&self, header: &Join, request: &str) -> Result<(FrameKind, String), (Option<ResetCode>, String)> {
        let head = frame_head(FrameKind::Join, 0, header, request.len()).map_err(|error| (None, error.to_string()))?;
        self.ask_in_bytes(vec![head, Bytes::copy_from_slice(request.as_bytes())]).await
    }

    /// Sends these bytes, as [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// The code and the text of the close.
    pub async fn ask_in_bytes(
        &self,
        mut pieces: Vec<Bytes>,
    ) -> Result<(FrameKind, String), (Option<ResetCode>, String)> {
        let exchange = async {
            let (send, receive) = self.connection.open_bi().await.ok()?;
            let mut outgoing = FrameSender::new(send);
            outgoing.write(&mut pieces).await.ok()?;
            outgoing.finish();
            let mut incoming = FrameReceiver::new(receive, FrameLimits::default());
            incoming.next_head().await.ok().flatten()
        };
        match exchange.await {
            Some(head) => {
                let word = head.header::<Fail>().ok().and_then(|fail| fail.error_type).unwrap_or_default();
                Ok((head.kind, word))
            }
            None => Err(closed(&self.connection.closed().await)),
        }
    }
}

/// Starts a frame on one stream, and writes as much as it can on further ones, until the connection ends. Returns the
/// number of streams and bytes.
async fn flood(connection: &Connection) -> (usize, usize) {
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
