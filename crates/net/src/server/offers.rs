//! The offers of this node, sent to its callers with the welcome, and again after every change.
//!
//! One task at a time sends to a caller, so the list that arrives last is current. A caller that does not receive a
//! list in time gets the next one. Clients receive routes only: stages and actors are for nodes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use callboard_codec::Payload;
use callboard_codec::wire::{FrameKind, Offer, frame_head};
use callboard_core::LocalClient;
use callboard_core::edge::Route;
use callboard_identity::Role;
use quinn::Connection;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::ServerState;
use crate::offers::{MAX_OFFERED_STAGES, MAX_OFFERS_BYTES};
use crate::stream::FrameSender;
use crate::wire::{self, EmptyHeader};

/// The interval at which the offers are compared with the sent offers.
pub(crate) const OFFERS_EVERY: Duration = Duration::from_millis(100);

/// The longest time for sending to one caller. Threat: a caller that reads nothing.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The offers that a caller received last; locked while new ones are sent.
#[derive(Clone, Debug)]
pub(super) struct LastOffers(Arc<Mutex<Bytes>>);

impl LastOffers {
    /// The offers that were sent with the welcome.
    pub(super) fn new(body: Bytes) -> Self {
        Self(Arc::new(Mutex::new(body)))
    }

    /// Locks them for sending `body`. `None`: the caller has it already, or a list is being sent.
    fn lock_to_send(&self, body: &Bytes) -> Option<OwnedMutexGuard<Bytes>> {
        let mut last = Arc::clone(&self.0).try_lock_owned().ok()?;
        // Compared many times a second, and changed seldom: equal lists share their memory from then on, so that the
        // next comparison is cheap.
        let is_shared = last.as_ptr() == body.as_ptr() && last.len() == body.len();
        if is_shared || *last == *body {
            last.clone_from(body);
            return None;
        }
        Some(last)
    }
}

/// The default timeout of a route; 0 where it is the node's.
fn timeout_millis(node: &LocalClient, route: &Route) -> u64 {
    let timeout = node.edge().timeout_of(route, None);
    if timeout == node.edge().default_timeout() { 0 } else { wire::millis(timeout) }
}

/// The current offers for callers of this role, as an envelope. Callers limit its length: stages come first, then
/// routes with special properties, then actors. Callers assume the usual properties for a route that is left out, and
/// nodes without actors take one for such a route.
pub(super) fn offers(server: &ServerState, role: Role) -> Bytes {
    let Some(node) = server.node() else { return Bytes::new() };
    let routes = node.routes().into_iter().map(|route| Offer {
        name: route.name().to_owned(),
        revision: route.revision(),
        streams: route.streams(),
        idempotent: node.edge().may_run_again(&route),
        timeout_millis: timeout_millis(&node, &route),
        ..Offer::default()
    });
    let (stages, actors) = match role {
        Role::Node => (node.edge().offered_stages(), node.edge().published_actors()),
        _ => Default::default(),
    };
    let actors = actors.into_iter().map(|name| Offer { name, actor: true, ..Offer::default() });
    let stages = stages.into_iter().take(MAX_OFFERED_STAGES).map(|stage| Offer {
        name: stage.name,
        stage: true,
        revision: stage.revision,
        streams: stage.streams,
        idempotent: stage.contract.may_run_again(),
        ..Offer::default()
    });
    let is_special = |offer: &Offer| offer.streams || offer.idempotent || offer.timeout_millis > 0;
    let (mut offers, plain): (Vec<Offer>, Vec<Offer>) =
        stages.chain(routes).chain(actors).partition(|offer| offer.stage || offer.actor || is_special(offer));
    offers.extend(plain);
    encode_up_to(offers, MAX_OFFERS_BYTES)
}

/// Encodes as many offers as fit, from the first on.
fn encode_up_to(mut offers: Vec<Offer>, most: usize) -> Bytes {
    loop {
        let body = Payload::new(offers.clone()).to_envelope().map(callboard_codec::Envelope::into_bytes);
        let body = body.unwrap_or_default();
        if body.len() <= most {
            return body;
        }
        // Names differ in length, so a little less than in proportion is kept, until it fits.
        offers.truncate(offers.len() * most / body.len() * 9 / 10);
    }
}

/// Sends the offers to callers whenever they have changed. Compared a few times a second, because stages start and stop
/// for many reasons.
pub(super) async fn send_offers(server: Weak<ServerState>) {
    let (mut of_nodes, mut of_clients) = (Bytes::new(), Bytes::new());
    loop {
        tokio::time::sleep(OFFERS_EVERY).await;
        let Some(server) = server.upgrade() else { return };
        for (last, role) in [(&mut of_nodes, Role::Node), (&mut of_clients, Role::Client)] {
            let now = offers(&server, role);
            if now != *last {
                *last = now;
            }
        }
        for open in server.connections.lock().iter() {
            let body = if open.role == Role::Node { &of_nodes } else { &of_clients };
            if let Some(last) = open.last_offers.lock_to_send(body) {
                tokio::spawn(send(open.connection.clone(), body.clone(), last));
            }
        }
    }
}

async fn send(connection: Connection, body: Bytes, mut last: OwnedMutexGuard<Bytes>) {
    let sending = async {
        let mut outgoing = FrameSender::new(connection.open_uni().await.ok()?);
        let head = frame_head(FrameKind::Offers, 0, &EmptyHeader {}, body.len()).ok()?;
        outgoing.write(&mut [head, body.clone()]).await.ok()?;
        outgoing.finish();
        Some(())
    };
    if let Ok(Some(())) = tokio::time::timeout(SEND_TIMEOUT, sending).await {
        *last = body;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_cut_to_the_length_that_callers_accept() {
        let offer = |n: usize| Offer { name: format!("/{}", "a".repeat(n % 200)), ..Offer::default() };
        for count in [0, 10, 1_000, 10_000] {
            let offers: Vec<Offer> = (0..count).map(offer).collect();
            let body = encode_up_to(offers.clone(), MAX_OFFERS_BYTES);
            assert!(body.len() <= MAX_OFFERS_BYTES);
            let limits = callboard_codec::DecodeLimits::default();
            let value = callboard_codec::Value::decode(callboard_codec::Format::Envelope, &body, &limits).unwrap();
            let read: Vec<Offer> = value.deserialize().unwrap();
            assert_eq!(read, offers[..read.len()]);
            assert!(read.len() == count || body.len() > MAX_OFFERS_BYTES / 2, "{} of {count}", read.len());
        }
    }

    #[test]
    fn one_task_at_a_time_sends_offers_that_have_changed() {
        let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new"));
        let last = LastOffers::new(old.clone());
        assert!(last.lock_to_send(&old).is_none(), "the welcome contained it");
        let mut sending = last.lock_to_send(&new).expect("it has changed");
        assert!(last.lock_to_send(&new).is_none(), "a task is sending");
        *sending = new.clone();
        drop(sending);
        assert!(last.lock_to_send(&new).is_none());
        // A task that did not finish has sent nothing.
        drop(last.lock_to_send(&old).expect("it has changed again"));
        assert!(last.lock_to_send(&old).is_some());
    }
}
