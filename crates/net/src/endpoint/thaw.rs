//! What waits in the socket of a process that was frozen is not read: it is as old as the frost was long.
//!
//! A call says how much time it has left, counted from its arrival. Where a process was stopped, calls have waited in the kernel for longer
//! than they say, and their callers have gone. A pulse on the endpoint's own thread notices that it has not beaten for a while; then
//! everything that has come meanwhile is dropped before anything is read. To QUIC that is loss: connections that still live send it again,
//! those that do not end by their idle timeout. Without frost it costs four wake-ups a second. A machine that was suspended is another
//! matter: its clock stood still as well, and so did its network, so that nothing is noticed and next to nothing has come.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Handle;

const BEAT: Duration = Duration::from_millis(250);

/// A pulse that stops for so long was stopped: a thread of its own is not kept from running for this long by work alone.
const FROST: Duration = Duration::from_secs(1);

/// When the thread was last seen to run: a pure decision.
#[derive(Debug)]
struct Pulse {
    seen: Instant,
    /// What has come until now is stale.
    is_stale: bool,
}

impl Pulse {
    fn new(now: Instant) -> Self {
        Self { seen: now, is_stale: false }
    }

    fn beat(&mut self, now: Instant) {
        self.is_stale |= now.saturating_duration_since(self.seen) > FROST;
        self.seen = now;
    }

    /// Whether what waits is to be dropped, once for each frost.
    fn take_stale(&mut self, now: Instant) -> bool {
        self.beat(now);
        std::mem::take(&mut self.is_stale)
    }
}

/// A socket that forgets what came while its process was frozen.
#[derive(Debug)]
struct Thawing {
    socket: Arc<dyn AsyncUdpSocket>,
    pulse: Arc<Mutex<Pulse>>,
}

/// Over `socket`, whose packets are read on `runtime`.
pub(super) fn thawing(socket: Arc<dyn AsyncUdpSocket>, runtime: &Handle) -> Arc<dyn AsyncUdpSocket> {
    let pulse = Arc::new(Mutex::new(Pulse::new(Instant::now())));
    runtime.spawn(beat(Arc::downgrade(&pulse)));
    Arc::new(Thawing { socket, pulse })
}

async fn beat(pulse: Weak<Mutex<Pulse>>) {
    while let Some(pulse) = pulse.upgrade() {
        pulse.lock().beat(Instant::now());
        drop(pulse);
        tokio::time::sleep(BEAT).await;
    }
}

impl AsyncUdpSocket for Thawing {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.socket).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket.try_send(transmit)
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        if self.pulse.lock().take_stale(Instant::now()) {
            let mut dropped = 0;
            // The kernel's buffer has an end, and who fills it faster than it is emptied here would fill it at any time.
            while dropped < MAX_DROPPED {
                dropped += ready!(self.drop_some(context, buffers, meta, dropped))?;
            }
        }
        self.socket.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.socket.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.socket.may_fragment()
    }
}

/// As many datagrams as a full buffer of megabytes has room for.
const MAX_DROPPED: usize = 1 << 16;

impl Thawing {
    /// Pending when nothing is left; then the frost is over.
    fn drop_some(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
        dropped: usize,
    ) -> Poll<io::Result<usize>> {
        let polled = self.socket.poll_recv(context, buffers, meta);
        if polled.is_pending() {
            tracing::warn!(
                "the process was frozen: {dropped} batches of datagrams that had come meanwhile were dropped"
            );
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_that_was_stopped_makes_what_waits_stale_once() {
        let start = Instant::now();
        let mut pulse = Pulse::new(start);
        assert!(!pulse.take_stale(start + BEAT));
        assert!(!pulse.take_stale(start + BEAT + FROST));
        // Whoever wakes first, the beat or the socket.
        pulse.beat(start + FROST * 30);
        assert!(pulse.take_stale(start + FROST * 30));
        assert!(!pulse.take_stale(start + FROST * 30));
        assert!(pulse.take_stale(start + FROST * 60));
    }
}
