//! What the node offers, and how its callers hear of it: all with the welcome, and again whenever it has changed.
//!
//! A caller is told by one task at a time, so that what it heard last is what holds. One that does not take it in time, or was let in while
//! something changed, is told what holds at the next look. Clients are shown routes only: stages are for nodes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_codec::wire::{FrameKind, Offer, frame_head};
use callboard_core::LocalClient;
use callboard_core::edge::Route;
use quinn::Connection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::Serving;
use crate::client::{MAX_OFFERED_STAGES, MAX_OFFERS_BYTES};
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
        let mut told = Arc::clone(&self.0).try_lock_owned().ok()?;
        // Looked at many times a second, and changed seldom: what is the same is one and the same from then on.
        let is_one = told.as_ptr() == body.as_ptr() && told.len() == body.len();
        if is_one || *told == *body {
            told.clone_from(body);
            return None;
        }
        Some(told)
    }
}

/// How long a call of this route may take whose caller does not say; 0 where it is what the node says of itself.
fn timeout_millis(node: &LocalClient, route: &Route) -> u64 {
    let timeout = node.timeout_of(route, None);
    if timeout == node.default_timeout() { 0 } else { convert::millis(timeout) }
}

/// What the node offers now to a caller of this role, as an envelope. Callers take so much: stages come first, then routes of which there is
/// something to say. Of a route that is left out callers assume what holds for most.
pub(super) fn offers(serving: &Serving, role: Role) -> Bytes {
    let Some(node) = serving.node() else { return Bytes::new() };
    let routes = node.routes().into_iter().map(|route| Offer {
        name: route.name().to_owned(),
        revision: route.revision(),
        streams: route.streams(),
        idempotent: route.may_run_again(),
        timeout_millis: timeout_millis(&node, &route),
        ..Offer::default()
    });
    let stages = if role == Role::Node { node.offered_stages() } else { Vec::new() };
    let stages = stages.into_iter().take(MAX_OFFERED_STAGES).map(|stage| Offer {
        name: stage.name,
        stage: true,
        revision: stage.revision,
        streams: stage.streams,
        idempotent: stage.contract.may_run_again(),
        timeout_millis: 0,
    });
    let (mut offers, plain): (Vec<Offer>, Vec<Offer>) = stages
        .chain(routes)
        .partition(|offer| offer.stage || offer.streams || offer.idempotent || offer.timeout_millis > 0);
    offers.extend(plain);
    within(offers, MAX_OFFERS_BYTES)
}

/// As many of them as fit, from the first on.
fn within(mut offers: Vec<Offer>, most: usize) -> Bytes {
    loop {
        let body = Payload::new(offers.clone()).to_envelope().map(callboard_codec::Envelope::into_bytes);
        let body = body.unwrap_or_default();
        if body.len() <= most {
            return body;
        }
        // Names differ in length: a little less than in proportion, until it fits.
        offers.truncate(offers.len() * most / body.len() * 9 / 10);
    }
}

/// Tells callers what is offered, whenever that is not what they know: looked at a few times a second, because stages come and go by many
/// ways.
pub(super) async fn tell_offers(serving: Weak<Serving>) {
    let (mut of_nodes, mut of_clients) = (Bytes::new(), Bytes::new());
    loop {
        tokio::time::sleep(OFFERS_EVERY).await;
        let Some(serving) = serving.upgrade() else { return };
        for (last, role) in [(&mut of_nodes, Role::Node), (&mut of_clients, Role::Client)] {
            let now = offers(&serving, role);
            if now != *last {
                *last = now;
            }
        }
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
    fn as_much_is_offered_as_callers_take() {
        let offer = |n: usize| Offer { name: format!("/{}", "a".repeat(n % 200)), ..Offer::default() };
        for count in [0, 10, 1_000, 10_000] {
            let offers: Vec<Offer> = (0..count).map(offer).collect();
            let body = within(offers.clone(), MAX_OFFERS_BYTES);
            assert!(body.len() <= MAX_OFFERS_BYTES);
            let limits = callboard_codec::DecodeLimits::default();
            let value = callboard_codec::Value::decode(callboard_codec::Format::Envelope, &body, &limits).unwrap();
            let told: Vec<Offer> = value.deserialize().unwrap();
            assert_eq!(told, offers[..told.len()]);
            assert!(told.len() == count || body.len() > MAX_OFFERS_BYTES / 2, "{} of {count}", told.len());
        }
    }

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
