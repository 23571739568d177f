//! Requests for certificates over QUIC: joining a cluster with a token, renewals, and the list of removed members.
//!
//! They go to a node that holds an authority, on connections of their own (ALPN `callboard-join/1`): one request, one
//! answer. A token is never sent. The pin in the token proves that the authority lets the node issue certificates, and
//! the proof that is sent is valid on this connection only. Within one call of [`join`], requests are repeated with the
//! same key, so a lost answer uses up no second use of the token.

mod error;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameKind, FrameLimits, Join, ResetCode, frame_head};
use callboard_identity::{
    AddressError, EXPORTED_BYTES, EXPORTER_LABEL, ISSUER_NAME, Identity, IssuerClient, JOIN_ALPN, JoinToken,
    MAX_LIST_BYTES, QuicUrl, certificate_request, cluster_name, join_client_tls, keep_renewed, pin, prepare_member,
    read_chain, save_member,
};
use quinn::{ClientConfig, Connection, Endpoint};

pub use self::error::JoinError;
use crate::endpoint::{MAX_REQUEST_BYTES, MetIssuers, Transport, code, peer_chain, port_closes, quic_client};
use crate::refusal::{RefusalReason, explained};
use crate::stream::{FrameReceiver, FrameSender};
use crate::wire::EmptyHeader;

/// How long one address may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Requests to an address that does not answer, or is busy.
const TRIES: usize = 2;

/// The pause before all addresses are asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Joins the cluster of a token: makes a key in `directory`, and requests a certificate for it from the node at `url`,
/// which must hold the authority that has made the token. Of several addresses one does; the member renews its
/// certificate at any of them. Without a `name`, the authority chooses the member's name.
///
/// # Errors
///
/// See [`JoinError`]. A directory that cannot be used, or has a valid identity, is an error before the token is used.
/// On any error, the directory is left as it was.
pub async fn join(
    token: &JoinToken,
    url: &QuicUrl,
    directory: &Path,
    name: Option<&str>,
) -> Result<Identity, JoinError> {
    let existed = directory.exists();
    prepare_member(directory)?;
    let joined = join_in(token, url, directory, name).await;
    if joined.is_err() && !existed {
        // Fails where another process has put a file there meanwhile.
        let _ = std::fs::remove_dir(directory);
    }
    joined
}

