//! What the node offers, and how its callers hear of it: all with the welcome, and again whenever it has changed.
//!
//! A caller is told by one task at a time, so that what it heard last is what holds. One that does not take it in time, or was let in while
//! something changed, is told what holds at the next look. Clients are shown routes only: stages are for nodes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_codec::wire::{FrameKind, Offer, frame_head};
use quinn::Connection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Serving;
use crate::convert;
use crate::identity::Role;
use crate::stream::Outgoing;

/// How soon callers hear of a route or a stage that has come.
const OFFERS_EVERY: Duration = Duration::from_millis(100);

/// How long one of them may take to hear of it. Threat: one that reads nothing.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// What one caller was told last; locked while it is being told.
#[derive(Clone, Debug)]
pub(super) struct Told(Arc<Mutex<Bytes>>);

impl Told {
    /// Told this with the welcome.
    pub(super) fn new(body: Bytes) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    /// For whoever tells it `body` now: nobody, where it knows that, or is being told something.
    fn to_hear(&self, body: &Bytes) -> Option<OwnedMutexGuard<Bytes>> {
        Arc::clone(&self.0).try_lock_owned().ok().filter(|told| **told != *body)
    }
}

/// What the node offers now to a caller of this role, as an envelope.
pub(super) fn offers(serving: &Serving, role: Role) -> Bytes {
    let Some(node) = serving.node() else { return Bytes::new() };
    let routes = node.routes().into_iter().map(|route| Offer {
        name: route.name().to_owned(),
        revision: route.revision(),
        streams: route.streams(),
        timeout_millis: route.default_timeout().map_or(0, convert::millis),
        ..Offer::default()
    });
    let stages = if role == Role::Node { node.offered_stages() } else { Vec::new() };
    let stages = stages.into_iter().map(|stage| Offer {
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

/// Tells callers what is offered, whenever that is not what they know: looked at a few times a second, because stages come and go by many
/// ways.
pub(super) async fn tell_offers(serving: Weak<Serving>) {
    loop {
        tokio::time::sleep(OFFERS_EVERY).await;
        let Some(serving) = serving.upgrade() else { return };
        let (of_nodes, of_clients) = (offers(&serving, Role::Node), offers(&serving, Role::Client));
        for open in serving.connections.lock().iter() {
            let body = if open.role == Role::Node { &of_nodes } else { &of_clients };
            if let Some(told) = open.told.to_hear(body) {
                tokio::spawn(say_offers(open.connection.clone(), body.clone(), told));
            }
        }
    }
}

async fn say_offers(connection: Connection, body: Bytes, mut told: OwnedMutexGuard<Bytes>) {
    let saying = async {
        let mut outgoing = Outgoing::new(connection.open_uni().await.ok()?);
        let head = frame_head(FrameKind::Offers, 0, &Nothing {}, body.len()).ok()?;
        outgoing.write(&mut [head, body.clone()]).await.ok()?;
        outgoing.finish();
        Some(())
    };
    if let Ok(Some(())) = tokio::time::timeout(HEARD_WITHIN, saying).await {
        *told = body;
    }
}

/// An empty header.
#[derive(serde::Serialize)]
struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_hears_what_it_does_not_know_from_one_task_at_a_time() {
        let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new"));
        let told = Told::new(old.clone());
        assert!(told.to_hear(&old).is_none(), "it came with the welcome");
        let mut telling = told.to_hear(&new).expect("it has changed");
        assert!(told.to_hear(&new).is_none(), "somebody is at it");
        *telling = new.clone();
        drop(telling);
        assert!(told.to_hear(&new).is_none());
        // Who did not come to the end of it has told nothing.
        drop(told.to_hear(&old).expect("it has changed again"));
        assert!(told.to_hear(&old).is_some());
    }
}
