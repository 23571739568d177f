//! Fault injection for tests: a socket that loses, duplicates, delays and reorders sent datagrams, driven by a seed.
//!
//! It sits between quinn and the real socket of one endpoint. The decisions depend only on the seed; which datagram
//! they hit depends on the order of sending, so a seed repeats the faults, not the exact run. The number of delayed
//! datagrams is bounded; further ones are lost.

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Handle;

/// The most datagrams that are delayed at once.
const MAX_HELD: usize = 4096;

/// The faults of datagrams, each with its own chance between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FaultProfile {
    /// The chance that it is lost.
    pub loss: f64,
    /// The chance that it arrives twice.
    pub duplication: f64,
    /// The chance that it is delayed by a few milliseconds, so that later ones overtake it.
    pub reordering: f64,
    /// The delay of every datagram.
    pub delay: Duration,
    /// The most additional delay.
    pub jitter: Duration,
}

impl FaultProfile {
    /// These chances of loss, duplication and reordering, and this jitter.
    #[must_use]
    pub fn new(loss: f64, duplication: f64, reordering: f64, jitter: Duration) -> Self {
        Self { loss, duplication, reordering, delay: Duration::ZERO, jitter }
    }
}

/// The most delay of a reordered datagram.
const HELD_BACK: Duration = Duration::from_millis(10);

/// The faults of one endpoint. Clones share them.
#[derive(Clone, Debug)]
pub struct Faults(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    seed: u64,
    state: Mutex<State>,
    held: AtomicUsize,
}

#[derive(Debug)]
struct State {
    chance: fastrand::Rng,
    profile: FaultProfile,
    cut: HashSet<SocketAddr>,
    counters: FaultCounters,
    bytes: HashMap<SocketAddr, Bytes>,
    counts_bytes: bool,
}

/// Counts the faults so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FaultCounters {
    /// Datagrams that were to be sent.
    pub sent: u64,
    /// Lost by chance, or by a cut.
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Delayed.
    pub delayed: u64,
}

/// Bytes received from an address and sent to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bytes {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Clones are equal.
impl PartialEq for Faults {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Faults {}

impl Faults {
    /// No faults, until a profile is [set](Self::set).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            chance: fastrand::Rng::with_seed(seed),
            profile: FaultProfile::default(),
            cut: HashSet::new(),
            counters: FaultCounters::default(),
            bytes: HashMap::new(),
            counts_bytes: false,
        };
        Self(Arc::new(Shared { seed, state: Mutex::new(state), held: AtomicUsize::new(0) }))
    }

    /// The seed of the decisions.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Sets the profile.
    pub fn set(&self, profile: FaultProfile) {
        self.0.state.lock().profile = profile;
    }

    /// Drops everything to this address; datagrams from it still arrive.
    pub fn cut(&self, to: SocketAddr) {
        self.0.state.lock().cut.insert(to);
    }

    /// Ends all cuts.
    pub fn heal(&self) {
        self.0.state.lock().cut.clear();
    }

    /// The faults so far.
    #[must_use]
    pub fn counters(&self) -> FaultCounters {
        self.0.state.lock().counters
    }

    /// Starts counting the bytes of each address.
    pub fn count_bytes(&self) {
        self.0.state.lock().counts_bytes = true;
    }

    /// The bytes of each address since [`count_bytes`](Self::count_bytes).
    #[must_use]
    pub fn bytes(&self) -> HashMap<SocketAddr, Bytes> {
        self.0.state.lock().bytes.clone()
    }

    pub(crate) fn wrap(&self, socket: Arc<dyn AsyncUdpSocket>, runtime: Handle) -> Arc<dyn AsyncUdpSocket> {
        Arc::new(FaultSocket { socket, runtime, faults: self.clone() })
    }

    /// The delays of the copies of a datagram: none, one or two.
    fn fates(&self, transmit: &Transmit<'_>) -> Vec<Duration> {
        let mut state = self.0.state.lock();
        let State { chance, profile, cut, counters, bytes, counts_bytes } = &mut *state;
        counters.sent += 1;
        if *counts_bytes {
            bytes.entry(transmit.destination).or_default().sent += transmit.contents.len() as u64;
        }
        // All are drawn each time, so that one decision does not shift the others.
        let [loss, twice, back, late, second] = std::array::from_fn(|_| chance.f64());
        if cut.contains(&transmit.destination) || loss < profile.loss {
            counters.lost += 1;
            return Vec::new();
        }
        let mut first = profile.delay + profile.jitter.mul_f64(late);
        if back < profile.reordering {
            first += HELD_BACK.mul_f64(second).max(Duration::from_millis(1));
        }
        counters.delayed += u64::from(first > Duration::ZERO);
        if twice < profile.duplication {
            counters.duplicated += 1;
            return vec![first, profile.delay + profile.jitter.mul_f64(second)];
        }
        vec![first]
    }
}

