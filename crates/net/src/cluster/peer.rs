//! One other node: the connection to it, kept while it is in the view, and what is known of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use callboard_codec::wire::Load;
use callboard_core::Instant;
use parking_lot::Mutex;

use super::breaker::Breaker;
use super::weigh::{Weight, smoothed};
use crate::client::{Greeting, Link};
use crate::endpoint::Transport;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A handshake on a machine that does other things takes this long at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Another node.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    link: ArcSwapOption<Link>,
    ours: AtomicUsize,
    reported: AtomicUsize,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    latency_micros: f64,
    breakers: HashMap<String, Breaker>,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        let (ours, reported) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { address, link: ArcSwapOption::empty(), ours, reported, known: Mutex::default() }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The link, if this stage may be called on it now, and whether the peer says that it may be run again.
    pub(super) fn link_for(&self, stage: &str, now: Instant) -> Option<(Arc<Link>, bool)> {
        let link = self.link.load_full().filter(|link| link.is_usable())?;
        let idempotent = link.offer_of_stage(stage)?.idempotent;
        let allowed = self.known.lock().breakers.get(stage).is_none_or(|breaker| breaker.allows(now));
        allowed.then_some((link, idempotent))
    }

    /// Whether it can be reached and runs the stage.
    pub(super) fn offers(&self, stage: &str) -> bool {
        self.link.load().as_ref().is_some_and(|link| link.is_usable() && link.offer_of_stage(stage).is_some())
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.load().as_ref().is_some_and(|link| link.is_usable())
    }

    pub(super) fn weight(&self) -> Weight {
        let latency_micros = self.known.lock().latency_micros;
        let key = (u64::from(self.address.port()) << 32) ^ address_bits(self.address);
        let (ours, reported) = (self.ours.load(Ordering::Relaxed), self.reported.load(Ordering::Relaxed));
        Weight { ours, reported, latency_micros, key }
    }

    /// A call goes there; it is counted until the guard is dropped.
    pub(super) fn begin(self: &Arc<Self>, stage: &str, now: Instant) -> InHand {
        if let Some(breaker) = self.known.lock().breakers.get_mut(stage) {
            breaker.began(now);
        }
        self.ours.fetch_add(1, Ordering::Relaxed);
        InHand(Arc::clone(self))
    }

    /// The peer answered, after so long.
    pub(super) fn answered(&self, stage: &str, took: Duration, load: Option<Load>) {
        if let Some(load) = load {
            self.reported.store(load.in_flight as usize, Ordering::Relaxed);
        }
        let mut known = self.known.lock();
        known.latency_micros = smoothed(known.latency_micros, took);
        if let Some(breaker) = known.breakers.get_mut(stage) {
            breaker.answered();
        }
    }

    /// A call there came to nothing.
    pub(super) fn lost(&self, stage: &str, now: Instant) {
        let mut known = self.known.lock();
        match known.breakers.get_mut(stage) {
            Some(breaker) => breaker.lost(now),
            // There are as many as there are stages that this node calls.
            None => known.breakers.entry(stage.to_owned()).or_default().lost(now),
        }
    }

    /// Keeps a connection to it, for as long as it is polled.
    pub(super) async fn keep_linked(self: Arc<Self>, transport: Arc<Transport>, greeting: Greeting) {
        let mut pause = FIRST_PAUSE;
        loop {
            match Link::open(&transport, self.address, &greeting, CONNECT_TIMEOUT).await {
                Ok(link) => {
                    pause = FIRST_PAUSE;
                    tracing::info!(peer = %self.address, node = %link.welcome().node, "linked");
                    let connection = link.connection().clone();
                    self.link.store(Some(link));
                    let ended = connection.closed().await;
                    self.link.store(None);
                    tracing::info!(peer = %self.address, "link lost: {ended}");
                }
                Err(fault) => tracing::debug!("no link: {fault}"),
            }
            // All peers of a node that comes back would be there at once.
            tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

/// One of our calls that a peer has in hand.
pub(super) struct InHand(Arc<Peer>);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.ours.fetch_sub(1, Ordering::Relaxed);
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
