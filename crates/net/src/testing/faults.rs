//! Bad weather under QUIC: a socket that loses, doubles, delays and reorders what is sent, by a seed.
//!
//! It stands between quinn and the real socket of one endpoint and acts on what leaves it. The decisions come from the seed alone; what they
//! meet depends on the order in which packets are sent, so a seed is the same weather, and not the same run to the bit. What is held back
//! is bounded; what is beyond is lost.

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

/// Datagrams that may be held back at once.
const MAX_HELD: usize = 4096;

/// What happens to datagrams, each with its own chance between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Weather {
    /// It is lost.
    pub loss: f64,
    /// It comes twice.
    pub duplication: f64,
    /// It is held back by a few milliseconds, so that what is behind it overtakes it.
    pub reordering: f64,
    /// How long every one takes.
    pub delay: Duration,
    /// How much longer some take.
    pub jitter: Duration,
}

impl Weather {
    /// This much of each of loss, duplication and reordering, and up to so much delay.
    #[must_use]
    pub fn of(loss: f64, duplication: f64, reordering: f64, jitter: Duration) -> Self {
        Self { loss, duplication, reordering, delay: Duration::ZERO, jitter }
    }
}

/// How long a datagram is held back that is to be overtaken, at most.
const HELD_BACK: Duration = Duration::from_millis(10);

/// The weather of one endpoint. Cloning shares it.
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
    weather: Weather,
    cut: HashSet<SocketAddr>,
    met: Met,
    bytes: HashMap<SocketAddr, Bytes>,
    counts_bytes: bool,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Met {
    /// Datagrams that were to be sent.
    pub sent: u64,
    /// Of those, lost by weather, or by a cut.
    pub lost: u64,
    /// Sent twice.
    pub doubled: u64,
    /// Held back for a while.
    pub late: u64,
}

/// Bytes that came from an address and went to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bytes {
    /// From there.
    pub received: u64,
    /// To there.
    pub sent: u64,
}

/// Sharing the weather is being the same.
impl PartialEq for Faults {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Faults {}

impl Faults {
    /// Fair weather, until it is [set](Self::set).
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            chance: fastrand::Rng::with_seed(seed),
            weather: Weather::default(),
            cut: HashSet::new(),
            met: Met::default(),
            bytes: HashMap::new(),
            counts_bytes: false,
        };
        Self(Arc::new(Shared { seed, state: Mutex::new(state), held: AtomicUsize::new(0) }))
    }

    /// What the decisions come from.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.seed
    }

    /// Changes the weather.
    pub fn set(&self, weather: Weather) {
        self.0.state.lock().weather = weather;
    }

    /// Nothing reaches this address from here any more; what it sends still comes.
    pub fn cut(&self, to: SocketAddr) {
        self.0.state.lock().cut.insert(to);
    }

    /// Nothing is cut any more.
    pub fn heal(&self) {
        self.0.state.lock().cut.clear();
    }

    /// What has happened so far.
    #[must_use]
    pub fn met(&self) -> Met {
        self.0.state.lock().met
    }

    /// Counts the bytes of each address from now on.
    pub fn count_bytes(&self) {
        self.0.state.lock().counts_bytes = true;
    }

    /// The bytes of each address, since they are counted.
    #[must_use]
    pub fn bytes(&self) -> HashMap<SocketAddr, Bytes> {
        self.0.state.lock().bytes.clone()
    }

    pub(crate) fn over(&self, socket: Arc<dyn AsyncUdpSocket>, runtime: Handle) -> Arc<dyn AsyncUdpSocket> {
        Arc::new(FaultSocket { socket, runtime, faults: self.clone() })
    }

    /// When copies of a datagram go out: none, one or two.
    fn fates(&self, transmit: &Transmit<'_>) -> Vec<Duration> {
        let mut state = self.0.state.lock();
        let State { chance, weather, cut, met, bytes, counts_bytes } = &mut *state;
        met.sent += 1;
        if *counts_bytes {
            bytes.entry(transmit.destination).or_default().sent += transmit.contents.len() as u64;
        }
        // Each is drawn whatever the others say, so that one chance does not shift the rest.
        let [loss, twice, back, late, second] = std::array::from_fn(|_| chance.f64());
        if cut.contains(&transmit.destination) || loss < weather.loss {
            met.lost += 1;
            return Vec::new();
        }
        let mut first = weather.delay + weather.jitter.mul_f64(late);
        if back < weather.reordering {
            first += HELD_BACK.mul_f64(second).max(Duration::from_millis(1));
        }
        met.late += u64::from(first > Duration::ZERO);
        if twice < weather.duplication {
            met.doubled += 1;
            return vec![first, weather.delay + weather.jitter.mul_f64(second)];
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
            shared.state.lock().met.lost += 1;
            return;
        }
        let (socket, contents) = (Arc::clone(&self.socket), transmit.contents.to_vec());
        let (destination, ecn, src_ip) = (transmit.destination, transmit.ecn, transmit.src_ip);
        self.runtime.spawn(async move {
            tokio::time::sleep(after).await;
            shared.held.fetch_sub(1, Ordering::Relaxed);
            let contents = contents.as_slice();
            // A socket that has no room loses it: so does the weather.
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

    // Every datagram has a fate of its own.
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
    fn a_seed_is_a_weather() {
        let weather = Weather::of(0.2, 0.1, 0.3, Duration::from_millis(5));
        let [one, same, other] = [7, 7, 8].map(|seed| {
            let faults = Faults::new(seed);
            faults.set(weather);
            fates(&faults, 1_000)
        });
        assert_eq!(one, same);
        assert_ne!(one, other);
        let lost = one.iter().filter(|fates| fates.is_empty()).count();
        let doubled = one.iter().filter(|fates| fates.len() == 2).count();
        assert!((150..250).contains(&lost) && (50..150).contains(&doubled), "{lost} lost, {doubled} doubled");
    }

    #[test]
    fn fair_weather_does_nothing_and_a_cut_loses_all() {
        let faults = Faults::new(1);
        assert!(fates(&faults, 100).iter().all(|fates| fates == &[Duration::ZERO]));
        faults.cut(SocketAddr::from(([127, 0, 0, 1], 1)));
        assert!(fates(&faults, 100).iter().all(Vec::is_empty));
        faults.heal();
        assert_eq!(fates(&faults, 1).len(), 1);
        assert_eq!((faults.met().sent, faults.met().lost), (201, 100));
    }
}