#[derive(Debug)]
struct FaultSocket {
    socket: Arc<dyn AsyncUdpSocket>,
    runtime: Handle,
    faults: Faults,
}

impl FaultSocket {
    fn send_later(&self, transmit: &Transmit<'_>, after: Duration) {
        let shared = Arc::clone(&self.faults.0);
        if shared.held.fetch_add(1, Ordering::Relaxed) >= MAX_HELD {
            shared.held.fetch_sub(1, Ordering::Relaxed);
            shared.state.lock().counters.lost += 1;
            return;
        }
        let (socket, contents) = (Arc::clone(&self.socket), transmit.contents.to_vec());
        let (destination, ecn, src_ip) = (transmit.destination, transmit.ecn, transmit.src_ip);
        self.runtime.spawn(async move {
            tokio::time::sleep(after).await;
            shared.held.fetch_sub(1, Ordering::Relaxed);
            let contents = contents.as_slice();
            // A full socket loses the datagram, which is one more fault.
            let _ = socket.try_send(&Transmit { destination, ecn, contents, segment_size: None, src_ip });
        });
    }
}

impl AsyncUdpSocket for FaultSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        for after in self.faults.fates(transmit) {
            match after {
                Duration::ZERO => self.socket.try_send(transmit)?,
                after => self.send_later(transmit, after),
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = ready!(self.socket.poll_recv(context, buffers, meta))?;
        let mut state = self.faults.0.state.lock();
        if state.counts_bytes {
            for datagram in &meta[..received] {
                state.bytes.entry(datagram.addr).or_default().received += datagram.len as u64;
            }
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    // Faults are decided for single datagrams.
    fn max_transmit_segments(&self) -> usize {
        1
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(faults: &Faults, count: usize) -> Vec<Vec<Duration>> {
        let destination = SocketAddr::from(([127, 0, 0, 1], 1));
        let transmit = Transmit { destination, ecn: None, contents: b"x", segment_size: None, src_ip: None };
        (0..count).map(|_| faults.fates(&transmit)).collect()
    }

    #[test]
    fn a_seed_repeats_its_faults() {
        let profile = FaultProfile::new(0.2, 0.1, 0.3, Duration::from_millis(5));
        let [one, same, other] = [7, 7, 8].map(|seed| {
            let faults = Faults::new(seed);
            faults.set(profile);
            fates(&faults, 1_000)
        });
        assert_eq!(one, same);
        assert_ne!(one, other);
        let lost = one.iter().filter(|fates| fates.is_empty()).count();
        let duplicated = one.iter().filter(|fates| fates.len() == 2).count();
        assert!((150..250).contains(&lost) && (50..150).contains(&duplicated), "{lost} lost, {duplicated} duplicated");
    }

    #[test]
    fn no_profile_has_no_faults_and_a_cut_loses_everything() {
        let faults = Faults::new(1);
        assert!(fates(&faults, 100).iter().all(|fates| fates == &[Duration::ZERO]));
        faults.cut(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(fates(&faults, 100).iter().all(Vec::is_empty));
        faults.heal();
        assert_eq!(fates(&faults, 1).len(), 1);
        assert_eq!((faults.counters().sent, faults.counters().lost), (201, 100));
    }
}