async fn join_in(
    token: &JoinToken,
    url: &QuicUrl,
    directory: &Path,
    name: Option<&str>,
) -> Result<Identity, JoinError> {
    let addresses = url.resolve(ANSWER_TIMEOUT).await?;
    let endpoint = endpoint()?;
    let config = quic_client(join_client_tls(token.pin())?)?;
    let (key, request) = certificate_request()?;
    let name = name.unwrap_or_default();
    let mut last = JoinError::Address(AddressError::NoAddress);
    for (tried, address) in addresses.iter().cycle().take(addresses.len() * TRIES).enumerate() {
        if tried > 0 && tried % addresses.len() == 0 {
            tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
        let answered = async {
            let connection = connect(&endpoint, config.clone(), *address).await?;
            let cluster = presented_cluster(&connection, token)?;
            let mut exported = [0; EXPORTED_BYTES];
            let bound = connection.export_keying_material(&mut exported, EXPORTER_LABEL, token.id().as_bytes());
            bound.map_err(|_| JoinError::Lost { address: *address, reason: "no keying material".to_owned() })?;
            let proof = token.proof(&exported, name, request.as_bytes());
            let header = Join { cluster, token: token.id(), name: name.to_owned(), proof };
            ask(&connection, *address, FrameKind::Join, &header, &request).await
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answered).await;
        match answer.unwrap_or(Err(JoinError::Silent { address: *address })) {
            Ok(chain) => {
                if pin(&read_chain(chain.as_bytes())?.root) != token.pin() {
                    let reason = "an answer of another authority".to_owned();
                    return Err(JoinError::Lost { address: *address, reason });
                }
                save_member(directory, url, &key, &chain)?;
                return Ok(Identity::open(directory)?);
            }
            // Another issuer may have made the token.
            Err(error) if error.is_final() && !(addresses.len() > 1 && error.is_unknown_token()) => return Err(error),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Starts the renewal of a transport's certificate, on the transport's thread.
pub(crate) fn spawn_renewal<C: ConnectedIssuers>(transport: &Transport, connected: C) {
    transport.runtime().spawn(keep_renewed(transport.identity().clone(), QuicIssuers::new(transport, connected)));
}

/// The addresses of issuers with a connection to this process.
pub(crate) trait ConnectedIssuers: Fn() -> Vec<SocketAddr> + Send + Sync + 'static {}

impl<C: Fn() -> Vec<SocketAddr> + Send + Sync + 'static> ConnectedIssuers for C {}

/// Sends requests to issuers from this endpoint: to the issuers in the member's directory, else to those that have
/// connected to this process, or that it has connected to. Any issuer renews any member: the first one may be gone for
/// good, or have moved and connected again before an operator edited that directory.
pub(crate) struct QuicIssuers<C> {
    endpoint: Endpoint,
    connected: C,
    met: MetIssuers,
}

impl<C: ConnectedIssuers> QuicIssuers<C> {
    pub(crate) fn new(transport: &Transport, connected: C) -> Self {
        Self { endpoint: transport.endpoint().clone(), connected, met: transport.issuers().clone() }
    }
}

impl<C: ConnectedIssuers> IssuerClient for QuicIssuers<C> {
    async fn request(
        &self,
        identity: &Identity,
        issuers: &QuicUrl,
        request: &str,
    ) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
        let (named, error) = match issuers.resolve(ANSWER_TIMEOUT).await {
            Ok(named) => match ask_issuers(&self.endpoint, identity, &named, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => (named, error),
            },
            Err(error) => (Vec::new(), error.into()),
        };
        let mut others = (self.connected)();
        let met = self.met.addresses().into_iter().filter(|address| !others.contains(address));
        others.extend(met.collect::<Vec<_>>());
        others.retain(|address| !named.contains(address));
        // An operator can mend the error of the named issuers.
        Ok(ask_issuers(&self.endpoint, identity, &others, request).await.map_err(|_| error)?)
    }
}

/// Asks one issuer after the other, with the current certificate.
async fn ask_issuers(
    endpoint: &Endpoint,
    identity: &Identity,
    issuers: &[SocketAddr],
    request: &str,
) -> Result<String, JoinError> {
    let config = quic_client(identity.client_tls(JOIN_ALPN)?)?;
    let mut last = JoinError::Address(AddressError::NoAddress);
    for &address in issuers {
        let answered = async {
            let connection = connect(endpoint, config.clone(), address).await?;
            ask(&connection, address, FrameKind::Renew, &EmptyHeader {}, request).await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, answered).await.unwrap_or(Err(JoinError::Silent { address })) {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A socket for this request, of both address families where the system has both.
fn endpoint() -> Result<Endpoint, JoinError> {
    let both = Endpoint::client((Ipv6Addr::UNSPECIFIED, 0).into());
    both.or_else(|_| Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())).map_err(JoinError::Socket)
}

async fn connect(endpoint: &Endpoint, config: ClientConfig, address: SocketAddr) -> Result<Connection, JoinError> {
    let target = match (endpoint.local_addr(), address) {
        // A socket of both families reaches IPv4 as mapped addresses.
        (Ok(SocketAddr::V6(_)), SocketAddr::V4(v4)) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        _ => address,
    };
    let lost = |reason: String| JoinError::Lost { address, reason };
    let connecting = endpoint.connect_with(config, target, ISSUER_NAME).map_err(|error| lost(error.to_string()))?;
    let connected = tokio::select! {
        biased;
        connected = connecting => connected,
        _ = port_closes(address) => return Err(JoinError::Absent { address }),
    };
    connected.map_err(|error| match RefusalReason::from_tls(&error) {
        Some(RefusalReason::UnknownAuthority) => JoinError::OtherAuthority { address },
        Some(RefusalReason::BadCertificate | RefusalReason::OtherProtocol) => JoinError::NoIssuer { address },
        Some(reason) => refused(address, reason),
        None => lost(error.to_string()),
    })
}

fn refused(address: SocketAddr, reason: RefusalReason) -> JoinError {
    JoinError::Refused { address, word: reason.as_str().to_owned(), reason: reason.explained() }
}

/// The name of the cluster, from the authority's certificate in the presented chain.
fn presented_cluster(connection: &Connection, token: &JoinToken) -> Result<String, JoinError> {
    let chain = peer_chain(connection);
    let authority = chain.iter().find(|certificate| pin(certificate) == token.pin());
    let address = connection.remote_address();
    authority.and_then(cluster_name).ok_or(JoinError::OtherAuthority { address })
}

async fn ask<H: serde::Serialize>(
    connection: &Connection,
    address: SocketAddr,
    kind: FrameKind,
    header: &H,
    request: &str,
) -> Result<String, JoinError> {
    let lost = |reason: &dyn std::fmt::Display| match connection.close_reason() {
        Some(quinn::ConnectionError::ApplicationClosed(close)) => {
            let word = String::from_utf8_lossy(&close.reason).into_owned();
            match word.as_str() {
                "" => JoinError::Lost { address, reason: "it has closed the connection".to_owned() },
                _ => JoinError::Refused { address, reason: explained(&word), word },
            }
        }
        Some(error) => match RefusalReason::from_tls(&error) {
            Some(reason) => refused(address, reason),
            None => JoinError::Lost { address, reason: error.to_string() },
        },
        None => JoinError::Lost { address, reason: reason.to_string() },
    };
    let (send, receive) = connection.open_bi().await.map_err(|error| lost(&error))?;
    let limits = FrameLimits { max_body_bytes: MAX_REQUEST_BYTES.max(MAX_LIST_BYTES), ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (FrameSender::new(send), FrameReceiver::new(receive, limits));
    let head = frame_head(kind, 0, header, request.len()).map_err(|error| lost(&error))?;
    let body = Bytes::copy_from_slice(request.as_bytes());
    outgoing.write(&mut [head, body]).await.map_err(|error| lost(&error))?;
    outgoing.finish();
    let head = incoming.next_head().await.map_err(|error| lost(&error))?.ok_or_else(|| lost(&"no answer"))?;
    let body = incoming.short_body(&head).await.map_err(|error| lost(&error))?;
    let answer = match head.kind {
        FrameKind::Certificate => Ok(String::from_utf8(body.to_vec()).map_err(|error| lost(&error))?),
        FrameKind::Fail => {
            let fail: Fail = head.header().map_err(|error| lost(&error))?;
            Err(JoinError::Refused { address, word: fail.error_type.unwrap_or_default(), reason: fail.message })
        }
        kind => Err(lost(&format_args!("answered with a frame of kind {kind}"))),
    };
    connection.close(code(ResetCode::Done), b"");
    answer
}
