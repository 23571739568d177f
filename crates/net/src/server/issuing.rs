//! Issues certificates on a node that holds an authority, on separate connections.
//!
//! One request, one answer, one connection; a silent connection ends with the hello timeout. Anyone may connect, so the
//! cheapest checks come first, and few requests use the authority's files at a time. Further requests wait for half of
//! the hello timeout, and are then refused as `busy`.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameKind, FrameLimits, Join, frame_head};
use callboard_core::ErrorKind;
use callboard_identity::{
    Authority, EXPORTED_BYTES, EXPORTER_LABEL, JoinDenied, JoinRequest, Member, is_issuer, with_sources,
};
use quinn::Connection;
use tokio::sync::Semaphore;

use super::ServerState;
use super::refusal_log::ConnectionRefusal;
use crate::endpoint::{MAX_REQUEST_BYTES, peer_chain, peer_member};
use crate::refusal::RefusalReason;
use crate::stream::{FrameReceiver, FrameSender};
use crate::wire::EmptyHeader;

/// Requests that use the authority's files at once.
const MAX_AT_ONCE: usize = 8;

/// The authority of this node, and the permits to use it.
#[derive(Debug)]
pub(super) struct Issuer {
    authority: Authority,
    permits: Arc<Semaphore>,
}

impl Issuer {
    pub(super) fn new(authority: Authority) -> Self {
        Self { authority, permits: Arc::new(Semaphore::new(MAX_AT_ONCE)) }
    }

    /// Remembers a connected member, which may have joined at another issuer.
    pub(super) fn remember(&self, server: &ServerState, connection: &Connection, member: &Member) {
        let (authority, permits, member) = (self.authority.clone(), Arc::clone(&self.permits), member.clone());
        let (is_issuer, now) = (peer_chain(connection).first().is_some_and(is_issuer), server.identity.clock().now());
        let runtime = server.runtime.clone();
        server.runtime.spawn(async move {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let remembered = runtime.spawn_blocking(move || authority.remember(&member, is_issuer, now)).await;
            if let Ok(Err(error)) = remembered {
                tracing::warn!("a connected member could not be remembered: {}", with_sources(&error));
            }
        });
    }
}

/// A request to the authority.
enum CertificateRequest {
    Join { header: Join, exported: Box<[u8; EXPORTED_BYTES]> },
    Renew { member: Option<Member> },
    ListRemoved { member: Option<Member> },
}

/// Answers the one request of a connection.
pub(super) async fn answer(
    connection: Connection,
    server: &Arc<ServerState>,
    issuer: &Issuer,
) -> Result<(), ConnectionRefusal> {
    let refuse = |reason: RefusalReason| {
        reason.close(&connection);
        reason
    };
    let (send, receive) = connection.accept_bi().await.map_err(|_| RefusalReason::Left)?;
    let limits = FrameLimits { max_body_bytes: MAX_REQUEST_BYTES, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (FrameSender::new(send), FrameReceiver::new(receive, limits));
    let head = incoming.next_head().await.ok().flatten().ok_or_else(|| refuse(RefusalReason::NoRequest))?;
    let request = match head.kind {
        FrameKind::Join => {
            let header: Join = head.header().map_err(|error| refuse((&error).into()))?;
            let mut exported = Box::new([0; EXPORTED_BYTES]);
            let bound = connection.export_keying_material(exported.as_mut(), EXPORTER_LABEL, header.token.as_bytes());
            bound.map_err(|_| refuse(RefusalReason::NoRequest))?;
            CertificateRequest::Join { header, exported }
        }
        FrameKind::Renew if head.body_bytes == 0 => {
            CertificateRequest::ListRemoved { member: peer_member(&connection) }
        }
        FrameKind::Renew => CertificateRequest::Renew { member: peer_member(&connection) },
        _ => return Err(refuse(RefusalReason::NoRequest).into()),
    };
    if let CertificateRequest::Renew { member: Some(member) } = &request
        && server.identity.is_removed(member)
    {
        // By another issuer, whose list has not reached this one's files yet.
        return Err(refuse(RefusalReason::RemovedMember).into());
    }
    let body = incoming.short_body(&head).await.map_err(|_| refuse(RefusalReason::NoRequest))?;
    let permit = Arc::clone(&issuer.permits).acquire_owned();
    let permit = tokio::time::timeout(server.config.hello_timeout / 2, permit).await;
    let Ok(Ok(permit)) = permit else { return Err(refuse(RefusalReason::Busy).into()) };
    let (authority, now) = (issuer.authority.clone(), server.identity.clock().now());
    // Files are used on a blocking thread, not on the thread that keeps connections alive.
    let handled = server.runtime.spawn_blocking(move || {
        let _permit = permit;
        (handle(&authority, &request, &body, now), request)
    });
    let Ok((outcome, request)) = handled.await else { return Err(refuse(RefusalReason::AuthorityFailed).into()) };
    let (kind, body, denied) = match outcome {
        Ok(answer) => {
            match request {
                CertificateRequest::Join { .. } => _ = server.metrics.counters.joined.inc(),
                CertificateRequest::Renew { .. } => _ = server.metrics.counters.renewed.inc(),
                CertificateRequest::ListRemoved { .. } => {}
            }
            (FrameKind::Certificate, Bytes::from(answer), None)
        }
        Err(denied) => (FrameKind::Fail, Bytes::new(), Some(denied)),
    };
    let head = match &denied {
        None => frame_head(kind, 0, &EmptyHeader {}, body.len()),
        Some(denied) => frame_head(kind, 0, &fail_header(denied), 0),
    };
    let head = head.map_err(|_| refuse(RefusalReason::AuthorityFailed))?;
    let received = outgoing.stopped();
    if outgoing.write(&mut [head, body]).await.is_ok() {
        outgoing.finish();
        received.await;
    }
    denied.map_or(Ok(()), |denied| Err(denied.into()))
}

fn handle(
    authority: &Authority,
    request: &CertificateRequest,
    body: &[u8],
    now: SystemTime,
) -> Result<String, JoinDenied> {
    match request {
        CertificateRequest::Join { header, exported } => {
            let Join { cluster, token, name, proof } = header;
            authority.admit(&JoinRequest { cluster, token, name, proof, exported, request: body }, now)
        }
        CertificateRequest::Renew { member } => authority.renew(member.clone(), body, now),
        CertificateRequest::ListRemoved { member } => authority.removed_list(member.as_ref(), now),
    }
}

fn fail_header(denied: &JoinDenied) -> Fail {
    Fail {
        kind: ErrorKind::PermissionDenied.as_str().to_owned(),
        message: denied.to_string(),
        error_type: Some(RefusalReason::from(denied).as_str().to_owned()),
        ..Fail::default()
    }
}
