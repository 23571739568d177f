//! One UDP socket with QUIC, on its own thread, so that busy workers cannot delay its timers.
//!
//! Streams are read and written on the caller's thread. The endpoint's thread handles arriving packets,
//! acknowledgements and timers. Written data is sent by the writer or by the endpoint's thread.

#[cfg(feature = "testing")]
mod faults;
mod ids;
mod inline_driver;
mod port;
#[cfg(unix)]
mod socket;
mod suspend_guard;
mod thread;
mod tuning;
mod windows;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use callboard_codec::wire::ResetCode;
use callboard_identity::{ALPN, Identity, IdentityError, Member, NODE_NAME, is_issuer, random_key};
use parking_lot::Mutex;
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, Runtime, ServerConfig, TransportConfig, VarInt};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};

#[cfg(feature = "testing")]
pub use self::faults::{Bytes as BytesByAddress, FaultCounters, FaultProfile, Faults};

use self::ids::ConnectionIds;
pub(crate) use self::inline_driver::{FlushScope, flush_each_poll, flush_now, start_inline};
pub(crate) use self::port::{is_port_closed, port_closes};
use self::thread::EndpointThread;
pub(crate) use self::thread::LAST_PACKETS;
pub use self::tuning::{Tuning, TuningError};
pub(crate) use self::windows::{BodyWindow, ConnectionWindow, NodeWindows};

/// Buffers datagrams while the thread is busy. The system's default of 208 KiB holds a few milliseconds of a large
/// body.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// Limits the first packets of all handshakes that wait to be accepted.
const INCOMING_BUFFER_BYTES: u64 = 8 << 20;

/// The longest request for a certificate; requests and answers are a few kilobytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 << 10;

/// The most issuers that are remembered.
const MAX_ISSUERS: usize = 16;

/// The reason why an endpoint could not be bound.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address could not be bound: it is in use, or not of this machine.
    #[error("could not listen on {address}: {error}")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: io::Error,
    },
    /// The identity cannot be used, or not at this address.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A setting of the transport is invalid.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// The thread could not be started.
    #[error("could not start the transport's thread: {0}")]
    Thread(io::Error),
}

/// An endpoint with its thread. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Transport {
    endpoint: Endpoint,
    client: ClientConfig,
    tuning: Tuning,
    identity: Identity,
    issuers: MetIssuers,
    thread: EndpointThread,
}

/// The addresses of nodes that issue certificates, and that this process has connected to; the newest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct MetIssuers(Arc<Mutex<Vec<SocketAddr>>>);

impl MetIssuers {
    /// Remembers the node at this address, if it issues certificates.
    pub(crate) fn meet(&self, connection: &Connection, address: SocketAddr) {
        if peer_chain(connection).first().is_some_and(is_issuer) {
            let mut met = self.0.lock();
            met.retain(|known| *known != address);
            met.push(address);
            let superfluous = met.len().saturating_sub(MAX_ISSUERS);
            met.drain(..superfluous);
        }
    }

    /// Their addresses, the newest first.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.0.lock().iter().rev().copied().collect()
    }
}

impl Transport {
    /// Binds a socket that accepts connections and makes them. Accepted ones begin with the settings `answering`.
    pub(crate) fn serving(
        address: SocketAddr,
        identity: Identity,
        tuning: &Tuning,
        answering: Arc<TransportConfig>,
    ) -> Result<Self, BindError> {
        identity.check_address(address)?;
        identity.check_may_serve()?;
        tuning.check()?;
        let mut server = quic_server(identity.server_tls()?)?;
        server.transport_config(answering);
        // Nodes do not change their address, and forged migrations are cheaper to refuse this way.
        server.migration(false);
        server.max_incoming(tuning.max_half_open);
        server.incoming_buffer_size_total(INCOMING_BUFFER_BYTES);
        Self::bind(address, identity, tuning, Some(server))
    }

