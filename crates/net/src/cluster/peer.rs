//! One other node, and what is known of it. `linking.rs` keeps the connection to it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use callboard_core::Instant;
use callboard_core::remote::PeerDescription;
use parking_lot::Mutex;

use super::standing::Standing;
use super::weigh::Weight;
use crate::client::Link;

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    key: u64,
    link: ArcSwapOption<Link>,
    /// Since when there is one without a break.
    linked_since: Mutex<Option<Instant>>,
    /// It is this node, by an address that it does not know for its own.
    pub(super) is_ourselves: AtomicBool,
    /// Of each stage that this node calls.
    stages: Mutex<HashMap<String, Standing>>,
}

/// A peer that may be asked to run a stage.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) peer: Arc<Peer>,
    pub(super) link: Arc<Link>,
    pub(super) weight: Weight,
    /// The peer says that the stage may be run again.
    pub(super) idempotent: bool,
    pub(super) revision: u64,
    /// How long nothing should go there, if its calls came to nothing lately.
    pub(super) out_until: Option<Instant>,
}

impl Candidate {
    /// What its node is called, or where it is.
    pub(super) fn name(&self) -> String {
        match self.link.welcome().node.as_str() {
            "" => self.peer.address().to_string(),
            name => name.to_owned(),
        }
    }
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        let key = (u64::from(address.port()) << 32) ^ address_bits(address);
        let (link, is_ourselves) = (ArcSwapOption::empty(), AtomicBool::new(false));
        Self { address, key, link, linked_since: Mutex::default(), is_ourselves, stages: Mutex::default() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What speaks for and against calling this stage here, if it is offered, in the form that is wanted.
    pub(super) fn candidate(self: &Arc<Self>, stage: &str, streams: Option<bool>, now: Instant) -> Option<Candidate> {
        let link = self.link.load_full().filter(|link| link.is_usable())?;
        let offer =
            link.offer_of_stage(stage).filter(|offer| streams.is_none_or(|streams| offer.streams == streams))?;
        let stages = self.stages.lock();
        let unknown = Standing::default();
        let standing = stages.get(stage).unwrap_or(&unknown);
        let (in_hand, latency_micros) = (standing.in_hand(now), standing.latency_micros(now));
        let weight = Weight { in_hand, latency_micros, key: self.key };
        let out_until = standing.breaker.out_of_order_until(now);
        drop(stages);
        let (idempotent, revision) = (offer.idempotent, offer.revision);
        Some(Candidate { peer: Arc::clone(self), link, weight, idempotent, revision, out_until })
    }

    /// Whether it can be reached and runs the stage.
    pub(super) fn offers(&self, stage: &str) -> bool {
        self.link.load().as_ref().is_some_and(|link| link.is_usable() && link.offer_of_stage(stage).is_some())
    }

    /// Calls that wait to be sent, and streams.
    #[cfg(feature = "testing")]
    pub(super) fn in_hand(&self) -> (usize, usize) {
        self.link.load().as_ref().map_or((0, 0), |link| link.in_hand())
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.load().as_ref().is_some_and(|link| link.is_usable())
    }

    /// Calls go on this link from now on, or on none.
    pub(super) fn set_link(&self, link: Option<Arc<Link>>, now: Instant) {
        let mut since = self.linked_since.lock();
        *since = link.as_ref().map(|_| since.unwrap_or(now));
        self.link.store(link);
    }

    /// What is known of it. `None` for this node itself.
    pub(super) fn describe(&self, now: Instant) -> Option<PeerDescription> {
        if self.is_ourselves.load(Ordering::Acquire) {
            return None;
        }
        let away = PeerDescription::away(self.address.to_string());
        let linked = self.link.load_full().filter(|link| link.is_usable());
        let (Some(link), Some(since)) = (linked, *self.linked_since.lock()) else { return Some(away) };
        let linked_for = now.saturating_duration_since(since);
        Some(away.linked(link.welcome().node.clone(), linked_for, link.offered_stages()))
    }

    /// A call goes there; it is counted until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, stage: &str, now: Instant) -> InHand {
        self.note(stage, |standing| standing.began(now));
        InHand { peer: Arc::clone(self), stage: stage.to_owned(), streams: false }
    }

    /// Notes what was heard of a stage there.
    pub(super) fn note(&self, stage: &str, note: impl FnOnce(&mut Standing)) {
        let mut stages = self.stages.lock();
        match stages.get_mut(stage) {
            Some(standing) => note(standing),
            // There are as many as there are stages that this node calls.
            None => note(stages.entry(stage.to_owned()).or_default()),
        }
    }
}

/// One of our calls that a peer has in hand.
#[derive(Debug)]
pub(super) struct InHand {
    peer: Arc<Peer>,
    stage: String,
    /// It is a stream that has begun.
    streams: bool,
}

impl InHand {
    /// It answers with a stream, whose first output is there.
    pub(super) fn streams(&mut self) {
        self.streams = true;
        self.peer.note(&self.stage, |standing| standing.streams(Instant::now()));
    }

    /// It goes on.
    pub(super) fn heard(&self) {
        self.peer.note(&self.stage, |standing| standing.heard(Instant::now()));
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.peer.note(&self.stage, |standing| standing.ended(self.streams));
    }
}

fn address_bits(address: SocketAddr) -> u64 {
    match address.ip() {
        std::net::IpAddr::V4(ip) => u64::from(u32::from(ip)),
        std::net::IpAddr::V6(ip) => {
            let bits = u128::from(ip);
            (bits >> 64) as u64 ^ bits as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_stage_that_fails_there_is_left_alone_and_the_others_are_not() {
        let (peer, now) = (Arc::new(Peer::new(SocketAddr::from(([127, 0, 0, 1], 1)))), Instant::now());
        for _ in 0..10 {
            let in_hand = [peer.begin("bad", now), peer.begin("good", now)];
            peer.note("bad", |standing| standing.lost(now));
            peer.note("good", |standing| standing.answered(now, Duration::from_millis(1), None));
            drop(in_hand);
        }
        peer.note("bad", |standing| assert!(standing.breaker.out_of_order_until(now).is_some()));
        peer.note("good", |standing| assert!(standing.breaker.out_of_order_until(now).is_none()));
    }
}
