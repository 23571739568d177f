//! Discards datagrams that queued in the kernel while the process was stopped (SIGSTOP, cgroup freezer): their
//! deadlines are stale.
//!
//! A call carries its remaining time, counted from its arrival. While a process is stopped, calls wait in the kernel
//! for longer than that, and their callers leave. A heartbeat on the endpoint's thread detects the stop; then
//! everything that has arrived meanwhile is dropped before anything is read. To QUIC this is packet loss: live
//! connections send the data again, and the watch of a link or the idle timeout ends dead ones. The heartbeat costs
//! four wake-ups a second. A suspended machine is not detected: its clock stood still as well, and its network
//! delivered next to nothing.

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

/// The time between two heartbeats.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(250);

/// A longer gap means that the process was stopped: load alone does not delay a dedicated thread for this long.
const MAX_STALL: Duration = Duration::from_secs(1);

/// When the thread last ran: a pure decision.
#[derive(Debug)]
struct Heartbeat {
    last: Instant,
    /// Whether the datagrams that wait now are stale.
    is_stale: bool,
}

impl Heartbeat {
    fn new(now: Instant) -> Self {
        Self { last: now, is_stale: false }
    }

    fn tick(&mut self, now: Instant) {
        self.is_stale |= now.saturating_duration_since(self.last) > MAX_STALL;
        self.last = now;
    }

    /// Whether to drop the datagrams that wait now; true once for each stop.
    fn take_stale(&mut self, now: Instant) -> bool {
        self.tick(now);
        std::mem::take(&mut self.is_stale)
    }
}

/// A socket that drops the datagrams that arrived while its process was stopped.
#[derive(Debug)]
struct SuspendGuard {
    socket: Arc<dyn AsyncUdpSocket>,
    heartbeat: Arc<Mutex<Heartbeat>>,
}

/// Guards `socket`, whose packets are read on `runtime`.
pub(super) fn guard(socket: Arc<dyn AsyncUdpSocket>, runtime: &Handle) -> Arc<dyn AsyncUdpSocket> {
    let heartbeat = Arc::new(Mutex::new(Heartbeat::new(Instant::now())));
    runtime.spawn(keep_ticking(Arc::downgrade(&heartbeat)));
    Arc::new(SuspendGuard { socket, heartbeat })
}

async fn keep_ticking(heartbeat: Weak<Mutex<Heartbeat>>) {
    while let Some(heartbeat) = heartbeat.upgrade() {
        heartbeat.lock().tick(Instant::now());
        drop(heartbeat);
        tokio::time::sleep(HEARTBEAT_EVERY).await;
    }
}

impl AsyncUdpSocket for SuspendGuard {
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
        if self.heartbeat.lock().take_stale(Instant::now()) {
            let mut dropped = 0;
            // Bounded: a sender that fills the kernel's buffer faster than this empties it could do so at any time.
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

/// More datagrams than a buffer of megabytes holds.
const MAX_DROPPED: usize = 1 << 16;

impl SuspendGuard {
    /// Drops one batch. Pending when no datagram is left.
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
                "the process was stopped: {dropped} batches of datagrams that arrived meanwhile were dropped"
            );
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_heartbeat_makes_waiting_datagrams_stale_once() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        assert!(!heartbeat.take_stale(start + HEARTBEAT_EVERY));
        assert!(!heartbeat.take_stale(start + HEARTBEAT_EVERY + MAX_STALL));
        // Whether the heartbeat or the socket wakes first.
        heartbeat.tick(start + MAX_STALL * 30);
        assert!(heartbeat.take_stale(start + MAX_STALL * 30));
        assert!(!heartbeat.take_stale(start + MAX_STALL * 30));
        assert!(heartbeat.take_stale(start + MAX_STALL * 60));
    }
}
