//! One UDP socket with QUIC on it, on a thread of its own: workers that take all cores cannot make it miss its timers.
//!
//! What is read and written on streams runs wherever its caller does; packets that arrive, acknowledgements and timers are the thread's.
//! What was written is sent by who wrote it, or by the thread.

mod driven;
mod ids;
#[cfg(unix)]
mod socket;
mod thaw;
mod thread;
mod tuning;
mod windows;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

use callboard_codec::wire::ResetCode;
use quinn::{ClientConfig, ConnectionError, Endpoint, EndpointConfig, Runtime, ServerConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use self::driven::{Turn, begin_here, send_now, sending};
use self::ids::ConnectionIds;
pub(crate) use self::thread::LAST_PACKETS;
use self::thread::OwnThread;
pub use self::tuning::{Tuning, TuningError};
pub(crate) use self::windows::{Ahead, Window, Windows};
use crate::identity::{Identity, IdentityError, NODE_NAME, fresh_key, keep_renewed};

/// Datagrams wait in it while the thread is busy; the system's default of 208 KiB is a few milliseconds of a large body.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// First packets of handshakes that nobody has taken up yet, all together.
const INCOMING_BUFFER_BYTES: u64 = 8 << 20;

/// A request for a certificate, and the answer to it, are a few kilobytes.
pub(crate) const MAX_REQUEST_BYTES: usize = 16 << 10;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address could not be bound: it is in use, or not this machine's.
    #[error("could not listen on {address}")]
    Address {
        /// Which one.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The identity cannot be used, or not there.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A knob of the transport that makes no sense.
    #[error(transparent)]
    Tuning(#[from] TuningError),
    /// The thread could not be started.
    #[error("could not start the transport's thread")]
    Thread(#[source] io::Error),
}

/// An endpoint with its thread. Dropping it closes every connection.
#[derive(Debug)]
pub(crate) struct Transport {
    endpoint: Endpoint,
    client: ClientConfig,
    identity: Identity,
    thread: OwnThread,
}

impl Transport {
    /// Binds a socket that answers peers as well as it reaches them. Theirs begin as `answering` has it.
    pub(crate) fn serving(
        address: SocketAddr,
        identity: Identity,
        tuning: &Tuning,
        answering: Arc<TransportConfig>,
    ) -> Result<Self, BindError> {
        identity.check_address(address)?;
        identity.check_role()?;
        tuning.check()?;
        let mut server = ServerConfig::with_crypto(Arc::new(identity.server_config()?));
        server.transport_config(answering);
        // Nodes do not move, and who pretends to is refused more cheaply so.
        server.migration(false);
        server.max_incoming(tuning.max_half_open);
        server.incoming_buffer_size_total(INCOMING_BUFFER_BYTES);
        Self::bind(address, identity, tuning, Some(server))
    }

    /// Binds a socket that reaches peers of both families, where the system has both. Who answers is checked peer by peer.
    pub(crate) fn reaching(identity: Identity, tuning: &Tuning) -> Result<Self, BindError> {
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
        let mut client = ClientConfig::new(Arc::new(identity.client_config(false)?));
        client.transport_config(tuning.calling());
        let failed = |source| BindError::Address { address, source };
        let socket = socket(address).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        let thread = OwnThread::spawn().map_err(BindError::Thread)?;
        // Both keys survive a restart: who comes back at the same address can tell its peers that their connections are gone.
        let mut config = EndpointConfig::new(Arc::new(identity.derived_key("stateless reset", bound)));
        let ids = ConnectionIds::new(identity.derived_key("connection ids", bound), fresh_key()?);
        config.cid_generator(move || Box::new(ids.clone()));
        config
            .max_udp_payload_size(tuning::LARGEST_PACKET_BYTES)
            .map_err(|_| failed(io::ErrorKind::InvalidInput.into()))?;
        config.min_reset_interval(std::time::Duration::from_millis(1));
        let runtime = thread.runtime();
        #[cfg(feature = "testing")]
        let runtime = runtime.with_faults(tuning.faults.clone());
        let runtime: Arc<dyn Runtime> = Arc::new(runtime);
        let endpoint = Endpoint::new(config, server, socket, runtime).map_err(failed)?;
        thread.handle().spawn(keep_renewed(identity.clone(), endpoint.clone()));
        Ok(Self { endpoint, client, identity, thread })
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Where tasks run that keep connections alive.
    pub(crate) fn runtime(&self) -> &tokio::runtime::Handle {
        self.thread.handle()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Begins a handshake with a peer.
    pub(crate) fn connect(&self, peer: SocketAddr) -> Result<quinn::Connecting, ConnectFault> {
        self.identity.check_address(peer)?;
        Ok(self.endpoint.connect_with(self.client.clone(), peer, NODE_NAME)?)
    }
}

/// Why a handshake was not even begun.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectFault {
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

/// A reset code as QUIC has it.
pub(crate) fn code(code: ResetCode) -> VarInt {
    VarInt::from_u32(code.number())
}

/// The TLS alert that ended a handshake, whether this side has raised it or the other (RFC 9001, 4.8). In TLS 1.3 a server's word on
/// the client's certificate comes when the client takes the connection for made.
pub(crate) fn tls_alert(error: &ConnectionError) -> Option<u64> {
    let number = match error {
        ConnectionError::TransportError(error) => u64::from(error.code),
        ConnectionError::ConnectionClosed(close) => u64::from(close.error_code),
        _ => return None,
    };
    (0x100..0x200).contains(&number).then(|| number - 0x100)
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = match address {
        // Peers of the other family come as mapped addresses, whatever the system's own default for that is.
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_only_v6(false)?;
            socket.bind(&address.into())?;
            UdpSocket::from(socket)
        }
        _ => UdpSocket::bind(address)?,
    };
    let options = socket2::SockRef::from(&socket);
    // The system may give less than is asked for, and says nothing; it works with less.
    let _ = options.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = options.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    Ok(socket)
}