    /// Binds a socket for making connections, of both address families where the system has both.
    pub(crate) fn calling(identity: Identity, tuning: &Tuning) -> Result<Self, BindError> {
        tuning.check()?;
        let both = Self::bind((Ipv6Addr::UNSPECIFIED, 0).into(), identity.clone(), tuning, None);
        both.or_else(|_| Self::bind((Ipv4Addr::UNSPECIFIED, 0).into(), identity, tuning, None))
    }

    fn bind(
        address: SocketAddr,
        identity: Identity,
        tuning: &Tuning,
        server: Option<ServerConfig>,
    ) -> Result<Self, BindError> {
        let mut client = quic_client(identity.client_tls(ALPN)?)?;
        client.transport_config(tuning.calling());
        let failed = |error| BindError::Address { address, error };
        let socket = socket(address).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        let thread = EndpointThread::spawn().map_err(BindError::Thread)?;
        // Both keys survive a restart, so a restarted process can tell its peers that their connections are gone.
        let mut config = EndpointConfig::new(Arc::new(identity.derived_key("stateless reset", bound)));
        let ids = ConnectionIds::new(identity.derived_key("connection ids", bound), random_key()?);
        config.cid_generator(move || Box::new(ids.clone()));
        config
            .max_udp_payload_size(tuning::LARGEST_PACKET_BYTES)
            .map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        config.min_reset_interval(Duration::from_millis(1));
        let runtime = thread.runtime();
        #[cfg(feature = "testing")]
        let runtime = runtime.with_faults(tuning.faults.clone());
        let runtime: Arc<dyn Runtime> = Arc::new(runtime);
        let endpoint = Endpoint::new(config, server, socket, runtime).map_err(failed)?;
        Ok(Self { endpoint, client, tuning: tuning.clone(), identity, issuers: MetIssuers::default(), thread })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The runtime of the endpoint's thread, for tasks that keep connections alive.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.thread.handle()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn issuers(&self) -> &MetIssuers {
        &self.issuers
    }

    pub(crate) fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Starts a handshake with a peer.
    pub(crate) fn connect(&self, peer: SocketAddr) -> Result<quinn::Connecting, StartError> {
        self.identity.check_address(peer)?;
        Ok(self.endpoint.connect_with(self.client.clone(), peer, NODE_NAME)?)
    }
}

/// The reason why a handshake could not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Connect(#[from] quinn::ConnectError),
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.endpoint.close(code(ResetCode::Done), b"");
        self.thread.stop_after(self.endpoint.clone());
    }
}

/// A reset code as a QUIC number.
pub(crate) fn code(code: ResetCode) -> VarInt {
    VarInt::from_u32(code.number())
}

/// QUIC's form of TLS settings.
pub(crate) fn quic_client(tls: rustls::ClientConfig) -> Result<ClientConfig, IdentityError> {
    let config = QuicClientConfig::try_from(tls).map_err(unusable)?;
    Ok(ClientConfig::new(Arc::new(config)))
}

/// QUIC's form of TLS settings.
pub(crate) fn quic_server(tls: rustls::ServerConfig) -> Result<ServerConfig, IdentityError> {
    let config = QuicServerConfig::try_from(tls).map_err(unusable)?;
    Ok(ServerConfig::with_crypto(Arc::new(config)))
}

fn unusable(error: NoInitialCipherSuite) -> IdentityError {
    IdentityError::Unusable(Box::new(error))
}

/// The certificates that the peer presented; empty where it presented none.
pub(crate) fn peer_chain(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let chain = connection.peer_identity().and_then(|chain| chain.downcast().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

/// The member that the peer's certificate names.
pub(crate) fn peer_member(connection: &Connection) -> Option<Member> {
    Member::from_certificate(peer_chain(connection).first()?)
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match address {
        // IPv4 peers appear as mapped addresses, for any default of the system.
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_only_v6(false)?;
            socket.bind(&address.into())?;
            UdpSocket::from(socket)
        }
        _ => UdpSocket::bind(address)?,
    };
    let options = socket2::SockRef::from(&socket);
    // The system may grant less without an error; the endpoint works with less.
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    Ok(socket)
}
