//! Certificates for those who ask: on the node that holds the authority, on connections of their own.
//!
//! One request, one answer, one connection: who has said nothing within the time of a hello is gone. Anybody may connect to ask, so
//! what is looked at first costs least, and the authority's files are used by a few at a time. Others wait for their turn, for half
//! that time, and are told to come again behind it.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use callboard_codec::wire::{Fail, FrameKind, FrameLimits, Join, ResetCode, frame_head};
use callboard_core::ErrorKind;
use quinn::Connection;
use tokio::sync::Semaphore;

use super::Serving;
use super::notices::Refusal;
use crate::endpoint::{MAX_REQUEST_BYTES, code};
use crate::identity::{Authority, Denial, EXPORTED_BYTES, EXPORTER_LABEL, Joining, Member};
use crate::stream::{Incoming, Outgoing};

/// Requests that are looked into at once.
const MAX_AT_ONCE: usize = 8;

/// The authority of this node, and who waits for it.
#[derive(Debug)]
pub(super) struct Issuing {
    authority: Authority,
    turns: Arc<Semaphore>,
}

impl Issuing {
    pub(super) fn new(authority: Authority) -> Self {
        Self { authority, turns: Arc::new(Semaphore::new(MAX_AT_ONCE)) }
    }
}

/// What was asked for.
enum Wish {
    Join {
        header: Join,
        exported: Box<[u8; EXPORTED_BYTES]>,
    },
    Renew {
        member: Option<Member>,
    },
    /// Which members were removed.
    Removed {
        member: Option<Member>,
    },
}

/// Answers the one request of a connection.
pub(super) async fn answer(connection: Connection, serving: &Arc<Serving>, issuing: &Issuing) -> Result<(), Refusal> {
    let refuse = |word: &'static str| {
        connection.close(code(ResetCode::Refused), word.as_bytes());
        word
    };
    let (send, receive) = connection.accept_bi().await.map_err(|_| "left")?;
    let limits = FrameLimits { max_body_bytes: MAX_REQUEST_BYTES, ..FrameLimits::default() };
    let (mut outgoing, mut incoming) = (Outgoing::new(send), Incoming::new(receive, limits));
    let head = incoming.next_head().await.ok().flatten().ok_or_else(|| refuse("no_request"))?;
    let wish = match head.kind {
        FrameKind::Join => {
            let header: Join = head.header().map_err(|error| refuse(error.as_str()))?;
            let mut exported = Box::new([0; EXPORTED_BYTES]);
            let bound = connection.export_keying_material(exported.as_mut(), EXPORTER_LABEL, header.token.as_bytes());
            bound.map_err(|_| refuse("no_request"))?;
            Wish::Join { header, exported }
        }
        FrameKind::Renew if head.body_bytes == 0 => Wish::Removed { member: Member::of_peer(&connection) },
        FrameKind::Renew => Wish::Renew { member: Member::of_peer(&connection) },
        _ => return Err(refuse("no_request").into()),
    };
    let request = incoming.short_body(&head).await.map_err(|_| refuse("no_request"))?;
    let turn = tokio::time::timeout(serving.config.hello_timeout / 2, Arc::clone(&issuing.turns).acquire_owned());
    let Ok(Ok(turn)) = turn.await else { return Err(refuse("busy").into()) };
    let (authority, now) = (issuing.authority.clone(), serving.identity.clock().now());
    // Files are read and written: not on the thread that keeps connections alive.
    let looked_into = serving.runtime.spawn_blocking(move || {
        let _turn = turn;
        (look_into(&authority, &wish, &request, now), wish)
    });
    let Ok((outcome, wish)) = looked_into.await else { return Err(refuse("authority_failed").into()) };
    let (kind, body, refused) = match outcome {
        Ok(chain) => {
            match wish {
                Wish::Join { .. } => _ = serving.metrics.joined.inc(),
                Wish::Renew { .. } => _ = serving.metrics.renewed.inc(),
                Wish::Removed { .. } => {}
            }
            (FrameKind::Certificate, Bytes::from(chain), None)
        }
        Err(denial) => (FrameKind::Fail, Bytes::new(), Some(denial)),
    };
    let head = match &refused {
        None => frame_head(kind, 0, &Nothing {}, body.len()),
        Some(denial) => frame_head(kind, 0, &refusal(denial), 0),
    };
    let head = head.map_err(|_| refuse("authority_failed"))?;
    let taken = outgoing.stopped();
    if outgoing.write(&mut [head, body]).await.is_ok() {
        outgoing.finish();
        taken.await;
    }
    refused.map_or(Ok(()), |denial| Err(denial.into()))
}

/// An empty header.
#[derive(serde::Serialize)]
struct Nothing {}

fn look_into(authority: &Authority, wish: &Wish, request: &[u8], now: SystemTime) -> Result<String, Denial> {
    match wish {
        Wish::Join { header, exported } => {
            let Join { cluster, token, name, proof } = header;
            authority.admit(&Joining { cluster, token, name, proof, exported, request }, now)
        }
        Wish::Renew { member } => authority.renew(member.clone(), request, now),
        Wish::Removed { member } => authority.tell_removed(member.as_ref(), now),
    }
}

fn refusal(denial: &Denial) -> Fail {
    Fail {
        kind: ErrorKind::PermissionDenied.as_str().to_owned(),
        message: denial.to_string(),
        error_type: Some(denial.word().to_owned()),
        ..Fail::default()
    }
}
