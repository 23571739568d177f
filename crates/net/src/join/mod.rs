//! Asking for certificates: to join a cluster with a token, and to stay in it.
//!
//! Both go to a node that holds the authority, on connections of their own (ALPN `callboard-join/1`): one request, one answer. A token
//! is never sent. Whoever answers is proven by the digest in the token to be one whom the authority lets give certificates, and what is
//! sent proves the token for that very connection. Asked again because no answer came, within one call of [`join`], the same key
//! takes no second use of the token.

mod error;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameKind, FrameLimits, Join, frame_head};
use quinn::{ClientConfig, Connection, Endpoint};

pub use self::error::JoinError;
use crate::client::{QuicUrl, port_refuses};
use crate::endpoint::{MAX_REQUEST_BYTES, code};
use crate::identity::{
    EXPORTED_BYTES, EXPORTER_LABEL, ISSUER_NAME, Identity, JoinToken, MAX_LIST_BYTES, joining_config, keep_member, pin,
    prepare, read_chain, request,
};
use crate::refusal::{explained, tls_word};
use crate::stream::{Incoming, Outgoing};

/// How long one address may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// So often an address is asked that does not answer, or says that it is busy.
const TRIES: usize = 2;

/// Before all of them are asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// Joins the cluster of a token: makes a key in `directory`, and has a certificate given for it by the node at `url`, which has to be the one
/// that holds the authority. `name` is what the member is called; without one, it is given one.
///
/// # Errors
///
/// See [`JoinError`]; a directory that cannot be used, or that has an identity which still holds, before the token is used. The directory
/// is left as it was then.
pub async fn join(
    token: &JoinToken,
    url: &QuicUrl,
    directory: &Path,
    name: Option<&str>,
) -> Result<Identity, JoinError> {
    let was_there = directory.exists();
    prepare(directory)?;
    let joined = join_in(token, url, directory, name).await;
    if joined.is_err() && !was_there {
        // It is empty, or something has been put there that is nobody's to remove.
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
    let addresses = url.resolve(ANSWER_WITHIN).await?;
    let endpoint = endpoint()?;
    let config = ClientConfig::new(Arc::new(joining_config(token.pin())?));
    let (key, request) = request()?;
    let name = name.unwrap_or_default();
    let mut fault = JoinError::Nowhere;
    for (asked, address) in addresses.iter().cycle().take(addresses.len() * TRIES).enumerate() {
        if asked > 0 && asked % addresses.len() == 0 {
            tokio::time::sleep(PAUSE.mul_f64(0.5 + fastrand::f64())).await;
        }
        let asked = async {
            let connection = connect(&endpoint, config.clone(), *address).await?;
            let cluster = cluster_of(&connection, token)?;
            let mut exported = [0; EXPORTED_BYTES];
            let bound = connection.export_keying_material(&mut exported, EXPORTER_LABEL, token.id().as_bytes());
            bound.map_err(|_| JoinError::Lost { address: *address, reason: "no keying material".to_owned() })?;
            let proof = token.proof(&exported, name, request.as_bytes());
            let header = Join { cluster, token: token.id(), name: name.to_owned(), proof };
            ask(&connection, *address, FrameKind::Join, &header, &request).await
        };
        match tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or(Err(JoinError::Silent { address: *address })) {
            Ok(chain) => {
                let [_, authority] = read_chain(chain.as_bytes())?;
                if pin(&authority) != token.pin() {
                    return Err(JoinError::Lost {
                        address: *address,
                        reason: "an answer of another authority".to_owned(),
                    });
                }
                keep_member(directory, url, &key, &chain)?;
                return Ok(Identity::of_cluster(directory)?);
            }
            Err(error) if error.is_final() => return Err(error),
            Err(error) => fault = error,
        }
    }
    Err(fault)
}

/// Asks for a certificate in the place of this one.
pub(crate) async fn renew(
    endpoint: &Endpoint,
    identity: &Identity,
    issuers: &QuicUrl,
    request: &str,
) -> Result<String, JoinError> {
    ask_issuers(endpoint, identity, issuers, request).await
}

/// Asks which members were removed: a renewal of nothing.
pub(crate) async fn removed_members(
    endpoint: &Endpoint,
    identity: &Identity,
    issuers: &QuicUrl,
) -> Result<String, JoinError> {
    ask_issuers(endpoint, identity, issuers, "").await
}

/// Asks one issuer after the other, with the certificate that there is.
async fn ask_issuers(
    endpoint: &Endpoint,
    identity: &Identity,
    issuers: &QuicUrl,
    request: &str,
) -> Result<String, JoinError> {
    let config = ClientConfig::new(Arc::new(identity.client_config(true)?));
    let mut fault = JoinError::Nowhere;
    for address in issuers.resolve(ANSWER_WITHIN).await? {
        let asked = async {
            let connection = connect(endpoint, config.clone(), address).await?;
            ask(&connection, address, FrameKind::Renew, &Nothing {}, request).await
        };
        match tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or(Err(JoinError::Silent { address })) {
            Ok(chain) => return Ok(chain),
            Err(error) => fault = error,
        }
    }
    Err(fault)
}

/// An empty header.
#[derive(serde::Serialize)]
struct Nothing {}

/// A socket for this one purpose, of both families where the system has both.
fn endpoint() -> Result<Endpoint, JoinError> {
    let both = Endpoint::client((Ipv6Addr::UNSPECIFIED, 0).into());
    both.or_else(|_| Endpoint::client((Ipv4Addr::UNSPECIFIED, 0).into())).map_err(JoinError::Socket)
}

async fn connect(endpoint: &Endpoint, config: ClientConfig, address: SocketAddr) -> Result<Connection, JoinError> {
    let reached = match (endpoint.local_addr(), address) {
        // A socket of both families reaches those of the older one as mapped addresses.
        (Ok(SocketAddr::V6(_)), SocketAddr::V4(v4)) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        _ => address,
    };
    let lost = |reason: String| JoinError::Lost { address, reason };
    let connecting = endpoint.connect_with(config, reached, ISSUER_NAME).map_err(|error| lost(error.to_string()))?;
    let connected = tokio::select! {
        biased;
        connected = connecting => connected,
        _ = port_refuses(address) => return Err(JoinError::Absent { address }),
    };
    connected.map_err(|error| match tls_word(&error) {
        Some("unknown_authority") => JoinError::OtherAuthority { address },
        Some("bad_certificate" | "other_protocol") => JoinError::NoIssuer { address },
        Some(word) => JoinError::Refused { address, word: word.to_owned(), reason: explained(word) },
        None => lost(error.to_string()),
    })
}

/// What the cluster is called, by the certificate of the authority that was shown.
fn cluster_of(connection: &Connection, token: &JoinToken) -> Result<String, JoinError> {
    let address = connection.remote_address();
    let chain = connection.peer_identity().and_then(|shown| shown.downcast::<Vec<_>>().ok()).unwrap_or_default();
    let authority = chain.iter().find(|shown| pin(shown) == token.pin());
    authority.and_then(crate::identity::cluster_of).ok_or(JoinError::OtherAuthority { address })
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
        Some(error) => match tls_word(&error) {
            Some(word) => JoinError::Refused { address, word: word.to_owned(), reason: explained(word) },
            None => JoinError::Lost { address, reason: error.to_string() },
        },
        None => JoinError::Lost { address, reason: reason.to_string() },
    };
    let (send, receive) = connection.open_bi().await.map_err(|error| lost(&error))?;
    let limits = FrameLimits { max_body_bytes: MAX_REQUEST_BYTES.max(MAX_LIST_BYTES), ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, limits));
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
    connection.close(code(callboard_codec::wire::ResetCode::Done), b"");
    answer
}
